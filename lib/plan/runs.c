/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Runs, and the memory they are compiled in. */
#include "plan/runs.h"

#include <stdlib.h>
#include <string.h>

/* Fewer runs are not kept: malloc() has memory for them at hand. */
#define SPARE_MIN_RUNS 1024u

void *oki_scratch_space(struct oki_compile_scratch *scratch, size_t bytes)
{
	if (scratch->bytes >= bytes)
		return scratch->memory;
	free(scratch->memory);
	scratch->memory = malloc(bytes);
	scratch->bytes = scratch->memory ? bytes : 0;
	return scratch->memory;
}

void oki_scratch_trim(struct oki_compile_scratch *scratch)
{
	if (scratch->bytes <= OKI_SCRATCH_KEEP_BYTES)
		return;
	free(scratch->memory);
	scratch->memory = NULL;
	scratch->bytes = 0;
}

static uint64_t runs_bytes(const struct oki_runs *runs)
{
	return (uint64_t)runs->room * sizeof(runs->runs[0]);
}

static struct oki_runs spare_remove(struct oki_compile_scratch *scratch, uint32_t i)
{
	struct oki_runs spare = scratch->spare[i];
	scratch->spare_count--;
	memmove(&scratch->spare[i], &scratch->spare[i + 1],
		(scratch->spare_count - i) * sizeof(spare));
	scratch->spare_bytes -= runs_bytes(&spare);
	return spare;
}

/* Round up, so that another plan with about as many runs fits the same memory. */
static uint32_t room_for(uint32_t count)
{
	if (count < SPARE_MIN_RUNS)
		return count;
	uint64_t unit = (1u << (31 - __builtin_clz(count))) / 8;
	uint64_t room = (count + unit - 1) / unit * unit;
	return room < UINT32_MAX ? (uint32_t)room : UINT32_MAX;
}

/* Takes the smallest spare that is large enough, among equals the one last given back; else
 * allocates. */
bool oki_runs_take(struct oki_compile_scratch *scratch, uint32_t count, struct oki_runs *ret_runs)
{
	uint32_t best = scratch->spare_count;
	for (uint32_t i = 0; i < scratch->spare_count && count >= SPARE_MIN_RUNS; i++) {
		uint32_t room = scratch->spare[i].room;
		if (room >= count &&
		    (best == scratch->spare_count || room <= scratch->spare[best].room))
			best = i;
	}
	if (best < scratch->spare_count) {
		*ret_runs = spare_remove(scratch, best);
		return true;
	}
	uint32_t room = room_for(count);
	struct oki_run *made = malloc((size_t)room * sizeof(made[0]));
	if (!made)
		return false;
	*ret_runs = (struct oki_runs){.runs = made, .room = room};
	return true;
}

void oki_runs_give(struct oki_compile_scratch *scratch, struct oki_runs *runs)
{
	uint64_t bytes = runs_bytes(runs);
	if (runs->room < SPARE_MIN_RUNS || bytes > OKI_SCRATCH_KEEP_BYTES) {
		oki_runs_fini(runs);
		return;
	}
	/* Free the spares that were unused for longest. */
	while (scratch->spare_count == OKI_SPARE_RUNS ||
	       scratch->spare_bytes + bytes > OKI_SCRATCH_KEEP_BYTES)
		free(spare_remove(scratch, 0).runs);
	scratch->spare[scratch->spare_count++] = *runs;
	scratch->spare_bytes += bytes;
	*runs = (struct oki_runs){0};
}

/* A run is cut into runs of `blocks` blocks, or, if one block is too large, of `inner` pages of one
 * block. */
struct cut {
	uint32_t blocks, inner;
};

static struct cut cut_for(const struct oki_run *run, uint64_t rows)
{
	if (run->inner > rows)
		return (struct cut){1, (uint32_t)rows};
	uint64_t blocks = rows / run->inner;
	return (struct cut){blocks < run->blocks ? (uint32_t)blocks : run->blocks, run->inner};
}

static uint64_t count_cut(const struct oki_run *run, uint64_t rows)
{
	struct cut cut = cut_for(run, rows);
	return (((uint64_t)run->blocks - 1) / cut.blocks + 1) * ((run->inner - 1) / cut.inner + 1);
}

static struct oki_run *write_cut(const struct oki_run *run, uint64_t rows, struct oki_run *at)
{
	struct cut cut = cut_for(run, rows);
	for (uint64_t o = 0; o < run->blocks; o += cut.blocks)
		for (uint64_t j = 0; j < run->inner; j += cut.inner) {
			uint64_t blocks = run->blocks - o, inner = run->inner - j;
			blocks = blocks < cut.blocks ? blocks : cut.blocks;
			inner = inner < cut.inner ? inner : cut.inner;
			*at++ = (struct oki_run){
				.host = run->host + o * run->host_pitch,
				.host_pitch = blocks > 1 ? run->host_pitch : 0,
				.blocks = (uint32_t)blocks,
				.page_pitch = blocks > 1 ? run->page_pitch : 0,
				.page = (uint32_t)(run->page + o * run->page_pitch +
						   j * run->inner_step),
				.inner = (uint32_t)inner,
				.inner_first = (uint32_t)(run->inner_first + j),
				.inner_step = inner > 1 ? run->inner_step : 0,
			};
		}
	return at;
}

bool oki_runs_cut(struct oki_compile_scratch *scratch, struct oki_runs *runs, uint64_t rows)
{
	uint64_t count = 0;
	struct oki_runs made;
	for (uint32_t i = 0; i < runs->count; i++)
		count += count_cut(&runs->runs[i], rows);
	if (count == runs->count)
		return true;
	if (count > UINT32_MAX || !oki_runs_take(scratch, (uint32_t)count, &made))
		return false;
	struct oki_run *at = made.runs;
	for (uint32_t i = 0; i < runs->count; i++)
		at = write_cut(&runs->runs[i], rows, at);
	made.count = (uint32_t)count;
	oki_runs_give(scratch, runs);
	*runs = made;
	return true;
}

void oki_runs_fini(struct oki_runs *runs)
{
	if (!runs)
		return;
	free(runs->runs);
	memset(runs, 0, sizeof(*runs));
}

void oki_compile_scratch_fini(struct oki_compile_scratch *scratch)
{
	free(scratch->memory);
	for (uint32_t i = 0; i < scratch->spare_count; i++)
		free(scratch->spare[i].runs);
	memset(scratch, 0, sizeof(*scratch));
}
