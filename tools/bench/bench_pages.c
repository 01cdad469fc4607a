/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The engine's tensors: split K and V, one tensor per layer, in one stretch of memory; and what
 * fills, poisons and checks them. */
#include "bench_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TENSOR_ALIGN 4096u
#define GRAIN_BYTES (256u << 10) /* what one thread takes at a time */
/* On a GPU both halves together are like an engine's, whose pages of one operation lie anywhere in
 * tens of gigabytes; but of few enough pages to be dealt out quickly. */
#define POOL_BYTES (64ull << 30)
#define POOL_PAGES (1u << 17)
#define QUICK_POOL_BYTES (16ull << 30)
#define MOVE_COPIES 256u
#define STAGING_POISON 0xd1 /* unlike that of pages, which may be copied here */
#define MIRROR_POISON 0xb7  /* where rows are downloaded to */

static int out_of_memory(char *text)
{
	snprintf(text, TOOL_TEXT, "out of memory");
	return TOOL_FAILED;
}

static int said(int result, const char *what, char *text)
{
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "%s says CUDA error %d", what, result);
	return TOOL_FAILED;
}

static uint64_t tensor_bytes(const struct bench_pages *pages)
{
	uint64_t bytes = pages->shape->segment_bytes * pages->shape->model.segments * pages->pool *
			 BENCH_HALVES;

	return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

/* Shared memory, as the Manager's arenas are. */
static void *map_shared(uint64_t bytes)
{
	int fd = memfd_create("orbitkv-bench", MFD_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (ftruncate(fd, (off_t)bytes) == 0)
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

static void touch(void *arg, uint64_t first, uint64_t last)
{
	memset((uint8_t *)arg + first, 0x5a, last - first);
}

static int map_memory(struct bench_pages *pages, char *text)
{
	void *memory = mmap(NULL, pages->mirror_bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return out_of_memory(text);
	pages->mirror = memory;
	pages->staging = map_shared(BENCH_HALVES * pages->half_bytes);
	if (pages->staging == NULL)
		return out_of_memory(text);
	tool_pool_run(touch, pages->mirror, pages->mirror_bytes, GRAIN_BYTES);
	tool_pool_run(touch, pages->staging, BENCH_HALVES * pages->half_bytes, GRAIN_BYTES);
	return TOOL_OK;
}

static int allocate_device(struct bench_pages *pages, char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;

	if (cuda == NULL) {
		pages->tensors = pages->mirror;
		return TOOL_OK;
	}
	int rc = said(cuda->gpu.cu.memory_alloc(&pages->gpu, pages->bytes), "cuMemAlloc", text);
	if (rc == TOOL_OK)
		rc = said(cuda->gpu.cu.host_register(pages->mirror, pages->mirror_bytes, 0),
			  "cuMemHostRegister", text);
	if (rc == TOOL_OK)
		rc = said(cuda->gpu.cu.host_register(pages->staging,
						     BENCH_HALVES * pages->half_bytes, 0),
			  "cuMemHostRegister", text);
	pages->tensors = (uint8_t *)(uintptr_t)pages->gpu;
	return rc;
}

static void place_layers(struct bench_pages *pages)
{
	const struct tool_shape *shape = pages->shape;
	uint64_t segment_pages = (uint64_t)pages->pool * BENCH_HALVES;

	for (uint32_t l = 0; l < shape->layer_count; l++) {
		struct okv_layer *layer = &pages->layers[l];

		layer->base = pages->tensors + l * tensor_bytes(pages);
		layer->length = shape->segment_bytes * shape->model.segments * segment_pages;
		layer->page_stride = shape->segment_bytes;
		layer->page_count = (uint32_t)segment_pages;
		layer->segment_count = shape->model.segments;
		for (uint32_t s = 0; s < shape->model.segments; s++) {
			layer->segment_offset[s] = s * segment_pages * shape->segment_bytes;
			layer->segment_bytes[s] = shape->segment_bytes;
		}
	}
}

/* Pages of each half. */
static int choose_pool(struct bench_pages *pages, char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;
	size_t unused = 0, total = 0;

	pages->pool = pages->blocks;
	if (cuda == NULL || !pages->config->spread)
		return TOOL_OK;
	if (said(cuda->gpu.cu.memory_info(&unused, &total), "cuMemGetInfo", text) != TOOL_OK)
		return TOOL_FAILED;
	uint64_t bytes = pages->config->quick ? QUICK_POOL_BYTES : POOL_BYTES;
	uint64_t most = (bytes < unused / 2 ? bytes : unused / 2) / BENCH_HALVES /
			pages->shape->block_bytes;

	if (most > POOL_PAGES)
		most = POOL_PAGES;
	if (most > pages->pool)
		pages->pool = (uint32_t)most;
	return TOOL_OK;
}

int bench_pages_create(const struct bench_config *config, const struct tool_shape *shape,
		       uint32_t blocks, struct bench_pages *ret_pages, char *text)
{
	struct bench_pages pages = {.config = config, .shape = shape, .blocks = blocks};
	int rc = choose_pool(&pages, text);

	if (rc != TOOL_OK)
		return rc;
	pages.half_bytes = shape->block_bytes * blocks;
	pages.bytes = tensor_bytes(&pages) * shape->layer_count;
	pages.mirror_bytes = config->cuda != NULL ? BENCH_HALVES * pages.half_bytes : pages.bytes;
	pages.layers = calloc(shape->layer_count, sizeof(*pages.layers));
	if (pages.layers == NULL)
		rc = out_of_memory(text);
	for (int h = 0; h < BENCH_HALVES && rc == TOOL_OK; h++) {
		pages.order[h] = calloc(pages.pool, sizeof(*pages.order[h]));
		pages.contents[h] = calloc(blocks, sizeof(*pages.contents[h]));
		if (pages.order[h] == NULL || pages.contents[h] == NULL)
			rc = out_of_memory(text);
	}
	if (rc == TOOL_OK)
		rc = map_memory(&pages, text);
	if (rc == TOOL_OK)
		rc = allocate_device(&pages, text);
	if (rc != TOOL_OK) {
		bench_pages_destroy(&pages);
		return rc;
	}
	place_layers(&pages);
	bench_pages_arrange(&pages, true, blocks);
	*ret_pages = pages;
	return TOOL_OK;
}

void bench_pages_destroy(struct bench_pages *pages)
{
	struct bench_cuda *cuda = pages->config != NULL ? pages->config->cuda : NULL;

	if (cuda != NULL) {
		cuda->gpu.cu.context_synchronize();
		if (pages->staging != NULL)
			cuda->gpu.cu.host_unregister(pages->staging);
		if (pages->mirror != NULL)
			cuda->gpu.cu.host_unregister(pages->mirror);
		if (pages->gpu != 0)
			cuda->gpu.cu.memory_free(pages->gpu);
	}
	if (pages->staging != NULL)
		munmap(pages->staging, BENCH_HALVES * pages->half_bytes);
	if (pages->mirror != NULL)
		munmap(pages->mirror, pages->mirror_bytes);
	for (int h = 0; h < BENCH_HALVES; h++) {
		free(pages->order[h]);
		free(pages->contents[h]);
	}
	free(pages->layers);
	memset(pages, 0, sizeof(*pages));
}

/* One stretch per layer and segment. */
static int poison_gpu(struct bench_pages *pages, enum bench_half half, char *text)
{
	const struct tool_shape *shape = pages->shape;
	struct bench_cuda *cuda = pages->config->cuda;
	uint64_t half_pages = pages->pool * shape->segment_bytes;
	uint64_t bytes = pages->span * shape->segment_bytes;
	int result = 0;

	for (uint32_t l = 0; l < shape->layer_count && result == 0; l++) {
		uint64_t at = l * tensor_bytes(pages) + half * half_pages;

		for (uint32_t s = 0; s < shape->model.segments && result == 0; s++) {
			result = cuda->gpu.cu.memory_set(pages->gpu + at, TOOL_POISON, bytes);
			at += BENCH_HALVES * half_pages;
		}
	}
	if (result == 0)
		result = cuda->gpu.cu.context_synchronize();
	return said(result, "poisoning pages", text);
}

/* Rows that follow each other on both sides are one copy. Returns where the next one begins. */
static uint64_t next_copy(const struct bench_rows *rows, uint64_t first, uint64_t row_bytes)
{
	uint64_t i = first + 1;

	while (i < rows->count && rows->rows[i].page_at == rows->rows[i - 1].page_at + row_bytes &&
	       rows->rows[i].mirror_at == rows->rows[i - 1].mirror_at + row_bytes)
		i++;
	return i;
}

static int move_now(struct bench_cuda *cuda, tool_device_address *to, tool_device_address *from,
		    size_t *sizes, size_t count, bool up)
{
	int result = 0;

	if (cuda->batch != NULL)
		return bench_cuda_batch(cuda, to, from, sizes, count, cuda->user);
	for (size_t i = 0; i < count && result == 0; i++)
		result = up ? cuda->gpu.cu.to_device_async(to[i], (void *)(uintptr_t)from[i],
							   sizes[i], cuda->user)
			    : cuda->gpu.cu.to_host_async((void *)(uintptr_t)to[i], from[i],
							 sizes[i], cuda->user);
	return result;
}

/* Between the mirror and the GPU. */
static int move_rows(struct bench_pages *pages, const struct bench_rows *rows, bool up, char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;
	tool_device_address to[MOVE_COPIES], from[MOVE_COPIES];
	size_t sizes[MOVE_COPIES], count = 0;
	uint64_t row_bytes = pages->shape->segment_bytes;
	int result = 0;

	for (uint64_t i = 0, next; i < rows->count && result == 0; i = next) {
		tool_device_address host = (uintptr_t)pages->mirror + rows->rows[i].mirror_at;
		tool_device_address device = pages->gpu + rows->rows[i].page_at;

		next = next_copy(rows, i, row_bytes);
		to[count] = up ? device : host;
		from[count] = up ? host : device;
		sizes[count++] = (next - i) * row_bytes;
		if (count == MOVE_COPIES || next == rows->count) {
			result = move_now(cuda, to, from, sizes, count, up);
			count = 0;
		}
	}
	if (result == 0)
		result = cuda->gpu.cu.context_synchronize();
	return said(result, "a transfer of the benchmark's own", text);
}

static void poison_stretch(void *arg, uint64_t first, uint64_t last)
{
	memset((uint8_t *)arg + first, TOOL_POISON, last - first);
}

int bench_pages_poison(struct bench_pages *pages, enum bench_half half, char *text)
{
	const struct tool_shape *shape = pages->shape;
	uint64_t half_pages = pages->pool * shape->segment_bytes;
	uint64_t bytes = pages->span * shape->segment_bytes;

	if (pages->gpu != 0)
		return poison_gpu(pages, half, text);
	for (uint32_t l = 0; l < shape->layer_count; l++) {
		for (uint32_t s = 0; s < shape->model.segments; s++) {
			uint64_t at =
				l * tensor_bytes(pages) + (s * BENCH_HALVES + half) * half_pages;

			tool_pool_run(poison_stretch, pages->tensors + at, bytes, GRAIN_BYTES);
		}
	}
	return TOOL_OK;
}

static void poison_staging(void *arg, uint64_t first, uint64_t last)
{
	memset((uint8_t *)arg + first, STAGING_POISON, last - first);
}

void bench_staging_poison(struct bench_pages *pages, const struct bench_rows *rows)
{
	uint64_t bytes = pages->shape->block_bytes * rows->blocks;
	uint64_t start = rows->half * pages->half_bytes;

	/* Contiguous copies begin at the start of staging, and of both directions follow each
	 * other. */
	tool_pool_run(poison_staging, pages->staging, 2 * bytes, GRAIN_BYTES);
	tool_pool_run(poison_staging, pages->staging + start, bytes, GRAIN_BYTES);
}

/* What one pass over rows needs. */
struct pass {
	const struct bench_rows *rows;
	uint8_t *base;
	uint64_t row_bytes;
	uint32_t content;
	bool staging; /* base is staging */
	pthread_mutex_t lock;
	uint64_t bad;
	char *text;
};

static uint8_t *row_bytes(const struct pass *pass, const struct bench_row *row,
			  struct tool_place *ret_place)
{
	*ret_place = (struct tool_place){(pass->content + row->block) & TOOL_MAX_ID, row->layer,
					 row->segment};
	return pass->base + (pass->staging ? row->stage_at : row->mirror_at);
}

static void fill_rows(void *arg, uint64_t first, uint64_t last)
{
	struct pass *pass = arg;

	for (uint64_t i = first; i < last; i++) {
		struct tool_place place;
		uint8_t *bytes = row_bytes(pass, &pass->rows->rows[i], &place);

		tool_fill(&place, bytes, pass->row_bytes);
	}
}

static void poison_rows(void *arg, uint64_t first, uint64_t last)
{
	struct pass *pass = arg;

	for (uint64_t i = first; i < last; i++) {
		struct tool_place unused;

		memset(row_bytes(pass, &pass->rows->rows[i], &unused), MIRROR_POISON,
		       pass->row_bytes);
	}
}

static void check_rows(void *arg, uint64_t first, uint64_t last)
{
	struct pass *pass = arg;
	char why[TOOL_TEXT];

	for (uint64_t i = first; i < last; i++) {
		struct tool_place place;
		uint8_t *bytes = row_bytes(pass, &pass->rows->rows[i], &place);
		uint64_t bad = tool_check(&place, bytes, pass->row_bytes, why);

		if (bad == 0)
			continue;
		pthread_mutex_lock(&pass->lock);
		if (pass->bad == 0)
			snprintf(pass->text, TOOL_TEXT, "wrong bytes: %.200s", why);
		pass->bad += bad;
		pthread_mutex_unlock(&pass->lock);
	}
}

static uint64_t run_pass(tool_part_fn *fn, struct pass *pass, uint64_t count)
{
	uint64_t grain = GRAIN_BYTES / pass->row_bytes;

	pthread_mutex_init(&pass->lock, NULL);
	tool_pool_run(fn, pass, count, grain > 0 ? grain : 1);
	pthread_mutex_destroy(&pass->lock);
	return pass->bad;
}

int bench_pages_fill(struct bench_pages *pages, const struct bench_rows *rows, uint32_t content,
		     char *text)
{
	struct pass pass = {rows, pages->mirror, pages->shape->segment_bytes, content,
			    .text = text};

	run_pass(fill_rows, &pass, rows->count);
	return pages->gpu != 0 ? move_rows(pages, rows, true, text) : TOOL_OK;
}

void bench_staging_fill(struct bench_pages *pages, const struct bench_rows *rows, uint32_t content)
{
	struct pass pass = {rows, pages->staging, pages->shape->segment_bytes, content,
			    .staging = true};

	run_pass(fill_rows, &pass, rows->count);
}

int bench_pages_check(struct bench_pages *pages, const struct bench_rows *rows, uint64_t count,
		      uint32_t content, char *text)
{
	struct pass pass = {rows, pages->mirror, pages->shape->segment_bytes, content,
			    .text = text};

	if (pages->gpu != 0) {
		/* What was uploaded before would pass where a download does nothing. */
		run_pass(poison_rows, &pass, rows->count);
		if (move_rows(pages, rows, false, text) != TOOL_OK)
			return TOOL_FAILED;
	}
	return run_pass(check_rows, &pass, count) == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_staging_check(struct bench_pages *pages, const struct bench_rows *rows, uint64_t count,
			uint32_t content, char *text)
{
	struct pass pass = {rows,    pages->staging,  pages->shape->segment_bytes,
			    content, .staging = true, .text = text};

	return run_pass(check_rows, &pass, count) == 0 ? TOOL_OK : TOOL_FAILED;
}

/* ---- stretches, of contiguous copies ---- */

struct stretch {
	uint8_t *base;
	uint64_t bytes;
	uint32_t content;
};

static void fill_stretch(void *arg, uint64_t first, uint64_t last)
{
	const struct stretch *s = arg;

	for (uint64_t i = first; i < last; i++) {
		const struct tool_place place = {s->content, (uint16_t)i, (uint16_t)(i >> 16)};
		uint64_t left = s->bytes - i * GRAIN_BYTES;

		tool_fill(&place, s->base + i * GRAIN_BYTES,
			  left < GRAIN_BYTES ? left : GRAIN_BYTES);
	}
}

static void fill_bytes(uint8_t *base, uint64_t bytes, uint32_t content)
{
	struct stretch s = {base, bytes, content & TOOL_MAX_ID};

	tool_pool_run(fill_stretch, &s, (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES, 1);
}

int bench_stretch_to_pages(struct bench_pages *pages, uint64_t at, uint64_t bytes, uint32_t content,
			   char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;

	fill_bytes(pages->staging + at, bytes, content);
	if (pages->gpu == 0) {
		tool_pool_run(poison_stretch, pages->tensors + at, bytes, GRAIN_BYTES);
		return TOOL_OK;
	}
	int result = cuda->gpu.cu.memory_set(pages->gpu + at, TOOL_POISON, bytes);

	if (result == 0)
		result = cuda->gpu.cu.context_synchronize();
	return said(result, "cuMemsetD8", text);
}

int bench_stretch_to_staging(struct bench_pages *pages, uint64_t at, uint64_t bytes,
			     uint32_t content, char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;

	fill_bytes(pages->mirror + at, bytes, content);
	tool_pool_run(poison_staging, pages->staging + at, bytes, GRAIN_BYTES);
	if (pages->gpu == 0)
		return TOOL_OK;
	return said(cuda->gpu.cu.to_device(pages->gpu + at, pages->mirror + at, bytes),
		    "cuMemcpyHtoD", text);
}

int bench_pages_compare(struct bench_pages *pages, uint64_t tensor_at, uint64_t staging_at,
			uint64_t bytes, char *text)
{
	struct bench_cuda *cuda = pages->config->cuda;

	if (pages->gpu != 0 &&
	    said(cuda->gpu.cu.to_host(pages->mirror + tensor_at, pages->gpu + tensor_at, bytes),
		 "cuMemcpyDtoH", text) != TOOL_OK)
		return TOOL_FAILED;
	if (memcmp(pages->mirror + tensor_at, pages->staging + staging_at, bytes) == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "the contiguous copy left other bytes than its source has");
	return TOOL_FAILED;
}
