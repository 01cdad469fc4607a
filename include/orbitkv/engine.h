/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of an engine process to a Manager, and its completions. */
#ifndef ORBITKV_ENGINE_H
#define ORBITKV_ENGINE_H

#include <orbitkv/logging.h>
#include <orbitkv/manager.h>
#include <orbitkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_engine;
struct okv_op;

/** Flags of an engine; they are or-ed. */
enum okv_engine_flags {
	OKV_ENGINE_EMBEDDED = 0x1,     /* run a Manager in this process; the cache ends with it */
	OKV_ENGINE_RESTORE_ONLY = 0x2, /* map arenas read-only; a publish fails with OKV_E_PERM */
	OKV_ENGINE_POISON = 0x4,       /* poison the engine, no abort(): okv_engine_open() */
	OKV_ENGINE_STAGE_TIMES = 0x8,  /* fill okv_op_result.times; else no clock is read for it */
	OKV_ENGINE_TRUST_UID = 0x10,   /* the Manager may also run as trust_uid */
};

/** Options of okv_engine_open(). */
struct okv_engine_options {
	uint32_t size;	/* set by the _init call */
	uint32_t flags; /* enum okv_engine_flags; default 0 */
	/* Socket of the Manager; copied. NULL, the default: okv_default_socket_path(). Must be NULL
	 * with OKV_ENGINE_EMBEDDED. */
	const char *socket_path;
	/* Options of the embedded Manager; copied. NULL, the default: its defaults. Must be NULL
	 * without OKV_ENGINE_EMBEDDED. */
	const struct okv_manager_options *embedded;
	/* Milliseconds that okv_engine_open() may take to connect and to be answered, and that each
	 * question to the Manager may take at registration, with its turn behind those of other
	 * threads; and, when a binding is unregistered, that operations may take to be granted.
	 * Default 5,000. < 0: no limit, but 5,000 when a binding is unregistered. 0 is refused. */
	int32_t connect_timeout_ms;
	/* Microseconds that a call or a worker spins before it sleeps; 0 to 1,000,000, default 50.
	 * 0: never spin. okv_lookup() and okv_lease_open() spin four times as long. A sleeping
	 * okv_op_wait() spins again for three times as long when the copies are about to end, and
	 * once as long when the copies of a publish ended. */
	uint32_t spin_us;
	okv_log_fn *log;    /* NULL, the default: no log function */
	void *log_arg;	    /* passed to log */
	uint32_t trust_uid; /* with OKV_ENGINE_TRUST_UID, else 0 */
	uint32_t reserved;  /* 0 */
	/* Takes the lines instead of log; kept until the engine's memory is freed. NULL, the
	 * default. The lines of an embedded Manager go where its own options say. */
	struct okv_log_ring *log_ring;
};

/** Set size and every default: a Manager at the default path. NULL is ignored. */
OKV_EXPORT void okv_engine_options_init(struct okv_engine_options *opts);

/**
 * Connect to a Manager, or start one in this process. The call does not wait for a Manager to
 * start: while a Manager still prepares its memory, the call returns OKV_E_CONNECT at once; retry
 * after a pause. A process may have several engines, also old ones whose session is lost. The
 * library installs no signal handler. It starts one thread for the engine, one for its log function
 * if there is one, and the threads of an embedded Manager; all of them sleep while there is no
 * work. opts may be NULL for the defaults.
 *
 * When the library cannot know whether a copy has ended (a permanent device error, a driver that
 * accepts no calls), the pages of that copy must not be reused. The library then writes one line to
 * stderr and calls abort(). With OKV_ENGINE_POISON it poisons the engine instead and keeps the
 * pages until the process exits.
 *
 * exit() without okv_engine_close() ends quietly, whatever runs: copies stop with the process, and
 * operations whose end the device cannot tell any more end as OKV_E_POISONED, without abort(). For
 * the Manager the engine died: the blocks that running copies read or wrote stay quarantined until
 * it restarts. So close first where the cache matters.
 *
 * The Manager decides what a restore writes into the tensors. Therefore the library connects only
 * to a Manager that runs as this process's effective user or as root. OKV_ENGINE_TRUST_UID adds the
 * user trust_uid, and with it every process of that user. Which users the Manager serves is set by
 * its allow_uids.
 *
 * After fork() the engine is the parent's alone, with all that was opened on it. In the child every
 * call on them is OKV_E_FORKED, and what releases or closes does nothing: neither to the parent's
 * session nor to its tensors; their memory in the child is freed when it ends. None of the
 * Manager's memory is mapped there. The child may open an engine of its own, whatever the parent's
 * threads did at the fork, but: no embedded Manager where the parent ever had one, and no CUDA
 * binding where it had loaded the driver (OKV_E_UNSUPPORTED). The parent's session ends when the
 * parent closes it or ends; its children do not keep it.
 *
 * Owns     returns an owned handle; release it with okv_engine_close().
 * Errors   OKV_E_CONNECT, OKV_E_TIMEOUT (the Manager takes no connection, or does not answer),
 *          OKV_E_CLOSED (the Manager drains), OKV_E_VERSION, OKV_E_PERM, OKV_E_AGAIN (too many
 *          sessions), OKV_E_INVAL and OKV_E_LIMIT (options).
 * Blocks   up to connect_timeout_ms; with an embedded Manager, while memory is touched.
 * Threads  any.
 */
OKV_EXPORT int okv_engine_open(const struct okv_engine_options *opts,
			       struct okv_engine **ret_engine, struct okv_error *err);

/**
 * Refuse new operations, wait until the started ones drained, unregister all bindings, disconnect.
 * Other handles stay valid to release, and operations also to query. The engine's memory is freed
 * when all of them are released. NULL is allowed.
 *
 * Blocks   until every started operation drained. Operations that the Manager has not granted
 *          within connect_timeout_ms end as OKV_E_CANCELLED: nothing of theirs was copied.
 * Threads  any.
 */
OKV_EXPORT void okv_engine_close(struct okv_engine *engine);

/**
 * A descriptor for poll(2). It is readable while completions wait for okv_engine_poll(), and once
 * the session is lost. It belongs to the engine: never read or close it. Negative for NULL and
 * after a fork.
 */
OKV_EXPORT int okv_engine_fd(struct okv_engine *engine);

/** One operation that ended, as okv_engine_poll() reports it. */
struct okv_completion {
	/* The handle from okv_*_start(), which stores it before the completion can arrive. Invalid
	 * if the caller released it. */
	struct okv_op *op;
	uint64_t user_data; /* from the start options */
	int32_t status;	    /* final: 0 or OKV_E_* */
	uint32_t reserved;  /* 0 */
};

/**
 * Take up to max (1 or more) completions of operations started with OKV_OP_NOTIFY. Each such
 * operation appears exactly once. When no completion is left, the call returns OKV_E_SESSION if the
 * session is lost and OKV_E_POISONED if the engine is poisoned.
 * Blocks   never.
 */
OKV_EXPORT int okv_engine_poll(struct okv_engine *engine, struct okv_completion *completions,
			       uint32_t max, uint32_t *ret_count);

/**
 * 0 while the engine is usable; else OKV_E_SESSION, OKV_E_POISONED, OKV_E_CLOSED (being closed),
 * OKV_E_FORKED, or OKV_E_INVAL (NULL). Blocks never.   Threads any.
 */
OKV_EXPORT int okv_engine_state(struct okv_engine *engine);

/**
 * The run of the Manager that this engine is connected to: a random number of its start, never 0.
 * Engines with equal numbers use the same blocks and leases; a lease id of another run is unknown.
 * 0 for NULL. Blocks never.   Threads any.
 */
OKV_EXPORT uint64_t okv_engine_epoch(const struct okv_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
