/* SPDX-License-Identifier: Apache-2.0 */
/* Layers by the copy kernel on a real GPU, alone and in turns with copy engines: their events come
 * after their bytes, what is counted is exact, and a publish keeps its pace. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "base/clock.h"
#include "support/suite.h"
#include "test/device/kernel_rig.h"

#define EVENT_LAYERS 48u
#define EVENT_CASES 11

/*
 * Each layer's event lets a copy of that layer go, while the layers after it are on their way: what
 * that copy took must be whole. A layer of 512 KiB makes a stretch with its neighbour, or alone;
 * shorter rows go to narrower groups. Schema groups, of which each has half the rows of the one
 * before, take turns.
 */
START_TEST(an_event_comes_after_its_layer)
{
	static const struct {
		uint32_t path, segments, groups;
		uint64_t row;
	} cases[EVENT_CASES] = {
		{OKV_COPY_KERNEL, 1, 1, 8192}, {OKV_COPY_KERNEL, 2, 1, 8192},
		{OKV_COPY_AUTO, 1, 1, 8192},   {OKV_COPY_AUTO, 2, 1, 8192},
		{OKV_COPY_KERNEL, 1, 1, 512},  {OKV_COPY_KERNEL, 1, 1, 1536},
		{OKV_COPY_KERNEL, 1, 2, 8192}, {OKV_COPY_KERNEL, 2, 3, 4096},
		{OKV_COPY_AUTO, 1, 3, 4096},   {OKV_COPY_KERNEL, 1, 3, 512},
		{OKV_COPY_KERNEL, 1, 5, 1536},
	};
	const uint64_t row = cases[_i].row, rows = (512u << 10) / row, layer = row * rows;
	const uint32_t segments = cases[_i].segments, groups = cases[_i].groups;
	struct oki_layer_map maps[EVENT_LAYERS];
	struct oki_layer_copy layers[EVENT_LAYERS];
	CUevent events[EVENT_LAYERS];
	struct oki_run *runs = calloc(rows * groups, sizeof(*runs));
	uint64_t seed = 17;
	struct rig r;
	CUstream reader;
	rig_init(&r, cases[_i].path, 4);
	const struct oki_cuda_api *api = r.device->api;
	MUST(api->stream_create(&reader, CU_STREAM_NON_BLOCKING, 0));
	for (uint32_t l = 0; l < EVENT_LAYERS; l++) {
		uint32_t g = l % groups;
		maps[l] = (struct oki_layer_map){.base = (uint8_t *)r.pages + l * layer,
						 .page_stride = row,
						 .segment_count = segments,
						 .page_count = (uint32_t)rows};
		for (uint32_t k = 0; k < segments; k++)
			maps[l].segments[k] = (struct oki_segment_map){
				.page_offset = k * (row / segments),
				.block_offset = l * row + (segments - 1 - k) * (row / segments),
				.bytes = row / segments};
		MUST(api->event_create(&events[l], CU_EVENT_DISABLE_TIMING));
		layers[l] = (struct oki_layer_copy){.map = &maps[l],
						    .runs = runs + g * rows,
						    .run_count = (uint32_t)rows >> g,
						    .event = events[l]};
	}
	for (uint32_t g = 0; g < groups; g++)
		for (uint32_t i = 0; i < rows >> g; i++)
			runs[g * rows + i] =
				(struct oki_run){.host = r.host + i * EVENT_LAYERS * row,
						 .blocks = 1,
						 .inner = 1,
						 .page = i * 37 % ((uint32_t)rows >> g)};
	void *seen = NULL;
	MUST(api->host_alloc(&seen, EVENT_LAYERS * layer, 0));
	for (int n = 0; n < 20; n++) {
		rig_noise(&r, &seed, EVENT_LAYERS * layer, EVENT_LAYERS * layer);
		rig_queue(&r, OKI_TO_PAGES, layers, EVENT_LAYERS);
		for (uint32_t l = 0; l < EVENT_LAYERS; l++) {
			MUST(api->stream_wait_event(reader, events[l], 0));
			MUST(api->copy_to_host((uint8_t *)seen + l * layer, r.pages + l * layer,
					       layer, reader));
		}
		MUST(api->stream_synchronize(reader));
		OKAY(ops->drain(r.stream, &problem));
		ops->stream_recycle(r.stream);
		for (uint32_t l = 0; l < EVENT_LAYERS; l++)
			for (uint32_t i = 0; i < layers[l].run_count; i++)
				for (uint32_t k = 0; k < segments; k++) {
					const struct oki_segment_map *seg = &maps[l].segments[k];
					const struct oki_run *run = &layers[l].runs[i];
					ck_assert_msg(memcmp((uint8_t *)seen + l * layer +
								     run->page * row +
								     seg->page_offset,
							     run->host + seg->block_offset,
							     seg->bytes) == 0,
						      "layer %u, row %u", l, i);
				}
	}
	MUST(api->host_free(seen));
	for (uint32_t l = 0; l < EVENT_LAYERS; l++)
		MUST(api->event_destroy(events[l]));
	MUST(api->stream_destroy(reader));
	rig_fini(&r);
	free(runs);
}
END_TEST

/* At a pace far below what the link has, on few SMs and on many: no faster than that, and groups
 * that wait count their columns all the same, exactly. */
START_TEST(a_publish_keeps_its_pace)
{
	enum { LAYERS = OKI_GATHER_COLUMNS / 3, SEGMENTS = 3, ROWS = 64 };
	/* Groups of 8 lanes: several of them count in a warp. */
	const uint64_t row = 512, block = LAYERS * SEGMENTS * row;
	struct oki_layer_map maps[LAYERS];
	struct oki_layer_copy layers[LAYERS];
	CUevent events[LAYERS];
	struct oki_run runs[ROWS];
	uint32_t counts[OKI_CUDA_COUNTERS];
	uint64_t seed = 37;
	struct rig r;
	CUstream reader;
	rig_init(&r, OKV_COPY_KERNEL, _i ? 32 : 4);
	r.device->link[OKI_TO_BLOCKS] = 2;
	const double rate = oki_cuda_budget(r.device, OKI_TO_BLOCKS).rate;
	ck_assert(rate > 0 && rate <= 2);
	const struct oki_cuda_api *api = r.device->api;
	MUST(api->stream_create(&reader, CU_STREAM_NON_BLOCKING, 0));
	for (uint32_t l = 0; l < LAYERS; l++) {
		maps[l] = (struct oki_layer_map){.base = (uint8_t *)r.pages +
							 l * SEGMENTS * ROWS * row,
						 .page_stride = row,
						 .segment_count = SEGMENTS,
						 .page_count = ROWS};
		for (uint32_t s = 0; s < SEGMENTS; s++)
			maps[l].segments[s] = (struct oki_segment_map){
				s * ROWS * row, (l * SEGMENTS + SEGMENTS - 1 - s) * row, row};
		MUST(api->event_create(&events[l], CU_EVENT_DISABLE_TIMING));
		layers[l] = (struct oki_layer_copy){
			.map = &maps[l], .runs = runs, .run_count = ROWS, .event = events[l]};
	}
	for (uint32_t i = 0; i < ROWS; i++)
		runs[i] = (struct oki_run){
			.host = r.host + i * block, .blocks = 1, .inner = 1, .page = i * 37 % ROWS};
	for (int n = 0; n < 20; n++) {
		rig_noise(&r, &seed, ROWS * block, ROWS * block);
		uint64_t start = oki_now_ns();
		rig_queue(&r, OKI_TO_BLOCKS, layers, LAYERS);
		for (uint32_t l = 0; l < LAYERS; l++) {
			MUST(api->stream_wait_event(reader, events[l], 0));
			MUST(api->stream_synchronize(reader));
			for (uint32_t k = 0; k < ROWS * SEGMENTS; k++) {
				const struct oki_run *run = &runs[k / SEGMENTS];
				const struct oki_segment_map *seg = &maps[l].segments[k % SEGMENTS];
				ck_assert_msg(memcmp(run->host + seg->block_offset,
						     r.want_pages + l * SEGMENTS * ROWS * row +
							     seg->page_offset + run->page * row,
						     row) == 0,
					      "round %d, layer %u, row %u", n, l, k / SEGMENTS);
			}
		}
		OKAY(ops->drain(r.stream, &problem));
		/* Its first pieces are not behind others, and a few of the rest make up for that.
		 */
		ck_assert((double)(oki_now_ns() - start) > 0.5 * (double)(ROWS * block) / rate);
		MUST(cu.cuMemcpyDtoH(counts, r.stream->counter_memory, sizeof(counts)));
		if (r.stream->counters)
			ck_assert_int_eq(memcmp(counts, r.stream->counts, sizeof(counts)), 0);
		ops->stream_recycle(r.stream);
	}
	for (uint32_t l = 0; l < LAYERS; l++)
		MUST(api->event_destroy(events[l]));
	MUST(api->stream_destroy(reader));
	rig_fini(&r);
}
END_TEST

/* A long part of a layer and then a short one, which has the event: it follows the long one too. */
START_TEST(an_event_comes_after_earlier_parts)
{
	const uint64_t row = 8192;
	const uint32_t rows = 4096;
	struct oki_run *runs = calloc(rows, sizeof(*runs));
	uint64_t seed = 29;
	struct rig r;
	CUstream reader;
	CUevent event;
	void *seen = NULL;
	rig_init(&r, _i ? OKV_COPY_AUTO : OKV_COPY_KERNEL, 4);
	const struct oki_cuda_api *api = r.device->api;
	MUST(api->stream_create(&reader, CU_STREAM_NON_BLOCKING, 0));
	MUST(api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	MUST(api->host_alloc(&seen, rows * row, 0));
	struct oki_layer_map map = {.base = (uint8_t *)r.pages,
				    .page_stride = row,
				    .segment_count = 1,
				    .page_count = rows,
				    .segments = {{.bytes = row}}};
	const struct oki_layer_map *maps[] = {&map};
	for (uint32_t i = 0; i < rows; i++)
		runs[i] = (struct oki_run){
			.host = r.host + i * row, .blocks = 1, .inner = 1, .page = i * 37 % rows};
	for (int n = 0; n < 20; n++) {
		rig_noise(&r, &seed, rows * row, rows * row);
		ck_assert_int_eq(copy_same(ops, r.stream, OKI_TO_PAGES, maps, NULL, 1, runs,
					   rows - 3, &problem),
				 1);
		ck_assert_int_eq(copy_same(ops, r.stream, OKI_TO_PAGES, maps, &event, 1,
					   runs + rows - 3, 3, &problem),
				 1);
		MUST(api->stream_wait_event(reader, event, 0));
		MUST(api->copy_to_host(seen, r.pages, rows * row, reader));
		MUST(api->stream_synchronize(reader));
		OKAY(ops->drain(r.stream, &problem));
		ops->stream_recycle(r.stream);
		for (uint32_t i = 0; i < rows; i++)
			ck_assert_msg(memcmp((uint8_t *)seen + runs[i].page * row, runs[i].host,
					     row) == 0,
				      "round %d, row %u", n, i);
	}
	MUST(api->host_free(seen));
	MUST(api->event_destroy(event));
	MUST(api->stream_destroy(reader));
	rig_fini(&r);
	free(runs);
}
END_TEST

/* Two parts of a layer, one by the kernel and one by copy engines: each follows the other one, and
 * the event that comes with the second follows both. */
#define PART_ROWS 2048u
#define PART_ROW 8192u

/* From page and block `first` on. */
static void part_runs(const struct rig *r, uint32_t first, struct oki_run *ret_runs)
{
	for (uint32_t i = 0; i < PART_ROWS; i++)
		ret_runs[i] = (struct oki_run){
			.host = r->host + (uint64_t)(first + i * 7 % PART_ROWS) * PART_ROW,
			.blocks = 1,
			.inner = 1,
			.page = first + i * 11 % PART_ROWS};
}

/* Each part of `layer` by another way. */
static void queue_parts(struct rig *r, enum oki_direction direction, bool kernel_first,
			const struct oki_layer_copy *layer)
{
	for (uint32_t part = 0; part < 2; part++) {
		struct oki_layer_copy some = *layer;
		some.runs += part * PART_ROWS;
		some.run_count = PART_ROWS;
		some.event = part ? layer->event : NULL;
		r->device->path = kernel_first == !part ? OKV_COPY_KERNEL : OKV_COPY_DMA;
		rig_queue(r, direction, &some, 1);
		ck_assert_int_eq(r->stream->by_kernel, kernel_first == !part);
	}
}

START_TEST(parts_by_both_ways)
{
	const uint64_t bytes = 2ull * PART_ROWS * PART_ROW;
	enum oki_direction direction = _i / 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	struct oki_run *runs = calloc(2ull * PART_ROWS, sizeof(*runs));
	uint64_t seed = 37;
	struct rig r;
	CUstream reader;
	CUevent event;
	rig_init(&r, OKV_COPY_AUTO, 0);
	const struct oki_cuda_api *api = r.device->api;
	MUST(api->stream_create(&reader, CU_STREAM_NON_BLOCKING, 0));
	MUST(api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	part_runs(&r, 0, runs);
	part_runs(&r, PART_ROWS, runs + PART_ROWS);
	struct oki_layer_map map = {.base = (uint8_t *)r.pages,
				    .page_stride = PART_ROW,
				    .segment_count = 1,
				    .page_count = 2 * PART_ROWS,
				    .segments = {{0, 0, PART_ROW}}};
	const struct oki_layer_copy layer = {&map, runs, 2 * PART_ROWS, event};
	for (int n = 0; n < 20; n++) {
		rig_noise(&r, &seed, bytes, bytes);
		for (uint32_t i = 0; i < 2 * PART_ROWS; i++) {
			uint8_t *h = r.want_host + (runs[i].host - r.host);
			uint8_t *p = r.want_pages + (uint64_t)runs[i].page * PART_ROW;
			memcpy(direction == OKI_TO_PAGES ? p : h, direction == OKI_TO_PAGES ? h : p,
			       PART_ROW);
		}
		queue_parts(&r, direction, _i % 2, &layer);
		MUST(api->stream_wait_event(reader, event, 0));
		MUST(api->stream_synchronize(reader));
		ck_assert_msg(rig_is_right(&r, bytes, bytes), "round %d", n);
		OKAY(ops->drain(r.stream, &problem));
		ops->stream_recycle(r.stream);
	}
	MUST(api->event_destroy(event));
	MUST(api->stream_destroy(reader));
	rig_fini(&r);
	free(runs);
}
END_TEST

int main(void)
{
	int rc = find_gpu(OKV_COPY_KERNEL);
	if (rc != 0)
		return rc;
	Suite *suite = suite_create("copy kernel's layers");
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 300);
	tcase_add_loop_test(tc, an_event_comes_after_its_layer, 0, EVENT_CASES);
	tcase_add_loop_test(tc, a_publish_keeps_its_pace, 0, 2);
	tcase_add_loop_test(tc, an_event_comes_after_earlier_parts, 0, 2);
	tcase_add_loop_test(tc, parts_by_both_ways, 0, 4);
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
