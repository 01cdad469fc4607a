/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Runs stand for exactly the pairs they came from. */
#include "compile_fixture.h"
#include "support/suite.h"

/* Rows the runs stand for, of one segment. */
static uint64_t rows_of(const struct oki_runs *runs)
{
	uint64_t rows = 0;
	for (uint32_t i = 0; i < runs->count; i++)
		rows += (uint64_t)runs->runs[i].blocks * runs->runs[i].inner;
	return rows;
}

/* What one row of a run or of a pair says: page `page` is part `part` of the block at host. */
struct row {
	uint64_t host;
	uint32_t page;
	uint32_t part;
};

static int compare_rows(const void *a, const void *b)
{
	const struct row *x = a;
	const struct row *y = b;
	if (x->page != y->page)
		return x->page < y->page ? -1 : 1;
	if (x->host != y->host)
		return x->host < y->host ? -1 : 1;
	return (x->part > y->part) - (x->part < y->part);
}

static void expand_run(const struct oki_run *run, struct row *rows)
{
	for (uint32_t o = 0; o < run->blocks; o++)
		for (uint32_t j = 0; j < run->inner; j++)
			*rows++ = (struct row){
				(uintptr_t)run->host + o * run->host_pitch,
				run->page + o * run->page_pitch + j * run->inner_step,
				run->inner_first + j,
			};
}

/* One verdict a run: Check writes a message for every assertion, and there are many runs. */
static bool run_is_sound(const struct oki_run *run, uint64_t max_pitch)
{
	uintptr_t first = (uintptr_t)run->host;
	if (run->blocks < 1 || run->inner < 1)
		return false;
	if ((run->blocks > 1) != (run->host_pitch > 0) ||
	    (run->blocks > 1) != (run->page_pitch > 0) || (run->inner > 1) != (run->inner_step > 0))
		return false;
	if ((run->blocks > 1 && run->host_pitch < BLOCK) || run->host_pitch > max_pitch ||
	    run->page_pitch * (uint64_t)STRIDE > max_pitch ||
	    run->inner_step * (uint64_t)STRIDE > max_pitch)
		return false;
	/* regions are far apart: no row may leave the one it started in */
	return first >> 36 == (first + (run->blocks - 1) * run->host_pitch) >> 36;
}

/* Compile, expand, compare; returns the runs. */
static struct oki_runs compile(const struct oki_pair *pairs, uint32_t count, const uint32_t *pages,
			       uint32_t ppb, uint64_t max_pitch)
{
	struct oki_runs runs;
	uint64_t total = (uint64_t)count * ppb;
	struct row *want = calloc(total + 1, sizeof(want[0]));
	struct row *got = calloc(total + 1, sizeof(got[0]));
	struct oki_pair *mine = calloc(count + 1u, sizeof(mine[0]));
	memcpy(mine, pairs, count * sizeof(mine[0]));
	ck_assert_int_eq(oki_compile(&scratch, mine, count, pages, ppb, BLOCK, STRIDE, max_pitch,
				     &runs, NULL),
			 0);
	ck_assert_uint_eq(rows_of(&runs), total);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t j = 0; j < ppb; j++)
			want[i * ppb + j] = (struct row){
				(uintptr_t)pairs[i].host,
				pages[pairs[i].ordinal * ppb + j],
				j,
			};
	struct row *at = got;
	for (uint32_t i = 0; i < runs.count; i++) {
		const struct oki_run *run = &runs.runs[i];
		if (!run_is_sound(run, max_pitch))
			ck_abort_msg("run %u of %u: %u blocks of pitch %llu and %u, %u inner of %u",
				     i, runs.count, run->blocks,
				     (unsigned long long)run->host_pitch, run->page_pitch,
				     run->inner, run->inner_step);
		expand_run(run, at);
		at += run->blocks * run->inner;
	}
	qsort(want, total, sizeof(want[0]), compare_rows);
	qsort(got, total, sizeof(got[0]), compare_rows);
	ck_assert_int_eq(memcmp(want, got, total * sizeof(want[0])), 0);
	free(mine);
	free(got);
	free(want);
	return runs;
}

static uint32_t count_runs(const struct oki_pair *pairs, uint32_t count, const uint32_t *pages,
			   uint32_t ppb, uint64_t max_pitch)
{
	struct oki_runs runs = compile(pairs, count, pages, ppb, max_pitch);
	uint32_t made = runs.count;
	oki_runs_fini(&runs);
	oki_runs_fini(&runs);
	return made;
}

START_TEST(nothing_makes_no_runs)
{
	struct oki_runs runs = {.count = 7};
	ck_assert_int_eq(
		oki_compile(&scratch, NULL, 0, NULL, 4, BLOCK, STRIDE, PITCH_MAX, &runs, NULL), 0);
	ck_assert_uint_eq(runs.count, 0);
	ck_assert_uint_eq(rows_of(&runs), 0);
	oki_runs_fini(&runs);
	struct oki_pair pair = {host_at(0, 0), 0, 0};
	struct okv_error err;
	uint32_t page = 0;
	ck_assert_int_eq(
		oki_compile(&scratch, NULL, 1, &page, 1, BLOCK, STRIDE, PITCH_MAX, &runs, &err),
		OKV_E_INVAL);
	ck_assert_int_eq(
		oki_compile(&scratch, &pair, 1, NULL, 1, BLOCK, STRIDE, PITCH_MAX, &runs, &err),
		OKV_E_INVAL);
	ck_assert_int_eq(
		oki_compile(&scratch, &pair, 1, &page, 0, BLOCK, STRIDE, PITCH_MAX, &runs, &err),
		OKV_E_INVAL);
}
END_TEST

START_TEST(adjacent_blocks_make_one_run)
{
	struct oki_pair pairs[64];
	uint32_t pages[64 * 4];
	for (uint32_t i = 0; i < 64; i++)
		pairs[i] = (struct oki_pair){host_at(0, i), 0, i};
	for (uint32_t i = 0; i < 256; i++)
		pages[i] = 1000 + i;
	struct oki_runs runs = compile(pairs, 64, pages, 4, PITCH_MAX);
	ck_assert_uint_eq(runs.count, 1);
	ck_assert_ptr_eq(runs.runs[0].host, host_at(0, 0));
	ck_assert_uint_eq(runs.runs[0].host_pitch, BLOCK);
	ck_assert_uint_eq(runs.runs[0].blocks, 64);
	ck_assert_uint_eq(runs.runs[0].page_pitch, 4);
	ck_assert_uint_eq(runs.runs[0].page, 1000);
	ck_assert_uint_eq(runs.runs[0].inner, 4);
	ck_assert_uint_eq(runs.runs[0].inner_first, 0);
	ck_assert_uint_eq(runs.runs[0].inner_step, 1);
	oki_runs_fini(&runs);
	/* the same in any order of the list */
	for (uint32_t i = 0; i < 64; i++) {
		uint32_t other = random_below(64);
		struct oki_pair kept = pairs[i];
		pairs[i] = pairs[other];
		pairs[other] = kept;
	}
	ck_assert_uint_eq(count_runs(pairs, 64, pages, 4, PITCH_MAX), 1);
	/* and one page per block */
	ck_assert_uint_eq(count_runs(pairs, 64, pages, 1, PITCH_MAX), 1);
}
END_TEST

START_TEST(descending_hosts_are_never_joined)
{
	struct oki_pair pairs[16];
	uint32_t pages[16];
	for (uint32_t i = 0; i < 16; i++) {
		pairs[i] = (struct oki_pair){host_at(0, 16 - i), 0, i};
		pages[i] = i;
	}
	ck_assert_uint_eq(count_runs(pairs, 16, pages, 1, UINT64_MAX), 16);
	/* both descending is ascending seen from the other end */
	for (uint32_t i = 0; i < 16; i++)
		pages[i] = 16 - i;
	ck_assert_uint_eq(count_runs(pairs, 16, pages, 1, PITCH_MAX), 1);
}
END_TEST

START_TEST(regions_are_never_joined)
{
	/* alternating between two regions: each has its own constant pitch */
	struct oki_pair pairs[16];
	uint32_t pages[16];
	for (uint32_t i = 0; i < 16; i++) {
		pairs[i] = (struct oki_pair){host_at(i % 2, i), i % 2, i};
		pages[i] = i;
	}
	ck_assert_uint_eq(count_runs(pairs, 16, pages, 1, UINT64_MAX), 2);
	/* neighbours in address space, still two mappings */
	for (uint32_t i = 0; i < 16; i++)
		pairs[i] = (struct oki_pair){host_at(0, i), i / 8, i};
	ck_assert_uint_eq(count_runs(pairs, 16, pages, 1, PITCH_MAX), 2);
}
END_TEST

START_TEST(pitches_are_bounded)
{
	struct oki_pair pairs[4];
	uint32_t pages[4];
	for (uint32_t i = 0; i < 4; i++) {
		pairs[i] = (struct oki_pair){host_at(0, i * 10), 0, i};
		pages[i] = i * 3;
	}
	ck_assert_uint_eq(count_runs(pairs, 4, pages, 1, 3 * STRIDE), 1);
	ck_assert_uint_eq(count_runs(pairs, 4, pages, 1, 3 * STRIDE - 1), 4);
	ck_assert_uint_eq(count_runs(pairs, 1, pages, 4, 3 * STRIDE), 1);
	ck_assert_uint_eq(count_runs(pairs, 1, pages, 4, 3 * STRIDE - 1), 4);
	for (uint32_t i = 0; i < 4; i++)
		pairs[i].host = host_at(0, i * 100);
	ck_assert_uint_eq(count_runs(pairs, 4, pages, 1, 100 * BLOCK), 1);
	ck_assert_uint_eq(count_runs(pairs, 4, pages, 1, 100 * BLOCK - 1), 4);
}
END_TEST

START_TEST(blocks_closer_than_a_block_are_never_joined)
{
	struct oki_pair pairs[2] = {{host_at(0, 0), 0, 0}, {host_at(0, 0) + BLOCK - 1, 0, 1}};
	uint32_t pages[2] = {1, 2};
	ck_assert_uint_eq(count_runs(pairs, 2, pages, 1, PITCH_MAX), 2);
	pairs[1].host++;
	ck_assert_uint_eq(count_runs(pairs, 2, pages, 1, PITCH_MAX), 1);
	/* two at one place neither, however small a block may be */
	struct oki_runs runs;
	pairs[1].host = pairs[0].host;
	ck_assert_int_eq(
		oki_compile(&scratch, pairs, 2, pages, 1, 0, STRIDE, PITCH_MAX, &runs, NULL), 0);
	ck_assert_uint_eq(runs.count, 2);
	oki_runs_fini(&runs);
}
END_TEST

START_TEST(broken_blocks_become_pieces)
{
	struct oki_pair pair = {host_at(0, 5), 0, 0};
	static const uint32_t pages[8] = {10, 11, 12, 40, 38, 36, 50, 60};
	struct oki_runs runs = compile(&pair, 1, pages, 8, PITCH_MAX);
	/* 10 11 12 · 40 · 38 · 36 50 · 60, in page order within a shape */
	ck_assert_uint_eq(runs.count, 5);
	oki_runs_fini(&runs);
	/* every block broken at the same place: the pieces join across blocks */
	struct oki_pair pairs[32];
	uint32_t split[32 * 4];
	for (uint32_t i = 0; i < 32; i++) {
		pairs[i] = (struct oki_pair){host_at(0, i), 0, i};
		split[i * 4] = 1100 + i * 2;
		split[i * 4 + 1] = 1101 + i * 2;
		split[i * 4 + 2] = 20 + i * 2;
		split[i * 4 + 3] = 21 + i * 2;
	}
	ck_assert_uint_eq(count_runs(pairs, 32, split, 4, PITCH_MAX), 2);
}
END_TEST

START_TEST(a_lone_block_does_not_break_a_long_run)
{
	struct oki_pair pairs[11];
	uint32_t pages[11];
	pairs[0] = (struct oki_pair){host_at(0, 0), 0, 0};
	pages[0] = 3;
	for (uint32_t i = 1; i < 11; i++) {
		pairs[i] = (struct oki_pair){host_at(0, 20 + i), 0, i};
		pages[i] = 50 + i;
	}
	struct oki_runs runs = compile(pairs, 11, pages, 1, PITCH_MAX);
	ck_assert_uint_eq(runs.count, 2);
	ck_assert_uint_eq(runs.runs[0].blocks, 1);
	ck_assert_uint_eq(runs.runs[1].blocks, 10);
	oki_runs_fini(&runs);
	/* the same inside a block */
	runs = compile(pairs, 1, pages, 11, PITCH_MAX);
	ck_assert_uint_eq(runs.count, 2);
	ck_assert_uint_eq(runs.runs[0].inner + runs.runs[1].inner, 11);
	ck_assert(runs.runs[0].inner == 10 || runs.runs[1].inner == 10);
	oki_runs_fini(&runs);
}
END_TEST

/* Distinct pages, from wholly random to mostly ascending. */
static void random_pages(uint32_t *pages, uint32_t count, uint32_t disorder)
{
	static uint32_t pool[1 << 16];
	uint32_t spread = 1 + random_below(3);
	for (uint32_t i = 0; i < count; i++)
		pool[i] = i * spread + (random_below(8) == 0 && spread > 1);
	if (disorder == 0)
		shuffle(pool, count);
	for (uint32_t i = 0; disorder && i < count / disorder; i++) {
		uint32_t a = random_below(count), b = random_below(count);
		uint32_t kept = pool[a];
		pool[a] = pool[b];
		pool[b] = kept;
	}
	memcpy(pages, pool, count * sizeof(pages[0]));
}

START_TEST(random_plans_are_reproduced)
{
	static struct oki_pair pairs[300];
	static uint32_t pages[300 * 16];
	static uint32_t slots[1000];
	random_state = 42;
	for (int round = 0; round < 300; round++) {
		uint32_t count = 1 + random_below(300);
		uint32_t ppb = 1u << random_below(5);
		uint32_t regions = 1 + random_below(3);
		bool scattered = random_below(2);
		for (uint32_t i = 0; i < 1000; i++)
			slots[i] = i;
		if (scattered)
			shuffle(slots, 1000);
		random_pages(pages, count * ppb, random_below(5));
		for (uint32_t i = 0; i < count; i++) {
			uint32_t region = random_below(4) ? 0 : random_below(regions);
			pairs[i] = (struct oki_pair){host_at(region, slots[i]), region, i};
		}
		uint64_t max_pitch = random_below(2) ? PITCH_MAX : 20 * STRIDE;
		count_runs(pairs, count, pages, ppb, max_pitch);
	}
}
END_TEST

START_TEST(memory_stays_between_plans)
{
	enum { N = 4096, HUGE = 600000, MANY = 50 };
	struct oki_compile_scratch own = {0};
	struct oki_pair *pairs = calloc(HUGE, sizeof(pairs[0]));
	uint32_t *pages = calloc(HUGE, sizeof(pages[0]));
	struct oki_runs runs, more;
	for (uint32_t i = 0; i < HUGE; i++) {
		pairs[i] = (struct oki_pair){host_at(0, HUGE - i), 0, i};
		pages[i] = i;
	}
	/* Descending hosts: a run each. The second plan finds the memory of the first. */
	ck_assert_int_eq(
		oki_compile(&own, pairs, N, pages, 1, BLOCK, STRIDE, PITCH_MAX, &runs, NULL), 0);
	ck_assert_uint_eq(runs.count, N);
	const struct oki_run *memory = runs.runs;
	const void *work = own.memory;
	ck_assert_int_eq(
		oki_compile(&own, pairs, N, pages, 1, BLOCK, STRIDE, PITCH_MAX, &more, NULL), 0);
	ck_assert_ptr_ne(more.runs, memory);
	oki_runs_give(&own, &runs);
	ck_assert_int_eq(
		oki_compile(&own, pairs, N - 1, pages, 1, BLOCK, STRIDE, PITCH_MAX, &runs, NULL),
		0);
	ck_assert_ptr_eq(runs.runs, memory);
	ck_assert_ptr_eq(own.memory, work);
	ck_assert_uint_eq(runs.room, N);
	oki_runs_give(&own, &runs);
	oki_runs_give(&own, &more);
	oki_compile_scratch_fini(&own);
	/* As does one with a few runs more. */
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(oki_compile(&own, pairs, N / 2 + 10 + i * 90, pages, 1, BLOCK,
					     STRIDE, PITCH_MAX, &runs, NULL),
				 0);
		ck_assert(i == 0 || runs.runs == memory);
		ck_assert_uint_lt(runs.room, N - N / 4);
		memory = runs.runs;
		oki_runs_give(&own, &runs);
	}
	/* One run keeps no room for many. */
	for (uint32_t i = 0; i < N; i++)
		pairs[i].host = host_at(0, i);
	ck_assert_int_eq(
		oki_compile(&own, pairs, N, pages, 1, BLOCK, STRIDE, PITCH_MAX, &runs, NULL), 0);
	ck_assert_uint_eq(runs.count, 1);
	ck_assert_uint_eq(runs.room, 1);
	oki_runs_give(&own, &runs);
	/* What is huge is not kept. */
	ck_assert_int_eq(
		oki_compile(&own, pairs, HUGE, pages, 1, BLOCK, STRIDE, PITCH_MAX, &runs, NULL), 0);
	ck_assert_uint_gt(runs.count, HUGE - N - 1);
	oki_runs_give(&own, &runs);
	ck_assert_uint_lt(own.spare_bytes, HUGE * sizeof(struct oki_run));
	ck_assert_uint_lt(own.bytes, HUGE * sizeof(pairs[0]));
	/* Any number may be given back; the last ones stay. */
	struct oki_runs many[MANY];
	for (uint32_t i = 0; i < MANY; i++)
		ck_assert_int_eq(oki_compile(&own, pairs + N, 20000 - i, pages, 1, BLOCK, STRIDE,
					     PITCH_MAX, &many[i], NULL),
				 0);
	memory = many[MANY - 1].runs;
	for (uint32_t i = 0; i < MANY; i++)
		oki_runs_give(&own, &many[i]);
	ck_assert_uint_gt(own.spare_count, 0);
	ck_assert_uint_lt(own.spare_bytes, HUGE * sizeof(struct oki_run));
	ck_assert_int_eq(oki_compile(&own, pairs + N, 10000, pages, 1, BLOCK, STRIDE, PITCH_MAX,
				     &runs, NULL),
			 0);
	ck_assert_ptr_eq(runs.runs, memory);
	oki_runs_give(&own, &runs);
	oki_compile_scratch_fini(&own);
	ck_assert_ptr_null(own.memory);
	oki_compile_scratch_fini(&own);
	free(pages);
	free(pairs);
}
END_TEST

/* A part of a request: ordinals need not start at 0 nor be without gaps. */
START_TEST(ordinals_choose_the_pages)
{
	struct oki_pair pairs[3] = {
		{host_at(0, 1), 0, 9}, {host_at(0, 2), 0, 5}, {host_at(0, 3), 0, 7}};
	uint32_t pages[20];
	for (uint32_t i = 0; i < 20; i++)
		pages[i] = 200 - i;
	struct oki_runs runs = compile(pairs, 3, pages, 2, PITCH_MAX);
	ck_assert_uint_eq(rows_of(&runs), 6);
	oki_runs_fini(&runs);
}
END_TEST

START_TEST(largest_plan_compiles)
{
	struct oki_pair *pairs = calloc(OKV_MAX_BLOCKS, sizeof(pairs[0]));
	uint32_t *pages = calloc(OKV_MAX_BLOCKS * 16, sizeof(pages[0]));
	random_state = 7;
	for (uint32_t i = 0; i < OKV_MAX_BLOCKS; i++)
		pairs[i] = (struct oki_pair){host_at(i % 48, i), i % 48, i};
	random_pages(pages, OKV_MAX_BLOCKS * 16, 0);
	ck_assert_uint_gt(count_runs(pairs, OKV_MAX_BLOCKS, pages, 16, PITCH_MAX), 48);
	for (uint32_t i = 0; i < OKV_MAX_BLOCKS * 16; i++)
		pages[i] = i;
	ck_assert_uint_eq(count_runs(pairs, OKV_MAX_BLOCKS, pages, 16, PITCH_MAX), 48);
	free(pages);
	free(pairs);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("compile");
	TCase *tc = tcase_create("compile");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, nothing_makes_no_runs);
	tcase_add_test(tc, adjacent_blocks_make_one_run);
	tcase_add_test(tc, descending_hosts_are_never_joined);
	tcase_add_test(tc, regions_are_never_joined);
	tcase_add_test(tc, pitches_are_bounded);
	tcase_add_test(tc, blocks_closer_than_a_block_are_never_joined);
	tcase_add_test(tc, broken_blocks_become_pieces);
	tcase_add_test(tc, a_lone_block_does_not_break_a_long_run);
	tcase_add_test(tc, random_plans_are_reproduced);
	tcase_add_test(tc, memory_stays_between_plans);
	tcase_add_test(tc, ordinals_choose_the_pages);
	tcase_add_test(tc, largest_plan_compiles);
	suite_add_tcase(suite, tc);
	int rc = kv_suite_run(suite);
	oki_compile_scratch_fini(&scratch);
	return rc;
}
