/* SPDX-License-Identifier: Apache-2.0 */
/* What is worked out once for the runs of an operation: tables, and what copy engines would have to
 * do. No GPU: the driver's calls are replaced by ones that count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/rect.h"
#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_cuda.h"
#include "support/suite.h"

#define LAYERS 3u
#define RUNS 60u
#define FIRST_HOST ((uint8_t *)(uintptr_t)0x100000000)

static uint64_t seed;

static uint32_t below(uint32_t limit)
{
	return case_below(&seed, limit);
}

/* Runs as plans have them, of whole blocks or of parts of some, too; addresses only, nothing is
 * touched. */
static uint32_t draw_runs(struct oki_run *runs, uint64_t block, uint32_t pages)
{
	uint32_t count = 1 + below(RUNS), longest = below(3) ? 3 : 30;
	uint32_t odd = below(3) ? 0 : 1 + below(8), page = below(1000);
	uint8_t *host = FIRST_HOST;
	for (uint32_t i = 0; i < count; i++) {
		bool part = odd && below(odd + 1) == 0;
		struct oki_run run = {.host = host, .page = page, .blocks = 1 + below(longest)};
		run.inner = part ? 1 + below(pages) : pages;
		run.inner_first = below(pages - run.inner + 1);
		if (run.inner > 1)
			run.inner_step = part ? 1 + below(2) : 1;
		if (run.blocks > 1) {
			run.host_pitch = block * (1 + below(3));
			run.page_pitch = below(2) ? run.inner : 8 * (1 + below(3));
		}
		runs[i] = run;
		host += block * (100 + below(100));
		page += 1000;
	}
	return count;
}

/* ---- rows ---- */

static uint64_t plain_rows(const struct oki_device *device, const struct oki_run *runs,
			   uint32_t count, struct oki_gather_row *rows)
{
	uint64_t made = 0;
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t o = 0; o < runs[i].blocks; o++)
			for (uint32_t j = 0; j < runs[i].inner; j++) {
				const uint8_t *host = runs[i].host + o * runs[i].host_pitch;
				uint64_t device_offset = 0;
				for (uint32_t r = 0; r < device->mapping_count; r++)
					if (host >= device->mappings[r].base &&
					    host < device->mappings[r].base +
							    device->mappings[r].bytes)
						device_offset = device->mappings[r].device_offset;
				rows[made++] = (struct oki_gather_row){
					.host = (uintptr_t)host + device_offset,
					.page = runs[i].page + o * runs[i].page_pitch +
						j * runs[i].inner_step,
					.inner = runs[i].inner_first + j,
				};
			}
	return made;
}

/* Arenas, which runs lie in as a whole, or their pieces, which blocks do; and not a row too many.
 */
START_TEST(a_table_has_the_rows_of_its_runs)
{
	static struct oki_gather_row want[RUNS * 30 * 4];
	seed = 17;
	for (int n = 0; n < 3000; n++) {
		struct oki_run runs[RUNS];
		struct oki_cuda_mapping mappings[100];
		struct oki_device device = {.mappings = mappings, .arena_split = n % 3 == 0};
		uint32_t count = draw_runs(runs, 4096, 1 + below(4));
		uint64_t bytes = device.arena_split ? 4096 * 7 : 4096 * 100;
		device.mapping_count = n % 5 ? 100 : 0;
		for (uint32_t r = 0; r < device.mapping_count; r++) {
			mappings[r].base = FIRST_HOST + r * bytes;
			mappings[r].bytes = bytes;
			mappings[r].device_offset = below(1000) * 65536;
		}
		/* Whole arenas are given one offset: no run leaves its own. */
		for (uint32_t r = 0; r < device.mapping_count && !device.arena_split; r++)
			mappings[r].device_offset = mappings[0].device_offset;
		uint64_t rows = plain_rows(&device, runs, count, want);
		ck_assert_uint_eq(rows, oki_cuda_table_rows(runs, count));
		struct oki_gather_row *got = malloc((rows + 1) * sizeof(*got));
		memset(got, 0xa5, (rows + 1) * sizeof(*got));
		struct oki_gather_row behind = got[rows];
		oki_cuda_table_fill(&device, runs, count, rows, got);
		ck_assert_int_eq(memcmp(got, want, rows * sizeof(*got)), 0);
		ck_assert_int_eq(memcmp(&got[rows], &behind, sizeof(behind)), 0);
		free(got);
	}
}
END_TEST

/* ---- what copy engines would have to do ---- */

static struct oki_cuda_api api;
static struct oki_device device;
static struct oki_stream stream;
static struct oki_layer_map layers[LAYERS];
static const struct oki_layer_map *maps[LAYERS];

/* Layers alike of one or two segments that may fill their block, for so many pages of one, and may
 * lie in one tensor. Addresses alone. */
static void setup_layers(uint64_t bytes, uint32_t pages)
{
	api = fake(below(2));
	calls.blind = true;
	device = (struct oki_device){
		.api = &api, .link = {50, 50}, .restores = &device.own_restores};
	stream = (struct oki_stream){.device = &device, .stream = STREAM};
	if (below(2))
		one_tensor(&device, 0, UINTPTR_MAX);
	uint32_t segments = 1 + below(2), wide = below(2);
	for (uint32_t i = 0; i < LAYERS; i++) {
		layers[i] = (struct oki_layer_map){
			.base = (uint8_t *)(uintptr_t)(0x7000000000 + i * 0x10000000ull),
			.page_stride = bytes << wide,
			.segment_count = segments,
		};
		for (uint32_t g = 0; g < segments; g++)
			layers[i].segments[g] = (struct oki_segment_map){
				.page_offset = g * bytes / segments,
				.block_offset = (i * segments + g) * pages * bytes / segments,
				.bytes = bytes / segments,
			};
		maps[i] = &layers[i];
	}
}

/* By the driver's own count of a copy of all, of which operations span what one may take. */
static struct oki_cuda_work copied(enum oki_direction direction, uint32_t count, uint32_t together,
				   const struct oki_run *runs, uint32_t run_count)
{
	struct oki_cuda_queue queue = {.stream = STREAM, .direction = direction};
	calls.one = calls.two = calls.entries = 0;
	calls.rows = calls.bytes = 0;
	for (uint32_t first = 0; first < count; first += together) {
		uint32_t spans[LAYERS], some = count - first < together ? count - first : together;
		for (uint32_t l = 0; l < some; l += spans[l])
			spans[l] = oki_cuda_stackable(&device, maps + first + l, some - l);
		ck_assert_int_eq(oki_cuda_copy(&device, &queue, maps + first, some, spans, runs,
					       run_count, NULL),
				 0);
	}
	return (struct oki_cuda_work){.bytes = calls.bytes,
				      .rows = calls.rows,
				      .operations =
					      (uint64_t)(calls.one + calls.two + calls.entries)};
}

static struct oki_cuda_work planned(enum oki_direction direction, uint32_t count, uint32_t together,
				    const struct oki_run *runs, uint32_t run_count)
{
	struct oki_cuda_work work = {0};
	struct oki_cuda_plan *plan = oki_cuda_plan_get(&stream, runs, run_count);
	ck_assert_uint_eq(oki_cuda_plan_rows(plan), oki_cuda_table_rows(runs, run_count));
	ck_assert_int_eq(calls.one + calls.two + calls.batches, 0);
	oki_cuda_plan_work(&stream, direction, plan, maps, count, together, &work);
	ck_assert_int_eq(calls.one + calls.two + calls.batches, 0);
	oki_cuda_plans_forget(&stream);
	return work;
}

static bool within(uint64_t value, uint64_t of, double factor)
{
	return (double)value <= (double)of * factor && (double)value * factor >= (double)of;
}

/* Runs of one kind: blocks anywhere, or ranges of so many. */
static void draw_alike(struct oki_run *runs, uint32_t count, uint64_t block, uint32_t pages)
{
	uint32_t blocks = below(2) ? 1 : 2 + below(20), page_pitch = below(2) ? pages : 3 * pages;
	for (uint32_t i = 0; i < count; i++) {
		struct oki_run run = {.host = FIRST_HOST + i * 1000ull * block,
				      .page = i * 1000,
				      .blocks = blocks,
				      .inner = pages,
				      .inner_step = pages > 1};
		if (run.blocks > 1) {
			run.host_pitch = block;
			run.page_pitch = page_pitch;
		}
		runs[i] = run;
	}
}

/* By a few of its runs, however many there are; layers alike add up. */
START_TEST(alike_runs_are_counted_by_some)
{
	enum { MANY = 400 };
	static struct oki_run runs[MANY];
	seed = 23;
	for (int n = 0; n < 500; n++) {
		const uint64_t bytes = 256ull << below(11);
		uint32_t pages = 1 + below(4), count = 1 + below(LAYERS);
		uint64_t block = bytes * pages * LAYERS + below(2) * 256;
		uint32_t run_count = 1 + below(MANY);
		draw_alike(runs, run_count, block, pages);
		enum oki_direction direction = (enum oki_direction)below(2);
		setup_layers(bytes, pages);
		uint32_t together = below(2) ? count : 1;
		struct oki_cuda_work got = planned(direction, count, together, runs, run_count);
		struct oki_cuda_work want = copied(direction, count, together, runs, run_count);
		ck_assert_uint_eq(got.bytes, want.bytes);
		ck_assert_msg(within(got.operations, want.operations, 1.5),
			      "case %d: %d operations, not %d", n, (int)got.operations,
			      (int)want.operations);
		ck_assert_msg(within(got.rows, want.rows, 1.5), "case %d: %d rows, not %d", n,
			      (int)got.rows, (int)want.rows);
	}
}
END_TEST

/* Rows that all have one length seem to have about that, whatever runs were looked at: by it a copy
 * beside a model goes one way or the other. */
START_TEST(rows_are_about_as_long_as_they_are)
{
	enum { MANY = 400 };
	static struct oki_run runs[MANY];
	const uint64_t row = 32768;
	const struct oki_cuda_beside held = {.batch = true, .wait_ns = 1};
	seed = 41;
	for (int n = 0; n < 300; n++) {
		uint32_t count = 1 + below(MANY);
		setup_layers(row, 1);
		for (uint32_t l = 0; l < LAYERS; l++) {
			layers[l].segment_count = 1;
			layers[l].page_stride = 2 * row;
			layers[l].segments[0] = (struct oki_segment_map){0, l * row, row};
		}
		for (uint32_t i = 0; i < count; i++) {
			runs[i] = (struct oki_run){.host = FIRST_HOST + i * 100ull * row,
						   .page = 10 * i,
						   .blocks = 1 + below(3),
						   .inner = 1};
			runs[i].host_pitch = runs[i].blocks > 1 ? 3 * row : 0;
			runs[i].page_pitch = runs[i].blocks > 1;
		}
		struct oki_cuda_work got = planned(OKI_TO_BLOCKS, 2, 1, runs, count);
		ck_assert(within(got.bytes / got.rows, row, 4 / 3.0));
		/* So it goes by engines, as 16 KiB do not. */
		ck_assert(oki_cuda_suits_engines(&got, &held));
		got.bytes /= 2;
		ck_assert(!oki_cuda_suits_engines(&got, &held));
	}
}
END_TEST

/* All of up to 16 are looked at, whatever they are. */
START_TEST(few_runs_are_counted_exactly)
{
	uint32_t mixed = 0;
	seed = 29;
	for (int n = 0; n < 2000; n++) {
		const uint64_t bytes = 256ull << below(11);
		struct oki_run runs[RUNS];
		uint32_t pages = 1 + below(4), count = 1 + below(LAYERS);
		uint64_t block = bytes * pages * LAYERS + below(2) * 256;
		uint32_t run_count = draw_runs(runs, block, pages);
		enum oki_direction direction = (enum oki_direction)below(2);
		run_count = run_count < 16 ? run_count : 16;
		setup_layers(bytes, pages);
		uint32_t together = below(2) ? count : 1;
		struct oki_cuda_work got = planned(direction, count, together, runs, run_count);
		struct oki_cuda_work want = copied(direction, count, together, runs, run_count);
		ck_assert_uint_eq(got.bytes, want.bytes);
		ck_assert_msg(got.rows == want.rows && got.operations == want.operations,
			      "case %d: %d rows and %d operations, not %d and %d", n, (int)got.rows,
			      (int)got.operations, (int)want.rows, (int)want.operations);
		mixed += want.operations % count != 0;
	}
	ck_assert_uint_gt(mixed, 20);
}
END_TEST

/* A tidy prompt and what was found elsewhere: thousands of short rows are not overlooked for one
 * long range among them, wherever it is. */
START_TEST(a_long_run_hides_no_short_ones)
{
	enum { MANY = 4000 };
	static struct oki_run runs[MANY];
	const uint64_t row = 2048, block = LAYERS * row;
	static const uint32_t places[] = {0, 1, MANY / 2, MANY - 1};
	seed = 31;
	for (uint32_t n = 0; n < 4; n++) {
		const uint32_t at = places[n];
		for (uint32_t i = 0; i < MANY; i++)
			runs[i] = (struct oki_run){.host = FIRST_HOST + i * 3 * block,
						   .blocks = 1,
						   .inner = 1,
						   .page = i * 7 % MANY};
		runs[at] = (struct oki_run){.host = FIRST_HOST + MANY * 3 * block,
					    .host_pitch = row,
					    .blocks = 16384,
					    .page = MANY,
					    .page_pitch = 1,
					    .inner = 1};
		setup_layers(row, 1);
		for (uint32_t l = 0; l < LAYERS; l++) {
			layers[l].page_stride = row;
			layers[l].segment_count = 1;
			layers[l].segments[0] = (struct oki_segment_map){0, l * row, row};
		}
		struct oki_cuda_work got = planned(OKI_TO_PAGES, 1, 1, runs, MANY);
		struct oki_cuda_work want = copied(OKI_TO_PAGES, 1, 1, runs, MANY);
		ck_assert_uint_eq(got.bytes, want.bytes);
		ck_assert_msg(within(got.operations, want.operations, 1.5) &&
				      within(got.rows, want.rows, 1.5),
			      "run %u is long: %d rows and %d operations, not %d and %d", at,
			      (int)got.rows, (int)got.operations, (int)want.rows,
			      (int)want.operations);
	}
}
END_TEST

/* ---- what the kernel cannot have ---- */

static int tables;

static CUresult count_tables(void **ret_at, size_t bytes, unsigned flags)
{
	(void)bytes, (void)flags;
	*ret_at = NULL;
	tables++;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* A kernel counts its pieces in 32 bits, so of more rows it takes none; nobody even makes its
 * table. */
START_TEST(too_many_rows_have_no_choice)
{
	seed = 5;
	setup_layers(4096, 1);
	api.host_alloc = count_tables;
	device.path = OKV_COPY_KERNEL;
	device.sms = 4;
	for (uint32_t more = 0; more < 2; more++) {
		struct oki_run run = {.host = FIRST_HOST,
				      .host_pitch = LAYERS * 4096,
				      .blocks = more ? 1u << 25 : 1000,
				      .page_pitch = 1,
				      .inner = 1};
		const struct oki_layer_copy layer = {.map = maps[0], .runs = &run, .run_count = 1};
		tables = calls.two = 0;
		ck_assert_int_eq(oki_cuda_submit(&stream, OKI_TO_PAGES, &layer, 1, NULL), 1);
		ck_assert_int_eq(tables, !more);
		/* By copy engines, which need no table. */
		ck_assert_uint_gt(calls.bytes, 0);
		oki_cuda_plans_forget(&stream);
	}
	ck_assert_int_eq(calls.launches, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda plans");
	TCase *tc = tcase_create("plans");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_table_has_the_rows_of_its_runs);
	tcase_add_test(tc, alike_runs_are_counted_by_some);
	tcase_add_test(tc, rows_are_about_as_long_as_they_are);
	tcase_add_test(tc, few_runs_are_counted_exactly);
	tcase_add_test(tc, a_long_run_hides_no_short_ones);
	tcase_add_test(tc, too_many_rows_have_no_choice);
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
