/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Orders spans of blocks by page and finds which of them make a run. */
#ifndef OKI_PLAN_JOIN_H
#define OKI_PLAN_JOIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A place: a span reduced to what joining needs. The upper 32 bits of its key are its kind, which
 * spans of one region and shape share; the lower 32 bits are its first page. So sorting by key puts
 * spans of one kind together.
 */
struct oki_place {
	uint8_t *host;
	uint64_t key;
};

/* So many copies of the last place follow it. They join nothing, so loops need no check for the
 * end.
 */
#define OKI_PLACES_BEHIND 3u

/* The range of some places' keys, and whether they are sorted. */
struct oki_extent {
	uint64_t least, most;
	bool sorted;
};

/*
 * Sort places by key in linear time. work has work_bytes of memory, aligned for pointers. False:
 * the keys are too far apart for that memory, or two are equal; then the places are undefined.
 */
bool oki_order_by_key(struct oki_place *places, uint32_t count, const struct oki_extent *extent,
		      void *work, uint64_t work_bytes);

struct oki_join_limits {
	uint64_t block_bytes;
	uint64_t host_pitches; /* how many values are allowed, from block_bytes on */
	uint32_t max_page_pitch;
};

struct oki_join_limits oki_join_limits(uint64_t block_bytes, uint64_t max_page_stride,
				       uint64_t max_pitch_bytes);

/*
 * Find where runs start. A run's places have a constant pitch, within limits, in host memory and in
 * pages. A place before a longer run of another pitch is a run of its own. starts has room for
 * count + 1 entries; the last one is set to count. Returns the number of runs.
 */
uint32_t oki_find_starts(const struct oki_place *places, uint32_t count,
			 const struct oki_join_limits *limits, uint32_t *starts);

#endif
