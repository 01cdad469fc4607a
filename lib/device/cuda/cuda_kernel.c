/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Loading the copy kernel, its tables and its launches. */
#include "device/cuda/cuda_device.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "device/cuda/cuda_image.h"
#include "device/rect.h"

/* The aim: so many tiles for each lane group that all end at about the same time. */
#define PIECES_PER_GROUP 8u
#define PIECE_MAX 4096u
/* Every driver accepts so many bytes of parameters. */
static_assert(sizeof(struct oki_gather) <= 4096, "a launch");

/* So many bytes in flight from the host fill the link. More only queue up, and a layer ends later
 * for it. A short copy, though, ends sooner if it requests all its bytes early. */
#define FLIGHT_BYTES (128u << 10)
#define WORD_BYTES 16u
#define WARP 32u
/* Loads in flight of each lane in a publish: few are enough, as it reads GPU memory. */
#define PUBLISH_LOADS 2u

/*
 * A publish must not fill the link. What the GPU reads from the host, such as a model's launches,
 * waits behind what a kernel has written there: on a full link, as long as the publish lasts. SMs
 * fill a link with 0.95 of what a copy engine moves, as their writes are shorter. With slightly
 * less nothing waits. While a restore is in flight, whose requests are such reads, a publish takes
 * even less.
 */
#define PUBLISH_SHARE 0.93
/* The part of that for rows so short that lane groups of 8 or 16 lanes copy them: the host accepts
 * these less evenly. */
#define NARROW_SHARE 0.9
#define BESIDE_RESTORE_SHARE 0.74

/* The next kernel may start when so many bytes are left: about what the link moves until it runs.
 */
#define EARLY_BYTES (2u << 20)

/* Put the count of restores into memory that is mapped for the GPU. On failure it stays in
 * own_restores. Must run before any stream counts. */
static void map_restore_count(struct oki_device *device)
{
	const struct oki_cuda_api *api = device->api;
	void *word = NULL;
	if (api->host_alloc(&word, sizeof(*device->restores), CU_MEMHOSTALLOC_DEVICEMAP) !=
	    CUDA_SUCCESS)
		return;
	if (api->host_device_pointer(&device->restores_at, word, 0) != CUDA_SUCCESS) {
		device->restores_at = 0;
		api->host_free(word);
		return;
	}
	device->restores = word;
	atomic_init(device->restores, 0);
}

static void unmap_restore_count(struct oki_device *device)
{
	if (device->restores_at)
		device->api->host_free((void *)device->restores);
	device->restores_at = 0;
	device->restores = &device->own_restores;
}

int oki_cuda_kernel_load(struct oki_device *device, struct okv_error *err)
{
	static const char *const names[] = {OKI_GATHER_NAME_8, OKI_GATHER_NAME_16,
					    OKI_GATHER_NAME_32};
	const struct oki_cuda_api *api = device->api;
	if (oki_cuda_image_bytes == 0)
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
				"this library was built without nvcc: it has no copy kernel");
	CUresult result = api->module_load(&device->module, oki_cuda_image);
	for (uint32_t i = 0; i < 3 && result == CUDA_SUCCESS; i++)
		result = api->module_function(&device->gather[i], device->module, names[i]);
	/* Launch each function once without work: otherwise the driver would load it with the first
	 * copy. Not in the legacy stream, which waits for the caller's streams and breaks captures.
	 */
	CUstream stream = NULL;
	struct oki_gather none = {0};
	void *parameters[] = {&none};
	if (result == CUDA_SUCCESS)
		result = api->stream_create(&stream, CU_STREAM_NON_BLOCKING, device->priority);
	for (uint32_t i = 0; i < 3 && result == CUDA_SUCCESS; i++)
		result = api->launch(device->gather[i], 1, 1, 1, OKI_GATHER_THREADS, 1, 1, 0,
				     stream, parameters, NULL);
	if (stream)
		api->stream_destroy(stream);
	if (result == CUDA_SUCCESS) {
		map_restore_count(device);
		return 0;
	}
	oki_cuda_kernel_unload(device);
	return oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
			     "GPU %d does not load the copy kernel", device->index);
}

void oki_cuda_kernel_unload(struct oki_device *device)
{
	unmap_restore_count(device);
	if (device->module)
		device->api->module_unload(device->module);
	device->module = NULL;
	memset(device->gather, 0, sizeof(device->gather));
}

uint64_t oki_cuda_table_rows(const struct oki_run *runs, uint32_t run_count)
{
	uint64_t rows = 0;
	for (uint32_t i = 0; i < run_count; i++)
		rows += oki_run_rows(&runs[i]);
	return rows;
}

/* The registration of this address. Tries the last one first: a run lies in one arena, and so do
 * most neighbouring runs. The kernel gets only blocks that lie in one registration. */
static const struct oki_cuda_mapping *find_mapping(const struct oki_device *device,
						   const uint8_t *host,
						   const struct oki_cuda_mapping *last)
{
	static const struct oki_cuda_mapping unshifted;
	if (last && (uintptr_t)host - (uintptr_t)last->base < last->bytes)
		return last;
	for (uint32_t i = 0; i < device->mapping_count; i++) {
		const struct oki_cuda_mapping *mapping = &device->mappings[i];
		if (host >= mapping->base && host < mapping->base + mapping->bytes)
			return mapping;
	}
	return &unshifted;
}

/* Write one entry for each block. With scattered blocks the loop count is unpredictable, so two
 * entries are always written if the table has room, even for a run of one block. The next run
 * overwrites the surplus. */
static void fill_plain(const struct oki_run *run, uint64_t device_offset,
		       const struct oki_gather_row *end, struct oki_gather_row *rows)
{
	struct oki_gather_row row = {
		.host = (uint64_t)(uintptr_t)run->host + device_offset,
		.page = run->page,
		.inner = run->inner_first,
	};
	uint32_t done = 0;
	if (end - rows >= 2) {
		rows[0] = row;
		rows[1] = row;
		rows[1].host += run->host_pitch;
		rows[1].page += run->page_pitch;
		done = 2;
	}
	for (uint32_t o = done; o < run->blocks; o++) {
		rows[o] = row;
		rows[o].host += o * run->host_pitch;
		rows[o].page += o * run->page_pitch;
	}
}

/* Write the entries of any run; each block may lie in another registration. Returns their end. */
static struct oki_gather_row *fill_any(const struct oki_device *device, const struct oki_run *run,
				       const struct oki_cuda_mapping *mapping,
				       struct oki_gather_row *rows)
{
	for (uint32_t o = 0; o < run->blocks; o++) {
		const uint8_t *block = run->host + o * run->host_pitch;
		if (device->arena_split)
			mapping = find_mapping(device, block, mapping);
		for (uint32_t j = 0; j < run->inner; j++)
			*rows++ = (struct oki_gather_row){
				.host = (uint64_t)(uintptr_t)block + mapping->device_offset,
				.page = run->page + o * run->page_pitch + j * run->inner_step,
				.inner = run->inner_first + j,
			};
	}
	return rows;
}

void oki_cuda_table_fill(const struct oki_device *device, const struct oki_run *runs,
			 uint32_t run_count, uint64_t row_count, struct oki_gather_row *ret_rows)
{
	const struct oki_gather_row *end = ret_rows + row_count;
	const struct oki_cuda_mapping *mapping = NULL;
	for (uint32_t i = 0; i < run_count; i++) {
		const struct oki_run *run = &runs[i];
		mapping = find_mapping(device, run->host, mapping);
		if (run->inner == 1 && !device->arena_split) {
			fill_plain(run, mapping->device_offset, end, ret_rows);
			ret_rows += run->blocks;
		} else {
			ret_rows = fill_any(device, run, mapping, ret_rows);
		}
	}
}

static uint32_t lanes_for(uint64_t bytes)
{
	if (bytes < 1024)
		return 8;
	return bytes < 2048 ? 16 : 32;
}

static uint64_t rows_of(const struct oki_gather *g, uint32_t column)
{
	return g->tables[g->columns[column].table].count;
}

static uint64_t count_units(const struct oki_gather *g)
{
	uint64_t units = 0;
	for (uint32_t c = 0; c < g->column_count; c++)
		units += rows_of(g, c) * ((g->columns[c].bytes - 1) / g->tile + 1);
	return units;
}

/* The number of loads that a lane has in flight. */
static uint32_t loads_for(const struct oki_cuda_launch *launch, uint32_t sms, uint64_t bytes)
{
	/* Lane groups of 8 or 16 lanes have short fragments, which need few loads. */
	if (launch->lanes < WARP)
		return OKI_GATHER_LOADS;
	if (!launch->gather.to_pages)
		return sms > 1 ? PUBLISH_LOADS : OKI_GATHER_LOADS;
	uint32_t each = sms * OKI_GATHER_THREADS * WORD_BYTES;
	uint32_t loads = (FLIGHT_BYTES + each - 1) / each;
	return bytes <= OKI_CUDA_SHORT_BYTES || loads > OKI_GATHER_LOADS ? OKI_GATHER_LOADS : loads;
}

/* Choose the tile size so that every lane group has work even if there are few rows. */
static void choose_tile_size(struct oki_cuda_launch *launch, const struct oki_cuda_budget *budget)
{
	struct oki_gather *g = &launch->gather;
	uint64_t bytes = 0, longest = 0;
	for (uint32_t c = 0; c < g->column_count; c++) {
		bytes += g->columns[c].bytes * rows_of(g, c);
		if (g->columns[c].bytes > longest)
			longest = g->columns[c].bytes;
	}
	launch->lanes = lanes_for(longest);
	g->loads = loads_for(launch, budget->sms, bytes);
	launch->threads = OKI_GATHER_THREADS;
	uint64_t groups = (uint64_t)budget->sms * launch->threads / launch->lanes;
	uint64_t tile = bytes / (groups * PIECES_PER_GROUP);
	uint64_t round = launch->lanes * WORD_BYTES * g->loads;
	if (tile > PIECE_MAX)
		tile = PIECE_MAX;
	/* Above one round of loads, use whole rounds: part of a round takes as long as all of it.
	 */
	if (tile > round)
		tile -= tile % round;
	else
		tile = (tile + OKI_GATHER_TILE - 1) / OKI_GATHER_TILE * OKI_GATHER_TILE;
	/* The least tile size: rows below 2048 bytes, which smaller lane groups copy in one round,
	 * are one tile. */
	uint64_t least = launch->lanes == 32 ? OKI_GATHER_TILE : 2048;
	g->tile = (uint32_t)(tile < least ? least : tile);
	uint64_t units = count_units(g);
	while (units > OKI_CUDA_UNITS_MAX && g->tile < 1u << 30) {
		g->tile *= 2;
		units = count_units(g);
	}
	uint64_t blocks = (units * launch->lanes + launch->threads - 1) / launch->threads;
	/* At least one block, even if no layer has rows: it raises their counters. */
	launch->blocks = (uint32_t)(blocks < budget->sms ? blocks + (blocks == 0) : budget->sms);
	launch->units = (uint32_t)units;
}

static uint32_t group_count(const struct oki_cuda_launch *launch)
{
	return launch->blocks * (launch->threads / launch->lanes);
}

/* Set the tile number from which the next kernel may start: whole rounds of all lane groups before
 * the end, or 0 (at once) with fewer tiles than that. */
static void set_early(struct oki_cuda_launch *launch)
{
	struct oki_gather *g = &launch->gather;
	uint64_t groups = group_count(launch);
	g->early = 0;
	if (launch->units <= groups)
		return;
	uint64_t last = (EARLY_BYTES + groups * g->tile - 1) / (groups * g->tile) * groups;
	g->early = (uint32_t)(launch->units > last ? launch->units - last : 0);
}

/* The time of one lane group for half a line. A tile takes half a line more than its lines, so each
 * half line gets a little less than its share. */
static uint32_t pace_of(const struct oki_cuda_launch *launch, double rate)
{
	const double halves = 2.0 * PIECE_MAX / OKI_GATHER_LINE;
	double half_ns = OKI_GATHER_LINE / 2.0 / rate * halves / (halves + 1);
	if (launch->lanes < WARP)
		half_ns /= NARROW_SHARE;
	return (uint32_t)(half_ns * group_count(launch) * OKI_GATHER_PACE);
}

static void set_pace(struct oki_cuda_launch *launch, const struct oki_cuda_budget *budget)
{
	struct oki_gather *g = &launch->gather;
	g->pace = g->beside_pace = g->lasts_ns = 0;
	if (budget->rate <= 0)
		return;
	double bytes = 0;
	for (uint32_t c = 0; c < g->column_count; c++)
		bytes += (double)g->columns[c].bytes * (double)rows_of(g, c);
	double ns = bytes / budget->rate;
	g->pace = pace_of(launch, budget->rate);
	g->beside_pace = pace_of(launch, budget->beside_rate);
	g->lasts_ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

/* The index of this table in the launch, added if missing. OKI_GATHER_TABLES: no room. */
static uint32_t add_table(struct oki_cuda_launch *launch, const struct oki_cuda_table *table)
{
	struct oki_gather *g = &launch->gather;
	uint32_t at = 0, few = table->device ? 0 : table->count;
	while (at < launch->table_count && launch->tables[at] != table)
		at++;
	if (at < launch->table_count || at == OKI_GATHER_TABLES)
		return at;
	if (few > OKI_GATHER_INLINE_ROWS - launch->few_count)
		return OKI_GATHER_TABLES;
	g->tables[at] = (struct oki_gather_table){
		.rows = (const struct oki_gather_row *)(uintptr_t)table->device,
		.first = launch->few_count,
		.count = table->count,
	};
	if (few)
		memcpy(g->few + launch->few_count, table->host, few * sizeof(g->few[0]));
	launch->few_count += few;
	launch->tables[launch->table_count++] = table;
	return at;
}

/* False: no room for this layer. */
static bool add_columns(struct oki_cuda_launch *launch, const struct oki_layer_map *map,
			const struct oki_cuda_table *table)
{
	struct oki_gather *g = &launch->gather;
	struct oki_layer_map joined;
	if (table->joinable) {
		oki_join_segments(map, &joined);
		map = &joined;
	}
	if (g->column_count + map->segment_count > OKI_GATHER_COLUMNS)
		return false;
	uint32_t at = add_table(launch, table);
	if (at == OKI_GATHER_TABLES)
		return false;
	for (uint32_t s = 0; s < map->segment_count; s++) {
		const struct oki_segment_map *seg = &map->segments[s];
		g->columns[g->column_count++] = (struct oki_gather_column){
			.page0 = (uint64_t)(uintptr_t)map->base + seg->page_offset,
			.page_stride = map->page_stride,
			.block_offset = seg->block_offset,
			.bytes = (uint32_t)seg->bytes,
			.table = (uint16_t)at,
		};
	}
	return true;
}

void oki_cuda_launch_fill(const struct oki_cuda_table *const *tables, enum oki_direction direction,
			  const struct oki_layer_map *const *maps, uint32_t first,
			  uint32_t map_count, const struct oki_cuda_budget *budget,
			  struct oki_cuda_launch *ret_launch)
{
	struct oki_gather *g = &ret_launch->gather;
	g->to_pages = direction == OKI_TO_PAGES;
	g->counters = g->tickets = NULL;
	g->restores = NULL;
	g->beside = NULL;
	g->until = NULL;
	g->until_before = NULL;
	g->column_count = ret_launch->table_count = ret_launch->few_count = 0;
	ret_launch->end = first;
	while (ret_launch->end < map_count &&
	       add_columns(ret_launch, maps[ret_launch->end], tables[ret_launch->end])) {
		ret_launch->columns[ret_launch->end - first] = g->column_count;
		ret_launch->end++;
	}
	choose_tile_size(ret_launch, budget);
	set_early(ret_launch);
	set_pace(ret_launch, budget);
}

CUresult oki_cuda_launch(struct oki_device *device, CUstream stream, struct oki_cuda_launch *launch)
{
	void *parameters[] = {&launch->gather};
	uint32_t which = launch->lanes == 32 ? 2 : launch->lanes == 16;
	return device->api->launch(device->gather[which], launch->blocks, 1, 1, launch->threads, 1,
				   1, 0, stream, parameters, NULL);
}

/* A stream wait captures the event's latest record when it is queued, so one event can be reused.
 */
CUresult oki_cuda_follow(struct oki_stream *stream, CUstream later, CUstream earlier)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = api->event_record(stream->point, earlier);
	return result == CUDA_SUCCESS ? api->stream_wait_event(later, stream->point, 0) : result;
}

CUresult oki_cuda_join(struct oki_stream *stream)
{
	CUresult result = CUDA_SUCCESS;
	if (stream->side_open)
		result = oki_cuda_follow(stream, stream->stream, stream->side);
	/* If side has waited for the lane, stream now waits for it, too. */
	if (result == CUDA_SUCCESS && stream->side_open && stream->side_last)
		stream->lane_open = false;
	stream->side_open &= result != CUDA_SUCCESS;
	if (result == CUDA_SUCCESS && stream->lane_open)
		result = oki_cuda_follow(stream, stream->stream, stream->lane);
	stream->lane_open &= result != CUDA_SUCCESS;
	return result;
}

CUresult oki_cuda_record(struct oki_stream *stream, CUevent event)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = CUDA_SUCCESS;
	if (!stream->side_open && !stream->lane_open)
		return api->event_record(event, stream->stream);
	stream->side_open = true;
	if (!stream->side_last) {
		result = oki_cuda_follow(stream, stream->side, stream->stream);
		if (result == CUDA_SUCCESS && stream->lane_open)
			result = oki_cuda_follow(stream, stream->side, stream->lane);
		stream->side_last = result == CUDA_SUCCESS;
	}
	return result == CUDA_SUCCESS ? api->event_record(event, stream->side) : result;
}

/* The first kernel follows everything queued before it; the other streams start after the fork. */
static CUresult record_fork(struct oki_stream *stream)
{
	CUresult result = oki_cuda_join(stream);
	return result == CUDA_SUCCESS
		       ? stream->device->api->event_record(stream->fork, stream->stream)
		       : result;
}

/*
 * Choose the stream of the next kernel: stream and lane in turns. Unless the kernel before is
 * short, the next one waits until that has begun its last tiles. So its blocks are ready when SMs
 * become free, and the two kernels share the link only briefly, which delays neither.
 */
static CUresult next_queue(struct oki_stream *stream, CUstream *ret_queue)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = CUDA_SUCCESS;
	*ret_queue = stream->stream;
	if (stream->kernels == 0)
		return record_fork(stream);
	if (!stream->counters)
		return CUDA_SUCCESS;
	if (stream->kernels % 2) {
		*ret_queue = stream->lane;
		stream->lane_open = true;
	}
	if (stream->kernels == 1)
		result = api->stream_wait_event(stream->lane, stream->fork, 0);
	if (result == CUDA_SUCCESS && stream->gate)
		result = api->stream_wait_value(*ret_queue, stream->counters, stream->counts[0],
						CU_STREAM_WAIT_VALUE_GEQ);
	return result;
}

/* G8: each end of a stretch gets a counter, raised at the last column of its last layer. */
static uint32_t set_signals(const struct oki_stream *stream, struct oki_cuda_launch *launch,
			    const bool *ends, uint32_t first, struct oki_cuda_signal *ret_signals)
{
	uint32_t count = 0;
	for (uint32_t i = first; i < launch->end; i++) {
		if (!ends[i] && i + 1 < launch->end)
			continue;
		uint32_t counter = OKI_CUDA_SIGNAL(stream->kernels) + count;
		launch->gather.columns[launch->columns[i - first] - 1].signal = (uint16_t)counter;
		ret_signals[count] = (struct oki_cuda_signal){
			.end = i + 1,
			.counter = counter,
			.count = stream->counts[counter] + launch->blocks,
		};
		count++;
	}
	return count;
}

static void set_counters(const struct oki_stream *stream, struct oki_gather *g)
{
	if (!stream->counters)
		return;
	g->counters = (uint32_t *)(uintptr_t)stream->counters;
	g->tickets = g->counters + OKI_CUDA_TICKETS(stream->kernels);
	g->first_ticket = stream->counts[OKI_CUDA_TICKETS(stream->kernels)];
	if (!g->pace)
		return;
	g->until = (uint64_t *)(void *)(g->counters + OKI_CUDA_UNTIL(stream->kernels));
	if (stream->kernels > 0)
		g->until_before =
			(uint64_t *)(void *)(g->counters + OKI_CUDA_UNTIL(stream->kernels + 1));
	if (!stream->device->restores_at)
		return;
	g->restores = (const uint32_t *)(uintptr_t)stream->device->restores_at;
	g->beside = g->counters + OKI_CUDA_BESIDE;
}

/* The driver accepted the kernel, so it will raise the counters. */
static void add_counts(struct oki_stream *stream, const struct oki_cuda_launch *launch,
		       const struct oki_cuda_signal *signals, uint32_t signal_count)
{
	stream->gate = launch->gather.early > 0;
	stream->counts[0] += group_count(launch);
	stream->counts[OKI_CUDA_TICKETS(stream->kernels)] += launch->units + group_count(launch);
	for (uint32_t i = 0; i < signal_count; i++)
		stream->counts[signals[i].counter] = signals[i].count;
}

static CUresult launch_next(struct oki_stream *stream, struct oki_cuda_launch *launch,
			    const struct oki_cuda_signal *signals, uint32_t signal_count)
{
	CUstream queue;
	CUresult result = next_queue(stream, &queue);
	if (result != CUDA_SUCCESS)
		return result;
	set_counters(stream, &launch->gather);
	result = oki_cuda_launch(stream->device, queue, launch);
	if (result != CUDA_SUCCESS)
		return result;
	add_counts(stream, launch, signals, signal_count);
	stream->kernels++;
	return CUDA_SUCCESS;
}

void oki_cuda_restores(struct oki_stream *stream, bool restores)
{
	_Atomic uint32_t *count = stream->device->restores;
	if (restores && !stream->restores)
		atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
	if (!restores && stream->restores)
		atomic_fetch_sub_explicit(count, 1, memory_order_relaxed);
	stream->restores = restores;
}

struct oki_cuda_budget oki_cuda_budget(const struct oki_device *device,
				       enum oki_direction direction)
{
	struct oki_cuda_budget budget = {.sms = device->sms};
	if (direction == OKI_TO_PAGES)
		return budget;
	budget.rate = device->link[direction] * PUBLISH_SHARE;
	budget.beside_rate = device->link[direction] * BESIDE_RESTORE_SHARE;
	return budget;
}

CUresult oki_cuda_kernel_copy(struct oki_stream *stream, enum oki_direction direction,
			      const struct oki_cuda_table *const *tables,
			      const struct oki_layer_map *const *maps, const bool *ends,
			      uint32_t map_count, struct oki_cuda_signal *ret_signals,
			      uint32_t *ret_signal_count)
{
	const struct oki_device *device = stream->device;
	struct oki_cuda_budget budget = oki_cuda_budget(device, direction);
	/* A kernel that cannot read the count of restores keeps the pace chosen now. */
	bool reads_restores = stream->counters && device->restores_at;
	if (!reads_restores && atomic_load_explicit(device->restores, memory_order_relaxed))
		budget.rate = budget.beside_rate;
	struct oki_cuda_launch launch;
	*ret_signal_count = 0;
	for (uint32_t first = 0; first < map_count; first = launch.end) {
		struct oki_cuda_signal *signals = ends ? ret_signals + *ret_signal_count : NULL;
		uint32_t count = 0;
		oki_cuda_launch_fill(tables, direction, maps, first, map_count, &budget, &launch);
		if (ends && stream->counters)
			count = set_signals(stream, &launch, ends, first, signals);
		CUresult result = launch_next(stream, &launch, signals, count);
		if (result != CUDA_SUCCESS)
			return result;
		*ret_signal_count += count;
	}
	return CUDA_SUCCESS;
}
