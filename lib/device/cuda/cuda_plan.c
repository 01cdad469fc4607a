/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] Prepared runs: what depends on an operation's runs only, which is their number of rows, the
 * work of copy engines for them, and the kernel's table. Computed with the first layer of a group,
 * so that the CPU time of later layers does not depend on the number of blocks.
 */
#include "device/cuda/cuda_device.h"

#include <stdlib.h>

#include "device/rect.h"

/* Runs of one operation are similar, so an evenly spread sample of so many, or up to twice as many,
 * is enough. */
#define SAMPLES 32u

struct oki_cuda_plan {
	struct oki_cuda_plan *next;
	const struct oki_run *runs;
	uint32_t run_count;
	uint64_t rows;
	bool joinable;	      /* all runs are */
	uint64_t block_pages; /* pages of the longest block; 0: not yet computed */
	uint64_t whole_below; /* so many first bytes of any block lie in one registration */
	uint64_t split_from;  /* so many first bytes of some block do not */
	struct oki_cuda_table table;
	struct oki_gather_row few[OKI_GATHER_INLINE_ROWS];
};

static void count_runs(struct oki_cuda_plan *plan)
{
	uint32_t unjoinable = 0; /* 0: all are joinable */
	uint64_t rows = 0;
	for (uint32_t i = 0; i < plan->run_count; i++) {
		const struct oki_run *run = &plan->runs[i];
		rows += oki_run_rows(run);
		unjoinable |= (run->inner - 1) | run->inner_first;
	}
	plan->rows = rows;
	plan->joinable = unjoinable == 0;
}

void oki_cuda_plans_forget(struct oki_stream *stream)
{
	struct oki_cuda_plan *plan;
	while ((plan = stream->plans)) {
		stream->plans = plan->next;
		free(plan);
	}
	oki_cuda_chunks_empty(stream);
	for (int d = 0; d < 2; d++) {
		atomic_fetch_sub_explicit(&stream->device->copying[d], stream->copying[d],
					  memory_order_relaxed);
		stream->copying[d] = 0;
	}
	oki_cuda_restores(stream, false);
	stream->stretches = 0;
	stream->chosen = false;
	stream->pending.count = 0;
	stream->side_open = stream->lane_open = stream->side_last = false;
}

struct oki_cuda_plan *oki_cuda_plan_get(struct oki_stream *stream, const struct oki_run *runs,
					uint32_t run_count)
{
	struct oki_cuda_plan *plan = stream->plans;
	while (plan && (plan->runs != runs || plan->run_count != run_count))
		plan = plan->next;
	if (plan)
		return plan;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return NULL;
	plan->runs = runs;
	plan->run_count = run_count;
	plan->split_from = UINT64_MAX;
	count_runs(plan);
	/* Another part, or another operation. Work queued before may be of the same layers, so the
	 * next kernel follows all of it. */
	stream->kernels = 0;
	stream->chosen = false;
	plan->next = stream->plans;
	stream->plans = plan;
	return plan;
}

uint64_t oki_cuda_plan_rows(const struct oki_cuda_plan *plan)
{
	return plan->rows;
}

uint32_t oki_cuda_stackable(const struct oki_device *device,
			    const struct oki_layer_map *const *maps, uint32_t map_count)
{
	const struct oki_cuda_tensor *tensor = oki_cuda_tensor_of(device, maps[0]->base);
	uint64_t host, pages;
	uint32_t inside = 1;
	/* All map_count are there. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
	while (tensor && inside < map_count && oki_cuda_is_in(tensor, maps[inside]->base))
		inside++;
	return oki_layers_alike(maps, inside, &host, &pages);
}

void oki_cuda_plan_work(const struct oki_stream *stream, enum oki_direction direction,
			const struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
			uint32_t map_count, uint32_t together, struct oki_cuda_work *sum)
{
	const struct oki_device *device = stream->device;
	uint32_t span = oki_cuda_stackable(device, maps, together);
	uint32_t step = plan->run_count > SAMPLES ? plan->run_count / SAMPLES : 1;
	uint32_t looked_at = (plan->run_count + step - 1) / step;
	struct oki_cuda_counts counts;
	oki_cuda_count(device, direction, maps, span, plan->runs, plan->run_count, step, &counts);
	for (uint32_t i = 0; i < map_count; i++)
		sum->bytes += plan->rows * oki_layer_row_bytes(maps[i]);
	double all = looked_at ? (double)plan->run_count / looked_at : 0;
	double spans = all * map_count / span, layers = all * map_count;
	sum->rows += (uint64_t)((double)counts.spanning.rows * spans +
				(double)counts.single.rows * layers + 0.5);
	sum->operations += (uint64_t)((double)counts.spanning.operations * spans +
				      (double)counts.single.operations * layers + 0.5);
}

CUresult oki_cuda_plan_table(struct oki_stream *stream, struct oki_cuda_plan *plan, uint32_t few,
			     const struct oki_cuda_table **ret_table)
{
	struct oki_cuda_table table = {
		.host = plan->few, .count = (uint32_t)plan->rows, .joinable = plan->joinable};
	*ret_table = &plan->table;
	if (plan->table.host)
		return CUDA_SUCCESS;
	/* Few entries go into the parameters of each launch; more go to GPU memory once. */
	if (plan->rows <= few) {
		oki_cuda_table_fill(stream->device, plan->runs, plan->run_count, plan->rows,
				    plan->few);
		plan->table = table;
		return CUDA_SUCCESS;
	}
	void *host = NULL;
	uint64_t bytes = plan->rows * sizeof(struct oki_gather_row);
	CUresult result = oki_cuda_chunk_take(stream, bytes, &host, &table.device);
	if (result != CUDA_SUCCESS)
		return result;
	table.host = host;
	oki_cuda_table_fill(stream->device, plan->runs, plan->run_count, plan->rows, host);
	result = stream->device->api->copy_to_device(table.device, host, bytes, stream->stream);
	if (result != CUDA_SUCCESS)
		return result;
	/* The next kernel reads the table, so it follows the copy. */
	stream->kernels = 0;
	plan->table = table;
	return CUDA_SUCCESS;
}

/* The end of these layers in the longest block. */
static uint64_t block_end(struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
			  uint32_t map_count)
{
	uint64_t end = 0, pages = plan->block_pages;
	for (uint32_t i = 0; i < plan->run_count && plan->block_pages == 0; i++) {
		uint64_t last = (uint64_t)plan->runs[i].inner_first + plan->runs[i].inner;
		pages = last > pages ? last : pages;
	}
	plan->block_pages = pages;
	for (uint32_t i = 0; i < map_count; i++)
		for (uint32_t s = 0; s < maps[i]->segment_count; s++) {
			const struct oki_segment_map *seg = &maps[i]->segments[s];
			uint64_t to = seg->block_offset + pages * seg->bytes;
			end = to > end ? to : end;
		}
	return end;
}

static bool has_divided_block(const struct oki_device *device, const struct oki_cuda_plan *plan,
			      uint64_t end)
{
	for (uint32_t i = 0; i < plan->run_count; i++)
		for (uint32_t o = 0; o < plan->runs[i].blocks; o++)
			if (oki_cuda_crosses_registration(
				    device, plan->runs[i].host + o * plan->runs[i].host_pitch, end))
				return true;
	return false;
}

bool oki_cuda_plan_crosses_registration(const struct oki_device *device, struct oki_cuda_plan *plan,
					const struct oki_layer_map *const *maps, uint32_t map_count)
{
	if (!device->arena_split)
		return false;
	uint64_t end = block_end(plan, maps, map_count);
	if (end > plan->whole_below && end < plan->split_from) {
		if (has_divided_block(device, plan, end))
			plan->split_from = end;
		else
			plan->whole_below = end;
	}
	return end >= plan->split_from;
}
