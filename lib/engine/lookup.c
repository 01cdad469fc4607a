/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Lookups and leases. */
#include "engine/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/options.h"

static_assert(OKV_MAX_LEASES == OKW_LEASES, "lease handles and places");

void okv_lookup_options_init(struct okv_lookup_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->consumers = 1;
	opts->timeout_ms = 5000;
}

static int check_keys(const struct okv_namespace *ns, const struct okv_lookup_options *o,
		      uint32_t *ret_bytes, struct okv_error *err)
{
	uint64_t bytes = sizeof(struct okw_request);
	if (!o->group_count || o->group_count > OKV_MAX_GROUPS || !o->groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%u groups; 1 to %u are possible", o->group_count, OKV_MAX_GROUPS);
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_keys *k = &o->groups[i];
		int rc = oki_ns_check_keys(ns, k, err);
		if (rc)
			return rc;
		for (uint32_t j = 0; j < i; j++)
			if (o->groups[j].group == k->group)
				return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
						"group %u is named twice", k->group);
		bytes += sizeof(struct okw_request_group) + (uint64_t)k->count * k->key_bytes;
	}
	*ret_bytes = (uint32_t)bytes;
	return 0;
}

static void write_keys(uint8_t *request, const struct okv_lookup_options *o)
{
	uint8_t *group_at = request + sizeof(struct okw_request);
	uint8_t *key_at = group_at + o->group_count * sizeof(struct okw_request_group);
	for (uint32_t i = 0; i < o->group_count; i++) {
		const struct okv_keys *k = &o->groups[i];
		struct okw_request_group g = {
			.group = k->group, .count = k->count, .key_bytes = k->key_bytes};
		memcpy(group_at, &g, sizeof(g));
		group_at += sizeof(g);
		memcpy(key_at, k->keys, (size_t)k->count * k->key_bytes);
		key_at += (size_t)k->count * k->key_bytes;
	}
}

/* Ask and wait. On 0 op->reply.lookup is the answer. */
static int ask(struct okv_op *op, struct okw_request *head, uint32_t bytes, int timeout_ms,
	       struct okv_error *err)
{
	struct okw_record *record =
		oki_record_submit(op, head, bytes, op->engine->options.spin_us > 0);
	/* If the session was lost before this operation was in the table, nothing else ends it. */
	if (atomic_load(&op->engine->state))
		oki_op_abandon(op, OKV_E_SESSION, "the session is lost");
	oki_record_detach_if_closed(op);
	int rc = oki_record_wait(op, record, timeout_ms);
	if (rc == OKV_E_TIMEOUT) {
		/* If the reply still comes, its lease is released. */
		oki_op_abandon(op, OKV_E_TIMEOUT, "the Manager did not answer in time");
		rc = okv_op_wait(op, -1, NULL);
	}
	if (rc)
		return oki_fail(err, rc, OKV_STAGE_PREPARE, "%s", op->end_text);
	return 0;
}

/* The blocks in the reply must fit the schema and, for a lookup (o not NULL), its keys. */
static int check_reply(const struct okv_namespace *ns, const struct okv_lookup_options *o,
		       const struct okw_lookup_reply *reply, struct okv_error *err)
{
	uint32_t n = reply->group_count;
	bool valid = o ? n == o->group_count : n <= ns->schema.group_count;
	for (uint32_t i = 0; valid && i < n; i++) {
		uint32_t group = reply->groups[i].group, most = OKV_MAX_BLOCKS;
		if (o)
			most = o->groups[i].count;
		valid = o ? group == o->groups[i].group : group < ns->schema.group_count;
		valid = valid && oki_within(reply->groups[i].first, reply->groups[i].count, most);
	}
	return valid ? 0
		     : oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_PREPARE,
				"the answer names blocks that were not asked for");
}

static void take_result(const struct okw_lookup_reply *reply, struct okv_lookup_result *ret_result)
{
	struct okv_lookup_result r = {
		.tokens = reply->tokens,
		.group_count = reply->group_count,
		.shortened = reply->shortened,
	};
	for (uint32_t i = 0; i < r.group_count; i++)
		r.groups[i] = (struct okv_hit){.group = reply->groups[i].group,
					       .first = reply->groups[i].first,
					       .count = reply->groups[i].count};
	*ret_result = r;
}

static int make_lease(struct okv_namespace *ns, const struct okw_lookup_reply *reply,
		      struct okv_lease **ret_lease, struct okv_error *err)
{
	struct okv_lease *lease = calloc(1, sizeof(*lease));
	if (!lease)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a lease");
	oki_ns_get(ns);
	atomic_fetch_add_explicit(&ns->engine->counters.leases, 1, memory_order_relaxed);
	lease->ns = ns;
	lease->slot = reply->lease_slot;
	memcpy(lease->id.bytes, reply->lease_id, sizeof(lease->id.bytes));
	take_result(reply, &lease->result);
	*ret_lease = lease;
	return 0;
}

int okv_lookup(struct okv_namespace *ns, const struct okv_lookup_options *opts,
	       struct okv_lookup_result *ret_result, struct okv_lease **ret_lease,
	       struct okv_error *err)
{
	struct okv_lookup_options o;
	if (!ns || !ret_result)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ns or ret_result is NULL");
	okv_lookup_options_init(&o);
	int rc = oki_options_take(&o, sizeof(o), opts, "lookup", err);
	uint32_t bytes = 0;
	if (!rc)
		rc = check_keys(ns, &o, &bytes, err);
	if (!rc && (o.flags & ~(uint32_t)OKV_LOOKUP_PEEK || o.reserved))
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%s 0x%x",
			      o.reserved ? "reserved is" : "unknown lookup flags",
			      o.reserved ? o.reserved : o.flags);
	bool peek = o.flags & OKV_LOOKUP_PEEK;
	if (!rc && !peek && (!ret_lease || !o.consumers))
		rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			      "a lookup that pins needs ret_lease and a consumer");
	if (!rc)
		rc = oki_engine_usable(ns->engine, err);
	if (rc)
		return rc;
	struct okv_op *op = oki_op_create(ns->engine, OKW_OP_LOOKUP, err);
	if (!op)
		return OKV_E_NOMEM;
	uint8_t *request;
	rc = oki_record_reserve(op, bytes, sizeof(struct okw_lookup_reply), &request, err);
	if (rc)
		goto put_op;
	write_keys(request, &o);
	struct okw_request head = {
		.namespace_id = ns->id,
		.flags = peek ? OKW_REQUEST_PEEK : 0,
		.group_count = o.group_count,
		.consumers = o.consumers,
	};
	rc = ask(op, &head, bytes, o.timeout_ms, err);
	if (rc)
		goto put_op;
	atomic_fetch_add_explicit(&ns->engine->counters.lookups, 1, memory_order_relaxed);
	struct okv_lease *lease = NULL;
	const struct okw_lookup_reply *reply = &op->reply.lookup;
	rc = check_reply(ns, &o, reply, err);
	if (rc)
		goto put_op;
	if (reply->lease_slot < OKW_LEASES && !peek) {
		rc = make_lease(ns, reply, &lease, err);
		if (rc) {
			oki_lease_forget(ns->engine, reply->lease_slot);
			goto put_op;
		}
	}
	take_result(reply, ret_result);
	if (ret_lease)
		*ret_lease = lease;
put_op:
	oki_op_put(op);
	return rc;
}

int okv_lease_open(struct okv_namespace *ns, const struct okv_lease_id *id,
		   struct okv_lease **ret_lease, struct okv_error *err)
{
	if (!ns || !id || !ret_lease)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"ns, id or ret_lease is NULL");
	int rc = oki_engine_usable(ns->engine, err);
	if (rc)
		return rc;
	struct okv_op *op = oki_op_create(ns->engine, OKW_OP_LEASE_OPEN, err);
	if (!op)
		return OKV_E_NOMEM;
	uint8_t *request;
	uint32_t bytes = sizeof(struct okw_request);
	rc = oki_record_reserve(op, bytes, sizeof(struct okw_lookup_reply), &request, err);
	if (rc)
		goto put_op;
	struct okw_request head = {.namespace_id = ns->id};
	memcpy(head.lease_id, id->bytes, sizeof(head.lease_id));
	rc = ask(op, &head, bytes, 5000, err);
	if (rc)
		goto put_op;
	const struct okw_lookup_reply *reply = &op->reply.lookup;
	if (reply->lease_slot >= OKW_LEASES) {
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_PREPARE, "a lease without a slot");
		goto put_op;
	}
	rc = check_reply(ns, NULL, reply, err);
	if (!rc)
		rc = make_lease(ns, reply, ret_lease, err);
	if (rc)
		oki_lease_forget(ns->engine, reply->lease_slot);
put_op:
	oki_op_put(op);
	return rc;
}

int okv_lease_id(const struct okv_lease *lease, struct okv_lease_id *ret_id)
{
	if (!lease || !ret_id)
		return OKV_E_INVAL;
	*ret_id = lease->id;
	return 0;
}

int okv_lease_result(const struct okv_lease *lease, struct okv_lookup_result *ret_result)
{
	if (!lease || !ret_result)
		return OKV_E_INVAL;
	*ret_result = lease->result;
	return 0;
}

void okv_lease_release(struct okv_lease *lease)
{
	if (!lease || oki_forked(lease->ns->engine))
		return;
	oki_lease_forget(lease->ns->engine, lease->slot);
	atomic_fetch_sub_explicit(&lease->ns->engine->counters.leases, 1, memory_order_relaxed);
	okv_namespace_close(lease->ns);
	free(lease);
}
