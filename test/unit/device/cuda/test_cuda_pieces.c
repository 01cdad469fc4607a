/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas registered in pieces: all or none of them, and no copy that spans two. No GPU. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "support/suite.h"
#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_pins.h"

#define QUEUE ((CUstream)(uintptr_t)16)

static struct oki_cuda_api api;
static struct oki_device device;

static void setup(void)
{
	api = fake();
	device = (struct oki_device){.api = &api,
				     .pin_limit = 1ull << 38,
				     .link = {50, 50},
				     .restores = &device.own_restores};
}

/* Nothing is left: no registration, no context. */
static void teardown(void)
{
	ck_assert_uint_eq(driver.count, 0);
	ck_assert_int_eq(driver.contexts, 0);
}

static void pin(void *base, uint64_t bytes, uint64_t limit)
{
	struct okv_error err = {0};
	device.pin_limit = limit;
	ck_assert_msg(oki_cuda_pin(&device, base, bytes, false, &err) == 0, "%s", err.text);
}

static void copy(enum oki_direction direction, const struct oki_layer_map *map,
		 const struct oki_run *runs, uint32_t count)
{
	driver.to_pages = direction == OKI_TO_PAGES;
	const struct oki_cuda_queue queue = {.stream = QUEUE, .direction = direction};
	ck_assert_int_eq(oki_cuda_copy(&device, &queue, &map, 1, NULL, runs, count, NULL), 0);
}

static void batches(bool have)
{
#if OKI_CUDA_HAS_BATCH
	api.copy_batch = have ? fake_batch : NULL;
#else
	(void)have;
#endif
}

/* ---- registering ---- */

START_TEST(an_arena_goes_in_pieces)
{
	uint8_t *arena = malloc(1000), *other = malloc(64);
	struct okv_error err = {0};
	pin(arena, 1000, 300);
	ck_assert_uint_eq(driver.count, 4);
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_ptr_eq(driver.pieces[i].at, arena + i * 300ull);
		ck_assert_uint_eq(driver.pieces[i].bytes, i < 3 ? 300 : 100);
	}
	pin(other, 64, 64);
	ck_assert_uint_eq(driver.count, 5);
	/* Counted per base, whatever the next one's limit is. */
	pin(arena, 1000, 500);
	ck_assert_uint_eq(driver.calls, 5);
	ck_assert_int_eq(oki_cuda_pin(&device, arena, 600, false, &err), OKV_E_EXISTS);
	oki_cuda_unpin(arena);
	ck_assert_uint_eq(driver.count, 5);
	oki_cuda_unpin(arena);
	ck_assert_uint_eq(driver.count, 1);
	oki_cuda_unpin(other);
	free(arena);
	free(other);
}
END_TEST

/* The piece _i of five is refused: those before it are registered no more, and all is as before. */
START_TEST(a_refused_piece_takes_the_others_back)
{
	static const struct {
		CUresult why;
		int status;
	} cases[] = {
		{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, OKV_E_EXISTS},
		{CUDA_ERROR_OUT_OF_MEMORY, OKV_E_NOMEM},
		{CUDA_ERROR_INVALID_VALUE, OKV_E_UNSUPPORTED},
	};
	uint8_t *arena = malloc(5000);
	for (uint32_t c = 0; c < 3; c++) {
		struct okv_error err = {0};
		char place[64];
		driver.calls = 0;
		driver.refuse = (uint32_t)_i + 1;
		driver.why = cases[c].why;
		device.pin_limit = 1000;
		ck_assert_int_eq(oki_cuda_pin(&device, arena, 5000, false, &err), cases[c].status);
		ck_assert_int_eq(err.device_error, cases[c].why);
		ck_assert_int_eq(err.stage, OKV_STAGE_IMPORT);
		snprintf(place, sizeof(place), "1000 bytes at %p", (void *)(arena + _i * 1000));
		ck_assert_ptr_nonnull(strstr(err.text, place));
		ck_assert_uint_eq(driver.calls, (uint32_t)_i + 1);
		ck_assert_uint_eq(driver.count, 0);
		ck_assert_int_eq(driver.contexts, 0);
		struct oki_cuda_span span;
		oki_cuda_span(arena + 1500, &span);
		ck_assert(span.from == 0 && span.to == UINTPTR_MAX);
	}
	driver.refuse = 0;
	pin(arena, 5000, 1000);
	ck_assert_uint_eq(driver.count, 5);
	oki_cuda_unpin(arena);
	free(arena);
}
END_TEST

START_TEST(spans_end_where_registrations_do)
{
	uint8_t *memory = malloc(4000), *arena = memory + 1000;
	struct oki_cuda_span span;
	pin(arena, 1000, 300);
	pin(arena + 2000, 1000, 1000); /* in one piece: no boundary */
	const uintptr_t base = (uintptr_t)arena;
	for (uint32_t at = 0; at < 1000; at++) {
		oki_cuda_span(arena + at, &span);
		ck_assert_uint_eq(span.from, base + at / 300 * 300);
		ck_assert_uint_eq(span.to, base + (at < 900 ? at / 300 * 300 + 300 : 1000));
	}
	oki_cuda_span(arena + 2500, &span);
	ck_assert(span.from == base + 1000 && span.to == UINTPTR_MAX);
	oki_cuda_span(memory, &span);
	ck_assert(span.from == 0 && span.to == base);

	ck_assert(!oki_cuda_crosses_registration(&device, arena + 299, 2)); /* not this device's */
	ck_assert_int_eq(oki_cuda_mapping_add(&device, arena, 1000, NULL), 0);
	ck_assert(oki_cuda_crosses_registration(&device, arena + 299, 2));
	ck_assert(!oki_cuda_crosses_registration(&device, arena + 299, 1));
	ck_assert(!oki_cuda_crosses_registration(&device, arena + 300, 300));
	ck_assert(oki_cuda_crosses_registration(&device, arena + 300, 301));
	ck_assert(!oki_cuda_crosses_registration(&device, arena + 900, 100));
	ck_assert(!oki_cuda_crosses_registration(&device, arena + 2000, 1000));
	oki_cuda_mapping_remove(&device, arena);
	free(device.mappings);
	oki_cuda_unpin(arena);
	oki_cuda_unpin(arena + 2000);
	free(memory);
}
END_TEST

/* A device has an entry for each registration, each with its own offset, or none. */
START_TEST(every_piece_has_its_own_shift)
{
	uint8_t *arena = malloc(1000), *other = malloc(100);
	struct okv_error err = {0};
	pin(arena, 1000, 300);
	pin(other, 100, 100);
	driver.unseen = arena + 600;
	ck_assert_int_eq(oki_cuda_mapping_add(&device, arena, 1000, &err), OKV_E_UNSUPPORTED);
	ck_assert_uint_eq(device.mapping_count, 0);
	driver.unseen = NULL;
	/* Twice, as two bindings of one device would. */
	for (int n = 0; n < 2; n++)
		ck_assert_int_eq(oki_cuda_mapping_add(&device, arena, 1000, &err), 0);
	ck_assert_int_eq(oki_cuda_mapping_add(&device, other, 100, &err), 0);
	ck_assert_uint_eq(device.mapping_count, 9);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_ptr_eq(device.mappings[i].base, arena + i % 4 * 300ull);
		ck_assert_uint_eq(device.mappings[i].bytes, i % 4 < 3 ? 300 : 100);
		ck_assert_uint_eq(device.mappings[i].device_offset, 4096 * (i % 4 + 1));
	}
	ck_assert(device.arena_split);
	oki_cuda_mapping_remove(&device, arena);
	ck_assert_uint_eq(device.mapping_count, 5);
	ck_assert(device.arena_split);
	oki_cuda_mapping_remove(&device, arena);
	ck_assert_uint_eq(device.mapping_count, 1);
	ck_assert_ptr_eq(device.mappings[0].base, other);
	ck_assert(!device.arena_split);
	oki_cuda_mapping_remove(&device, arena);
	oki_cuda_mapping_remove(&device, other);
	ck_assert_uint_eq(device.mapping_count, 0);
	free(device.mappings);
	oki_cuda_unpin(arena);
	oki_cuda_unpin(other);
	free(arena);
	free(other);
}
END_TEST

START_TEST(the_limit_is_a_multiple_of_2_mib)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* 0: refused */
	} cases[] = {
		{"64M", 64ull << 20},
		{"2097152", 2ull << 20},
		{"2048K", 2ull << 20},
		{"256G", 256ull << 30},
		{"1T", 1ull << 40},
		{"0", 0},
		{"0M", 0},
		{"1M", 0},
		{"3M", 0},
		{"4095K", 0},
		{"", 0},
		{"-2M", 0},
		{" 2M", 0},
		{"M", 0},
		{"2MB", 0},
		{"2m", 0},
		{"2P", 0},
		{"99999999999999999999", 0},
		{"16777216T", 0},
		{"18446744073709551614K", 0},
	};
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t bytes = 0;
		ck_assert_msg(oki_cuda_pin_limit(cases[i].text, &bytes) == (cases[i].bytes > 0),
			      "%s", cases[i].text);
		ck_assert_msg(bytes == cases[i].bytes, "%s", cases[i].text);
	}
}
END_TEST

/* ---- copying ---- */

/* Random layers and runs, pieces of any size from one byte on: the bytes of a plain loop. */
START_TEST(bytes_as_a_plain_loop_from_pieces)
{
	uint64_t seed = 71 + (uint64_t)_i;
	batches(_i % 2 == 0);
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
		uint64_t least = c.host_bytes / (PIECES_MAX - 1) + 1;
		pin(host, c.host_bytes, least + case_below(&seed, (uint32_t)c.host_bytes));
		copy(direction, &c.map, c.runs, c.run_count);
		oki_cuda_unpin(host);
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

#define WIDTH 64u
#define PITCH 96u
#define ROWS 16u
#define EXTENT ((ROWS - 1) * PITCH + WIDTH)

/* One rectangle of 16 rows and a boundary in every place: rows before it and after it are one 2-D
 * copy each, a row that crosses it is two entries. */
START_TEST(a_rectangle_is_cut_by_rows)
{
	enum oki_direction direction = _i % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	const size_t pages_bytes = (size_t)ROWS * 2 * WIDTH;
	uint8_t *arena = malloc((size_t)2 * EXTENT), *pages = malloc(pages_bytes);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = 2 * WIDTH,
				    .segment_count = 1,
				    .page_count = ROWS,
				    .segments = {{0, 0, WIDTH}}};
	batches(_i < 2);
	pin(arena, (uint64_t)2 * EXTENT, EXTENT);
	for (uint32_t at = 0; at <= EXTENT; at++) {
		uint8_t *host = arena + EXTENT - at;
		struct oki_run run = {.host = host,
				      .host_pitch = PITCH,
				      .blocks = ROWS,
				      .page_pitch = 1,
				      .inner = 1};
		uint64_t seed = at;
		case_noise(&seed, arena, (uint64_t)2 * EXTENT);
		case_noise(&seed, pages, pages_bytes);
		driver.copies = driver.two = 0;
		copy(direction, &map, &run, 1);
		bool crosses = at % PITCH > 0 && at % PITCH < WIDTH;
		uint32_t before = at / PITCH + (at % PITCH >= WIDTH);
		uint32_t after = ROWS - before - crosses;
		ck_assert_int_eq(driver.copies, crosses ? 2 : 0);
		ck_assert_int_eq(driver.two, (before > 0) + (after > 0));
		for (uint32_t r = 0; r < ROWS; r++)
			ck_assert(memcmp(host + (size_t)r * PITCH, pages + (size_t)r * 2 * WIDTH,
					 WIDTH) == 0);
	}
	oki_cuda_unpin(arena);
	free(arena);
	free(pages);
}
END_TEST

/* Scattered rows: only those that cross are two entries, a long one is as many as it has pieces. */
START_TEST(a_row_is_an_entry_for_each_piece)
{
	uint8_t *arena = malloc(1000), page[1000];
	struct oki_layer_map map = {.base = page,
				    .page_stride = 1000,
				    .segment_count = 1,
				    .page_count = 1,
				    .segments = {{0, 0, 200}}};
	batches(_i == 0);
	pin(arena, 1000, 100);
	for (uint32_t at = 0; at <= 800; at++) {
		struct oki_run run = {.host = arena + at, .blocks = 1, .inner = 1};
		uint64_t seed = at;
		case_noise(&seed, arena, 1000);
		driver.copies = 0;
		copy(OKI_TO_PAGES, &map, &run, 1);
		ck_assert_int_eq(driver.copies, at % 100 ? 3 : 2);
		ck_assert(memcmp(page, arena + at, 200) == 0);
	}
	ck_assert_int_eq(driver.two, 0);
	oki_cuda_unpin(arena);
	free(arena);
}
END_TEST

/* ---- the kernel ---- */

static const uint8_t *kernel_arena;
static uint64_t kernel_block; /* bytes from one to the next */
static int launches;

/* Where the GPU sees a block depends on its own piece, not on that of its run's first block. */
static CUresult look_at_rows(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
			     unsigned bx, unsigned by, unsigned bz, unsigned shared,
			     CUstream stream, void **parameters, void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
	(void)shared, (void)stream, (void)extra;
	const struct oki_gather *g = parameters[0];
	launches++;
	ck_assert_uint_eq(g->tables[0].count, 9);
	for (uint64_t i = 0, at = 0; i < 9; i++, at += kernel_block)
		ck_assert_uint_eq(g->few[i].host,
				  (uint64_t)(uintptr_t)kernel_arena + at + 4096 * (at / 300 + 1));
	return CUDA_SUCCESS;
}

static CUresult record_nothing(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_SUCCESS;
}

/* 1,100 bytes of noise in pieces of 300, on a device that has the kernel alone. */
static void look_at_arena(uint8_t *arena, uint64_t block)
{
	struct okv_error err = {0};
	uint64_t seed = 3;
	kernel_arena = arena;
	kernel_block = block;
	launches = 0;
	api.launch = look_at_rows;
	api.event_record = record_nothing;
	device.path = OKV_COPY_KERNEL;
	device.sms = 1;
	pin(arena, 1100, 300);
	ck_assert_int_eq(oki_cuda_mapping_add(&device, arena, 1100, &err), 0);
	case_noise(&seed, arena, 1100);
}

static void leave_arena(uint8_t *arena)
{
	oki_cuda_mapping_remove(&device, arena);
	free(device.mappings);
	oki_cuda_unpin(arena);
	free(arena);
}

/* Blocks of 100 bytes in pieces of 300: the kernel takes them. Of 120: one lies in two pieces, and
 * copy engines, which can cut it, take them all. So they do when only a layer behind the end of
 * the first piece is copied: the kernel is told where the block begins. */
START_TEST(the_kernel_reads_no_block_of_two_pieces)
{
	uint8_t *arena = malloc(1100), *pages = malloc(9 * 120);
	const uint64_t block = _i ? 120 : 100, at = _i == 2 ? 70 : 0, bytes = block - at;
	struct oki_stream stream = {.device = &device, .stream = QUEUE};
	struct oki_layer_map map = {.base = pages,
				    .page_stride = bytes,
				    .segment_count = 1,
				    .page_count = 9,
				    .segments = {{.block_offset = at, .bytes = bytes}}};
	struct oki_run run = {
		.host = arena, .host_pitch = block, .blocks = 9, .page_pitch = 1, .inner = 1};
	const struct oki_layer_copy layer = {.map = &map, .runs = &run, .run_count = 1};
	struct okv_error err = {0};
	look_at_arena(arena, block);
	ck_assert_int_eq(oki_cuda_submit(&stream, OKI_TO_PAGES, &layer, 1, &err), 1);
	ck_assert_int_eq(launches, !_i);
	for (uint64_t i = 0; i < 9 && _i; i++)
		ck_assert(memcmp(pages + i * bytes, arena + i * block + at, bytes) == 0);
	/* Layers of the same runs, in any order: blocks of 120 are cut behind their 60th byte. What
	 * follows in the same piece goes by copy engines as well. */
	static const uint64_t ends[] = {1, 61, 60, 120, 59, 61};
	for (uint32_t n = 0; n < 12 && _i; n++) {
		launches = 0;
		map.segments[0].block_offset = 0;
		map.segments[0].bytes = ends[n % 6];
		/* As a mark does. */
		stream.chosen = stream.chosen && n > 6;
		ck_assert_int_eq(oki_cuda_submit(&stream, OKI_TO_PAGES, &layer, 1, &err), 1);
		ck_assert_int_eq(launches, ends[n % 6] <= 60 && n <= 6);
	}
	oki_cuda_plans_forget(&stream);
	leave_arena(arena);
	free(pages);
}
END_TEST

/* Two groups in one call, and a block of one of them lies in two pieces: all go by copy engines,
 * whichever group comes first. Of the other one alone the kernel takes layers. */
START_TEST(one_group_has_a_cut_block)
{
	const uint64_t blocks[] = {_i ? 120 : 100, _i ? 100 : 120};
	uint8_t *arena = malloc(1100), *pages = malloc(2 * 9 * 120);
	struct oki_stream stream = {.device = &device, .stream = QUEUE};
	struct oki_layer_map maps[2];
	struct oki_run runs[2];
	struct oki_layer_copy layers[2];
	struct okv_error err = {0};
	for (uint32_t g = 0; g < 2; g++) {
		maps[g] = (struct oki_layer_map){.base = pages + g * 9 * 120ull,
						 .page_stride = blocks[g],
						 .segment_count = 1,
						 .page_count = 9,
						 .segments = {{.bytes = blocks[g]}}};
		runs[g] = (struct oki_run){.host = arena,
					   .host_pitch = blocks[g],
					   .blocks = 9,
					   .page_pitch = 1,
					   .inner = 1};
		layers[g] =
			(struct oki_layer_copy){.map = &maps[g], .runs = &runs[g], .run_count = 1};
	}
	look_at_arena(arena, 100);
	ck_assert_int_eq(oki_cuda_submit(&stream, OKI_TO_PAGES, layers, 2, &err), 2);
	ck_assert_int_eq(launches, 0);
	for (uint32_t g = 0; g < 2; g++)
		ck_assert(memcmp(maps[g].base, arena, 9 * blocks[g]) == 0);
	oki_cuda_plans_forget(&stream);
	for (int g = 0; g < 2; g++) {
		ck_assert_int_eq(oki_cuda_submit(&stream, OKI_TO_PAGES, layers + g, 1, &err), 1);
		ck_assert_int_eq(launches, g >= _i);
		ck_assert_int_eq(stream.by_kernel, g == _i);
	}
	oki_cuda_plans_forget(&stream);
	leave_arena(arena);
	free(pages);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda pieces");
	TCase *tc = tcase_create("pieces");
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, an_arena_goes_in_pieces);
	tcase_add_loop_test(tc, a_refused_piece_takes_the_others_back, 0, 5);
	tcase_add_test(tc, spans_end_where_registrations_do);
	tcase_add_test(tc, every_piece_has_its_own_shift);
	tcase_add_test(tc, the_limit_is_a_multiple_of_2_mib);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop_from_pieces, 0, 4);
	tcase_add_loop_test(tc, a_rectangle_is_cut_by_rows, 0, 4);
	tcase_add_loop_test(tc, a_row_is_an_entry_for_each_piece, 0, 2);
	tcase_add_loop_test(tc, the_kernel_reads_no_block_of_two_pieces, 0, 3);
	tcase_add_loop_test(tc, one_group_has_a_cut_block, 0, 2);
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
