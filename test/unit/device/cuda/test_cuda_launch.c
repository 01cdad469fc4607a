/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch of the kernel has: all its layers and rows, its blocks, and no pace without a rate.
 * No GPU. */
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
	/* Whole groups of lanes, on no more SMs than it may have. */
	ck_assert_uint_eq(launch.threads % launch.lanes, 0);
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

/* ---- the pace of a publish ---- */

static const uint64_t row_bytes[] = {64,   512,	 640,  1024,  1152,	2047,
				     2048, 4096, 4097, 32768, 1u << 20, 1u << 24};
#define ROW_SIZES (sizeof(row_bytes) / sizeof(row_bytes[0]))

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

/* However few rows there are, some block is there, which counts; and none but that without work. */
START_TEST(a_short_publish_has_its_blocks)
{
	struct oki_layer_map map = rows_of(4096, 4096);
	for (uint32_t rows = 0; rows <= 4096; rows = rows * 2 + 1)
		for (uint32_t sms = 1; sms <= 64; sms *= 2) {
			const struct oki_cuda_budget budget = {.sms = sms};
			struct oki_cuda_launch launch = launch_of(&map, 1, rows, &budget);
			ck_assert_uint_ge(launch.units, rows);
			ck_assert_uint_le((launch.blocks - 1) * (launch.threads / launch.lanes),
					  launch.units);
		}
}
END_TEST

/* Every layer is in one launch, whole, and none is empty. */
START_TEST(launches_have_all_layers)
{
	enum { LAYERS = 200 };
	struct oki_layer_map map = {.page_stride = 4096, .segment_count = 3};
	struct oki_cuda_table table = {.device = 8, .count = 9};
	const struct oki_layer_map *maps[LAYERS];
	const struct oki_cuda_table *tables[LAYERS];
	struct oki_cuda_launch launch;
	for (uint32_t i = 0; i < 3; i++)
		map.segments[i] = (struct oki_segment_map){i * 1024, (2 - i) * 1024, 1024};
	for (uint32_t i = 0; i < LAYERS; i++) {
		maps[i] = &map;
		tables[i] = &table;
	}
	for (uint32_t first = 0; first < LAYERS; first = launch.end) {
		oki_cuda_launch_fill(tables, OKI_TO_PAGES, maps, first, LAYERS, &four, &launch);
		ck_assert_uint_gt(launch.end, first);
		ck_assert_uint_le(launch.end, LAYERS);
		ck_assert_uint_eq(launch.gather.column_count, 3 * (launch.end - first));
	}
}
END_TEST

/* The longest rows that a block may have: every byte belongs to a piece. */
START_TEST(rows_of_almost_4_gib)
{
	static const uint64_t sizes[] = {1ull << 31, 4294963200u, 4294963201u, 4294967280u};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct oki_layer_map map = rows_of(sizes[i], 1ull << 33);
		struct oki_cuda_launch launch = fill(OKI_TO_PAGES, &map, 1, 1, &four);
		ck_assert_uint_ge((uint64_t)launch.units * launch.gather.tile, sizes[i]);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda launches");
	TCase *tc = tcase_create("launches");
	tcase_add_test(tc, a_publish_says_when_it_ends);
	tcase_add_test(tc, no_rate_no_pace);
	tcase_add_test(tc, a_short_publish_has_its_blocks);
	tcase_add_test(tc, launches_have_all_layers);
	tcase_add_test(tc, rows_of_almost_4_gib);
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
