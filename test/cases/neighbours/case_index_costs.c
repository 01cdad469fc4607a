/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index alone: what one large block costs a cache of small ones, and how long single calls hold
 * the one mutex. Usage: case_index_costs [large | ratio | chain | calls]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arena/alloc.h"
#include "grant/state.h"
#include "index/index.h"

#define GROUPS 8u

static struct okv_error err;
static uint64_t random_state = 88172645463325252ull;

static uint64_t draw(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void fail(void)
{
	puts(err.text);
	exit(2);
}

static double cpu_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t namespace_of(struct oki_index *x, const char *model, uint32_t groups,
			     uint64_t bytes)
{
	struct okv_group_schema schema[GROUPS] = {0};
	struct okv_layer_schema layers[GROUPS] = {0};
	struct okv_namespace_options o = {.size = sizeof(o), .rank_slots = 1, .pipeline_stages = 1};
	uint8_t *text;
	size_t length;
	uint32_t id = 0;
	for (uint32_t i = 0; i < groups; i++) {
		layers[i] = (struct okv_layer_schema){i, 1, {bytes}};
		schema[i] = (struct okv_group_schema){OKV_GROUP_FULL, 16, 0, 1, "NHD", &layers[i]};
	}
	o.model = model;
	o.groups = schema;
	o.group_count = groups;
	if (oki_identity_encode(&o, &text, &length, &err) ||
	    oki_index_namespace(x, text, length, &id, &err))
		fail();
	free(text);
	return id;
}

static uint8_t *keys_from(uint64_t first, uint32_t n)
{
	uint8_t *keys = calloc(n, 16);
	for (uint32_t i = 0; keys && i < n; i++) {
		uint64_t value = first + i;
		memcpy(keys + (size_t)i * 16, &value, 8);
	}
	return keys;
}

struct spent {
	double begin, seal;
};

/* Publish n keys of each group and seal them; how many blocks were stored. */
static uint64_t publish(struct oki_index *x, uint32_t ns, uint32_t groups, uint64_t first,
			uint32_t n, uint32_t position, struct spent *ret_spent)
{
	static struct okw_record record;
	struct oki_index_publish_keys k[GROUPS];
	uint8_t *keys = keys_from(first, n), *parent = keys_from(first - 1, 1);
	struct oki_hold *hold = NULL;
	struct okw_stretch_reply counts;
	struct oki_proof proof;
	struct spent spent = {0};
	uint64_t stored = 0;
	for (uint32_t i = 0; i < groups; i++)
		k[i] = (struct oki_index_publish_keys){.keys = {i, n, 16, keys},
						       .first_position = position,
						       .parent = position ? parent : NULL};
	const struct oki_index_publish ask = {
		.namespace_id = ns, .node = -1, .group_count = groups, .groups = k, .now_ns = 1};
	double start = cpu_seconds();
	int rc = oki_index_publish_begin(x, &ask, &hold, &counts, &err);
	spent.begin = cpu_seconds() - start;
	if (!rc) {
		oki_hold_blocks(hold, &stored);
		memset(&record, 0, sizeof(record));
		atomic_store(&record.tag, OKI_TAG(1, OKW_DRAINED));
		if (!oki_proof_drained(&record, OKI_TAG(1, OKW_DRAINED), &proof))
			exit(3);
		start = cpu_seconds();
		oki_hold_release(x, hold, &proof);
		spent.seal = cpu_seconds() - start;
	}
	free(keys);
	free(parent);
	if (ret_spent)
		*ret_spent = spent;
	return stored;
}

/* Look n keys of each group up; a lease is given back unless keep. How long it took. */
static double look_up(struct oki_index *x, uint32_t ns, uint32_t groups, uint64_t first, uint32_t n,
		      bool peek, bool keep)
{
	struct oki_index_keys k[GROUPS];
	struct okw_lookup_reply reply;
	uint8_t *keys = keys_from(first, n);
	for (uint32_t i = 0; i < groups; i++)
		k[i] = (struct oki_index_keys){i, n, 16, keys};
	const struct oki_index_lookup ask = {.namespace_id = ns,
					     .peek = peek,
					     .consumers = 1,
					     .group_count = groups,
					     .groups = k,
					     .now_ns = 1};
	double start = cpu_seconds();
	int rc = oki_index_lookup(x, &ask, &reply, &err);
	if (!rc && !peek && !keep)
		oki_index_lease_release(x, 0, reply.lease_slot);
	double took = cpu_seconds() - start;
	free(keys);
	return took;
}

static struct oki_index *make(uint64_t bytes)
{
	struct oki_pool *pool;
	struct oki_index *x;
	int32_t node = -1;
	if (oki_pool_create(&bytes, &node, 1, &pool, &err))
		fail();
	const struct oki_index_config config = {.pool = pool,
						.reserve_percent = 100,
						.session_percent = 100,
						.lease_ttl_ns = 1ull << 62};
	if (oki_index_create(&config, &x, &err))
		fail();
	return x;
}

static struct oki_index_stats show(struct oki_index *x, const char *what)
{
	struct oki_index_stats s;
	oki_index_stats(x, &s);
	if (what)
		printf("  %-28s blocks %8llu, used %5.1f %%, evictions %llu\n", what,
		       (unsigned long long)s.blocks,
		       100.0 * (double)s.bytes_used / (double)s.bytes_total,
		       (unsigned long long)s.evictions);
	return s;
}

static void fill(struct oki_index *x, uint32_t ns, uint64_t blocks)
{
	for (uint64_t i = 0; i < blocks; i++)
		publish(x, ns, 1, 1 + 10 * i, 1, 0, NULL);
	for (uint64_t i = 0; i < 6 * blocks; i++)
		look_up(x, ns, 1, 1 + 10 * (draw() % blocks), 1, false, false);
}

static void large(void)
{
	const uint64_t blocks = 65536;
	struct spent spent;
	puts("1 GiB of 16 KiB blocks, used in random order; one block of 4 MiB is published");
	struct oki_index *x = make(1ull << 30);
	uint32_t small = namespace_of(x, "small", 1, 16384);
	uint32_t big = namespace_of(x, "large", 1, 4u << 20);
	fill(x, small, blocks);
	show(x, "before");
	uint64_t stored = publish(x, big, 1, 5, 1, 0, &spent);
	printf("  stored %llu, %.1f ms under the mutex\n", (unsigned long long)stored,
	       spent.begin * 1e3);
	show(x, "after it");
	fill(x, small, blocks);
	for (uint64_t i = 0; i < blocks; i += 12)
		look_up(x, small, 1, 1 + 10 * i, 1, false, true);
	show(x, "filled again, 8 % leased");
	stored = publish(x, big, 1, 7, 1, 0, &spent);
	printf("  stored %llu, %.1f ms under the mutex\n", (unsigned long long)stored,
	       spent.begin * 1e3);
	show(x, "after another one");
}

static void ratio(void)
{
	const uint64_t bytes = 262144, blocks = (1ull << 30) / bytes;
	puts("1 GiB of blocks used in random order, and one that is so many times as large");
	for (uint64_t times = 2; times <= 64; times *= 2) {
		struct oki_index *x = make(1ull << 30);
		uint32_t small = namespace_of(x, "small", 1, bytes);
		uint32_t big = namespace_of(x, "large", 1, bytes * times);
		fill(x, small, blocks);
		uint64_t before = show(x, NULL).evictions;
		publish(x, big, 1, 5, 1, 0, NULL);
		uint64_t evicted = show(x, NULL).evictions - before;
		printf("  %2llu times: evicts %llu small ones of %llu\n", (unsigned long long)times,
		       (unsigned long long)evicted, (unsigned long long)blocks);
	}
}

static void chain(void)
{
	puts("a sequence that grows by a block a publish, beside 2 million others");
	struct oki_index *x = make(3ull << 30);
	uint32_t ns = namespace_of(x, "model", 1, 1024);
	for (uint64_t i = 0; i < 500; i++)
		publish(x, ns, 1, 1ull << 40 | i << 20, 4096, 0, NULL);
	for (uint32_t at = 0; at < 5000; at++) {
		struct spent spent;
		publish(x, ns, 1, 1 + at, 1, at, &spent);
		if (at == 1 || at == 64 || at == 512 || at == 2048 || at == 4900)
			printf("  block %4u: %7.1f us to begin, %7.1f us to seal\n", at,
			       spent.begin * 1e6, spent.seal * 1e6);
	}
}

static void calls(void)
{
	struct spent spent;
	puts("single calls on a full pool, 2 million blocks of 1 KiB in 8 groups");
	struct oki_index *x = make(2ull << 30);
	uint32_t ns = namespace_of(x, "model", GROUPS, 1024);
	for (uint64_t i = 0; i < 64; i++)
		publish(x, ns, GROUPS, 1 + (i << 20), 4096, 0, NULL);
	show(x, "");
	for (uint32_t n = 4096; n >= 512; n /= 8) {
		publish(x, ns, GROUPS, 1ull << 41 | (uint64_t)n << 20, n, 0, &spent);
		printf("  publish of 8 x %4u: %.1f ms to begin, %.1f ms to seal\n", n,
		       spent.begin * 1e3, spent.seal * 1e3);
	}
	for (uint32_t n = 1; n <= 4096; n *= 16) {
		double peek = 0, lease = 0;
		for (int i = 0; i < 20; i++) {
			peek += look_up(x, ns, GROUPS, 1 + ((20 + draw() % 40) << 20), n, true,
					false);
			lease += look_up(x, ns, GROUPS, 1 + ((20 + draw() % 40) << 20), n, false,
					 false);
		}
		printf("  lookup of 8 x %4u: peek %8.1f us, lease and release %8.1f us\n", n,
		       peek / 20 * 1e6, lease / 20 * 1e6);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {{"large", large}, {"ratio", ratio}, {"chain", chain}, {"calls", calls}};
	oki_index_thread_enter();
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (argc < 2 || !strcmp(argv[1], parts[i].name))
			parts[i].run();
	return 0;
}
