/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Publish: allocates a slot for every key that has none, until space runs out. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"

/* One publish that is prepared. The scratch has the blocks that each stretch names and their
 * ancestors. All of them get `in_request` and leave the LRU list, so that making space does not
 * evict them. */
struct publish_ctx {
	struct oki_index *index;
	const struct oki_namespace *ns;
	const struct oki_index_publish *ask;
	struct oki_hold *hold;
	uint32_t stretch_count; /* named at least in part */
	uint64_t missing;	/* keys whose slot must be allocated */
	bool again;		/* a stretch names a key of an earlier one */
	struct okw_stretch_reply *replies;
};

static int name_block(struct publish_ctx *s, uint32_t i, uint32_t ordinal, struct oki_block *block,
		      uint64_t parent, struct okv_error *err)
{
	struct oki_scratch *scratch = &s->index->scratch;
	struct oki_named *named = &scratch->stretches[i];
	if (!block)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a block");
	if (block->in_request == i + 1)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"key %u of group %u is named twice", ordinal,
				s->ask->groups[i].keys.group);
	bool again = block->in_request;
	scratch->named[named->at + ordinal] = block;
	scratch->again[named->at + ordinal] = again;
	named->count++;
	s->again |= again;
	if (!again) {
		oki_block_keep(block);
		block->in_request = (uint16_t)(i + 1);
		if (!block->parent)
			block->parent = parent;
	}
	if (block->sealed & 1ull << s->ask->rank_slot)
		s->replies[i].present++;
	else if (again)
		return 0;
	else if (block->slots[s->ask->rank_slot])
		s->replies[i].in_progress++;
	else
		named->missing++, s->missing++;
	return 0;
}

/* *hash: of the key before these keys; on return, of the last of them. */
static int name_batch(struct publish_ctx *s, uint32_t i, uint32_t first, uint32_t count,
		      uint64_t *hash, struct okv_error *err)
{
	const struct oki_index_keys *keys = &s->ask->groups[i].keys;
	struct oki_key key = {oki_namespace_content(s->ns), keys->group, keys->key_bytes,
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

static int name_stretch(struct publish_ctx *s, uint32_t i, struct okv_error *err)
{
	const struct oki_index_publish_keys *group = &s->ask->groups[i];
	struct oki_key parent = {oki_namespace_content(s->ns), group->keys.group,
				 group->keys.key_bytes, group->parent};
	uint64_t hash = group->parent ? oki_key_hash(s->index, &parent) : 0;

	for (uint32_t k = 0; k < group->keys.count; k += OKI_BATCH_KEYS) {
		uint32_t left = group->keys.count - k;
		int rc = name_batch(s, i, k, left < OKI_BATCH_KEYS ? left : OKI_BATCH_KEYS, &hash,
				    err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int name_keys(struct publish_ctx *s, struct okv_error *err)
{
	uint32_t at = 0, seen = 0;
	int rc = 0;

	for (uint32_t i = 0; i < s->ask->group_count && rc == 0; i++) {
		const struct oki_index_keys *keys = &s->ask->groups[i].keys;
		s->replies[i] = (struct okw_stretch_reply){0};
		s->index->scratch.stretches[i] = (struct oki_named){
			.at = at,
			.begins = oki_sequence_begins(&seen, keys->group),
		};
		s->stretch_count = i + 1;
		rc = name_stretch(s, i, err);
		at += keys->count;
	}
	return rc;
}

/* Ancestors must not be evicted either: without them the new blocks are of no use. Many stretches
 * share the room; their seal touches all ancestors. */
static void name_ancestors(struct publish_ctx *s)
{
	struct oki_scratch *scratch = &s->index->scratch;
	uint32_t at = 0;

	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		struct oki_named *named = &scratch->stretches[i];
		uint32_t room = (OKW_MAX_OPERATION_BLOCKS - at) / (s->ask->group_count - i);
		struct oki_block *block = scratch->named[named->at], *likely = NULL;
		named->before = at;
		room = room < OKI_MAX_ANCESTORS ? room : OKI_MAX_ANCESTORS;
		while (named->before_count < room) {
			block = oki_table_parent(s->index, block, likely);
			if (!block || block->in_request)
				break;
			likely = oki_block_likely_parent(s->index, block);
			oki_block_keep(block);
			block->in_request = OKI_ANCESTOR;
			scratch->ancestors[at++] = block;
			named->before_count++;
		}
	}
}

/* Give the slots to the blocks of one group that have none. */
static void take_slots(struct publish_ctx *s, uint32_t group, uint32_t got)
{
	struct oki_scratch *scratch = &s->index->scratch;
	uint32_t rank = s->ask->rank_slot, ordinal = 0, next = 0;

	for (uint32_t i = 0; i < s->ask->group_count && next < got; i++) {
		const struct oki_named *named = &scratch->stretches[i];
		if (s->ask->groups[i].keys.group != group)
			continue;
		s->hold->stretches[i].origin = (int64_t)s->ask->groups[i].first_position - ordinal;
		for (uint32_t k = 0; k < named->count && next < got; k++) {
			struct oki_block *block = scratch->named[named->at + k];
			if (block->slots[rank])
				continue;
			oki_allocation_set_owner(scratch->allocations[next], block);
			block->slots[rank] = scratch->allocations[next++];
			block->filled++;
			oki_hold_add(s->hold, block, i, ordinal + k);
		}
		ordinal += named->count;
	}
}

/* One call for all slots of a group, so that they are adjacent where possible. False: no space. */
static bool store_group(struct publish_ctx *s, uint32_t group)
{
	uint64_t bytes = s->ns->block_bytes[group] / s->ns->schema.rank_slots;
	uint32_t lacking = 0;

	for (uint32_t i = 0; i < s->ask->group_count; i++)
		if (s->ask->groups[i].keys.group == group)
			lacking += s->index->scratch.stretches[i].missing;
	if (lacking == 0)
		return true;
	oki_evict_for(s->index, bytes, lacking);
	uint32_t got = oki_pool_alloc(s->index->pool, bytes, lacking, s->ask->node,
				      s->index->scratch.allocations);
	take_slots(s, group, got);
	return got == lacking;
}

/* Keys of an earlier stretch: say what became of them, and leave them to that stretch. */
static void drop_named_again(struct publish_ctx *s)
{
	struct oki_scratch *scratch = &s->index->scratch;

	for (uint32_t i = 0; i < s->stretch_count; i++) {
		const struct oki_named *named = &scratch->stretches[i];
		for (uint32_t at = named->at; at < named->at + named->count; at++) {
			const struct oki_block *block = scratch->named[at];
			if (!scratch->again[at])
				continue;
			if (!block->slots[s->ask->rank_slot])
				s->replies[i].not_stored++;
			else if (!(block->sealed & 1ull << s->ask->rank_slot))
				s->replies[i].in_progress++;
			scratch->named[at] = NULL;
		}
	}
}

/*
 * Named blocks become the most recently used. New blocks that got no slot are dropped. Sequences
 * are settled from the last to the first: blocks that several share are those of the first.
 */
static void settle_named(struct publish_ctx *s)
{
	struct oki_scratch *scratch = &s->index->scratch;

	if (s->again)
		drop_named_again(s);
	for (uint32_t end = s->stretch_count; end > 0;) {
		struct oki_walk walk = {0};
		uint32_t first = end;
		while (!scratch->stretches[--first].begins)
			;
		for (uint32_t i = first; i < end; i++) {
			const struct oki_index_publish_keys *group = &s->ask->groups[i];
			const struct oki_named *named = &scratch->stretches[i];
			if (named->count == 0)
				continue;
			oki_walk_add(&walk, &scratch->named[named->at], named->count,
				     group->first_position,
				     s->ns->schema.groups[group->keys.group].block_tokens);
			oki_walk_add_before(&walk, &scratch->ancestors[named->before],
					    named->before_count);
		}
		oki_walk_settle(s->index, &walk);
		end = first;
	}
}

static void fill_hold(struct publish_ctx *s)
{
	s->hold->publish = true;
	s->hold->namespace_id = s->ask->namespace_id;
	s->hold->rank_slot = s->ask->rank_slot;
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		s->hold->stretches[i].group = s->ask->groups[i].keys.group;
		s->hold->stretches[i].begins = s->index->scratch.stretches[i].begins;
	}
	name_ancestors(s);
	for (uint32_t g = 0; g < s->ns->schema.group_count; g++) {
		if (!store_group(s, g))
			break;
	}
	for (uint32_t i = 0; i < s->ask->group_count; i++) {
		s->replies[i].blocks = (uint32_t)s->hold->stretches[i].count;
		s->replies[i].not_stored =
			s->index->scratch.stretches[i].missing - s->replies[i].blocks;
	}
}

static int store(struct publish_ctx *s, struct okv_error *err)
{
	int rc = name_keys(s, err);
	if (rc < 0)
		goto settle;
	s->hold = oki_hold_alloc(s->missing, s->ask->group_count);
	if (!s->hold) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a hold");
		goto settle;
	}
	fill_hold(s);
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
	uint64_t blocks = 0;
	int rc = oki_namespace_find(index, ask->namespace_id, &ns, err);
	if (rc == 0)
		rc = oki_rank_check(ns, ask->rank_slot, err);
	if (rc < 0)
		return rc;
	if (ask->group_count == 0 || ask->group_count > OKW_MAX_STRETCHES || !ask->groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u stretches; 1 to %u are possible", ask->group_count,
				OKW_MAX_STRETCHES);
	for (uint32_t i = 0; i < ask->group_count; i++) {
		rc = oki_keys_check(ns, &ask->groups[i].keys, NULL, err);
		if (rc < 0)
			return rc;
		blocks += ask->groups[i].keys.count;
	}
	if (blocks > OKW_MAX_OPERATION_BLOCKS)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_PREPARE,
				"%llu blocks; one operation may have %u",
				(unsigned long long)blocks, OKW_MAX_OPERATION_BLOCKS);
	*ret_ns = ns;
	return 0;
}

int oki_index_publish_begin(struct oki_index *index, const struct oki_index_publish *ask,
			    struct oki_hold **ret_hold, struct okw_stretch_reply *ret_replies,
			    struct okv_error *err)
{
	struct publish_ctx s = {.index = index, .ask = ask, .replies = ret_replies};
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
	return 0;
}
