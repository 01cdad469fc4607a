/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Namespaces: the cache identity, agreed with the Manager. */
#include "engine/engine_private.h"

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

int okv_namespace_open(struct okv_engine *engine, const struct okv_namespace_options *opts,
		       struct okv_namespace **ret_ns, struct okv_error *err)
{
	if (!engine || !opts || !ret_ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"engine, options or ret_ns is NULL");
	int rc = oki_engine_usable(engine, err);
	if (rc)
		return rc;
	struct okv_namespace *ns = calloc(1, sizeof(*ns));
	if (!ns)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a namespace");
	uint8_t *bytes = NULL;
	size_t size;
	rc = oki_schema_init(&ns->schema, opts, err);
	if (rc)
		goto free_ns;
	rc = oki_identity_encode(opts, &bytes, &size, err);
	if (rc)
		goto free_schema;
	struct okw_namespace_reply reply;
	rc = oki_rpc(engine, OKW_MSG_NAMESPACE, bytes, (uint32_t)size, &reply, sizeof(reply), NULL,
		     err);
	free(bytes);
	if (rc)
		goto free_schema;
	atomic_init(&ns->refs, 1);
	ns->engine = engine;
	ns->id = reply.namespace_id;
	oki_engine_get(engine);
	*ret_ns = ns;
	return 0;

free_schema:
	oki_schema_fini(&ns->schema);
free_ns:
	free(ns);
	return rc;
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
