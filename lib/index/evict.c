/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Eviction: one list of the blocks that may be evicted, least recently used first. */
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

struct oki_block *oki_walk_next(struct oki_walk *walk)
{
	uint32_t best = walk->count;
	for (uint32_t i = 0; i < walk->count; i++) {
		if (walk->rows[i].left == 0)
			continue;
		if (best == walk->count || walk->rows[i].end_token > walk->rows[best].end_token)
			best = i;
	}
	if (best == walk->count)
		return NULL;
	walk->rows[best].end_token -= walk->rows[best].block_tokens;
	return walk->rows[best].blocks[--walk->rows[best].left];
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

/* Eras in which a whole pool is evicted: enough to tell ages apart, and few enough that a block is
 * evicted or listed again before its era returns. */
#define POOL_ERAS 128u
#define LAST_ERA 255u

static void evict(struct oki_index *index, struct oki_block *block)
{
	uint64_t used = oki_pool_used(index->pool);

	oki_block_drop(index, block);
	index->evictions++;
	index->era_bytes += used - oki_pool_used(index->pool);
	if (index->era_bytes < oki_pool_total(index->pool) / POOL_ERAS)
		return;
	index->era_bytes = 0;
	index->era = index->era == LAST_ERA ? 1 : (uint8_t)(index->era + 1);
}

static uint64_t slots_that_fit(const struct oki_block *block, uint64_t bytes)
{
	uint64_t count = 0;

	for (uint32_t i = 0; i < block->slot_count; i++)
		if (block->slots[i])
			count += oki_allocation_bytes(block->slots[i]) / bytes;
	return count;
}

/* Make one more hole. Returns how many allocations fit in what was evicted; 0: none can be made. */
static uint64_t make_hole(struct oki_index *index, uint64_t bytes, struct oki_hole_looks *looks)
{
	struct cds_list_head blocks;
	struct oki_block *block, *next;

	if (cds_list_empty(&index->lru))
		return 0;
	block = cds_list_first_entry(&index->lru, struct oki_block, lru);
	uint64_t fits = slots_that_fit(block, bytes);
	if (fits) {
		evict(index, block);
		return fits;
	}
	CDS_INIT_LIST_HEAD(&blocks);
	fits = oki_hole_take(index, bytes, looks, &blocks) / bytes;
	cds_list_for_each_entry_safe (block, next, &blocks, lru) {
		cds_list_del(&block->lru);
		evict(index, block);
	}
	return fits;
}

uint64_t oki_evict_for(struct oki_index *index, uint64_t bytes, uint64_t count)
{
	struct oki_hole_looks looks = {OKI_HOLE_LOOKS};

	/* Whole grains, as an allocation takes. */
	bytes = (bytes + OKI_ALLOC_GRAIN - 1) / OKI_ALLOC_GRAIN * OKI_ALLOC_GRAIN;
	/* Do not look for what can never fit. */
	if (bytes == 0 || bytes > index->largest_piece)
		return 0;
	uint64_t fits = oki_pool_fits(index->pool, bytes);
	/* Holes may merge with free neighbours, so more may fit than what was counted. */
	while (fits < count) {
		uint64_t lacking = count - fits;
		while (lacking > 0) {
			uint64_t more = make_hole(index, bytes, &looks);
			if (more == 0)
				return oki_pool_fits(index->pool, bytes);
			lacking -= more < lacking ? more : lacking;
		}
		fits = oki_pool_fits(index->pool, bytes);
	}
	return fits;
}
