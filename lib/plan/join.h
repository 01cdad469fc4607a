/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Pieces of blocks by page, and which of them make a run. */
#ifndef OKI_PLAN_JOIN_H
#define OKI_PLAN_JOIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A piece as it is joined. Its key is a kind, the same for pieces of one region and shape, which
 * stand together, above 32 bits of its page.
 */
struct oki_place {
	uint8_t *host;
	uint64_t key;
};

/* Behind the last place stand copies of it, which join nothing, so that nobody asks for the end. */
#define OKI_PLACES_BEHIND 3u

/* Of some places. */
struct oki_extent {
	uint64_t least, most; /* keys */
	bool sorted;
};

/*
 * Order places by key in linear time. work holds work_bytes of memory, aligned for pointers. False:
 * keys are too far apart for it, or one is there twice; the places are spoilt then.
 */
bool oki_order_by_key(struct oki_place *places, uint32_t count, const struct oki_extent *extent,
		      void *work, uint64_t work_bytes);

struct oki_join_limits {
	uint64_t block_bytes;
	uint64_t host_pitches; /* so many are allowed, from block_bytes on */
	uint32_t max_page_pitch;
};

struct oki_join_limits oki_join_limits(uint64_t block_bytes, uint64_t max_page_stride,
				       uint64_t max_pitch_bytes);

/*
 * Where runs start: places with a constant pitch, within limits, in host memory and pages. A lone
 * place before a longer run stays alone. starts has room for count + 1; the last one is count.
 * Returns how many runs there are.
 */
uint32_t oki_find_starts(const struct oki_place *places, uint32_t count,
			 const struct oki_join_limits *limits, uint32_t *starts);

#endif
