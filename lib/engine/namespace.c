/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Namespaces: the cache identity, agreed with the Manager. */
#include "engine/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

void okv_namespace_options_init(struct okv_namespace_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->rank_slots = 1;
	opts->pipeline_stages = 1;
}

/* Ask the Manager for the namespace. Takes over canonical and schema, also on failure. */
static int open_canonical(struct okv_engine *engine, uint8_t *canonical, size_t size,
			  struct oki_schema *schema, struct okv_namespace **ret_ns,
			  struct okv_error *err)
{
	struct okw_namespace_reply reply;
	int rc;
	struct okv_namespace *ns = calloc(1, sizeof(*ns));
	if (ns)
		rc = oki_rpc(engine, OKW_MSG_NAMESPACE, canonical, (uint32_t)size, &reply,
			     sizeof(reply), NULL, err);
	else
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a namespace");
	if (rc) {
		oki_schema_fini(schema);
		free(canonical);
		free(ns);
		return rc;
	}
	atomic_init(&ns->refs, 1);
	ns->engine = engine;
	ns->id = reply.namespace_id;
	ns->schema = *schema;
	ns->canonical = canonical;
	ns->canonical_bytes = size;
	oki_engine_get(engine);
	*ret_ns = ns;
	return 0;
}

int okv_namespace_open(struct okv_engine *engine, const struct okv_namespace_options *opts,
		       struct okv_namespace **ret_ns, struct okv_error *err)
{
	struct oki_schema schema;
	uint8_t *canonical;
	size_t size;
	if (!engine || !opts || !ret_ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"engine, options or ret_ns is NULL");
	int rc = oki_engine_usable(engine, err);
	if (!rc)
		rc = oki_schema_init(&schema, opts, err);
	if (rc)
		return rc;
	rc = oki_identity_encode(opts, &canonical, &size, err);
	if (rc) {
		oki_schema_fini(&schema);
		return rc;
	}
	return open_canonical(engine, canonical, size, &schema, ret_ns, err);
}

int okv_namespace_drop(struct okv_namespace *ns, struct okv_error *err)
{
	if (!ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ns is NULL");
	int rc = oki_engine_usable(ns->engine, err);
	if (rc)
		return rc;
	const struct okw_drop ask = {.namespace_id = ns->id};
	return oki_rpc(ns->engine, OKW_MSG_DROP, &ask, sizeof(ask), NULL, 0, NULL, err);
}

int okv_namespace_export(const struct okv_namespace *ns, void *buffer, uint64_t capacity,
			 uint64_t *ret_size)
{
	if (!ns || !ret_size || (!buffer && capacity))
		return OKV_E_INVAL;
	*ret_size = ns->canonical_bytes;
	if (!buffer || capacity < ns->canonical_bytes)
		return OKV_E_LIMIT;
	memcpy(buffer, ns->canonical, ns->canonical_bytes);
	return 0;
}

int okv_namespace_import(struct okv_engine *engine, const void *bytes, uint64_t size,
			 struct okv_namespace **ret_ns, struct okv_error *err)
{
	struct oki_schema schema;
	if (!engine || !bytes || !ret_ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"engine, bytes or ret_ns is NULL");
	if (!size || size > OKV_MAX_NAMESPACE_BYTES)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"a namespace of %llu bytes; 1 to %u are possible",
				(unsigned long long)size, OKV_MAX_NAMESPACE_BYTES);
	int rc = oki_engine_usable(engine, err);
	if (rc)
		return rc;
	uint8_t *canonical = malloc(size);
	if (!canonical)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a namespace");
	memcpy(canonical, bytes, size);
	rc = oki_identity_decode(canonical, size, &schema, err);
	if (!rc)
		return open_canonical(engine, canonical, size, &schema, ret_ns, err);
	free(canonical);
	/* Here the bytes are the caller's, not a peer's. */
	return rc == OKV_E_PROTOCOL ? oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					       "the bytes are no exported namespace")
				    : rc;
}

int okv_namespace_shape(const struct okv_namespace *ns, uint32_t *ret_groups, uint32_t *ret_layers,
			uint32_t *ret_rank_slots)
{
	if (!ns || !ret_groups || !ret_layers || !ret_rank_slots)
		return OKV_E_INVAL;
	*ret_groups = ns->schema.group_count;
	*ret_layers = ns->schema.layer_count;
	*ret_rank_slots = ns->schema.rank_slots;
	return 0;
}

int okv_namespace_group(const struct okv_namespace *ns, uint32_t group,
			struct okv_group_info *ret_info)
{
	if (!ns || !ret_info || group >= ns->schema.group_count)
		return OKV_E_INVAL;
	const struct oki_schema_group *g = &ns->schema.groups[group];
	struct okv_group_info info = {
		.kind = g->kind,
		.block_tokens = g->block_tokens,
		.window_tokens = g->window_tokens,
		.layer_count = g->layer_count,
		.block_bytes = g->block_bytes,
	};
	static_assert(sizeof(info.layout_tag) == sizeof(g->layout_tag), "layout tag");
	memcpy(info.layout_tag, g->layout_tag, sizeof(info.layout_tag));
	*ret_info = info;
	return 0;
}

int okv_namespace_layer(const struct okv_namespace *ns, uint32_t layer,
			struct okv_layer_schema *ret_layer)
{
	if (!ns || !ret_layer || layer >= ns->schema.layer_count)
		return OKV_E_INVAL;
	const struct oki_schema_layer *l = &ns->schema.layers[layer];
	struct okv_layer_schema made = {.order = l->order, .segment_count = l->segment_count};
	memcpy(made.segment_bytes, l->segment_bytes, sizeof(made.segment_bytes));
	*ret_layer = made;
	return 0;
}

int oki_ns_check_keys(const struct okv_namespace *ns, const struct okv_keys *keys,
		      struct okv_error *err)
{
	if (keys->group >= ns->schema.group_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u of a schema with %u", keys->group,
				ns->schema.group_count);
	if (!keys->keys || keys->reserved)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "group %u: %s", keys->group,
				keys->keys ? "reserved is not 0" : "keys is NULL");
	bool above = keys->count > OKV_MAX_BLOCKS || keys->key_bytes > OKV_MAX_KEY_BYTES;
	if (above || !keys->count || !keys->key_bytes)
		return oki_fail(err, above ? OKV_E_LIMIT : OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: %u keys of %u bytes; 1 to %u of 1 to %u are possible",
				keys->group, keys->count, keys->key_bytes, OKV_MAX_BLOCKS,
				OKV_MAX_KEY_BYTES);
	return 0;
}

uint64_t okv_namespace_block_bytes(const struct okv_namespace *ns, uint32_t group)
{
	return ns && group < ns->schema.group_count ? ns->schema.groups[group].block_bytes : 0;
}
