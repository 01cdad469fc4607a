/* [B] Copies by copy engines, by the kernel or by both, and the events of their layers. */
#include "device/cuda_device.h"

#include "base/error.h"
#include "device/rect.h"

/*
 * Layers that become ready together: while they have at most this many bytes, about what the link
 * moves in 20 us, which is what an operation or two cost to start. The first stretches of an
 * operation are shorter: copies start, and the first layer is ready, sooner.
 */
#define STRETCH_BYTES (1u << 20)

struct job {
	struct oki_stream *stream;
	enum oki_direction direction;
	const struct oki_layer_map *const *maps;
	CUevent const *events; /* of each layer, NULL entries; or NULL */
	uint64_t rows;
	const struct oki_run *runs;
	uint32_t run_count;
	struct okv_error *err;
};

static int refused(const struct job *j, CUresult result)
{
	return oki_cuda_fail(j->err, OKV_E_COPY, OKV_STAGE_SUBMIT, j->stream->device->api, result,
			     "the GPU did not accept a copy");
}

/* The end of the stretch that begins with layer `first`, the one after `done` others. */
static uint32_t stretch_end(const struct job *j, uint32_t first, uint32_t map_count, uint32_t done)
{
	uint64_t most = STRETCH_BYTES >> (done < 2 ? 2 - done : 0);
	uint64_t bytes = j->rows * oki_layer_row_bytes(j->maps[first]);
	uint32_t end = first + 1;
	while (end < map_count) {
		bytes += j->rows * oki_layer_row_bytes(j->maps[end]);
		if (bytes > most)
			break;
		end++;
	}
	return end;
}

/* Layers first to end, end excluded. */
static bool has_events(const struct job *j, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end && j->events; i++)
		if (j->events[i])
			return true;
	return false;
}

static CUresult record(const struct job *j, CUstream queue, uint32_t first, uint32_t end)
{
	CUresult result = CUDA_SUCCESS;
	for (uint32_t i = first; i < end && j->events && result == CUDA_SUCCESS; i++)
		if (j->events[i])
			result = j->stream->device->api->event_record(j->events[i], queue);
	return result;
}

/* All runs of the job, or those for copy engines beside the kernel. */
struct share {
	const struct oki_run *runs;
	uint32_t run_count;
	uint64_t rows;
};

/* The first layers up to `end`. */
static int copy_engines(const struct job *j, CUstream queue, uint32_t end,
			const struct share *share)
{
	struct oki_device *device = j->stream->device;
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < end; i++)
		bytes += share->rows * oki_layer_row_bytes(j->maps[i]);
	j->stream->copying += bytes;
	atomic_fetch_add_explicit(&device->copying, bytes, memory_order_relaxed);
	return oki_cuda_copy(device->api, &device->rates[j->direction], queue, j->direction,
			     j->maps, end, oki_cuda_may_stack(device, j->maps, end), share->runs,
			     share->run_count, j->err);
}

/* One stretch, so that the caller hears of its layers before the next one is submitted. */
static int by_engines(const struct job *j, uint32_t map_count)
{
	/* Nobody waits for a part of a copy without events: the more layers the fewer operations.
	 */
	uint32_t end = map_count;
	if (has_events(j, 0, map_count))
		end = stretch_end(j, 0, map_count, j->stream->stretches);
	j->stream->stretches++;
	const struct share all = {j->runs, j->run_count, j->rows};
	int rc = copy_engines(j, j->stream->stream, end, &all);
	if (rc < 0)
		return rc;
	CUresult result = record(j, j->stream->stream, 0, end);
	return result == CUDA_SUCCESS ? (int)end : refused(j, result);
}

/* G8: the side stream goes on once the kernel has copied the signal's layers. */
static CUresult follow(const struct job *j, const struct oki_cuda_signal *signal, uint32_t layers)
{
	struct oki_stream *stream = j->stream;
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = api->stream_wait_value(
		stream->side, stream->counters + signal->counter * sizeof(uint32_t), signal->count,
		CU_STREAM_WAIT_VALUE_GEQ);
	return result == CUDA_SUCCESS ? record(j, stream->side, 0, layers) : result;
}

static CUresult join_side(struct oki_stream *stream)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = api->event_record(stream->side_done, stream->side);
	return result == CUDA_SUCCESS ? api->stream_wait_event(stream->stream, stream->side_done, 0)
				      : result;
}

/* Ends of stretches, if somebody waits for one. */
static const bool *set_ends(const struct job *j, uint32_t map_count, bool ends[OKI_JOIN_MAX])
{
	if (!has_events(j, 0, map_count))
		return NULL;
	for (uint32_t first = 0; first < map_count;) {
		uint32_t end = stretch_end(j, first, map_count, j->stream->stretches++);
		for (uint32_t i = first; i < end; i++)
			ends[i] = i + 1 == end;
		first = end;
	}
	return ends;
}

/* Without counters the event of a layer can only follow a kernel: one for each stretch then. */
static int by_kernel_alone(const struct job *j, const struct oki_cuda_table *table,
			   uint32_t map_count)
{
	uint32_t end = stretch_end(j, 0, map_count, j->stream->stretches++), none;
	CUresult result = oki_cuda_kernel_copy(j->stream, j->direction, table, j->maps, NULL, end,
					       NULL, &none);
	if (result == CUDA_SUCCESS)
		result = record(j, j->stream->stream, 0, end);
	return result == CUDA_SUCCESS ? (int)end : refused(j, result);
}

/* Let the events of the next signal's layers follow it. Returns these layers. */
static int follow_next(const struct job *j, const struct share *beside)
{
	struct oki_stream *stream = j->stream;
	struct oki_cuda_pending *p = &stream->pending;
	const struct oki_cuda_signal *signal = &p->signals[p->next];
	uint32_t layers = signal->end - p->layers;
	CUresult result = CUDA_SUCCESS;
	if (beside->run_count) {
		int rc = copy_engines(j, stream->side, layers, beside);
		if (rc < 0)
			return rc;
	}
	if (has_events(j, 0, layers))
		result = follow(j, signal, layers);
	p->layers = signal->end;
	if (result == CUDA_SUCCESS && ++p->next == p->count) {
		p->count = 0;
		if (beside->run_count || p->events)
			result = join_side(stream);
	}
	return result == CUDA_SUCCESS ? (int)layers : refused(j, result);
}

/*
 * One kernel for all layers, as far as their segments fit one launch; the caller hears of each
 * stretch on its own. Runs that suit copy engines, if any, are copied by those in the side stream,
 * stretch after stretch like the kernel.
 */
static CUresult launch_all(const struct job *j, const struct oki_cuda_table *table,
			   uint32_t map_count)
{
	struct oki_stream *stream = j->stream;
	struct oki_cuda_pending *p = &stream->pending;
	bool ends[OKI_JOIN_MAX];
	const bool *some = set_ends(j, map_count, ends);
	stream->stretches++;
	CUresult result = oki_cuda_kernel_copy(stream, j->direction, table, j->maps, some,
					       map_count, p->signals, &p->count);
	if (result != CUDA_SUCCESS) {
		p->count = 0;
		return result;
	}
	p->events = some;
	p->next = p->layers = 0;
	if (!some)
		p->signals[p->count++] = (struct oki_cuda_signal){.end = map_count};
	return CUDA_SUCCESS;
}

static int by_way(const struct job *j, struct oki_cuda_plan *plan, uint32_t map_count)
{
	const struct oki_cuda_table *table;
	struct share beside = {0};
	if (j->stream->way == OKI_CUDA_WAY_DMA)
		return by_engines(j, map_count);
	bool all = j->stream->way == OKI_CUDA_WAY_KERNEL;
	CUresult result = oki_cuda_plan_table(j->stream, plan, all, &table);
	/* No room for a table: copy engines need none. */
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		j->stream->way = OKI_CUDA_WAY_DMA;
		return by_engines(j, map_count);
	}
	if (result != CUDA_SUCCESS)
		return refused(j, result);
	if (!j->stream->counters)
		return by_kernel_alone(j, table, map_count);
	if (!j->stream->pending.count)
		result = launch_all(j, table, map_count);
	if (result == CUDA_SUCCESS && !all)
		result = oki_cuda_plan_fork(j->stream, plan);
	if (result != CUDA_SUCCESS)
		return refused(j, result);
	if (!all)
		beside.run_count = oki_cuda_plan_long(plan, &beside.runs, &beside.rows);
	return follow_next(j, &beside);
}

int oki_cuda_ways_copy(struct oki_stream *stream, enum oki_direction direction,
		       const struct oki_layer_map *const *maps, CUevent const *events,
		       uint32_t map_count, const struct oki_run *runs, uint32_t run_count,
		       struct okv_error *err)
{
	struct job j = {
		.stream = stream,
		.direction = direction,
		.maps = maps,
		.events = events,
		.runs = runs,
		.run_count = run_count,
		.err = err,
	};
	struct oki_cuda_plan *plan = NULL;
	uint32_t together = map_count;
	if (stream->device->path != OKV_COPY_DMA)
		plan = oki_cuda_plan_get(stream, runs, run_count);
	/* Counted once: what later layers cost does not depend on the number of blocks. */
	j.rows = plan ? oki_cuda_plan_rows(plan) : oki_cuda_table_rows(runs, run_count);
	/* The first stretches are no measure of all. */
	if (has_events(&j, 0, map_count))
		together = stretch_end(&j, 0, map_count, 2);
	stream->way = oki_cuda_plan_choose(stream, direction, plan, maps, map_count, together);
	if (!stream->pending.count && stream->way != OKI_CUDA_WAY_DMA &&
	    oki_cuda_plan_straddles(stream->device, plan, maps, map_count))
		stream->way = OKI_CUDA_WAY_DMA;
	return by_way(&j, plan, map_count);
}
