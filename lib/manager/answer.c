/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Executes requests: lookup, lease open, restore, publish. */
#include "manager/manager_private.h"

#include "base/clock.h"
#include "base/error.h"
#include "grant/state.h"

/* One request while it is answered. */
struct request_ctx {
	struct oki_mgr_session *s;
	uint32_t i;
	uint64_t tag;
	uint32_t reply_offset;
	const struct oki_mgr_request *request;
};

static void refuse(const struct request_ctx *a, const struct okv_error *why)
{
	oki_mgr_done(a->s, a->i, a->tag, a->reply_offset, NULL, 0, 0, why->status, why->text);
}

static void answer_lookup_reply(const struct request_ctx *a, const struct okw_lookup_reply *reply)
{
	oki_mgr_done(a->s, a->i, a->tag, a->reply_offset, reply, sizeof(*reply), 0, 0, "");
	if (reply->lease_slot != OKW_LEASES)
		oki_mgr_wake_retire(a->s->manager);
}

/* Write what became of each stretch behind the reply. The engine reads it after the next move of
 * the record, and nothing of it changes afterwards. */
static void write_stretches(const struct request_ctx *a, const struct okw_stretch_reply *replies)
{
	__builtin_memcpy(a->s->channel.requests + a->reply_offset +
				 sizeof(struct okw_transfer_reply),
			 replies, a->request->head.group_count * sizeof(replies[0]));
}

static void answer_transfer_reply(const struct request_ctx *a,
				  const struct okw_transfer_reply *reply, int status,
				  const char *text)
{
	oki_mgr_done(a->s, a->i, a->tag, a->reply_offset, reply, sizeof(*reply),
		     oki_mgr_whole_reply_bytes(a->request) - (uint32_t)sizeof(*reply), status,
		     text);
}

static void lookup(const struct request_ctx *a)
{
	const struct oki_mgr_request *r = a->request;
	struct oki_index_keys keys[OKW_MAX_GROUPS];
	struct okw_lookup_reply reply;
	struct okv_error err;

	for (uint32_t g = 0; g < r->head.group_count; g++)
		keys[g] = (struct oki_index_keys){
			.group = r->groups[g].group,
			.count = r->groups[g].count,
			.key_bytes = r->groups[g].key_bytes,
			.keys = r->keys[g],
		};
	const struct oki_index_lookup ask = {
		.namespace_id = r->head.namespace_id,
		.session = a->s->slot,
		.peek = r->head.flags & OKW_REQUEST_PEEK,
		.consumers = r->head.consumers,
		.group_count = r->head.group_count,
		.groups = keys,
		.now_ns = oki_now_ns(),
	};
	if (oki_index_lookup(a->s->manager->index, &ask, &reply, &err))
		refuse(a, &err);
	else
		answer_lookup_reply(a, &reply);
}

static void lease_open(const struct request_ctx *a)
{
	const struct okw_request *head = &a->request->head;
	struct okw_lookup_reply reply;
	struct okv_error err;

	if (oki_index_lease_open(a->s->manager->index, head->namespace_id, a->s->slot,
				 head->lease_id, oki_now_ns(), &reply, &err))
		refuse(a, &err);
	else
		answer_lookup_reply(a, &reply);
}

/* Fill an operation from its request and its hold. */
static void init_op(const struct request_ctx *a, struct oki_hold *hold, struct oki_mgr_op *ret_op)
{
	const struct oki_mgr_request *r = a->request;
	const struct oki_schema *schema =
		oki_index_schema(a->s->manager->index, r->head.namespace_id);
	struct oki_mgr_op op = {
		.phase = OKI_MGR_WAITING,
		.kind = r->head.kind,
		.tag = a->tag,
		.hold = hold,
		.reply_offset = a->reply_offset,
		.reply_bytes = oki_mgr_whole_reply_bytes(r),
		.group_count = schema->group_count,
	};

	op.blocks = oki_hold_blocks(hold, &op.block_count);
	oki_mgr_plan_size(a->s->manager, op.block_count, &op.reply.part_total, &op.plan_bytes);
	op.reply.blocks = op.block_count;
	/* Registration checked that these sizes fit 32 bits. */
	for (uint32_t g = 0; g < op.group_count; g++)
		op.payload[g] = (uint32_t)schema->groups[g].payload_bytes;
	for (uint64_t b = 0; b < op.block_count; b++)
		op.ends[op.blocks[b].group] = (uint32_t)b + 1;
	*ret_op = op;
}

static bool over_session_budget(const struct oki_mgr_session *s, const struct oki_mgr_op *op)
{
	return op->plan_bytes > s->manager->opts.session_plan_bytes - s->plan_bytes;
}

/* Called before a share is spent: a plan of this many blocks must be within the limit. */
static int check_operation_budget(const struct request_ctx *a, struct okv_error *err)
{
	const struct okv_manager *m = a->s->manager;
	uint64_t bytes;
	uint32_t parts;

	oki_mgr_plan_size(m, a->request->blocks, &parts, &bytes);
	if (bytes <= m->opts.operation_plan_bytes)
		return 0;
	return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_PREPARE,
			"a plan of %llu bytes; one operation may have %llu",
			(unsigned long long)bytes,
			(unsigned long long)m->opts.operation_plan_bytes);
}

static void restore_held(const struct request_ctx *a, struct oki_hold *hold, uint32_t spent,
			 struct oki_mgr_device *device)
{
	struct oki_mgr_session *s = a->s;
	struct oki_mgr_op op;

	init_op(a, hold, &op);
	op.permit = device;
	op.reply.lease_spent = spent;
	if (!over_session_budget(s, &op)) {
		oki_mgr_op_install(s, a->i, &op);
		oki_mgr_grant(s, a->i);
		return;
	}
	oki_mgr_permit_give(&s->manager->permits, device);
	oki_mgr_release_ungranted(s, a->i, a->tag, hold);
	answer_transfer_reply(a, &op.reply, spent ? OKV_E_SPENT : OKV_E_AGAIN,
			      "the plans in flight use up this session's budget");
}

/*
 * Operations of this session that drained need no permit, but the retire loop may not have reaped
 * them yet: reap them here. False: no permit is free, or the session is lost because one of its
 * records broke the protocol.
 */
static bool take_permit(const struct request_ctx *a, struct oki_mgr_device *device)
{
	struct oki_mgr_session *s = a->s;
	struct oki_mgr_permits *permits = &s->manager->permits;

	if (oki_mgr_permit_take(permits, device))
		return true;
	for (uint32_t i = 0; i < s->served && !atomic_load(&s->lost); i++)
		if (s->ops[i].phase == OKI_MGR_GRANTED && s->ops[i].permit)
			oki_mgr_op_advance(s, i, oki_now_ns());
	return !atomic_load(&s->lost) && oki_mgr_permit_take(permits, device);
}

static void restore(const struct request_ctx *a)
{
	const struct oki_mgr_request *r = a->request;
	struct okv_manager *m = a->s->manager;
	const struct oki_mgr_binding *binding = oki_mgr_session_binding(a->s, r->head.binding_id);
	struct oki_index_range ranges[OKW_MAX_STRETCHES];
	struct okw_stretch_reply replies[OKW_MAX_STRETCHES];
	struct oki_hold *hold;
	struct okv_error err;
	uint32_t spent;

	for (uint32_t i = 0; i < r->head.group_count; i++) {
		ranges[i] = (struct oki_index_range){
			.group = r->parts[i].group,
			.first = r->parts[i].first,
			.count = r->parts[i].count,
			.keep = r->parts[i].flags & OKW_PART_KEEP,
			.lease_slot = r->parts[i].lease_slot,
			.lease_id = r->parts[i].lease_id,
		};
		replies[i] = (struct okw_stretch_reply){0};
	}
	const struct oki_index_restore ask = {
		.namespace_id = r->head.namespace_id,
		.session = a->s->slot,
		.rank_slot = binding->rank_slot,
		.range_count = r->head.group_count,
		.ranges = ranges,
		.now_ns = oki_now_ns(),
	};

	if (check_operation_budget(a, &err)) {
		refuse(a, &err);
		return;
	}
	if (!take_permit(a, binding->device)) {
		oki_fail(&err, OKV_E_AGAIN, OKV_STAGE_PREPARE,
			 "every permit for restores of this device is in use, %u in all",
			 m->permits.limit);
		refuse(a, &err);
		return;
	}
	int rc = oki_index_restore_begin(m->index, &ask, &hold, replies, &spent, &err);
	write_stretches(a, replies);
	if (rc) {
		const struct okw_transfer_reply none = {0};
		oki_mgr_permit_give(&m->permits, binding->device);
		answer_transfer_reply(a, &none, err.status, err.text);
		return;
	}
	restore_held(a, hold, spent, binding->device);
}

static void publish_held(const struct request_ctx *a, struct oki_hold *hold,
			 const struct okw_stretch_reply *replies)
{
	struct oki_mgr_session *s = a->s;
	struct oki_mgr_op op;

	init_op(a, hold, &op);
	for (uint32_t i = 0; i < a->request->head.group_count; i++) {
		op.reply.present += replies[i].present;
		op.reply.in_progress += replies[i].in_progress;
		op.reply.not_stored += replies[i].not_stored;
	}
	write_stretches(a, replies);
	if (!op.block_count) {
		oki_mgr_release_ungranted(s, a->i, a->tag, hold);
		answer_transfer_reply(a, &op.reply, 0, "");
		return;
	}
	if (over_session_budget(s, &op)) {
		oki_mgr_release_ungranted(s, a->i, a->tag, hold);
		answer_transfer_reply(a, &op.reply, OKV_E_AGAIN,
				      "the plans in flight use up this session's budget");
		return;
	}
	oki_mgr_op_install(s, a->i, &op);
	oki_mgr_grant(s, a->i);
}

static void publish(const struct request_ctx *a)
{
	const struct oki_mgr_request *r = a->request;
	struct oki_index_publish_keys keys[OKW_MAX_STRETCHES];
	struct okw_stretch_reply replies[OKW_MAX_STRETCHES];
	struct oki_hold *hold;
	struct okv_error err;

	for (uint32_t g = 0; g < r->head.group_count; g++)
		keys[g] = (struct oki_index_publish_keys){
			.keys = {.group = r->groups[g].group,
				 .count = r->groups[g].count,
				 .key_bytes = r->groups[g].key_bytes,
				 .keys = r->keys[g]},
			.first_position = r->groups[g].first,
			.parent = r->parents[g],
		};
	const struct oki_mgr_binding *binding = oki_mgr_session_binding(a->s, r->head.binding_id);
	const struct oki_index_publish ask = {
		.namespace_id = r->head.namespace_id,
		.session = a->s->slot,
		.rank_slot = binding->rank_slot,
		.node = binding->node,
		.group_count = r->head.group_count,
		.groups = keys,
		.now_ns = oki_now_ns(),
	};
	if (a->s->restore_only) {
		oki_fail(&err, OKV_E_PERM, OKV_STAGE_PREPARE, "this session only restores");
		refuse(a, &err);
		return;
	}
	if (check_operation_budget(a, &err) ||
	    oki_index_publish_begin(a->s->manager->index, &ask, &hold, replies, &err)) {
		refuse(a, &err);
		return;
	}
	publish_held(a, hold, replies);
}

void oki_mgr_answer(struct oki_mgr_session *s, uint32_t i, uint64_t tag, uint32_t reply_offset,
		    const struct oki_mgr_request *request)
{
	const struct request_ctx a = {
		.s = s, .i = i, .tag = tag, .reply_offset = reply_offset, .request = request};
	struct okv_error err;

	if (atomic_load(&oki_mgr_record(s, i)->engine_flags) & OKW_ENGINE_CANCEL) {
		oki_fail(&err, OKV_E_CANCELLED, OKV_STAGE_PREPARE, "cancelled before it began");
		refuse(&a, &err);
		return;
	}
	if (atomic_load(&s->manager->draining)) {
		oki_fail(&err, OKV_E_CLOSED, OKV_STAGE_PREPARE, "the Manager is draining");
		refuse(&a, &err);
		return;
	}
	switch (request->head.kind) {
	case OKW_OP_LOOKUP: lookup(&a); return;
	case OKW_OP_LEASE_OPEN: lease_open(&a); return;
	case OKW_OP_RESTORE: restore(&a); return;
	default: publish(&a); return;
	}
}
