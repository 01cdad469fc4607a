/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Turns rows into copy-engine operations: few 2-D copies, and batched calls for the rest. */
#include "device/cuda/cuda_device.h"

#include "base/error.h"
#include "device/rect.h"

/* Most entries of a call. A call costs the copy engine about 2 us besides its entries, and much
 * longer calls cost more for each entry. */
#define BATCH_MAX 256u
/* Entries of the first call of a stream with nothing queued. An engine starts a call only when it
 * has all its entries, so the first calls are short. Each has twice the entries of the one before,
 * which is copied meanwhile. */
#define BATCH_FIRST 16u

/* Most bytes of an operation. Copy engines finish one before they take another stream's. This takes
 * 0.6 ms on the link, beside which the operation's own cost is small. */
#define LONGEST_COPY (32u << 20)

/* Measured on an H200, in ns: the cost of an operation besides its bytes; of an entry of a batched
 * call besides its bytes; the least of an entry with its bytes; and the additional cost of an entry
 * whose neighbours lie elsewhere. */
#define COPY_NS 3000.0
#define ENTRY_NS 150.0
#define ENTRY_LEAST_NS 800.0
#define SCATTERED_NS 30.0

struct emitter {
	const struct oki_cuda_api *api; /* NULL: count only */
	double link;
	CUstream stream;
	enum oki_direction direction;
	bool batch;		   /* the driver has batched calls */
	struct oki_cuda_span span; /* around the last host address */
	struct oki_cuda_work work; /* so far; entries count when they are flushed */
	uint32_t count;		   /* entries collected */
	uint32_t most;		   /* entries of the next call at most */
	uint64_t pending;	   /* bytes of the collected entries */
	CUdeviceptr to[BATCH_MAX];
	CUdeviceptr from[BATCH_MAX];
	size_t bytes[BATCH_MAX];
};

static double entry_ns(const struct emitter *e, uint64_t bytes)
{
	double ns = ENTRY_NS + (double)bytes / e->link;
	return ns > ENTRY_LEAST_NS ? ns : ENTRY_LEAST_NS;
}

static CUresult emit_1d(struct emitter *e, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	if (!e->api)
		return CUDA_SUCCESS;
	if (e->direction == OKI_TO_PAGES)
		return e->api->copy_to_device(to, (const void *)(uintptr_t)from, bytes, e->stream);
	return e->api->copy_to_host((void *)(uintptr_t)to, from, bytes, e->stream);
}

static CUresult emit_batch(struct emitter *e)
{
#if OKI_CUDA_HAS_BATCH
	CUmemcpyAttributes attributes = {
		.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
	};
	size_t first = 0, failed = 0;
	if (!e->api)
		return CUDA_SUCCESS;
	if (e->api->copy_batch)
		return e->api->copy_batch(e->to, e->from, e->bytes, e->count, &attributes, &first,
					  1, e->stream);
	return e->api->copy_batch_12(e->to, e->from, e->bytes, e->count, &attributes, &first, 1,
				     &failed, e->stream);
#else
	(void)e;
	return CUDA_SUCCESS;
#endif
}

static CUresult flush(struct emitter *e)
{
	CUresult result = CUDA_SUCCESS;
	e->work.operations += e->count;
	if (e->count > 1 && e->batch)
		result = emit_batch(e);
	else
		for (uint32_t i = 0; i < e->count && result == CUDA_SUCCESS; i++)
			result = emit_1d(e, e->to[i], e->from[i], e->bytes[i]);
	e->count = 0;
	e->pending = 0;
	e->most = e->most < BATCH_MAX / 2 ? 2 * e->most : BATCH_MAX;
	return result;
}

/* How many of these bytes, from the first one on, lie in the same registration. */
static uint64_t bytes_in_registration(struct emitter *e, const uint8_t *host, uint64_t bytes)
{
	uintptr_t at = (uintptr_t)host;
	if (at < e->span.from || at >= e->span.to)
		oki_cuda_span(host, &e->span);
	uint64_t left = e->span.to - at;
	return left < bytes ? left : bytes;
}

static CUresult add_row(struct emitter *e, uint8_t *host, uint8_t *device, uint64_t bytes)
{
	bool to_pages = e->direction == OKI_TO_PAGES;
	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < LONGEST_COPY ? bytes - at : LONGEST_COPY;
		n = bytes_in_registration(e, host + at, n);
		e->to[e->count] = (CUdeviceptr)(to_pages ? device : host) + at;
		e->from[e->count] = (CUdeviceptr)(to_pages ? host : device) + at;
		e->bytes[e->count] = n;
		e->pending += n;
		bool full = ++e->count == e->most || e->pending >= LONGEST_COPY;
		CUresult result = full ? flush(e) : CUDA_SUCCESS;
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* Rows at one constant distance. */
struct rows {
	uint8_t *host;
	uint8_t *device;
	uint64_t width;
	uint64_t count;
	uint64_t host_pitch;
	uint64_t device_pitch;
};

static bool fits_2d(const struct rows *rows)
{
	return rows->host_pitch >= rows->width && rows->device_pitch >= rows->width &&
	       rows->host_pitch <= OKI_CUDA_MAX_PITCH && rows->device_pitch <= OKI_CUDA_MAX_PITCH;
}

static CUresult emit_2d(struct emitter *e, const struct rows *rows, uint64_t first, uint64_t count)
{
	uint8_t *host = rows->host + first * rows->host_pitch;
	uint8_t *device = rows->device + first * rows->device_pitch;
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = host,
		.srcPitch = rows->host_pitch,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = (CUdeviceptr)device,
		.dstPitch = rows->device_pitch,
		.WidthInBytes = rows->width,
		.Height = count,
	};
	if (e->direction == OKI_TO_BLOCKS) {
		copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		copy.srcHost = NULL;
		copy.srcDevice = (CUdeviceptr)device;
		copy.srcPitch = rows->device_pitch;
		copy.dstMemoryType = CU_MEMORYTYPE_HOST;
		copy.dstDevice = 0;
		copy.dstHost = host;
		copy.dstPitch = rows->host_pitch;
	}
	e->work.operations++;
	return e->api ? e->api->copy_2d(&copy, e->stream) : CUDA_SUCCESS;
}

/* How many of `most` rows, from `first` on, lie in one registration as a whole. */
static uint64_t rows_in_registration(struct emitter *e, const struct rows *rows, uint64_t first,
				     uint64_t most)
{
	uint64_t bytes = (most - 1) * rows->host_pitch + rows->width;
	uint64_t inside = bytes_in_registration(e, rows->host + first * rows->host_pitch, bytes);
	if (inside == bytes)
		return most;
	return inside < rows->width ? 0 : (inside - rows->width) / rows->host_pitch + 1;
}

static CUresult add_2d(struct emitter *e, const struct rows *rows)
{
	/* Every row has bytes. NOLINTNEXTLINE(clang-analyzer-core.DivideZero) */
	uint64_t most = LONGEST_COPY / rows->width;
	if (most == 0)
		most = 1;
	for (uint64_t first = 0, n; first < rows->count; first += n) {
		uint64_t left = rows->count - first;
		CUresult result;
		n = rows_in_registration(e, rows, first, left < most ? left : most);
		if (n > 0) {
			result = emit_2d(e, rows, first, n);
		} else {
			n = 1;
			result = add_row(e, rows->host + first * rows->host_pitch,
					 rows->device + first * rows->device_pitch, rows->width);
		}
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* Would entries of a batch cost more than one 2-D copy? */
static bool is_2d_faster(const struct emitter *e, const struct rows *rows)
{
	if (!e->batch)
		return rows->count > 1;
	return (double)rows->count * entry_ns(e, rows->width) >
	       COPY_NS + (double)(rows->width * rows->count) / e->link;
}

static CUresult add_rows(struct emitter *e, const struct rows *rows)
{
	e->work.rows += rows->count;
	e->work.bytes += rows->count * rows->width;
	if (is_2d_faster(e, rows) && fits_2d(rows))
		return add_2d(e, rows);
	for (uint64_t i = 0; i < rows->count; i++) {
		CUresult result = add_row(e, rows->host + i * rows->host_pitch,
					  rows->device + i * rows->device_pitch, rows->width);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* Loop over the shorter of the two dimensions, so that there are fewer 2-D copies. */
static CUresult add_rect(struct emitter *e, const struct oki_rect *r)
{
	bool by_outer = r->outer <= r->inner;
	uint64_t rounds = by_outer ? r->outer : r->inner;
	for (uint64_t i = 0; i < rounds; i++) {
		struct rows rows = {
			.host = r->host + i * (by_outer ? r->host_outer : r->host_inner),
			.device = r->device + i * (by_outer ? r->device_outer : r->device_inner),
			.width = r->width,
			.count = by_outer ? r->inner : r->outer,
			.host_pitch = by_outer ? r->host_inner : r->host_outer,
			.device_pitch = by_outer ? r->device_inner : r->device_outer,
		};
		CUresult result = add_rows(e, &rows);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

static CUresult add_run(struct emitter *e, const struct oki_layer_map *map,
			const struct oki_run *run)
{
	for (uint32_t s = 0; s < map->segment_count; s++) {
		struct oki_rect rect = oki_rect(map, run, s);
		CUresult result = add_rect(e, &rect);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/*
 * Layers at a constant distance on each side. Where they are adjacent on both sides, as in a tensor
 * whose pages hold all layers, they are one layer with longer rows. Otherwise one 2-D copy can take
 * a row of all layers, which is better than a copy for each layer if there are fewer rows than
 * layers.
 */
struct stack {
	uint32_t layers; /* 1: copy each layer alone */
	uint64_t host_pitch;
	uint64_t device_pitch;
	struct oki_layer_map fused; /* segment_count 0: they are not adjacent */
	/* The first layer, [1] with segments joined for joinable runs, and when stacking is
	 * faster. */
	struct stacking {
		struct oki_layer_map map;
		bool single;	    /* for a run of one row */
		uint64_t row_limit; /* for runs of at least two rows and fewer than this */
	} kinds[2];
};

/* One row of a run in all layers; two equal segments become the inner loop. */
static struct oki_rect stack_rect(const struct stack *stack, const struct oki_layer_map *map,
				  const struct oki_rect *row, uint32_t segment)
{
	const struct oki_segment_map *segs = &map->segments[segment];
	struct oki_rect r = {
		.host = row->host,
		.device = row->device,
		.width = row->width,
		.outer = stack->layers,
		.host_outer = stack->host_pitch,
		.device_outer = stack->device_pitch,
		.inner = 1,
	};
	if (segment == 0 && map->segment_count == 2 && segs[0].bytes == segs[1].bytes &&
	    segs[1].page_offset > segs[0].page_offset &&
	    segs[1].block_offset > segs[0].block_offset) {
		r.inner = 2;
		r.host_inner = segs[1].block_offset - segs[0].block_offset;
		r.device_inner = segs[1].page_offset - segs[0].page_offset;
	}
	oki_rect_merge_outer(&r);
	return r;
}

static CUresult add_stacked(struct emitter *e, const struct stack *stack,
			    const struct oki_layer_map *map, const struct oki_run *run)
{
	CUresult result = CUDA_SUCCESS;
	struct oki_run one = *run;
	one.blocks = one.inner = 1;
	one.host_pitch = one.page_pitch = one.inner_step = 0;
	for (uint32_t o = 0; o < run->blocks; o++)
		for (uint32_t j = 0; j < run->inner; j++) {
			one.host = run->host + o * run->host_pitch;
			one.page = run->page + o * run->page_pitch + j * run->inner_step;
			one.inner_first = run->inner_first + j;
			for (uint32_t s = 0; s < map->segment_count; s++) {
				struct oki_rect row = oki_rect(map, &one, s);
				struct oki_rect rect = stack_rect(stack, map, &row, s);
				result = add_rect(e, &rect);
				if (result != CUDA_SUCCESS)
					return result;
				s += rect.inner > 1 && s == 0 && map->segment_count == 2;
			}
		}
	return result;
}

/* The number of 2-D copies for one row in all layers. */
static uint64_t row_copies(const struct stack *stack, const struct oki_layer_map *map)
{
	struct oki_rect row = {.width = map->segments[0].bytes};
	struct oki_rect rect = stack_rect(stack, map, &row, 0);
	if (rect.inner == 1)
		return map->segment_count;
	return rect.outer < rect.inner ? rect.outer : rect.inner;
}

/* When is a copy for each row in all layers faster than copies of all rows for each layer? */
static void set_limits(const struct emitter *e, const struct stack *stack, struct stacking *kind)
{
	uint64_t bytes = kind->map.segments[0].bytes, copies = row_copies(stack, &kind->map);
	uint64_t others = (uint64_t)stack->layers * kind->map.segment_count;
	double each = COPY_NS;
	kind->row_limit = (others + copies - 1) / copies;
	if (e->batch)
		each = entry_ns(e, bytes) - (double)bytes / e->link + SCATTERED_NS;
	kind->single = (double)copies * COPY_NS < (double)others * each;
}

static void stack_init(const struct emitter *e, struct stack *stack,
		       const struct oki_layer_map *const *maps, uint32_t count)
{
	stack->layers = 1;
	if (count < 2 ||
	    oki_layers_alike(maps, count, &stack->host_pitch, &stack->device_pitch) < count)
		return;
	stack->layers = count;
	stack->kinds[0].map = *maps[0];
	struct oki_layer_map *joined = &stack->kinds[1].map;
	oki_join_segments(maps[0], joined);
	for (int k = 0; k < 2; k++)
		set_limits(e, stack, &stack->kinds[k]);
	stack->fused = *joined;
	stack->fused.segments[0].bytes *= count;
	if (joined->segment_count > 1 || joined->segments[0].bytes != stack->host_pitch ||
	    joined->segments[0].bytes != stack->device_pitch)
		stack->fused.segment_count = 0;
	/* A 2-D copy has no such pitch. */
	if (!stack->fused.segment_count &&
	    (stack->host_pitch > OKI_CUDA_MAX_PITCH || stack->device_pitch > OKI_CUDA_MAX_PITCH))
		stack->layers = 1;
}

static bool is_stacked(const struct stack *stack, const struct oki_run *run)
{
	if (stack->layers == 1)
		return false;
	bool joinable = oki_run_is_joinable(run);
	const struct stacking *kind = &stack->kinds[joinable];
	uint64_t rows = oki_run_rows(run);
	if (joinable && stack->fused.segment_count)
		return true;
	return rows == 1 ? kind->single : rows < kind->row_limit;
}

/* One run in all layers of a stack. */
static CUresult add_run_stacked(struct emitter *e, const struct stack *stack,
				const struct oki_run *run)
{
	bool joinable = oki_run_is_joinable(run);
	if (joinable && stack->fused.segment_count)
		return add_run(e, &stack->fused, run);
	return add_stacked(e, stack, &stack->kinds[joinable].map, run);
}

/* Every step-th run. */
struct some_runs {
	const struct oki_run *runs;
	uint32_t count;
	uint32_t step;
};

/* The runs that are stacked, in all layers. */
static CUresult add_stack(struct emitter *e, const struct stack *stack, struct some_runs some)
{
	CUresult result = CUDA_SUCCESS;
	for (uint32_t i = 0; i < some.count && result == CUDA_SUCCESS && stack->layers > 1;
	     i += some.step)
		if (is_stacked(stack, &some.runs[i]))
			result = add_run_stacked(e, stack, &some.runs[i]);
	return result;
}

/* The runs that are not stacked, in one layer. */
static CUresult add_layer(struct emitter *e, const struct stack *stack,
			  const struct oki_layer_map *map, struct some_runs some)
{
	CUresult result = CUDA_SUCCESS;
	struct oki_layer_map joined;
	oki_join_segments(map, &joined);
	for (uint32_t i = 0; i < some.count && result == CUDA_SUCCESS; i += some.step) {
		const struct oki_run *run = &some.runs[i];
		if (!is_stacked(stack, run))
			result = add_run(e, oki_run_is_joinable(run) ? &joined : map, run);
	}
	return result;
}

/* Layers that one operation may span. */
static CUresult add_span(struct emitter *e, const struct oki_layer_map *const *maps,
			 uint32_t map_count, struct some_runs some)
{
	struct stack stack;
	stack_init(e, &stack, maps, map_count);
	CUresult result = add_stack(e, &stack, some);
	for (uint32_t m = 0; m < map_count && result == CUDA_SUCCESS; m++)
		result = add_layer(e, &stack, maps[m], some);
	return result;
}

static CUresult add_all(struct emitter *e, const struct oki_layer_map *const *maps,
			uint32_t map_count, const uint32_t *spans, struct some_runs some)
{
	CUresult result = CUDA_SUCCESS;
	for (uint32_t first = 0, n; first < map_count && result == CUDA_SUCCESS; first += n) {
		n = spans ? spans[first] : 1;
		result = add_span(e, maps + first, n, some);
	}
	return result;
}

static void emitter_init(struct emitter *e, const struct oki_device *device, CUstream stream,
			 enum oki_direction direction)
{
	e->api = stream ? device->api : NULL;
	e->link = device->link[direction];
	e->stream = stream;
	e->direction = direction;
	e->batch = oki_cuda_has_batch(device->api);
	/* Counting ignores where registrations end. */
	e->span = (struct oki_cuda_span){0, stream ? 0 : UINTPTR_MAX};
	e->work = (struct oki_cuda_work){0};
	e->count = 0;
	e->pending = 0;
	e->most = BATCH_MAX;
}

bool oki_cuda_has_batch(const struct oki_cuda_api *api)
{
#if OKI_CUDA_HAS_BATCH
	return api->copy_batch || api->copy_batch_12;
#else
	(void)api;
	return false;
#endif
}

void oki_cuda_count(const struct oki_device *device, enum oki_direction direction,
		    const struct oki_layer_map *const *maps, uint32_t map_count,
		    const struct oki_run *runs, uint32_t run_count, uint32_t step,
		    struct oki_cuda_counts *ret_counts)
{
	struct some_runs some = {runs, run_count, step};
	struct emitter e;
	struct stack stack;
	emitter_init(&e, device, NULL, direction);
	stack_init(&e, &stack, maps, map_count);
	add_stack(&e, &stack, some);
	flush(&e);
	ret_counts->spanning = e.work;
	e.work = (struct oki_cuda_work){0};
	add_layer(&e, &stack, maps[0], some);
	flush(&e);
	ret_counts->single = e.work;
}

int oki_cuda_copy(const struct oki_device *device, const struct oki_cuda_queue *queue,
		  const struct oki_layer_map *const *maps, uint32_t map_count,
		  const uint32_t *spans, const struct oki_run *runs, uint32_t run_count,
		  struct okv_error *err)
{
	struct emitter e;
	emitter_init(&e, device, queue->stream, queue->direction);
	if (queue->empty)
		e.most = BATCH_FIRST;
	struct some_runs all = {runs, run_count, 1};
	CUresult result = add_all(&e, maps, map_count, spans, all);
	if (result == CUDA_SUCCESS)
		result = flush(&e);
	if (result == CUDA_SUCCESS)
		return 0;
	return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, device->api, result,
			     "the GPU did not accept a copy");
}
