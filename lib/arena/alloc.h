/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The pool: allocates ranges of the shards. Not thread-safe: the index's mutex protects it. */
#ifndef OKI_ARENA_ALLOC_H
#define OKI_ARENA_ALLOC_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

#define OKI_ALLOC_GRAIN 64u /* bytes; sizes and offsets are multiples of it */

struct oki_pool;

/* One allocation: an object of the pool that describes a range of a shard. */
struct oki_allocation;

int oki_pool_create(const uint64_t *shard_bytes, const int32_t *shard_nodes, uint32_t shard_count,
		    struct oki_pool **ret_pool, struct okv_error *err);
void oki_pool_destroy(struct oki_pool *pool);

/*
 * Make up to count allocations of `bytes` each, adjacent and in ascending order where space allows:
 * all in one free extent if it is large enough, else in the longest extents first. Shards of `node`
 * (-1: any) come first. Returns their number n, and out[0..n), each with an id that was never used.
 */
uint32_t oki_pool_alloc(struct oki_pool *pool, uint64_t bytes, uint32_t count, int32_t node,
			struct oki_allocation **out);
void oki_pool_free(struct oki_pool *pool, struct oki_allocation *allocation);

uint32_t oki_allocation_shard(const struct oki_allocation *allocation);
uint64_t oki_allocation_offset(const struct oki_allocation *allocation);
uint64_t oki_allocation_id(const struct oki_allocation *allocation);
uint64_t oki_allocation_bytes(const struct oki_allocation *allocation); /* rounded to the grain */
/* The caller's object that the allocation belongs to; NULL at first, and for a free extent. */
void oki_allocation_set_owner(struct oki_allocation *allocation, void *owner);
void *oki_allocation_owner(const struct oki_allocation *allocation);

/*
 * The neighbours by address, allocations and free extents; NULL at the ends of a shard. Free
 * extents are never adjacent, and are valid until the next call that allocates or frees.
 */
struct oki_allocation *oki_allocation_before(const struct oki_allocation *allocation);
struct oki_allocation *oki_allocation_after(const struct oki_allocation *allocation);
bool oki_allocation_is_free(const struct oki_allocation *allocation);

/* How many allocations of `bytes` would fit now, adjacent or not. */
uint64_t oki_pool_fits(const struct oki_pool *pool, uint64_t bytes);
uint64_t oki_pool_total(const struct oki_pool *pool);
uint64_t oki_pool_used(const struct oki_pool *pool);
/* Bytes of heap memory per allocation. */
uint64_t oki_allocation_overhead(void);

#endif
