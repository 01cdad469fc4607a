/* SPDX-License-Identifier: Apache-2.0 */
/* [M] What a large block costs a pool of small ones. */
#include "index_fixture.h"
#include "support/suite.h"

#define SMALL 1024u
#define POOL_BLOCKS 4096u

static uint64_t state = 88172645463325252ull;

static uint32_t below(uint32_t end)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state % end);
}

/* A full pool: block i is the only one of sequence 1 + i. Used in random order afterwards. */
static void fill(struct bed *bed)
{
	bed_init(bed, POOL_BLOCKS);
	for (uint32_t i = 0; i < POOL_BLOCKS; i++)
		ck_assert_uint_eq(put(bed, 1 + i, 0, 1), 1);
	for (uint32_t i = 0; i < 4 * POOL_BLOCKS; i++)
		touch(bed, 1 + below(POOL_BLOCKS), 1);
}

static uint32_t larger(struct bed *bed, uint32_t times)
{
	char model[32];
	snprintf(model, sizeof(model), "times %u", times);
	return bed_namespace(bed, model, NULL, NULL, 0, one_full, (uint64_t)times * SMALL);
}

/* Publish into another namespace. Returns the blocks stored; *ret_evicted: bytes. */
static uint64_t put_there(struct bed *bed, uint32_t ns, uint32_t sequence, uint32_t count,
			  uint64_t block_bytes, uint64_t *ret_evicted)
{
	uint32_t own = bed->ns;
	uint64_t used = stats(bed).bytes_used;
	bed->ns = ns;
	uint64_t stored = put(bed, sequence, 0, count);
	bed->ns = own;
	*ret_evicted = used + stored * block_bytes - stats(bed).bytes_used;
	return stored;
}

START_TEST(a_large_block_evicts_its_own_size)
{
	struct bed bed;
	uint64_t evicted;
	fill(&bed);
	uint32_t ns = larger(&bed, 256);
	ck_assert_uint_eq(put_there(&bed, ns, 1, 1, 256 * SMALL, &evicted), 1);
	ck_assert_uint_eq(evicted, 256 * SMALL);
	ck_assert_uint_eq(put_there(&bed, ns, 2, 3, 256 * SMALL, &evicted), 3);
	ck_assert_uint_eq(evicted, 3 * 256 * SMALL);
	bed_fini(&bed);
}
END_TEST

START_TEST(what_cannot_fit_evicts_nothing)
{
	struct bed bed;
	uint64_t evicted;
	fill(&bed);
	uint32_t ns = larger(&bed, 13);
	for (uint32_t i = 0; i < POOL_BLOCKS; i += 12)
		lease(&bed, 0, 1 + i, 1);
	ck_assert_uint_eq(put_there(&bed, ns, 1, 1, 13 * SMALL, &evicted), 0);
	ck_assert_uint_eq(evicted, 0);
	ck_assert_uint_eq(stats(&bed).evictions, 0);
	bed_fini(&bed);
}
END_TEST

/* Blocks lie in the order in which they came: unused ones, then used ones, then ones that go while
 * time passes. The hole begins at the last of the unused, beside the used. */
START_TEST(a_hole_is_made_of_what_is_used_least)
{
	struct bed bed;
	uint64_t evicted;
	const uint32_t part = POOL_BLOCKS / 3;
	bed_init(&bed, 3 * part);
	uint32_t ns = larger(&bed, 64), churn = larger(&bed, 1);
	for (uint32_t i = 0; i < 3 * part; i++)
		put(&bed, 1 + i, 0, 1);
	for (uint32_t i = part; i > 0; i--)
		touch(&bed, i, 1);
	for (uint32_t i = 0; i < part; i++)
		touch(&bed, 1 + part + i, 1);
	for (uint32_t i = 0; i < part; i++)
		ck_assert_uint_eq(put_there(&bed, churn, 1 + i, 1, SMALL, &evicted), 1);
	for (uint32_t i = 0; i < part; i++)
		touch(&bed, 1 + part + i, 1);
	for (uint32_t i = 0; i < part / 64; i++)
		ck_assert_uint_eq(put_there(&bed, ns, 1 + i, 1, 64 * SMALL, &evicted), 1);
	for (uint32_t i = 0; i < part; i++)
		ck_assert_uint_eq(peek(&bed, 1 + part + i, 1), 1);
	bed_fini(&bed);
}
END_TEST

/* Sizes from 1:4 to 1:1000, stored and used at random, with and without pins everywhere. */
static void mix(uint32_t times, uint32_t pins)
{
	struct bed bed;
	struct okw_lookup_reply kept[64];
	uint64_t evicted, large = (uint64_t)times * SMALL;
	uint32_t stored = 0;
	fill(&bed);
	uint32_t ns = larger(&bed, times);
	for (uint32_t i = 0; i < pins; i++)
		kept[i] = lease(&bed, 0, 1 + i * (POOL_BLOCKS / pins), 1);
	for (uint32_t round = 0; round < 400; round++) {
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t sequence = 1 + below(2 * POOL_BLOCKS);
			uint32_t there = peek(&bed, sequence, 1);
			uint64_t got = put_there(&bed, bed.ns, sequence, 1, SMALL, &evicted);
			ck_assert_uint_eq(got + there, 1);
			ck_assert_uint_le(evicted, 2 * SMALL + large);
		}
		uint32_t count = 1 + below(3);
		uint64_t got = put_there(&bed, ns, 1 + round, count, large, &evicted);
		ck_assert_uint_le(evicted, 2 * got * large + large);
		stored += got > 0;
	}
	/* A run of 4096 / pins blocks holds it unless that is too short. */
	ck_assert_uint_eq(stored, pins && POOL_BLOCKS / pins <= times ? 0 : 400);
	for (uint32_t i = 0; i < pins; i++)
		ck_assert_uint_eq(peek(&bed, 1 + i * (POOL_BLOCKS / pins), 1), 1);
	for (uint32_t i = 0; i < pins; i++)
		oki_index_lease_release(bed.index, 0, kept[i].lease_slot);
	bed_fini(&bed);
}

static const uint32_t ratios[] = {4, 7, 16, 61, 250, 1000};

START_TEST(mixed_sizes_evict_at_most_twice_what_they_store)
{
	mix(ratios[_i], 0);
}
END_TEST

START_TEST(the_same_with_pins_scattered_over_the_pool)
{
	mix(ratios[_i], 3);
	mix(ratios[_i], 64);
}
END_TEST

/* A block of four ranks goes with all its slots, wherever they lie. */
START_TEST(blocks_of_several_ranks_make_holes)
{
	struct bed bed;
	uint64_t evicted;
	bed_make(&bed, 4ull * POOL_BLOCKS * SMALL, 4, 100, 100, one_full);
	for (uint32_t i = 0; i < POOL_BLOCKS; i++)
		for (uint32_t rank = 0; rank < 4; rank++)
			ck_assert_uint_eq(put_in(&bed, rank, 0, 1 + i, 0, 1), 1);
	bed.rank_slots = 1;
	uint32_t ns = larger(&bed, 64);
	for (uint32_t i = 0; i < 64; i++) {
		ck_assert_uint_eq(put_there(&bed, ns, 1 + i, 1, 64 * SMALL, &evicted), 1);
		ck_assert_uint_le(evicted, 68 * SMALL);
	}
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("hole");
	TCase *tc = tcase_create("hole");
	const int ratio_count = (int)(sizeof(ratios) / sizeof(ratios[0]));
	tcase_add_test(tc, a_large_block_evicts_its_own_size);
	tcase_add_test(tc, what_cannot_fit_evicts_nothing);
	tcase_add_test(tc, a_hole_is_made_of_what_is_used_least);
	tcase_add_loop_test(tc, mixed_sizes_evict_at_most_twice_what_they_store, 0, ratio_count);
	tcase_add_loop_test(tc, the_same_with_pins_scattered_over_the_pool, 0, ratio_count);
	tcase_add_test(tc, blocks_of_several_ranks_make_holes);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
