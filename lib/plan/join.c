/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Orders spans of blocks by page and finds which of them make a run. */
#include "plan/join.h"

#include <string.h>

/* A bit for each possible key: for each kind the same range of pages, in whole words. */
struct grid {
	uint64_t kind, kinds; /* the first kind, and the number of kinds */
	uint64_t page, words; /* the first page, and the words of each kind */
};

static struct grid grid_of(const struct oki_place *places, uint32_t count,
			   const struct oki_extent *extent)
{
	uint32_t first = (uint32_t)extent->least, last = (uint32_t)extent->most;
	uint64_t kind = extent->least >> 32, kinds = (extent->most >> 32) - kind + 1;
	for (uint32_t i = 0; i < count && kinds > 1; i++) {
		uint32_t page = (uint32_t)places[i].key;
		first = page < first ? page : first;
		last = page > last ? page : last;
	}
	return (struct grid){kind, kinds, first, (last - first) / 64 + 1};
}

/* Replace keys by bit numbers in the grid. */
static void number_keys(struct oki_place *places, uint32_t count, const struct grid *g)
{
	const uint64_t gap = (1ull << 32) - g->words * 64, first = g->kind << 32 | g->page;
	for (uint32_t i = 0; i < count; i++)
		places[i].key -= first + ((places[i].key >> 32) - g->kind) * gap;
}

/* Stores each host address at the index that its key gives and reads them back in order. */
bool oki_order_by_key(struct oki_place *places, uint32_t count, const struct oki_extent *extent,
		      void *work, uint64_t work_bytes)
{
	const struct grid g = grid_of(places, count, extent);
	const uint64_t words = g.words * g.kinds;
	uint64_t first = g.kind << 32 | g.page;
	/* Each word of bits also needs 64 host addresses. */
	if (words > work_bytes / sizeof(uint64_t) / 65)
		return false;
	uint64_t *taken = work;
	uint8_t **hosts = (uint8_t **)(taken + words);
	if (g.kinds > 1) {
		number_keys(places, count, &g);
		first = 0;
	}
	memset(taken, 0, words * sizeof(taken[0]));
	for (uint32_t i = 0; i < count; i++) {
		uint64_t at = places[i].key - first;
		hosts[at] = places[i].host;
		taken[at / 64] |= 1ull << (at % 64);
	}
	uint32_t made = 0;
	for (uint64_t k = 0; k < g.kinds; k++)
		for (uint64_t w = 0; w < g.words; w++, taken++, hosts += 64) {
			uint64_t key = ((g.kind + k) << 32 | g.page) + w * 64;
			for (uint64_t left = *taken; left; left &= left - 1) {
				uint32_t bit = (uint32_t)__builtin_ctzll(left);
				places[made++] = (struct oki_place){hosts[bit], key + bit};
			}
		}
	return made == count;
}

struct oki_join_limits oki_join_limits(uint64_t block_bytes, uint64_t max_page_stride,
				       uint64_t max_pitch_bytes)
{
	uint64_t least = block_bytes ? block_bytes : 1;
	/* Negative distances wrap to more than this. */
	uint64_t most = max_pitch_bytes < INT64_MAX ? max_pitch_bytes : INT64_MAX;
	uint64_t pages = max_page_stride ? max_pitch_bytes / max_page_stride : UINT32_MAX;
	return (struct oki_join_limits){
		.block_bytes = least,
		.host_pitches = most >= least ? most - least + 1 : 0,
		.max_page_pitch = pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX,
	};
}

/* The distance of a place to the next one. */
struct step {
	uint64_t host;
	uint64_t key;
	uint32_t fits;	/* 1: the two places can be in one run */
	uint32_t again; /* 1: equal to the step before, and both fit */
};

static inline struct step step_from(const struct oki_place *at, struct step before,
				    const struct oki_join_limits *limits)
{
	struct step step = {
		.host = (uintptr_t)at[1].host - (uintptr_t)at[0].host,
		.key = at[1].key - at[0].key,
	};
	step.fits = (step.host - limits->block_bytes < limits->host_pitches) &
		    (step.key - 1 < limits->max_page_pitch) & (at[0].key >> 32 == at[1].key >> 32);
	step.again =
		(step.host == before.host) & (step.key == before.key) & step.fits & before.fits;
	return step;
}

/* The last place of the run that places i - 1 and i are in. */
static uint32_t last_of_run(const struct oki_place *places, uint32_t i)
{
	const uint64_t host = (uintptr_t)places[i].host - (uintptr_t)places[i - 1].host;
	const uint64_t key = places[i].key - places[i - 1].key, kind = places[i].key >> 32;
	while (((uintptr_t)places[i + 1].host - (uintptr_t)places[i].host == host) &
	       (places[i + 1].key - places[i].key == key) & (places[i + 1].key >> 32 == kind))
		i++;
	return i;
}

/* A run of this length probably continues, so its end is searched in a simple loop. */
#define LONG_RUN 64u

/* Branches would be unpredictable with scattered blocks, so the inner loop has none. */
uint32_t oki_find_starts(const struct oki_place *places, uint32_t count,
			 const struct oki_join_limits *limits, uint32_t *starts)
{
	const struct step none = {0};
	const struct oki_join_limits l = *limits;
	struct step next = step_from(&places[0], none, &l);
	struct step far = step_from(&places[1], next, &l);
	uint32_t inside = 0;
	uint32_t made = 0;
	for (uint32_t i = 0; i < count;) {
		uint32_t made_before = made, left = count - i;
		uint32_t end = i + (left < LONG_RUN ? left : LONG_RUN);
		for (; i < end; i++) {
			struct step now = next;
			next = far;
			far = step_from(&places[i + 2], next, &l);
			uint32_t alone = next.fits & ~next.again & far.again;
			starts[made] = i;
			made += inside ^ 1;
			uint32_t begins = now.fits & ~alone;
			inside = begins ^ ((begins ^ now.again) & inside);
		}
		if (!inside || made != made_before)
			continue;
		i = last_of_run(places, i);
		next = step_from(&places[i], none, &l);
		far = step_from(&places[i + 1], next, &l);
	}
	starts[made] = count;
	return made;
}
