/* SPDX-License-Identifier: Apache-2.0 */
/* Moving blocks: publish (pages to blocks) and restore (blocks to pages). */
#ifndef ORBITKV_TRANSFER_H
#define ORBITKV_TRANSFER_H

#include <orbitkv/lookup.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OKV_OP_NOTIFY 0x1u /* report completion through okv_engine_poll() */
/* Every restore, also of a part, spends one of the lease's consumers' shares unless it keeps it. */
#define OKV_RESTORE_KEEP 0x2u

/**
 * What must have finished before the pages may be touched: the streams that last used (restore)
 * or wrote (publish) them. An idle one costs a query, a busy one a fence on the GPU; the caller
 * is never blocked. A stream not named is not waited for. CUDA bindings only; a capturing stream
 * or one of another context is refused.
 */
struct okv_ready {
	uint32_t stream_count;
	uint32_t reserved;		    /* 0 */
	struct CUstream_st *const *streams; /* a NULL entry is the null stream, a real stream */
};

/** A CUDA event to record after one layer's last byte is ordered. */
struct okv_layer_event {
	uint32_t layer;		  /* index in the binding's layers */
	uint32_t reserved;	  /* 0 */
	struct CUevent_st *event; /* live and used by no other running operation until drained */
	struct okv_owner owner;
};

/** Blocks of one group that go to (restore) or come from (publish) these pages. */
struct okv_restore_group {
	uint32_t group;
	uint32_t first; /* block of the sequence, as okv_hit.first */
	uint32_t count;
	uint32_t reserved; /* 0 */
	/* count * pages per block (okv_layer), in block order; none twice. So many are read: a
	 * shorter array cannot be noticed. */
	const uint32_t *pages;
};

/** What okv_restore_start() copies where; borrowed during the call. */
struct okv_restore_options {
	uint32_t size;
	uint32_t flags; /* OKV_OP_*, OKV_RESTORE_* */
	uint32_t group_count;
	uint32_t event_count;
	const struct okv_restore_group *groups;
	const struct okv_layer_event *events; /* at most one per layer */
	struct okv_ready ready;
	uint64_t user_data;
	struct okv_owner owner; /* kept until drained */
};

/** Fill in size; everything else is 0: no groups, no events, no streams. NULL is ignored. */
OKV_EXPORT void okv_restore_options_init(struct okv_restore_options *opts);

/**
 * Start copying leased blocks into pages of this binding. Zero groups or zero blocks is legal:
 * it completes and every layer becomes ready.
 *
 * A lookup that found nothing gave no lease: there is nothing to restore then.
 *
 * Owns     borrows opts (owners are shared until drained); returns owned, okv_op_release().
 *          On 0 a share of the lease is spent when the Manager accepts, unless KEEP; the
 *          operation's result says so if that was refused.
 * Pages    the library's until the operation drained: okv_op_wait() or okv_op_poll() saying so.
 *          A timeout or a cancel is not permission to reuse them.
 * Errors   OKV_E_INVAL (also a page named twice), OKV_E_LIMIT (above a fixed limit),
 *          OKV_E_UNSUPPORTED (streams or events on a host binding), OKV_E_BUSY (a page or event of
 *          another running operation), OKV_E_AGAIN, OKV_E_CLOSED, OKV_E_NOMEM, OKV_E_FORKED,
 *          OKV_E_SESSION, OKV_E_POISONED. Nothing was started. The operation itself may
 *          also end with OKV_E_AGAIN (too many restores of the device are running) or another
 *          refusal of the Manager: nothing was copied then, and its pages are as they were.
 * Blocks   never for copies or the Manager. A CUDA binding has streams for 4 operations at a time;
 *          the first time that more run, the call makes another one, and the driver may wait there
 *          until streams of this process that are held back go on.
 * Threads  any.
 */
OKV_EXPORT int okv_restore_start(struct okv_binding *binding, struct okv_lease *lease,
				 const struct okv_restore_options *opts, struct okv_op **ret_op,
				 struct okv_error *err);

/**
 * parent and first_position say where in its sequence the stretch belongs, so that eviction takes
 * the tail of a prefix before its head. Neither is checked against what is stored: a wrong value
 * costs hits, never bytes.
 */
struct okv_publish_group {
	struct okv_keys keys;	 /* consecutive blocks; none twice, which the operation refuses */
	uint32_t first_position; /* block index of the first key in its sequence */
	uint32_t tokens;	 /* valid tokens in these blocks: exactly count * block_tokens */
	const void *parent;	 /* key before the first, keys.key_bytes long; NULL at position 0 */
	const uint32_t *pages;	 /* count * pages per block, in block order; so many are read */
};

/** What okv_publish_start() stores under which keys; borrowed during the call. */
struct okv_publish_options {
	uint32_t size;
	uint32_t flags; /* OKV_OP_* */
	uint32_t group_count;
	uint32_t reserved; /* 0 */
	const struct okv_publish_group *groups;
	struct okv_ready ready;
	/* Recorded behind the last read of the pages, or NULL. A stream may be linked to it after
	 * okv_op_wait_enqueued() of any layer: before, it still has its last record. */
	struct CUevent_st *read_done_event;
	uint64_t user_data;
	struct okv_owner owner;
};

/** Fill in size; everything else is 0: no groups, no event, no streams. NULL is ignored. */
OKV_EXPORT void okv_publish_options_init(struct okv_publish_options *opts);

/**
 * Start storing pages of this binding under keys. Keys already stored or being stored by
 * someone else are skipped; when space runs out the longest head is stored.
 * Contracts as okv_restore_start(), and OKV_E_PERM from an engine that restores only; pages are
 * only read.
 */
OKV_EXPORT int okv_publish_start(struct okv_binding *binding,
				 const struct okv_publish_options *opts, struct okv_op **ret_op,
				 struct okv_error *err);

/* Nanoseconds from the start call; 0 where the stage was not reached. */
struct okv_stage_times {
	uint64_t ready;	     /* arguments checked, fences placed */
	uint64_t dispatched; /* request visible to the Manager */
	uint64_t dequeued;   /* grant seen by the worker */
	uint64_t claimed;
	uint64_t enqueued; /* last copy submitted */
	uint64_t drained;
};

/** How an operation ended. */
struct okv_op_result {
	int32_t status;		      /* final: 0 or OKV_E_* */
	uint32_t lease_spent;	      /* restore: a share is gone */
	uint64_t blocks;	      /* copied */
	uint64_t bytes;		      /* payload copied */
	uint64_t present;	      /* publish: skipped, stored already */
	uint64_t in_progress;	      /* publish: skipped, another publisher is at it */
	uint64_t not_stored;	      /* publish: tail for which there was no space */
	struct okv_stage_times times; /* zero unless OKV_ENGINE_STAGE_TIMES */
	char text[96];		      /* why, when status is not 0 */
};

/**
 * Wait until this layer's event (of a publish: read_done_event) is recorded: only then may a
 * consumer be linked to it. layer is an index in the binding's layers; beyond them OKV_E_INVAL.
 * When the event never will be recorded: OKV_E_* of the operation, and no consumer may be linked;
 * okv_op_wait() has the reason. timeout_ms < 0 waits without limit; 0 asks.   Threads any.
 */
OKV_EXPORT int okv_op_wait_enqueued(struct okv_op *op, uint32_t layer, int timeout_ms);
/**
 * Wait until this layer's bytes are in place, for callers on the CPU. On a CUDA binding this is
 * the end of the whole operation: there, consumers wait on layer events on the GPU. layer,
 * timeout_ms and failures as above: after anything but 0 the layer must not be used. A publish has
 * no such layers: OKV_E_INVAL.
 */
OKV_EXPORT int okv_op_wait_layer(struct okv_op *op, uint32_t layer, int timeout_ms);
/**
 * OKV_E_RUNNING until it ended; then the final status, and ret_result (may be NULL) is written
 * whatever that is. For a look now and
 * then: a loop over it takes the CPU that the copy needs; wait, or use okv_engine_fd().
 */
OKV_EXPORT int okv_op_poll(struct okv_op *op, struct okv_op_result *ret_result);
/**
 * Wait for the end. Restore: drained. Publish: visible to every lookup. Returns the final status,
 * or OKV_E_TIMEOUT with the operation unaffected. ret_result (may be NULL) is written
 * at the end, whatever the status is: its text says why it failed.
 */
OKV_EXPORT int okv_op_wait(struct okv_op *op, int timeout_ms, struct okv_op_result *ret_result);
/**
 * Ask it to end early. It still ends exactly once, as cancelled or as it would have; before it was
 * granted that is for the Manager to say.
 */
OKV_EXPORT int okv_op_cancel(struct okv_op *op);
/**
 * Drop the handle, in any state; a running operation goes on to its end and its pages, events
 * and owners stay in use until then. NULL is allowed.
 */
OKV_EXPORT void okv_op_release(struct okv_op *op);

#ifdef __cplusplus
}
#endif
#endif
