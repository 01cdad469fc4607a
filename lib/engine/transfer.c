/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Start a publish or a restore: check and retain everything before the request is submitted. */
#include "engine/transfer_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

int oki_binding_enter(struct okv_binding *b, struct okv_error *err)
{
	int rc = 0;
	pthread_mutex_lock(&b->lock);
	if (b->admission != OKI_OPEN)
		rc = oki_fail(err, OKV_E_CLOSED, OKV_STAGE_READY, "the binding is %s",
			      b->admission == OKI_QUIESCED ? "quiesced" : "closing");
	else
		b->running++;
	pthread_mutex_unlock(&b->lock);
	return rc;
}

void oki_binding_leave(struct okv_binding *b)
{
	pthread_mutex_lock(&b->lock);
	oki_binding_op_done(b);
	pthread_mutex_unlock(&b->lock);
}

static void retain(const struct okv_owner *owner)
{
	if (owner->retain)
		owner->retain(owner->object);
}

/* From here on oki_op_release_resources() and oki_binding_leave() undo it. */
static int admit(struct okv_op *op, struct okv_error *err)
{
	struct okv_binding *b = op->binding;
	pthread_mutex_lock(&b->lock);
	int rc = oki_in_use_enter(op, err);
	if (!rc)
		b->running++;
	pthread_mutex_unlock(&b->lock);
	if (rc)
		return rc;
	atomic_fetch_add(&op->engine->counters.ops_running, 1);
	retain(&op->owner);
	for (uint32_t i = 0; i < op->event_count; i++)
		retain(&op->events[i].owner);
	return 0;
}

static int make_ready(struct okv_op *op, const struct okv_ready *ready, struct okv_error *err)
{
	struct oki_worker *w = op->binding->worker;
	int fenced = oki_worker_stream_get(w, &op->transfer.stream, err);
	if (fenced < 0)
		return fenced;
	op->has_stream = true;
	int rc = oki_transfer_init(w, &op->transfer, err);
	if (rc)
		return rc;
	rc = oki_worker_ops(w)->fence(op->transfer.stream, ready->streams, ready->stream_count,
				      err);
	if (rc < 0)
		return rc;
	op->transfer.fenced = fenced || rc > 0;
	oki_stages_mark(&op->stages, OKI_STAGE_READY);
	return 0;
}

int oki_transfer_begin(struct okv_op *op, const struct okv_ready *ready, uint32_t request_bytes,
		       uint8_t **ret_request, struct okv_error *err)
{
	int rc = admit(op, err);
	if (rc)
		return rc;
	rc = make_ready(op, ready, err);
	if (!rc)
		rc = oki_record_reserve(op, request_bytes, oki_stretches_reply_bytes(op),
					ret_request, err);
	if (rc) {
		oki_transfer_fini(op->binding->worker, &op->transfer);
		oki_op_release_resources(op);
		oki_binding_leave(op->binding);
	}
	return rc;
}

void oki_transfer_go(struct okv_op *op, struct okw_request *head, uint32_t request_bytes)
{
	struct oki_counters *c = &op->engine->counters;
	atomic_fetch_add(op->kind == OKW_OP_RESTORE ? &c->restores_started : &c->publishes_started,
			 1);
	head->binding_id = op->binding->id;
	head->namespace_id = op->binding->ns->id;
	oki_op_get(op); /* ours: another thread may take its completion and release it */
	/* Spinning: the worker polls from the moment it has the transfer until it rests. */
	oki_record_submit(op, head, request_bytes, op->engine->options.spin_us > 0);
	oki_op_get(op); /* the worker's */
	oki_worker_submit(op->binding->worker, &op->transfer);
	/* If the session was lost before this operation was in the table, nothing else ends it. */
	if (atomic_load(&op->engine->state))
		oki_op_abandon(op, OKV_E_SESSION, "the session is lost");
	oki_op_put(op);
}

int oki_transfer_check_ready(const struct okv_binding *b, const struct okv_ready *ready,
			     bool has_events, struct okv_error *err)
{
	const struct oki_device_ops *ops = oki_worker_ops(b->worker);
	if (ready->reserved)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ready: reserved is not 0");
	if (ready->stream_count && !ready->streams)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ready: streams is NULL");
	if (!ops->has_gpu_streams && (ready->stream_count || has_events))
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_ARGUMENTS,
				"the %s device has no streams and events", ops->name);
	return 0;
}

int oki_transfer_check_owner(const struct okv_owner *owner, struct okv_error *err)
{
	if (!owner->retain != !owner->release)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"an owner has both retain and release, or neither");
	return 0;
}

struct okv_op *oki_transfer_op(struct okv_binding *b, uint32_t kind, uint32_t flags,
			       uint64_t user_data, const struct okv_owner *owner,
			       struct okv_error *err)
{
	uint32_t layers = b->ns->schema.layer_count;
	struct okv_op *op = oki_op_create(b->ns->engine, kind, err);
	if (!op)
		return NULL;
	oki_binding_get(b);
	op->binding = b;
	op->flags = flags;
	op->user_data = user_data;
	op->owner = *owner;
	op->layer_count = layers;
	op->enqueued = calloc(2 * (size_t)layers, sizeof(*op->enqueued));
	if (!op->enqueued) {
		oki_op_put(op);
		oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REQUEST, "no memory for an operation");
		return NULL;
	}
	op->done = op->enqueued + layers;
	op->transfer.source = &oki_grant_source;
	op->transfer.arg = op;
	op->transfer.group_count = b->geometry.group_count;
	for (uint32_t g = 0; g < op->transfer.group_count; g++)
		op->transfer.groups[g].group = g;
	op->transfer.direction = kind == OKW_OP_RESTORE ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	oki_stages_start(&op->stages, op->engine->options.flags & OKV_ENGINE_STAGE_TIMES);
	return op;
}
