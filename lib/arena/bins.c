/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Bins: free extents sorted by size, with two levels of bitmaps over lists (as in TLSF). */
#include "arena/bins.h"

#include <assert.h>
#include <stddef.h>

#define SPLIT_BITS 5u
#define LONGEST_LOOKS 16u

static_assert(OKI_BIN_SPLIT == 1u << SPLIT_BITS, "split");
static_assert(sizeof(struct oki_allocation) <= 64, "one cache line per allocation");

/* Each size below OKI_BIN_SPLIT has its own bin. Above, the leading bit and the SPLIT_BITS bits
 * after it choose the bin. */
static uint32_t bin_of(uint64_t grains)
{
	if (grains < OKI_BIN_SPLIT)
		return (uint32_t)grains;
	uint32_t shift = 63u - (uint32_t)__builtin_clzll(grains) - SPLIT_BITS;
	uint32_t split = (uint32_t)(grains >> shift) & (OKI_BIN_SPLIT - 1);
	return (shift + 1) * OKI_BIN_SPLIT + split;
}

/* The first bin in which every extent is at least this large. */
static uint32_t bin_above(uint64_t grains)
{
	if (grains < OKI_BIN_SPLIT)
		return (uint32_t)grains;
	uint32_t shift = 63u - (uint32_t)__builtin_clzll(grains) - SPLIT_BITS;
	return bin_of(grains + (UINT64_C(1) << shift) - 1);
}

/* The first bin, from this one on, that is not empty; OKI_BINS if there is none. */
static uint32_t next_bin(const struct oki_bins *bins, uint32_t from)
{
	if (from >= OKI_BINS)
		return OKI_BINS;
	uint32_t level = from / OKI_BIN_SPLIT;
	uint32_t splits = bins->splits[level] & (UINT32_MAX << (from % OKI_BIN_SPLIT));
	if (splits)
		return level * OKI_BIN_SPLIT + (uint32_t)__builtin_ctz(splits);
	uint64_t levels = bins->levels & (UINT64_MAX << (level + 1));
	if (!levels)
		return OKI_BINS;
	level = (uint32_t)__builtin_ctzll(levels);
	return level * OKI_BIN_SPLIT + (uint32_t)__builtin_ctz(bins->splits[level]);
}

void oki_bins_insert(struct oki_bins *bins, struct oki_allocation *extent)
{
	uint32_t index = bin_of(extent->grains);
	struct oki_bin *bin = &bins->bin[index];
	extent->is_free = true;
	extent->u.bin.previous = NULL;
	extent->u.bin.next = bin->first;
	if (bin->first)
		bin->first->u.bin.previous = extent;
	else
		bin->most = 0;
	bin->first = extent;
	if (bin->most < extent->grains)
		bin->most = extent->grains;
	bins->splits[index / OKI_BIN_SPLIT] |= UINT32_C(1) << (index % OKI_BIN_SPLIT);
	bins->levels |= UINT64_C(1) << (index / OKI_BIN_SPLIT);
}

void oki_bins_remove(struct oki_bins *bins, struct oki_allocation *extent)
{
	uint32_t index = bin_of(extent->grains);
	struct oki_bin *bin = &bins->bin[index];
	struct oki_allocation *previous = extent->u.bin.previous;
	struct oki_allocation *next = extent->u.bin.next;
	if (next)
		next->u.bin.previous = previous;
	if (previous)
		previous->u.bin.next = next;
	else
		bin->first = next;
	extent->is_free = false;
	if (bin->first)
		return;
	uint32_t level = index / OKI_BIN_SPLIT;
	bins->splits[level] &= ~(UINT32_C(1) << (index % OKI_BIN_SPLIT));
	if (!bins->splits[level])
		bins->levels &= ~(UINT64_C(1) << level);
}

/* A search that fails lowers `most`, so that the same search costs nothing the next time. */
static struct oki_allocation *search(struct oki_bin *bin, uint64_t grains)
{
	if (!bin->first || bin->most < grains)
		return NULL;
	uint64_t most = 0;
	for (struct oki_allocation *s = bin->first; s; s = s->u.bin.next) {
		if (s->grains >= grains)
			return s;
		if (most < s->grains)
			most = s->grains;
	}
	bin->most = most;
	return NULL;
}

struct oki_allocation *oki_bins_fit(struct oki_bins *bins, uint64_t grains)
{
	struct oki_bin *own = &bins->bin[bin_of(grains)];
	if (own->first && own->first->grains >= grains)
		return own->first;
	uint32_t index = next_bin(bins, bin_above(grains));
	if (index < OKI_BINS)
		return bins->bin[index].first;
	return search(own, grains);
}

struct oki_allocation *oki_bins_longest(const struct oki_bins *bins)
{
	if (!bins->levels)
		return NULL;
	uint32_t level = 63u - (uint32_t)__builtin_clzll(bins->levels);
	uint32_t split = 31u - (uint32_t)__builtin_clz(bins->splits[level]);
	const struct oki_bin *bin = &bins->bin[level * OKI_BIN_SPLIT + split];
	struct oki_allocation *longest = bin->first;
	struct oki_allocation *s = bin->first;
	for (uint32_t i = 0; s && i < LONGEST_LOOKS && longest->grains < bin->most; i++) {
		if (s->grains > longest->grains)
			longest = s;
		s = s->u.bin.next;
	}
	return longest;
}

uint64_t oki_bins_count(const struct oki_bins *bins, uint64_t grains)
{
	uint64_t count = 0;
	uint32_t index = next_bin(bins, bin_of(grains));
	for (; index < OKI_BINS; index = next_bin(bins, index + 1))
		for (struct oki_allocation *s = bins->bin[index].first; s; s = s->u.bin.next)
			count += s->grains / grains;
	return count;
}
