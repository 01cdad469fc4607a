/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Submits layers by the chosen copy path, with their events. */
#include "device/cuda/cuda_device.h"

#include "base/error.h"
#include "device/rect.h"

/*
 * Most bytes of a stretch of more than one layer: about what the link moves in 20 us, the time that
 * one or two copies take to start. The first stretches of an operation are shorter, so that copies
 * start, and the first layer is ready, sooner.
 */
#define STRETCH_BYTES (1u << 20)

/* What layers of one group share. */
struct group {
	const struct oki_run *runs;
	uint32_t run_count;
	uint64_t rows;
	struct oki_cuda_plan *plan; /* NULL: no memory */
};

struct job {
	struct oki_stream *stream;
	enum oki_direction direction;
	const struct oki_layer_copy *layers;
	uint32_t layer_count;
	struct okv_error *err;
	struct group groups[OKV_MAX_GROUPS];
	uint32_t group_count;
	/* By layer: */
	uint8_t group[OKI_JOIN_MAX];
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	struct oki_cuda_plan *plans[OKI_JOIN_MAX];
};

static int refused(const struct job *j, CUresult result)
{
	return oki_cuda_fail(j->err, OKV_E_COPY, OKV_STAGE_SUBMIT, j->stream->device->api, result,
			     "the GPU did not accept a copy");
}

static uint64_t layer_bytes(const struct job *j, uint32_t layer)
{
	return j->groups[j->group[layer]].rows * oki_layer_row_bytes(j->maps[layer]);
}

/* The end of the stretch that begins with layer `first`; `done` stretches came before it. */
static uint32_t stretch_end(const struct job *j, uint32_t first, uint32_t layer_count,
			    uint32_t done)
{
	uint64_t most = STRETCH_BYTES >> (done < 2 ? 2 - done : 0);
	uint64_t bytes = layer_bytes(j, first);
	uint32_t end = first + 1;
	while (end < layer_count) {
		bytes += layer_bytes(j, end);
		if (bytes > most)
			break;
		end++;
	}
	return end;
}

/* The layers of one group from first to end, end excluded. */
static uint32_t layers_of(const struct job *j, uint32_t group, uint32_t first, uint32_t end,
			  const struct oki_layer_map **ret_maps)
{
	uint32_t count = 0;
	for (uint32_t i = first; i < end; i++)
		if (j->group[i] == group)
			ret_maps[count++] = j->maps[i];
	return count;
}

/* Layers first to end, end excluded. */
static bool has_events(const struct job *j, uint32_t first, uint32_t end)
{
	for (uint32_t i = first; i < end; i++)
		if (j->layers[i].event)
			return true;
	return false;
}

static CUresult record(const struct job *j, CUstream queue, uint32_t first, uint32_t end)
{
	CUresult result = CUDA_SUCCESS;
	for (uint32_t i = first; i < end && result == CUDA_SUCCESS; i++)
		if (j->layers[i].event)
			result = j->stream->device->api->event_record(j->layers[i].event, queue);
	return result;
}

/* ---- copy engines ---- */

/* Layers of one group. */
static int copy_engines(const struct job *j, const struct oki_layer_map *const *maps,
			uint32_t map_count, const struct group *group)
{
	struct oki_stream *stream = j->stream;
	const struct oki_cuda_queue queue = {stream->stream, j->direction,
					     stream->copying[j->direction] == 0};
	uint32_t spans[OKI_JOIN_MAX];
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < map_count; i++)
		bytes += group->rows * oki_layer_row_bytes(maps[i]);
	stream->copying[j->direction] += bytes;
	atomic_fetch_add_explicit(&stream->device->copying[j->direction], bytes,
				  memory_order_relaxed);
	for (uint32_t first = 0; first < map_count; first += spans[first])
		spans[first] = oki_cuda_stackable(stream->device, maps + first, map_count - first);
	return oki_cuda_copy(stream->device, &queue, maps, map_count, spans, group->runs,
			     group->run_count, j->err);
}

/* One group after the other, although a hybrid model's layers alternate between groups: operations
 * that span more layers are fewer. */
static int copy_groups(const struct job *j, uint32_t layer_count)
{
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	int rc = 0;
	for (uint32_t g = 0; g < j->group_count && rc >= 0; g++) {
		uint32_t count = layers_of(j, g, 0, layer_count, maps);
		if (count)
			rc = copy_engines(j, maps, count, &j->groups[g]);
	}
	return rc;
}

/* Submits one stretch, so that the caller learns of its layers before the next one is submitted. */
static int by_engines(const struct job *j, uint32_t layer_count)
{
	/* Without events nobody waits for single layers, so all are one stretch: fewer operations.
	 */
	uint32_t end = layer_count;
	if (has_events(j, 0, end))
		end = stretch_end(j, 0, end, j->stream->stretches);
	j->stream->stretches++;
	/* These copies follow kernels of an earlier piece or part; the next kernel follows them. */
	CUresult result = oki_cuda_join(j->stream);
	j->stream->kernels = 0;
	if (result != CUDA_SUCCESS)
		return refused(j, result);
	int rc = copy_groups(j, end);
	if (rc < 0)
		return rc;
	result = record(j, j->stream->stream, 0, end);
	return result == CUDA_SUCCESS ? (int)end : refused(j, result);
}

/* ---- the kernel ---- */

/* G8: the side stream continues once the kernel has copied the signal's layers. */
static CUresult queue_events(const struct job *j, const struct oki_cuda_signal *signal,
			     uint32_t layers)
{
	struct oki_stream *stream = j->stream;
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = CUDA_SUCCESS;
	/* The fork is behind the copy that initialises the counters; before that their values are
	 * undefined. */
	if (!stream->side_counts)
		result = api->stream_wait_event(stream->side, stream->fork, 0);
	stream->side_counts |= result == CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = api->stream_wait_value(
			stream->side, stream->counters + signal->counter * sizeof(uint32_t),
			signal->count, CU_STREAM_WAIT_VALUE_GEQ);
	return result == CUDA_SUCCESS ? record(j, stream->side, 0, layers) : result;
}

static uint32_t next_layers(const struct oki_cuda_pending *pending)
{
	return pending->signals[pending->next].end - pending->layers;
}

/* Queue the events of the next signal's layers behind it. Returns the number of these layers. */
static int queue_next_events(const struct job *j)
{
	struct oki_stream *stream = j->stream;
	struct oki_cuda_pending *p = &stream->pending;
	const struct oki_cuda_signal *signal = &p->signals[p->next];
	uint32_t layers = next_layers(p);
	CUresult result = CUDA_SUCCESS;
	if (has_events(j, 0, layers)) {
		stream->side_open = true;
		result = queue_events(j, signal, layers);
	}
	p->layers = signal->end;
	if (++p->next == p->count)
		p->count = 0;
	return result == CUDA_SUCCESS ? (int)layers : refused(j, result);
}

/* Find the ends of stretches. NULL if no layer has an event, so that none is needed. */
static const bool *set_ends(const struct job *j, uint32_t layer_count, bool ends[OKI_JOIN_MAX])
{
	if (!has_events(j, 0, layer_count))
		return NULL;
	for (uint32_t first = 0; first < layer_count;) {
		uint32_t end = stretch_end(j, first, layer_count, j->stream->stretches++);
		for (uint32_t i = first; i < end; i++)
			ends[i] = i + 1 == end;
		first = end;
	}
	return ends;
}

/* Without counters a layer's event can only follow a whole kernel, so each stretch gets a kernel.
 */
static int by_kernel_alone(const struct job *j, const struct oki_cuda_table *const *tables,
			   uint32_t layer_count)
{
	uint32_t end = layer_count, none;
	if (has_events(j, 0, layer_count))
		end = stretch_end(j, 0, layer_count, j->stream->stretches);
	j->stream->stretches++;
	CUresult result = oki_cuda_kernel_copy(j->stream, j->direction, tables, j->maps, NULL, end,
					       NULL, &none);
	if (result == CUDA_SUCCESS)
		result = record(j, j->stream->stream, 0, end);
	return result == CUDA_SUCCESS ? (int)end : refused(j, result);
}

/* Launch one kernel for all layers, or more if their segments do not fit one launch. This and later
 * calls return the stretches one by one. */
static CUresult launch_all(const struct job *j, const struct oki_cuda_table *const *tables,
			   uint32_t layer_count)
{
	struct oki_stream *stream = j->stream;
	struct oki_cuda_pending *p = &stream->pending;
	bool ends[OKI_JOIN_MAX];
	const bool *some = set_ends(j, layer_count, ends);
	stream->stretches++;
	CUresult result = oki_cuda_kernel_copy(stream, j->direction, tables, j->maps, some,
					       layer_count, p->signals, &p->count);
	if (result != CUDA_SUCCESS) {
		p->count = 0;
		return result;
	}
	p->next = p->layers = 0;
	if (!some)
		p->signals[p->count++] = (struct oki_cuda_signal){.end = layer_count};
	return result;
}

/* The table of each layer. */
static CUresult find_tables(const struct job *j, uint32_t layer_count,
			    const struct oki_cuda_table **ret_tables)
{
	CUresult result = CUDA_SUCCESS;
	/* There is a layer, so there is a group. NOLINTNEXTLINE(clang-analyzer-core.DivideZero) */
	const uint32_t few = OKI_GATHER_INLINE_ROWS / j->group_count;
	for (uint32_t i = 0; i < layer_count && result == CUDA_SUCCESS; i++)
		result = oki_cuda_plan_table(j->stream, j->plans[i], few, &ret_tables[i]);
	return result;
}

static int by_kernel(const struct job *j, uint32_t layer_count)
{
	const struct oki_cuda_table *tables[OKI_JOIN_MAX];
	CUresult result = find_tables(j, layer_count, tables);
	/* No memory for a table: copy engines need none. */
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		j->stream->by_kernel = false;
		return by_engines(j, layer_count);
	}
	if (result == CUDA_SUCCESS && !j->stream->counters)
		return by_kernel_alone(j, tables, layer_count);
	if (result == CUDA_SUCCESS)
		result = launch_all(j, tables, layer_count);
	return result == CUDA_SUCCESS ? queue_next_events(j) : refused(j, result);
}

/* ---- the choice of a copy path ---- */

static struct group *find_group(struct job *j, const struct oki_layer_copy *layer)
{
	uint32_t i = 0;
	while (i < j->group_count &&
	       (j->groups[i].runs != layer->runs || j->groups[i].run_count != layer->run_count))
		i++;
	struct group *group = &j->groups[i];
	if (i < j->group_count)
		return group;
	j->group_count++;
	*group = (struct group){.runs = layer->runs, .run_count = layer->run_count};
	group->plan = oki_cuda_plan_get(j->stream, layer->runs, layer->run_count);
	/* The plan counts rows once, so that the CPU time of later layers does not depend on the
	 * number of blocks. */
	group->rows = group->plan ? oki_cuda_plan_rows(group->plan)
				  : oki_cuda_table_rows(layer->runs, layer->run_count);
	return group;
}

static void sort_by_group(struct job *j)
{
	for (uint32_t i = 0; i < j->layer_count; i++) {
		struct group *group = find_group(j, &j->layers[i]);
		j->group[i] = (uint8_t)(group - j->groups);
		j->maps[i] = j->layers[i].map;
		j->plans[i] = group->plan;
	}
}

/* Can the kernel copy these layers? It needs prepared runs, counts tiles in 32 bits, and gets one
 * address for a block. */
static bool kernel_supports(const struct job *j)
{
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	for (uint32_t g = 0; g < j->group_count; g++) {
		const struct group *group = &j->groups[g];
		if (!group->plan || group->rows > OKI_CUDA_ROWS_MAX)
			return false;
		uint32_t count = layers_of(j, g, 0, j->layer_count, maps);
		if (oki_cuda_plan_crosses_registration(j->stream->device, group->plan, maps, count))
			return false;
	}
	return true;
}

/* The work of copy engines for all layers of the call. */
static struct oki_cuda_work engines_work(const struct job *j)
{
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	struct oki_cuda_work work = {0};
	bool events = has_events(j, 0, j->layer_count);
	for (uint32_t g = 0, first = 0; g < j->group_count; g++) {
		while (j->group[first] != g)
			first++;
		/* The first stretches are shorter than usual: use the length of later ones. */
		uint32_t last = events ? stretch_end(j, first, j->layer_count, 2) : j->layer_count;
		uint32_t together = layers_of(j, g, first, last, maps);
		uint32_t count = layers_of(j, g, first, j->layer_count, maps);
		oki_cuda_plan_work(j->stream, j->direction, j->groups[g].plan, maps, count,
				   together, &work);
	}
	return work;
}

static bool suits_engines(const struct job *j)
{
	struct oki_stream *stream = j->stream;
	struct oki_device *device = stream->device;
	uint64_t copying =
		atomic_load_explicit(&device->copying[j->direction], memory_order_relaxed);
	struct oki_cuda_work work = engines_work(j);
	const struct oki_cuda_beside beside = {
		.batch = oki_cuda_has_batch(device->api),
		.wait_ns = oki_cuda_probe_wait(&device->probe),
		.engines_busy = copying > stream->copying[j->direction],
	};
	return oki_cuda_suits_engines(&work, &beside);
}

/* Once for a piece: its later calls have less to copy, and a stream that changes its copy path
 * waits. */
static void choose_copy_path(const struct job *j)
{
	struct oki_stream *stream = j->stream;
	if (stream->chosen && (!stream->by_kernel || kernel_supports(j)))
		return;
	stream->by_kernel = stream->device->path != OKV_COPY_DMA && kernel_supports(j) &&
			    (stream->device->path == OKV_COPY_KERNEL || !suits_engines(j));
	stream->chosen = true;
}

int oki_cuda_submit(struct oki_stream *stream, enum oki_direction direction,
		    const struct oki_layer_copy *layers, uint32_t layer_count,
		    struct okv_error *err)
{
	struct job j = {
		.stream = stream,
		.direction = direction,
		.layers = layers,
		.layer_count = stream->pending.count ? next_layers(&stream->pending) : layer_count,
		.err = err,
	};
	if (direction == OKI_TO_PAGES)
		oki_cuda_restores(stream, true);
	stream->side_last = false;
	sort_by_group(&j);
	if (stream->pending.count)
		return queue_next_events(&j);
	choose_copy_path(&j);
	return stream->by_kernel ? by_kernel(&j, layer_count) : by_engines(&j, layer_count);
}
