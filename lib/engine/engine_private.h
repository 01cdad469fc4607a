/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Private to lib/engine: objects, ownership, locks. */
#ifndef OKI_ENGINE_PRIVATE_H
#define OKI_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <orbitkv/orbitkv.h>
#include "arena/import.h"
#include "base/log.h"
#include "exec/worker.h"
#include "grant/state.h"
#include "engine/event_set.h"
#include "plan/geometry.h"
#include "base/stages.h"
#include "wire/area.h"
#include "wire/bootstrap.h"
#include "wire/channel.h"

/*
 * Lock order, outermost first:
 *   register_lock → rpc_lock
 *   engine->lock; binding->lock → event_lock
 *   op->lock → binding->lock, table_lock, notify_lock, the worker's locks
 * No caller's function (owner, log) runs under any of them.
 *
 * References: an engine is held by the caller's handle and by every namespace, binding, lease
 * and operation; okv_engine_close() ends its threads, the last reference frees the memory.
 * An operation is held by the caller's handle, by the record table while it has a record, and
 * by the worker while it is queued or running.
 */

struct oki_counters {
	_Atomic uint64_t restores_started, restores_ok, restores_failed;
	_Atomic uint64_t publishes_started, publishes_ok, publishes_failed;
	_Atomic uint64_t restored_bytes, published_bytes, lookups, leases, ops_running;
	_Atomic uint64_t wakeups, worker_wakeups_gone;
};

struct okv_engine {
	_Atomic uint32_t refs;
	_Atomic int state; /* 0, OKV_E_SESSION, OKV_E_POISONED */
	_Atomic bool closing;
	uint64_t fork_generation;
	struct okv_engine_options options; /* socket_path and embedded are not kept */
	struct oki_log log;

	int sock;
	pthread_mutex_t rpc_lock; /* of rpc_busy; never held while a call waits */
	pthread_cond_t rpc_idle;
	bool rpc_busy; /* one registration call at a time, which owns sock and rpc_serial */
	uint32_t rpc_serial;
	struct okw_welcome welcome;
	struct oki_channel channel;

	pthread_t session_thread;
	bool session_running;
	int stop_fd; /* wakes the session thread to end */

	struct okv_manager *embedded;
	pthread_t embedded_thread;

	pthread_mutex_t table_lock; /* records and request area */
	uint16_t free_records[OKW_RECORDS];
	uint32_t free_count;
	struct oki_area area;
	struct okv_op *ops[OKW_RECORDS]; /* a reference each */
	bool table_shut;		 /* the session thread ended: no new record */

	pthread_mutex_t register_lock; /* one registration at a time: bindings, arenas */
	pthread_mutex_t lock;	       /* the list */
	struct okv_binding *bindings;
	struct oki_arena arenas[OKW_MAX_ARENAS];
	_Atomic uint32_t arena_count; /* imported; all or none */

	pthread_mutex_t notify_lock;
	struct okv_op *notify_head, **notify_tail; /* tail NULL: the engine is closed */
	int notify_fd; /* eventfd, readable while something is to be polled */

	pthread_mutex_t event_lock;
	struct oki_event_set events; /* in use by running operations */

	struct oki_counters counters;
};

struct okv_namespace {
	_Atomic uint32_t refs;
	struct okv_engine *engine;
	uint32_t id;
	struct oki_schema schema;
	uint8_t *canonical; /* owned; what names it */
	size_t canonical_bytes;
};

enum oki_admission { OKI_OPEN, OKI_QUIESCED, OKI_CLOSED };

struct okv_binding {
	_Atomic uint32_t refs; /* the caller's handle, and every operation */
	struct okv_namespace *ns;
	struct okv_binding *next; /* in engine->bindings */
	uint32_t id;		  /* the Manager's */
	uint32_t rank_slot;
	struct oki_geometry geometry;
	struct oki_worker *worker;
	uint32_t pinned; /* arenas pinned on the device */
	struct okv_owner *owners;
	uint32_t owner_count;

	pthread_mutex_t lock;
	pthread_cond_t drained; /* running is 0, gone is set, or the engine is poisoned */
	enum oki_admission admission;
	bool shut; /* the worker is being stopped or is gone: do not use it */
	bool gone; /* owners are released or, if poisoned, kept until the process exits */
	uint32_t running;
	uint8_t *part;	     /* the worker's buffer for one plan part; NULL until used */
	uint32_t *page_uses; /* owned */
	/* In page_uses: of each page's units OKI_PAGE_WRITTEN, or how many publishes read it */
	uint32_t *page_use[OKV_MAX_GROUPS];
};
#define OKI_PAGE_WRITTEN UINT32_MAX

struct okv_lease {
	struct okv_namespace *ns;
	struct okv_lease_id id;
	uint32_t slot;
	struct okv_lookup_result result;
};

/* One stretch of a publish or restore, as the caller orders them. */
struct oki_stretch {
	uint32_t group;
	uint32_t count;
	const uint32_t *pages;		/* the caller's; valid in the start call */
	struct okw_stretch_reply reply; /* private copy */
};

enum oki_op_phase {
	OKI_OP_GRANT,	  /* waiting for the Manager */
	OKI_OP_ABANDONED, /* will not be claimed; the record is freed at Done or Revoked */
	OKI_OP_ACTIVE,	  /* claimed: copies may run */
	OKI_OP_DRAINED,	  /* no copy runs any more */
};

/* Of calls that release something, where connect_timeout_ms is none. */
#define OKI_RELEASE_TIMEOUT_MS 5000

#define OKI_NO_RECORD UINT32_MAX

struct okv_op {
	_Atomic uint32_t refs;
	struct okv_engine *engine;
	uint32_t kind; /* OKW_OP_* */

	pthread_mutex_t lock;
	pthread_cond_t cond;
	enum oki_op_phase phase;
	/* Written under lock, except the flags of layers, which the worker sets without it. Waiters
	 * read them without the lock (G8). After setting one, wake the waiters if there are any. */
	_Atomic bool final;	  /* result is complete */
	_Atomic int failing;	  /* not 0: it will end with an error; set before final */
	_Atomic bool *enqueued;	  /* per layer */
	_Atomic bool *done;	  /* per layer; in enqueued's memory */
	_Atomic uint32_t waiters; /* threads in cond, or about to wait for it */
	/* Of a drained publish: the record to poll for Reaped. It may belong to another operation
	 * by the time it is read. */
	struct okw_record *_Atomic ending;
	_Atomic bool soon; /* hint: its copies are about to end */
	int end_status;	   /* 0, or the error that it will end with */
	char end_text[sizeof(((struct okv_op_result *)0)->text)];
	struct okv_op_result result;
	uint32_t layer_count;

	bool submitted;	 /* the record left Reserved */
	bool spinning;	 /* OKW_ENGINE_SPINNING was set; the worker's once it has the transfer */
	uint32_t record; /* index, or OKI_NO_RECORD */
	uint64_t tag;	 /* as this side last saw it */
	uint32_t extent;
	uint32_t reply_offset;
	union { /* private copy of the reply */
		struct okw_lookup_reply lookup;
		struct okw_transfer_reply transfer;
	} reply;
	uint32_t reply_bytes;

	/* transfers */
	struct okv_binding *binding;
	struct oki_transfer transfer; /* groups: those of the schema; all stretches together */
	uint32_t stretch_count;
	uint32_t asked_stretches;      /* by the caller; a restore of none has one, for its lease */
	struct oki_stretch *stretches; /* `few`, or owned */
	struct oki_stretch few[OKV_MAX_GROUPS];
	bool bad_stretches; /* the reply's stretches do not add up */
	bool has_stream;
	bool busy;	 /* its pages and events are entered as in use */
	uint32_t *pages; /* owned; group after group */
	struct okv_layer_event *events;
	uint32_t event_count;
	struct okv_owner owner;
	uint32_t part_total;
	uint32_t parts_taken;
	uint32_t
		next_ordinal[OKV_MAX_GROUPS]; /* lowest that the group's next plan entry may have */
	bool cancelled;
	struct oki_stages stages;

	uint32_t flags;
	uint64_t user_data;
	struct okv_op *notify_next; /* with a reference while queued */
};

/* refs.c */
bool oki_forked(const struct okv_engine *engine);
void oki_engine_get(struct okv_engine *engine);
void oki_engine_put(struct okv_engine *engine);
/* 0, or the reason to refuse new work: closed, forked, session lost, poisoned. */
int oki_engine_usable(struct okv_engine *engine, struct okv_error *err);
void oki_ns_get(struct okv_namespace *ns);
void oki_binding_get(struct okv_binding *binding);
void oki_binding_put(struct okv_binding *binding);
/* Free a binding that no other thread can reach. */
void oki_binding_free(struct okv_binding *binding);
/* With binding->lock held: one operation or start call less. */
void oki_binding_op_done(struct okv_binding *binding);
/* Wake the worker, if it is still there. */
void oki_binding_wake(struct okv_binding *binding);
void oki_op_get(struct okv_op *op);
void oki_op_put(struct okv_op *op);

/* stretches.c: room for the stretches of a publish or restore */
int oki_stretches_make(struct okv_op *op, uint32_t count, struct okv_error *err);
/* Check one stretch, except for its pages, and add its blocks to the transfer's group. */
int oki_stretch_add(struct okv_op *op, uint32_t i, uint32_t group, uint32_t count,
		    const uint32_t *pages, struct okv_error *err);
/* All stretches are added: copy their pages group after group, and check them. */
int oki_stretches_keep_pages(struct okv_op *op, struct okv_error *err);
uint32_t oki_stretches_reply_bytes(const struct okv_op *op);
/* Copy what the Manager says about each stretch. False: it does not add up. */
bool oki_stretches_take(struct okv_op *op);
void oki_stretches_free(struct okv_op *op);

/* namespace.c */
/* Group known, count and key_bytes within limits. */
int oki_ns_check_keys(const struct okv_namespace *ns, const struct okv_keys *keys,
		      struct okv_error *err);

/* rpc.c: one request and its reply over the socket. Reply's body must be reply_bytes long. */
int oki_rpc(struct okv_engine *engine, uint32_t kind, const void *body, uint32_t bytes,
	    void *ret_reply, uint32_t reply_bytes, int *ret_fd, struct okv_error *err);
int oki_rpc_connect(struct okv_engine *engine, const char *socket_path, uint64_t deadline_ns,
		    struct okv_error *err);
int oki_rpc_hello(struct okv_engine *engine, uint64_t deadline_ns, struct okv_error *err);
/* Later calls fail with OKV_E_CLOSED; waits for one that runs. */
void oki_rpc_close(struct okv_engine *engine);

/* embedded_manager.c */
int oki_embedded_start(struct okv_engine *engine, const struct okv_manager_options *opts,
		       struct okv_error *err);
void oki_embedded_stop(struct okv_engine *engine);

/* session.c: the session thread */
int oki_session_start(struct okv_engine *engine, struct okv_error *err);
void oki_session_stop(struct okv_engine *engine);
void oki_session_lost(struct okv_engine *engine, const char *why);

/* records.c */
/* Reserve a record and an extent for request and reply; the op gets a reference in the table. */
int oki_record_reserve(struct okv_op *op, uint32_t request_bytes, uint32_t reply_bytes,
		       uint8_t **ret_request, struct okv_error *err);
/* Fill the head, move to Submitted, ring. Returns the record, which the reply may have freed
 * already. */
struct okw_record *oki_record_submit(struct okv_op *op, struct okw_request *head,
				     uint32_t request_bytes, bool spinning);
/* Tell the Manager that this session no longer needs the lease in that slot. */
void oki_lease_forget(struct okv_engine *engine, uint32_t slot);
/* After submitting: if the table was shut meanwhile, take the operation out of it, since the thread
 * that shut it skipped an operation that was not submitted. */
void oki_record_detach_if_closed(struct okv_op *op);
/* Read the record's state and act on it. Takes op->lock. */
void oki_record_advance(struct okv_op *op);
/* From now on the worker polls the record, so the Manager need not ring for its next move. Call
 * before the edge to Drained. */
void oki_record_start_polling(struct okv_op *op);
/* The worker stops polling: later moves ring, an earlier one is handled inside. */
void oki_record_stop_polling(struct okv_op *op);
/* A caller is about to sleep for this operation, or cancels it. For an unclaimed transfer or a
 * publish the Manager then rings, so that the session thread handles the next move while the worker
 * may be busy with the copy of another transfer. */
void oki_record_enable_wakeups(struct okv_op *op);
/* End an operation that is not claimed yet with status: it never will be claimed. A drained publish
 * ends with status, too; the worker of an active operation is only woken. */
void oki_op_abandon(struct okv_op *op, int status, const char *text);
struct okw_record *oki_record_of(const struct okv_op *op);
void oki_record_ring(struct okv_op *op, struct okw_doorbell *bell);

/* op.c */
struct okv_op *oki_op_create(struct okv_engine *engine, uint32_t kind, struct okv_error *err);
/* With op->lock held: set the error that it will end with; the first one counts. */
void oki_op_set_error(struct okv_op *op, int status, const char *text);
/* With op->lock held: complete the result and set final, once. */
void oki_op_finish(struct okv_op *op);
/* The copies are about to end: wake the waiters of the whole operation to spin. */
void oki_op_soon(struct okv_op *op);
/* Set the flag of one layer, or of all (layer_count), and wake its waiters. */
void oki_op_flag(struct okv_op *op, _Atomic bool *flags, uint32_t layer);
/* The operation uses no page any more: release its in-use entries, owners and stream. */
void oki_op_release_resources(struct okv_op *op);

/* wait.c */
/* Wait until the record ended (lookups), spinning first; 0 or OKV_E_TIMEOUT / OKV_E_SESSION. */
int oki_record_wait(struct okv_op *op, struct okw_record *record, int timeout_ms);

/* claim.c: the grant as a source of parts */
extern const struct oki_transfer_source oki_grant_source;
/*
 * part_check.c: check a part in private memory against request, schema and mappings. The pairs of
 * ret_part overwrite the entries in part.
 */
int oki_part_check(struct okv_op *op, uint8_t *part, uint32_t bytes, uint32_t index,
		   struct oki_part *ret_part, struct okv_error *err);

/* in_use.c: pages and events in use. With binding->lock held. */
int oki_in_use_enter(struct okv_op *op, struct okv_error *err);
void oki_in_use_leave(struct okv_op *op);

/* binding.c */
/* Refuse, drain, stop the worker, unpin, release owners. Any number of threads may call it: each
 * returns when all of that is done. */
void oki_binding_drain_stop(struct okv_binding *binding);

/* notify.c */
int oki_notify_init(struct okv_engine *engine, struct okv_error *err);
void oki_notify_push(struct okv_op *op); /* with op->lock held */
void oki_notify_session(struct okv_engine *engine);
void oki_notify_drop(struct okv_engine *engine); /* the engine closes: drop queued completions */

#endif
