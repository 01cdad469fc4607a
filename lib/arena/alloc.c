/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The pool: allocates ranges of the shards. Not thread-safe: the index's mutex protects it. */
#include "arena/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include "arena/bins.h"
#include "base/error.h"

#define SLAB_OBJECTS 1023u /* a slab is just smaller than a multiple of 4 KiB */
#define MAX_SHARDS 64u	   /* a 64-bit mask has a bit for each zone */

/* Allocation objects come from slabs that live as long as the pool. */
struct slab {
	struct slab *next;
	struct oki_allocation objects[SLAB_OBJECTS];
};

/* The free extents of all shards on one NUMA node. */
struct zone {
	int32_t node;
	struct oki_bins bins;
};

struct oki_pool {
	uint64_t total; /* grains */
	uint64_t used;
	uint64_t next_id;
	struct slab *slabs;
	struct oki_allocation *spare; /* linked by after */
	struct zone *zones;
	uint32_t zone_count;
	uint32_t shard_zone[MAX_SHARDS];
};

static void push_spare(struct oki_pool *pool, struct oki_allocation *object)
{
	object->is_free = true; /* so that oki_pool_free() detects a second free */
	object->after = pool->spare;
	pool->spare = object;
}

static struct oki_allocation *take_spare(struct oki_pool *pool)
{
	if (!pool->spare) {
		struct slab *slab = malloc(sizeof(*slab));
		if (!slab)
			return NULL;
		slab->next = pool->slabs;
		pool->slabs = slab;
		for (uint32_t i = SLAB_OBJECTS; i > 0; i--)
			push_spare(pool, &slab->objects[i - 1]);
	}
	struct oki_allocation *object = pool->spare;
	pool->spare = object->after;
	return object;
}

static uint32_t zone_of(struct oki_pool *pool, int32_t node)
{
	uint32_t i = 0;
	while (i < pool->zone_count && pool->zones[i].node != node)
		i++;
	if (i == pool->zone_count)
		pool->zones[pool->zone_count++].node = node;
	return i;
}

static int add_shard(struct oki_pool *pool, uint32_t shard, uint64_t bytes, int32_t node,
		     struct okv_error *err)
{
	struct oki_allocation *all = take_spare(pool);
	if (!all)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
	*all = (struct oki_allocation){.grains = bytes / OKI_ALLOC_GRAIN, .shard = shard};
	pool->shard_zone[shard] = zone_of(pool, node);
	pool->total += all->grains;
	oki_bins_insert(&pool->zones[pool->shard_zone[shard]].bins, all);
	return 0;
}

int oki_pool_create(const uint64_t *shard_bytes, const int32_t *shard_nodes, uint32_t shard_count,
		    struct oki_pool **ret_pool, struct okv_error *err)
{
	if (shard_count == 0 || shard_count > MAX_SHARDS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%u shards", shard_count);
	for (uint32_t i = 0; i < shard_count; i++)
		if (shard_bytes[i] < OKI_ALLOC_GRAIN || shard_bytes[i] > INT64_MAX / MAX_SHARDS)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					"shard %u of %" PRIu64 " bytes", i, shard_bytes[i]);
	struct oki_pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
	pool->next_id = 1;
	int rc = 0;
	pool->zones = calloc(shard_count, sizeof(*pool->zones));
	if (!pool->zones) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
		goto destroy;
	}
	/* Backwards: the last inserted extent of a size is used first, which should be shard 0. */
	for (uint32_t i = shard_count; i > 0; i--) {
		rc = add_shard(pool, i - 1, shard_bytes[i - 1], shard_nodes[i - 1], err);
		if (rc < 0)
			goto destroy;
	}
	*ret_pool = pool;
	return 0;

destroy:
	oki_pool_destroy(pool);
	return rc;
}

void oki_pool_destroy(struct oki_pool *pool)
{
	if (!pool)
		return;
	while (pool->slabs) {
		struct slab *slab = pool->slabs;
		pool->slabs = slab->next;
		free(slab);
	}
	free(pool->zones);
	free(pool);
}

static void unlink_extent(struct oki_allocation *extent)
{
	if (extent->before)
		extent->before->after = extent->after;
	if (extent->after)
		extent->after->before = extent->before;
}

static void link_before(struct oki_allocation *extent, struct oki_allocation *allocation)
{
	allocation->before = extent->before;
	allocation->after = extent;
	if (allocation->before)
		allocation->before->after = allocation;
	extent->before = allocation;
}

/* Make allocations at the low end of a free extent. Fewer than count only when malloc() fails. */
static uint32_t split_extent(struct oki_pool *pool, struct oki_allocation *extent, uint64_t grains,
			     uint32_t count, struct oki_allocation **out)
{
	struct oki_bins *bins = &pool->zones[pool->shard_zone[extent->shard]].bins;
	uint32_t n = 0;
	oki_bins_remove(bins, extent);
	while (n < count) {
		struct oki_allocation *allocation = take_spare(pool);
		if (!allocation)
			break;
		allocation->start = extent->start;
		allocation->grains = grains;
		allocation->u.own.id = pool->next_id++;
		allocation->u.own.owner = NULL;
		allocation->shard = extent->shard;
		allocation->is_free = false;
		link_before(extent, allocation);
		extent->start += grains;
		extent->grains -= grains;
		out[n++] = allocation;
	}
	pool->used += n * grains;
	if (extent->grains > 0) {
		oki_bins_insert(bins, extent);
	} else {
		unlink_extent(extent);
		push_spare(pool, extent);
	}
	return n;
}

static struct oki_allocation *fit_in(struct oki_pool *pool, uint64_t zones, uint64_t grains)
{
	for (; zones; zones &= zones - 1) {
		struct zone *zone = &pool->zones[__builtin_ctzll(zones)];
		struct oki_allocation *extent = oki_bins_fit(&zone->bins, grains);
		if (extent)
			return extent;
	}
	return NULL;
}

static struct oki_allocation *longest_in(struct oki_pool *pool, uint64_t zones)
{
	struct oki_allocation *longest = NULL;
	for (; zones; zones &= zones - 1) {
		struct zone *zone = &pool->zones[__builtin_ctzll(zones)];
		struct oki_allocation *extent = oki_bins_longest(&zone->bins);
		if (extent && (!longest || extent->grains > longest->grains))
			longest = extent;
	}
	return longest;
}

static uint32_t alloc_in(struct oki_pool *pool, uint64_t zones, uint64_t grains, uint32_t count,
			 struct oki_allocation **out)
{
	uint32_t n = 0;
	while (n < count) {
		uint32_t left = count - n;
		struct oki_allocation *extent = fit_in(pool, zones, grains * left);
		if (!extent)
			extent = longest_in(pool, zones);
		/* longest_in() may miss an extent that is up to 3 % longer; fit_in() finds it. */
		if (extent && extent->grains < grains)
			extent = fit_in(pool, zones, grains);
		if (!extent)
			break;
		uint64_t room = extent->grains / grains;
		uint32_t want = room < left ? (uint32_t)room : left;
		uint32_t got = split_extent(pool, extent, grains, want, out + n);
		n += got;
		if (got < want)
			break;
	}
	return n;
}

static uint64_t grains_of(uint64_t bytes)
{
	return bytes / OKI_ALLOC_GRAIN + (bytes % OKI_ALLOC_GRAIN != 0);
}

uint32_t oki_pool_alloc(struct oki_pool *pool, uint64_t bytes, uint32_t count, int32_t node,
			struct oki_allocation **out)
{
	uint64_t grains = grains_of(bytes);
	uint64_t available = pool->total - pool->used;
	if (grains == 0 || grains > available)
		return 0;
	if (count > available / grains)
		count = (uint32_t)(available / grains);
	uint64_t all = UINT64_MAX >> (64 - pool->zone_count);
	uint64_t preferred = 0;
	for (uint32_t i = 0; node >= 0 && i < pool->zone_count; i++)
		if (pool->zones[i].node == node)
			preferred = UINT64_C(1) << i;
	uint32_t n = 0;
	if (preferred)
		n = alloc_in(pool, preferred, grains, count, out);
	return n + alloc_in(pool, all & ~preferred, grains, count - n, out + n);
}

/* Merge a free extent with the free extent after it; neither is in a bin. */
static void merge(struct oki_pool *pool, struct oki_allocation *extent,
		  struct oki_allocation *after)
{
	extent->grains += after->grains;
	unlink_extent(after);
	push_spare(pool, after);
}

void oki_pool_free(struct oki_pool *pool, struct oki_allocation *allocation)
{
	if (allocation->is_free)
		oki_die("allocation of shard %u at %" PRIu64 " freed twice", allocation->shard,
			allocation->start * OKI_ALLOC_GRAIN);
	struct oki_bins *bins = &pool->zones[pool->shard_zone[allocation->shard]].bins;
	struct oki_allocation *before = allocation->before;
	struct oki_allocation *after = allocation->after;
	struct oki_allocation *extent = allocation;
	pool->used -= allocation->grains;
	if (after && after->is_free) {
		oki_bins_remove(bins, after);
		merge(pool, extent, after);
	}
	if (before && before->is_free) {
		oki_bins_remove(bins, before);
		merge(pool, before, extent);
		extent = before;
	}
	oki_bins_insert(bins, extent);
}

uint32_t oki_allocation_shard(const struct oki_allocation *allocation)
{
	return allocation->shard;
}

uint64_t oki_allocation_offset(const struct oki_allocation *allocation)
{
	return allocation->start * OKI_ALLOC_GRAIN;
}

uint64_t oki_allocation_id(const struct oki_allocation *allocation)
{
	return allocation->u.own.id;
}

uint64_t oki_allocation_bytes(const struct oki_allocation *allocation)
{
	return allocation->grains * OKI_ALLOC_GRAIN;
}

void oki_allocation_set_owner(struct oki_allocation *allocation, void *owner)
{
	allocation->u.own.owner = owner;
}

void *oki_allocation_owner(const struct oki_allocation *allocation)
{
	return allocation->is_free ? NULL : allocation->u.own.owner;
}

struct oki_allocation *oki_allocation_before(const struct oki_allocation *allocation)
{
	return allocation->before;
}

struct oki_allocation *oki_allocation_after(const struct oki_allocation *allocation)
{
	return allocation->after;
}

bool oki_allocation_is_free(const struct oki_allocation *allocation)
{
	return allocation->is_free;
}

uint64_t oki_pool_fits(const struct oki_pool *pool, uint64_t bytes)
{
	uint64_t grains = grains_of(bytes);
	if (grains == 0 || grains > pool->total)
		return 0;
	uint64_t count = 0;
	for (uint32_t i = 0; i < pool->zone_count; i++)
		count += oki_bins_count(&pool->zones[i].bins, grains);
	return count;
}

uint64_t oki_pool_total(const struct oki_pool *pool)
{
	return pool->total * OKI_ALLOC_GRAIN;
}

uint64_t oki_pool_used(const struct oki_pool *pool)
{
	return pool->used * OKI_ALLOC_GRAIN;
}

uint64_t oki_allocation_overhead(void)
{
	return sizeof(struct oki_allocation);
}
