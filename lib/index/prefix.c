/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Finds which prefix of a sequence is usable. */
#include "index/index_private.h"

#include <string.h>
#include "base/checked.h"

#define FIRST_KEYS 8u

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* Least common multiple, or 0 if it exceeds 64 bits: no prefix is that long. */
static uint64_t lcm(uint64_t a, uint64_t b)
{
	uint64_t product;
	if (a == 0 || !oki_mul(a / gcd(a, b), b, &product))
		return 0;
	return product;
}

static uint32_t blocks_needed(const struct oki_schema_group *group)
{
	switch (group->kind) {
	case OKV_GROUP_WINDOW: return (group->window_tokens - 1) / group->block_tokens + 1;
	case OKV_GROUP_STATE: return 1;
	default: return UINT32_MAX;
	}
}

/* Append blocks to run. A full group ends at its first unusable block: then *ret_gap is set. */
static void add_found(struct oki_usable_group *group, struct oki_block *const *found,
		      uint32_t count, bool *ret_gap)
{
	uint32_t end = group->count;
	uint16_t run = end > 0 ? group->run[end - 1] : 0;

	for (uint32_t i = 0; i < count; i++) {
		bool there = found[i] && oki_block_usable(found[i]);
		*ret_gap = !there && group->need == UINT32_MAX;
		if (*ret_gap)
			break;
		run = there ? (uint16_t)(run + 1) : 0;
		group->run[end++] = run;
	}
	group->count = end;
}

/*
 * With the mutex held: find the blocks of keys that follow `block`, as long as the LRU list has
 * them as neighbours. That costs one cache miss per block; a search in the table costs several.
 */
static uint32_t find_by_list(struct oki_index *index, const struct oki_block *block,
			     const struct oki_key *first, uint32_t count,
			     struct oki_block **ret_blocks)
{
	struct oki_key key = *first;
	uint32_t n = 0;

	for (; n < count; n++, key.data += key.bytes) {
		struct oki_block *child = oki_block_likely_child(index, block);
		if (!child || !oki_block_has_key(child, &key))
			break;
		ret_blocks[n] = child;
		block = child;
	}
	return n;
}

/* Look up at most `limit` keys. The first batch is small, since often no block is cached. */
static void probe_group(struct oki_index *index, uint32_t content,
			const struct oki_index_keys *keys, uint64_t limit,
			struct oki_block **blocks, struct oki_usable_group *group)
{
	uint32_t count = keys->count < limit ? keys->count : (uint32_t)limit;
	uint32_t batch = FIRST_KEYS, n;
	struct oki_block *found[OKI_BATCH_KEYS], *last = NULL;
	uint64_t hashes[OKI_BATCH_KEYS];
	bool gap = false;

	group->count = 0;
	for (uint32_t at = 0; at < count && !gap; at += n, batch = OKI_BATCH_KEYS) {
		struct oki_key key = {content, keys->group, keys->key_bytes,
				      keys->keys + (size_t)at * keys->key_bytes};
		n = batch < count - at ? batch : count - at;
		uint32_t row = last ? find_by_list(index, last, &key, n, found) : 0;
		if (row > 0)
			n = row;
		else
			oki_table_find(index, &key, n, hashes, found);
		add_found(group, found, n, &gap);
		if (!blocks)
			continue;
		memcpy(&blocks[at], found, (group->count - at) * sizeof(found[0]));
		last = found[n - 1];
	}
}

void oki_usable_probe(struct oki_index *index, const struct oki_namespace *ns,
		      const struct oki_index_lookup *ask,
		      struct oki_block *(*blocks)[OKI_ROW_BLOCKS], struct oki_usable *ret_usable)
{
	struct oki_usable *usable = ret_usable;
	const uint32_t content = oki_namespace_content(ns);

	usable->limit = UINT64_MAX;
	usable->step = 1;
	usable->group_count = ask->group_count;
	for (uint32_t i = 0; i < ask->group_count; i++) {
		const struct oki_schema_group *schema = &ns->schema.groups[ask->groups[i].group];
		usable->groups[i].block_tokens = schema->block_tokens;
		usable->groups[i].need = blocks_needed(schema);
		usable->step = lcm(usable->step, schema->block_tokens);
	}
	/* Full groups first: no usable prefix goes past their first unusable block. */
	for (int full = 1; full >= 0; full--) {
		for (uint32_t i = 0; i < ask->group_count; i++) {
			struct oki_usable_group *group = &usable->groups[i];
			if ((group->need == UINT32_MAX) != full)
				continue;
			probe_group(index, content, &ask->groups[i],
				    usable->limit / group->block_tokens, blocks ? blocks[i] : NULL,
				    group);
			uint64_t tokens = (uint64_t)group->count * group->block_tokens;
			if (tokens < usable->limit)
				usable->limit = tokens;
		}
	}
}

static bool supports(const struct oki_usable *usable, uint64_t tokens)
{
	for (uint32_t i = 0; i < usable->group_count; i++) {
		const struct oki_usable_group *group = &usable->groups[i];
		uint64_t blocks = tokens / group->block_tokens;
		if (group->run[blocks - 1] < (blocks < group->need ? blocks : group->need))
			return false;
	}
	return true;
}

uint64_t oki_usable_best(const struct oki_usable *usable, uint64_t limit)
{
	if (limit > usable->limit)
		limit = usable->limit;
	if (usable->step == 0)
		return 0;
	for (uint64_t tokens = limit - limit % usable->step; tokens; tokens -= usable->step) {
		if (supports(usable, tokens))
			return tokens;
	}
	return 0;
}

void oki_usable_range(const struct oki_usable_group *group, uint64_t tokens, uint32_t *ret_first,
		      uint32_t *ret_count)
{
	uint32_t blocks = (uint32_t)(tokens / group->block_tokens);
	uint32_t count = blocks < group->need ? blocks : group->need;
	*ret_first = blocks - count;
	*ret_count = count;
}
