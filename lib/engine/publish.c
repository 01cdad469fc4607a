/* SPDX-License-Identifier: Apache-2.0 */
/* [E] okv_publish_start: pages of a binding into blocks. */
#include "engine/transfer_private.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"

void okv_publish_options_init(struct okv_publish_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
}

static int check_group(const struct okv_binding *b, const struct okv_publish_group *g,
		       struct okv_error *err)
{
	const struct okv_keys *k = &g->keys;
	int rc = oki_ns_check_keys(b->ns, k, err);
	if (rc)
		return rc;
	/* A lookup would return a partly filled block as a full one. */
	uint64_t tokens = (uint64_t)k->count * b->ns->schema.groups[k->group].block_tokens;
	if (g->tokens != tokens)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: %u valid token%s cannot fill %u block%s of %u", k->group,
				g->tokens, oki_plural(g->tokens), k->count, oki_plural(k->count),
				b->ns->schema.groups[k->group].block_tokens);
	if (g->first_position > UINT32_MAX - k->count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: position %u and %u block%s overflow", k->group,
				g->first_position, k->count, oki_plural(k->count));
	if (!g->parent != !g->first_position)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: position %u %s parent key", k->group, g->first_position,
				g->parent ? "has no" : "needs a");
	return 0;
}

static int take_groups(struct okv_op *op, const struct okv_publish_options *o, uint32_t *ret_bytes,
		       struct okv_error *err)
{
	uint64_t bytes = sizeof(struct okw_request);
	if (!o->group_count || o->group_count > OKV_MAX_STRETCHES || !o->groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%u stretches; 1 to %u",
				o->group_count, OKV_MAX_STRETCHES);
	op->asked_stretches = o->group_count;
	int rc = oki_stretches_make(op, o->group_count, err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_publish_group *g = &o->groups[i];
		rc = check_group(op->binding, g, err);
		if (!rc)
			rc = oki_stretch_add(op, i, g->keys.group, g->keys.count, g->pages, err);
		if (rc)
			return rc;
		bytes += sizeof(struct okw_request_group) +
			 (uint64_t)(g->keys.count + (g->parent ? 1 : 0)) * g->keys.key_bytes;
	}
	*ret_bytes = (uint32_t)bytes;
	return oki_stretches_keep_pages(op, err);
}

static void write_request(uint8_t *request, const struct okv_publish_options *o)
{
	uint8_t *group_at = request + sizeof(struct okw_request);
	uint8_t *key_at = group_at + o->group_count * sizeof(struct okw_request_group);
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_publish_group *g = &o->groups[i];
		struct okw_request_group wire = {
			.group = g->keys.group,
			.first = g->first_position,
			.count = g->keys.count,
			.key_bytes = g->keys.key_bytes,
			.parent_bytes = g->parent ? g->keys.key_bytes : 0,
		};
		memcpy(group_at, &wire, sizeof(wire));
		group_at += sizeof(wire);
		if (g->parent)
			memcpy(key_at, g->parent, g->keys.key_bytes);
		key_at += wire.parent_bytes;
		memcpy(key_at, g->keys.keys, (size_t)g->keys.count * g->keys.key_bytes);
		key_at += (size_t)g->keys.count * g->keys.key_bytes;
	}
}

static int take_event(struct okv_op *op, struct CUevent_st *event, struct okv_error *err)
{
	struct oki_worker *w = op->binding->worker;
	op->transfer.final_event = event;
	return event ? oki_worker_ops(w)->check_events(oki_worker_device(w), &event, 1, err) : 0;
}

int okv_publish_start(struct okv_binding *binding, const struct okv_publish_options *opts,
		      struct okv_op **ret_op, struct okv_error *err)
{
	struct okv_publish_options o;
	if (!binding || !ret_op)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "binding or ret_op is NULL");
	okv_publish_options_init(&o);
	int rc = oki_options_take(&o, sizeof(o), opts, "publish", err);
	if (!rc && o.reserved)
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			      "publish options: reserved is not 0");
	if (!rc && o.flags & ~(uint32_t)OKV_OP_NOTIFY)
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "unknown publish flags 0x%x",
			      o.flags);
	if (!rc && binding->ns->engine->options.flags & OKV_ENGINE_RESTORE_ONLY)
		rc = oki_fail(err, OKV_E_PERM, OKV_STAGE_ARGUMENTS,
			      "the engine was opened to restore only");
	if (!rc)
		rc = oki_engine_usable(binding->ns->engine, err);
	if (!rc)
		rc = oki_binding_enter(binding, err);
	if (rc)
		return rc;
	rc = oki_transfer_check_ready(binding, &o.ready, o.read_done_event != NULL, err);
	if (!rc)
		rc = oki_transfer_check_owner(&o.owner, err);
	struct okv_op *op = NULL;
	if (!rc) {
		op = oki_transfer_op(binding, OKW_OP_PUBLISH, o.flags, o.user_data, &o.owner, err);
		rc = op ? 0 : OKV_E_NOMEM;
	}
	uint32_t bytes = 0;
	uint8_t *request;
	if (!rc)
		rc = take_groups(op, &o, &bytes, err);
	if (!rc)
		rc = take_event(op, o.read_done_event, err);
	if (!rc)
		rc = oki_transfer_begin(op, &o.ready, bytes, &request, err);
	if (!rc) {
		write_request(request, &o);
		struct okw_request head = {.group_count = o.group_count};
		/* Set before another thread can take its completion. */
		*ret_op = op;
		oki_transfer_go(op, &head, bytes);
	} else if (op) {
		oki_op_put(op);
	}
	oki_binding_leave(binding);
	return rc;
}
