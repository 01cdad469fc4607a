/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Operation records as the engine moves them: reserve, submit, take the answer, free. */
#include "engine/engine_private.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "grant/parts.h"

struct okw_record *oki_record_of(const struct okv_op *op)
{
	return &op->engine->channel.control->records[op->record];
}

void oki_record_ring(struct okv_op *op, struct okw_doorbell *bell)
{
	oki_doorbell_ring(bell, op->engine->channel.manager_doorbell, op->record);
}

static uint32_t round8(uint32_t n)
{
	return (n + 7u) & ~7u;
}

int oki_record_reserve(struct okv_op *op, uint32_t request_bytes, uint32_t reply_bytes,
		       uint8_t **ret_request, struct okv_error *err)
{
	struct okv_engine *e = op->engine;
	uint32_t bytes = round8(request_bytes) + round8(reply_bytes);
	if (bytes > OKW_REQUEST_AREA_BYTES)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_REQUEST,
				"a request of %u bytes is above the limit of %u", bytes,
				OKW_REQUEST_AREA_BYTES);
	int rc = 0;
	pthread_mutex_lock(&e->table_lock);
	if (e->table_shut) {
		rc = oki_fail(err, OKV_E_CLOSED, OKV_STAGE_REQUEST, "the engine is closed");
		goto unlock;
	}
	if (!e->free_count) {
		rc = oki_fail(err, OKV_E_AGAIN, OKV_STAGE_REQUEST,
			      "all %u operation records are in use", OKW_RECORDS);
		goto unlock;
	}
	if (!oki_extent_alloc(&e->area, bytes, &op->extent)) {
		rc = oki_fail(err, OKV_E_AGAIN, OKV_STAGE_REQUEST,
			      "no room for a request of %u bytes in the request area", bytes);
		goto unlock;
	}
	uint32_t index = e->free_records[e->free_count - 1];
	if (!oki_channel_use(&e->channel, OKI_CHANNEL_REQUESTS, op->extent + bytes) ||
	    !oki_channel_use(&e->channel, OKI_CHANNEL_RECORDS,
			     (index + 1) * (uint32_t)sizeof(struct okw_record))) {
		oki_extent_free(&e->area, op->extent);
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REQUEST,
			      "no memory for a request of %u bytes", bytes);
		goto unlock;
	}
	struct okw_record *record = &e->channel.control->records[index];
	uint64_t tag = oki_tag_load(record);
	if (!oki_move(record, &tag, OKW_RESERVED, OKI_MOVER_ENGINE)) {
		oki_extent_free(&e->area, op->extent);
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REQUEST,
			      "record %u is %s where it must be free", index,
			      oki_state_name(OKI_TAG_STATE(tag)));
		goto unlock;
	}
	e->free_count--;
	op->record = index;
	op->tag = tag;
	op->reply_offset = op->extent + round8(request_bytes);
	op->reply_bytes = reply_bytes;
	oki_op_get(op);
	e->ops[index] = op;
	*ret_request = e->channel.requests + op->extent;
unlock:
	pthread_mutex_unlock(&e->table_lock);
	return rc;
}

struct okw_record *oki_record_submit(struct okv_op *op, struct okw_request *head,
				     uint32_t request_bytes, bool spinning)
{
	/* From Submitted on the reply may free the record at any time, so read its index first. */
	uint32_t index = op->record;
	struct okw_record *r = oki_record_of(op);
	head->epoch = op->engine->welcome.epoch;
	head->token = op->engine->welcome.token;
	head->tag = OKI_TAG(OKI_TAG_GENERATION(op->tag), OKW_SUBMITTED);
	head->kind = op->kind;
	head->bytes = request_bytes;
	memcpy(op->engine->channel.requests + op->extent, head, sizeof(*head));
	pthread_mutex_lock(&op->lock);
	oki_parts_reset(r);
	/* Relaxed, as in oki_parts_reset(): the record is the engine's until the move below
	 * publishes all of it (G2). */
	atomic_store_explicit(&r->engine_flags, spinning ? OKW_ENGINE_SPINNING : 0,
			      memory_order_relaxed);
	r->kind = op->kind;
	r->request_offset = op->extent;
	r->request_bytes = request_bytes;
	r->reply_capacity = op->reply_bytes;
	r->reply_bytes = 0;
	r->status = 0;
	r->engine_status = 0;
	memset(r->stage, 0, sizeof(r->stage));
	oki_move(r, &op->tag, OKW_SUBMITTED, OKI_MOVER_ENGINE);
	op->submitted = true;
	op->spinning = spinning;
	oki_stages_mark(&op->stages, OKI_STAGE_DISPATCHED);
	pthread_mutex_unlock(&op->lock);
	oki_doorbell_ring(&op->engine->channel.control->submit,
			  op->engine->channel.manager_doorbell, index);
	return r;
}

/* With op->lock held: the record and its extent are free again. Drops the table's reference. */
static void free_record(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	pthread_mutex_lock(&e->table_lock);
	uint32_t index = op->record;
	e->ops[index] = NULL;
	e->free_records[e->free_count++] = (uint16_t)index;
	oki_extent_free(&e->area, op->extent);
	pthread_mutex_unlock(&e->table_lock);
	op->record = OKI_NO_RECORD;
}

void oki_op_abandon(struct okv_op *op, int status, const char *text)
{
	bool wake = false;
	pthread_mutex_lock(&op->lock);
	if (!op->final && op->phase == OKI_OP_GRANT) {
		op->phase = OKI_OP_ABANDONED;
		oki_op_set_error(op, status, text);
		if (op->record != OKI_NO_RECORD) {
			atomic_fetch_or(&oki_record_of(op)->engine_flags, OKW_ENGINE_CANCEL);
			oki_record_ring(op, &op->engine->channel.control->submit);
		}
		wake = op->binding != NULL;
		if (!wake)
			oki_op_finish(op);
	} else if (!op->final && op->phase == OKI_OP_DRAINED) {
		/* A drained publish: whether it was sealed stays unknown. */
		oki_op_set_error(op, status, text);
		oki_op_finish(op);
	} else if (!op->final && op->phase == OKI_OP_ACTIVE) {
		/* Its worker may wait for a part that will not be offered. */
		wake = true;
	}
	pthread_mutex_unlock(&op->lock);
	if (wake)
		oki_binding_wake(op->binding);
}

void oki_record_detach_if_closed(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	bool ours = false;
	if (!atomic_load(&e->closing))
		return;
	pthread_mutex_lock(&op->lock);
	pthread_mutex_lock(&e->table_lock);
	if (e->table_shut && op->record != OKI_NO_RECORD && e->ops[op->record] == op) {
		e->ops[op->record] = NULL;
		ours = true;
	}
	pthread_mutex_unlock(&e->table_lock);
	if (ours)
		op->record = OKI_NO_RECORD;
	pthread_mutex_unlock(&op->lock);
	if (!ours)
		return;
	oki_op_abandon(op, OKV_E_CLOSED, "the engine was closed");
	oki_op_put(op);
}

/* Copy the reply to private memory: its extent may be reused once it is free. False: it is not a
 * whole reply. */
static bool take_reply(struct okv_op *op, const struct okw_record *r)
{
	uint32_t bytes = *(const volatile uint32_t *)&r->reply_bytes;
	size_t size = op->binding ? sizeof(op->reply.transfer) : sizeof(op->reply.lookup);
	memset(&op->reply, 0, sizeof(op->reply));
	if (bytes <= op->reply_bytes)
		memcpy(&op->reply, op->engine->channel.requests + op->reply_offset,
		       bytes < size ? bytes : size);
	return bytes == op->reply_bytes;
}

static void take_text(const struct okw_record *r, char text[OKW_TEXT_BYTES + 1])
{
	memcpy(text, r->text, OKW_TEXT_BYTES);
	text[OKW_TEXT_BYTES] = 0;
}

void oki_lease_forget(struct okv_engine *engine, uint32_t slot)
{
	struct okw_control *c = engine->channel.control;
	if (slot >= OKW_LEASES || atomic_load(&engine->closing))
		return;
	/* G6 */
	atomic_fetch_or(&c->lease_release[slot / 64], 1ull << (slot % 64));
	/* Any dirty bit will do: the Manager reads the whole bitmap. */
	oki_doorbell_ring(&c->retire, engine->channel.manager_doorbell, slot % OKW_RECORDS);
}

/* The Manager answered (Done), took the grant back (Revoked) or released everything (Reaped). */
static void handle_terminal_state(struct okv_op *op, struct okw_record *r, uint64_t tag)
{
	char text[OKW_TEXT_BYTES + 1];
	bool whole = take_reply(op, r);
	take_text(r, text);
	int status = r->status;
	if (status)
		status = oki_peer_status(status);
	uint32_t state = OKI_TAG_STATE(tag);
	if (state == OKW_REVOKED && !status)
		status = OKV_E_CANCELLED;
	if (!status && op->phase == OKI_OP_GRANT && op->binding &&
	    (op->kind == OKW_OP_RESTORE || op->reply.transfer.blocks)) {
		/* Nothing was granted, so nothing was copied. */
		status = OKV_E_PROTOCOL;
		strcpy(text, "the Manager calls it done without a grant");
	}
	if (op->binding && op->phase == OKI_OP_GRANT && !(whole && oki_stretches_take(op)) &&
	    !status) {
		status = OKV_E_PROTOCOL;
		strcpy(text, "the counts of the stretches do not add up");
	}
	op->tag = tag;
	oki_move(r, &op->tag, OKW_FREE, OKI_MOVER_ENGINE);
	free_record(op);
	if (op->final) {
		/* An abandoned lookup may have pinned blocks: release its lease. */
		if (status == 0 && !op->binding)
			oki_lease_forget(op->engine, op->reply.lookup.lease_slot);
		return;
	}
	if (op->phase == OKI_OP_DRAINED) {
		oki_op_set_error(op, status, text);
		oki_op_finish(op);
	} else if (op->phase == OKI_OP_GRANT) {
		op->phase = OKI_OP_ABANDONED;
		oki_op_set_error(op, status, text);
		/* A transfer is final only after its worker dropped it and its pages are
		 * released. */
		if (!op->binding)
			oki_op_finish(op);
	}
}

void oki_record_advance(struct okv_op *op)
{
	bool ended = false, wake = false;
	pthread_mutex_lock(&op->lock);
	if (op->record == OKI_NO_RECORD) {
		pthread_mutex_unlock(&op->lock);
		return;
	}
	struct okw_record *r = oki_record_of(op);
	uint64_t tag = oki_tag_load(r);
	bool waiting = op->phase == OKI_OP_GRANT || op->phase == OKI_OP_ABANDONED;
	switch (OKI_TAG_STATE(tag)) {
	case OKW_DONE:
	case OKW_REVOKED: ended = waiting; break;
	case OKW_REAPED: ended = op->phase == OKI_OP_DRAINED; break;
	case OKW_GRANTED:
	case OKW_ACTIVE: wake = op->binding != NULL; break;
	default: break;
	}
	if (ended) {
		wake = op->binding && op->phase == OKI_OP_GRANT;
		handle_terminal_state(op, r, tag);
	}
	pthread_mutex_unlock(&op->lock);
	if (wake)
		oki_binding_wake(op->binding);
	if (ended)
		oki_op_put(op);
}

void oki_record_start_polling(struct okv_op *op)
{
	_Atomic uint32_t *flags = &oki_record_of(op)->engine_flags;
	/* A publish is final at Reaped. If a caller sleeps for it or gets a completion, the Manager
	 * must ring, since this thread may be busy with another transfer's copy by then. */
	bool needs_ring = op->kind == OKW_OP_PUBLISH &&
			  (op->flags & OKV_OP_NOTIFY || atomic_load(&op->waiters));
	op->spinning = op->engine->options.spin_us && !needs_ring;
	if (op->spinning)
		atomic_fetch_or(flags, OKW_ENGINE_SPINNING);
	else
		atomic_fetch_and(flags, ~OKW_ENGINE_SPINNING);
}

/* G1: clear the flag, then read the tag; the Manager moves the tag, then reads the flag. */
static void enable_wakeups(struct okv_op *op)
{
	pthread_mutex_lock(&op->lock);
	if (op->record != OKI_NO_RECORD)
		atomic_fetch_and(&oki_record_of(op)->engine_flags, ~OKW_ENGINE_SPINNING);
	pthread_mutex_unlock(&op->lock);
	oki_record_advance(op);
}

void oki_record_stop_polling(struct okv_op *op)
{
	/* Test private memory, not the shared flag: a peer that sets the flag again must not cause
	 * another look. */
	if (!op->spinning)
		return;
	op->spinning = false;
	enable_wakeups(op);
}

void oki_record_enable_wakeups(struct okv_op *op)
{
	pthread_mutex_lock(&op->lock);
	/* These end only with a move of the record; a claimed restore ends with its copies. */
	bool ends_by_move = op->binding && !op->final &&
			    (op->phase == OKI_OP_GRANT || op->kind == OKW_OP_PUBLISH);
	pthread_mutex_unlock(&op->lock);
	if (ends_by_move)
		enable_wakeups(op);
}
