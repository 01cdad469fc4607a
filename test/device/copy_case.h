/* SPDX-License-Identifier: Apache-2.0 */
/* Random layers and runs, and what copying them must do, straight from the words of device.h. */
#ifndef TEST_DEVICE_COPY_CASE_H
#define TEST_DEVICE_COPY_CASE_H

#include <stdlib.h>
#include <string.h>

#include "device/device.h"

#define CASE_MAX_RUNS 64

struct copy_case {
	struct oki_layer_map map;
	struct oki_run runs[CASE_MAX_RUNS];
	uint32_t run_count;
	uint64_t host_bytes;  /* of the memory the runs lie in, room for canaries included */
	uint64_t pages_bytes; /* likewise of the pages */
};

static inline uint32_t case_below(uint64_t *seed, uint32_t limit)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*seed >> 33) % limit;
}

static inline void case_noise(uint64_t *seed, uint8_t *bytes, uint64_t count)
{
	uint64_t x = *seed | 1;
	for (uint64_t i = 0; i < count; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(bytes + i, &x, count - i < 8 ? count - i : 8);
	}
	*seed = x;
}

/* Half of the gaps are zero, so that rows touch often. */
static inline uint64_t case_gap(uint64_t *seed)
{
	return case_below(seed, 2) ? 0 : case_below(seed, 40);
}

/*
 * A layer of one to three segments and runs whose rows are disjoint. Addresses are offsets from
 * NULL until case_place(). scale multiplies the bytes of a segment.
 */
static inline void case_generate(struct copy_case *c, uint64_t *seed, uint32_t scale)
{
	static const uint32_t sizes[] = {1, 7, 9, 64, 584, 1024, 4097};
	memset(c, 0, sizeof(*c));
	struct oki_layer_map *map = &c->map;
	map->segment_count = 1 + case_below(seed, 3);
	uint32_t per_block = 1 + case_below(seed, 4);
	uint64_t page = case_gap(seed), block = case_gap(seed);
	for (uint32_t s = 0; s < map->segment_count; s++) {
		map->segments[s].bytes = (uint64_t)sizes[case_below(seed, 7)] * scale;
		map->segments[s].page_offset = page;
		map->segments[s].block_offset = block;
		page += map->segments[s].bytes + case_gap(seed);
		block += map->segments[s].bytes * per_block + case_gap(seed);
	}
	map->page_stride = page + case_gap(seed);

	uint64_t host = 64 + case_below(seed, 64);
	uint64_t next_page = case_below(seed, 3);
	c->run_count = 1 + case_below(seed, 12);
	for (uint32_t i = 0; i < c->run_count; i++) {
		struct oki_run *run = &c->runs[i];
		run->blocks = 1 + case_below(seed, 6);
		run->inner = 1 + case_below(seed, per_block);
		run->inner_first = case_below(seed, per_block - run->inner + 1);
		run->page = (uint32_t)next_page;
		uint32_t step = 1 + case_below(seed, 2);
		uint32_t pitch = run->inner * step + case_below(seed, 2);
		if (case_below(seed, 4) == 0) { /* blocks woven into each other */
			step = run->blocks + case_below(seed, 2);
			pitch = 1;
		}
		run->inner_step = run->inner > 1 ? step : 0;
		run->page_pitch = run->blocks > 1 ? pitch : 0;
		run->host_pitch = run->blocks > 1 ? block + case_gap(seed) : 0;
		run->host = (uint8_t *)(uintptr_t)host;
		host += (run->blocks - 1) * run->host_pitch + block + case_gap(seed);
		next_page += (uint64_t)(run->blocks - 1) * run->page_pitch +
			     (uint64_t)(run->inner - 1) * run->inner_step + 1 + case_below(seed, 3);
	}
	map->page_count = (uint32_t)next_page;
	c->host_bytes = host + 64;
	c->pages_bytes = next_page * map->page_stride + 64;
}

/* Turn offsets into addresses. */
static inline void case_place(struct copy_case *c, uint8_t *host, uint8_t *pages)
{
	c->map.base = pages;
	for (uint32_t i = 0; i < c->run_count; i++)
		c->runs[i].host = host + (uintptr_t)c->runs[i].host;
}

/* What the copy must do, on images of the two memories. */
static inline void case_expect(const struct copy_case *c, const uint8_t *host_base,
			       enum oki_direction direction, uint8_t *host, uint8_t *pages)
{
	for (uint32_t i = 0; i < c->run_count; i++) {
		const struct oki_run *r = &c->runs[i];
		for (uint32_t o = 0; o < r->blocks; o++)
			for (uint32_t j = 0; j < r->inner; j++)
				for (uint32_t s = 0; s < c->map.segment_count; s++) {
					const struct oki_segment_map *seg = &c->map.segments[s];
					uint8_t *h = host + (r->host - host_base) +
						     o * r->host_pitch + seg->block_offset +
						     (r->inner_first + j) * seg->bytes;
					uint8_t *p = pages + seg->page_offset +
						     (r->page + (uint64_t)o * r->page_pitch +
						      (uint64_t)j * r->inner_step) *
							     c->map.page_stride;
					if (direction == OKI_TO_PAGES)
						memcpy(p, h, seg->bytes);
					else
						memcpy(h, p, seg->bytes);
				}
	}
}

#endif
