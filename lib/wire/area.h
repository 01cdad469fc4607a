/* SPDX-License-Identifier: Apache-2.0 */
/* [B] First-fit extents in a small shared area (request area, plan bank). Not thread-safe. */
#ifndef OKI_WIRE_AREA_H
#define OKI_WIRE_AREA_H

#include <stdbool.h>
#include <stdint.h>

struct oki_area_extent {
	uint32_t offset;
	uint32_t bytes;
};

/* The bookkeeping is outside the area, because the peer can write to the area. */
struct oki_area {
	uint32_t bytes;
	uint32_t align;
	uint32_t count;
	uint32_t capacity;
	struct oki_area_extent *used; /* owned; ascending */
};

/* Allocates room for `most` extents, so that later calls need no memory. False: no memory. */
bool oki_area_init(struct oki_area *area, uint32_t bytes, uint32_t align, uint32_t most);
void oki_area_fini(struct oki_area *area);

/* False: no gap is long enough now, or `most` extents are in use. bytes > 0. */
bool oki_extent_alloc(struct oki_area *area, uint32_t bytes, uint32_t *ret_offset);
/* Free the extent that starts at offset; it must be in use. */
void oki_extent_free(struct oki_area *area, uint32_t offset);

#endif
