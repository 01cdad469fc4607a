/* SPDX-License-Identifier: Apache-2.0 */
/* One engine process's connection to a Manager, and its event loop interface. */
#ifndef ORBITKV_ENGINE_H
#define ORBITKV_ENGINE_H

#include <orbitkv/manager.h>
#include <orbitkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_engine;
struct okv_op;

#define OKV_ENGINE_EMBEDDED 0x1u     /* run a Manager inside this process; the cache dies with it */
#define OKV_ENGINE_RESTORE_ONLY 0x2u /* map arenas read-only; publish is OKV_E_PERM */
#define OKV_ENGINE_POISON 0x4u	     /* unknown completion poisons the engine instead of aborting */
#define OKV_ENGINE_STAGE_TIMES 0x8u  /* take stage clocks; off: no clock is read */
#define OKV_ENGINE_TRUST_UID 0x10u   /* the Manager may also run as trust_uid */

/** How okv_engine_open() reaches its Manager. */
struct okv_engine_options {
	uint32_t size;
	uint32_t flags;				    /* OKV_ENGINE_* */
	const char *socket_path;		    /* copied; NULL: default path; not EMBEDDED */
	const struct okv_manager_options *embedded; /* copied; NULL: defaults; EMBEDDED only */
	/* For each answer at open and registration, and how long the end of a binding waits for
	 * operations that are not granted; default 5,000; < 0 without limit, but 5 s at the end of
	 * a binding; 0 is refused. */
	int32_t connect_timeout_ms;
	/* How long a call or a worker spins before it sleeps, one that waits for an answer of the
	 * Manager's four times as long; okv_op_wait() three times as long again when the copies are
	 * about to end, and once when those of a publish ended; 0: never; default 50. */
	uint32_t spin_us;
	okv_log_fn *log;
	void *log_arg;
	uint32_t trust_uid; /* OKV_ENGINE_TRUST_UID only */
	uint32_t reserved;  /* 0 */
};

/** Fill in size and every default: a Manager at the default path. NULL is ignored. */
OKV_EXPORT void okv_engine_options_init(struct okv_engine_options *opts);

/**
 * Connect to a Manager, or start one inside. It does not wait for a Manager to appear: while one
 * prepares its memory, OKV_E_CONNECT comes at once, so retry with a pause. A process may hold
 * several engines, an old one with a lost session among them. Leaves no signal handler. Starts one
 * thread (with an embedded Manager, its threads too); all sleep while nothing is going on. opts may
 * be NULL for the defaults.
 *
 * When a copy's end cannot be known (a device error that stays, a driver that takes no more calls)
 * nobody may ever use its pages again: the library then writes one line to stderr and calls
 * abort(), or, with OKV_ENGINE_POISON, poisons the engine and keeps the pages until the process
 * exits.
 *
 * A Manager is believed when it runs as this process's effective user or as root, and no other:
 * whoever answers on the socket decides what a restore writes into the tensors. With
 * OKV_ENGINE_TRUST_UID, trust_uid is a third user to believe; all its processes are then trusted
 * with that. The Manager decides by itself whom it serves (allow_uids).
 *
 * Owns     returns owned; okv_engine_close().
 * Errors   OKV_E_CONNECT, OKV_E_TIMEOUT (a Manager that does not answer), OKV_E_CLOSED (one that
 *          drains), OKV_E_VERSION, OKV_E_PERM, OKV_E_AGAIN (too many sessions), OKV_E_INVAL and
 *          OKV_E_LIMIT (options).
 * Blocks   up to connect_timeout_ms (embedded: while memory is touched).   Threads any.
 */
OKV_EXPORT int okv_engine_open(const struct okv_engine_options *opts,
			       struct okv_engine **ret_engine, struct okv_error *err);

/**
 * Refuse new work, drain what was started, unregister what is registered, disconnect.
 * Handles that outlive it stay valid to release (operations also to query), and must all be
 * released for the memory to go. NULL is allowed.
 *
 * Blocks   until every started operation drained. Operations that the Manager has not granted
 * within connect_timeout_ms end as OKV_E_CANCELLED: nothing of theirs was copied.   Threads any.
 */
OKV_EXPORT void okv_engine_close(struct okv_engine *engine);

/**
 * One descriptor for poll(2): readable while completions wait for okv_engine_poll() or the
 * session is lost. Borrowed; never read or close it. Negative for NULL and after a fork.
 */
OKV_EXPORT int okv_engine_fd(struct okv_engine *engine);

/** One operation that ended, as okv_engine_poll() tells it. */
struct okv_completion {
	/* The handle that okv_*_start() gave, and wrote before this could come; dangling once you
	 * released it. */
	struct okv_op *op;
	uint64_t user_data; /* from the start options */
	int32_t status;	    /* its final result */
	uint32_t reserved;
};

/**
 * Take up to max completions of operations started with OKV_OP_NOTIFY, without blocking.
 * Each such operation appears exactly once. Once all completions are taken it returns OKV_E_SESSION
 * when the session is lost, OKV_E_POISONED when the engine is poisoned.
 */
OKV_EXPORT int okv_engine_poll(struct okv_engine *engine, struct okv_completion *completions,
			       uint32_t max, uint32_t *ret_count);

/** 0 while usable, OKV_E_SESSION or OKV_E_POISONED once not. */
OKV_EXPORT int okv_engine_state(struct okv_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
