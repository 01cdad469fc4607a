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

struct okv_engine_options {
	uint32_t size;
	uint32_t flags;				    /* OKV_ENGINE_* */
	const char *socket_path;		    /* copied; NULL: default path */
	const struct okv_manager_options *embedded; /* copied; NULL: defaults; EMBEDDED only */
	int32_t connect_timeout_ms; /* default 5,000; also bounds registration calls */
	uint32_t spin_us;	    /* how long a call spins for its answer; default 50 */
	okv_log_fn *log;
	void *log_arg;
};

OKV_EXPORT void okv_engine_options_init(struct okv_engine_options *opts);

/**
 * Connect to a Manager, or start one inside. Leaves no signal handler. Starts one thread (with an
 * embedded Manager, its threads too); all sleep while nothing is going on. opts may be NULL for
 * the defaults.
 *
 * Owns     returns owned; okv_engine_close().
 * Errors   OKV_E_CONNECT, OKV_E_VERSION, OKV_E_PERM, OKV_E_AGAIN (too many sessions).
 * Blocks   up to connect_timeout_ms (embedded: while memory is touched).   Threads any.
 */
OKV_EXPORT int okv_engine_open(const struct okv_engine_options *opts,
			       struct okv_engine **ret_engine, struct okv_error *err);

/**
 * Refuse new work, drain what was started, unregister what is registered, disconnect.
 * Handles that outlive it stay valid to release (operations also to query), and must all be
 * released for the memory to go. NULL is allowed.
 *
 * Blocks   until every started operation drained.   Threads any.
 */
OKV_EXPORT void okv_engine_close(struct okv_engine *engine);

/**
 * One descriptor for poll(2): readable while completions wait for okv_engine_poll() or the
 * session is lost. Borrowed; never read or close it.
 */
OKV_EXPORT int okv_engine_fd(struct okv_engine *engine);

struct okv_completion {
	struct okv_op *op;  /* borrowed: the handle okv_*_start() gave */
	uint64_t user_data; /* from the start options */
	int32_t status;	    /* its final result */
	uint32_t reserved;
};

/**
 * Take up to max completions of operations started with OKV_OP_NOTIFY, without blocking.
 * Each such operation appears exactly once. Returns OKV_E_SESSION, once all completions
 * are taken, when the session is lost.
 */
OKV_EXPORT int okv_engine_poll(struct okv_engine *engine, struct okv_completion *completions,
			       uint32_t max, uint32_t *ret_count);

/** 0 while usable, OKV_E_SESSION or OKV_E_POISONED once not. */
OKV_EXPORT int okv_engine_state(struct okv_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
