/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The engine's KV tensors: split K and V, one tensor per layer, in one stretch of memory. */
#include "replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TENSOR_ALIGN 4096u

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

static uint64_t tensor_bytes(const struct okv_layer_schema *schema, uint32_t page_count)
{
	uint64_t bytes = 0;

	for (uint32_t s = 0; s < schema->segment_count; s++)
		bytes += schema->segment_bytes[s] * page_count;
	return bytes;
}

static void place_layer(struct okv_layer *layer, const struct okv_layer_schema *schema,
			uint8_t *base, uint32_t page_count)
{
	uint64_t offset = 0;

	layer->base = base;
	layer->length = tensor_bytes(schema, page_count);
	layer->page_stride = schema->segment_bytes[0];
	layer->page_count = page_count;
	layer->segment_count = schema->segment_count;
	for (uint32_t s = 0; s < schema->segment_count; s++) {
		layer->segment_offset[s] = offset;
		layer->segment_bytes[s] = schema->segment_bytes[s];
		offset += schema->segment_bytes[s] * page_count;
	}
}

static bool on_gpu(const struct replay_pages *pages)
{
	return pages->device == OKV_DEVICE_CUDA;
}

static tool_device_address address_of(const struct replay_pages *pages)
{
	return (uintptr_t)pages->tensors;
}

/* Whatever the calls of the library left on this thread. */
static int make_current(const struct replay_pages *pages)
{
	return pages->gpu.cu.context_set_current(pages->gpu.context);
}

static int map_mirror(struct replay_pages *pages, char *text)
{
	void *memory = mmap(NULL, pages->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);

	if (memory == MAP_FAILED) {
		snprintf(text, TOOL_TEXT, "no memory for %llu bytes of pages",
			 (unsigned long long)pages->bytes);
		return TOOL_FAILED;
	}
	pages->mirror = memory;
	return TOOL_OK;
}

static int allocate_host(struct replay_pages *pages, char *text)
{
	int rc = map_mirror(pages, text);

	pages->tensors = pages->mirror;
	return rc;
}

static int allocate_cuda(struct replay_pages *pages, char *text)
{
	tool_device_address address;
	int rc = tool_cuda_open(&pages->gpu, text);

	if (rc != TOOL_OK)
		return rc;
	if (pages->gpu.cu.memory_alloc(&address, pages->bytes) != 0) {
		snprintf(text, TOOL_TEXT, "no room for %llu bytes of pages on the GPU",
			 (unsigned long long)pages->bytes);
		return TOOL_FAILED;
	}
	pages->tensors = (uint8_t *)(uintptr_t)address;
	return map_mirror(pages, text);
}

int replay_pages_create(const struct replay_model *model, uint32_t device, uint32_t page_count,
			struct replay_pages *ret_pages, char *text)
{
	struct replay_pages pages = {.model = model, .page_count = page_count, .device = device};
	int rc = TOOL_FAILED;

	for (uint32_t l = 0; l < model->shape.layer_count; l++)
		pages.bytes += round_up(tensor_bytes(&model->shape.layers[l], page_count));
	pages.layers = calloc(model->shape.layer_count, sizeof(*pages.layers));
	pages.order = calloc(page_count, sizeof(*pages.order));
	if (pages.layers == NULL || pages.order == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		goto undo;
	}
	rc = device == OKV_DEVICE_CUDA ? allocate_cuda(&pages, text) : allocate_host(&pages, text);
	if (rc != TOOL_OK)
		goto undo;
	uint8_t *base = pages.tensors;
	for (uint32_t l = 0; l < model->shape.layer_count; l++) {
		place_layer(&pages.layers[l], &model->shape.layers[l], base, page_count);
		base += round_up(pages.layers[l].length);
	}
	for (uint32_t p = 0; p < page_count; p++)
		pages.order[p] = p;
	*ret_pages = pages;
	return TOOL_OK;
undo:
	replay_pages_destroy(&pages);
	return rc;
}

void replay_pages_destroy(struct replay_pages *pages)
{
	if (on_gpu(pages) && pages->tensors != NULL) {
		make_current(pages);
		pages->gpu.cu.memory_free(address_of(pages));
	}
	tool_cuda_close(&pages->gpu);
	if (pages->mirror != NULL)
		munmap(pages->mirror, pages->bytes);
	free(pages->layers);
	free(pages->order);
	memset(pages, 0, sizeof(*pages));
}

void replay_pages_choose(struct replay_pages *pages, uint64_t seed, bool tidy)
{
	uint64_t random = (seed + 1) * 0x9e3779b97f4a7c15ull;

	if (tidy)
		return;
	for (uint32_t i = pages->page_count - 1; i > 0; i--) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		uint32_t j = (uint32_t)((random >> 32) % (i + 1));
		uint32_t page = pages->order[i];
		pages->order[i] = pages->order[j];
		pages->order[j] = page;
	}
}

uint8_t *replay_pages_row(const struct replay_pages *pages, uint32_t layer, uint32_t segment,
			  uint32_t page)
{
	const struct okv_layer *l = &pages->layers[layer];
	uint64_t tensor = (uint64_t)((uint8_t *)l->base - pages->tensors);

	return pages->mirror + tensor + page * l->page_stride + l->segment_offset[segment];
}

static int copied(const char *what, int result, char *text)
{
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "%s says CUDA error %d", what, result);
	return TOOL_FAILED;
}

int replay_pages_upload(struct replay_pages *pages, char *text)
{
	int result;

	if (!on_gpu(pages))
		return TOOL_OK;
	result = make_current(pages);
	if (result == 0)
		result = pages->gpu.cu.to_device(address_of(pages), pages->mirror, pages->bytes);
	return copied("cuMemcpyHtoD", result, text);
}

int replay_pages_download(struct replay_pages *pages, char *text)
{
	int result;

	if (!on_gpu(pages))
		return TOOL_OK;
	result = make_current(pages);
	if (result == 0)
		result = pages->gpu.cu.to_host(pages->mirror, address_of(pages), pages->bytes);
	return copied("cuMemcpyDtoH", result, text);
}

/* One segment of one block in its page. */
struct row {
	struct tool_place place;
	uint32_t page;
	uint8_t *bytes;
	uint64_t size;
};

typedef uint64_t row_fn(const struct row *row, char *text);

static uint64_t for_each_row(struct replay_pages *pages, const struct replay_span *span, row_fn *fn,
			     char *text)
{
	uint32_t layer_end;
	uint32_t layer = 0;
	uint64_t sum = 0;

	for (uint32_t g = 0; g < span->group; g++)
		layer += pages->model->shape.groups[g].layer_count;
	layer_end = layer + pages->model->shape.groups[span->group].layer_count;
	for (; layer < layer_end; layer++) {
		for (uint32_t s = 0; s < pages->layers[layer].segment_count; s++) {
			for (uint32_t b = span->first; b < span->first + span->count; b++) {
				struct row row = {.place = {span->ids[b], layer, s},
						  .page = pages->order[b],
						  .size = pages->layers[layer].segment_bytes[s]};

				row.bytes = replay_pages_row(pages, layer, s, row.page);
				sum += fn(&row, text);
			}
		}
	}
	return sum;
}

static uint64_t poison_row(const struct row *row, char *text)
{
	(void)text;
	memset(row->bytes, TOOL_POISON, row->size);
	return 0;
}

static uint64_t fill_row(const struct row *row, char *text)
{
	(void)text;
	tool_fill(&row->place, row->bytes, row->size);
	return 0;
}

static uint64_t check_row(const struct row *row, char *text)
{
	char why[TOOL_TEXT];
	uint64_t bad = tool_check(&row->place, row->bytes, row->size, why);

	if (bad > 0 && text[0] == '\0')
		snprintf(text, TOOL_TEXT, "page %u: %.200s", row->page, why);
	return bad;
}

void replay_pages_poison(struct replay_pages *pages, const struct replay_span *span)
{
	for_each_row(pages, span, poison_row, NULL);
}

void replay_pages_fill(struct replay_pages *pages, const struct replay_span *span)
{
	for_each_row(pages, span, fill_row, NULL);
}

uint64_t replay_pages_check(struct replay_pages *pages, const struct replay_span *span, char *text)
{
	return for_each_row(pages, span, check_row, text);
}
