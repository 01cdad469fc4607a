/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The index object: create and destroy, its threads, its counters. */
#include "index/index_private.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include "base/error.h"
#include "base/fork.h"

#define MIN_BUCKETS 1024u
#define MAX_FIRST_BUCKETS (1u << 22)
/* A thread of liburcu grows the table and may be late. So the table starts with a bucket for each
 * block of this size in the pool. */
#define USUAL_BLOCK_BYTES 65536u

/* A thread must register with liburcu only once, but may enter the index of several embedded
 * Managers. */
static _Thread_local uint32_t entered;

void oki_index_thread_enter(void)
{
	if (entered++ == 0)
		rcu_register_thread();
}

void oki_index_thread_leave(void)
{
	if (--entered == 0)
		rcu_unregister_thread();
}

void oki_index_thread_offline(void)
{
	rcu_thread_offline();
}

void oki_index_thread_online(void)
{
	rcu_thread_online();
}

static void init_lists(struct oki_index *index)
{
	CDS_INIT_LIST_HEAD(&index->lru);
	index->era = 1;
	CDS_INIT_LIST_HEAD(&index->quarantine);
	CDS_INIT_LIST_HEAD(&index->lease_expiry);
	for (uint32_t i = 0; i < OKI_LEASE_BUCKETS; i++)
		CDS_INIT_LIST_HEAD(&index->lease_buckets[i]);
}

/* The largest possible allocation. Call it while the pool is empty. */
static uint64_t largest_allocation(const struct oki_pool *pool)
{
	uint64_t fits = 0;
	uint64_t beyond = oki_pool_total(pool) / OKI_ALLOC_GRAIN + 1;

	while (beyond - fits > 1) {
		uint64_t middle = fits + (beyond - fits) / 2;
		if (oki_pool_fits(pool, middle * OKI_ALLOC_GRAIN) > 0)
			fits = middle;
		else
			beyond = middle;
	}
	return fits * OKI_ALLOC_GRAIN;
}

static uint64_t share(uint64_t bytes, uint32_t percent)
{
	return bytes / 100 * percent + bytes % 100 * percent / 100;
}

static unsigned long first_buckets(uint64_t bytes)
{
	unsigned long buckets = MIN_BUCKETS;
	while (buckets < MAX_FIRST_BUCKETS && buckets < bytes / USUAL_BLOCK_BYTES)
		buckets *= 2;
	return buckets;
}

/* The threads of liburcu stay with the parent of a fork, and so do the readers that it would wait
 * for. */
int oki_index_check_fork(struct okv_error *err)
{
	static _Atomic uint64_t first;
	uint64_t here = oki_fork_generation(), nobody = 0;
	if (atomic_compare_exchange_strong(&first, &nobody, here) || nobody == here)
		return 0;
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_ARGUMENTS,
			"a process from which this one was forked had a Manager inside; this one "
			"can have none: connect to one, or start by spawn or exec");
}

int oki_index_create(const struct oki_index_config *config, struct oki_index **ret_index,
		     struct okv_error *err)
{
	if (config->reserve_percent == 0 || config->reserve_percent > 100 ||
	    config->session_percent == 0 || config->session_percent > 100)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"reservation of %u %% for all and %u %% for one session; 1 to 100 "
				"are possible",
				config->reserve_percent, config->session_percent);
	if (config->lease_ttl_ns == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "a lease TTL of zero");

	int rc;
	struct oki_index *index = calloc(1, sizeof(*index));
	if (!index)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for the index");
	/* A random seed, so that nobody can choose keys that collide in one bucket. */
	if (getrandom(&index->seed, sizeof(index->seed), 0) != sizeof(index->seed)) {
		rc = oki_fail_os(err, OKV_E_UNSUPPORTED, OKV_STAGE_ARGUMENTS, errno, "getrandom");
		goto free_index;
	}
	unsigned long buckets = first_buckets(oki_pool_total(config->pool));
	index->table =
		cds_lfht_new(buckets, buckets, 0, CDS_LFHT_AUTO_RESIZE | CDS_LFHT_ACCOUNTING, NULL);
	if (!index->table) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for the table");
		goto free_index;
	}
	index->pool = config->pool;
	index->log = config->log;
	index->lease_ttl_ns = config->lease_ttl_ns;
	index->reserve_bytes = share(oki_pool_total(config->pool), config->reserve_percent);
	index->session_bytes = share(oki_pool_total(config->pool), config->session_percent);
	index->largest_allocation = largest_allocation(config->pool);
	pthread_mutex_init(&index->turn, NULL);
	pthread_mutex_init(&index->mutex, NULL);
	init_lists(index);
	*ret_index = index;
	return 0;

free_index:
	free(index);
	return rc;
}

static void drop_blocks(struct oki_index *index)
{
	struct cds_lfht_iter iter;
	struct oki_block *block;

	cds_lfht_for_each_entry (index->table, &iter, block, node) {
		oki_block_drop(index, block);
	}
}

void oki_index_destroy(struct oki_index *index)
{
	if (!index)
		return;
	if (index->holds)
		oki_die("the index is destroyed while %llu grants name its memory",
			(unsigned long long)index->holds);
	oki_index_thread_enter();
	for (uint32_t i = 0; i < OKW_MAX_SESSIONS; i++)
		oki_index_session_end(index, i);
	oki_index_lock(index);
	oki_holds_fini(index);
	drop_blocks(index);
	oki_index_unlock(index);
	/* Wait for pending RCU callbacks: the library may be unloaded after this call. */
	rcu_barrier();
	cds_lfht_destroy(index->table, NULL);
	oki_index_thread_leave();
	oki_table_fini(index);
	oki_pins_fini(index);
	oki_namespaces_fini(index);
	pthread_mutex_destroy(&index->mutex);
	pthread_mutex_destroy(&index->turn);
	free(index);
}

void oki_index_stats(struct oki_index *index, struct oki_index_stats *ret_stats)
{
	struct oki_index_stats stats = {
		.lookups = atomic_load_explicit(&index->lookups, memory_order_relaxed),
		.lookup_keys = atomic_load_explicit(&index->lookup_keys, memory_order_relaxed),
		.lookup_hits = atomic_load_explicit(&index->lookup_hits, memory_order_relaxed),
		.metadata_per_block =
			OKI_BLOCK_BYTES(1) + OKI_TABLE_SHARE + oki_allocation_overhead(),
	};

	oki_index_take_mutex(index);
	stats.namespaces = index->namespace_count;
	stats.blocks = index->blocks;
	stats.blocks_partial = index->blocks_partial;
	stats.leases = index->leases;
	stats.evictions = index->evictions;
	stats.published_blocks = index->published_blocks;
	stats.restored_blocks = index->restored_blocks;
	stats.bytes_total = oki_pool_total(index->pool);
	stats.bytes_used = oki_pool_used(index->pool);
	stats.bytes_quarantined = index->quarantined_bytes;
	stats.bytes_pinned = index->pinned_bytes;
	pthread_mutex_unlock(&index->mutex);
	*ret_stats = stats;
}
