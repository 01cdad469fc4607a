/* How a launch of the kernel is filled: its rows cut into pieces, its threads and their loads. No
 * GPU. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda_device.h"
#include "support/suite.h"

static const struct oki_cuda_crew crew4 = {4, 55.4};

/* Of up to two layers with as many rows. */
static struct oki_cuda_launch fill(enum oki_direction direction, const struct oki_layer_map *layers,
				   uint32_t count, uint32_t rows, const struct oki_cuda_crew *crew)
{
	struct oki_cuda_launch launch;
	struct oki_cuda_table table = {.device = 8, .count = rows};
	const struct oki_layer_map *maps[2] = {&layers[0], &layers[1]};
	const struct oki_cuda_table *tables[2] = {&table, &table};
	oki_cuda_launch_fill(tables, direction, maps, 0, count, crew, &launch);
	ck_assert_uint_eq(launch.threads % 32, 0);
	ck_assert_uint_ge(launch.threads, 32);
	ck_assert_uint_le(launch.threads, OKI_GATHER_THREADS);
	return launch;
}

static struct oki_layer_map rows_of(uint64_t bytes, uint64_t page_stride)
{
	return (struct oki_layer_map){
		.page_stride = page_stride, .segment_count = 1, .segments = {{0, 0, bytes}}};
}

static struct oki_cuda_launch launch_of(const struct oki_layer_map *layers, uint32_t count,
					uint32_t rows, const struct oki_cuda_crew *crew)
{
	return fill(OKI_TO_BLOCKS, layers, count, rows, crew);
}

/* As many loads on their way as the link needs, pieces of whole rounds of them. */
START_TEST(few_sms_have_more_on_their_way)
{
	struct oki_layer_map map = rows_of(32768, 32768);
	static const uint32_t loads[] = {4, 4, 3, 2, 2, 2, 2, 1, 1};
	for (uint32_t sms = 1; sms <= 9; sms++)
		for (uint32_t rows = 1; rows <= 4096; rows = rows * 2 + 1) {
			const struct oki_cuda_crew crew = {sms, 55.4};
			struct oki_cuda_launch launch = fill(OKI_TO_PAGES, &map, 1, rows, &crew);
			const struct oki_gather *g = &launch.gather;
			uint32_t round = 32 * 16 * g->loads;
			/* A short copy asks for all it can. */
			ck_assert_uint_eq(g->loads, rows <= 128 ? 4 : loads[sms - 1]);
			ck_assert_uint_le(launch.blocks, sms);
			ck_assert_uint_eq(launch.threads, OKI_GATHER_THREADS);
			if (g->piece > round)
				ck_assert_uint_eq(g->piece % round, 0);
		}
}
END_TEST

/* A launch of a publish of many rows. */
static struct oki_cuda_launch publish_launch(uint64_t bytes, uint64_t page_stride,
					     const struct oki_cuda_crew *crew)
{
	struct oki_layer_map map = rows_of(bytes, page_stride);
	return launch_of(&map, 1, 8192, crew);
}

/* Measured: with these the link is seven eighths full, with an eighth more of them it is full. */
START_TEST(a_publish_leaves_gaps)
{
	static const struct {
		uint32_t bytes, threads, loads;
	} rows[] = {{512, 256, 4},  {1024, 256, 4},  {2048, 352, 2},
		    {4096, 256, 2}, {32768, 256, 2}, {1 << 20, 256, 2}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct oki_cuda_launch launch =
			publish_launch(rows[i].bytes, rows[i].bytes, &crew4);
		ck_assert_uint_eq(launch.threads, rows[i].threads);
		ck_assert_uint_eq(launch.gather.loads, rows[i].loads);
		ck_assert_uint_eq(launch.blocks, 4);
	}
	/* However many SMs they are spread over, as near as whole warps come. */
	for (uint32_t sms = 2; sms <= 16; sms++) {
		const struct oki_cuda_crew crew = {sms, 55.4};
		uint32_t threads = sms * publish_launch(32768, 32768, &crew).threads;
		ck_assert_uint_ge(threads + sms * 16, 1024);
		ck_assert_uint_le(threads, 1024 + sms * 16);
	}
	/* More SMs, with a warp each, than the link has room for. */
	const struct oki_cuda_crew many = {64, 24}, half = {4, 55.4 / 2}, fast = {4, 55.4 * 8};
	ck_assert_uint_eq(publish_launch(32768, 32768, &many).threads, 32);
	ck_assert_uint_eq(publish_launch(32768, 32768, &half).threads, 128);
	ck_assert_uint_eq(publish_launch(32768, 32768, &fast).threads, OKI_GATHER_THREADS);
	/* One that others used while it was measured. */
	const struct oki_cuda_crew shared = {2, 3}, least = {2, 24};
	ck_assert_uint_eq(publish_launch(32768, 32768, &least).threads, 224);
	ck_assert_uint_eq(publish_launch(32768, 32768, &shared).threads, 224);
	/* One SM alone never fills a fast link. */
	const struct oki_cuda_crew one = {1, 55.4}, one_half = {1, 55.4 / 2};
	ck_assert_uint_eq(publish_launch(32768, 32768, &one).threads, OKI_GATHER_THREADS);
	ck_assert_uint_eq(publish_launch(32768, 32768, &one_half).threads, 352);
}
END_TEST

/* What moves less in as much time takes more of them. */
START_TEST(short_rows_and_narrow_words_take_more)
{
	static const struct {
		uint32_t bytes, more, threads;
	} rows[] = {
		/* Less than a round, or a short last one. */
		{64, 0, 1024},
		{256, 0, 512},
		{1152, 0, 288},
		{2560, 0, 352},
		{4096 + 16, 0, 384},
		/* Narrow groups that write across cache lines fill the link with less. */
		{656, 0, 224},
		{1200, 0, 256},
		{640, 0, 256},
		/* Words of 8, 4 and 1 bytes. */
		{32768, 8, 256},
		{32768, 4, 416},
		{4096 + 4, 12, 544},
		{4096 + 1, 15, 1024},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		ck_assert_uint_eq(
			publish_launch(rows[i].bytes, rows[i].bytes + rows[i].more, &crew4).threads,
			rows[i].threads);
	/* Wherever a column is odd; and by the share that such columns have. */
	struct oki_layer_map maps[2] = {rows_of(32768, 32768), rows_of(32768, 32768)};
	ck_assert_uint_eq(launch_of(maps, 2, 8192, &crew4).threads, 256);
	maps[0].base = (uint8_t *)4;
	ck_assert_uint_eq(launch_of(maps, 1, 8192, &crew4).threads, 416);
	ck_assert_uint_eq(launch_of(maps, 2, 8192, &crew4).threads, 352);
	maps[0].base = NULL;
	maps[1].segments[0].block_offset = 4;
	ck_assert_uint_eq(launch_of(maps, 2, 8192, &crew4).threads, 352);
	/* Within a line, where their block puts rows of whole ones. */
	maps[0] = rows_of(640, 640);
	ck_assert_uint_eq(launch_of(maps, 1, 8192, &crew4).threads, 256);
	maps[0].segments[0].block_offset = 16;
	ck_assert_uint_eq(launch_of(maps, 1, 8192, &crew4).threads, 224);
	maps[0] = rows_of(4096, 4096);
	maps[1] = rows_of(128, 128);
	ck_assert_uint_eq(launch_of(maps, 2, 8192, &crew4).threads, 384);
}
END_TEST

/* Few rows are cut for as many groups as there are. */
START_TEST(a_short_publish_has_work_for_all)
{
	struct oki_layer_map map = rows_of(4096, 4096);
	ck_assert_uint_eq(launch_of(&map, 1, 64, &crew4).gather.piece, 1024);
	ck_assert_uint_eq(launch_of(&map, 1, 8, &crew4).blocks, 4);
	ck_assert_uint_eq(launch_of(&map, 1, 0, &crew4).blocks, 1);
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
	oki_cuda_launch_fill(tables, OKI_TO_PAGES, maps, 2, OKI_JOIN_MAX, &crew4, &launch);
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
		struct oki_cuda_launch launch = fill(OKI_TO_PAGES, &map, 1, 1, &crew4);
		ck_assert_uint_ge((uint64_t)launch.units * launch.gather.piece, sizes[i]);
		ck_assert_uint_eq(launch.blocks, 4);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda launches");
	TCase *tc = tcase_create("launches");
	tcase_add_test(tc, a_publish_leaves_gaps);
	tcase_add_test(tc, short_rows_and_narrow_words_take_more);
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
