/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The plainest ways to move the same rows, without the cache. */
#include "bench_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the loop of copies and of one batched call: the first layers, if there are more rows. All of
 * them lie no closer to each other. */
#define LOOP_ROWS 8192u
#define BATCH_ROWS 65536u
#define CHUNK (1u << 20)
#define GRAIN_ROWS 16u

struct baseline {
	struct bench_pages *pages;
	const struct bench_rows *rows;
	enum bench_direction direction;
	uint64_t bytes; /* of one run */
	uint64_t row_count;
	tool_device_address *to; /* owned, with from and sizes; of batched calls */
	tool_device_address *from;
	size_t *sizes;
};

const char *bench_baseline_name(const struct bench_config *config, enum bench_baseline_kind kind)
{
	static const char *const gpu[] = {"contiguous", "loop", "batch", "batch_layer"};
	static const char *const host[] = {"contiguous", "loop", "memcpy", ""};

	return config->cuda != NULL ? gpu[kind] : host[kind];
}

/* ---- GPU ---- */

static int end_gpu(struct baseline *b, int result, int which)
{
	struct bench_cuda *cuda = b->pages->config->cuda;

	if (result == 0)
		result = cuda->gpu.cu.event_record(cuda->done[which], cuda->streams[which]);
	return result != 0 ? result : bench_cuda_poll(cuda, cuda->done[which]);
}

static int contiguous_gpu(struct baseline *b)
{
	struct bench_pages *p = b->pages;
	struct bench_cuda *cuda = p->config->cuda;
	bool both = b->direction == BENCH_BOTH;
	uint64_t second = both ? b->bytes : 0;
	int result = 0;

	if (b->direction != BENCH_PUBLISH)
		result = cuda->gpu.cu.to_device_async(p->gpu, p->staging, b->bytes,
						      cuda->streams[0]);
	if (result == 0 && b->direction != BENCH_RESTORE)
		result = cuda->gpu.cu.to_host_async(p->staging + second, p->gpu + second, b->bytes,
						    cuda->streams[1]);
	if (b->direction != BENCH_PUBLISH)
		result = end_gpu(b, result, 0);
	return b->direction != BENCH_RESTORE ? end_gpu(b, result, 1) : result;
}

static int loop_gpu(struct baseline *b)
{
	struct bench_pages *p = b->pages;
	struct bench_cuda *cuda = p->config->cuda;
	uint64_t bytes = p->shape->segment_bytes;
	int which = b->direction == BENCH_PUBLISH;
	int result = 0;

	for (uint64_t i = 0; i < b->row_count && result == 0; i++) {
		const struct bench_row *row = &b->rows->rows[i];
		uint8_t *host = p->staging + row->stage_at;
		tool_device_address device = p->gpu + row->page_at;

		if (which == 0)
			result =
				cuda->gpu.cu.to_device_async(device, host, bytes, cuda->streams[0]);
		else
			result = cuda->gpu.cu.to_host_async(host, device, bytes, cuda->streams[1]);
	}
	return end_gpu(b, result, which);
}

static int batch_rows(struct baseline *b, uint64_t first, uint64_t last)
{
	struct bench_cuda *cuda = b->pages->config->cuda;
	int which = b->direction == BENCH_PUBLISH;

	return bench_cuda_batch(cuda, b->to + first, b->from + first, b->sizes + first,
				last - first, cuda->streams[which]);
}

static int batch_gpu(struct baseline *b)
{
	return end_gpu(b, batch_rows(b, 0, b->row_count), b->direction == BENCH_PUBLISH);
}

static int batch_layer_gpu(struct baseline *b)
{
	struct bench_cuda *cuda = b->pages->config->cuda;
	int which = b->direction == BENCH_PUBLISH;
	int result = 0;

	for (uint32_t l = 0; l < b->pages->shape->layer_count && result == 0; l++) {
		uint64_t first = b->rows->layer_start[l];
		uint64_t last = b->rows->layer_start[l + 1];

		if (first >= b->row_count)
			break;
		result = batch_rows(b, first, last < b->row_count ? last : b->row_count);
		if (result == 0)
			result = cuda->gpu.cu.event_record(cuda->layers[l], cuda->streams[which]);
	}
	return end_gpu(b, result, which);
}

/* ---- host ---- */

static void copy_chunk(void *arg, uint64_t first, uint64_t last)
{
	struct baseline *b = arg;
	struct bench_pages *p = b->pages;
	bool both = b->direction == BENCH_BOTH;

	/* Of both directions one follows the other: [0, bytes) in, [bytes, 2 bytes) out. */
	while (first < last) {
		bool in = both ? first < b->bytes : b->direction == BENCH_RESTORE;
		uint64_t end = both && in && last > b->bytes ? b->bytes : last;

		if (in)
			memcpy(p->tensors + first, p->staging + first, end - first);
		else
			memcpy(p->staging + first, p->tensors + first, end - first);
		first = end;
	}
}

static int contiguous_host(struct baseline *b)
{
	tool_pool_run(copy_chunk, b, b->direction == BENCH_BOTH ? 2 * b->bytes : b->bytes, CHUNK);
	return 0;
}

static void copy_rows(void *arg, uint64_t first, uint64_t last)
{
	struct baseline *b = arg;
	struct bench_pages *p = b->pages;
	uint64_t bytes = p->shape->segment_bytes;

	for (uint64_t i = first; i < last; i++) {
		const struct bench_row *row = &b->rows->rows[i];

		if (b->direction == BENCH_RESTORE)
			memcpy(p->tensors + row->page_at, p->staging + row->stage_at, bytes);
		else
			memcpy(p->staging + row->stage_at, p->tensors + row->page_at, bytes);
	}
}

static int loop_host(struct baseline *b)
{
	copy_rows(b, 0, b->row_count);
	return 0;
}

static int memcpy_host(struct baseline *b)
{
	tool_pool_run(copy_rows, b, b->row_count, GRAIN_ROWS);
	return 0;
}

/* ---- a set ---- */

typedef int baseline_fn(struct baseline *b);

static baseline_fn *const gpu_calls[] = {contiguous_gpu, loop_gpu, batch_gpu, batch_layer_gpu};
static baseline_fn *const host_calls[] = {contiguous_host, loop_host, memcpy_host, NULL};

struct run {
	struct baseline *baseline;
	baseline_fn *fn;
};

static int run_once(void *arg, struct bench_sample *ret_sample, char *text)
{
	struct run *run = arg;
	uint64_t start = tool_now_ns();
	int result = run->fn(run->baseline);

	ret_sample->ns[BENCH_TOTAL] = tool_now_ns() - start;
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "a baseline's copy says CUDA error %d", result);
	return TOOL_FAILED;
}

static int list_copies(struct baseline *b, char *text)
{
	struct bench_pages *p = b->pages;
	bool publish = b->direction == BENCH_PUBLISH;

	b->to = calloc(b->row_count, sizeof(*b->to));
	b->from = calloc(b->row_count, sizeof(*b->from));
	b->sizes = calloc(b->row_count, sizeof(*b->sizes));
	if (b->to == NULL || b->from == NULL || b->sizes == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	for (uint64_t i = 0; i < b->row_count; i++) {
		const struct bench_row *row = &b->rows->rows[i];
		tool_device_address host = (uintptr_t)p->staging + row->stage_at;

		b->to[i] = publish ? host : p->gpu + row->page_at;
		b->from[i] = publish ? p->gpu + row->page_at : host;
		b->sizes[i] = p->shape->segment_bytes;
	}
	return TOOL_OK;
}

/* Where bytes to the host lie beside others to the device. */
static uint64_t second_of(const struct baseline *b)
{
	return b->direction == BENCH_BOTH ? b->bytes : 0;
}

static int prepare_contiguous(struct baseline *b, uint32_t content, char *text)
{
	int rc = TOOL_OK;

	if (b->direction != BENCH_PUBLISH)
		rc = bench_stretch_to_pages(b->pages, 0, b->bytes, content, text);
	if (rc == TOOL_OK && b->direction != BENCH_RESTORE)
		rc = bench_stretch_to_staging(b->pages, second_of(b), b->bytes, content, text);
	return rc;
}

/* Sources hold the content, destinations poison. */
static int prepare(struct baseline *b, bool rows, uint32_t content, char *text)
{
	int rc;

	if (!rows)
		return prepare_contiguous(b, content, text);
	if (b->direction == BENCH_RESTORE) {
		bench_staging_poison(b->pages, b->rows);
		bench_staging_fill(b->pages, b->rows, content);
		return bench_pages_poison(b->pages, b->rows->half, text);
	}
	rc = bench_pages_fill(b->pages, b->rows, content, text);
	bench_staging_poison(b->pages, b->rows);
	return rc;
}

static int verify(struct baseline *b, bool rows, uint32_t content, char *text)
{
	uint64_t second = second_of(b);
	int rc = TOOL_OK;

	if (rows && b->direction == BENCH_RESTORE)
		return bench_pages_check(b->pages, b->rows, b->row_count, content, text);
	if (rows)
		return bench_staging_check(b->pages, b->rows, b->row_count, content, text);
	if (b->direction != BENCH_PUBLISH)
		rc = bench_pages_compare(b->pages, 0, 0, b->bytes, text);
	if (rc == TOOL_OK && b->direction != BENCH_RESTORE)
		rc = bench_pages_compare(b->pages, second, second, b->bytes, text);
	return rc;
}

static uint64_t rows_of(enum bench_baseline_kind kind, const struct bench_config *config,
			uint64_t count)
{
	uint64_t most = kind == BENCH_LOOP ? LOOP_ROWS : BATCH_ROWS;

	if (kind == BENCH_CONTIGUOUS || (config->cuda == NULL && kind != BENCH_LOOP))
		return count;
	return count < most ? count : most;
}

int bench_baseline_run(struct bench_pages *pages, const struct bench_rows *rows,
		       enum bench_direction direction, enum bench_baseline_kind kind,
		       uint32_t content, struct bench_set *ret_set, char *text)
{
	const struct bench_config *config = pages->config;
	bool on_gpu = config->cuda != NULL;
	bool batched = kind == BENCH_BATCH || kind == BENCH_BATCH_LAYER;
	struct baseline b = {.pages = pages, .rows = rows, .direction = direction};
	struct run run = {&b, on_gpu ? gpu_calls[kind] : host_calls[kind]};
	struct bench_plan plan = {.run = run_once,
				  .arg = &run,
				  .warm_up = 2,
				  .max_runs = config->max_runs,
				  .max_ns = config->set_ns};
	int rc = TOOL_OK;

	memset(ret_set, 0, sizeof(*ret_set));
	if (run.fn == NULL || (on_gpu && batched && config->cuda->batch == NULL))
		return TOOL_SKIPPED;
	b.row_count = rows_of(kind, config, rows->count);
	b.bytes = b.row_count * pages->shape->segment_bytes;
	if (on_gpu && batched)
		rc = list_copies(&b, text);
	if (rc == TOOL_OK)
		rc = prepare(&b, kind != BENCH_CONTIGUOUS, content, text);
	if (rc == TOOL_OK)
		rc = bench_set_run(&plan, ret_set, text);
	if (rc == TOOL_OK)
		rc = verify(&b, kind != BENCH_CONTIGUOUS, content, text);
	ret_set->bytes = direction == BENCH_BOTH ? 2 * b.bytes : b.bytes;
	free(b.to);
	free(b.from);
	free(b.sizes);
	return rc;
}
