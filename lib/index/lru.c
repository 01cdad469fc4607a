/* SPDX-License-Identifier: Apache-2.0 */
/* [M] One list of the blocks that may be evicted, least recently used first. */
#include "index/index_private.h"

void oki_walk_add(struct oki_walk *walk, struct oki_block **blocks, uint64_t count, int64_t first,
		  uint32_t block_tokens)
{
	if (count == 0)
		return;
	uint32_t row = walk->count++;
	walk->rows[row].blocks = blocks;
	walk->rows[row].left = count;
	walk->rows[row].end_token = (first + (int64_t)count) * block_tokens;
	walk->rows[row].block_tokens = block_tokens;
}

void oki_walk_add_before(struct oki_walk *walk, struct oki_block **before, uint64_t count)
{
	walk->rows[walk->count - 1].before = before;
	walk->rows[walk->count - 1].before_left = count;
}

struct oki_block *oki_walk_next(struct oki_walk *walk)
{
	struct oki_block *block = NULL;
	while (!block) {
		uint32_t best = walk->count;
		for (uint32_t i = 0; i < walk->count; i++) {
			if (walk->rows[i].left == 0 && walk->rows[i].before_left == 0)
				continue;
			if (best == walk->count ||
			    walk->rows[i].end_token > walk->rows[best].end_token)
				best = i;
		}
		if (best == walk->count)
			return NULL;
		walk->rows[best].end_token -= walk->rows[best].block_tokens;
		if (walk->rows[best].left) {
			block = walk->rows[best].blocks[--walk->rows[best].left];
		} else {
			block = *walk->rows[best].before++;
			walk->rows[best].before_left--;
		}
	}
	return block;
}

static struct oki_block *neighbour(const struct oki_index *index, const struct oki_block *block,
				   bool later)
{
	const struct cds_list_head *at = &block->lru;

	if (!block->listed)
		return NULL;
	/* The groups of a sequence are settled together, so blocks of other groups lie between. */
	for (uint32_t i = 0; i < OKW_MAX_GROUPS; i++) {
		at = later ? at->next : at->prev;
		if (at == &index->lru)
			return NULL;
		struct oki_block *near = cds_list_entry(at, struct oki_block, lru);
		if (near->group == block->group)
			return near;
	}
	return NULL;
}

struct oki_block *oki_block_likely_parent(const struct oki_index *index,
					  const struct oki_block *block)
{
	return neighbour(index, block, true);
}

struct oki_block *oki_block_likely_child(const struct oki_index *index,
					 const struct oki_block *block)
{
	return neighbour(index, block, false);
}

void oki_block_keep(struct oki_block *block)
{
	if (!block->listed)
		return;
	cds_list_del(&block->lru);
	block->listed = 0;
}

static bool is_evictable(const struct oki_block *block)
{
	bool being_written = block->filled != __builtin_popcountll(block->sealed);
	return !block->pins && block->holds == 0 && !being_written;
}

void oki_block_settle(struct oki_index *index, struct oki_block *block)
{
	if (!is_evictable(block))
		return;
	if (block->filled == 0) {
		oki_block_drop(index, block);
		return;
	}
	oki_block_keep(block);
	cds_list_add_tail(&block->lru, &index->lru);
	block->listed = index->era;
}

void oki_walk_settle(struct oki_index *index, struct oki_walk *walk)
{
	struct oki_block *block;
	while ((block = oki_walk_next(walk))) {
		block->in_request = false;
		oki_block_settle(index, block);
	}
}

void oki_block_drop(struct oki_index *index, struct oki_block *block)
{
	oki_block_keep(block);
	for (uint32_t i = 0; i < block->slot_count; i++) {
		if (block->slots[i])
			oki_pool_free(index->pool, block->slots[i]);
	}
	oki_table_remove(index, block);
}
