/*
 * [B] What depends on the runs of an operation alone: the kernel's table, and which way is the
 * fastest. It is worked out with the first layer of a group, so that later layers cost the CPU the
 * same however many blocks there are.
 */
#include "device/cuda_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "device/rect.h"

/* Kinds of layers in one group that are told apart; more share the last one's prediction. */
#define SHAPES_MAX 4u

/* Layers that cost the same: they differ in where they lie only. */
struct shape {
	uint64_t page_stride;
	uint32_t segment_count;
	uint64_t bytes[OKV_MAX_SEGMENTS];
	uint64_t page_offset[OKV_MAX_SEGMENTS]; /* from the first one's */
	uint64_t block_offset[OKV_MAX_SEGMENTS];
	struct oki_cuda_load load; /* of one layer */
};

struct oki_cuda_plan {
	struct oki_cuda_plan *next;
	const struct oki_run *runs;
	uint32_t run_count;
	uint64_t rows;
	uint32_t shape_count;
	struct shape shapes[SHAPES_MAX];
	bool chosen; /* way is settled: later layers are of the same kinds */
	enum oki_cuda_way way;
	struct oki_cuda_table all;
	struct oki_cuda_table rest; /* of sorted[long_count] and on */
	uint32_t long_count;
	struct oki_run *sorted; /* owned, NULL: not split; those for copy engines come first */
	struct oki_gather_row few[2][OKI_GATHER_INLINE_ROWS];
};

/* Few rows go into each launch; more of them to the GPU's memory, once. */
static CUresult table_build(struct oki_stream *stream, const struct oki_run *runs,
			    uint32_t run_count, struct oki_gather_row *few,
			    struct oki_cuda_table *ret_table)
{
	struct oki_cuda_table table = {.host = few, .joinable = true};
	for (uint32_t i = 0; i < run_count; i++)
		table.joinable &= oki_run_is_joinable(&runs[i]);
	uint64_t rows = oki_cuda_table_rows(runs, run_count);
	table.count = (uint32_t)rows;
	if (rows <= OKI_GATHER_INLINE_ROWS) {
		oki_cuda_table_fill(stream->device, runs, run_count, few);
		*ret_table = table;
		return CUDA_SUCCESS;
	}
	void *host = NULL;
	uint64_t bytes = rows * sizeof(struct oki_gather_row);
	CUresult result = oki_cuda_chunk_take(stream, bytes, &host, &table.device);
	if (result != CUDA_SUCCESS)
		return result;
	table.host = host;
	oki_cuda_table_fill(stream->device, runs, run_count, host);
	result = stream->device->api->copy_to_device(table.device, host, bytes, stream->stream);
	if (result != CUDA_SUCCESS)
		return result;
	/* The kernel that reads it follows it. */
	stream->kernels = 0;
	*ret_table = table;
	return CUDA_SUCCESS;
}

/* ---- plans ---- */

void oki_cuda_plans_forget(struct oki_stream *stream)
{
	struct oki_cuda_plan *plan;
	while ((plan = stream->plans)) {
		stream->plans = plan->next;
		free(plan->sorted);
		free(plan);
	}
	oki_cuda_chunks_empty(stream);
	/* The next user's kernels follow its own fences. */
	stream->kernels = 0;
	atomic_fetch_sub_explicit(&stream->device->copying, stream->copying, memory_order_relaxed);
	stream->copying = 0;
	stream->stretches = 0;
	stream->pending.count = 0;
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
	plan->rows = oki_cuda_table_rows(runs, run_count);
	/* Another part of the operation: what was queued before may be of the same layers, so its
	 * first kernel follows all of that. */
	stream->kernels = 0;
	plan->next = stream->plans;
	stream->plans = plan;
	return plan;
}

uint64_t oki_cuda_plan_rows(const struct oki_cuda_plan *plan)
{
	return plan->rows;
}

static void shape_of(const struct oki_layer_map *map, struct shape *ret_shape)
{
	memset(ret_shape, 0, sizeof(*ret_shape));
	ret_shape->page_stride = map->page_stride;
	ret_shape->segment_count = map->segment_count;
	for (uint32_t s = 0; s < map->segment_count; s++) {
		ret_shape->bytes[s] = map->segments[s].bytes;
		ret_shape->page_offset[s] =
			map->segments[s].page_offset - map->segments[0].page_offset;
		ret_shape->block_offset[s] =
			map->segments[s].block_offset - map->segments[0].block_offset;
	}
}

/*
 * What one run costs. Scattered rows make runs of one or two blocks, with any pitch: unless its
 * rows touch, the cost of a run is that of its number of blocks.
 */
#define PRICED_BLOCKS 8u

struct pricer {
	const struct oki_cuda_rates *rates;
	bool batch;
	const struct oki_layer_map *map;
	struct oki_layer_map joined;
	bool known[PRICED_BLOCKS + 1];
	double dma_ns[PRICED_BLOCKS + 1], kernel_ns[PRICED_BLOCKS + 1]; /* [0]: of another run */
};

static void pricer_init(struct pricer *p, const struct oki_stream *stream,
			const struct oki_cuda_rates *rates, const struct oki_layer_map *map)
{
	p->rates = rates;
	p->batch = oki_cuda_has_batch(stream->device->api);
	p->map = map;
	oki_join_segments(map, &p->joined);
	memset(p->known, 0, sizeof(p->known));
}

static bool is_plain(const struct pricer *p, const struct oki_run *run)
{
	if (!oki_run_is_joinable(run) || run->blocks > PRICED_BLOCKS)
		return false;
	for (uint32_t s = 0; s < p->joined.segment_count; s++)
		if (run->host_pitch == p->joined.segments[s].bytes)
			return false;
	return true;
}

/* Where its price is from now on. */
static uint32_t price(struct pricer *p, const struct oki_run *run)
{
	uint32_t at = is_plain(p, run) ? run->blocks : 0;
	if (at && p->known[at])
		return at;
	const struct oki_layer_map *map = oki_run_is_joinable(run) ? &p->joined : p->map;
	p->known[at] = true;
	p->dma_ns[at] = oki_cuda_copy_ns(p->rates, p->batch, map, run);
	p->kernel_ns[at] = 0;
	for (uint32_t s = 0; s < map->segment_count; s++)
		p->kernel_ns[at] +=
			oki_cuda_kernel_ns(p->rates, oki_run_rows(run), map->segments[s].bytes);
	return at;
}

/* Of one layer. Returns how many runs suit copy engines. */
static uint32_t add_up(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		       const struct oki_cuda_plan *plan, const struct oki_layer_map *map,
		       struct oki_cuda_load *ret_load)
{
	struct oki_cuda_load load = {.bytes = plan->rows * oki_layer_row_bytes(map)};
	struct pricer pricer;
	uint32_t long_count = 0;
	pricer_init(&pricer, stream, rates, map);
	for (uint32_t i = 0; i < plan->run_count; i++) {
		uint32_t at = price(&pricer, &plan->runs[i]);
		load.dma_ns += pricer.dma_ns[at];
		load.kernel_ns += pricer.kernel_ns[at];
		if (pricer.dma_ns[at] <= pricer.kernel_ns[at]) {
			load.long_dma_ns += pricer.dma_ns[at];
			long_count++;
		} else {
			load.short_kernel_ns += pricer.kernel_ns[at];
		}
	}
	*ret_load = load;
	return long_count;
}

/*
 * Runs that suit copy engines to the front of a copy, by the first layer of the group. Without
 * memory there is nothing to share.
 */
static void split(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		  struct oki_cuda_plan *plan, const struct oki_layer_map *map, uint32_t long_count)
{
	uint32_t front = 0, back = long_count;
	plan->sorted = malloc(plan->run_count * sizeof(*plan->sorted));
	if (!plan->sorted)
		return;
	struct pricer pricer;
	pricer_init(&pricer, stream, rates, map);
	for (uint32_t i = 0; i < plan->run_count; i++) {
		uint32_t at = price(&pricer, &plan->runs[i]);
		bool is_long = pricer.dma_ns[at] <= pricer.kernel_ns[at];
		plan->sorted[is_long ? front++ : back++] = plan->runs[i];
	}
	plan->long_count = long_count;
}

static const struct oki_cuda_load *load_of(struct oki_stream *stream,
					   const struct oki_cuda_rates *rates,
					   struct oki_cuda_plan *plan,
					   const struct oki_layer_map *map)
{
	struct shape shape;
	shape_of(map, &shape);
	for (uint32_t i = 0; i < plan->shape_count; i++)
		if (memcmp(&shape, &plan->shapes[i], offsetof(struct shape, load)) == 0)
			return &plan->shapes[i].load;
	if (plan->shape_count == SHAPES_MAX)
		return &plan->shapes[SHAPES_MAX - 1].load;
	uint32_t long_count = add_up(stream, rates, plan, map, &shape.load);
	if (plan->shape_count == 0 && long_count && long_count < plan->run_count)
		split(stream, rates, plan, map, long_count);
	plan->shapes[plan->shape_count] = shape;
	return &plan->shapes[plan->shape_count++].load;
}

bool oki_cuda_may_stack(const struct oki_device *device, const struct oki_layer_map *const *maps,
			uint32_t map_count)
{
	return map_count > 1 &&
	       oki_cuda_one_tensor(device, maps[0]->base, maps[map_count - 1]->base);
}

/* All runs by copy engines, with copies that span layers where that pays. */
static double stack_ns(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		       const struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
		       uint32_t map_count)
{
	bool batch = oki_cuda_has_batch(stream->device->api), known[PRICED_BLOCKS + 1] = {0};
	double ns[PRICED_BLOCKS + 1], sum = 0;
	for (uint32_t i = 0; i < plan->run_count; i++) {
		const struct oki_run *run = &plan->runs[i];
		/* Where rows touch it is cheaper; such runs are long. */
		uint32_t at =
			oki_run_is_joinable(run) && run->blocks <= PRICED_BLOCKS ? run->blocks : 0;
		if (!at || !known[at])
			ns[at] = oki_cuda_stack_ns(rates, batch, maps, map_count, run);
		known[at] = true;
		sum += ns[at];
	}
	return sum;
}

static enum oki_cuda_way fastest(struct oki_stream *stream, const struct oki_cuda_rates *rates,
				 struct oki_cuda_plan *plan,
				 const struct oki_layer_map *const *maps, uint32_t map_count,
				 uint32_t together)
{
	struct oki_cuda_load sum = {0};
	for (uint32_t i = 0; i < map_count; i++) {
		const struct oki_cuda_load *load = load_of(stream, rates, plan, maps[i]);
		sum.bytes += load->bytes;
		sum.dma_ns += load->dma_ns;
		sum.kernel_ns += load->kernel_ns;
		sum.long_dma_ns += load->long_dma_ns;
		sum.short_kernel_ns += load->short_kernel_ns;
	}
	if (oki_cuda_may_stack(stream->device, maps, together)) {
		double ns = stack_ns(stream, rates, plan, maps, together) * map_count / together;
		if (ns < sum.dma_ns)
			sum.dma_ns = ns;
	}
	uint64_t copying = atomic_load_explicit(&stream->device->copying, memory_order_relaxed);
	sum.ahead = copying > stream->copying ? copying - stream->copying : 0;
	sum.follows = stream->stretches > 0;
	sum.last = stream->way;
	/* Both need runs of both kinds, and a side stream that can wait for the kernel's layers. */
	sum.shared = plan->sorted && stream->counters;
	return oki_cuda_choose(rates, &sum);
}

enum oki_cuda_way oki_cuda_plan_choose(struct oki_stream *stream, enum oki_direction direction,
				       struct oki_cuda_plan *plan,
				       const struct oki_layer_map *const *maps, uint32_t map_count,
				       uint32_t together)
{
	if (!plan || plan->rows == 0 || plan->rows > OKI_CUDA_ROWS_MAX ||
	    stream->device->path == OKV_COPY_DMA)
		return OKI_CUDA_WAY_DMA;
	if (stream->device->path == OKV_COPY_KERNEL)
		return OKI_CUDA_WAY_KERNEL;
	if (!plan->chosen)
		plan->way = fastest(stream, &stream->device->rates[direction], plan, maps,
				    map_count, together);
	plan->chosen = true;
	return plan->way;
}

CUresult oki_cuda_plan_table(struct oki_stream *stream, struct oki_cuda_plan *plan, bool all,
			     const struct oki_cuda_table **ret_table)
{
	struct oki_cuda_table *table = all ? &plan->all : &plan->rest;
	*ret_table = table;
	if (table->host)
		return CUDA_SUCCESS;
	if (all)
		return table_build(stream, plan->runs, plan->run_count, plan->few[0], table);
	return table_build(stream, plan->sorted + plan->long_count,
			   plan->run_count - plan->long_count, plan->few[1], table);
}

uint32_t oki_cuda_plan_long(const struct oki_cuda_plan *plan, const struct oki_run **ret_runs)
{
	*ret_runs = plan->sorted;
	return plan->long_count;
}
