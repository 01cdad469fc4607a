/* SPDX-License-Identifier: Apache-2.0 */
/* The events of layers behind the kernel's launches. No GPU: the driver's calls are replaced by
 * ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_stage.h"
#include "support/suite.h"

#define EVENT_LAYERS 64u

/* Layers of so many rows of 16 KiB, an event each. Returns the launches. */
static int copy_with_events(struct stage *s, uint32_t rows, uint32_t segments)
{
	const uint64_t row = 16384;
	uint8_t *host = calloc(rows * EVENT_LAYERS, row), *pages = calloc(rows * EVENT_LAYERS, row);
	struct oki_layer_map layers[EVENT_LAYERS];
	const struct oki_layer_map *maps[EVENT_LAYERS];
	CUevent events[EVENT_LAYERS];
	uint64_t seed = 5;
	case_noise(&seed, host, rows * EVENT_LAYERS * row);
	for (uint32_t l = 0; l < EVENT_LAYERS; l++) {
		layers[l] = (struct oki_layer_map){.base = pages + l * rows * row,
						   .page_stride = row,
						   .segment_count = segments,
						   .page_count = rows};
		/* Their order on both sides differs, so that none can be joined. */
		for (uint32_t k = 0; k < segments; k++)
			layers[l].segments[k] = (struct oki_segment_map){
				.page_offset = k * (row / segments),
				.block_offset = l * row + (segments - 1 - k) * (row / segments),
				.bytes = row / segments};
		maps[l] = &layers[l];
		events[l] = (CUevent)(uintptr_t)(l + 1);
	}
	struct oki_run run = {.host = host,
			      .host_pitch = rows > 1 ? EVENT_LAYERS * row : 0,
			      .blocks = rows,
			      .page_pitch = rows > 1,
			      .inner = 1};
	int launches = calls.launches;
	calls.columns = calls.columns_waited = calls.events = 0;
	calls.columns_of_event = s->device.path == OKV_COPY_KERNEL ? segments : 0;
	stage_copy(s, OKI_TO_PAGES, maps, events, EVENT_LAYERS, &run, 1);
	/* As before a mark. */
	ck_assert_int_eq(oki_cuda_join(&s->stream), CUDA_SUCCESS);
	if (calls.columns_of_event)
		ck_assert_uint_eq(calls.events, EVENT_LAYERS);
	for (uint32_t l = 0; l < EVENT_LAYERS; l++)
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t k = 0; k < segments; k++) {
				const struct oki_segment_map *seg = &layers[l].segments[k];
				ck_assert(memcmp(layers[l].base + r * row + seg->page_offset,
						 run.host + r * run.host_pitch + seg->block_offset,
						 seg->bytes) == 0);
			}
	oki_cuda_plans_forget(&s->stream);
	free(host);
	free(pages);
	return calls.launches - launches;
}

/* One kernel for many layers, and every event behind its own layer's bytes. */
START_TEST(events_follow_their_layers)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	/* Again and again, by two launches at a time: they use the same counters. */
	for (int n = 0; n < 5; n++) {
		ck_assert_int_eq(copy_with_events(&s, 1, 1), 1);
		ck_assert_int_eq(copy_with_events(&s, 300, 1), 1);
		ck_assert_int_eq(copy_with_events(&s, 40, 2), 2);
	}
	/* Layers are small and share their waits; large ones have one each. */
	int waits = calls.waits;
	copy_with_events(&s, 300, 1);
	ck_assert_int_eq(calls.waits - waits, 1); /* for the side stream */
	/* Of two kernels, the first signal's and the tickets. */
	uint32_t wrapped = 0;
	for (uint32_t i = 1; i < sizeof(s.stream.counts) / sizeof(s.stream.counts[0]); i++)
		wrapped += calls.counters[i] < UINT32_MAX / 2;
	ck_assert_uint_ge(wrapped, 4);
	stage_fini(&s);
}
END_TEST

/* A driver without waits for a value: an event can follow a kernel only. */
START_TEST(events_without_counters)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	ck_assert_int_eq(copy_with_events(&s, 300, 1), EVENT_LAYERS);
	/* 1 MiB of layers end together; the first stretches are shorter. */
	ck_assert_int_eq(copy_with_events(&s, 1, 1), 3);
	stage_fini(&s);
}
END_TEST

/* More segments than one launch has room for. */
START_TEST(more_columns_than_one_launch)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	uint8_t *host = malloc(64 * 8 * 32), *pages = calloc(64, 8 * 64);
	uint64_t seed = 8;
	struct oki_layer_map layers[64];
	const struct oki_layer_map *maps[64];
	case_noise(&seed, host, 64 * 8 * 32);
	for (uint32_t l = 0; l < 64; l++) {
		layers[l] = (struct oki_layer_map){
			.base = pages + l * 512, .page_stride = 512, .segment_count = 8};
		for (uint32_t k = 0; k < 8; k++)
			layers[l].segments[k] = (struct oki_segment_map){
				.page_offset = k * 64, .block_offset = (l * 8 + k) * 32, 32};
		maps[l] = &layers[l];
	}
	struct oki_run run = {.host = host, .blocks = 1, .inner = 1};
	stage_counters(&s);
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 64, &run, 1);
	/* A layer's segments stay together. */
	ck_assert(calls.launches > 1 && calls.launches < 64);
	for (uint32_t i = 0; i < 64 * 8; i++)
		ck_assert(memcmp(pages + i * 64, host + i * 32, 32) == 0);
	stage_fini(&s);
	free(host);
	free(pages);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda events");
	TCase *tc = tcase_create("events");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, events_follow_their_layers);
	tcase_add_test(tc, events_without_counters);
	tcase_add_test(tc, more_columns_than_one_launch);
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
