/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The arena allocator against a shadow map of every grain. */
#include "arena/alloc.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAIN OKI_ALLOC_GRAIN
#define SHARDS 3u
#define SHARD_GRAINS 4096u
#define LIVE_MAX 4096u

static const int32_t test_nodes[SHARDS] = {0, 1, 0};

static struct oki_pool *pool_of(const uint64_t *grains, const int32_t *nodes, uint32_t count)
{
	uint64_t bytes[64];
	struct oki_pool *pool = NULL;
	struct okv_error err;
	for (uint32_t i = 0; i < count; i++)
		bytes[i] = grains[i] * GRAIN;
	ck_assert_int_eq(oki_pool_create(bytes, nodes, count, &pool, &err), 0);
	return pool;
}

static struct oki_pool *one_shard(uint64_t grains)
{
	int32_t node = -1;
	return pool_of(&grains, &node, 1);
}

static struct oki_allocation *alloc_one(struct oki_pool *pool, uint64_t grains)
{
	struct oki_allocation *a = NULL;
	ck_assert_uint_eq(oki_pool_alloc(pool, grains * GRAIN, 1, -1, &a), 1);
	return a;
}

static uint64_t start_of(const struct oki_allocation *a)
{
	return oki_allocation_offset(a) / GRAIN;
}

static bool adjacent(const struct oki_allocation *a, const struct oki_allocation *b)
{
	return oki_allocation_shard(a) == oki_allocation_shard(b) &&
	       oki_allocation_offset(a) + oki_allocation_bytes(a) == oki_allocation_offset(b);
}

START_TEST(create_refuses_nonsense)
{
	uint64_t bytes[65];
	int32_t nodes[65];
	struct oki_pool *pool = NULL;
	struct okv_error err;
	for (uint32_t i = 0; i < 65; i++) {
		bytes[i] = 4096;
		nodes[i] = -1;
	}
	ck_assert_int_eq(oki_pool_create(bytes, nodes, 0, &pool, &err), OKV_E_INVAL);
	ck_assert_int_eq(oki_pool_create(bytes, nodes, 65, &pool, &err), OKV_E_INVAL);
	bytes[1] = 0;
	ck_assert_int_eq(oki_pool_create(bytes, nodes, 2, &pool, &err), OKV_E_INVAL);
	bytes[1] = UINT64_MAX;
	ck_assert_int_eq(oki_pool_create(bytes, nodes, 2, &pool, &err), OKV_E_INVAL);
	ck_assert_ptr_null(pool);
	oki_pool_destroy(NULL);
}
END_TEST

START_TEST(sizes_round_up_to_the_grain)
{
	struct oki_pool *pool = one_shard(64);
	struct oki_allocation *a[2];
	ck_assert_uint_eq(oki_pool_alloc(pool, 1, 1, -1, &a[0]), 1);
	ck_assert_uint_eq(oki_allocation_bytes(a[0]), GRAIN);
	ck_assert_uint_eq(oki_pool_alloc(pool, GRAIN + 1, 1, -1, &a[1]), 1);
	ck_assert_uint_eq(oki_allocation_bytes(a[1]), 2 * GRAIN);
	ck_assert_uint_eq(oki_pool_used(pool), 3 * GRAIN);
	ck_assert_uint_eq(oki_pool_total(pool), 64 * GRAIN);
	ck_assert_uint_le(oki_allocation_overhead(), 64);
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(impossible_requests_get_nothing)
{
	struct oki_pool *pool = one_shard(64);
	struct oki_allocation *a[1];
	ck_assert_uint_eq(oki_pool_alloc(pool, 0, 1, -1, a), 0);
	ck_assert_uint_eq(oki_pool_alloc(pool, GRAIN, 0, -1, a), 0);
	ck_assert_uint_eq(oki_pool_alloc(pool, 64 * GRAIN + 1, 1, -1, a), 0);
	ck_assert_uint_eq(oki_pool_alloc(pool, UINT64_MAX, UINT32_MAX, -1, a), 0);
	ck_assert_uint_eq(oki_pool_fits(pool, 0), 0);
	ck_assert_uint_eq(oki_pool_fits(pool, UINT64_MAX), 0);
	ck_assert_uint_eq(oki_pool_used(pool), 0);
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(a_whole_shard_is_usable_and_comes_back)
{
	struct oki_pool *pool = one_shard(1000);
	struct oki_allocation *all = alloc_one(pool, 1000);
	ck_assert_uint_eq(start_of(all), 0);
	ck_assert_uint_eq(oki_pool_fits(pool, 1), 0);
	oki_pool_free(pool, all);
	struct oki_allocation *a[1000];
	ck_assert_uint_eq(oki_pool_alloc(pool, GRAIN, UINT32_MAX, -1, a), 1000);
	for (uint32_t i = 0; i < 1000; i++)
		ck_assert_uint_eq(start_of(a[i]), i);
	for (uint32_t i = 0; i < 1000; i++)
		oki_pool_free(pool, a[(i * 7) % 1000]);
	oki_pool_free(pool, alloc_one(pool, 1000));
	ck_assert_uint_eq(oki_pool_used(pool), 0);
	oki_pool_destroy(pool);
}
END_TEST

/* Holes of the given sizes, in order, between live single grains. */
static struct oki_pool *pool_with_holes(const uint64_t *holes, uint32_t count)
{
	uint64_t total = 0;
	struct oki_allocation *hole[16];
	for (uint32_t i = 0; i < count; i++)
		total += holes[i] + 1;
	struct oki_pool *pool = one_shard(total);
	for (uint32_t i = 0; i < count; i++) {
		hole[i] = alloc_one(pool, holes[i]);
		alloc_one(pool, 1);
	}
	ck_assert_uint_eq(oki_pool_used(pool), oki_pool_total(pool));
	for (uint32_t i = 0; i < count; i++)
		oki_pool_free(pool, hole[i]);
	return pool;
}

START_TEST(one_stretch_is_used_when_one_is_free)
{
	/* the only extent of 97 hides among shorter ones of the same bin */
	static const uint64_t holes[] = {96, 96, 97, 96, 96};
	struct oki_pool *pool = pool_with_holes(holes, 5);
	struct oki_allocation *a[97];
	ck_assert_uint_eq(oki_pool_alloc(pool, GRAIN, 97, -1, a), 97);
	ck_assert_uint_eq(start_of(a[0]), 2 * 97);
	for (uint32_t i = 1; i < 97; i++)
		ck_assert(adjacent(a[i - 1], a[i]));
	/* now there is none, twice: the second search is answered from what the first saw */
	struct oki_allocation *b;
	ck_assert_uint_eq(oki_pool_alloc(pool, 97 * GRAIN, 1, -1, &b), 0);
	ck_assert_uint_eq(oki_pool_alloc(pool, 97 * GRAIN, 1, -1, &b), 0);
	for (uint32_t i = 0; i < 97; i++)
		oki_pool_free(pool, a[i]);
	ck_assert_uint_eq(oki_pool_alloc(pool, 97 * GRAIN, 1, -1, &b), 1);
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(longest_stretches_come_first)
{
	static const uint64_t holes[] = {40, 200, 100, 20};
	struct oki_pool *pool = pool_with_holes(holes, 4);
	ck_assert_uint_eq(oki_pool_fits(pool, 10 * GRAIN), 36);
	struct oki_allocation *a[36];
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 32, -1, a), 32);
	ck_assert_uint_eq(start_of(a[0]), 41);
	ck_assert_uint_eq(start_of(a[20]), 41 + 201);
	/* the last two fit the shortest hole that holds them */
	ck_assert_uint_eq(start_of(a[30]), 41 + 201 + 101);
	for (uint32_t i = 1; i < 32; i++)
		ck_assert(adjacent(a[i - 1], a[i]) == (i != 20 && i != 30));
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 36, -1, a), 4);
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 1, -1, a), 0);
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(a_piece_is_found_behind_many_shorter_stretches)
{
	/* more extents in the top bin than the search for the longest looks at */
	struct oki_allocation *hole[60];
	struct oki_pool *pool = one_shard(60 * 98 + 1);
	hole[0] = alloc_one(pool, 97);
	alloc_one(pool, 1);
	for (uint32_t i = 1; i < 60; i++) {
		hole[i] = alloc_one(pool, 96);
		alloc_one(pool, 1);
	}
	alloc_one(pool, 60);
	ck_assert_uint_eq(oki_pool_used(pool), oki_pool_total(pool));
	for (uint32_t i = 0; i < 60; i++)
		oki_pool_free(pool, hole[i]);
	struct oki_allocation *a[2];
	ck_assert_uint_eq(oki_pool_alloc(pool, 97 * GRAIN, 2, -1, a), 1);
	ck_assert_uint_eq(start_of(a[0]), 0);
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(the_wanted_node_comes_first)
{
	static const uint64_t grains[] = {100, 100, 100, 100};
	static const int32_t nodes[] = {0, 1, 0, 1};
	struct oki_pool *pool = pool_of(grains, nodes, 4);
	struct oki_allocation *a[40];
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 15, 1, a), 15);
	for (uint32_t i = 0; i < 15; i++)
		ck_assert_int_eq(nodes[oki_allocation_shard(a[i])], 1);
	/* five left on node 1, the rest from elsewhere */
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 12, 1, a), 12);
	for (uint32_t i = 0; i < 12; i++)
		ck_assert_int_eq(nodes[oki_allocation_shard(a[i])], i < 5 ? 1 : 0);
	/* an unknown node is no node */
	ck_assert_uint_eq(oki_pool_alloc(pool, 10 * GRAIN, 40, 7, a), 13);
	ck_assert_uint_eq(oki_pool_used(pool), oki_pool_total(pool));
	oki_pool_destroy(pool);
}
END_TEST

START_TEST(a_short_wanted_node_does_not_stop_a_large_piece)
{
	static const uint64_t grains[] = {10, 100};
	static const int32_t nodes[] = {0, 1};
	struct oki_pool *pool = pool_of(grains, nodes, 2);
	struct oki_allocation *a;
	ck_assert_uint_eq(oki_pool_alloc(pool, 50 * GRAIN, 1, 0, &a), 1);
	ck_assert_uint_eq(oki_allocation_shard(a), 1);
	oki_pool_destroy(pool);
}
END_TEST

/* ---- random work against a shadow map ---- */

struct shadow {
	struct oki_pool *pool;
	uint64_t owner[SHARDS][SHARD_GRAINS]; /* allocation id, 0: free */
	struct oki_allocation *live[LIVE_MAX];
	uint32_t count;
	uint64_t used;
	uint64_t last_id;
	uint32_t seed;
};

static uint32_t rnd(struct shadow *s, uint32_t below)
{
	s->seed = s->seed * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)s->seed * below) >> 32);
}

static void paint(struct shadow *s, const struct oki_allocation *a, uint64_t from, uint64_t to)
{
	uint64_t start = start_of(a);
	uint64_t end = start + oki_allocation_bytes(a) / GRAIN;
	ck_assert_uint_lt(oki_allocation_shard(a), SHARDS);
	ck_assert_uint_le(end, SHARD_GRAINS);
	for (uint64_t i = start; i < end; i++) {
		if (s->owner[oki_allocation_shard(a)][i] != from)
			ck_abort_msg("grain %u belongs to another", (unsigned)i);
		s->owner[oki_allocation_shard(a)][i] = to;
	}
}

/* Pieces of this size that the shadow's free extents hold, and the longest in one extent. */
static uint64_t shadow_fits(const struct shadow *s, uint64_t grains, uint64_t *ret_longest)
{
	uint64_t fits = 0;
	*ret_longest = 0;
	for (uint32_t shard = 0; shard < SHARDS; shard++) {
		uint64_t run = 0;
		for (uint32_t i = 0; i <= SHARD_GRAINS; i++) {
			if (i < SHARD_GRAINS && s->owner[shard][i] == 0) {
				run++;
				continue;
			}
			fits += run / grains;
			if (run / grains > *ret_longest)
				*ret_longest = run / grains;
			run = 0;
		}
	}
	return fits;
}

static void shadow_alloc(struct shadow *s)
{
	static const uint32_t sizes[] = {1, 3, 16, 33, 64, 97, 96, 500};
	uint32_t grains = sizes[rnd(s, 8)];
	uint32_t count = 1 + rnd(s, 20);
	int32_t node = (int32_t)rnd(s, 4) - 1;
	uint64_t longest;
	uint64_t fits = shadow_fits(s, grains, &longest);
	ck_assert_uint_eq(oki_pool_fits(s->pool, (uint64_t)grains * GRAIN), fits);
	struct oki_allocation *out[20];
	uint32_t got = oki_pool_alloc(s->pool, (uint64_t)grains * GRAIN, count, node, out);
	ck_assert_uint_eq(got, fits < count ? fits : count);
	bool extent = true;
	for (uint32_t i = 0; i < got; i++) {
		uint64_t id = oki_allocation_id(out[i]);
		ck_assert_uint_gt(id, s->last_id);
		s->last_id = id;
		ck_assert_uint_eq(oki_allocation_bytes(out[i]), (uint64_t)grains * GRAIN);
		paint(s, out[i], 0, id);
		s->used += grains;
		extent = extent && (i == 0 || adjacent(out[i - 1], out[i]));
		ck_assert_uint_lt(s->count, LIVE_MAX);
		s->live[s->count++] = out[i];
	}
	if (node < 0 || node > 1)
		ck_assert(extent || longest < count);
	ck_assert_uint_eq(oki_pool_used(s->pool), s->used * GRAIN);
}

static void shadow_free(struct shadow *s)
{
	uint32_t i = rnd(s, s->count);
	struct oki_allocation *a = s->live[i];
	s->live[i] = s->live[--s->count];
	paint(s, a, oki_allocation_id(a), 0);
	s->used -= oki_allocation_bytes(a) / GRAIN;
	oki_pool_free(s->pool, a);
	ck_assert_uint_eq(oki_pool_used(s->pool), s->used * GRAIN);
}

START_TEST(random_work_matches_the_shadow)
{
	static const uint64_t grains[SHARDS] = {SHARD_GRAINS, SHARD_GRAINS, SHARD_GRAINS};
	struct shadow *s = calloc(1, sizeof(*s));
	s->pool = pool_of(grains, test_nodes, SHARDS);
	s->seed = 12345u + (uint32_t)_i;
	for (uint32_t step = 0; step < 1500; step++) {
		if (rnd(s, 100) < 45 && s->count < LIVE_MAX - 20)
			shadow_alloc(s);
		for (uint32_t n = rnd(s, 12); n > 0 && s->count > 0; n--)
			shadow_free(s);
	}
	while (s->count > 0)
		shadow_free(s);
	/* everything has grown together again: one extent per shard */
	ck_assert_uint_eq(oki_pool_fits(s->pool, SHARD_GRAINS * GRAIN), SHARDS);
	struct oki_allocation *whole[SHARDS + 1];
	ck_assert_uint_eq(oki_pool_alloc(s->pool, SHARD_GRAINS * GRAIN, SHARDS + 1, -1, whole),
			  SHARDS);
	oki_pool_destroy(s->pool);
	free(s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("alloc");
	TCase *tc = tcase_create("alloc");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, create_refuses_nonsense);
	tcase_add_test(tc, sizes_round_up_to_the_grain);
	tcase_add_test(tc, impossible_requests_get_nothing);
	tcase_add_test(tc, a_whole_shard_is_usable_and_comes_back);
	tcase_add_test(tc, one_stretch_is_used_when_one_is_free);
	tcase_add_test(tc, longest_stretches_come_first);
	tcase_add_test(tc, a_piece_is_found_behind_many_shorter_stretches);
	tcase_add_test(tc, the_wanted_node_comes_first);
	tcase_add_test(tc, a_short_wanted_node_does_not_stop_a_large_piece);
	tcase_add_loop_test(tc, random_work_matches_the_shadow, 0, 8);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
