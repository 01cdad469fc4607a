/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Which bytes of the shards are whose. Not thread-safe: the index's lock covers it. */
#ifndef OKI_ARENA_ALLOC_H
#define OKI_ARENA_ALLOC_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

#define OKI_ALLOC_GRAIN 64u /* sizes and offsets are multiples */

struct oki_pool;

/* A live allocation; a small object of the pool's. */
struct oki_allocation;

int oki_pool_create(const uint64_t *shard_bytes, const int32_t *shard_nodes, uint32_t shard_count,
		    struct oki_pool **ret_pool, struct okv_error *err);
void oki_pool_destroy(struct oki_pool *pool);

/*
 * Allocate up to count pieces of `bytes`, adjacent in ascending order wherever space allows:
 * one extent if one is free, else the longest extents first; shards of `node` (-1: any) come
 * first. Returns how many were allocated, in out[0..n), each with an id never used before.
 */
uint32_t oki_pool_alloc(struct oki_pool *pool, uint64_t bytes, uint32_t count, int32_t node,
			struct oki_allocation **out);
void oki_pool_free(struct oki_pool *pool, struct oki_allocation *allocation);

uint32_t oki_allocation_shard(const struct oki_allocation *allocation);
uint64_t oki_allocation_offset(const struct oki_allocation *allocation);
uint64_t oki_allocation_id(const struct oki_allocation *allocation);
uint64_t oki_allocation_bytes(const struct oki_allocation *allocation); /* rounded to the grain */

/* How many pieces of `bytes` would fit now, in whatever places. */
uint64_t oki_pool_fits(const struct oki_pool *pool, uint64_t bytes);
uint64_t oki_pool_total(const struct oki_pool *pool);
uint64_t oki_pool_used(const struct oki_pool *pool);
/* Bookkeeping bytes per live allocation. */
uint64_t oki_allocation_overhead(void);

#endif
