/* SPDX-License-Identifier: Apache-2.0 */
/* The Manager, which owns the cached blocks in host memory. Engines need it for embedded mode. */
#ifndef ORBITKV_MANAGER_H
#define ORBITKV_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <orbitkv/logging.h>
#include <orbitkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_manager;

/** Where arenas lie when `numa` is no number of a node. */
enum okv_numa {
	OKV_NUMA_AUTO = -1, /* spread arenas over the NUMA nodes that have memory and CPUs */
	OKV_NUMA_OFF = -2,  /* bind no arena to a NUMA node */
};

/** Flags of a Manager; they are or-ed. */
enum okv_manager_flags {
	OKV_MANAGER_HUGE_PAGES = 0x1, /* arenas in reserved 2 MiB pages, or fail */
};

/** Called by okv_manager_create(), in its caller's thread and under no lock, while it touches
 * memory. It may block, and may call the library. */
typedef void okv_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** Options of a Manager. */
struct okv_manager_options {
	uint32_t size;	       /* set by the _init call */
	uint32_t flags;	       /* enum okv_manager_flags; default 0 */
	uint64_t memory_bytes; /* all arenas together, rounded up to pages; default 1 GiB */
	/* Bytes of one arena; 0, the default: memory_bytes / 48, at least 64 MiB. There are at most
	 * 48 arenas. */
	uint64_t shard_bytes;
	int32_t numa;		/* enum okv_numa or the number of a node; default OKV_NUMA_AUTO */
	uint32_t touch_threads; /* 0, the default: one per CPU, at most 16; never over 256 */
	/* Users that may connect besides this process's own; copied. A listed user is fully
	 * trusted: its processes may read and write every arena. Default none. */
	const uid_t *allow_uids;
	uint32_t allow_uid_count; /* 0 to 4,096 */
	uint32_t dispatchers;	  /* threads, 1 to 16; 0, the default: 1 for up to 4 CPUs, else 2 */
	/* Microseconds that a thread spins before it sleeps; 0 to 1,000,000, default 50. */
	uint32_t spin_us;
	/* A lease ends so many milliseconds after its last use; 1 or more, default 600,000. */
	uint32_t lease_ttl_ms;
	/* Percent of memory_bytes that all leases together, and the leases of one session, may
	 * pin; 1 to 100, default 75. */
	uint32_t reserve_percent;
	uint32_t session_percent;
	uint32_t restore_permits; /* running restores of one device; 1 or more, default 128 */
	/* Sessions that are connected or retained (see okv_manager_status); 1 to 1,024, the
	 * default. An embedded Manager has 1. */
	uint32_t max_sessions;
	uint32_t part_bytes;	       /* largest plan part; at most 256 KiB, the default */
	uint64_t operation_plan_bytes; /* largest plan of one operation; default 32 MiB */
	uint64_t session_plan_bytes;   /* plans of one session together; default 64 MiB */
	okv_log_fn *log;	       /* NULL, the default: no log function */
	okv_progress_fn *progress;     /* NULL, the default: no reports */
	void *arg;		       /* passed to log and progress */
	/* Takes the lines instead of log; kept until okv_manager_destroy(). NULL, the default. */
	struct okv_log_ring *log_ring;
};

/** Set size and every default. NULL is ignored. */
OKV_EXPORT void okv_manager_options_init(struct okv_manager_options *opts);

/**
 * Create a Manager: allocate, touch and seal its arenas. It accepts no connections yet.
 *
 * Owns     copies opts. Returns an owned handle; release it with okv_manager_destroy().
 * Errors   OKV_E_BUDGET: the host, the cgroup or the pool of huge pages cannot hold memory_bytes
 *          and the control memory of max_sessions: about 6 MiB for each of up to 64, which
 *          1,024 idle ones take. The error text has the bytes requested, available, the limit,
 *          and what would fit. Nothing was allocated.
 *          OKV_E_INVAL (an option, or an impossible NUMA node), OKV_E_NOMEM, OKV_E_UNSUPPORTED:
 *          the system lacks something, or this process was forked from one that had a Manager.
 * Blocks   while memory is touched.   Threads any.
 */
OKV_EXPORT int okv_manager_create(const struct okv_manager_options *opts,
				  struct okv_manager **ret_manager, struct okv_error *err);

/**
 * Check whether a Manager could listen at this path now. Call it before okv_manager_create(), which
 * takes long. It creates the directory as okv_manager_listen() does, and nothing else.
 * okv_manager_listen() may still fail later, when the path is no longer free.
 * Errors   as okv_manager_listen().
 */
OKV_EXPORT int okv_manager_check_socket(const char *socket_path, struct okv_error *err);

/**
 * Listen on a Unix SEQPACKET socket (mode 0600). NULL: the default path. A missing directory is
 * created with mode 0700. So are missing directories above it, if the first one that exists belongs
 * to this user. A socket that nobody answers is replaced.
 *
 * Errors   OKV_E_EXISTS: another process listens there, or the path is no socket. OKV_E_CONNECT: a
 *          directory cannot be created; the text names it. OKV_E_PERM: the directory belongs
 *          neither to this user nor to root. OKV_E_LIMIT: the path is too long. OKV_E_BUSY: this
 *          Manager listens already, or another process keeps the directory locked for 2 s.
 */
OKV_EXPORT int okv_manager_listen(struct okv_manager *m, const char *socket_path,
				  struct okv_error *err);

/**
 * Serve until okv_manager_stop(). It starts the Manager's other threads, and the calling thread
 * becomes the control thread. A Manager runs once.
 *
 * Errors   0 when all operations ended. OKV_E_BUSY: a second stop came before that. OKV_E_CLOSED:
 *          it ran already. OKV_E_NOMEM: a thread cannot start.
 * Blocks   until the Manager is stopped.
 */
OKV_EXPORT int okv_manager_run(struct okv_manager *m, struct okv_error *err);

/**
 * First call: refuse new sessions and operations, let the open operations end, then
 * okv_manager_run() returns. Second call: okv_manager_run() returns without waiting for them.
 * A forked child of the process that created it does nothing to it.
 * Async-signal-safe.   Blocks never.   Threads any.
 */
OKV_EXPORT void okv_manager_stop(struct okv_manager *m);

/**
 * Give the Manager one end of a connected SEQPACKET socket pair: the other end is a new peer
 * (embedded mode).
 *
 * Owns     takes fd on success; on failure the caller still owns it.
 * Errors   OKV_E_INVAL (no such socket), OKV_E_CLOSED (the Manager ended), OKV_E_AGAIN (too many
 *          new peers).
 * Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_manager_attach(struct okv_manager *m, int fd, struct okv_error *err);

/**
 * Free the Manager. Do not call it while okv_manager_run() runs. It removes the socket only if that
 * is still the one this Manager bound. NULL is allowed. In a forked child of the process that
 * created it, this does nothing, and every other call on it is OKV_E_FORKED.
 */
OKV_EXPORT void okv_manager_destroy(struct okv_manager *m);

/** The Manager's state now, and counts since it was created. Bytes are bytes of arenas. */
struct okv_manager_status {
	uint64_t epoch; /* random number of this Manager */
	uint64_t uptime_ms;
	uint64_t sessions;	    /* connected */
	uint64_t sessions_retained; /* disconnected, with operations whose end is not proven */
	uint64_t namespaces;	    /* ever opened */
	uint64_t bindings;	    /* of connected sessions */
	uint64_t arenas;
	uint64_t bytes_total;
	uint64_t bytes_free;
	uint64_t bytes_used;	    /* allocated to blocks, sealed or being written */
	uint64_t bytes_quarantined; /* part of bytes_used; not reused until the Manager restarts */
	uint64_t bytes_pinned;	    /* part of bytes_used; pinned by leases */
	uint64_t blocks;	    /* usable */
	uint64_t blocks_partial;    /* at least one rank slot is not sealed */
	uint64_t leases;
	/* Counts since the Manager was created: */
	uint64_t lookups;
	uint64_t lookup_keys; /* keys that lookups asked for */
	uint64_t lookup_hits; /* blocks that lookups found */
	uint64_t evictions;   /* blocks evicted */
	uint64_t published_blocks;
	uint64_t restored_blocks;
	/* Operations now: */
	uint64_t ops_preparing; /* waiting for space in the plan bank */
	uint64_t ops_granted;	/* granted, not claimed */
	uint64_t ops_active;	/* claimed, not reaped */
	uint64_t ops_quarantined;
	/* Operations that ended, since the Manager was created: */
	uint64_t ops_done;	/* without a grant, successfully; lookups are here */
	uint64_t ops_reaped;	/* transfers that drained and were reaped */
	uint64_t ops_revoked;	/* grants that were revoked before a claim */
	uint64_t ops_refused;	/* without a grant, with an error */
	uint64_t control_bytes; /* most shared memory of one session beside the arenas; constant */
	uint64_t wakeups;	/* times that a thread of the Manager woke from sleep */
};

/**
 * Read the status of a Manager in this process, also while okv_manager_run() runs. Each number is
 * correct by itself, but they are not all read at the same moment. OKV_E_INVAL for NULL.
 * Threads  any.
 */
OKV_EXPORT int okv_manager_status_get(struct okv_manager *m, struct okv_manager_status *ret_status);

/**
 * Ask the Manager at socket_path (NULL: the default path) for its status. Opens no session.
 *
 * Errors   OKV_E_PERM: the Manager runs neither as this process's effective user nor as root, or it
 *          does not serve this user. OKV_E_CONNECT, OKV_E_TIMEOUT (it takes no connection, or does
 *          not answer), OKV_E_VERSION, OKV_E_LIMIT (the path is too long).
 * Blocks   up to timeout_ms for all of it; < 0: no limit.   Threads any.
 */
OKV_EXPORT int okv_manager_status_query(const char *socket_path, int timeout_ms,
					struct okv_manager_status *ret_status,
					struct okv_error *err);

/**
 * The default path of the socket: $ORBITKV_SOCKET, else $XDG_RUNTIME_DIR/orbitkv/manager.sock, else
 * /run/orbitkv/manager.sock for root, else /tmp/orbitkv-UID/manager.sock.
 * Writes a terminated string of at most size bytes; OKV_E_LIMIT when it does not fit.
 */
OKV_EXPORT int okv_default_socket_path(char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
