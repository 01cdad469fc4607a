/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Free extents sorted by size: two levels of bitmaps over lists (as in TLSF). */
#ifndef OKI_ARENA_BINS_H
#define OKI_ARENA_BINS_H

#include <stdbool.h>
#include <stdint.h>

/* A extent of one shard, free or allocated. Sizes and places in units of OKI_ALLOC_GRAIN. */
struct oki_allocation {
	struct oki_allocation *before, *after; /* neighbours in the shard; after: free objects */
	uint64_t start;
	uint64_t grains;
	union {
		uint64_t id; /* allocated */
		struct {     /* free */
			struct oki_allocation *previous, *next;
		} bin;
	} u;
	uint32_t shard;
	bool is_free;
};

#define OKI_BIN_SPLIT 32u /* bins per power of two: sizes in one bin differ by 3 % at most */
#define OKI_BIN_LEVELS 56u
#define OKI_BINS (OKI_BIN_LEVELS * OKI_BIN_SPLIT)

struct oki_bin {
	struct oki_allocation *first;
	uint64_t most; /* no extent in it is larger; what lets a search skip it */
};

struct oki_bins {
	uint64_t levels;		 /* bit l: splits[l] is not 0 */
	uint32_t splits[OKI_BIN_LEVELS]; /* bit s: bin l * OKI_BIN_SPLIT + s is not empty */
	struct oki_bin bin[OKI_BINS];
};

/* All zero is an empty struct oki_bins. */
void oki_bins_insert(struct oki_bins *bins, struct oki_allocation *extent);
void oki_bins_remove(struct oki_bins *bins, struct oki_allocation *extent);

/*
 * A extent of at least this size, or NULL if there is none at all. Constant time, but for the bin
 * whose sizes straddle the request: a search of it in vain is not repeated until it has got a
 * large enough member.
 */
struct oki_allocation *oki_bins_fit(struct oki_bins *bins, uint64_t grains);
/* The longest extent, or one at most 3 % shorter. NULL when empty. */
struct oki_allocation *oki_bins_longest(const struct oki_bins *bins);
/* How many pieces of this size all extents hold. */
uint64_t oki_bins_count(const struct oki_bins *bins, uint64_t grains);

#endif
