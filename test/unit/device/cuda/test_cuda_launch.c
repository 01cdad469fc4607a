/* SPDX-License-Identifier: Apache-2.0 */
/* How a launch of the kernel is filled: its rows cut into pieces, its loads and its pace. No GPU.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda/cuda_device.h"
#include "support/suite.h"

static const struct oki_cuda_budget four = {.sms = 4};

/* Of up to two layers with as many rows. */
static struct oki_cuda_launch fill(enum oki_direction direction, const struct oki_layer_map *layers,
				   uint32_t count, uint32_t rows,
				   const struct oki_cuda_budget *budget)
{
	struct oki_cuda_launch launch;
	struct oki_cuda_table table = {.device = 8, .count = rows};
	const struct oki_layer_map *maps[2] = {&layers[0], &layers[1]};
	const struct oki_cuda_table *tables[2] = {&table, &table};
	oki_cuda_launch_fill(tables, direction, maps, 0, count, budget, &launch);
	/* All threads of as many SMs as have work. */
	ck_assert_uint_eq(launch.threads, OKI_GATHER_THREADS);
	ck_assert_uint_ge(launch.blocks, 1);
	ck_assert_uint_le(launch.blocks, budget->sms);
	return launch;
}

static struct oki_layer_map rows_of(uint64_t bytes, uint64_t page_stride)
{
	return (struct oki_layer_map){
		.page_stride = page_stride, .segment_count = 1, .segments = {{0, 0, bytes}}};
}

static struct oki_cuda_launch launch_of(const struct oki_layer_map *layers, uint32_t count,
					uint32_t rows, const struct oki_cuda_budget *budget)
{
	return fill(OKI_TO_BLOCKS, layers, count, rows, budget);
}

/* Of long copies as many loads are on their way as the link needs, of short ones all there can be;
 * pieces are of whole rounds of them. */
START_TEST(few_sms_have_more_on_their_way)
{
	struct oki_layer_map map = rows_of(32768, 32768);
	uint32_t last = OKI_GATHER_LOADS;
	for (uint32_t sms = 1; sms <= OKI_MAX_SMS; sms++) {
		const struct oki_cuda_budget budget = {.sms = sms};
		for (uint32_t rows = 1; rows <= 4096; rows = rows * 2 + 1) {
			struct oki_cuda_launch launch = fill(OKI_TO_PAGES, &map, 1, rows, &budget);
			const struct oki_gather *g = &launch.gather;
			uint32_t round = 32 * 16 * g->loads;
			if (g->piece > round)
				ck_assert_uint_eq(g->piece % round, 0);
			if (rows * 32768 <= OKI_CUDA_SHORT_BYTES)
				ck_assert_uint_eq(g->loads, OKI_GATHER_LOADS);
		}
		uint32_t loads = fill(OKI_TO_PAGES, &map, 1, 4096, &budget).gather.loads;
		ck_assert_uint_ge(loads, 1);
		ck_assert_uint_le(loads, last);
		/* No fewer in all than two SMs have at most. */
		ck_assert_uint_ge(sms * loads, (sms < 2 ? sms : 2) * OKI_GATHER_LOADS);
		last = loads;
	}
	ck_assert_uint_eq(last, 1);
}
END_TEST

/* ---- the pace of a publish ---- */

/* What all groups write in a nanosecond, if each takes as long for a piece of so many bytes as it
 * is told to: for its lines, and half a one. */
static double rate_of(const struct oki_cuda_launch *launch, uint32_t pace, uint32_t bytes)
{
	double groups = launch->blocks * (launch->threads / launch->lanes);
	double halves = 2 * ((bytes + OKI_GATHER_LINE - 1) / OKI_GATHER_LINE) + 1;
	return groups * bytes * OKI_GATHER_PACE / (halves * pace);
}

/* A pace is a whole number: the rate may be more by as much as that is cut off. */
static void check_pace(const struct oki_cuda_launch *launch, uint32_t pace, double rate)
{
	const struct oki_gather *g = &launch->gather;
	ck_assert_uint_gt(pace, 100);
	double most = rate * (1 + 1.0 / pace);
	bool holds = true;
	for (uint32_t bytes = 1; bytes <= g->piece; bytes++)
		holds = holds && rate_of(launch, pace, bytes) <= most;
	ck_assert(holds);
}

static const uint64_t row_bytes[] = {64,   512,	 640,  1024,  1152,	2047,
				     2048, 4096, 4097, 32768, 1u << 20, 1u << 24};
#define ROW_SIZES (sizeof(row_bytes) / sizeof(row_bytes[0]))

/* Whatever rows there are, however many SMs: no more than it may, and the most of that where the
 * rows are long enough. */
START_TEST(a_publish_keeps_its_rate)
{
	static const double rates[] = {3, 12.5, 24, 50, 400};
	for (size_t i = 0; i < ROW_SIZES; i++)
		for (uint32_t sms = 1; sms <= OKI_MAX_SMS; sms = sms * 2 + 1)
			for (uint32_t r = 0; r < 5; r++)
				for (uint32_t rows = 1; rows <= 4096; rows *= 64) {
					const struct oki_cuda_budget budget = {sms, rates[r],
									       rates[r] / 2};
					struct oki_layer_map map =
						rows_of(row_bytes[i], row_bytes[i]);
					struct oki_cuda_launch l =
						fill(OKI_TO_BLOCKS, &map, 1, rows, &budget);
					const struct oki_gather *g = &l.gather;
					check_pace(&l, g->pace, rates[r]);
					check_pace(&l, g->beside_pace, rates[r] / 2);
					if (row_bytes[i] >= 32768 && g->piece >= 4096)
						ck_assert(rate_of(&l, g->pace, g->piece) >
							  0.9 * rates[r]);
				}
}
END_TEST

/* It says how long it lasts: as long as all its bytes take at that rate. */
START_TEST(a_publish_says_when_it_ends)
{
	const struct oki_cuda_budget budget = {4, 40, 20};
	for (size_t i = 0; i < ROW_SIZES; i++) {
		struct oki_layer_map maps[2] = {rows_of(row_bytes[i], 1u << 24), rows_of(512, 512)};
		struct oki_cuda_launch launch = launch_of(maps, 2, 64, &budget);
		double ns = 64 * (double)(row_bytes[i] + 512) / 40;
		ck_assert(launch.gather.lasts_ns <= ns && launch.gather.lasts_ns > ns - 1);
	}
	/* Or as long as can be said. */
	struct oki_layer_map map = rows_of(1ull << 31, 1ull << 33);
	ck_assert_uint_eq(launch_of(&map, 1, 1000, &budget).gather.lasts_ns, UINT32_MAX);
}
END_TEST

/* Without a rate nobody waits, whatever the launch before did. */
START_TEST(no_rate_no_pace)
{
	const struct oki_cuda_budget budget = {4, 40, 20};
	struct oki_layer_map map = rows_of(4096, 4096);
	for (int d = 0; d < 2; d++) {
		struct oki_cuda_launch launch = launch_of(&map, 1, 640, &budget);
		const struct oki_cuda_table table = {.device = 8, .count = 640};
		const struct oki_cuda_table *tables[] = {&table};
		const struct oki_layer_map *maps[] = {&map};
		launch.gather.until = (uint64_t *)8;
		launch.gather.until_before = (uint64_t *)8;
		launch.gather.restores = launch.gather.beside = (uint32_t *)8;
		oki_cuda_launch_fill(tables, (enum oki_direction)d, maps, 0, 1, &four, &launch);
		const struct oki_gather *g = &launch.gather;
		ck_assert_uint_eq(g->pace + g->beside_pace + g->lasts_ns, 0);
		ck_assert(!g->until && !g->until_before && !g->restores && !g->beside);
	}
}
END_TEST

/* Few rows are cut for as many groups as there are. */
START_TEST(a_short_publish_has_work_for_all)
{
	struct oki_layer_map map = rows_of(4096, 4096);
	for (uint32_t rows = 0; rows <= 4096; rows = rows * 2 + 1)
		for (uint32_t sms = 1; sms <= OKI_MAX_SMS; sms *= 2) {
			const struct oki_cuda_budget budget = {.sms = sms};
			struct oki_cuda_launch launch = launch_of(&map, 1, rows, &budget);
			uint32_t groups = launch.threads / launch.lanes;
			ck_assert_uint_ge(launch.units, rows);
			/* No block is there for nothing but the first one, which counts. */
			ck_assert_uint_le((launch.blocks - 1) * groups, launch.units);
			/* Rows are not whole while there are groups without any. */
			if (launch.units < sms * groups)
				ck_assert_uint_le(launch.gather.piece, OKI_GATHER_PIECE);
		}
	ck_assert_uint_eq(launch_of(&map, 1, 0, &four).blocks, 1);
	ck_assert_uint_eq(launch_of(&map, 1, 64, &four).blocks, 4);
}
END_TEST

/* As many whole layers as have columns, to the last one. */
START_TEST(a_launch_is_filled)
{
	struct oki_layer_map map = {.page_stride = 4096, .segment_count = 3};
	struct oki_cuda_table table = {.device = 8, .count = 9};
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	const struct oki_cuda_table *tables[OKI_JOIN_MAX];
	struct oki_cuda_launch launch;
	static_assert(OKI_GATHER_COLUMNS % 3 == 0, "layers of three segments fill a launch");
	for (uint32_t i = 0; i < 3; i++)
		map.segments[i] = (struct oki_segment_map){i * 1024, (2 - i) * 1024, 1024};
	for (uint32_t i = 0; i < OKI_JOIN_MAX; i++) {
		maps[i] = &map;
		tables[i] = &table;
	}
	oki_cuda_launch_fill(tables, OKI_TO_PAGES, maps, 2, OKI_JOIN_MAX, &four, &launch);
	ck_assert_uint_eq(launch.gather.column_count, OKI_GATHER_COLUMNS);
	ck_assert_uint_eq(launch.end, 2 + OKI_GATHER_COLUMNS / 3);
	ck_assert_uint_eq(launch.table_count, 1);
}
END_TEST

/* The longest rows that a block may have: every byte belongs to a piece. */
START_TEST(rows_of_almost_4_gib)
{
	static const uint64_t sizes[] = {1ull << 31, 4294963200u, 4294963201u, 4294967280u};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct oki_layer_map map = rows_of(sizes[i], 1ull << 33);
		struct oki_cuda_launch launch = fill(OKI_TO_PAGES, &map, 1, 1, &four);
		ck_assert_uint_ge((uint64_t)launch.units * launch.gather.piece, sizes[i]);
		ck_assert_uint_eq(launch.blocks, 4);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda launches");
	TCase *tc = tcase_create("launches");
	tcase_add_test(tc, a_publish_keeps_its_rate);
	tcase_add_test(tc, a_publish_says_when_it_ends);
	tcase_add_test(tc, no_rate_no_pace);
	tcase_add_test(tc, a_short_publish_has_work_for_all);
	tcase_add_test(tc, a_launch_is_filled);
	tcase_add_test(tc, rows_of_almost_4_gib);
	tcase_add_test(tc, few_sms_have_more_on_their_way);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
