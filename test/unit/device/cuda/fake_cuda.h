/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's calls replaced by ones that act at once, on memory of the CPU, and count. For one
 * test program each: calls is its own.
 */
#ifndef TEST_UNIT_FAKE_CUDA_H
#define TEST_UNIT_FAKE_CUDA_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_device.h"

static struct {
	int one, two, batches, entries, launches, records, waits, gates;
	int batch[32];		/* entries of the first calls */
	uint64_t rows, bytes;	/* that copy engines had */
	struct oki_gather last; /* launch */
	uint32_t gate;		/* of the last launch that waited for the one before it */
	CUstream gated;
	unsigned blocks, threads; /* of the last launch, of each block */
	CUstream queue;		  /* of the last launch */
	CUstream recorded;	  /* where an event was recorded last */
	int stream_waits;	  /* for events, by STREAM */
	CUstream waiter;	  /* the stream of the last wait for an event, and that event */
	CUevent awaited;
	CUevent before_launch; /* what the last launch's stream waited for last, if it just did */
	uint32_t *tickets;     /* of the last launch */
	uint32_t *counters;
	uint32_t columns;			/* of all launches */
	uint32_t columns_at[OKI_CUDA_COUNTERS]; /* as the counter was raised last */
	uint32_t columns_waited;		/* the side stream waited for so many */
	uint32_t columns_of_event;		/* of a layer; 0: events are not looked at */
	uint32_t events; /* of layers: the n-th one is (CUevent)n, from 1 on */
	uintptr_t cut;	 /* where another allocation begins, which no copy to it crosses; or 0 */
	bool no_memory;
	bool blind;	/* addresses alone: nothing lies there, and nothing is copied */
	int fail_after; /* accept this many calls; negative: all */
} calls;

/* All pages lie in this allocation, and nothing else is known. */
static inline void one_tensor(struct oki_device *device, uintptr_t from, uintptr_t to)
{
	device->tensors[0] = (struct oki_cuda_tensor){from, to};
	device->tensor_count = 1;
}

#define STREAM ((CUstream)(uintptr_t)16)
#define SIDE ((CUstream)(uintptr_t)8)
#define FORK ((CUevent)(uintptr_t)2000)
#define POINT ((CUevent)(uintptr_t)2001)
#define MARK ((CUevent)(uintptr_t)2002)

/* Beside the stream there are kernels and events, and no copy. */
static void look_at(CUstream stream, uint64_t rows, uint64_t bytes)
{
	ck_assert_ptr_ne(stream, SIDE);
	calls.rows += rows;
	calls.bytes += bytes;
}

static void move(void *to, const void *from, size_t bytes)
{
	if (!calls.blind)
		memcpy(to, from, bytes);
}

static CUresult accept(void)
{
	if (calls.fail_after == 0)
		return CUDA_ERROR_LAUNCH_FAILED;
	calls.fail_after--;
	return CUDA_SUCCESS;
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	look_at(stream, 1, bytes);
	calls.one++;
	move((void *)(uintptr_t)to, from, bytes);
	return accept();
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	look_at(stream, 1, bytes);
	calls.one++;
	move(to, (const void *)(uintptr_t)from, bytes);
	return accept();
}

static CUresult fake_2d(const CUDA_MEMCPY2D *c, CUstream stream)
{
	look_at(stream, c->Height, c->Height * c->WidthInBytes);
	calls.two++;
	ck_assert_uint_ge(c->srcPitch, c->WidthInBytes);
	ck_assert_uint_ge(c->dstPitch, c->WidthInBytes);
	ck_assert_uint_le(c->srcPitch, OKI_CUDA_MAX_PITCH);
	ck_assert_uint_le(c->dstPitch, OKI_CUDA_MAX_PITCH);
	ck_assert_int_ne(c->srcMemoryType, c->dstMemoryType);
	const uint8_t *from = c->srcMemoryType == CU_MEMORYTYPE_HOST
				      ? c->srcHost
				      : (const void *)(uintptr_t)c->srcDevice;
	uint8_t *to = c->dstMemoryType == CU_MEMORYTYPE_HOST ? c->dstHost
							     : (void *)(uintptr_t)c->dstDevice;
	const uintptr_t end = (uintptr_t)to + (c->Height - 1) * c->dstPitch + c->WidthInBytes;
	ck_assert((uintptr_t)to >= calls.cut || end <= calls.cut);
	for (size_t y = 0; y < c->Height; y++)
		move(to + y * c->dstPitch, from + y * c->srcPitch, c->WidthInBytes);
	return accept();
}

#if OKI_CUDA_HAS_BATCH
static CUresult fake_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
			   CUstream stream)
{
	if (calls.batches < 32)
		calls.batch[calls.batches] = (int)count;
	calls.batches++;
	calls.entries += (int)count;
	ck_assert_uint_eq(attribute_count, 1);
	ck_assert_uint_eq(*first, 0);
	ck_assert_int_eq(attributes->srcAccessOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
	for (size_t i = 0; i < count; i++) {
		look_at(stream, 1, bytes[i]);
		move((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], bytes[i]);
	}
	return accept();
}
#endif

/* The entry points of a stage are the numbers of their lanes. */
static uint32_t count_groups(CUfunction function, unsigned blocks, unsigned threads)
{
	return blocks * (threads / (uint32_t)(uintptr_t)function);
}

/* Where a launch says when it will be through, beside the counters, and where the one before did.
 */
static void look_at_pace(const struct oki_gather *g)
{
	const uint64_t *end = (const void *)((uint8_t *)g->counters + OKI_CUDA_COUNTER_BYTES);
	/* Reads of the host hold nobody up. */
	ck_assert(!g->to_pages || g->pace == 0);
	ck_assert_int_eq(!g->pace, !g->beside_pace);
	ck_assert(g->pace || (!g->until && !g->until_before && !g->beside && !g->restores));
	ck_assert_int_eq(!g->beside, !g->restores);
	ck_assert(!g->until_before || g->until_before == calls.last.until);
	if (g->until) {
		ck_assert_uint_eq((uintptr_t)g->until % sizeof(*g->until), 0);
		ck_assert((uint32_t *)g->until >= g->counters + OKI_CUDA_COUNTERS);
		ck_assert(g->until < end && g->until != g->until_before);
		*g->until = 1;
	}
	if (g->beside) {
		ck_assert((uint64_t *)(void *)g->beside < end && g->beside != (uint32_t *)g->until);
		ck_assert(g->beside >= g->counters + OKI_CUDA_COUNTERS);
		*g->beside = *g->restores;
	}
}

/* What all groups of a launch write in a nanosecond, if each takes as long for a piece of so many
 * bytes as it is told to: for its lines, and half a one. */
static inline double rate_of_pace(const struct oki_cuda_launch *launch, uint32_t pace,
				  uint32_t bytes)
{
	double groups = launch->blocks * (launch->threads / launch->lanes);
	double halves = 2 * ((bytes + OKI_GATHER_LINE - 1) / OKI_GATHER_LINE) + 1;
	return groups * bytes * OKI_GATHER_PACE / (halves * pace);
}

/* The kernel on the CPU, straight from the words of gather_copy.h, but at no pace. */
static CUresult fake_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			    unsigned by, unsigned bz, unsigned shared, CUstream stream,
			    void **parameters, void **extra)
{
	(void)gy, (void)gz, (void)by, (void)bz, (void)shared;
	(void)extra;
	const struct oki_gather *g = parameters[0];
	ck_assert_uint_ge(gx, 1);
	ck_assert_uint_eq(bx % 32, 0);
	ck_assert_uint_ge(bx, 32);
	ck_assert_uint_le(bx, OKI_GATHER_THREADS);
	ck_assert_uint_le(g->column_count, OKI_GATHER_COLUMNS);
	ck_assert_uint_eq(g->tile % OKI_GATHER_TILE, 0);
	ck_assert_uint_gt(g->tile, 0);
	ck_assert_uint_ge(g->loads, 1);
	ck_assert_uint_le(g->loads, OKI_GATHER_LOADS);
	calls.launches++;
	calls.blocks = gx;
	calls.threads = bx;
	look_at_pace(g);
	calls.last = *g;
	calls.queue = stream;
	calls.before_launch = calls.waiter == stream ? calls.awaited : NULL;
	if (g->counters)
		g->counters[0] += count_groups(function, gx, bx);
	if (g->tickets) {
		uint32_t units = count_groups(function, gx, bx);
		for (uint32_t c = 0; c < g->column_count; c++)
			units += g->tables[g->columns[c].table].count *
				 ((g->columns[c].bytes - 1) / g->tile + 1);
		/* Nobody else takes any meanwhile. */
		ck_assert_uint_eq(*g->tickets, g->first_ticket);
		/* A kernel in a lane may overlap with the one before; one in the stream follows it.
		 */
		if (stream != STREAM)
			ck_assert_ptr_ne(g->tickets, calls.tickets);
		calls.tickets = g->tickets;
		*g->tickets += units;
	}
	for (uint32_t c = 0; c < g->column_count; c++) {
		const struct oki_gather_column *col = &g->columns[c];
		const struct oki_gather_table *table = &g->tables[col->table];
		ck_assert_uint_lt(col->table, OKI_GATHER_TABLES);
		ck_assert(table->rows || table->first + table->count <= OKI_GATHER_INLINE_ROWS);
		for (uint32_t r = 0; r < table->count; r++) {
			struct oki_gather_row row =
				table->rows ? table->rows[r] : g->few[table->first + r];
			uint8_t *host = (uint8_t *)(uintptr_t)(row.host + col->block_offset +
							       row.inner * col->bytes);
			uint8_t *page =
				(uint8_t *)(uintptr_t)(col->page0 + row.page * col->page_stride);
			move(g->to_pages ? page : host, g->to_pages ? host : page, col->bytes);
		}
		calls.columns++;
		uint32_t signal = col->signal;
		if (!signal)
			continue;
		ck_assert_ptr_nonnull(g->counters);
		ck_assert_uint_le(signal, 2 * OKI_CUDA_SIGNALS);
		g->counters[signal] += gx;
		calls.columns_at[signal] = calls.columns;
	}
	return accept();
}

static CUresult fake_alloc(CUdeviceptr *ret_at, size_t bytes)
{
	*ret_at = calls.no_memory ? 0 : (CUdeviceptr)(uintptr_t)malloc(bytes);
	return *ret_at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_free(CUdeviceptr at)
{
	free((void *)(uintptr_t)at);
	return CUDA_SUCCESS;
}

static CUresult fake_host_alloc(void **ret_at, size_t bytes, unsigned flags)
{
	(void)flags;
	*ret_at = malloc(bytes);
	return *ret_at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_host_free(void *at)
{
	free(at);
	return CUDA_SUCCESS;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
	calls.records++;
	calls.recorded = stream;
	uintptr_t layer = (uintptr_t)event;
	if (!calls.columns_of_event || !layer || event == FORK || event == POINT || event == MARK)
		return CUDA_SUCCESS;
	/* In the order of layers, in a stream that is behind their bytes. */
	ck_assert_uint_eq(layer, ++calls.events);
	ck_assert_uint_ge(stream == SIDE ? calls.columns_waited : calls.columns,
			  layer * calls.columns_of_event);
	return CUDA_SUCCESS;
}

static CUresult fake_event_create(CUevent *ret_event, unsigned flags)
{
	(void)flags;
	*ret_event = MARK;
	return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
	ck_assert_ptr_eq(event, MARK);
	return CUDA_SUCCESS;
}

static CUresult fake_wait(CUstream stream, CUevent event, unsigned flags)
{
	(void)flags;
	calls.waits++;
	calls.stream_waits += stream == STREAM;
	calls.waiter = stream;
	calls.awaited = event;
	return CUDA_SUCCESS;
}

static CUresult fake_wait_value(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
	const uint32_t *counter = (const uint32_t *)(uintptr_t)at;
	ck_assert_int_eq(flags, CU_STREAM_WAIT_VALUE_GEQ);
	/* Raised at once here: a count never reached would wait for ever. */
	ck_assert_int_ge((int32_t)(*counter - value), 0);
	if (counter == calls.counters) {
		ck_assert_ptr_ne(stream, SIDE);
		calls.gates++;
		calls.gate = value;
		calls.gated = stream;
		return CUDA_SUCCESS;
	}
	ck_assert_ptr_eq(stream, SIDE);
	calls.columns_waited = calls.columns_at[counter - calls.counters];
	return CUDA_SUCCESS;
}

static CUresult fake_text(CUresult result, const char **ret_text)
{
	(void)result;
	*ret_text = "FAKE";
	return CUDA_SUCCESS;
}

static struct oki_cuda_api fake(bool batch)
{
	struct oki_cuda_api api = {
		.copy_to_device = fake_to_device,
		.copy_to_host = fake_to_host,
		.copy_2d = fake_2d,
		.launch = fake_launch,
		.memory_alloc = fake_alloc,
		.memory_free = fake_free,
		.host_alloc = fake_host_alloc,
		.host_free = fake_host_free,
		.event_create = fake_event_create,
		.event_destroy = fake_event_destroy,
		.event_record = fake_record,
		.stream_wait_event = fake_wait,
		.stream_wait_value = fake_wait_value,
		.error_name = fake_text,
		.error_string = fake_text,
	};
#if OKI_CUDA_HAS_BATCH
	if (batch)
		api.copy_batch = fake_batch;
#else
	(void)batch;
#endif
	memset(&calls, 0, sizeof(calls));
	calls.fail_after = -1;
	return api;
}

#endif
