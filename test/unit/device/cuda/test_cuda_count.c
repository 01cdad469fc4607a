/* SPDX-License-Identifier: Apache-2.0 */
/* The operations copy engines would be given are as many as they are given. No GPU: the driver's
 * calls are replaced by ones that count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/rect.h"
#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_cuda.h"
#include "support/suite.h"

static struct oki_cuda_api api;
static const struct oki_device device = {.api = &api, .link = {50, 50}};

#define STACKED 6u

/* Where layers of random rows lie: at one distance, or one of them elsewhere. */
enum lie {
	APART,
	TOO_FAR,   /* for a 2-D copy */
	IN_A_PAGE, /* all layers of it, and of a block: segments may touch */
	ODD_ONE,
	LIES,
};

#define COUNTED 7u

/* The first of them is the case's own. Addresses alone: nothing lies there. */
static void lay(const struct copy_case *c, enum lie lie, uint32_t layers,
		struct oki_layer_map *ret_maps)
{
	uint64_t row = oki_layer_row_bytes(&c->map);
	uint64_t far = lie == TOO_FAR ? 3ull << 30 : c->pages_bytes;
	for (uint64_t l = 0; l < layers; l++) {
		struct oki_layer_map *map = &ret_maps[l];
		*map = c->map;
		map->base += l * (lie == IN_A_PAGE ? row : far);
		if (lie == IN_A_PAGE)
			map->page_stride = layers * row;
		if (lie == ODD_ONE && l == layers / 2)
			map->base += far / 2 + 1;
		for (uint32_t s = 0; s < map->segment_count; s++)
			map->segments[s].block_offset += l * (lie == IN_A_PAGE ? row : 1 << 20);
	}
}

static void add(struct oki_cuda_work *sum, const struct oki_cuda_work *some)
{
	sum->bytes += some->bytes;
	sum->rows += some->rows;
	sum->operations += some->operations;
}

/* That of one run in every one of these layers. Returns whether it was counted in all at once. */
static bool count_all(enum oki_direction direction, const struct oki_layer_map *const *maps,
		      uint32_t layers, const struct oki_run *run, struct oki_cuda_work *sum)
{
	struct oki_cuda_counts counts;
	uint64_t bytes = oki_run_rows(run) * oki_layer_row_bytes(maps[0]);
	oki_cuda_count(&device, direction, maps, layers, run, 1, 1, &counts);
	bool at_once = counts.spanning.bytes > 0;
	ck_assert_uint_eq(counts.spanning.bytes, at_once ? layers * bytes : 0);
	ck_assert_uint_eq(counts.single.bytes, at_once ? 0 : bytes);
	add(sum, at_once ? &counts.spanning : &counts.single);
	for (uint32_t l = 1; l < layers && !at_once; l++) {
		oki_cuda_count(&device, direction, &maps[l], 1, run, 1, 1, &counts);
		add(sum, &counts.single);
	}
	return at_once;
}

/* A count is of exactly those operations, rows and bytes that a copy of the same has. */
START_TEST(what_is_counted_is_what_is_copied)
{
	uint64_t seed = 19 + (uint64_t)_i;
	uint32_t at_once = 0, one_by_one = 0;
	for (int n = 0; n < 1000; n++) {
		struct copy_case c;
		struct oki_layer_map layers[COUNTED];
		const struct oki_layer_map *maps[COUNTED];
		struct oki_cuda_work work = {0};
		bool is_long = n % 11 == 10;
		api = fake(_i % 2);
		calls.blind = true;
		case_generate(&c, &seed, is_long ? 20000 : n % 7 == 6 ? 40 : 1);
		case_place(&c, (uint8_t *)(1ull << 40), (uint8_t *)(1ull << 42));
		uint32_t count = 1 + case_below(&seed, COUNTED);
		enum lie lie = (enum lie)case_below(&seed, LIES);
		lay(&c, lie, count, layers);
		for (uint32_t l = 0; l < count; l++)
			maps[l] = &layers[l];
		bool alone = case_below(&seed, 3) == 0;
		uint32_t spans[COUNTED] = {count};
		for (uint32_t l = 0; l < count && alone; l++)
			spans[l] = 1;
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		struct oki_cuda_queue queue = {STREAM, direction, n % 3 == 0};
		for (uint32_t i = 0; i < c.run_count; i++)
			for (uint32_t l = 0; l < count; l += spans[l])
				*(count_all(direction, maps + l, spans[l], &c.runs[i], &work)
					  ? &at_once
					  : &one_by_one) += 1;
		ck_assert_int_eq(calls.one + calls.two + calls.batches, 0);
		ck_assert_int_eq(oki_cuda_copy(&device, &queue, maps, count, spans, c.runs,
					       c.run_count, NULL),
				 0);
		uint64_t made = (uint64_t)(calls.one + calls.two + calls.entries);
		ck_assert_msg(work.operations == made, "case %d of seed %d: %d counted, %d made", n,
			      _i, (int)work.operations, (int)made);
		ck_assert_uint_eq(work.bytes, calls.bytes);
		/* Only an operation's length may cut a row. */
		ck_assert(is_long ? work.rows <= calls.rows : work.rows == calls.rows);
	}
	ck_assert_uint_gt(at_once, 300);
	ck_assert_uint_gt(one_by_one, 300);
}
END_TEST

/* One row in layers at one distance is an operation; in layers of 3 GiB each, as no 2-D copy has
 * such a pitch, or where one lies elsewhere, it is as many as there are layers. */
START_TEST(only_copies_that_can_be_are_counted)
{
	static const uint64_t distances[] = {1ull << 30, 3ull << 30, 1ull << 30};
	struct oki_layer_map layers[STACKED];
	const struct oki_layer_map *maps[STACKED];
	struct oki_run run = {.blocks = 1, .inner = 1};
	struct oki_cuda_work work = {0};
	api = fake(_i / 3);
	for (uint64_t l = 0; l < STACKED; l++) {
		uint64_t odd = _i % 3 == 2 && l == 1 ? 65536 : 0;
		layers[l] = (struct oki_layer_map){
			.base = (uint8_t *)(uintptr_t)((1 + l) * distances[_i % 3] + odd),
			.page_stride = 65536,
			.segment_count = 1,
			.segments = {{0, l * 4096, 4096}}};
		maps[l] = &layers[l];
	}
	bool at_once = count_all(OKI_TO_PAGES, maps, STACKED, &run, &work);
	ck_assert_int_eq(at_once, _i % 3 == 0);
	ck_assert_uint_eq(work.operations, at_once ? 1 : STACKED);
	ck_assert_uint_eq(work.rows, STACKED);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda counted operations");
	TCase *tc = tcase_create("counts");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, what_is_counted_is_what_is_copied, 0, 2);
	tcase_add_loop_test(tc, only_copies_that_can_be_are_counted, 0, 6);
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
