/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Joining adjacent segments of a layer, and finding layers at a constant distance. */
#include "device/rect.h"

void oki_join_segments(const struct oki_layer_map *map, struct oki_layer_map *ret_joined)
{
	*ret_joined = *map;
	uint32_t count = 0;
	for (uint32_t s = 0; s < map->segment_count; s++) {
		const struct oki_segment_map *seg = &map->segments[s];
		struct oki_segment_map *last = count > 0 ? &ret_joined->segments[count - 1] : NULL;
		if (last && last->page_offset + last->bytes == seg->page_offset &&
		    last->block_offset + last->bytes == seg->block_offset)
			last->bytes += seg->bytes;
		else
			ret_joined->segments[count++] = *seg;
	}
	ret_joined->segment_count = count;
}

static bool is_alike(const struct oki_layer_map *a, const struct oki_layer_map *b, uint64_t host,
		     uint64_t device)
{
	if ((uint64_t)(uintptr_t)b->base - (uint64_t)(uintptr_t)a->base != device ||
	    a->page_stride != b->page_stride || a->segment_count != b->segment_count)
		return false;
	for (uint32_t s = 0; s < a->segment_count; s++)
		if (a->segments[s].bytes != b->segments[s].bytes ||
		    a->segments[s].page_offset != b->segments[s].page_offset ||
		    b->segments[s].block_offset - a->segments[s].block_offset != host)
			return false;
	return true;
}

uint32_t oki_layers_alike(const struct oki_layer_map *const *maps, uint32_t count,
			  uint64_t *ret_host_pitch, uint64_t *ret_device_pitch)
{
	uint32_t alike = 1;
	if (count < 2 || maps[1]->base <= maps[0]->base ||
	    maps[1]->segments[0].block_offset <= maps[0]->segments[0].block_offset)
		return alike;
	*ret_device_pitch = (uint64_t)(maps[1]->base - maps[0]->base);
	*ret_host_pitch = maps[1]->segments[0].block_offset - maps[0]->segments[0].block_offset;
	while (alike < count &&
	       is_alike(maps[alike - 1], maps[alike], *ret_host_pitch, *ret_device_pitch))
		alike++;
	return alike;
}
