/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: given to a function, or kept in a ring until the caller reads them. */
#ifndef ORBITKV_LOGGING_H
#define ORBITKV_LOGGING_H

#include <stdint.h>
#include <orbitkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A line is one event, without a newline. An engine and a Manager each have the lines of their own;
 * the options say where these go: to `log`, into `log_ring`, or, with neither, nowhere. The library
 * itself prints nothing, except one line to stderr before it calls abort() (OKV_ENGINE_POISON).
 *
 * No thread of the library and no call waits for a reader of lines. Where lines come faster than
 * they are read, the oldest are lost, and counted.
 */
enum okv_log_level { OKV_LOG_ERROR, OKV_LOG_WARN, OKV_LOG_INFO, OKV_LOG_DEBUG };

/** Bytes of the longest line, with the 0 at its end; what is longer is cut. */
#define OKV_LOG_TEXT_BYTES 512
/** Of one ring. */
#define OKV_MAX_LOG_LINES 65536

/**
 * Log function, called with one line at a time, in the order in which they were written. Up to 256
 * lines wait for it; a line "N log lines were lost" stands where some are missing.
 *
 * Threads  one thread of the library that does nothing else, with all signals blocked; each engine
 *          and each Manager with a log function has its own. It holds no lock of the library, so
 *          the function may block, and may call the library. okv_engine_close(),
 *          okv_manager_destroy() and a failing okv_engine_open() or okv_manager_create() return
 *          when the last line was given and the function has returned: do not call them from it,
 *          nor with a lock that it takes. A program that cannot promise that uses a ring.
 */
typedef void okv_log_fn(void *arg, enum okv_log_level level, const char *line);

/** Lines that wait for the caller: for programs in which no foreign thread should call back. */
struct okv_log_ring;

/** One line, as okv_log_ring_read() gives it. */
struct okv_log_line {
	uint64_t time_ns; /* when it was written: nanoseconds since 1970, UTC */
	uint64_t lost;	/* lines written before this one, and after the one before, that are lost */
	uint32_t level; /* enum okv_log_level */
	uint32_t reserved; /* 0 */
	char text[OKV_LOG_TEXT_BYTES];
};

/**
 * Create a ring that keeps the newest max_lines lines, 1 to OKV_MAX_LOG_LINES, in 536 bytes each.
 * Any number of engines and Managers may write into it: `log_ring` of their options.
 *
 * Owns     returns an owned handle; close it with okv_log_ring_close().
 * Errors   OKV_E_INVAL (max_lines), OKV_E_NOMEM (also of descriptors).
 * Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_log_ring_create(uint32_t max_lines, struct okv_log_ring **ret_ring,
				   struct okv_error *err);

/**
 * A descriptor for poll(2), readable while lines wait for okv_log_ring_read(). It belongs to the
 * ring: never read or close it. Negative for NULL and after a fork.
 */
OKV_EXPORT int okv_log_ring_fd(struct okv_log_ring *ring);

/**
 * Take up to max (1 or more) of the oldest lines; *ret_count is 0 when there are none. Each line is
 * taken by one reader. Lines written plus those that `lost` counts are all there ever were.
 *
 * Errors   OKV_E_INVAL (arguments), OKV_E_FORKED: the ring is that of the parent process.
 * Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_log_ring_read(struct okv_log_ring *ring, struct okv_log_line *lines,
				 uint32_t max, uint32_t *ret_count);

/**
 * Release the handle: unread lines and later ones are dropped, and the descriptor is closed. The
 * engines and Managers that write into it may go on. NULL is allowed. Blocks never.   Threads any.
 */
OKV_EXPORT void okv_log_ring_close(struct okv_log_ring *ring);

#ifdef __cplusplus
}
#endif
#endif
