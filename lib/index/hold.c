/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Holds: the memory that a grant names, from the request to the proof that copies ended. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"

struct oki_hold *oki_hold_alloc(uint64_t capacity)
{
	size_t item = sizeof(struct oki_hold_block) + sizeof(struct oki_block *);
	struct oki_hold *hold = calloc(1, sizeof(*hold) + capacity * item);
	if (hold)
		hold->blocks = (struct oki_block **)(void *)&hold->items[capacity];
	return hold;
}

void oki_hold_add(struct oki_hold *hold, struct oki_block *block, uint32_t request_group,
		  uint32_t ordinal)
{
	hold->blocks[hold->count] = block;
	hold->items[hold->count] = (struct oki_hold_block){
		.allocation = block->slots[hold->rank_slot],
		.request_group = request_group,
		.ordinal = ordinal,
	};
	hold->groups[request_group].count++;
	hold->count++;
}

const struct oki_hold_block *oki_hold_blocks(const struct oki_hold *hold, uint64_t *ret_count)
{
	*ret_count = hold->count;
	return hold->items;
}

bool oki_hold_is_publish(const struct oki_hold *hold)
{
	return hold->publish;
}

/* ---- restore ---- */

static int lease_group(const struct oki_lease *lease, const struct oki_index_range *range,
		       uint32_t *ret_at, struct okv_error *err)
{
	for (uint32_t i = 0; i < lease->group_count; i++) {
		if (lease->groups[i].group != range->group)
			continue;
		uint32_t count = lease->groups[i].count;
		if (range->count > count || range->first > count - range->count)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
					"blocks %u and %u more of group %u, of which the lease "
					"holds %u",
					range->first, range->count, range->group, count);
		*ret_at = i;
		return 0;
	}
	return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "the lease holds nothing of group %u",
			range->group);
}

static int hold_lease(struct oki_index *index, const struct oki_index_restore *ask,
		      struct oki_hold **ret_hold, struct okv_error *err)
{
	uint32_t at[OKW_MAX_GROUPS];
	uint64_t count = 0;

	struct oki_lease *lease =
		oki_lease_known(index, ask->session, ask->lease_slot, ask->lease_id);
	if (!lease || lease->namespace_id != ask->namespace_id)
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_PREPARE,
				"the lease has ended: its shares are spent, or it expired");
	for (uint32_t i = 0; i < ask->range_count; i++) {
		int rc = lease_group(lease, &ask->ranges[i], &at[i], err);
		if (rc < 0)
			return rc;
		count += ask->ranges[i].count;
	}
	struct oki_hold *hold = oki_hold_alloc(count);
	if (!hold)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a hold");

	hold->namespace_id = ask->namespace_id;
	hold->rank_slot = ask->rank_slot;
	hold->group_count = ask->range_count;
	for (uint32_t i = 0; i < ask->range_count; i++) {
		const struct oki_index_range *range = &ask->ranges[i];
		hold->groups[i].group = range->group;
		hold->groups[i].first = lease->groups[at[i]].first + range->first;
		for (uint32_t k = 0; k < range->count; k++) {
			struct oki_block *block =
				lease->blocks[lease->groups[at[i]].at + range->first + k];
			block->holds++;
			oki_hold_add(hold, block, i, k);
		}
	}
	index->holds++;
	/* The blocks are held now, so the lease may end. */
	if (!ask->keep && --lease->consumers == 0)
		oki_lease_end(index, lease);
	else
		oki_lease_renew(index, lease, ask->now_ns);
	*ret_hold = hold;
	return 0;
}

int oki_index_restore_begin(struct oki_index *index, const struct oki_index_restore *ask,
			    struct oki_hold **ret_hold, struct okv_error *err)
{
	const struct oki_namespace *ns;
	int rc = oki_namespace_find(index, ask->namespace_id, &ns, err);
	if (rc == 0)
		rc = oki_rank_check(ns, ask->rank_slot, err);
	if (rc < 0)
		return rc;
	if (ask->range_count > OKW_MAX_GROUPS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u ranges; at most %u are possible", ask->range_count,
				OKW_MAX_GROUPS);
	oki_index_lock(index);
	oki_leases_expire(index, ask->now_ns);
	rc = hold_lease(index, ask, ret_hold, err);
	oki_index_unlock(index);
	return rc;
}

/* ---- the end of a hold ---- */

static uint32_t block_tokens(struct oki_index *index, const struct oki_hold *hold, uint32_t i)
{
	const struct oki_namespace *ns = oki_namespace_get(index, hold->namespace_id);
	return ns->schema.groups[hold->groups[i].group].block_tokens;
}

static void release_sources(struct oki_index *index, struct oki_hold *hold)
{
	struct oki_walk walk = {0};
	struct oki_block **blocks = hold->blocks;

	for (uint32_t i = 0; i < hold->group_count; i++) {
		oki_walk_add(&walk, blocks, hold->groups[i].count, hold->groups[i].first,
			     block_tokens(index, hold, i));
		blocks += hold->groups[i].count;
	}
	for (uint64_t i = 0; i < hold->count; i++)
		hold->blocks[i]->holds--;
	oki_walk_settle(index, &walk);
}

static void seal(struct oki_index *index, struct oki_block *block, uint32_t rank)
{
	block->sealed |= 1ull << rank;
	if (__builtin_popcountll(block->sealed) != block->slot_count)
		return;
	index->blocks_partial--;
	/* G7: a thread that sees `usable` sees the whole block. */
	atomic_store_explicit(&block->usable, 1, memory_order_release);
}

/*
 * Write before[left] and its ancestors into the row below *at, up to the first one that a row has
 * already. A hold lists a sequence in order, so the parent is usually the block before it.
 */
static void add_ancestors(struct oki_index *index, struct oki_block **before, uint64_t left,
			  struct oki_block **row, uint64_t *at)
{
	struct oki_block *block = before[left];

	while (block && !block->in_request && *at > 0) {
		struct oki_block *own = left > 0 ? before[left - 1] : NULL;
		struct oki_block *likely =
			block->listed ? oki_block_likely_parent(index, block) : own;
		block->in_request = true;
		row[--*at] = block;
		block = oki_table_parent(index, block, likely);
		if (block && block == own)
			left--;
	}
}

/*
 * The sealed blocks become the most recently used, and their ancestors even more recently used:
 * otherwise a head would be evicted before its tail. Fills each scratch row from its end.
 */
static void settle_sequences(struct oki_index *index, struct oki_hold *hold)
{
	struct oki_walk walk = {0};
	uint64_t end = 0;

	for (uint32_t i = 0; i < hold->group_count; i++) {
		struct oki_block **row = index->scratch.rows[i];
		uint64_t at = OKI_ROW_BLOCKS;
		uint64_t start = end;
		end += hold->groups[i].count;
		if (start == end)
			continue;
		for (uint64_t k = end; k > start; k--) {
			struct oki_block *block = hold->blocks[k - 1];
			if (!block->in_request && at == 0)
				oki_block_settle(index, block);
			add_ancestors(index, &hold->blocks[start], k - 1 - start, row, &at);
		}
		uint64_t count = OKI_ROW_BLOCKS - at;
		int64_t tail = (int64_t)hold->groups[i].first + hold->items[end - 1].ordinal;
		oki_walk_add(&walk, &row[at], count, tail + 1 - (int64_t)count,
			     block_tokens(index, hold, i));
	}
	oki_walk_settle(index, &walk);
}

static void seal_all(struct oki_index *index, struct oki_hold *hold)
{
	for (uint64_t i = 0; i < hold->count; i++)
		seal(index, hold->blocks[i], hold->rank_slot);
	index->published_blocks += hold->count;
	settle_sequences(index, hold);
}

/* Take the slots out of their blocks; the allocations stay. Returns their bytes. */
static uint64_t detach_all(struct oki_index *index, struct oki_hold *hold)
{
	uint64_t bytes = 0;

	for (uint64_t i = hold->count; i > 0; i--) {
		struct oki_block *block = hold->blocks[i - 1];
		bytes += oki_allocation_bytes(block->slots[hold->rank_slot]);
		oki_allocation_set_owner(block->slots[hold->rank_slot], NULL);
		block->slots[hold->rank_slot] = NULL;
		block->filled--;
		oki_block_settle(index, block);
	}
	return bytes;
}

static void free_allocations(struct oki_index *index, struct oki_hold *hold)
{
	for (uint64_t i = 0; i < hold->count; i++)
		oki_pool_free(index->pool,
			      (struct oki_allocation *)(uintptr_t)hold->items[i].allocation);
}

void oki_hold_release(struct oki_index *index, struct oki_hold *hold, const struct oki_proof *proof)
{
	enum oki_proof_kind kind = oki_proof_kind(proof);
	if (kind == OKI_PROOF_NONE) {
		oki_hold_quarantine(index, hold);
		return;
	}
	bool copied = kind == OKI_PROOF_DRAINED && oki_proof_engine_status(proof) == 0;

	oki_index_lock(index);
	if (!hold->publish) {
		release_sources(index, hold);
		index->restored_blocks += copied ? hold->count : 0;
	} else if (copied) {
		seal_all(index, hold);
	} else {
		detach_all(index, hold);
		free_allocations(index, hold);
	}
	index->holds--;
	oki_index_unlock(index);
	free(hold);
}

static uint64_t quarantine_sources(struct oki_hold *hold)
{
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < hold->count; i++) {
		struct oki_block *block = hold->blocks[i];
		if (block->quarantined)
			continue;
		block->quarantined = true;
		for (uint32_t rank = 0; rank < block->slot_count; rank++)
			bytes += oki_allocation_bytes(block->slots[rank]);
	}
	return bytes;
}

void oki_hold_quarantine(struct oki_index *index, struct oki_hold *hold)
{
	oki_index_lock(index);
	uint64_t bytes = hold->publish ? detach_all(index, hold) : quarantine_sources(hold);
	index->quarantined_bytes += bytes;
	index->holds--;
	cds_list_add(&hold->link, &index->quarantine);
	uint64_t all = index->quarantined_bytes;
	oki_index_unlock(index);
	oki_log(index->log, OKV_LOG_WARN, "%llu bytes in quarantine, %llu in all",
		(unsigned long long)bytes, (unsigned long long)all);
}

void oki_holds_fini(struct oki_index *index)
{
	struct oki_hold *hold, *next;

	cds_list_for_each_entry_safe (hold, next, &index->quarantine, link) {
		if (hold->publish)
			free_allocations(index, hold);
		free(hold);
	}
}
