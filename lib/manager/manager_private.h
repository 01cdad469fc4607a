/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [M] What the Manager's files share.
 *
 * Threads: the control thread (the caller of okv_manager_run()) owns the sockets. Dispatchers
 * answer the records of their sessions. One retire loop ends operations. All of them may take a
 * session's lock. A log function has a thread of its own, so a log line may be written anywhere.
 *
 * Locks, in order: session->lock, then one of {the index's mutex, permits.lock, manager->lock}.
 * No lock is taken under manager->lock or permits.lock. No thread sleeps while it holds a lock. A
 * session is reached through a counted reference: the table, each loop's list and the connection
 * hold one each.
 */
#ifndef OKI_MANAGER_PRIVATE_H
#define OKI_MANAGER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/manager.h>
#include "arena/alloc.h"
#include "arena/backing.h"
#include "base/log.h"
#include "grant/proof.h"
#include "index/index.h"
#include "wire/area.h"
#include "wire/bootstrap.h"
#include "wire/channel.h"
#include "wire/wire.h"

#define OKI_MGR_DISPATCHERS 16u	       /* at most */
#define OKI_MGR_BINDINGS 256u	       /* of one session at a time */
#define OKI_MGR_PENDING_CONNS 128u     /* connections that have not sent hello */
#define OKI_MGR_HELLO_NS 5000000000ull /* a connection without hello is closed after this */
#define OKI_MGR_REREAD_NS 100000000ull /* all records are read this often while one is in use */
#define OKI_MGR_TURN 8u		       /* records served before the next session's turn */
#define OKI_MGR_NONE UINT32_MAX	       /* no record */
#define OKI_MGR_REQUEST_MAX                                                    \
	((uint32_t)(sizeof(struct okw_request) +                               \
		    OKW_MAX_STRETCHES * (sizeof(struct okw_request_group) +    \
					 OKW_MAX_KEY_BYTES /* the parent */) + \
		    OKW_MAX_OPERATION_BLOCKS * OKW_MAX_KEY_BYTES))
static_assert(OKI_MGR_REQUEST_MAX >= sizeof(struct okw_request) +
					     OKW_MAX_STRETCHES * sizeof(struct okw_restore_part),
	      "a restore is no larger");

/* ---- requests (request.c) ---- */

/* Only the first head.group_count entries of the arrays are valid. */
struct oki_mgr_request {
	struct okw_request head;
	uint64_t blocks; /* sum of the counts */
	union {
		struct okw_restore_part parts[OKW_MAX_STRETCHES]; /* restore */
		struct {					  /* lookup, publish */
			struct okw_request_group groups[OKW_MAX_STRETCHES];
			const uint8_t *parents[OKW_MAX_STRETCHES]; /* borrowed; NULL: none */
			const uint8_t *keys[OKW_MAX_STRETCHES];	   /* borrowed */
		};
	};
};

/* Check every size and count of a request. bytes must be a private copy, which the engine cannot
 * change. OKV_E_PROTOCOL: err says what is invalid, and ret_request is undefined. */
int oki_mgr_request_decode(const uint8_t *bytes, uint32_t size, struct oki_mgr_request *ret_request,
			   struct okv_error *err);
/* Bytes of the reply to a request of this kind, without the replies of its stretches; 0: unknown
 * kind. */
uint32_t oki_mgr_reply_bytes(uint32_t kind);
/* The same with them. */
uint32_t oki_mgr_whole_reply_bytes(const struct oki_mgr_request *request);

/* ---- restore permits, counted per device (permits.c) ---- */

struct oki_mgr_device;

struct oki_mgr_permits {
	pthread_mutex_t lock;
	struct oki_mgr_device *devices;
	uint32_t limit; /* running restores of one device */
};

void oki_mgr_permits_init(struct oki_mgr_permits *permits, uint32_t limit);
void oki_mgr_permits_fini(struct oki_mgr_permits *permits);
/* Find or create the device with this id and take a reference; NULL: no memory. */
struct oki_mgr_device *oki_mgr_device_get(struct oki_mgr_permits *permits, const uint8_t id[16]);
void oki_mgr_device_put(struct oki_mgr_permits *permits, struct oki_mgr_device *device);
/* Count one more running restore and take a reference to the device. False: limit reached. */
bool oki_mgr_permit_take(struct oki_mgr_permits *permits, struct oki_mgr_device *device);
void oki_mgr_permit_give(struct oki_mgr_permits *permits, struct oki_mgr_device *device);

/* ---- sessions ---- */

/* The Manager's private state of a record. What the engine did to the tag is checked against it. */
enum oki_mgr_phase {
	OKI_MGR_IDLE = 0,    /* owns nothing */
	OKI_MGR_WAITING,     /* Preparing: has its hold, waits for space in the plan bank */
	OKI_MGR_GRANTED,     /* Granted, Active or Drained: owns what the plan names */
	OKI_MGR_QUARANTINED, /* its end will never be known */
};

/* The private half of a record: the owner of everything that a grant holds. */
struct oki_mgr_op {
	uint32_t phase; /* enum oki_mgr_phase */
	uint32_t kind;
	uint64_t tag; /* after the Manager's last move */
	struct oki_hold *hold;
	const struct oki_hold_block *blocks; /* of the hold */
	uint64_t block_count;
	struct oki_mgr_device *permit;	  /* the device of its restore permit, or NULL */
	uint64_t plan_bytes;		  /* counted in the session */
	uint64_t deadline_ns;		  /* an unclaimed grant is revoked then */
	uint32_t reply_offset;		  /* in the request area, checked */
	uint32_t reply_bytes;		  /* with the replies of the stretches, which are written */
	uint32_t offered;		  /* parts */
	uint32_t consumed;		  /* parts */
	uint32_t group_count;		  /* of the schema; the two arrays below are by group */
	uint32_t payload[OKW_MAX_GROUPS]; /* bytes of one block */
	uint32_t ends[OKW_MAX_GROUPS];	  /* index after the group's last block; 0: no blocks */
	bool closed;			  /* no more parts will be offered */
	uint32_t slot_count;		  /* extents of the bank; part k uses k % slot_count */
	uint32_t slots[2];		  /* offsets of these extents in the bank */
	uint32_t next_waiting;
	struct okw_transfer_reply reply; /* the private copy of what the engine sees */
};

struct oki_mgr_binding {
	uint32_t id; /* 0: free */
	uint32_t namespace_id;
	uint32_t rank_slot;
	int32_t node;	     /* NUMA node for its published blocks, -1: any */
	uint32_t generation; /* part of the id, so that no id is used twice */
	struct oki_mgr_device *device;
};

struct oki_mgr_session {
	struct okv_manager *manager;
	_Atomic uint32_t refs;
	_Atomic bool lost; /* written with the lock held */
	uint32_t slot;
	uint32_t dispatcher;
	bool restore_only;
	uint64_t token;
	pid_t pid;
	int pidfd; /* -1: the kernel has none */
	char name[32];
	struct oki_channel channel;

	pthread_mutex_t lock;	      /* everything below */
	int sock;		      /* borrowed from the connection; -1 once closed */
	bool gone;		      /* no longer in the table */
	bool failed;		      /* its peer broke the protocol; the sweep ends it */
	char failure[OKW_TEXT_BYTES]; /* what the peer did */
	uint32_t open;		      /* operations waiting or granted */
	uint32_t quarantined;	      /* operations */
	uint64_t plan_bytes;	      /* of the open operations */
	uint32_t waiting_first;	      /* list of records that wait for the plan bank, in order */
	uint32_t waiting_last;
	uint32_t cursor;      /* the record served last */
	uint32_t served;      /* only records below this ever left OKI_MGR_IDLE */
	uint64_t *namespaces; /* one bit per namespace id opened here */
	uint32_t namespace_words;
	struct oki_mgr_binding bindings[OKI_MGR_BINDINGS];
	struct oki_area bank; /* extents of the plan bank */
	struct oki_mgr_op ops[OKW_RECORDS];
};

/* ---- threads that watch sessions (loop.c) ---- */

struct oki_mgr_loop {
	struct okv_manager *manager;
	pthread_t thread;
	bool started;
	bool retires; /* true: the retire loop; false: dispatcher `index` */
	uint32_t index;
	int epoll;
	int wake;
	bool unwatched;	  /* a session's doorbell is not in epoll, which had reached a limit */
	uint64_t version; /* of the session table that `sessions` was copied from */
	uint32_t count;
	struct oki_mgr_session *sessions[OKW_MAX_SESSIONS];
	uint8_t *scratch; /* OKI_MGR_REQUEST_MAX: private copies of requests */
};

/* ---- connections (control.c): owned by the control thread alone ---- */

struct oki_mgr_conn {
	struct oki_mgr_conn *next;
	struct oki_mgr_session *session; /* counted; NULL before hello */
	uint64_t deadline_ns;		 /* closed then without a hello */
	struct oki_peer peer;
	int fd;
	bool allowed;
	bool dead; /* closed; freed after the current batch of events */
};

struct oki_mgr_counters {
	_Atomic uint64_t done;
	_Atomic uint64_t reaped;
	_Atomic uint64_t revoked;
	_Atomic uint64_t refused;
	_Atomic uint64_t wakeups;
};

struct okv_manager {
	uint64_t fork_generation;
	struct okv_manager_options opts;
	uid_t *allow_uids;
	struct oki_log log;
	struct oki_shards shards;
	struct oki_pool *pool;
	struct oki_index *index;
	uint64_t epoch;
	uint64_t started_ns;
	uint64_t lease_ttl_ns;
	uint32_t part_entries; /* blocks of a full part */
	struct oki_mgr_permits permits;
	struct oki_mgr_counters counters;

	int epoll; /* of the control thread */
	int wake;
	int spare; /* closed to accept and refuse a connection when descriptors run out */
	_Atomic uint32_t stops;
	_Atomic bool draining;
	_Atomic bool quit;
	_Atomic uint64_t open_ops; /* of all sessions: what a drain waits for */
	struct oki_mgr_conn *conns;
	uint32_t pending_conns;

	int listener;
	bool accept_paused;		 /* the last accept failed */
	uint64_t accept_paused_until_ns; /* the listener is out of epoll until then; 0: in epoll */
	int listen_dir;			 /* the socket's directory, -1: not listening */
	char *listen_name;		 /* the socket's name in that directory */
	uint64_t listen_device;
	uint64_t listen_inode;

	/* resting: the retire loop sleeps and will not re-read records on its own. retire_wanted:
	 * it must re-read them. */
	_Atomic bool resting;
	_Atomic bool retire_wanted;
	struct oki_mgr_loop retire;
	struct oki_mgr_loop dispatchers[OKI_MGR_DISPATCHERS];
	uint32_t dispatcher_count;

	pthread_mutex_t lock; /* everything below */
	bool ran;
	bool finished;
	struct oki_mgr_session *table[OKW_MAX_SESSIONS];
	_Atomic uint64_t version; /* of the table; written with the lock held */
	int attached[OKI_MGR_PENDING_CONNS];
	uint32_t attached_count;
};

/* wake.c */
void oki_mgr_wake(int eventfd);
/* Wake every loop: the table changed, or the Manager ends. */
void oki_mgr_loops_wake(struct okv_manager *m);
/* Make the retire loop re-read the records, and wake it if it is resting. */
void oki_mgr_wake_retire(struct okv_manager *m);
/* [locked] Tell the engine that a record changed. moved: its tag changed. */
void oki_mgr_announce(struct oki_mgr_session *s, uint32_t i, bool moved);

/* session_state.c */
bool oki_mgr_session_has_namespace(const struct oki_mgr_session *s, uint32_t namespace_id);
struct oki_mgr_binding *oki_mgr_session_binding(struct oki_mgr_session *s, uint32_t binding_id);
/* Has the engine's process ended? False also if that cannot be known. */
bool oki_mgr_session_dead(const struct oki_mgr_session *s);
/* [locked] The peer broke the protocol: the session is lost from now on. The caller's sweep ends
 * its operations. */
void oki_mgr_session_fail(struct oki_mgr_session *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* manager.c */
void oki_mgr_status_fill(struct okv_manager *m, struct okv_manager_status *ret_status);

/* manager_session.c */
int oki_mgr_session_create(struct okv_manager *m, const struct oki_mgr_conn *conn,
			   const struct okw_hello *hello, struct oki_mgr_session **ret_session,
			   struct okv_error *err);
/* Put it in the table, where the loops find it. */
void oki_mgr_session_enter(struct oki_mgr_session *s);
/* Have the connection closed when the engine's process ends, though a child of it may hold the
 * socket open. Unwatch before the last reference to the session goes: a forked child of this
 * process may have the pidfd too, so that closing it leaves it in epoll. */
int oki_mgr_conn_watch(struct okv_manager *m, struct oki_mgr_conn *conn,
		       const struct oki_mgr_session *s, struct okv_error *err);
void oki_mgr_conn_unwatch(struct okv_manager *m, const struct oki_mgr_session *s);
struct oki_mgr_session *oki_mgr_session_get(struct oki_mgr_session *s);
void oki_mgr_session_put(struct oki_mgr_session *s);
/* References to all sessions in the table; the caller puts each. */
uint32_t oki_mgr_sessions_list(struct okv_manager *m,
			       struct oki_mgr_session *ret_list[OKW_MAX_SESSIONS],
			       uint64_t *ret_version);
/* The peer hung up or is dropped: end every operation that can be ended. why NULL: no log line. */
void oki_mgr_session_disconnect(struct oki_mgr_session *s, const char *why);
/* [locked] End the operations of a session that failed since the lock was taken. Whoever advances
 * records calls it before the unlock. */
void oki_mgr_session_sweep(struct oki_mgr_session *s);
/* [locked] Take a lost session out of the table if none of its operations is open or
 * quarantined. */
void oki_mgr_session_leave_table(struct oki_mgr_session *s);

/* [locked] Records below this may be in use, as far as we and the engine know. */
static inline uint32_t oki_mgr_records(const struct oki_mgr_session *s)
{
	uint32_t hint =
		atomic_load_explicit(&s->channel.control->records_used, memory_order_relaxed);

	if (hint > OKW_RECORDS)
		hint = OKW_RECORDS;
	return hint > s->served ? hint : s->served;
}

static inline struct okw_record *oki_mgr_record(const struct oki_mgr_session *s, uint32_t i)
{
	return &s->channel.control->records[i];
}

/* registration.c: answer one message of a connection; false: close the connection. */
bool oki_mgr_message(struct okv_manager *m, struct oki_mgr_conn *conn,
		     const struct oki_message *message);

/* manager_check.c: 0, or why calls of the API are refused: NULL, or a parent's of a fork. */
int oki_mgr_check(const struct okv_manager *m, struct okv_error *err);

/* control.c */
void oki_mgr_conn_close(struct okv_manager *m, struct oki_mgr_conn *conn);

/* listen.c */
void oki_mgr_unlisten(struct okv_manager *m);

/* loop.c */
int oki_mgr_loop_init(struct oki_mgr_loop *loop, struct okv_manager *m, bool retires,
		      uint32_t index, struct okv_error *err);
void oki_mgr_loop_fini(struct oki_mgr_loop *loop);
int oki_mgr_loop_start(struct oki_mgr_loop *loop, void *(*body)(void *), struct okv_error *err);
void oki_mgr_loop_join(struct oki_mgr_loop *loop);
/* Copy the session table into the loop's list if the table changed. */
void oki_mgr_loop_refresh(struct oki_mgr_loop *loop);
/* Sleep until a doorbell, a wake or the deadline. Returns at once when there is work already.
 * False: the deadline passed. */
bool oki_mgr_loop_sleep(struct oki_mgr_loop *loop, uint64_t deadline_ns);
/* Has the engine set a lease_release bit that was not taken yet? */
bool oki_mgr_released(struct oki_mgr_session *s);

/* dispatch.c */
void *oki_mgr_dispatch_thread(void *arg);
/* Serve up to max announced records; returns how many. scratch: OKI_MGR_REQUEST_MAX bytes. */
uint32_t oki_mgr_serve(struct oki_mgr_session *s, uint8_t *scratch, uint32_t max);

/* answer.c [locked]: execute a request, whose record is Preparing with this tag. */
void oki_mgr_answer(struct oki_mgr_session *s, uint32_t i, uint64_t tag, uint32_t reply_offset,
		    const struct oki_mgr_request *request);

/* offer.c [locked] */
/* Parts and bytes of a plan of this many blocks. */
void oki_mgr_plan_size(const struct okv_manager *m, uint64_t blocks, uint32_t *ret_parts,
		       uint64_t *ret_bytes);
/* Grant the operation that waits longest; there is one. OKV_E_AGAIN: no space in the plan bank;
 * OKV_E_NOMEM. */
int oki_mgr_grant_first(struct oki_mgr_session *s);
void oki_mgr_waiting_remove(struct oki_mgr_session *s, uint32_t i);
/* Read how many parts the engine consumed and offer the parts that fit now. */
void oki_mgr_offer_more(struct oki_mgr_session *s, uint32_t i);

/* waiting.c [locked] */
/* The operation is installed: grant it, or let it wait for space in the plan bank. */
void oki_mgr_grant(struct oki_mgr_session *s, uint32_t i);
/* Grant waiting operations, in order, while the plan bank has space. */
void oki_mgr_grant_waiting(struct oki_mgr_session *s);

/* grant_release.c [locked] */
/* Write the result of a record and announce it as Done. reply may be NULL. more_bytes were written
 * behind the reply before. */
void oki_mgr_done(struct oki_mgr_session *s, uint32_t i, uint64_t tag, uint32_t reply_offset,
		  const void *reply, uint32_t reply_bytes, uint32_t more_bytes, int status,
		  const char *text);
/* Copy op into the idle place of record i, which from then on owns what op names. */
void oki_mgr_op_install(struct oki_mgr_session *s, uint32_t i, const struct oki_mgr_op *op);
/* Release a hold whose record is still Preparing; quarantine it if the record is not. */
void oki_mgr_release_ungranted(struct oki_mgr_session *s, uint32_t i, uint64_t tag,
			       struct oki_hold *hold);
/* End an operation with this status if nobody claimed it; if claimed, offer no more parts. */
void oki_mgr_end_early(struct oki_mgr_session *s, uint32_t i, int status, const char *text);
/* Read the state of a record and take the Manager's next step. */
void oki_mgr_op_advance(struct oki_mgr_session *s, uint32_t i, uint64_t now_ns);
void oki_mgr_quarantine(struct oki_mgr_session *s, uint32_t i, const char *why);

/* retire.c */
void *oki_mgr_retire_thread(void *arg);

#endif
