/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Eviction: makes room for new allocations. */
#include "index/index_private.h"

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
	if (bytes == 0 || bytes > index->largest_allocation)
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
