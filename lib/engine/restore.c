/* SPDX-License-Identifier: Apache-2.0 */
/* [E] okv_restore_start: blocks of a lease into pages of a binding. */
#include "engine/transfer_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"

void okv_restore_options_init(struct okv_restore_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
}

static const struct okv_hit *find_hit(const struct okv_lease *lease, uint32_t group)
{
	for (uint32_t i = 0; i < lease->result.group_count; i++)
		if (lease->result.groups[i].group == group)
			return &lease->result.groups[i];
	return NULL;
}

static int check_range(const struct okv_lease *lease, const struct okv_restore_group *g,
		       struct okv_error *err)
{
	const struct okv_hit *hit = find_hit(lease, g->group);
	if (!hit)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"the lease holds nothing of group %u", g->group);
	if (g->count &&
	    (g->first < hit->first || !oki_within(g->first - hit->first, g->count, hit->count)))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%u blocks from block %u of group %u on; the lease holds %u from "
				"block %u on",
				g->count, g->first, g->group, hit->count, hit->first);
	return 0;
}

static int take_groups(struct okv_op *op, const struct okv_lease *lease,
		       const struct okv_restore_options *o, struct okv_error *err)
{
	uint64_t pages = 0;
	if (o->group_count > OKV_MAX_GROUPS || (o->group_count && !o->groups))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%u groups; up to %u",
				o->group_count, OKV_MAX_GROUPS);
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_restore_group *g = &o->groups[i];
		int rc = g->reserved ? oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
						"group %u: reserved is not 0", g->group)
				     : 0;
		if (!rc)
			rc = oki_transfer_group(op, g->group, g->count, g->pages, &pages, err);
		if (!rc)
			rc = check_range(lease, g, err);
		if (rc)
			return rc;
	}
	return oki_transfer_keep_pages(op, pages, err);
}

static int check_event(struct okv_op *op, const struct okv_layer_event *e, struct okv_error *err)
{
	if (e->reserved)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"event of layer %u: reserved is not 0", e->layer);
	if (e->layer >= op->layer_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "event of layer %u of %u",
				e->layer, op->layer_count);
	if (!e->event)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "layer %u: event is NULL",
				e->layer);
	if (op->transfer.events[e->layer])
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "layer %u has two events",
				e->layer);
	for (uint32_t i = 0; i < op->layer_count; i++)
		if (op->transfer.events[i] && op->transfer.events[i] == e->event)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					"layers %u and %u have the same event", i, e->layer);
	return oki_transfer_check_owner(&e->owner, err);
}

static int take_events(struct okv_op *op, const struct okv_restore_options *o,
		       struct okv_error *err)
{
	struct oki_worker *w = op->binding->worker;
	if (!o->event_count)
		return 0;
	if (!o->events || o->event_count > op->layer_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%u event%s for %u layer%s",
				o->event_count, oki_plural(o->event_count), op->layer_count,
				oki_plural(op->layer_count));
	op->events = malloc(o->event_count * sizeof(*op->events));
	op->transfer.events = calloc(op->layer_count, sizeof(*op->transfer.events));
	if (!op->events || !op->transfer.events)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for events");
	memcpy(op->events, o->events, o->event_count * sizeof(*op->events));
	for (uint32_t i = 0; i < o->event_count; i++) {
		int rc = check_event(op, &op->events[i], err);
		if (rc)
			return rc;
		op->transfer.events[op->events[i].layer] = op->events[i].event;
	}
	int rc = oki_worker_ops(w)->check_events(oki_worker_device(w), op->transfer.events,
						 op->layer_count, err);
	if (!rc)
		op->event_count = o->event_count;
	return rc;
}

/* The Manager counts from the first block that the lease holds. */
static void write_request(uint8_t *request, const struct okv_lease *lease,
			  const struct okv_restore_options *o)
{
	uint8_t *at = request + sizeof(struct okw_request);
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_restore_group *asked = &o->groups[i];
		const struct okv_hit *hit = find_hit(lease, asked->group);
		struct okw_request_group g = {.group = asked->group, .count = asked->count};
		if (hit && asked->count)
			g.first = asked->first - hit->first;
		memcpy(at, &g, sizeof(g));
		at += sizeof(g);
	}
}

int okv_restore_start(struct okv_binding *binding, struct okv_lease *lease,
		      const struct okv_restore_options *opts, struct okv_op **ret_op,
		      struct okv_error *err)
{
	struct okv_restore_options o;
	if (!binding || !ret_op)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "binding or ret_op is NULL");
	if (!lease)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"lease is NULL, as after a lookup that found nothing or peeked");
	okv_restore_options_init(&o);
	int rc = oki_options_take(&o, sizeof(o), opts, "restore", err);
	if (!rc && o.flags & ~(uint32_t)(OKV_OP_NOTIFY | OKV_RESTORE_KEEP))
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "unknown restore flags 0x%x",
			      o.flags);
	if (!rc && lease->ns->engine != binding->ns->engine)
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			      "the lease belongs to another engine");
	if (!rc && lease->ns->id != binding->ns->id)
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			      "the lease belongs to another namespace");
	if (!rc)
		rc = oki_engine_usable(binding->ns->engine, err);
	if (!rc)
		rc = oki_binding_enter(binding, err);
	if (rc)
		return rc;
	rc = oki_transfer_check_ready(binding, &o.ready, o.event_count > 0, err);
	if (!rc)
		rc = oki_transfer_check_owner(&o.owner, err);
	struct okv_op *op = NULL;
	if (!rc) {
		op = oki_transfer_op(binding, OKW_OP_RESTORE, o.flags, o.user_data, &o.owner, err);
		rc = op ? 0 : OKV_E_NOMEM;
	}
	if (!rc)
		rc = take_groups(op, lease, &o, err);
	if (!rc)
		rc = take_events(op, &o, err);
	uint32_t bytes = (uint32_t)(sizeof(struct okw_request) +
				    o.group_count * sizeof(struct okw_request_group));
	uint8_t *request;
	if (!rc)
		rc = oki_transfer_begin(op, &o.ready, bytes, &request, err);
	if (!rc) {
		write_request(request, lease, &o);
		struct okw_request head = {
			.flags = o.flags & OKV_RESTORE_KEEP ? OKW_REQUEST_KEEP : 0,
			.group_count = o.group_count,
			.lease_slot = lease->slot,
		};
		memcpy(head.lease_id, lease->id.bytes, sizeof(head.lease_id));
		/* Set before another thread can take its completion. */
		*ret_op = op;
		oki_transfer_go(op, &head, bytes);
	} else if (op) {
		oki_op_put(op);
	}
	oki_binding_leave(binding);
	return rc;
}
