/*
 * [B] Measuring one GPU when it is first opened. By the CPU's clock: each figure is the difference
 * of two series, so that what every series costs drops out, and the best of a few tries, since
 * nothing but disturbance makes one slower. Kernels are timed in lengths that keep as many loads on
 * their way as short restores do; long ones fill the link with fewer. A slow link, or a GPU whose
 * SMs a model holds, would take long: what does not fit into the time keeps its default.
 */
#include "device/cuda_device.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"

#define BYTES (8u << 20)
#define SERIES_BYTES OKI_CUDA_SHORT_BYTES /* and half of it: launches of one kind */
#define TABLE_BYTES (SERIES_BYTES / 512u * sizeof(struct oki_gather_row))
#define ENTRIES 256u	      /* as many as one call has */
#define LONG_ROW_ENTRIES 128u /* rows of 64 KiB, all of BYTES */
#define TRIES 5
#define DEVICES_MAX 16u

struct bench {
	struct oki_device *device;
	CUstream stream;
	uint8_t *host;
	CUdeviceptr memory;
	enum oki_direction direction;
	struct oki_cuda_crew crew; /* of its kernels */
	CUresult result;	   /* of the first call that failed */
	uint64_t deadline_ns;
	bool cut_short; /* something was not measured by then */
};

static void note(struct bench *b, CUresult result)
{
	if (b->result == CUDA_SUCCESS)
		b->result = result;
}

static void copy(struct bench *b, uint64_t bytes)
{
	const struct oki_cuda_api *api = b->device->api;
	note(b, b->direction == OKI_TO_PAGES
			? api->copy_to_device(b->memory, b->host, bytes, b->stream)
			: api->copy_to_host(b->host, b->memory, bytes, b->stream));
}

/* Rows of bytes each, one batched call or one 2-D copy, through the code that is used later. */
static void copy_rows(struct bench *b, uint32_t rows, uint64_t bytes, bool batched)
{
	struct oki_run runs[ENTRIES];
	struct oki_layer_map map = {
		.base = (uint8_t *)b->memory,
		.page_stride = batched ? bytes : 2 * bytes,
		.segment_count = 1,
		.segments = {{.bytes = bytes}},
	};
	const struct oki_layer_map *maps[] = {&map};
	const struct oki_cuda_queue queue = {b->stream, b->direction, .empty = false};
	struct oki_cuda_rates rates = oki_cuda_default_rates;
	uint32_t count = batched ? rows : 1;
	for (uint32_t i = 0; i < count; i++)
		runs[i] = (struct oki_run){
			.host = b->host + i * bytes,
			.blocks = batched ? 1 : rows,
			.host_pitch = batched ? 0 : bytes,
			.page = i * 37 % rows,
			.page_pitch = batched ? 0 : 1,
			.inner = 1,
		};
	if (!batched)
		rates.copy_ns = 0;
	if (oki_cuda_copy(b->device->api, &rates, &queue, maps, 1, NULL, runs, count, NULL) < 0)
		note(b, CUDA_ERROR_UNKNOWN);
}

static void run_kernel(struct bench *b, uint64_t bytes, uint64_t fragment)
{
	struct oki_layer_map map = {
		.base = (uint8_t *)b->memory,
		.page_stride = fragment,
		.segment_count = 1,
		.segments = {{.bytes = fragment}},
	};
	const struct oki_layer_map *maps[] = {&map};
	const struct oki_cuda_table table = {
		.device = b->memory + BYTES,
		.count = (uint32_t)(bytes / fragment),
		.joinable = true,
	};
	const struct oki_cuda_table *tables[] = {&table};
	struct oki_cuda_launch launch;
	oki_cuda_launch_fill(tables, b->direction, maps, 0, 1, &b->crew, &launch);
	note(b, oki_cuda_launch(b->device, b->stream, &launch));
}

/* All rows of SERIES_BYTES, neither side in order. */
static void write_table(struct bench *b, uint64_t fragment)
{
	struct oki_gather_row *rows = (void *)(b->host + BYTES);
	CUdeviceptr host = 0;
	uint32_t count = (uint32_t)(SERIES_BYTES / fragment);
	note(b, b->device->api->host_device_pointer(&host, b->host, 0));
	for (uint32_t i = 0; i < count; i++)
		rows[i] = (struct oki_gather_row){
			.host = host + i * 37ull % count * fragment,
			.page = (uint32_t)(i * 101ull % count),
		};
	note(b, b->device->api->copy_to_device(b->memory + BYTES, rows, TABLE_BYTES, b->stream));
	note(b, b->device->api->stream_synchronize(b->stream));
}

/* Asked before something is measured, which then is not. */
static bool is_over(struct bench *b)
{
	bool over = oki_now_ns() >= b->deadline_ns;
	b->cut_short |= over;
	return over;
}

enum what { LONG_COPY, COPY_2D, SHORT_ENTRIES, LONG_ENTRIES, KERNEL };

static double time_series(struct bench *b, enum what what, uint32_t times, uint64_t bytes,
			  uint64_t fragment)
{
	double best = 0;
	for (int n = 0; n < TRIES; n++) {
		uint64_t start = oki_now_ns();
		if (n > 0 && is_over(b))
			break;
		for (uint32_t i = 0; i < times; i++) {
			switch (what) {
			case LONG_COPY: copy(b, bytes); break;
			case COPY_2D: copy_rows(b, 4, bytes, false); break;
			case SHORT_ENTRIES: copy_rows(b, ENTRIES, bytes, true); break;
			case LONG_ENTRIES: copy_rows(b, LONG_ROW_ENTRIES, bytes, true); break;
			case KERNEL: run_kernel(b, bytes, fragment); break;
			}
		}
		note(b, b->device->api->stream_synchronize(b->stream));
		double ns = (double)(oki_now_ns() - start);
		if (n == 0 || ns < best)
			best = ns;
	}
	return best;
}

static double each(struct bench *b, enum what what, uint32_t few, uint32_t many, uint64_t bytes,
		   uint64_t fragment)
{
	if (is_over(b))
		return NAN;
	double less = time_series(b, what, few, bytes, fragment);
	return (time_series(b, what, many, bytes, fragment) - less) / (many - few);
}

/* Keep what stands to reason; a disturbed figure, or none, leaves the default. */
static void settle(double *figure, double measured, double least, double most)
{
	if (measured >= least && measured <= most)
		*figure = measured;
}

static void measure_kernel(struct bench *b, struct oki_cuda_rates *rates)
{
	const uint64_t part = SERIES_BYTES / 2;
	b->crew = (struct oki_cuda_crew){b->device->sms, rates->link};
	for (uint32_t i = 0; i < OKI_CUDA_SIZES; i++) {
		if (is_over(b))
			return;
		write_table(b, oki_cuda_sizes[i]);
		double whole = each(b, KERNEL, 1, 4, SERIES_BYTES, oki_cuda_sizes[i]);
		double half = each(b, KERNEL, 1, 4, part, oki_cuda_sizes[i]);
		settle(&rates->kernel[i], (double)part / (whole - half), 0.5, rates->link);
		if (i == OKI_CUDA_SIZES - 1)
			settle(&rates->launch_ns, whole - SERIES_BYTES / rates->kernel[i], 1000,
			       8000);
	}
}

static void measure_direction(struct bench *b, struct oki_cuda_rates *rates)
{
	const uint64_t row = 4096, long_row = 65536;
	/* Here everything lies in a few MiB, which is friendlier than an arena: what is measured
	 * can raise the price of an operation only. */
	settle(&rates->copy_ns, each(b, COPY_2D, 4, 36, row, 0) - 4 * (double)row / rates->link,
	       rates->copy_ns, 20000);
	settle(&rates->link, BYTES / (each(b, LONG_COPY, 1, 4, BYTES, 0) - rates->copy_ns), 1,
	       2000);
	if (oki_cuda_has_batch(b->device->api)) {
		settle(&rates->entry_least_ns, each(b, SHORT_ENTRIES, 1, 3, row, 0) / ENTRIES,
		       rates->entry_least_ns, 20000);
		settle(&rates->entry_ns,
		       each(b, LONG_ENTRIES, 1, 3, long_row, 0) / LONG_ROW_ENTRIES -
			       (double)long_row / rates->link,
		       rates->entry_ns, 20000);
	}
	if (b->device->module)
		measure_kernel(b, rates);
}

/* False: an error, or not the whole of it, which another time may be there. */
static bool measure(struct oki_device *device, struct oki_cuda_rates ret_rates[2], bool *ret_usable)
{
	const struct oki_cuda_api *api = device->api;
	struct bench b = {.device = device};
	void *host = NULL;
	*ret_usable = false;
	b.result = api->stream_create(&b.stream, CU_STREAM_NON_BLOCKING, device->priority);
	if (b.result != CUDA_SUCCESS)
		return false;
	b.result = api->host_alloc(&host, BYTES + TABLE_BYTES, CU_MEMHOSTALLOC_DEVICEMAP);
	if (b.result != CUDA_SUCCESS)
		goto undo_stream;
	b.result = api->memory_alloc(&b.memory, BYTES + TABLE_BYTES);
	if (b.result != CUDA_SUCCESS)
		goto undo_host;
	b.host = host;
	memset(b.host, 0x5a, BYTES + TABLE_BYTES);
	for (int direction = 0; direction < 2; direction++) {
		b.direction = (enum oki_direction)direction;
		ret_rates[direction] = oki_cuda_default_rates;
		b.deadline_ns = oki_now_ns() + OKI_CUDA_MEASURE_NS / 2;
		measure_direction(&b, &ret_rates[direction]);
	}
	api->memory_free(b.memory);
undo_host:
	api->host_free(host);
undo_stream:
	api->stream_destroy(b.stream);
	*ret_usable = b.result == CUDA_SUCCESS;
	return *ret_usable && !b.cut_short;
}

void oki_cuda_measure(struct oki_device *device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		CUuuid id;
		uint32_t sms;
		struct oki_cuda_rates rates[2];
	} known[DEVICES_MAX];
	static uint32_t known_count;
	CUuuid id = {{0}};
	struct oki_cuda_rates rates[2];
	device->api->device_uuid(&id, device->device);
	pthread_mutex_lock(&lock);
	uint32_t i = 0;
	while (i < known_count &&
	       (memcmp(&known[i].id, &id, sizeof(id)) != 0 || known[i].sms != device->sms))
		i++;
	if (i < known_count) {
		memcpy(device->rates, known[i].rates, sizeof(device->rates));
	} else {
		bool usable, whole = measure(device, rates, &usable);
		if (usable)
			memcpy(device->rates, rates, sizeof(rates));
		if (whole && known_count < DEVICES_MAX) {
			known[known_count].id = id;
			known[known_count].sms = device->sms;
			memcpy(known[known_count++].rates, rates, sizeof(rates));
		}
	}
	pthread_mutex_unlock(&lock);
}
