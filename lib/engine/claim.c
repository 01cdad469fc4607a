/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The grant as the executor's source of parts: claimed here, drained here. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/exit.h"
#include "grant/parts.h"

/* The worker dropped it, or all its copies stopped. Release the pages before the result is
 * visible. */
static void end_op(struct okv_op *op, enum oki_op_phase phase)
{
	/* A publish without copies ends here unclaimed; its event is due all the same. */
	struct okv_error err = {0};
	if (phase == OKI_OP_ABANDONED && op->transfer.final_event && !op->failing)
		oki_worker_ops(op->binding->worker)
			->record_event(op->transfer.stream, op->transfer.final_event, &err);
	oki_transfer_fini(op->binding->worker, &op->transfer);
	oki_op_release_resources(op);
	pthread_mutex_lock(&op->lock);
	/* Result and running count change together: a caller that waited for the operation finds
	 * the binding drained, and one that drained the binding finds the results. */
	pthread_mutex_lock(&op->binding->lock);
	op->phase = phase;
	oki_op_set_error(op, err.status, err.text);
	bool lost = atomic_load(&op->engine->state) != 0;
	bool sealed_later = phase == OKI_OP_DRAINED && op->kind == OKW_OP_PUBLISH;
	if (sealed_later && lost)
		oki_op_set_error(op, OKV_E_SESSION,
				 "the Manager went before the blocks were sealed");
	if (!sealed_later || lost) {
		oki_op_finish(op);
	} else {
		/* Wake a sleeping caller now to poll for Reaped itself. Otherwise three wakeups
		 * follow each other: the Manager, the session thread, the caller. */
		atomic_store(&op->ending, oki_record_of(op));
		if (atomic_load(&op->waiters) && op->engine->options.spin_us)
			pthread_cond_broadcast(&op->cond);
	}
	oki_binding_op_done(op->binding);
	pthread_mutex_unlock(&op->binding->lock);
	pthread_mutex_unlock(&op->lock);
}

/* The worker uses it no more: drop its reference. */
static void drop_op(struct okv_op *op)
{
	oki_record_stop_polling(op);
	oki_op_put(op);
}

static bool asks_for_blocks(const struct okv_op *op)
{
	for (uint32_t g = 0; g < op->transfer.group_count; g++)
		if (op->transfer.groups[g].count)
			return true;
	return false;
}

/* With op->lock held. 1: moved Granted → Active. 0: not yet. Negative: never. */
static int claim_locked(struct okv_op *op, bool *ret_empty, bool *ret_refused)
{
	if (op->phase == OKI_OP_ABANDONED)
		return -1;
	struct okw_record *r = oki_record_of(op);
	uint64_t tag = oki_tag_load(r);
	uint32_t state = OKI_TAG_STATE(tag);
	*ret_refused = state == OKW_DONE || state == OKW_REVOKED;
	if (state != OKW_GRANTED)
		return 0;
	if (atomic_load(&op->engine->state) == OKV_E_POISONED) {
		/* No more copies on this device: the Manager revokes the grant. */
		op->phase = OKI_OP_ABANDONED;
		oki_op_set_error(op, OKV_E_POISONED, "the engine is poisoned");
		atomic_fetch_or(&r->engine_flags, OKW_ENGINE_CANCEL);
		oki_record_ring(op, &op->engine->channel.control->submit);
		return -1;
	}
	oki_stages_mark(&op->stages, OKI_STAGE_DEQUEUED);
	/* The reply does not change after Granted, except for its part table. */
	memcpy(&op->reply.transfer, op->engine->channel.requests + op->reply_offset,
	       offsetof(struct okw_transfer_reply, part));
	op->tag = tag;
	if (!oki_move(r, &op->tag, OKW_ACTIVE, OKI_MOVER_ENGINE))
		return 0; /* revoked in between: the next call finds out */
	oki_stages_mark(&op->stages, OKI_STAGE_CLAIMED);
	op->phase = OKI_OP_ACTIVE;
	op->part_total = op->reply.transfer.part_total;
	op->bad_stretches = !oki_stretches_take(op);
	*ret_empty = op->part_total == 0 && !asks_for_blocks(op) && !op->bad_stretches;
	return 1;
}

static int grant_claim(void *arg, bool *ret_empty)
{
	struct okv_op *op = arg;
	bool refused = false;
	pthread_mutex_lock(&op->lock);
	int rc = claim_locked(op, ret_empty, &refused);
	pthread_mutex_unlock(&op->lock);
	if (refused) {
		/* This handles Done or Revoked and sets the phase to OKI_OP_ABANDONED. */
		oki_record_advance(op);
		pthread_mutex_lock(&op->lock);
		rc = op->phase == OKI_OP_ABANDONED ? -1 : 0;
		pthread_mutex_unlock(&op->lock);
	}
	if (rc < 0) {
		end_op(op, OKI_OP_ABANDONED);
		drop_op(op);
	}
	return rc;
}

static void grant_rest(void *arg)
{
	oki_record_stop_polling(arg);
}

/* After Drained: poll for Reaped. */
static bool grant_poll_reaped(void *arg, bool last)
{
	struct okv_op *op = arg;
	/* Poll without the mutex while nothing changed: a woken caller needs it. */
	struct okw_record *r = atomic_load(&op->ending);
	if (r && !last && !atomic_load(&op->final) && OKI_TAG_STATE(oki_tag_load(r)) != OKW_REAPED)
		return false;
	pthread_mutex_lock(&op->lock);
	/* Unknown: the operation and its record are never freed. */
	bool unknown = op->phase == OKI_OP_ACTIVE;
	bool freed = op->record == OKI_NO_RECORD;
	bool reaped =
		!unknown && !freed && OKI_TAG_STATE(oki_tag_load(oki_record_of(op))) == OKW_REAPED;
	pthread_mutex_unlock(&op->lock);
	if (unknown)
		return true;
	if (reaped)
		oki_record_advance(op);
	/* Poll even if the Manager was asked to ring: this may be sooner. */
	if (!freed && !reaped && !last)
		return false;
	drop_op(op);
	return true;
}

#define BANK_SHARE (OKW_PLAN_BANK_BYTES / OKW_RECORDS)

/* One buffer for all parts, so that the same memory is used every time. It is free for the next
 * part: the worker asks for one only after it has used the previous one, of whichever transfer. */
static uint8_t *part_memory(struct okv_binding *b)
{
	if (!b->part)
		b->part = malloc(OKW_PART_MAX_BYTES);
	return b->part;
}

/* Copy an offered part to private memory and give its bank space back. */
static int copy_part(struct okv_op *op, uint32_t index, uint8_t **ret_part, uint32_t *ret_bytes,
		     struct okv_error *err)
{
	struct okw_control *c = op->engine->channel.control;
	const struct okw_transfer_reply *reply =
		(const void *)(op->engine->channel.requests + op->reply_offset);
	/* Read only this part's entry: the Manager may be writing the other one. */
	uint32_t offset = reply->part[index & 1].offset, bytes = reply->part[index & 1].bytes;
	__asm__ volatile("" ::: "memory");
	if (bytes > OKW_PART_MAX_BYTES || bytes < sizeof(struct okw_plan_head) ||
	    offset > OKW_PLAN_BANK_BYTES - bytes)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
				"part %u is %u bytes at %u of the plan bank", index, bytes, offset);
	uint8_t *part = part_memory(op->binding);
	if (!part)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CLAIM, "no memory for a plan part");
	memcpy(part, c->bank + offset, bytes);
	/* G4: the copy is complete before its bank space can be reused. */
	atomic_store(&oki_record_of(op)->consumed, index + 1);
	/* A plan of one part within BANK_SHARE makes no other record wait for bank space, so it
	 * needs no ring of its own: Drained gives the space back. */
	if (op->part_total > 1 || bytes > BANK_SHARE)
		oki_record_ring(op, &c->retire);
	*ret_part = part;
	*ret_bytes = bytes;
	return 0;
}

static int grant_next(void *arg, struct oki_part *ret_part, struct okv_error *err)
{
	struct okv_op *op = arg;
	struct okw_record *r = oki_record_of(op);
	pthread_mutex_lock(&op->lock);
	bool cancelled = op->cancelled;
	pthread_mutex_unlock(&op->lock);
	if (cancelled)
		return oki_fail(err, OKV_E_CANCELLED, OKV_STAGE_CLAIM, "cancelled by the caller");
	if (op->bad_stretches)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
				"the counts of the stretches do not add up");
	if (!op->part_total)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM, "a plan without parts");
	uint32_t index;
	/* Read before the claim: parts offered before the session was lost are still valid. */
	bool lost = atomic_load(&op->engine->state) != 0;
	if (!oki_parts_claim(r, &index)) {
		if (lost)
			return oki_fail(err, OKV_E_SESSION, OKV_STAGE_CLAIM,
					"the Manager went before it offered every part");
		if (oki_parts_load(r).closed)
			return oki_fail(err, OKV_E_CANCELLED, OKV_STAGE_CLAIM,
					"the Manager offers no further part");
		return 0;
	}
	uint8_t *part = NULL;
	uint32_t bytes = 0;
	int rc = copy_part(op, index, &part, &bytes, err);
	if (!rc)
		rc = oki_part_check(op, part, bytes, index, ret_part, err);
	if (rc)
		return rc;
	op->parts_taken = index + 1;
	ret_part->last = op->parts_taken == op->part_total;
	return 1;
}

static void grant_layer_enqueued(void *arg, uint32_t layer)
{
	struct okv_op *op = arg;
	if (op->kind != OKW_OP_RESTORE)
		return;
	/* G8: the layer's copies are enqueued and its event is recorded before the flag is set. */
	oki_op_flag(op, op->enqueued, layer);
}

static void grant_layer_done(void *arg, uint32_t layer)
{
	struct okv_op *op = arg;
	if (op->kind != OKW_OP_RESTORE)
		return;
	/* G8: the device reported that the layer's last byte is in place. */
	oki_op_flag(op, op->done, layer);
}

static void grant_failing(void *arg, const struct okv_error *why)
{
	struct okv_op *op = arg;
	oki_parts_close(oki_record_of(op));
	pthread_mutex_lock(&op->lock);
	oki_op_set_error(op, why->status, why->text);
	pthread_mutex_unlock(&op->lock);
}

static void grant_enqueued(void *arg)
{
	struct okv_op *op = arg;
	oki_stages_mark(&op->stages, OKI_STAGE_ENQUEUED);
	if (op->kind == OKW_OP_PUBLISH)
		oki_op_flag(op, op->enqueued, op->layer_count);
}

/* A wakeup takes about as long as the copy of a page, so wake the caller, and for a publish the
 * Manager, before the copies end. */
static void grant_soon(void *arg)
{
	struct okv_op *op = arg;
	if (!op->engine->options.spin_us)
		return;
	if (op->kind == OKW_OP_PUBLISH)
		oki_record_ring(op, &op->engine->channel.control->retire);
	oki_op_soon(op);
}

/* It is unknown whether copies still run, so nothing of this operation is ever released. */
static void grant_unknown(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	/* In exit() nobody uses the pages any more, and they go with the process. */
	if (!(e->options.flags & OKV_ENGINE_POISON) && !oki_exit_has_begun())
		oki_die("the end of a copy cannot be established: %s",
			op->end_text[0] ? op->end_text : "device error");
	atomic_store(&e->state, OKV_E_POISONED);
	struct okw_record *r = oki_record_of(op);
	pthread_mutex_lock(&op->lock);
	oki_move(r, &op->tag, OKW_UNKNOWN, OKI_MOVER_ENGINE);
	oki_record_ring(op, &e->channel.control->retire);
	op->failing = op->end_status = OKV_E_POISONED;
	oki_op_finish(op);
	pthread_mutex_unlock(&op->lock);
	oki_notify_session(e);
	pthread_mutex_lock(&op->binding->lock);
	pthread_cond_broadcast(&op->binding->drained);
	pthread_mutex_unlock(&op->binding->lock);
}

static void grant_ended(void *arg, int status, uint64_t bytes)
{
	struct okv_op *op = arg;
	if (status == OKV_E_POISONED) {
		grant_unknown(op);
		return;
	}
	struct okw_record *r = oki_record_of(op);
	oki_stages_mark(&op->stages, OKI_STAGE_DRAINED);
	pthread_mutex_lock(&op->lock);
	oki_op_set_error(op, status, okv_status_text(status));
	op->result.bytes = bytes;
	struct oki_parts parts = oki_parts_close(r);
	r->engine_status = op->failing;
	memcpy(r->stage, op->stages.ns, sizeof(r->stage));
	/* G5: the copies of every claimed part stopped before this store. */
	atomic_store(&r->drained, parts.claimed);
	oki_record_start_polling(op);
	oki_move(r, &op->tag, OKW_DRAINED, OKI_MOVER_ENGINE);
	oki_record_ring(op, &op->engine->channel.control->retire);
	pthread_mutex_unlock(&op->lock);
	end_op(op, OKI_OP_DRAINED);
	/* Reaped is ignored before the phase is OKI_OP_DRAINED, so look once more now. */
	oki_record_advance(op);
}

const struct oki_transfer_source oki_grant_source = {
	.claim = grant_claim,
	.next = grant_next,
	.layer_enqueued = grant_layer_enqueued,
	.failing = grant_failing,
	.enqueued = grant_enqueued,
	.layer_done = grant_layer_done,
	.soon = grant_soon,
	.ended = grant_ended,
	.rest = grant_rest,
	.poll_reaped = grant_poll_reaped,
};
