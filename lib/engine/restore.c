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

static int check_lease(const struct okv_binding *b, const struct okv_lease *lease,
		       struct okv_error *err)
{
	if (lease->ns->engine != b->ns->engine)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"the lease belongs to another engine");
	if (lease->ns->id != b->ns->id)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"the lease belongs to another namespace");
	return 0;
}

/* The handle that the stretch restores from; NULL: it names its lease by id. */
static const struct okv_lease *lease_of(const struct okv_restore_group *g,
					const struct okv_lease *lease)
{
	if (g->lease)
		return g->lease;
	return g->lease_id ? NULL : lease;
}

static int check_stretch(const struct okv_op *op, const struct okv_lease *lease,
			 const struct okv_restore_group *g, struct okv_error *err)
{
	const struct okv_lease *own = lease_of(g, lease);
	if (g->flags & ~(uint32_t)OKV_RESTORE_KEEP)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: unknown flags 0x%x", g->group, g->flags);
	if (g->lease && g->lease_id)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: a lease and a lease_id", g->group);
	if (!own && !g->lease_id)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"lease is NULL, as after a lookup that found nothing or peeked");
	/* The Manager checks the range of a lease that is named by id. */
	if (!own)
		return 0;
	int rc = g->lease ? check_lease(op->binding, own, err) : 0;
	return rc ? rc : check_range(own, g, err);
}

static int take_groups(struct okv_op *op, const struct okv_lease *lease,
		       const struct okv_restore_options *o, struct okv_error *err)
{
	if (o->group_count > OKV_MAX_STRETCHES || (o->group_count && !o->groups))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%u stretches; up to %u",
				o->group_count, OKV_MAX_STRETCHES);
	op->asked_stretches = o->group_count;
	/* Without stretches the lease has one of no blocks. */
	int rc = oki_stretches_make(op, o->group_count ? o->group_count : 1, err);
	for (uint32_t i = 0; i < o->group_count && !rc; i++) {
		const struct okv_restore_group *g = &o->groups[i];
		rc = oki_stretch_add(op, i, g->group, g->count, g->pages, err);
		if (!rc)
			rc = check_stretch(op, lease, g, err);
	}
	return rc ? rc : oki_stretches_keep_pages(op, err);
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

static void write_request(uint8_t *request, const struct okv_op *op, const struct okv_lease *lease,
			  const struct okv_restore_options *o)
{
	uint8_t *at = request + sizeof(struct okw_request);
	const struct okv_restore_group none = {.group = 0};
	for (uint32_t i = 0; i < op->stretch_count; i++, at += sizeof(struct okw_restore_part)) {
		const struct okv_restore_group *g = o->group_count ? &o->groups[i] : &none;
		const struct okv_lease *own = lease_of(g, lease);
		struct okw_restore_part part = {
			.group = g->group,
			.first = g->first,
			.count = g->count,
			.flags = (o->flags | g->flags) & OKV_RESTORE_KEEP ? OKW_PART_KEEP : 0,
			.lease_slot = own ? own->slot : OKW_LEASES,
		};
		const struct okv_lease_id *id = own ? &own->id : g->lease_id;
		memcpy(part.lease_id, id->bytes, sizeof(part.lease_id));
		memcpy(at, &part, sizeof(part));
	}
}

int okv_restore_start(struct okv_binding *binding, struct okv_lease *lease,
		      const struct okv_restore_options *opts, struct okv_op **ret_op,
		      struct okv_error *err)
{
	struct okv_restore_options o;
	if (!binding || !ret_op)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "binding or ret_op is NULL");
	okv_restore_options_init(&o);
	int rc = oki_options_take(&o, sizeof(o), opts, "restore", err);
	if (!rc && o.flags & ~(uint32_t)(OKV_OP_NOTIFY | OKV_RESTORE_KEEP))
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "unknown restore flags 0x%x",
			      o.flags);
	if (!rc && !lease && !o.group_count)
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			      "lease is NULL, as after a lookup that found nothing or peeked");
	if (!rc && lease)
		rc = check_lease(binding, lease, err);
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
	uint32_t bytes = 0;
	uint8_t *request;
	if (!rc)
		bytes = (uint32_t)(sizeof(struct okw_request) +
				   op->stretch_count * sizeof(struct okw_restore_part));
	if (!rc)
		rc = oki_transfer_begin(op, &o.ready, bytes, &request, err);
	if (!rc) {
		write_request(request, op, lease, &o);
		struct okw_request head = {.group_count = op->stretch_count};
		/* Set before another thread can take its completion. */
		*ret_op = op;
		oki_transfer_go(op, &head, bytes);
	} else if (op) {
		oki_op_put(op);
	}
	oki_binding_leave(binding);
	return rc;
}
