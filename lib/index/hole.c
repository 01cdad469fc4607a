/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [M] Holes: adjacent blocks that are evicted together, for an allocation that fits into none of
 * them alone. Evicting by age alone would free a piece here and a piece there, and empty most of
 * the pool until two of them meet.
 */
#include "index/index_private.h"

/* Holes that are compared, each around one of the least recently used blocks. */
#define CANDIDATES 4u

struct hole {
	struct oki_allocation *first, *last;
	uint64_t bytes;
	uint64_t value; /* bytes to evict, by how recently they were used */
};

/* 0: recently listed, up to 254. */
static uint32_t age_of(const struct oki_index *index, const struct oki_block *block)
{
	uint32_t now = index->era, then = block->listed;
	return now >= then ? now - then : now + 255 - then;
}

static bool may_go(const struct oki_allocation *extent)
{
	if (!extent)
		return false;
	if (oki_allocation_is_free(extent))
		return true;
	const struct oki_block *block = oki_allocation_owner(extent);
	return block && block->listed;
}

static uint64_t value_of(const struct oki_index *index, const struct oki_allocation *extent)
{
	if (oki_allocation_is_free(extent))
		return 0;
	return oki_allocation_bytes(extent) * (256u - age_of(index, oki_allocation_owner(extent)));
}

/* The cheaper neighbour of the two that may go, a byte compared with a byte; NULL: neither may. */
static struct oki_allocation *cheaper(const struct oki_index *index, struct oki_allocation *before,
				      struct oki_allocation *after)
{
	bool left = may_go(before), right = may_go(after);

	if (!left || !right)
		return left ? before : right ? after : NULL;
	uint64_t left_value = value_of(index, before) / oki_allocation_bytes(before);
	uint64_t right_value = value_of(index, after) / oki_allocation_bytes(after);
	return left_value < right_value ? before : after;
}

/* Grow a hole around an extent. *ret_looks: extents looked at. False: it is hemmed in. */
static bool grow(const struct oki_index *index, struct oki_allocation *start, uint64_t bytes,
		 struct hole *ret_hole, uint64_t *ret_looks)
{
	struct hole w = {start, start, oki_allocation_bytes(start), value_of(index, start)};

	for (*ret_looks = 1; w.bytes < bytes; ++*ret_looks) {
		struct oki_allocation *before = oki_allocation_before(w.first);
		struct oki_allocation *next = cheaper(index, before, oki_allocation_after(w.last));
		if (!next)
			return false;
		if (next == before)
			w.first = next;
		else
			w.last = next;
		w.bytes += oki_allocation_bytes(next);
		w.value += value_of(index, next);
	}
	*ret_hole = w;
	return true;
}

static struct oki_allocation *any_slot(const struct oki_block *block)
{
	uint32_t i = 0;
	while (!block->slots[i])
		i++;
	return block->slots[i];
}

/* Several slots of a block may lie in the hole; it is taken with the first of them. */
static void take(const struct hole *w, struct cds_list_head *ret_blocks)
{
	struct oki_allocation *end = oki_allocation_after(w->last);

	for (struct oki_allocation *at = w->first; at != end; at = oki_allocation_after(at)) {
		struct oki_block *block = oki_allocation_owner(at);
		if (!block || !block->listed)
			continue;
		oki_block_keep(block);
		cds_list_add_tail(&block->lru, ret_blocks);
	}
}

uint64_t oki_hole_take(struct oki_index *index, uint64_t bytes, struct oki_hole_looks *looks,
		       struct cds_list_head *ret_blocks)
{
	struct hole best = {0}, hole;
	struct oki_block *block;
	uint32_t found = 0;

	cds_list_for_each_entry (block, &index->lru, lru) {
		uint64_t looked;
		bool grown = grow(index, any_slot(block), bytes, &hole, &looked);
		if (grown && (found == 0 || hole.value < best.value))
			best = hole;
		found += grown;
		looks->left -= looked < looks->left ? looked : looks->left;
		if (found == CANDIDATES || looks->left == 0)
			break;
	}
	if (found == 0)
		return 0;
	take(&best, ret_blocks);
	return best.bytes;
}
