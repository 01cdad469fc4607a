/* SPDX-License-Identifier: Apache-2.0 */
/* The copy kernel on a real GPU: every alignment, few and many rows, SM caps, shifted addresses. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "support/suite.h"
#include "test/device/kernel_rig.h"

START_TEST(bytes_as_a_plain_loop)
{
	static const uint32_t caps[] = {1, 2, 4, 16, 64};
	uint64_t seed = 71 + (uint64_t)_i;
	struct rig r;
	rig_init(&r, _i < 5 ? OKV_COPY_KERNEL : OKV_COPY_AUTO, caps[_i % 5]);
	for (int n = 0; n < 120; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 16 : 1);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		rig_noise(&r, &seed, c.host_bytes, c.pages_bytes);
		case_place(&c, r.host, (uint8_t *)r.pages);
		case_expect(&c, r.host, direction, r.want_host, r.want_pages);
		const struct oki_layer_map *map = &c.map;
		rig_copy(&r, direction, &map, 1, c.runs, c.run_count);
		ck_assert_msg(rig_is_right(&r, c.host_bytes, c.pages_bytes), "case %d of seed %d",
			      n, _i);
	}
	rig_fini(&r);
}
END_TEST

/* Three long rows for every pair of misalignments, in both directions. */
START_TEST(every_alignment)
{
	const uint64_t bytes = 70001, pitch = 70017;
	enum oki_direction direction = _i ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	uint64_t seed = 5;
	struct rig r;
	rig_init(&r, OKV_COPY_KERNEL, 0);
	for (uint64_t shift = 0; shift < 256; shift += 3) {
		struct oki_layer_map map = {.base = (uint8_t *)r.pages + shift % 16,
					    .page_stride = pitch,
					    .segment_count = 1,
					    .page_count = 3,
					    .segments = {{0, 0, bytes}}};
		const struct oki_layer_map *maps[] = {&map};
		struct oki_run run = {.host = r.host + shift / 16,
				      .host_pitch = pitch + 3,
				      .blocks = 3,
				      .page_pitch = 1,
				      .inner = 1};
		rig_noise(&r, &seed, 4 * pitch, 4 * pitch);
		for (uint64_t o = 0; o < 3; o++) {
			uint8_t *h = r.want_host + shift / 16 + o * (pitch + 3);
			uint8_t *p = r.want_pages + shift % 16 + o * pitch;
			memcpy(_i ? p : h, _i ? h : p, bytes);
		}
		rig_copy(&r, direction, maps, 1, &run, 1);
		ck_assert_msg(rig_is_right(&r, 4 * pitch, 4 * pitch), "shift %d", (int)shift);
	}
	rig_fini(&r);
}
END_TEST

/* More rows than any launch carries itself, more layers than one launch has columns for. */
START_TEST(many_rows_of_many_layers)
{
	enum { ROWS = 3000, LAYERS = 40, SEGMENTS = 3 };
	const uint64_t bytes = 72, block = LAYERS * SEGMENTS * bytes;
	uint64_t seed = 12;
	struct rig r;
	struct oki_layer_map layers[LAYERS];
	const struct oki_layer_map *maps[LAYERS];
	struct oki_run *runs = calloc(ROWS, sizeof(*runs));
	enum oki_direction direction = _i ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	rig_init(&r, OKV_COPY_KERNEL, 0);
	rig_noise(&r, &seed, ROWS * block, ROWS * block);
	for (uint32_t i = 0; i < ROWS; i++)
		runs[i] = (struct oki_run){.host = r.host + i * 7ull % ROWS * block,
					   .blocks = 1,
					   .inner = 1,
					   .page = i * 11 % ROWS};
	for (uint32_t l = 0; l < LAYERS; l++) {
		layers[l] = (struct oki_layer_map){.base = (uint8_t *)r.pages +
							   l * ROWS * SEGMENTS * bytes,
						   .page_stride = bytes,
						   .segment_count = SEGMENTS,
						   .page_count = ROWS};
		for (uint32_t s = 0; s < SEGMENTS; s++) {
			layers[l].segments[s] = (struct oki_segment_map){
				s * ROWS * bytes, (l * SEGMENTS + s) * bytes, bytes};
			for (uint32_t i = 0; i < ROWS; i++) {
				uint8_t *h = r.want_host + (runs[i].host - r.host) +
					     (l * SEGMENTS + s) * bytes;
				uint8_t *p = r.want_pages + (l * SEGMENTS + s) * ROWS * bytes +
					     runs[i].page * bytes;
				memcpy(_i ? p : h, _i ? h : p, bytes);
			}
		}
		maps[l] = &layers[l];
	}
	rig_copy(&r, direction, maps, LAYERS, runs, ROWS);
	ck_assert(rig_is_right(&r, ROWS * block, ROWS * block));
	free(runs);
	rig_fini(&r);
}
END_TEST

/* Launches in a row, the middle one short: more layers of K and V than one launch has columns for.
 * Each takes its own pieces, round after round. */
START_TEST(launches_take_their_own_pieces)
{
	enum { LAYERS = 80, ROWS = 8 };
	const uint64_t row = 4096, block = LAYERS * 2 * row;
	struct oki_layer_map layers[LAYERS];
	const struct oki_layer_map *maps[LAYERS];
	struct oki_run runs[ROWS];
	uint64_t seed = 31;
	struct rig r;
	rig_init(&r, OKV_COPY_KERNEL, 4);
	for (uint32_t l = 0; l < LAYERS; l++) {
		layers[l] = (struct oki_layer_map){
			.base = (uint8_t *)r.pages + l * 2 * ROWS * row,
			.page_stride = row,
			.segment_count = 2,
			.page_count = ROWS,
			.segments = {{0, l * 2 * row, row}, {ROWS * row, (l * 2 + 1) * row, row}}};
		maps[l] = &layers[l];
	}
	for (uint32_t i = 0; i < ROWS; i++)
		runs[i] = (struct oki_run){
			.host = r.host + i * block, .blocks = 1, .inner = 1, .page = i * 5 % ROWS};
	for (int n = 0; n < 100; n++) {
		rig_noise(&r, &seed, ROWS * block, ROWS * block);
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t s = 0; s < 2; s++)
				for (uint32_t i = 0; i < ROWS; i++)
					memcpy(r.want_pages + l * 2 * ROWS * row + s * ROWS * row +
						       runs[i].page * row,
					       runs[i].host + (l * 2 + s) * row, row);
		rig_copy(&r, OKI_TO_PAGES, maps, LAYERS, runs, ROWS);
		ck_assert_msg(rig_is_right(&r, ROWS * block, ROWS * block), "round %d", n);
	}
	rig_fini(&r);
}
END_TEST

/* The GPU may see an arena elsewhere than the CPU does. */
START_TEST(device_addresses_are_used)
{
	struct rig r;
	uint64_t seed = 9;
	rig_init(&r, OKV_COPY_KERNEL, 0);
	rig_noise(&r, &seed, 2 << 20, 1 << 20);
	memcpy(r.want_pages, r.host + (1 << 20), 4096);
	r.device->mappings[0].device_offset += 1 << 20;
	struct oki_layer_map map = {.base = (uint8_t *)r.pages,
				    .page_stride = 4096,
				    .segment_count = 1,
				    .page_count = 1,
				    .segments = {{0, 0, 4096}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {.host = r.host, .blocks = 1, .inner = 1};
	rig_copy(&r, OKI_TO_PAGES, maps, 1, &run, 1);
	ck_assert(rig_is_right(&r, 2 << 20, 1 << 20));
	rig_fini(&r);
}
END_TEST

START_TEST(options_and_environment)
{
	struct oki_device_config config = {.copy_path = OKV_COPY_KERNEL, .copy_sms = 7};
	struct oki_device *opened = NULL;
	OKAY(ops->open(&config, &opened, &problem));
	ck_assert_uint_eq(opened->path, OKV_COPY_KERNEL);
	ck_assert_uint_eq(opened->sms, 7);
	ops->close(opened);
	setenv("ORBITKV_COPY", "dma", 1);
	setenv("ORBITKV_COPY_SMS", "9", 1);
	OKAY(ops->open(&config, &opened, &problem));
	ck_assert_uint_eq(opened->path, OKV_COPY_DMA);
	ck_assert_uint_eq(opened->sms, 9);
	ops->close(opened);
	setenv("ORBITKV_COPY", "fast", 1);
	ck_assert_int_eq(ops->open(&config, &opened, &problem), OKV_E_INVAL);
	setenv("ORBITKV_COPY", "auto", 1);
	setenv("ORBITKV_COPY_SMS", "65", 1);
	ck_assert_int_eq(ops->open(&config, &opened, &problem), OKV_E_INVAL);
	unsetenv("ORBITKV_COPY");
	unsetenv("ORBITKV_COPY_SMS");
	config.copy_path = 3;
	ck_assert_int_eq(ops->open(&config, &opened, &problem), OKV_E_INVAL);
	config = (struct oki_device_config){0};
	OKAY(ops->open(&config, &opened, &problem));
	for (int d = 0; d < 2; d++) {
		printf("%s: link %.1f GB/s\n", d == OKI_TO_PAGES ? "restore" : "publish",
		       opened->link[d]);
		ck_assert(opened->link[d] > 1);
	}
	ops->close(opened);
}
END_TEST

int main(void)
{
	int rc = find_gpu(OKV_COPY_KERNEL);
	if (rc != 0)
		return rc;
	Suite *suite = suite_create("copy kernel");
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 10);
	tcase_add_loop_test(tc, every_alignment, 0, 2);
	tcase_add_loop_test(tc, many_rows_of_many_layers, 0, 2);
	tcase_add_test(tc, launches_take_their_own_pieces);
	tcase_add_test(tc, device_addresses_are_used);
	tcase_add_test(tc, options_and_environment);
	suite_add_tcase(suite, tc);
	return kv_suite_run_here(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
