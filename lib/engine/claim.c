/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The grant as the executor's source of parts: claimed here, drained here. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "grant/parts.h"

/* The worker has dropped it, or all its copies stopped: pages first, then the result. */
static void end_op(struct okv_op *op, enum oki_op_phase phase)
{
	/* A publish that had nothing to copy has read its pages as well. */
	struct okv_error err = {0};
	if (phase == OKI_OP_ABANDONED && op->transfer.final_event && !op->failing)
		oki_worker_ops(op->binding->worker)
			->record_event(op->transfer.stream, op->transfer.final_event, &err);
	oki_transfer_fini(op->binding->worker, &op->transfer);
	oki_op_release_resources(op);
	pthread_mutex_lock(&op->lock);
	/* Result and running count at once: who has waited for the operation finds the binding
	 * drained, and who has drained the binding finds results. */
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
		/* Who sleeps for it looks by himself from here on: the Manager has to wake as well,
		 * and would have to wake the session's thread, and that one him. */
		atomic_store(&op->ending, oki_record_of(op));
		if (atomic_load(&op->waiters) && op->engine->options.spin_us)
			pthread_cond_broadcast(&op->cond);
	}
	oki_binding_op_done(op->binding);
	pthread_mutex_unlock(&op->binding->lock);
	pthread_mutex_unlock(&op->lock);
}

/* The worker looks at it no more. */
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

/* With op->lock held. 1: Granted → Active is ours. */
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
		/* The device is not to be trusted with another copy: the Manager takes it back. */
		op->phase = OKI_OP_ABANDONED;
		oki_op_set_error(op, OKV_E_POISONED, "the engine is poisoned");
		atomic_fetch_or(&r->engine_flags, OKW_ENGINE_CANCEL);
		oki_record_ring(op, &op->engine->channel.control->submit);
		return -1;
	}
	oki_stages_mark(&op->stages, OKI_STAGE_DEQUEUED);
	/* Stable from Granted on, but for the places of the parts. */
	memcpy(&op->reply.transfer, op->engine->channel.requests + op->reply_offset,
	       offsetof(struct okw_transfer_reply, part));
	op->tag = tag;
	if (!oki_move(r, &op->tag, OKW_ACTIVE, OKI_MOVER_ENGINE))
		return 0; /* revoked in between: its bell is on the way */
	oki_stages_mark(&op->stages, OKI_STAGE_CLAIMED);
	op->phase = OKI_OP_ACTIVE;
	op->part_total = op->reply.transfer.part_total;
	*ret_empty = op->part_total == 0 && !asks_for_blocks(op);
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
		/* The answer turns the phase to abandoned. */
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

/* Drained; Reaped is what is left to see. */
static bool grant_poll_reaped(void *arg, bool last)
{
	struct okv_op *op = arg;
	/* Without the mutex, which a caller that was woken wants, until there is something to do.
	 */
	struct okw_record *r = atomic_load(&op->ending);
	if (r && !last && !atomic_load(&op->final) && OKI_TAG_STATE(oki_tag_load(r)) != OKW_REAPED)
		return false;
	pthread_mutex_lock(&op->lock);
	/* Of an unknown end: the operation and its record stay for ever. */
	bool unknown = op->phase == OKI_OP_ACTIVE;
	bool freed = op->record == OKI_NO_RECORD;
	bool reaped =
		!unknown && !freed && OKI_TAG_STATE(oki_tag_load(oki_record_of(op))) == OKW_REAPED;
	pthread_mutex_unlock(&op->lock);
	if (unknown)
		return true;
	if (reaped)
		oki_record_advance(op);
	/* Also where the Manager was asked to ring: it may be told sooner from here. */
	if (!freed && !reaped && !last)
		return false;
	drop_op(op);
	return true;
}

#define BANK_SHARE (OKW_PLAN_BANK_BYTES / OKW_RECORDS)

/* Where the worker copies parts: the same pages every time. It asks for the next part when it is
 * done with the last, whoever's that is. */
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
	/* Only this part's place: the Manager may be writing the other one. */
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
	/* G4: the copy is complete before the bank space can be offered again. */
	atomic_store(&oki_record_of(op)->consumed, index + 1);
	/* The bank has BANK_SHARE for every record: the last part of that size lets nobody wait,
	 * so it goes back with Drained. */
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
	if (!op->part_total)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM, "a plan without parts");
	uint32_t index;
	/* Read before the claim: what a dead Manager had offered by then is still good. */
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
		rc = oki_plan_check(op, part, bytes, index, ret_part, err);
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
	/* G8: the layer's copies and its event were recorded before this says so. */
	oki_op_flag(op, op->enqueued, layer);
}

static void grant_layer_done(void *arg, uint32_t layer)
{
	struct okv_op *op = arg;
	if (op->kind != OKW_OP_RESTORE)
		return;
	/* G8: the device said that the layer's last byte is there. */
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

/* To wake takes as long as a page takes to copy, for a caller and for the Manager that seals. */
static void grant_soon(void *arg)
{
	struct okv_op *op = arg;
	if (!op->engine->options.spin_us)
		return;
	if (op->kind == OKW_OP_PUBLISH)
		oki_record_ring(op, &op->engine->channel.control->retire);
	oki_op_soon(op);
}

/* Nobody can say whether copies still run: nothing of this operation is ever given back. */
static void grant_unknown(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	if (!(e->options.flags & OKV_ENGINE_POISON))
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
	/* G5: every claimed part's copies stopped before this count says so. */
	atomic_store(&r->drained, parts.claimed);
	oki_record_start_polling(op);
	oki_move(r, &op->tag, OKW_DRAINED, OKI_MOVER_ENGINE);
	oki_record_ring(op, &op->engine->channel.control->retire);
	pthread_mutex_unlock(&op->lock);
	end_op(op, OKI_OP_DRAINED);
	/* Reaped may have been announced before the phase said drained; else it is settled later.
	 */
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
