/* SPDX-License-Identifier: Apache-2.0 */
/* [E] An operation of the engine: its flags, its result, and the release of its resources. */
#include "engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cond.h"
#include "base/error.h"

struct okv_op *oki_op_create(struct okv_engine *engine, uint32_t kind, struct okv_error *err)
{
	struct okv_op *op = calloc(1, sizeof(*op));
	if (!op) {
		oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REQUEST, "no memory for an operation");
		return NULL;
	}
	atomic_init(&op->refs, 1);
	op->engine = engine;
	op->kind = kind;
	op->record = OKI_NO_RECORD;
	pthread_mutex_init(&op->lock, NULL);
	oki_cond_init(&op->cond);
	oki_engine_get(engine);
	return op;
}

static void count_end(struct okv_op *op, int status)
{
	struct oki_counters *c = &op->engine->counters;
	if (op->kind == OKW_OP_RESTORE) {
		atomic_fetch_add(status ? &c->restores_failed : &c->restores_ok, 1);
		if (!status)
			atomic_fetch_add(&c->restored_bytes, op->result.bytes);
	} else if (op->kind == OKW_OP_PUBLISH) {
		atomic_fetch_add(status ? &c->publishes_failed : &c->publishes_ok, 1);
		if (!status)
			atomic_fetch_add(&c->published_bytes, op->result.bytes);
	}
}

static void fill_result(struct okv_op *op)
{
	int status = op->end_status;
	struct okv_op_result *r = &op->result;
	r->status = status;
	if (op->kind == OKW_OP_RESTORE || op->kind == OKW_OP_PUBLISH) {
		r->lease_spent = op->reply.transfer.lease_spent;
		r->present = op->reply.transfer.present;
		r->in_progress = op->reply.transfer.in_progress;
		r->not_stored = op->reply.transfer.not_stored;
		if (!status)
			r->blocks = op->reply.transfer.blocks;
		else
			r->bytes = 0;
	}
	if (op->stages.on) {
		const uint64_t *ns = op->stages.ns;
		r->times = (struct okv_stage_times){
			ns[OKI_STAGE_READY],   ns[OKI_STAGE_DISPATCHED], ns[OKI_STAGE_DEQUEUED],
			ns[OKI_STAGE_CLAIMED], ns[OKI_STAGE_ENQUEUED],	 ns[OKI_STAGE_DRAINED]};
	}
	memcpy(r->text, op->end_text, sizeof(r->text));
}

void oki_op_set_error(struct okv_op *op, int status, const char *text)
{
	if (!status || op->failing)
		return;
	op->failing = op->end_status = status;
	snprintf(op->end_text, sizeof(op->end_text), "%s",
		 text && *text ? text : okv_status_text(status));
	pthread_cond_broadcast(&op->cond);
}

static void set_flags(struct okv_op *op, _Atomic bool *flags, uint32_t layer)
{
	uint32_t end = layer + 1;
	if (layer == op->layer_count)
		layer = 0, end = op->layer_count;
	for (; layer < end; layer++)
		atomic_store(&flags[layer], true);
}

/* G8: call after setting the flag; a waiter raises waiters, then reads the flag. */
static void wake_waiters(struct okv_op *op)
{
	if (!atomic_load(&op->waiters))
		return;
	pthread_mutex_lock(&op->lock);
	pthread_cond_broadcast(&op->cond);
	pthread_mutex_unlock(&op->lock);
}

void oki_op_flag(struct okv_op *op, _Atomic bool *flags, uint32_t layer)
{
	set_flags(op, flags, layer);
	wake_waiters(op);
}

void oki_op_soon(struct okv_op *op)
{
	atomic_store(&op->soon, true);
	wake_waiters(op);
}

void oki_op_finish(struct okv_op *op)
{
	if (op->final)
		return;
	fill_result(op);
	/* Success means that every layer is ready, even one that was not reported. */
	if (!op->end_status && op->done) {
		set_flags(op, op->enqueued, op->layer_count);
		set_flags(op, op->done, op->layer_count);
	}
	count_end(op, op->end_status);
	if (op->flags & OKV_OP_NOTIFY)
		oki_notify_push(op);
	/* Last (G8): a reader that sees it reads the result without the lock. */
	atomic_store(&op->final, true);
	pthread_cond_broadcast(&op->cond);
}

static void release_owner(const struct okv_owner *owner)
{
	if (owner->release)
		owner->release(owner->object);
}

void oki_op_release_resources(struct okv_op *op)
{
	struct okv_binding *b = op->binding;
	if (op->has_stream) {
		/* If not claimed: nothing was copied, but fences on the caller's streams may still
		 * be pending. */
		oki_worker_stream_put(b->worker, op->transfer.stream, op->phase == OKI_OP_ACTIVE);
		op->has_stream = false;
	}
	/* In-use entries first: once an owner is released, its pages may be used again. */
	pthread_mutex_lock(&b->lock);
	oki_in_use_leave(op);
	pthread_mutex_unlock(&b->lock);
	for (uint32_t i = 0; i < op->event_count; i++)
		release_owner(&op->events[i].owner);
	release_owner(&op->owner);
	op->owner = (struct okv_owner){0};
	atomic_fetch_sub(&op->engine->counters.ops_running, 1);
}
