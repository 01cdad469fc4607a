/* SPDX-License-Identifier: Apache-2.0 */
/* The other side: the Manager that owns host memory. Engines need this header for embedded mode. */
#ifndef ORBITKV_MANAGER_H
#define ORBITKV_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <orbitkv/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_manager;

#define OKV_NUMA_AUTO (-1) /* spread shards over the nodes with memory and CPUs */
#define OKV_NUMA_OFF (-2)  /* no binding at all */

#define OKV_MANAGER_HUGE_PAGES 0x1u /* arenas from reserved huge pages, or fail */

/** Called while memory is prepared: bytes touched so far of total. */
typedef void okv_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Options. okv_manager_options_init() fills in size and every default.
 */
struct okv_manager_options {
	uint32_t size;
	uint32_t flags;		 /* OKV_MANAGER_* */
	uint64_t memory_bytes;	 /* host-wide budget; default 1 GiB */
	uint64_t shard_bytes;	 /* bytes per arena; 0: memory / 48, at least 64 MiB */
	int32_t numa;		 /* OKV_NUMA_* or a node number */
	uint32_t touch_threads;	 /* 0: one per CPU, at most 16 */
	const uid_t *allow_uids; /* peers besides our own uid; naming one trusts it fully */
	uint32_t allow_uid_count;
	uint32_t dispatchers;	  /* 0: 1 for up to 4 CPUs, else 2 */
	uint32_t spin_us;	  /* how long a busy thread spins before it sleeps; default 50 */
	uint32_t lease_ttl_ms;	  /* default 600,000 */
	uint32_t reserve_percent; /* share of the pool all leases may pin; default 75 */
	uint32_t session_percent; /* the same for one session; default 75 */
	uint32_t restore_permits; /* restores per device until retired; default 128 */
	uint32_t max_sessions;	  /* live or retained; default and maximum 64; 1 when embedded */
	uint32_t part_bytes;	  /* largest plan part; default and maximum 256 KiB */
	uint64_t operation_plan_bytes; /* plan of one operation; default 32 MiB */
	uint64_t session_plan_bytes;   /* plans prepared for one session; default 64 MiB */
	okv_log_fn *log;
	okv_progress_fn *progress;
	void *arg; /* for log and progress */
};

/** Fill in size and every default. NULL is ignored. */
OKV_EXPORT void okv_manager_options_init(struct okv_manager_options *opts);

/**
 * Allocate, touch and seal the arenas. Nothing listens yet.
 *
 * Owns     returns owned; release with okv_manager_destroy().
 * Errors   OKV_E_BUDGET when host, cgroup or huge-page pool cannot hold memory_bytes and the
 *          control memory of max_sessions (about 6 MiB each): text has requested, available, limit
 *          and what would fit, and nothing was allocated.
 * Blocks   while memory is touched.   Threads any.
 */
OKV_EXPORT int okv_manager_create(const struct okv_manager_options *opts,
				  struct okv_manager **ret_manager, struct okv_error *err);

/**
 * Could a Manager listen there at this moment? Creates the directory as okv_manager_listen() does
 * and leaves nothing else behind. For before okv_manager_create(), which takes long;
 * okv_manager_listen() has the last word.
 */
OKV_EXPORT int okv_manager_check_socket(const char *socket_path, struct okv_error *err);

/**
 * Listen on a Unix SEQPACKET socket (mode 0600). Its directory is created with mode 0700 when it is
 * missing, and so are those above it if the first one that is there belongs to this user; else
 * OKV_E_CONNECT names what is missing. A stale socket that nobody answers is replaced; a live one
 * is OKV_E_EXISTS. NULL: the default path.
 */
OKV_EXPORT int okv_manager_listen(struct okv_manager *m, const char *socket_path,
				  struct okv_error *err);

/**
 * Serve until okv_manager_stop(). Several threads inside; the caller's becomes the control loop.
 * Returns 0 when drained, OKV_E_BUSY when a second stop cut the drain short.
 */
OKV_EXPORT int okv_manager_run(struct okv_manager *m, struct okv_error *err);

/**
 * First call: refuse new sessions and operations, let granted ones drain, return from run.
 * Second call: return from run at once. Async-signal-safe.
 */
OKV_EXPORT void okv_manager_stop(struct okv_manager *m);

/**
 * Hand over one end of a connected SEQPACKET socket pair as a new peer (embedded mode).
 * Moves fd on success; on failure it is still the caller's.
 */
OKV_EXPORT int okv_manager_attach(struct okv_manager *m, int fd, struct okv_error *err);

/**
 * Free everything. Not while okv_manager_run() is inside. NULL is allowed. Removes the socket
 * only if it is still the one this Manager bound.
 */
OKV_EXPORT void okv_manager_destroy(struct okv_manager *m);

/** A snapshot of the Manager's counters. Bytes are payload bytes of arenas. */
struct okv_manager_status {
	uint64_t epoch;
	uint64_t uptime_ms;
	uint64_t sessions;	    /* connected */
	uint64_t sessions_retained; /* gone, with operations that never proved their end */
	uint64_t namespaces;
	uint64_t bindings;
	uint64_t arenas;
	uint64_t bytes_total;
	uint64_t bytes_free;
	uint64_t bytes_used;	    /* allocated to blocks, written or being written */
	uint64_t bytes_quarantined; /* part of bytes_used nobody may reuse */
	uint64_t bytes_pinned;	    /* part of bytes_used that leases hold */
	uint64_t blocks;	    /* visible */
	uint64_t blocks_partial;    /* at least one slot missing */
	uint64_t leases;
	uint64_t lookups;
	uint64_t lookup_keys;
	uint64_t lookup_hits; /* keys found usable */
	uint64_t evictions;   /* blocks evicted */
	uint64_t published_blocks;
	uint64_t restored_blocks;
	uint64_t ops_preparing;
	uint64_t ops_granted;
	uint64_t ops_active;
	uint64_t ops_quarantined;
	uint64_t ops_done;    /* lookups and other calls answered */
	uint64_t ops_reaped;  /* transfers that drained and were released */
	uint64_t ops_revoked; /* grants taken back before the claim */
	uint64_t ops_refused;
	uint64_t control_bytes; /* shared control memory of one session */
	uint64_t wakeups;	/* times a Manager thread woke from sleep */
};

/**
 * Counters of a Manager in this process, beside okv_manager_run() too. Each is right by itself; no
 * moment has all of them. OKV_E_INVAL for NULL.   Threads any.
 */
OKV_EXPORT int okv_manager_status_get(struct okv_manager *m, struct okv_manager_status *ret_status);

/**
 * Ask the Manager at socket_path (NULL: default). Opens no session. Blocks up to timeout_ms.
 * OKV_E_PERM when it runs neither as this process's effective user nor as root, or does not serve
 * this user.
 */
OKV_EXPORT int okv_manager_status_query(const char *socket_path, int timeout_ms,
					struct okv_manager_status *ret_status,
					struct okv_error *err);

/**
 * Default socket: $ORBITKV_SOCKET, else $XDG_RUNTIME_DIR/orbitkv/manager.sock, else
 * /run/orbitkv/manager.sock for root, else /tmp/orbitkv-UID/manager.sock.
 * Writes a terminated string; OKV_E_LIMIT when it does not fit.
 */
OKV_EXPORT int okv_default_socket_path(char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
