/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Filling a caller's struct okv_error, and giving up when nothing else is safe. */
#ifndef OKI_BASE_ERROR_H
#define OKI_BASE_ERROR_H

#include <stdint.h>
#include <orbitkv/status.h>

/* What a noun gets behind a count: "%u block%s". */
static inline const char *oki_plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Write status, stage, errno value (0: none; else its text is appended) and text into err. */
void oki_describe(struct okv_error *err, int status, int stage, int os_error, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/*
 * Describe a failure in err (may be NULL); the value is status. A macro, so that compilers and
 * analyzers see the status itself and do not go on as if a failure could be 0.
 */
#define oki_fail(err, status, stage, ...) oki_fail_os(err, status, stage, 0, __VA_ARGS__)

/* The same with an errno value. */
#define oki_fail_os(err, status, stage, os_error, ...)                       \
	__extension__({                                                      \
		const int oki_status = (status);                             \
		oki_describe(err, oki_status, stage, os_error, __VA_ARGS__); \
		oki_status;                                                  \
	})

/* A failure that a peer reports: its number if that is one of ours, else OKV_E_PROTOCOL. */
int oki_peer_status(int status);

/* One line to stderr and abort(): only where going on could corrupt memory. */
void oki_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
