/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Bins: free extents sorted by size, with two levels of bitmaps over lists (as in TLSF). */
#ifndef OKI_ARENA_BINS_H
#define OKI_ARENA_BINS_H

#include <stdbool.h>
#include <stdint.h>

/* A range of one shard: an allocation, or a free extent. In units of OKI_ALLOC_GRAIN. */
struct oki_allocation {
	/* Neighbours in the shard. In a spare object `after` is the next spare. */
	struct oki_allocation *before, *after;
	uint64_t start;
	uint64_t grains; /* size */
	union {
		struct { /* allocated */
			uint64_t id;
			void *owner;
		} own;
		struct { /* free */
			struct oki_allocation *previous, *next;
		} bin;
	} u;
	uint32_t shard;
	bool is_free;
};

#define OKI_BIN_SPLIT 32u /* bins per power of two; sizes in a bin differ by at most 3 % */
#define OKI_BIN_LEVELS 56u
#define OKI_BINS (OKI_BIN_LEVELS * OKI_BIN_SPLIT)

struct oki_bin {
	struct oki_allocation *first;
	uint64_t most; /* upper bound of the sizes in it, so that a search can skip the bin */
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
 * An extent of at least this size; NULL if there is none. Takes constant time, except in the bin
 * that has both smaller and larger extents than this. If that search fails, it is not repeated
 * until the bin gets a large enough extent.
 */
struct oki_allocation *oki_bins_fit(struct oki_bins *bins, uint64_t grains);
/* The longest extent, or one at most 3 % shorter. NULL when empty. */
struct oki_allocation *oki_bins_longest(const struct oki_bins *bins);
/* How many allocations of this size fit in all extents together. */
uint64_t oki_bins_count(const struct oki_bins *bins, uint64_t grains);

#endif
