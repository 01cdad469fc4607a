/* SPDX-License-Identifier: Apache-2.0 */
/* The operations copy engines are given: the bytes of a plain loop, and few of them. No GPU: the
 * driver's calls are replaced by ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/rect.h"
#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_cuda.h"
#include "support/suite.h"

static const struct oki_cuda_queue restores = {.stream = STREAM, .direction = OKI_TO_PAGES};
static const struct oki_cuda_queue publishes = {.stream = STREAM, .direction = OKI_TO_BLOCKS};

static struct oki_cuda_api api;
static const struct oki_device device = {.api = &api, .link = {50, 50}};

START_TEST(bytes_as_a_plain_loop)
{
	uint64_t seed = 11 + (uint64_t)_i;
	api = fake(_i % 2 == 0);
	for (int n = 0; n < 300; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 40 : 1);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		uint8_t *host = malloc(c.host_bytes), *want_host = malloc(c.host_bytes);
		uint8_t *pages = malloc(c.pages_bytes), *want_pages = malloc(c.pages_bytes);
		case_noise(&seed, host, c.host_bytes);
		case_noise(&seed, pages, c.pages_bytes);
		memcpy(want_host, host, c.host_bytes);
		memcpy(want_pages, pages, c.pages_bytes);
		case_place(&c, host, pages);
		case_expect(&c, host, direction, want_host, want_pages);
		const struct oki_layer_map *map = &c.map;
		struct oki_cuda_queue queue = {STREAM, direction, n % 3 == 0};
		ck_assert_int_eq(
			oki_cuda_copy(&device, &queue, &map, 1, NULL, c.runs, c.run_count, NULL),
			0);
		ck_assert_msg(memcmp(host, want_host, c.host_bytes) == 0 &&
				      memcmp(pages, want_pages, c.pages_bytes) == 0,
			      "case %d of seed %d", n, _i);
		free(host);
		free(pages);
		free(want_host);
		free(want_pages);
	}
}
END_TEST

#define ROW 4096u

/* Memory for 16 blocks and 64 pages of two segments of ROW bytes. */
struct tensor {
	uint8_t *host, *pages;
	struct oki_layer_map map;
};

static void tensor_init(struct tensor *t, uint64_t row)
{
	t->host = calloc(16, 4 * row);
	t->pages = calloc(64, 2 * row);
	t->map = (struct oki_layer_map){
		.base = t->pages,
		.page_stride = row,
		.segment_count = 2,
		.page_count = 64,
		.segments = {{0, 0, row}, {64 * row, row, row}},
	};
}

static void tensor_copy(struct tensor *t, struct oki_run *runs, uint32_t count, int expected)
{
	const struct oki_layer_map *map = &t->map;
	ck_assert_int_eq(oki_cuda_copy(&device, &restores, &map, 1, NULL, runs, count, NULL),
			 expected);
}

static void tensor_fini(struct tensor *t)
{
	free(t->host);
	free(t->pages);
}

/* Split K and V, adjacent blocks and pages: one 2-D copy for each. */
START_TEST(a_run_is_one_copy_per_segment)
{
	struct tensor t;
	api = fake(true);
	tensor_init(&t, ROW);
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 4 * ROW,
		.blocks = 16,
		.page_pitch = 1,
		.inner = 1,
	};
	tensor_copy(&t, &run, 1, 0);
	ck_assert_int_eq(calls.two, 2);
	ck_assert_int_eq(calls.one + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Two loops that do not merge take the shorter one as rounds. */
START_TEST(two_loops_take_the_shorter_one)
{
	struct tensor t;
	api = fake(true);
	tensor_init(&t, ROW);
	t.map.segment_count = 1;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 4 * ROW,
		.blocks = 12,
		.page_pitch = 4,
		.inner = 2,
		.inner_step = 2,
	};
	tensor_copy(&t, &run, 1, 0);
	ck_assert_int_eq(calls.two, 2);
	run.inner_step = 1; /* the two pages touch, and are one row */
	tensor_copy(&t, &run, 1, 0);
	ck_assert_int_eq(calls.two, 3);
	ck_assert_int_eq(calls.one + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Blocks and pages that are all neighbours of a fused tensor: one plain copy. */
START_TEST(contiguous_is_one_plain_copy)
{
	struct tensor t;
	api = fake(true);
	tensor_init(&t, ROW);
	t.map.page_stride = 2 * ROW;
	t.map.segments[1].page_offset = ROW;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 2 * ROW,
		.blocks = 16,
		.page_pitch = 1,
		.inner = 1,
	};
	tensor_copy(&t, &run, 1, 0);
	ck_assert_int_eq(calls.one, 1);
	ck_assert_int_eq(calls.two + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Scattered rows share one call where the driver has it. */
START_TEST(scattered_rows_share_a_call)
{
	struct tensor t;
	api = fake(_i == 0);
	struct oki_run runs[16];
	tensor_init(&t, ROW);
	for (uint32_t i = 0; i < 16; i++)
		runs[i] = (struct oki_run){
			.host = t.host + ((i * 7) % 16) * 4 * ROW,
			.blocks = 1,
			.inner = 1,
			.page = (i * 5) % 16,
		};
	tensor_copy(&t, runs, 16, 0);
	bool batch = _i == 0 && OKI_CUDA_HAS_BATCH;
	ck_assert_int_eq(calls.batches, batch ? 1 : 0);
	ck_assert_int_eq(calls.entries, batch ? 32 : 0);
	ck_assert_int_eq(calls.one, batch ? 0 : 32);
	tensor_fini(&t);
}
END_TEST

/* An engine ends an operation before it takes another stream's: none is long. */
START_TEST(a_long_row_is_several_copies)
{
	struct oki_run run = {.blocks = 1, .inner = 1};
	struct oki_layer_map map = {.page_stride = 1u << 30,
				    .page_count = 1,
				    .segment_count = 1,
				    .segments = {{0, 0, 1u << 30}}};
	const struct oki_layer_map *maps[] = {&map};
	api = fake(_i);
	calls.blind = true;
	ck_assert_int_eq(oki_cuda_copy(&device, &restores, maps, 1, NULL, &run, 1, NULL), 0);
	ck_assert_uint_eq(calls.bytes, 1u << 30);
	ck_assert_int_ge(calls.one + calls.batches, 1 << 30 >> 26);
}
END_TEST

/* A distance that no 2-D copy can have falls back to rows. */
START_TEST(a_pitch_no_2d_copy_has)
{
	struct tensor t;
	api = fake(false);
	tensor_init(&t, ROW);
	t.map.segment_count = 1;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 1024, /* below the width: rows that share host bytes */
		.blocks = 8,
		.page_pitch = 2,
		.inner = 1,
	};
	tensor_copy(&t, &run, 1, 0);
	ck_assert_int_eq(calls.two, 0);
	ck_assert_int_eq(calls.one, 8);
	tensor_fini(&t);
}
END_TEST

START_TEST(a_refused_copy_ends_the_layer)
{
	struct tensor t;
	struct okv_error err = {0};
	api = fake(false);
	struct oki_run runs[4];
	tensor_init(&t, ROW);
	for (uint32_t i = 0; i < 4; i++)
		runs[i] = (struct oki_run){.host = t.host,
					   .host_pitch = 4 * ROW,
					   .blocks = 4,
					   .page_pitch = 3,
					   .inner = 1,
					   .page = 16 * i};
	calls.fail_after = 3;
	const struct oki_layer_map *map = &t.map;
	ck_assert_int_eq(oki_cuda_copy(&device, &restores, &map, 1, NULL, runs, 4, &err),
			 OKV_E_COPY);
	ck_assert_int_eq(calls.two, 4);
	ck_assert_int_eq(err.device_error, CUDA_ERROR_LAUNCH_FAILED);
	ck_assert_int_eq(err.stage, OKV_STAGE_SUBMIT);
	tensor_fini(&t);
}
END_TEST

/* One call with several layers shares its batches. */
START_TEST(layers_share_a_batch)
{
	struct tensor t;
	api = fake(true);
	struct oki_layer_map layers[4];
	const struct oki_layer_map *maps[4];
	tensor_init(&t, ROW);
	for (uint32_t l = 0; l < 4; l++) {
		layers[l] = t.map;
		layers[l].base = t.pages + l * 16 * ROW;
		layers[l].segment_count = 1;
		layers[l].segments[0].block_offset = l * ROW;
		maps[l] = &layers[l];
	}
	struct oki_run runs[2];
	for (uint32_t i = 0; i < 2; i++)
		runs[i] = (struct oki_run){
			.host = t.host + i * 12 * ROW, .blocks = 1, .inner = 1, .page = i * 3};
	memset(t.host, 0x77, 16 * 4 * ROW);
	ck_assert_int_eq(oki_cuda_copy(&device, &restores, maps, 4, NULL, runs, 2, NULL), 0);
	ck_assert_int_eq(calls.batches, OKI_CUDA_HAS_BATCH ? 1 : 0);
	ck_assert_int_eq(OKI_CUDA_HAS_BATCH ? calls.entries : calls.one, 8);
	for (uint32_t l = 0; l < 4; l++)
		ck_assert(layers[l].base[3 * ROW] == 0x77 && layers[l].base[2 * ROW] == 0);
	tensor_fini(&t);
}
END_TEST

/* ---- layers that lie alike ---- */

#define STACKED 6u

/* Layers of pages of `segments` segments; where they lie, by the kind of tensor. */
struct stacked {
	uint32_t segments, pages, each; /* pages of a block */
	uint64_t row;			/* bytes of a segment of a page */
	uint64_t block;			/* bytes of a block of all layers */
	uint8_t *host, *memory, *want_host, *want_memory;
	struct oki_layer_map layers[STACKED];
	const struct oki_layer_map *maps[STACKED];
};

enum stacked_kind {
	LAYERS_OF_REGIONS, /* [layer][segment][page] */
	PAGES_OF_LAYERS,   /* [page][layer][segment] */
	LAYERS_OF_PAGES,   /* [layer][page][segment] */
	UNEVEN,		   /* as the first, but one layer lies elsewhere */
	STACKED_KINDS,
};

static void stacked_init(struct stacked *k, enum stacked_kind kind, uint32_t segments,
			 uint32_t pages, uint32_t each, uint64_t row)
{
	uint64_t all = STACKED * segments * pages * row;
	*k = (struct stacked){.segments = segments, .pages = pages, .each = each, .row = row};
	k->block = STACKED * segments * each * row;
	k->host = malloc(all);
	k->want_host = malloc(all);
	k->memory = malloc(2 * all);
	k->want_memory = malloc(2 * all);
	for (uint32_t l = 0; l < STACKED; l++) {
		struct oki_layer_map *map = &k->layers[l];
		bool paged = kind == PAGES_OF_LAYERS, split = kind != LAYERS_OF_PAGES && !paged;
		map->base = k->memory + l * segments * row * (paged ? 1 : pages);
		if (kind == UNEVEN && l == STACKED / 2)
			map->base = k->memory + all;
		map->page_stride = split ? row : segments * row * (paged ? STACKED : 1);
		map->segment_count = segments;
		map->page_count = pages;
		for (uint32_t s = 0; s < segments; s++)
			map->segments[s] = (struct oki_segment_map){
				.page_offset = s * row * (split ? pages : 1),
				.block_offset = (l * segments + s) * each * row,
				.bytes = row,
			};
		k->maps[l] = map;
	}
}

static void stacked_fini(struct stacked *k)
{
	free(k->host);
	free(k->want_host);
	free(k->memory);
	free(k->want_memory);
}

/* Row and segment of a run in one layer, as device.h has it. */
static void stacked_expect(struct stacked *k, uint32_t layer, const struct oki_run *run,
			   uint32_t row, uint32_t segment, enum oki_direction direction)
{
	const struct oki_layer_map *map = &k->layers[layer];
	const struct oki_segment_map *seg = &map->segments[segment];
	uint32_t o = row / run->inner, j = row % run->inner;
	uint64_t h = (uint64_t)(run->host - k->host) + o * run->host_pitch + seg->block_offset +
		     (run->inner_first + j) * k->row;
	uint64_t page = run->page + o * run->page_pitch + j * run->inner_step;
	uint64_t d = (uint64_t)(map->base - k->memory) + page * map->page_stride + seg->page_offset;
	if (direction == OKI_TO_PAGES)
		memcpy(k->want_memory + d, k->host + h, k->row);
	else
		memcpy(k->want_host + h, k->memory + d, k->row);
}

/* Copy, and compare with the same copy row by row. */
static void stacked_copy(struct stacked *k, enum oki_direction direction,
			 const struct oki_run *runs, uint32_t count)
{
	uint64_t all = k->pages / k->each * k->block, seed = 23;
	case_noise(&seed, k->host, all);
	case_noise(&seed, k->memory, 2 * all);
	memcpy(k->want_host, k->host, all);
	memcpy(k->want_memory, k->memory, 2 * all);
	for (uint32_t l = 0; l < STACKED; l++)
		for (uint32_t i = 0; i < count; i++)
			for (uint32_t r = 0; r < oki_run_rows(&runs[i]) * k->segments; r++)
				stacked_expect(k, l, &runs[i], r / k->segments, r % k->segments,
					       direction);
	calls.one = calls.two = calls.batches = calls.entries = 0;
	ck_assert_int_eq(oki_cuda_copy(&device, direction == OKI_TO_PAGES ? &restores : &publishes,
				       k->maps, STACKED, (uint32_t[]){STACKED}, runs, count, NULL),
			 0);
	ck_assert(memcmp(k->host, k->want_host, all) == 0);
	ck_assert(memcmp(k->memory, k->want_memory, 2 * all) == 0);
}

/* Every kind of tensor, tidy and scattered, whether or not a copy may span layers. */
START_TEST(stacked_layers_have_the_same_bytes)
{
	api = fake(_i % 2);
	for (uint32_t n = 0; n < STACKED_KINDS * 3 * 4; n++) {
		struct stacked k;
		uint32_t pages = 1 + n % 4 * 7, count = 0;
		stacked_init(&k, (enum stacked_kind)(n % STACKED_KINDS), 1 + n / 4 % 3, pages, 1,
			     n % 5 ? 1040 : 24);
		struct oki_run runs[64], tidy = {.host = k.host, .blocks = pages, .inner = 1};
		tidy.host_pitch = pages > 1 ? k.block : 0;
		tidy.page_pitch = pages > 1;
		stacked_copy(&k, n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS, &tidy, 1);
		/* Pairs and single blocks, in no order. */
		for (uint32_t i = 0; i + 1 < pages; i += 3)
			runs[count++] = (struct oki_run){.host = k.host + i * k.block,
							 .host_pitch = k.block,
							 .blocks = 2,
							 .page = pages - 2 - i,
							 .page_pitch = 1,
							 .inner = 1};
		stacked_copy(&k, n % 2 ? OKI_TO_BLOCKS : OKI_TO_PAGES, runs, count);
		stacked_fini(&k);
		/* Blocks of three pages each, the last of which lies elsewhere. */
		stacked_init(&k, (enum stacked_kind)(n % STACKED_KINDS), 1 + n / 4 % 3, 12, 3, 40);
		runs[0] = (struct oki_run){.host = k.host,
					   .host_pitch = k.block,
					   .blocks = 3,
					   .page_pitch = 2,
					   .inner = 2,
					   .inner_step = 1};
		runs[1] = (struct oki_run){.host = k.host,
					   .host_pitch = 2 * k.block,
					   .blocks = 2,
					   .page = 8,
					   .page_pitch = 3,
					   .inner = 1,
					   .inner_first = 2};
		stacked_copy(&k, n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS, runs, 2);
		stacked_fini(&k);
	}
}
END_TEST

START_TEST(stacked_layers_take_few_copies)
{
	api = fake(true);
	struct stacked k;
	/* One page of all layers is one range, and many tidy ones are as well. */
	stacked_init(&k, PAGES_OF_LAYERS, 2, 8, 1, 4096);
	struct oki_run one = {.host = k.host, .blocks = 1, .page = 5, .inner = 1};
	struct oki_run tidy = {.host = k.host, .blocks = 8, .inner = 1};
	tidy.host_pitch = k.block;
	tidy.page_pitch = 1;
	stacked_copy(&k, OKI_TO_PAGES, &one, 1);
	ck_assert_int_eq(calls.one + calls.two + calls.entries, 1);
	stacked_copy(&k, OKI_TO_PAGES, &tidy, 1);
	ck_assert_int_eq(calls.one + calls.two + calls.entries, 1);
	stacked_fini(&k);
	/* K and V of all layers at one distance: a row is one 2-D copy. */
	stacked_init(&k, LAYERS_OF_REGIONS, 2, 8, 1, 4096);
	one.host = tidy.host = k.host;
	stacked_copy(&k, OKI_TO_BLOCKS, &one, 1);
	ck_assert_int_eq(calls.two, 1);
	ck_assert_int_eq(calls.one + calls.entries, 0);
	/* Many rows are fewer copies layer by layer: 8 are less than 6 layers of K and V. */
	stacked_copy(&k, OKI_TO_BLOCKS, &tidy, 1);
	ck_assert_int_eq(calls.two, 8);
	stacked_fini(&k);
	stacked_init(&k, LAYERS_OF_REGIONS, 2, 16, 1, 4096);
	tidy = (struct oki_run){
		.host = k.host, .host_pitch = k.block, .blocks = 16, .page_pitch = 1, .inner = 1};
	stacked_copy(&k, OKI_TO_BLOCKS, &tidy, 1);
	ck_assert_int_eq(calls.two, 12);
	stacked_fini(&k);
	/* A layer that lies elsewhere: each on its own. */
	stacked_init(&k, UNEVEN, 1, 8, 1, 4096);
	one.host = k.host;
	stacked_copy(&k, OKI_TO_PAGES, &one, 1);
	ck_assert_int_eq(OKI_CUDA_HAS_BATCH ? calls.entries : calls.one, (int)STACKED);
	stacked_fini(&k);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda copy operations");
	TCase *tc = tcase_create("operations");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 4);
	tcase_add_test(tc, a_run_is_one_copy_per_segment);
	tcase_add_test(tc, two_loops_take_the_shorter_one);
	tcase_add_test(tc, contiguous_is_one_plain_copy);
	tcase_add_loop_test(tc, scattered_rows_share_a_call, 0, 2);
	tcase_add_loop_test(tc, a_long_row_is_several_copies, 0, 2);
	tcase_add_test(tc, a_pitch_no_2d_copy_has);
	tcase_add_test(tc, a_refused_copy_ends_the_layer);
	tcase_add_test(tc, layers_share_a_batch);
	tcase_add_loop_test(tc, stacked_layers_have_the_same_bytes, 0, 2);
	tcase_add_test(tc, stacked_layers_take_few_copies);
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
