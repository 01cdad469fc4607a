/* SPDX-License-Identifier: Apache-2.0 */
/* [B] First-fit extents in a small shared area (request area, plan bank). */
#include "wire/area.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

bool oki_area_init(struct oki_area *area, uint32_t bytes, uint32_t align, uint32_t most)
{
	*area = (struct oki_area){.bytes = bytes, .align = align, .capacity = most};
	area->used = calloc(most, sizeof(*area->used));
	return area->used;
}

void oki_area_fini(struct oki_area *area)
{
	free(area->used);
	*area = (struct oki_area){0};
}

bool oki_extent_alloc(struct oki_area *area, uint32_t bytes, uint32_t *ret_offset)
{
	if (bytes == 0 || bytes > area->bytes)
		return false;
	uint32_t rounded = (bytes + area->align - 1) / area->align * area->align;
	if (rounded > area->bytes || area->count == area->capacity)
		return false;
	uint32_t at = 0, i = 0;
	for (; i < area->count; i++) {
		if (area->used[i].offset - at >= rounded)
			break;
		at = area->used[i].offset + area->used[i].bytes;
	}
	if (area->bytes - at < rounded)
		return false;
	memmove(&area->used[i + 1], &area->used[i], (area->count - i) * sizeof(area->used[0]));
	area->used[i] = (struct oki_area_extent){.offset = at, .bytes = rounded};
	area->count++;
	*ret_offset = at;
	return true;
}

void oki_extent_free(struct oki_area *area, uint32_t offset)
{
	uint32_t lo = 0, hi = area->count;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (area->used[mid].offset < offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == area->count || area->used[lo].offset != offset)
		oki_die("extent %u is not taken", offset);
	area->count--;
	memmove(&area->used[lo], &area->used[lo + 1], (area->count - lo) * sizeof(area->used[0]));
}
