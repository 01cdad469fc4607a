/*
 * [B] What depends on the runs of an operation alone: the kernel's table, and which way is the
 * fastest. It is worked out with the first layer of a group, so that later layers cost the CPU the
 * same however many blocks there are.
 */
#include "device/cuda_device.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/rect.h"

/* Kinds of layers in one group that are told apart; more share the last one's prediction. */
#define SHAPES_MAX 4u
/* A publish on one SM takes so many times as long as on four (measured: 1.3 for rows of 32 KiB, 1.7
 * for rows of 1 KiB and less); on any other number it has as much on its way. */
#define FEW_SMS 1.5

/* Layers that cost the same: they differ in where they lie only. */
struct shape {
	uint64_t page_stride;
	uint32_t segment_count;
	uint64_t bytes[OKV_MAX_SEGMENTS];
	uint64_t page_offset[OKV_MAX_SEGMENTS]; /* from the first one's */
	uint64_t block_offset[OKV_MAX_SEGMENTS];
	struct oki_cuda_load load; /* of one layer */
};

/*
 * Runs counted, once for all kinds of layers. Scattered rows make runs of one or two blocks with
 * any pitch: where rows of two blocks do not touch, the cost of such a run is that of its number of
 * blocks.
 */
struct census {
	uint64_t rows;
	bool joinable; /* all of them are */
	/* Of the first run's shape, by blocks, and which run is one of these; [0]: others. */
	uint32_t few[OKI_CUDA_FEW_BLOCKS + 1];
	uint32_t examples[OKI_CUDA_FEW_BLOCKS + 1];
	uint64_t least_pitch; /* of those of several blocks */
};

struct oki_cuda_plan {
	struct oki_cuda_plan *next;
	const struct oki_run *runs;
	uint32_t run_count;
	struct census all;
	struct census rest;   /* of those that do not suit copy engines, if others do */
	uint64_t block_pages; /* of the longest one; 0: nobody asked */
	uint64_t sound_to;    /* so many bytes of any block lie in one piece of an arena */
	uint64_t cut_from;    /* so many of some block do not */
	uint32_t shape_count;
	struct shape shapes[SHAPES_MAX];
	bool forked;
	bool chosen; /* way is settled: later layers are of the same kinds */
	enum oki_cuda_way way;
	struct oki_cuda_table tables[2]; /* of the rest, of all */
	uint32_t long_count;		 /* of the runs, those that suit copy engines */
	/* Owned; NULL: they are of one kind, or go for such. Those for copy engines come first;
	 * others from sorted[run_count] on. */
	struct oki_run *sorted;
	struct oki_gather_row few[2][OKI_GATHER_INLINE_ROWS];
};

/* Does the number of its blocks say what it costs? */
static inline bool is_few(const struct oki_run *run, const struct oki_run *first)
{
	uint32_t differ = (run->inner ^ first->inner) | (run->inner_first ^ first->inner_first) |
			  (run->inner_step ^ first->inner_step);
	return (run->blocks <= OKI_CUDA_FEW_BLOCKS) & (differ == 0);
}

static void count_runs(const struct oki_run *runs, uint32_t run_count, struct census *ret_census)
{
	uint32_t cut = 0; /* 0: all are joinable */
	struct census c = {.least_pitch = UINT64_MAX};
	for (uint32_t i = 0; i < run_count; i++) {
		const struct oki_run *run = &runs[i];
		uint64_t few = is_few(run, &runs[0]), at = run->blocks * few;
		/* A block alone has a pitch of zero, which wraps to more than any. */
		uint64_t pitch = (run->host_pitch - 1) | (few - 1);
		c.least_pitch = pitch < c.least_pitch ? pitch : c.least_pitch;
		c.few[at]++;
		c.examples[at] = i;
		c.rows += oki_run_rows(run);
		cut |= (run->inner - 1) | run->inner_first;
	}
	c.joinable = cut == 0;
	/* Undoes the wrap. */
	c.least_pitch += c.least_pitch < UINT64_MAX;
	*ret_census = c;
}

/* Few rows go into each launch; more of them to the GPU's memory, once. */
static CUresult table_build(struct oki_stream *stream, const struct oki_run *runs,
			    uint32_t run_count, const struct census *census, uint32_t few_count,
			    struct oki_gather_row *few, struct oki_cuda_table *ret_table)
{
	uint64_t rows = census->rows;
	struct oki_cuda_table table = {
		.host = few, .count = (uint32_t)rows, .joinable = census->joinable};
	if (rows <= few_count) {
		oki_cuda_table_fill(stream->device, runs, run_count, rows, few);
		*ret_table = table;
		return CUDA_SUCCESS;
	}
	void *host = NULL;
	uint64_t bytes = rows * sizeof(struct oki_gather_row);
	CUresult result = oki_cuda_chunk_take(stream, bytes, &host, &table.device);
	if (result != CUDA_SUCCESS)
		return result;
	table.host = host;
	oki_cuda_table_fill(stream->device, runs, run_count, rows, host);
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
	for (int d = 0; d < 2; d++) {
		atomic_fetch_sub_explicit(&stream->device->copying[d], stream->copying[d],
					  memory_order_relaxed);
		stream->copying[d] = 0;
		if (stream->active[d])
			atomic_fetch_sub_explicit(&stream->device->active[d], 1,
						  memory_order_relaxed);
		stream->active[d] = false;
	}
	stream->stretches = 0;
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
	plan->cut_from = UINT64_MAX;
	plan->rest.joinable = true;
	count_runs(runs, run_count, &plan->all);
	/* Another part of the operation, or another one: what was queued before may be of the same
	 * layers, so the next kernel follows all of that. */
	stream->kernels = 0;
	plan->next = stream->plans;
	stream->plans = plan;
	return plan;
}

uint64_t oki_cuda_plan_rows(const struct oki_cuda_plan *plan)
{
	return plan->all.rows;
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

/* Is the cost of counted runs that of their blocks? Not where rows of two blocks may touch. */
static bool rows_are_apart(const struct oki_cuda_plan *plan, const struct oki_layer_map *map)
{
	uint64_t longest = 0;
	for (uint32_t s = 0; s < map->segment_count; s++)
		longest = map->segments[s].bytes > longest ? map->segments[s].bytes : longest;
	return plan->all.least_pitch > longest * plan->runs[0].inner;
}

/* What runs cost in one layer. */
struct pricer {
	const struct oki_cuda_rates *rates;
	const struct oki_cuda_plan *plan;
	bool batch;
	bool counted; /* the plan's counts hold for this layer */
	const struct oki_layer_map *map;
	struct oki_layer_map joined;
	/* By blocks; [0]: of another run. */
	bool known[OKI_CUDA_FEW_BLOCKS + 1];
	double dma_ns[OKI_CUDA_FEW_BLOCKS + 1];
	double kernel_ns[OKI_CUDA_FEW_BLOCKS + 1];
};

static void pricer_init(struct pricer *p, const struct oki_stream *stream,
			const struct oki_cuda_rates *rates, const struct oki_cuda_plan *plan,
			const struct oki_layer_map *map)
{
	p->rates = rates;
	p->plan = plan;
	p->batch = oki_cuda_has_batch(stream->device->api);
	p->map = map;
	oki_join_segments(map, &p->joined);
	p->counted = rows_are_apart(plan, &p->joined);
	memset(p->known, 0, sizeof(p->known));
}

/* Runs with the same price have the same place, but in [0]. */
static uint32_t price_place(const struct pricer *p, const struct oki_run *run)
{
	if (p->counted)
		return is_few(run, &p->plan->runs[0]) ? run->blocks : 0;
	if (!oki_run_is_joinable(run) || run->blocks > OKI_CUDA_FEW_BLOCKS)
		return 0;
	for (uint32_t s = 0; s < p->joined.segment_count; s++)
		if (run->host_pitch == p->joined.segments[s].bytes)
			return 0;
	return run->blocks;
}

/* Where its price is from now on. */
static uint32_t price(struct pricer *p, const struct oki_run *run)
{
	uint32_t at = price_place(p, run);
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

static bool suits_engines(const struct pricer *p, uint32_t at)
{
	return p->dma_ns[at] <= p->kernel_ns[at];
}

/* So many runs like this one. Returns how many of them suit copy engines. */
static uint32_t add_runs(struct pricer *p, const struct oki_run *run, uint32_t count,
			 struct oki_cuda_load *load)
{
	uint32_t at = price(p, run);
	double dma_ns = p->dma_ns[at] * count, kernel_ns = p->kernel_ns[at] * count;
	load->dma_ns += dma_ns;
	load->kernel_ns += kernel_ns;
	if (!suits_engines(p, at)) {
		load->short_kernel_ns += kernel_ns;
		return 0;
	}
	load->long_dma_ns += dma_ns;
	return count;
}

/* Of one layer. Returns how many runs suit copy engines. */
static uint32_t add_up(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		       const struct oki_cuda_plan *plan, const struct oki_layer_map *map,
		       struct oki_cuda_load *ret_load)
{
	const struct census *c = &plan->all;
	struct oki_cuda_load load = {.bytes = c->rows * oki_layer_row_bytes(map)};
	struct pricer p;
	uint32_t long_count = 0;
	pricer_init(&p, stream, rates, plan, map);
	for (uint32_t n = 1; n <= OKI_CUDA_FEW_BLOCKS && p.counted; n++)
		if (c->few[n])
			long_count += add_runs(&p, &plan->runs[c->examples[n]], c->few[n], &load);
	for (uint32_t i = 0; i < plan->run_count && (!p.counted || c->few[0]); i++)
		if (!p.counted || !is_few(&plan->runs[i], &plan->runs[0]))
			long_count += add_runs(&p, &plan->runs[i], 1, &load);
	*ret_load = load;
	return long_count;
}

/*
 * Runs that suit copy engines to the front of a copy, others to its second half, by the first layer
 * of the group. Without memory the kernel takes them all.
 */
static void split(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		  struct oki_cuda_plan *plan, const struct oki_layer_map *map)
{
	uint32_t long_count = 0, others = 0;
	struct oki_run *sorted = malloc(2ull * plan->run_count * sizeof(*sorted));
	plan->long_count = 0;
	if (!sorted)
		return;
	struct pricer p;
	pricer_init(&p, stream, rates, plan, map);
	for (uint32_t i = 0; i < plan->run_count; i++) {
		if (suits_engines(&p, price(&p, &plan->runs[i])))
			sorted[long_count++] = plan->runs[i];
		else
			sorted[plan->run_count + others++] = plan->runs[i];
	}
	plan->sorted = sorted;
	plan->long_count = long_count;
	count_runs(sorted + plan->run_count, others, &plan->rest);
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
	if (plan->shape_count == 0)
		plan->long_count = long_count;
	if (plan->shape_count == 0 && long_count && long_count < plan->run_count)
		split(stream, rates, plan, map);
	plan->shapes[plan->shape_count] = shape;
	return &plan->shapes[plan->shape_count++].load;
}

static bool is_in(const struct oki_cuda_tensor *tensor, const uint8_t *at)
{
	return (uintptr_t)at >= tensor->from && (uintptr_t)at < tensor->to;
}

uint32_t oki_cuda_stackable(const struct oki_device *device,
			    const struct oki_layer_map *const *maps, uint32_t map_count)
{
	const struct oki_cuda_tensor *tensor = oki_cuda_tensor_of(device, maps[0]->base);
	uint64_t host, pages;
	uint32_t inside = 1;
	/* All map_count are there. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
	while (tensor && inside < map_count && is_in(tensor, maps[inside]->base))
		inside++;
	return oki_layers_alike(maps, inside, &host, &pages);
}

/* All runs by copy engines, with copies that span layers where that pays. */
static double stack_ns(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		       const struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
		       uint32_t map_count)
{
	const struct census *c = &plan->all;
	bool batch = oki_cuda_has_batch(stream->device->api);
	/* Where joinable rows touch it is cheaper; such runs are long. */
	bool counted = oki_run_is_joinable(&plan->runs[0]) || rows_are_apart(plan, maps[0]);
	double sum = 0;
	for (uint32_t n = 1; n <= OKI_CUDA_FEW_BLOCKS && counted; n++)
		if (c->few[n])
			sum += c->few[n] * oki_cuda_stack_ns(rates, batch, maps, map_count,
							     &plan->runs[c->examples[n]]);
	for (uint32_t i = 0; i < plan->run_count && (!counted || c->few[0]); i++)
		if (!counted || !is_few(&plan->runs[i], &plan->runs[0]))
			sum += oki_cuda_stack_ns(rates, batch, maps, map_count, &plan->runs[i]);
	return sum;
}

/* May layers of this plan go by other ways than copy engines? */
static bool has_choice(const struct oki_stream *stream, const struct oki_cuda_plan *plan)
{
	return plan->all.rows > 0 && plan->all.rows <= OKI_CUDA_ROWS_MAX &&
	       stream->device->path != OKV_COPY_DMA;
}

/* Layers of one plan, of which copy engines may take `together` in one operation. */
static void add_layers(struct oki_stream *stream, const struct oki_cuda_rates *rates,
		       struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
		       uint32_t map_count, uint32_t together, struct oki_cuda_load *sum)
{
	uint32_t span = oki_cuda_stackable(stream->device, maps, together);
	double dma_ns = 0, span_ns = 0;
	for (uint32_t i = 0; i < map_count; i++) {
		const struct oki_cuda_load *load = load_of(stream, rates, plan, maps[i]);
		dma_ns += load->dma_ns;
		span_ns += i < span ? load->dma_ns : 0;
		sum->bytes += load->bytes;
		sum->kernel_ns += load->kernel_ns;
		sum->long_dma_ns += load->long_dma_ns;
		sum->short_kernel_ns += load->short_kernel_ns;
	}
	/* What copies across layers save of the first ones they save of all. */
	double stacked_ns = span > 1 ? stack_ns(stream, rates, plan, maps, span) : span_ns;
	sum->dma_ns += stacked_ns < span_ns ? dma_ns * (stacked_ns / span_ns) : dma_ns;
}

static bool is_among(const struct oki_cuda_plan *plan, struct oki_cuda_plan *const *plans,
		     uint32_t count)
{
	uint32_t i = 0;
	while (i < count && plans[i] != plan)
		i++;
	return i < count;
}

static enum oki_cuda_way fastest(struct oki_stream *stream, enum oki_direction direction,
				 struct oki_cuda_plan *const *plans,
				 const struct oki_layer_map *const *maps, uint32_t map_count,
				 const uint32_t *together)
{
	const struct oki_cuda_rates *rates = &stream->device->rates[direction];
	struct oki_cuda_load sum = {0};
	bool some_long = false, some_short = false;
	for (uint32_t first = 0; first < map_count; first++) {
		const struct oki_layer_map *own[OKI_JOIN_MAX];
		struct oki_cuda_plan *plan = plans[first];
		uint32_t count = 0;
		if (!plan || plan->chosen || is_among(plan, plans, first))
			continue;
		for (uint32_t i = first; i < map_count; i++)
			if (plans[i] == plan)
				own[count++] = maps[i];
		add_layers(stream, rates, plan, own, count, together[first], &sum);
		some_long |= plan->long_count > 0;
		some_short |= plan->long_count < plan->run_count;
	}
	/* Both need runs of both kinds, and a side stream that can wait for the kernel's layers. */
	sum.shared = some_long && some_short && stream->counters;
	uint32_t sms = oki_cuda_sms(stream->device, direction);
	if (sms == 1 && sms < stream->device->sms) {
		sum.kernel_ns *= FEW_SMS;
		sum.short_kernel_ns *= FEW_SMS;
	}
	uint64_t copying =
		atomic_load_explicit(&stream->device->copying[direction], memory_order_relaxed);
	uint64_t own = stream->copying[direction];
	sum.ahead = copying > own ? copying - own : 0;
	sum.wait_ns = oki_cuda_probe_wait(stream->device, oki_now_ns());
	sum.follows = stream->stretches > 0;
	sum.last = stream->way;
	return oki_cuda_choose(rates, &sum);
}

void oki_cuda_plan_choose(struct oki_stream *stream, enum oki_direction direction,
			  struct oki_cuda_plan *const *plans,
			  const struct oki_layer_map *const *maps, uint32_t map_count,
			  const uint32_t *together)
{
	enum oki_cuda_way way = OKI_CUDA_WAY_KERNEL;
	bool open = false;
	for (uint32_t i = 0; i < map_count; i++) {
		if (!plans[i] || plans[i]->chosen)
			continue;
		plans[i]->way = OKI_CUDA_WAY_DMA;
		plans[i]->chosen = !has_choice(stream, plans[i]);
		open |= !plans[i]->chosen;
	}
	if (open && stream->device->path != OKV_COPY_KERNEL)
		way = fastest(stream, direction, plans, maps, map_count, together);
	for (uint32_t i = 0; i < map_count; i++) {
		if (!plans[i] || plans[i]->chosen)
			continue;
		plans[i]->way = way;
		plans[i]->chosen = true;
	}
}

enum oki_cuda_way oki_cuda_plan_way(const struct oki_cuda_plan *plan)
{
	return plan ? plan->way : OKI_CUDA_WAY_DMA;
}

/* Do copy engines take some of its runs beside the kernel? */
static bool is_shared(const struct oki_cuda_plan *plan)
{
	return plan->way == OKI_CUDA_WAY_BOTH && plan->long_count;
}

uint64_t oki_cuda_plan_kernel_rows(const struct oki_cuda_plan *plan)
{
	return is_shared(plan) ? plan->rest.rows : plan->all.rows;
}

CUresult oki_cuda_plan_table(struct oki_stream *stream, struct oki_cuda_plan *plan, uint32_t few,
			     const struct oki_cuda_table **ret_table)
{
	bool all = !is_shared(plan);
	struct oki_cuda_table *table = &plan->tables[all];
	*ret_table = table;
	if (table->host)
		return CUDA_SUCCESS;
	if (all)
		return table_build(stream, plan->runs, plan->run_count, &plan->all, few,
				   plan->few[1], table);
	const struct oki_run *rest = plan->sorted ? plan->sorted + plan->run_count : NULL;
	return table_build(stream, rest, plan->run_count - plan->long_count, &plan->rest, few,
			   plan->few[0], table);
}

uint32_t oki_cuda_plan_long(const struct oki_cuda_plan *plan, const struct oki_run **ret_runs,
			    uint64_t *ret_rows)
{
	if (!is_shared(plan))
		return 0;
	*ret_runs = plan->sorted ? plan->sorted : plan->runs;
	*ret_rows = plan->all.rows - plan->rest.rows;
	return plan->long_count;
}

/* The last byte of these layers in any block. */
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

static bool has_cut_block(const struct oki_device *device, const struct oki_cuda_plan *plan,
			  uint64_t end)
{
	for (uint32_t i = 0; i < plan->run_count; i++)
		for (uint32_t o = 0; o < plan->runs[i].blocks; o++)
			if (oki_cuda_straddles(
				    device, plan->runs[i].host + o * plan->runs[i].host_pitch, end))
				return true;
	return false;
}

bool oki_cuda_plan_straddles(const struct oki_device *device, struct oki_cuda_plan *plan,
			     const struct oki_layer_map *const *maps, uint32_t map_count)
{
	if (!device->in_pieces)
		return false;
	uint64_t end = block_end(plan, maps, map_count);
	if (end > plan->sound_to && end < plan->cut_from) {
		if (has_cut_block(device, plan, end))
			plan->cut_from = end;
		else
			plan->sound_to = end;
	}
	return end >= plan->cut_from;
}

/* Fork was recorded after the plan was made: what was queued before, by another plan, may be of the
 * same layers. */
CUresult oki_cuda_plan_fork(struct oki_stream *stream, struct oki_cuda_plan *plan)
{
	if (plan->forked)
		return CUDA_SUCCESS;
	CUresult result = stream->device->api->stream_wait_event(stream->side, stream->fork, 0);
	plan->forked = result == CUDA_SUCCESS;
	return result;
}
