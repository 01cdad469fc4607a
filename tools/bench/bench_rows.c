/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Which pages and which stored blocks an operation has, and the rows that makes. */
#include "bench_rig.h"

#include <stdio.h>
#include <stdlib.h>

/* A small operation's blocks, and on the CPU its pages, lie among so many times as many: to poison
 * and fill memory for it is no work of gigabytes. */
#define SPREAD 4u

static uint32_t among(uint32_t all, uint32_t count)
{
	return all / SPREAD < count ? all : SPREAD * count;
}

static uint64_t next_random(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random >> 32;
}

/* first, first + 1, … of which the first count are drawn from the first span. */
static void deal(uint32_t *order, uint32_t all, uint32_t first, uint32_t count, uint32_t span,
		 uint64_t *random)
{
	for (uint32_t i = 0; i < all; i++)
		order[i] = first + i;
	for (uint32_t i = 0; i < count && i + 1 < span; i++) {
		uint32_t j = i + (uint32_t)(next_random(random) % (span - i));
		uint32_t held = order[i];

		order[i] = order[j];
		order[j] = held;
	}
}

void bench_pages_arrange(struct bench_pages *pages, bool tidy, uint32_t count)
{
	uint64_t random = 0x9e3779b97f4a7c15ull;
	uint32_t blocks = among(pages->blocks, count), dealt = tidy ? 0 : count;
	/* A GPU poisons all of it in milliseconds. */
	uint32_t span = pages->gpu != 0 ? pages->pool : among(pages->pool, count);

	pages->tidy = tidy;
	pages->span = tidy ? count : span;
	pages->block_span = tidy ? count : blocks;
	for (uint32_t h = 0; h < BENCH_HALVES; h++) {
		deal(pages->order[h], pages->pool, h * pages->pool, dealt, pages->span, &random);
		/* What a publish writes lies as the Manager places it: side by side. */
		deal(pages->contents[h], pages->blocks, 0, h == BENCH_RESTORE_HALF ? dealt : 0,
		     blocks, &random);
	}
}

static void add_row(const struct bench_pages *pages, struct bench_rows *rows, uint32_t layer,
		    uint32_t segment, uint32_t position)
{
	const struct tool_shape *shape = pages->shape;
	const struct okv_layer *l = &pages->layers[layer];
	uint64_t half = rows->half * pages->half_bytes, bytes = shape->segment_bytes;
	uint64_t place = (uint64_t)layer * shape->model.segments + segment;
	uint64_t page = pages->order[rows->half][position];
	uint32_t block = pages->contents[rows->half][position];
	uint64_t page_at = (uint64_t)((uint8_t *)l->base - pages->tensors) +
			   l->segment_offset[segment] + page * l->page_stride;

	rows->rows[rows->count++] = (struct bench_row){
		.page_at = page_at,
		.mirror_at = pages->gpu != 0 ? half + (place * pages->blocks + position) * bytes
					     : page_at,
		.stage_at = half + block * shape->block_bytes + place * bytes,
		.block = block,
		.layer = (uint16_t)layer,
		.segment = (uint16_t)segment};
}

int bench_rows_create(const struct bench_pages *pages, enum bench_half half, uint32_t count,
		      const struct okv_hit *hits, struct bench_rows *ret_rows, char *text)
{
	const struct tool_shape *shape = pages->shape;
	struct bench_rows rows = {.half = half, .blocks = pages->block_span};
	uint32_t layer = 0;

	rows.rows = calloc((size_t)count * shape->layer_count * shape->model.segments,
			   sizeof(*rows.rows));
	rows.layer_start = calloc(shape->layer_count + 1, sizeof(*rows.layer_start));
	if (rows.rows == NULL || rows.layer_start == NULL) {
		bench_rows_fini(&rows);
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	for (uint32_t g = 0; g < shape->model.group_count; g++) {
		uint32_t first = hits != NULL ? hits[g].first : 0;
		uint32_t last = hits != NULL ? first + hits[g].count : count;

		for (uint32_t i = 0; i < shape->model.groups[g].layers; i++, layer++) {
			rows.layer_start[layer] = rows.count;
			for (uint32_t s = 0; s < shape->model.segments; s++) {
				for (uint32_t b = first; b < last; b++)
					add_row(pages, &rows, layer, s, b);
			}
		}
	}
	rows.layer_start[layer] = rows.count;
	rows.bytes = rows.count * shape->segment_bytes;
	*ret_rows = rows;
	return TOOL_OK;
}

void bench_rows_fini(struct bench_rows *rows)
{
	free(rows->rows);
	free(rows->layer_start);
	rows->rows = NULL;
	rows->layer_start = NULL;
}
