/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Namespaces: an id for each canonical identity, and the schema of each id. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/error.h"

struct oki_namespace *oki_namespace_get(struct oki_index *index, uint32_t id)
{
	if (id == 0 || id > OKI_MAX_NAMESPACES)
		return NULL;
	return atomic_load_explicit(&index->namespaces[id - 1], memory_order_acquire);
}

const struct oki_schema *oki_index_schema(struct oki_index *index, uint32_t namespace_id)
{
	struct oki_namespace *ns = oki_namespace_get(index, namespace_id);
	return ns ? &ns->schema : NULL;
}

static void destroy(struct oki_namespace *ns)
{
	if (!ns)
		return;
	oki_schema_fini(&ns->schema);
	free(ns->canonical);
	free(ns);
}

void oki_namespaces_fini(struct oki_index *index)
{
	for (uint32_t id = 1; id <= index->namespace_count; id++)
		destroy(oki_namespace_get(index, id));
}

static int create(const uint8_t *canonical, size_t size, uint64_t hash,
		  struct oki_namespace **ret_ns, struct okv_error *err)
{
	struct oki_namespace *ns = calloc(1, sizeof(*ns));
	uint8_t *copy = malloc(size);
	int rc;

	if (!ns || !copy) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a namespace");
		goto free_both;
	}
	memcpy(copy, canonical, size);
	rc = oki_identity_decode(copy, size, &ns->schema, err);
	if (rc < 0)
		goto free_both;
	ns->canonical = copy;
	ns->size = size;
	ns->hash = hash;
	for (uint32_t g = 0; g < ns->schema.group_count; g++) {
		uint64_t grains = (ns->schema.groups[g].block_bytes - 1) / OKI_ALLOC_GRAIN + 1;
		ns->block_bytes[g] = grains * OKI_ALLOC_GRAIN * ns->schema.rank_slots;
	}
	*ret_ns = ns;
	return 0;

free_both:
	free(copy);
	free(ns);
	return rc;
}

static uint32_t find(struct oki_index *index, const uint8_t *canonical, size_t size, uint64_t hash)
{
	for (uint32_t id = 1; id <= index->namespace_count; id++) {
		const struct oki_namespace *ns = oki_namespace_get(index, id);
		if (ns->hash == hash && ns->size == size &&
		    memcmp(ns->canonical, canonical, size) == 0)
			return id;
	}
	return 0;
}

int oki_index_namespace(struct oki_index *index, const uint8_t *canonical, size_t size,
			uint32_t *ret_id, struct okv_error *err)
{
	if (!canonical || size == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER, "empty identity");

	uint64_t hash = XXH3_64bits(canonical, size);
	struct oki_namespace *ns = NULL;
	int rc = create(canonical, size, hash, &ns, err);
	if (rc < 0)
		return rc;

	pthread_mutex_lock(&index->mutex);
	uint32_t id = find(index, canonical, size, hash);
	if (!id && index->namespace_count < OKI_MAX_NAMESPACES &&
	    index->last_content < UINT32_MAX) {
		id = ++index->namespace_count;
		atomic_init(&ns->content, ++index->last_content);
		atomic_store_explicit(&index->namespaces[id - 1], ns, memory_order_release);
		ns = NULL;
	}
	pthread_mutex_unlock(&index->mutex);
	destroy(ns);
	if (!id)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_REGISTER, "all %u namespaces are taken",
				OKI_MAX_NAMESPACES);
	*ret_id = id;
	return 0;
}

/* Drop those of these blocks that are still in the table, unless a lease, a copy or a publish has
 * them: these are evicted when they are the least recently used. */
static void drop_blocks(struct oki_index *index, struct oki_block **blocks, uint32_t count)
{
	oki_index_lock(index);
	for (uint32_t i = 0; i < count; i++)
		if (!cds_lfht_is_node_deleted(&blocks[i]->node) && blocks[i]->listed)
			oki_block_drop(index, blocks[i]);
	oki_index_unlock(index);
}

/* The walk over the table is one section of RCU, so that blocks which others remove meanwhile are
 * not used again. The mutex is taken for a few blocks at a time. */
static void free_content(struct oki_index *index, uint32_t content)
{
	struct oki_block *blocks[OKI_DROP_BLOCKS], *block;
	struct cds_lfht_iter iter;
	uint32_t count = 0;

	rcu_read_lock();
	cds_lfht_for_each_entry (index->table, &iter, block, node) {
		OKI_ORDER_ACQUIRE(&block->node);
		if (block->content != content)
			continue;
		blocks[count++] = block;
		if (count == OKI_DROP_BLOCKS) {
			drop_blocks(index, blocks, count);
			count = 0;
		}
	}
	drop_blocks(index, blocks, count);
	oki_read_unlock();
}

int oki_index_drop(struct oki_index *index, uint32_t namespace_id, struct okv_error *err)
{
	struct oki_namespace *ns = oki_namespace_get(index, namespace_id);
	if (!ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "unknown namespace %u",
				namespace_id);
	pthread_mutex_lock(&index->mutex);
	uint32_t old = oki_namespace_content(ns);
	bool possible = index->last_content < UINT32_MAX;
	if (possible)
		atomic_store_explicit(&ns->content, ++index->last_content, memory_order_relaxed);
	pthread_mutex_unlock(&index->mutex);
	if (!possible)
		return oki_fail(
			err, OKV_E_LIMIT, OKV_STAGE_PREPARE,
			"namespaces were opened and dropped 2^32 times; restart the Manager");
	free_content(index, old);
	return 0;
}

int oki_namespace_find(struct oki_index *index, uint32_t id, const struct oki_namespace **ret_ns,
		       struct okv_error *err)
{
	const struct oki_namespace *ns = oki_namespace_get(index, id);
	if (!ns)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "unknown namespace %u", id);
	*ret_ns = ns;
	return 0;
}

int oki_rank_check(const struct oki_namespace *ns, uint32_t rank_slot, struct okv_error *err)
{
	if (rank_slot >= ns->schema.rank_slots)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"rank slot %u of a schema that has %u", rank_slot,
				ns->schema.rank_slots);
	return 0;
}

int oki_keys_check(const struct oki_namespace *ns, const struct oki_index_keys *keys,
		   uint32_t *groups_seen, struct okv_error *err)
{
	if (keys->group >= ns->schema.group_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"group %u of a schema that has %u", keys->group,
				ns->schema.group_count);
	if (groups_seen && *groups_seen & 1u << keys->group)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "group %u is named twice",
				keys->group);
	if (keys->count == 0 || keys->count > OKW_MAX_BLOCKS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u keys for group %u; 1 to %u are possible", keys->count,
				keys->group, OKW_MAX_BLOCKS);
	if (keys->key_bytes == 0 || keys->key_bytes > OKW_MAX_KEY_BYTES || !keys->keys)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"keys of %u bytes for group %u; 1 to %u are possible",
				keys->key_bytes, keys->group, OKW_MAX_KEY_BYTES);
	if (groups_seen)
		*groups_seen |= 1u << keys->group;
	return 0;
}
