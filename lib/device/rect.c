/* [B] Joining the segments of a layer. */
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
