/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Holds: the memory that a grant names, from the request to the proof that copies ended. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"

struct oki_hold *oki_hold_alloc(uint64_t capacity, uint32_t stretch_count)
{
	size_t item = sizeof(struct oki_hold_block) + sizeof(struct oki_block *);
	struct oki_hold *hold = calloc(1, sizeof(*hold) + capacity * item +
						  stretch_count * sizeof(hold->stretches[0]));
	if (!hold)
		return NULL;
	hold->blocks = (struct oki_block **)(void *)&hold->items[capacity];
	hold->stretches = (struct oki_hold_stretch *)(void *)&hold->blocks[capacity];
	hold->stretch_count = stretch_count;
	return hold;
}

void oki_hold_add(struct oki_hold *hold, struct oki_block *block, uint32_t stretch,
		  uint32_t ordinal)
{
	struct oki_hold_stretch *st = &hold->stretches[stretch];

	if (st->count++ == 0)
		st->start = hold->count;
	hold->blocks[hold->count] = block;
	hold->items[hold->count] = (struct oki_hold_block){
		.allocation = block->slots[hold->rank_slot],
		.group = st->group,
		.ordinal = ordinal,
	};
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

static int find_part(struct oki_index *index, const struct oki_index_restore *ask, uint32_t i,
		     uint32_t schema_groups, struct okv_error *err)
{
	const struct oki_index_range *range = &ask->ranges[i];
	struct oki_lease *lease =
		range->lease_slot == OKW_LEASES
			? oki_lease_find(index, range->lease_id)
			: oki_lease_known(index, ask->session, range->lease_slot, range->lease_id);
	if (!lease || lease->namespace_id != ask->namespace_id ||
	    oki_lease_expired(lease, ask->now_ns) || !oki_lease_is_current(index, lease))
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_PREPARE,
				"stretch %u: the lease has ended: its shares are spent, it "
				"expired, or its namespace was dropped",
				i);
	index->scratch.parts[i].lease = lease;
	if (range->group >= schema_groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"stretch %u: group %u of a schema that has %u", i, range->group,
				schema_groups);
	if (range->count == 0)
		return 0;
	for (uint32_t k = 0; k < lease->group_count; k++) {
		uint32_t first = lease->groups[k].first, count = lease->groups[k].count;
		if (lease->groups[k].group != range->group)
			continue;
		if (range->first < first || range->count > count ||
		    range->first - first > count - range->count)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
					"stretch %u: blocks %u and %u more of group %u; the lease "
					"holds %u from %u on",
					i, range->first, range->count, range->group, count, first);
		index->scratch.parts[i].group = k;
		return 0;
	}
	return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
			"stretch %u: the lease holds nothing of group %u", i, range->group);
}

/* Look at every stretch, so that the caller learns of all that fail. err is the first failure. */
static int find_parts(struct oki_index *index, const struct oki_index_restore *ask,
		      uint32_t schema_groups, struct okw_stretch_reply *replies,
		      uint64_t *ret_count, struct okv_error *err)
{
	int rc = 0;

	*ret_count = 0;
	for (uint32_t i = 0; i < ask->range_count; i++) {
		struct okv_error own;
		replies[i] = (struct okw_stretch_reply){.blocks = ask->ranges[i].count};
		replies[i].status = find_part(index, ask, i, schema_groups, rc ? &own : err);
		if (replies[i].status && !rc)
			rc = replies[i].status;
		*ret_count += ask->ranges[i].count;
	}
	for (uint32_t i = 0; i < ask->range_count && rc; i++)
		replies[i].blocks = 0;
	if (!rc && *ret_count > OKW_MAX_OPERATION_BLOCKS)
		rc = oki_fail(err, OKV_E_LIMIT, OKV_STAGE_PREPARE,
			      "%llu blocks; one operation may have %u",
			      (unsigned long long)*ret_count, OKW_MAX_OPERATION_BLOCKS);
	return rc;
}

/* Add the blocks of one group, stretch after stretch. */
static void hold_group(struct oki_index *index, const struct oki_index_restore *ask,
		       struct oki_hold *hold, uint32_t group)
{
	uint32_t ordinal = 0;

	for (uint32_t i = 0; i < ask->range_count; i++) {
		const struct oki_index_range *range = &ask->ranges[i];
		if (range->group != group || range->count == 0)
			continue;
		const struct oki_lease *lease = index->scratch.parts[i].lease;
		uint32_t at = index->scratch.parts[i].group;
		struct oki_block *const *blocks =
			&lease->blocks[lease->groups[at].at + range->first -
				       lease->groups[at].first];
		hold->stretches[i].origin = (int64_t)range->first - ordinal;
		for (uint32_t k = 0; k < range->count; k++) {
			blocks[k]->holds++;
			oki_hold_add(hold, blocks[k], i, ordinal++);
		}
	}
}

/* The blocks are held now, so the leases may end. Each is counted once, at the last stretch that
 * names it. Returns how many lost a share. */
static uint32_t spend_shares(struct oki_index *index, const struct oki_index_restore *ask,
			     struct cds_list_head *ended)
{
	uint32_t spent = 0;

	for (uint32_t i = 0; i < ask->range_count; i++) {
		struct oki_lease *lease = index->scratch.parts[i].lease;
		lease->uses++;
		lease->spend |= !ask->ranges[i].keep;
	}
	for (uint32_t i = 0; i < ask->range_count; i++) {
		struct oki_lease *lease = index->scratch.parts[i].lease;
		if (--lease->uses > 0)
			continue;
		bool spend = lease->spend;
		lease->spend = false;
		spent += spend;
		if (spend && --lease->consumers == 0)
			oki_lease_end(index, lease, ended);
		else
			oki_lease_renew(index, lease, ask->now_ns);
	}
	return spent;
}

static int hold_leases(struct oki_index *index, const struct oki_namespace *ns,
		       const struct oki_index_restore *ask, struct oki_hold **ret_hold,
		       struct okw_stretch_reply *ret_replies, uint32_t *ret_spent,
		       struct cds_list_head *ended, struct okv_error *err)
{
	uint64_t count;
	uint32_t seen = 0;

	int rc = find_parts(index, ask, ns->schema.group_count, ret_replies, &count, err);
	if (rc < 0)
		return rc;
	struct oki_hold *hold = oki_hold_alloc(count, ask->range_count);
	if (!hold)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a hold");

	hold->namespace_id = ask->namespace_id;
	hold->rank_slot = ask->rank_slot;
	for (uint32_t i = 0; i < ask->range_count; i++) {
		hold->stretches[i].group = ask->ranges[i].group;
		hold->stretches[i].begins = oki_sequence_begins(&seen, ask->ranges[i].group);
	}
	for (uint32_t g = 0; g < ns->schema.group_count; g++)
		hold_group(index, ask, hold, g);
	index->holds++;
	*ret_spent = spend_shares(index, ask, ended);
	*ret_hold = hold;
	return 0;
}

int oki_index_restore_begin(struct oki_index *index, const struct oki_index_restore *ask,
			    struct oki_hold **ret_hold, struct okw_stretch_reply *ret_replies,
			    uint32_t *ret_spent, struct okv_error *err)
{
	const struct oki_namespace *ns;
	CDS_LIST_HEAD(ended);
	int rc = oki_namespace_find(index, ask->namespace_id, &ns, err);
	if (rc == 0)
		rc = oki_rank_check(ns, ask->rank_slot, err);
	if (rc < 0)
		return rc;
	if (ask->range_count > OKW_MAX_STRETCHES)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u stretches; at most %u are possible", ask->range_count,
				OKW_MAX_STRETCHES);
	oki_index_lock(index);
	oki_leases_expire(index, ask->now_ns);
	rc = hold_leases(index, ns, ask, ret_hold, ret_replies, ret_spent, &ended, err);
	oki_leases_unpin(index, &ended);
	oki_index_unlock(index);
	return rc;
}

/* ---- the end of a hold ---- */

static uint32_t block_tokens(struct oki_index *index, const struct oki_hold *hold, uint32_t i)
{
	const struct oki_namespace *ns = oki_namespace_get(index, hold->namespace_id);
	return ns->schema.groups[hold->stretches[i].group].block_tokens;
}

/* The stretch after the last of the sequence that begins with this one. */
static uint32_t sequence_end(const struct oki_hold *hold, uint32_t first)
{
	uint32_t end = first + 1;
	while (end < hold->stretch_count && !hold->stretches[end].begins)
		end++;
	return end;
}

static void release_sources(struct oki_index *index, struct oki_hold *hold)
{
	for (uint64_t i = 0; i < hold->count; i++)
		hold->blocks[i]->holds--;
	for (uint32_t i = 0; i < hold->stretch_count;) {
		struct oki_walk walk = {0};
		for (uint32_t end = sequence_end(hold, i); i < end; i++) {
			const struct oki_hold_stretch *st = &hold->stretches[i];
			if (st->count)
				oki_walk_add(&walk, &hold->blocks[st->start], st->count,
					     st->origin + hold->items[st->start].ordinal,
					     block_tokens(index, hold, i));
		}
		oki_walk_settle(index, &walk);
	}
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
 * Write before[left] and its ancestors into `row` below *at and not below `floor`, up to the first
 * one that a row has already. A hold lists a sequence in order, so the parent is usually the block
 * before it.
 */
static void add_ancestors(struct oki_index *index, struct oki_block **before, uint64_t left,
			  struct oki_block **row, uint32_t floor, uint32_t *at)
{
	struct oki_block *block = before[left];

	while (block && !block->in_request && *at > floor) {
		struct oki_block *own = left > 0 ? before[left - 1] : NULL;
		struct oki_block *likely =
			block->listed ? oki_block_likely_parent(index, block) : own;
		block->in_request = OKI_ANCESTOR;
		row[--*at] = block;
		block = oki_table_parent(index, block, likely);
		if (block && block == own)
			left--;
	}
}

/* Gather the blocks of a stretch and their ancestors in scratch, below *at. */
static void gather(struct oki_index *index, struct oki_hold *hold, uint32_t i, uint32_t *at)
{
	const struct oki_hold_stretch *st = &hold->stretches[i];
	const uint32_t end = *at, floor = end - OKI_ROW_BLOCKS;

	index->scratch.gathered[i] = (struct oki_gathered){0};
	if (st->count == 0)
		return;
	for (uint64_t k = st->count; k > 0; k--) {
		struct oki_block *block = hold->blocks[st->start + k - 1];
		block->holds--;
		if (!block->in_request && *at == floor)
			oki_block_settle(index, block);
		add_ancestors(index, &hold->blocks[st->start], k - 1, index->scratch.turn, floor,
			      at);
	}
	index->scratch.gathered[i] = (struct oki_gathered){
		.at = *at,
		.count = end - *at,
		.end = st->origin + hold->items[st->start + st->count - 1].ordinal + 1,
	};
}

static void settle_gathered(struct oki_index *index, struct oki_hold *hold, uint32_t first,
			    uint32_t end)
{
	struct oki_walk walk = {0};

	for (uint32_t i = first; i < end; i++) {
		const struct oki_gathered *row = &index->scratch.gathered[i];
		oki_walk_add(&walk, &index->scratch.turn[row->at], row->count,
			     row->end - row->count, block_tokens(index, hold, i));
	}
	oki_walk_settle(index, &walk);
}

/*
 * The sealed blocks become the most recently used, and their ancestors even more recently used:
 * otherwise a head would be evicted before its tail. Sequences are gathered from the last to the
 * first and settled from the first to the last, so that an ancestor which several share is settled
 * behind all of them. When the work space may be full, settle and let others have the mutex; the
 * blocks are held until their turn.
 */
static void settle_sequences(struct oki_index *index, struct oki_hold *hold)
{
	uint32_t left = hold->stretch_count;

	while (left > 0) {
		uint32_t at = OKI_TURN_BLOCKS, first = left, end = left;
		while (first > 0) {
			uint32_t last = first;
			while (!hold->stretches[--first].begins)
				;
			if (last < end && at < (last - first) * OKI_ROW_BLOCKS) {
				first = last;
				break;
			}
			for (uint32_t i = first; i < last; i++)
				gather(index, hold, i, &at);
		}
		for (uint32_t i = first; i < end;) {
			uint32_t next = sequence_end(hold, i);
			settle_gathered(index, hold, i, next);
			i = next;
		}
		left = first;
		if (left > 0)
			oki_index_give_way(index);
	}
}

static void seal_all(struct oki_index *index, struct oki_hold *hold)
{
	for (uint64_t i = 0; i < hold->count; i++) {
		seal(index, hold->blocks[i], hold->rank_slot);
		hold->blocks[i]->holds++;
	}
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
