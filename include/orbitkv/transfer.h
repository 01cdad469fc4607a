/* SPDX-License-Identifier: Apache-2.0 */
/* Copy blocks: publish (pages to blocks) and restore (blocks to pages). */
#ifndef ORBITKV_TRANSFER_H
#define ORBITKV_TRANSFER_H

#include <orbitkv/lookup.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Flags of an operation; they are or-ed. */
enum okv_op_flags {
	OKV_OP_NOTIFY = 0x1, /* report the end through okv_engine_poll() */
	/* Restore: do not spend a share of any lease; in a stretch: of its lease. Any other restore
	 * spends one share of each lease that it names, however few blocks and however many
	 * stretches it names of it. */
	OKV_RESTORE_KEEP = 0x2,
};

/**
 * The streams whose work must end before the library touches the pages: those that last used
 * (restore) or wrote (publish) them. It does not wait for streams that are not named. An idle
 * stream costs a query, a busy one a fence on the GPU; the caller is never blocked. CUDA bindings
 * only. A stream that is being captured, or belongs to another context, is refused.
 */
struct okv_ready {
	uint32_t stream_count;		    /* default 0 */
	uint32_t reserved;		    /* 0 */
	struct CUstream_st *const *streams; /* a NULL entry is the null stream of CUDA */
};

/** A CUDA event that the library records behind the last copy of one layer. */
struct okv_layer_event {
	uint32_t layer;	   /* index in the binding's layers */
	uint32_t reserved; /* 0 */
	/* Must exist until the operation drained; no other running operation may use it. */
	struct CUevent_st *event;
	struct okv_owner owner; /* of the event; retained until the operation drained */
};

/**
 * A stretch of a restore: consecutive blocks of one group of one lease, and the pages that they are
 * copied to. One restore may have many stretches of a group, for example one per request of a step;
 * they may come from different leases. The lease is one of three: `lease`; the one that lease_id
 * names; if both are NULL, the lease that is given to okv_restore_start().
 */
struct okv_restore_group {
	uint32_t group; /* index of the group in the schema */
	uint32_t first; /* block of the sequence; from okv_hit.first on */
	uint32_t count; /* blocks; 0 to OKV_MAX_BLOCKS */
	uint32_t flags; /* OKV_RESTORE_KEEP or 0. A share of a lease is kept if every stretch that
			 * names the lease keeps it */
	/* count * (pages per block, see okv_layer) page numbers in block order, each page of a
	 * group once in the whole restore. The library reads that many: it cannot notice a shorter
	 * array. */
	const uint32_t *pages;
	struct okv_lease *lease; /* a handle of this engine and namespace, or NULL */
	/* A lease of this namespace that any session got from a lookup, or NULL. It needs no handle
	 * in this session and takes none of OKV_MAX_LEASES. The Manager finds it, checks the range,
	 * spends a share and renews the TTL. Some session must hold the lease until then: a handle
	 * of another session, until this operation ended; one of this session, until it started. */
	const struct okv_lease_id *lease_id;
};

/** What okv_restore_start() copies, and where to; borrowed during the call. */
struct okv_restore_options {
	uint32_t size;	      /* set by the _init call */
	uint32_t flags;	      /* enum okv_op_flags; default 0 */
	uint32_t group_count; /* stretches; 0 to OKV_MAX_STRETCHES */
	uint32_t event_count; /* default 0 */
	/* group_count stretches in any order, OKV_MAX_OPERATION_BLOCKS blocks in all. */
	const struct okv_restore_group *groups;
	const struct okv_layer_event *events; /* CUDA only; at most one per layer, all different */
	struct okv_ready ready;
	uint64_t user_data;	/* for the completion */
	struct okv_owner owner; /* of the pages; retained until the operation drained */
};

/** Set size; everything else is 0: no groups, no events, no streams. NULL is ignored. */
OKV_EXPORT void okv_restore_options_init(struct okv_restore_options *opts);

/**
 * Start to copy blocks of one or more leases into pages of this binding. lease is that of the
 * stretches that name none; it may be NULL if there is no such stretch, but not if there is no
 * stretch at all: after a miss there is nothing to restore. With zero stretches or zero blocks the
 * operation succeeds and every layer becomes ready. A layer is ready when the blocks of its group
 * are in place, those of all stretches.
 *
 * All or nothing: if a lease has ended (OKV_E_NOENT), or does not hold the blocks of its stretch
 * (OKV_E_INVAL; with a handle the call itself returns that), the operation ends with the status of
 * the first such stretch. Then nothing was copied and no share was spent, of any lease, and
 * okv_op_stretches() says which stretches failed: start again without them.
 *
 * Owns     borrows opts, its leases and lease ids; the owners are retained until the operation
 *          drained. Returns an owned handle; release it with okv_op_release(). The Manager spends a
 *          share of each lease when it accepts the operation, except with OKV_RESTORE_KEEP;
 *          okv_op_result.lease_spent says of how many leases it did.
 * Pages    belong to the library until the operation drained, which okv_op_wait() or okv_op_poll()
 *          reports. After a timeout or a cancel they must not be reused yet.
 * Errors   OKV_E_INVAL (also a page that is named twice), OKV_E_LIMIT (above a fixed limit),
 *          OKV_E_UNSUPPORTED (streams or events on a host binding), OKV_E_BUSY (another running
 *          operation uses a page or an event), OKV_E_AGAIN, OKV_E_CLOSED, OKV_E_NOMEM,
 *          OKV_E_FORKED, OKV_E_SESSION, OKV_E_POISONED: nothing was started.
 *          The operation itself may end with OKV_E_AGAIN (restore_permits restores of the device
 *          are running) or another refusal of the Manager: nothing was copied, and its pages are
 *          unchanged.
 * Blocks   never for copies or for the Manager. A CUDA binding has streams for 4 operations at a
 *          time. When more run for the first time, the call creates another stream, and the driver
 *          may block that until streams of this process that are held back continue.
 * Threads  any.
 */
OKV_EXPORT int okv_restore_start(struct okv_binding *binding, struct okv_lease *lease,
				 const struct okv_restore_options *opts, struct okv_op **ret_op,
				 struct okv_error *err);

/**
 * A stretch of a publish: consecutive blocks of one group of one sequence, their keys, and the
 * pages that they are copied from. parent and first_position give the place of the blocks in their
 * sequence, so that the tail of a prefix is evicted before its head. The Manager does not check
 * them against stored blocks: a wrong value costs hits, never correct bytes.
 *
 * One publish may have many stretches of a group, for example one per request of a step. Stretches
 * that follow each other and are of different groups are taken as one sequence; a stretch of a
 * group that the sequence has already begins the next. That order too only affects hits.
 */
struct okv_publish_group {
	/* A key that is named twice in one stretch fails the operation. A key of an earlier
	 * stretch, as of two requests with the same prefix, is skipped: it counts as in_progress
	 * (or present or not_stored, as that of the earlier stretch). */
	struct okv_keys keys;
	/* Position of the first block in its sequence. A window group may be published from any
	 * position on: only its last blocks are ever needed. */
	uint32_t first_position;
	uint32_t tokens;    /* must be keys.count * block_tokens: only full blocks are stored */
	const void *parent; /* key of the block before, keys.key_bytes long; NULL at position 0 */
	/* keys.count * (pages per block) page numbers in block order, each page once in a stretch;
	 * stretches may share pages. The library reads that many: it cannot notice a shorter
	 * array. */
	const uint32_t *pages;
};

/** What okv_publish_start() stores, and under which keys; borrowed during the call. */
struct okv_publish_options {
	uint32_t size;	      /* set by the _init call */
	uint32_t flags;	      /* OKV_OP_NOTIFY or 0; default 0 */
	uint32_t group_count; /* stretches; 1 to OKV_MAX_STRETCHES */
	uint32_t reserved;    /* 0 */
	/* group_count stretches, OKV_MAX_OPERATION_BLOCKS blocks in all. */
	const struct okv_publish_group *groups;
	struct okv_ready ready;
	/* CUDA event that the library records behind the last read of the pages; NULL, the default:
	 * none. A stream may wait for it after okv_op_wait_enqueued() of any layer. Before that,
	 * the event still has an older record. */
	struct CUevent_st *read_done_event;
	uint64_t user_data;	/* for the completion */
	struct okv_owner owner; /* of the pages; retained until the operation drained */
};

/** Set size; everything else is 0: no groups, no event, no streams. NULL is ignored. */
OKV_EXPORT void okv_publish_options_init(struct okv_publish_options *opts);

/**
 * Start to copy pages of this binding into new blocks under these keys. Keys that are stored
 * already, or that another publish stores now, are skipped. When space runs out, the first blocks
 * are stored and the rest is not: okv_op_result.not_stored. First are the groups in the order of
 * the schema, and in a group the stretches in the order given.
 *
 * Owns, Pages, Errors, Blocks and Threads are those of okv_restore_start(). In addition OKV_E_PERM:
 * the engine was opened with OKV_ENGINE_RESTORE_ONLY. The pages are only read.
 */
OKV_EXPORT int okv_publish_start(struct okv_binding *binding,
				 const struct okv_publish_options *opts, struct okv_op **ret_op,
				 struct okv_error *err);

/** Nanoseconds from the start call to the end of each stage; 0: the stage was not reached. */
struct okv_stage_times {
	uint64_t ready;	     /* arguments are checked, fences are queued */
	uint64_t dispatched; /* the Manager can see the request */
	uint64_t dequeued;   /* the worker saw the grant */
	uint64_t claimed;    /* the worker claimed the grant */
	uint64_t enqueued;   /* the last copy was submitted */
	uint64_t drained;    /* the last copy ended */
};

/** How an operation ended. */
struct okv_op_result {
	int32_t status;		      /* final: 0 or OKV_E_* */
	uint32_t lease_spent;	      /* restore: leases of which a share is spent */
	uint64_t blocks;	      /* blocks copied, of all stretches; so are the sums below */
	uint64_t bytes;		      /* payload bytes copied */
	uint64_t present;	      /* publish: blocks skipped, they are stored already */
	uint64_t in_progress;	      /* publish: blocks skipped, another publish stores them */
	uint64_t not_stored;	      /* publish: blocks for which there was no space */
	struct okv_stage_times times; /* all 0 without OKV_ENGINE_STAGE_TIMES */
	char text[96];		      /* the reason when status is not 0; terminated */
};

/**
 * Wait until this layer's event (of a publish: read_done_event) is recorded. Only after that may a
 * stream be made to wait for the event. timeout_ms < 0 waits without limit; 0 does not wait.
 *
 * Errors   OKV_E_INVAL: layer is no index in the binding's layers. OKV_E_TIMEOUT. Any other error:
 *          the operation failed and the event will not be recorded, so no stream may wait for it;
 *          okv_op_wait() gives the reason.
 * Threads  any.
 */
OKV_EXPORT int okv_op_wait_enqueued(struct okv_op *op, uint32_t layer, int timeout_ms);
/**
 * Wait on the CPU until this layer's bytes are in place. On a CUDA binding that is the end of the
 * whole operation; let streams wait for layer events instead. layer and timeout_ms are those of
 * okv_op_wait_enqueued(). Unless the call returns 0, the layer must not be used.
 *
 * Errors   those of okv_op_wait_enqueued(); OKV_E_INVAL also for a publish.
 * Threads  any.
 */
OKV_EXPORT int okv_op_wait_layer(struct okv_op *op, uint32_t layer, int timeout_ms);
/**
 * OKV_E_RUNNING until the operation ended. Then the final status, and ret_result (may be NULL) is
 * written for every status. Do not call it in a loop, which takes CPU time from the copies: use
 * okv_op_wait() or okv_engine_fd().
 * Threads  any.
 */
OKV_EXPORT int okv_op_poll(struct okv_op *op, struct okv_op_result *ret_result);
/**
 * Wait until the operation ended. A restore has drained then; the blocks of a publish are visible
 * to every lookup. Returns the final status, and ret_result (may be NULL) is written for every
 * final status. Returns OKV_E_TIMEOUT if the operation still runs, which does not change it.
 * timeout_ms < 0 waits without limit; 0 does not wait.
 * Threads  any.
 */
OKV_EXPORT int okv_op_wait(struct okv_op *op, int timeout_ms, struct okv_op_result *ret_result);
/** What became of one stretch of an operation. */
struct okv_stretch_result {
	/* Why this stretch of a restore made the operation end: OKV_E_NOENT, OKV_E_INVAL. 0: it did
	 * not; the status of the operation counts. */
	int32_t status;
	/* As in okv_op_result; all 0 when the operation failed. */
	uint32_t blocks;
	uint32_t present;
	uint32_t in_progress;
	uint32_t not_stored;
	uint32_t reserved; /* 0 */
};

/**
 * The results of `count` stretches from stretch `first` on, in the order of the options, after the
 * operation ended.
 *
 * Errors   OKV_E_RUNNING: it has not ended. OKV_E_INVAL: op or ret_results is NULL, or the
 * operation has no such stretches. OKV_E_FORKED. Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_op_stretches(struct okv_op *op, uint32_t first, uint32_t count,
				struct okv_stretch_result *ret_results);
/**
 * Ask the operation to end early. It still ends exactly once: with OKV_E_CANCELLED, or as it would
 * have ended without the call. Before the grant the Manager decides which.
 * Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_op_cancel(struct okv_op *op);
/**
 * Release the handle, in any state. A running operation continues, and uses its pages, events and
 * owners until it ends. NULL is allowed.
 */
OKV_EXPORT void okv_op_release(struct okv_op *op);

#ifdef __cplusplus
}
#endif
#endif
