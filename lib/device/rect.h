/* SPDX-License-Identifier: Apache-2.0 */
/* [B] One segment of one run as two nested strided loops, merged as far as both sides allow. */
#ifndef OKI_DEVICE_RECT_H
#define OKI_DEVICE_RECT_H

#include "device/device.h"

/*
 * outer × inner rows of width bytes. Row (o, j) lies at
 *   host + o * host_outer + j * host_inner   and   device + o * device_outer + j * device_inner.
 * A count of one has pitches of zero.
 */
struct oki_rect {
	uint8_t *host;
	uint8_t *device;
	uint64_t width;
	uint64_t outer;
	uint64_t host_outer;
	uint64_t device_outer;
	uint64_t inner;
	uint64_t host_inner;
	uint64_t device_inner;
};

/*
 * The same layer, with segments that are adjacent on both sides joined. Valid only for runs of
 * oki_run_is_joinable(): for others only the first page of a block would be at the right place.
 */
void oki_join_segments(const struct oki_layer_map *map, struct oki_layer_map *ret_joined);

/* How many layers, from the first one on, differ only by one constant distance on each side.
 * Returns these distances too if it is more than one layer. */
uint32_t oki_layers_alike(const struct oki_layer_map *const *maps, uint32_t count,
			  uint64_t *ret_host_pitch, uint64_t *ret_device_pitch);

static inline bool oki_run_is_joinable(const struct oki_run *run)
{
	return run->inner == 1 && run->inner_first == 0;
}

static inline uint64_t oki_run_rows(const struct oki_run *run)
{
	return (uint64_t)run->blocks * run->inner;
}

/* Bytes of one row of every segment. */
static inline uint64_t oki_layer_row_bytes(const struct oki_layer_map *map)
{
	uint64_t sum = 0;
	for (uint32_t s = 0; s < map->segment_count; s++)
		sum += map->segments[s].bytes;
	return sum;
}

/* Adjacent outer rows become one row; two loops with the same constant distance become one. */
static inline void oki_rect_merge_outer(struct oki_rect *r)
{
	bool touch = r->inner == 1 && r->host_outer == r->width && r->device_outer == r->width;
	bool even = r->inner > 1 && r->host_outer == r->inner * r->host_inner &&
		    r->device_outer == r->inner * r->device_inner;
	if (touch)
		r->width *= r->outer;
	if (even)
		r->inner *= r->outer;
	if (touch || even) {
		r->outer = 1;
		r->host_outer = r->device_outer = 0;
	}
}

/*
 * The rows of one segment in the order (o, j). Adjacent inner rows become one row, then adjacent
 * outer ones; two loops with the same constant distance become one. Merging never changes which
 * byte is byte k of the rectangle.
 */
static inline struct oki_rect oki_rect(const struct oki_layer_map *map, const struct oki_run *run,
				       uint32_t segment)
{
	const struct oki_segment_map *seg = &map->segments[segment];
	struct oki_rect r = {
		.host = run->host + seg->block_offset + run->inner_first * seg->bytes,
		.device = map->base + run->page * map->page_stride + seg->page_offset,
		.width = seg->bytes,
		.outer = run->blocks,
		.inner = run->inner,
	};
	if (r.inner > 1) {
		r.host_inner = seg->bytes;
		r.device_inner = run->inner_step * map->page_stride;
		if (r.device_inner == r.width) {
			r.width *= r.inner;
			r.inner = 1;
			r.host_inner = r.device_inner = 0;
		}
	}
	if (r.outer > 1) {
		r.host_outer = run->host_pitch;
		r.device_outer = run->page_pitch * map->page_stride;
		oki_rect_merge_outer(&r);
	}
	return r;
}

#endif
