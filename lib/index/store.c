/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Publish: allocates a slot for every key that has none, until space runs out. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"

/* One publish that is prepared. The scratch rows have the blocks of the request from KEYS_AT on,
 * and their ancestors before that. All of them get `in_request` and leave the LRU list, so that
 * making space does not evict them. */
#define KEYS_AT OKI_MAX_ANCESTORS

struct publish_ctx {
	struct oki_index *index;
	const struct oki_namespace *ns;
	const struct oki_index_publish *ask;
	struct oki_hold *hold;
	uint64_t missing;		    /* keys whose slot must be allocated */
	uint32_t named[OKW_MAX_GROUPS];	    /* blocks from KEYS_AT on */
	uint32_t ancestors[OKW_MAX_GROUPS]; /* blocks before KEYS_AT */
	struct oki_publish_counts counts;
};

static int name_block(struct publish_ctx *s, uint32_t i, uint32_t ordinal, struct oki_block *block,
		      uint64_t parent, struct okv_error *err)
{
	if (!block)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a block");
	if (block->in_request)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"key %u of group %u is named twice", ordinal,
				s->ask->groups[i].keys.group);
	oki_block_keep(block);
	block->in_request = true;
	if (!block->parent)
		block->parent = parent;
	s->index->scratch.rows[i][KEYS_AT + ordinal] = block;
	s->named[i]++;
	if (block->sealed & 1ull << s->ask->rank_slot)
		s->counts.present++;
	else if (block->slots[s->ask->rank_slot])
		s->counts.in_progress++;
	else
		s->missing++;
	return 0;
}

/* *hash: of the key before these keys; on return, of the last of them. */
static int name_batch(struct publish_ctx *s, uint32_t i, uint32_t first, uint32_t count,
		      uint64_t *hash, struct okv_error *err)
{
	const struct oki_index_keys *keys = &s->ask->groups[i].keys;
	struct oki_key key = {s->ask->namespace_id, keys->group, keys->key_bytes,
			      keys->keys + (size_t)first * keys->key_bytes};
	uint64_t hashes[OKI_BATCH_KEYS];
	struct oki_block *blocks[OKI_BATCH_KEYS];

	oki_table_find(s->index, &key, count, hashes, blocks);
	for (uint32_t k = 0; k < count; k++, key.data += key.bytes) {
		struct oki_block *block = blocks[k];
		if (!block)
			block = oki_table_add(s->index, hashes[k], &key, s->ns->schema.rank_slots);
		int rc = name_block(s, i, first + k, block, *hash, err);
		if (rc < 0)
			return rc;
		*hash = hashes[k];
	}
	return 0;
}

static int name_keys(struct publish_ctx *s, struct okv_error *err)
{
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		const struct oki_index_publish_keys *group = &s->ask->groups[i];
		struct oki_key parent = {s->ask->namespace_id, group->keys.group,
					 group->keys.key_bytes, group->parent};
		uint64_t hash = group->parent ? oki_key_hash(s->index, &parent) : 0;
		for (uint32_t k = 0; k < group->keys.count; k += OKI_BATCH_KEYS) {
			uint32_t left = group->keys.count - k;
			int rc = name_batch(s, i, k, left < OKI_BATCH_KEYS ? left : OKI_BATCH_KEYS,
					    &hash, err);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/* Ancestors must not be evicted either: without them the new blocks are of no use. */
static void name_ancestors(struct publish_ctx *s)
{
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		struct oki_block **row = s->index->scratch.rows[i];
		struct oki_block *block = row[KEYS_AT], *likely = NULL;
		while (s->ancestors[i] < OKI_MAX_ANCESTORS) {
			block = oki_table_parent(s->index, block, likely);
			if (!block || block->in_request)
				break;
			likely = oki_block_likely_parent(s->index, block);
			oki_block_keep(block);
			block->in_request = true;
			row[KEYS_AT - ++s->ancestors[i]] = block;
		}
	}
}

/* One call for all slots of a group, so that they are adjacent where possible. False: no space. */
static bool store_group(struct publish_ctx *s, uint32_t i)
{
	struct oki_block **blocks = &s->index->scratch.rows[i][KEYS_AT];
	struct oki_allocation **out = s->index->scratch.allocations;
	uint32_t rank = s->ask->rank_slot;
	uint32_t group = s->ask->groups[i].keys.group;
	uint64_t bytes = s->ns->block_bytes[group] / s->ns->schema.rank_slots;
	uint32_t lacking = 0;
	uint32_t next = 0;

	for (uint32_t k = 0; k < s->named[i]; k++)
		lacking += !blocks[k]->slots[rank];
	if (lacking == 0)
		return true;
	oki_evict_for(s->index, bytes, lacking);
	uint32_t got = oki_pool_alloc(s->index->pool, bytes, lacking, s->ask->node, out);
	for (uint32_t k = 0; k < s->named[i] && next < got; k++) {
		if (blocks[k]->slots[rank])
			continue;
		oki_allocation_set_owner(out[next], blocks[k]);
		blocks[k]->slots[rank] = out[next++];
		blocks[k]->filled++;
		oki_hold_add(s->hold, blocks[k], i, k);
	}
	return got == lacking;
}

/* Named blocks become the most recently used. New blocks that got no slot are dropped. */
static void settle_named(struct publish_ctx *s)
{
	struct oki_walk walk = {0};

	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		const struct oki_index_publish_keys *group = &s->ask->groups[i];
		uint32_t before = s->ancestors[i];
		oki_walk_add(&walk, &s->index->scratch.rows[i][KEYS_AT - before],
			     before + s->named[i], (int64_t)group->first_position - before,
			     s->ns->schema.groups[group->keys.group].block_tokens);
	}
	oki_walk_settle(s->index, &walk);
}

static int store(struct publish_ctx *s, struct okv_error *err)
{
	int rc = name_keys(s, err);
	if (rc < 0)
		goto settle;
	s->hold = oki_hold_alloc(s->missing);
	if (!s->hold) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a hold");
		goto settle;
	}
	s->hold->publish = true;
	s->hold->namespace_id = s->ask->namespace_id;
	s->hold->rank_slot = s->ask->rank_slot;
	s->hold->group_count = s->ask->group_count;
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		s->hold->groups[i].group = s->ask->groups[i].keys.group;
		s->hold->groups[i].first = s->ask->groups[i].first_position;
	}
	name_ancestors(s);
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		if (!store_group(s, i))
			break;
	}
	s->counts.not_stored = s->missing - s->hold->count;
	if (s->missing && s->hold->count == 0) {
		rc = oki_fail(err, OKV_E_NOSPACE, OKV_STAGE_PREPARE,
			      "none of %llu block%s has room: %llu of %llu bytes used, %llu pinned",
			      (unsigned long long)s->missing, oki_plural(s->missing),
			      (unsigned long long)oki_pool_used(s->index->pool),
			      (unsigned long long)oki_pool_total(s->index->pool),
			      (unsigned long long)s->index->pinned_bytes);
		free(s->hold);
		s->hold = NULL;
	} else {
		s->index->holds++;
	}

settle:
	settle_named(s);
	return rc;
}

static int check(struct oki_index *index, const struct oki_index_publish *ask,
		 const struct oki_namespace **ret_ns, struct okv_error *err)
{
	const struct oki_namespace *ns;
	uint32_t seen = 0;
	int rc = oki_namespace_find(index, ask->namespace_id, &ns, err);
	if (rc == 0)
		rc = oki_rank_check(ns, ask->rank_slot, err);
	if (rc < 0)
		return rc;
	if (ask->group_count == 0 || ask->group_count > OKW_MAX_GROUPS || !ask->groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u groups; 1 to %u are possible", ask->group_count,
				OKW_MAX_GROUPS);
	for (uint32_t i = 0; i < ask->group_count; i++) {
		rc = oki_keys_check(ns, &ask->groups[i].keys, &seen, err);
		if (rc < 0)
			return rc;
	}
	*ret_ns = ns;
	return 0;
}

int oki_index_publish_begin(struct oki_index *index, const struct oki_index_publish *ask,
			    struct oki_hold **ret_hold, struct oki_publish_counts *ret_counts,
			    struct okv_error *err)
{
	struct publish_ctx s = {.index = index, .ask = ask};
	int rc = check(index, ask, &s.ns, err);
	if (rc < 0)
		return rc;

	oki_index_lock(index);
	oki_leases_expire(index, ask->now_ns);
	rc = store(&s, err);
	oki_index_unlock(index);
	if (rc < 0)
		return rc;
	*ret_hold = s.hold;
	*ret_counts = s.counts;
	return 0;
}
