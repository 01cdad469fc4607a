/* The operations the CUDA device emits: the bytes of a plain loop, and few of them. No GPU: the
 * driver's calls are replaced by ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda_device.h"
#include "test/device/copy_case.h"

static struct {
	int one, two, batches, entries, launches, records, waits, gates;
	uint32_t gate; /* of the last launch that waited for the one before it */
	unsigned blocks;
	uint32_t *counters;
	uint32_t columns;			/* of all launches */
	uint32_t columns_at[OKI_CUDA_COUNTERS]; /* as the counter was raised last */
	uint32_t columns_waited;		/* the side stream waited for so many */
	uint32_t columns_of_event;		/* of a layer; 0: events are not looked at */
	uint32_t events; /* of layers: the n-th one is (CUevent)n, from 1 on */
	bool no_memory;
	int fail_after; /* accept this many calls; negative: all */
} calls;

static const struct oki_cuda_rates *const rates = &oki_cuda_default_rates;

#define SIDE ((CUstream)(uintptr_t)8)

static CUresult accept(void)
{
	if (calls.fail_after == 0)
		return CUDA_ERROR_LAUNCH_FAILED;
	calls.fail_after--;
	return CUDA_SUCCESS;
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)stream;
	calls.one++;
	memcpy((void *)(uintptr_t)to, from, bytes);
	return accept();
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)stream;
	calls.one++;
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return accept();
}

static CUresult fake_2d(const CUDA_MEMCPY2D *c, CUstream stream)
{
	(void)stream;
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
	for (size_t y = 0; y < c->Height; y++)
		memcpy(to + y * c->dstPitch, from + y * c->srcPitch, c->WidthInBytes);
	return accept();
}

#if OKI_CUDA_HAS_BATCH
static CUresult fake_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
			   CUstream stream)
{
	(void)stream;
	calls.batches++;
	calls.entries += (int)count;
	ck_assert_uint_eq(attribute_count, 1);
	ck_assert_uint_eq(*first, 0);
	ck_assert_int_eq(attributes->srcAccessOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
	for (size_t i = 0; i < count; i++)
		memcpy((void *)(uintptr_t)to[i], (const void *)(uintptr_t)from[i], bytes[i]);
	return accept();
}
#endif

/* The entry points of a stage are the numbers of their lanes. */
static uint32_t count_groups(CUfunction function, unsigned blocks)
{
	return blocks * (OKI_GATHER_THREADS / (uint32_t)(uintptr_t)function);
}

/* The kernel on the CPU, straight from the words of gather_copy.h. */
static CUresult fake_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			    unsigned by, unsigned bz, unsigned shared, CUstream stream,
			    void **parameters, void **extra)
{
	(void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)stream;
	(void)extra;
	const struct oki_gather *g = parameters[0];
	ck_assert_uint_ge(gx, 1);
	ck_assert_uint_eq(bx, OKI_GATHER_THREADS);
	ck_assert_uint_le(g->column_count, OKI_GATHER_COLUMNS);
	ck_assert_uint_eq(g->piece % OKI_GATHER_PIECE, 0);
	ck_assert_uint_gt(g->piece, 0);
	calls.launches++;
	calls.blocks = gx;
	if (g->counters)
		g->counters[0] += count_groups(function, gx);
	for (uint32_t c = 0; c < g->column_count; c++) {
		for (uint32_t r = 0; r < g->row_count; r++) {
			struct oki_gather_row row = g->rows ? g->rows[r] : g->few[r];
			const struct oki_gather_column *col = &g->columns[c];
			uint8_t *host = (uint8_t *)(uintptr_t)(row.host + col->block_offset +
							       row.inner * col->bytes);
			uint8_t *page =
				(uint8_t *)(uintptr_t)(col->page0 + row.page * col->page_stride);
			memcpy(g->to_pages ? page : host, g->to_pages ? host : page, col->bytes);
		}
		calls.columns++;
		uint32_t signal = g->columns[c].signal;
		if (!signal)
			continue;
		ck_assert_ptr_nonnull(g->counters);
		ck_assert_uint_lt(signal, OKI_CUDA_COUNTERS);
		g->counters[signal] += count_groups(function, gx);
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
	uintptr_t layer = (uintptr_t)event;
	if (!calls.columns_of_event || !layer)
		return CUDA_SUCCESS;
	/* In the order of layers, in a stream that is behind their bytes. */
	ck_assert_uint_eq(layer, ++calls.events);
	ck_assert_uint_ge(stream == SIDE ? calls.columns_waited : calls.columns,
			  layer * calls.columns_of_event);
	return CUDA_SUCCESS;
}

static CUresult fake_wait(CUstream stream, CUevent event, unsigned flags)
{
	(void)stream, (void)event, (void)flags;
	calls.waits++;
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

START_TEST(bytes_as_a_plain_loop)
{
	uint64_t seed = 11 + (uint64_t)_i;
	struct oki_cuda_api api = fake(_i % 2 == 0);
	for (int n = 0; n < 300; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 40 : 1);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		uint8_t *host = malloc(c.host_bytes), *want_host = malloc(c.host_bytes);
		uint8_t *pages = malloc(c.pages_bytes), *want_pages = malloc(c.pages_bytes);
		case_noise(&seed, host, c.host_bytes);
		case_noise(&seed, pages, c.pages_bytes);
		memcpy(want_host, host, c.host_bytes);
		memcpy(want_pages, pages, c.pages_bytes);
		case_place(&c, host, pages);
		case_expect(&c, host, direction, want_host, want_pages);
		const struct oki_layer_map *map = &c.map;
		ck_assert_int_eq(oki_cuda_copy(&api, rates, NULL, direction, &map, 1, c.runs,
					       c.run_count, NULL),
				 0);
		ck_assert_msg(memcmp(host, want_host, c.host_bytes) == 0 &&
				      memcmp(pages, want_pages, c.pages_bytes) == 0,
			      "case %d of seed %d", n, _i);
		free(host);
		free(pages);
		free(want_host);
		free(want_pages);
	}
}
END_TEST

#define ROW 4096u

/* Memory for 16 blocks and 64 pages of two segments of ROW bytes. */
struct tensor {
	uint8_t *host, *pages;
	struct oki_layer_map map;
};

static void tensor_init(struct tensor *t, uint64_t row)
{
	t->host = calloc(16, 4 * row);
	t->pages = calloc(64, 2 * row);
	t->map = (struct oki_layer_map){
		.base = t->pages,
		.page_stride = row,
		.segment_count = 2,
		.page_count = 64,
		.segments = {{0, 0, row}, {64 * row, row, row}},
	};
}

static void tensor_copy(struct tensor *t, struct oki_cuda_api *api, struct oki_run *runs,
			uint32_t count, int expected)
{
	const struct oki_layer_map *map = &t->map;
	ck_assert_int_eq(oki_cuda_copy(api, rates, NULL, OKI_TO_PAGES, &map, 1, runs, count, NULL),
			 expected);
}

static void tensor_fini(struct tensor *t)
{
	free(t->host);
	free(t->pages);
}

/* Split K and V, adjacent blocks and pages: one 2-D copy for each. */
START_TEST(a_run_is_one_copy_per_segment)
{
	struct tensor t;
	struct oki_cuda_api api = fake(true);
	tensor_init(&t, ROW);
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 4 * ROW,
		.blocks = 16,
		.page_pitch = 1,
		.inner = 1,
	};
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 2);
	ck_assert_int_eq(calls.one + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Two loops that do not merge take the shorter one as rounds. */
START_TEST(two_loops_take_the_shorter_one)
{
	struct tensor t;
	struct oki_cuda_api api = fake(true);
	tensor_init(&t, ROW);
	t.map.segment_count = 1;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 4 * ROW,
		.blocks = 12,
		.page_pitch = 4,
		.inner = 2,
		.inner_step = 2,
	};
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 2);
	run.inner_step = 1; /* the two pages touch, and are one row */
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 3);
	ck_assert_int_eq(calls.one + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Blocks and pages that are all neighbours of a fused tensor: one plain copy. */
START_TEST(contiguous_is_one_plain_copy)
{
	struct tensor t;
	struct oki_cuda_api api = fake(true);
	tensor_init(&t, ROW);
	t.map.page_stride = 2 * ROW;
	t.map.segments[1].page_offset = ROW;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 2 * ROW,
		.blocks = 16,
		.page_pitch = 1,
		.inner = 1,
	};
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.one, 1);
	ck_assert_int_eq(calls.two + calls.batches, 0);
	tensor_fini(&t);
}
END_TEST

/* Scattered rows share one call where the driver has it. */
START_TEST(scattered_rows_share_a_call)
{
	struct tensor t;
	struct oki_cuda_api api = fake(_i == 0);
	struct oki_run runs[16];
	tensor_init(&t, ROW);
	for (uint32_t i = 0; i < 16; i++)
		runs[i] = (struct oki_run){
			.host = t.host + ((i * 7) % 16) * 4 * ROW,
			.blocks = 1,
			.inner = 1,
			.page = (i * 5) % 16,
		};
	tensor_copy(&t, &api, runs, 16, 0);
	bool batch = _i == 0 && OKI_CUDA_HAS_BATCH;
	ck_assert_int_eq(calls.batches, batch ? 1 : 0);
	ck_assert_int_eq(calls.entries, batch ? 32 : 0);
	ck_assert_int_eq(calls.one, batch ? 0 : 32);
	tensor_fini(&t);
}
END_TEST

/* A 2-D copy has a price: two long rows are cheaper in the batch, but many are not. */
START_TEST(few_long_rows_join_the_batch)
{
	struct tensor t;
	struct oki_cuda_api api = fake(true);
	tensor_init(&t, 32u << 10);
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 128u << 10,
		.blocks = 2,
		.page_pitch = 1,
		.inner = 1,
	};
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, OKI_CUDA_HAS_BATCH ? 0 : 2);
	ck_assert_int_eq(calls.entries, OKI_CUDA_HAS_BATCH ? 4 : 0);
	api = fake(false);
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 2);
	t.map.segment_count = 1;
	run.host_pitch = 32u << 10;
	run.page_pitch = 2;
	run.blocks = 30;
	api = fake(true);
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 1);
	ck_assert_int_eq(calls.entries, 0);
	tensor_fini(&t);
}
END_TEST

/* A distance that no 2-D copy can have falls back to rows. */
START_TEST(a_pitch_no_2d_copy_has)
{
	struct tensor t;
	struct oki_cuda_api api = fake(false);
	tensor_init(&t, ROW);
	t.map.segment_count = 1;
	struct oki_run run = {
		.host = t.host,
		.host_pitch = 1024, /* below the width: rows that share host bytes */
		.blocks = 8,
		.page_pitch = 2,
		.inner = 1,
	};
	tensor_copy(&t, &api, &run, 1, 0);
	ck_assert_int_eq(calls.two, 0);
	ck_assert_int_eq(calls.one, 8);
	tensor_fini(&t);
}
END_TEST

START_TEST(a_refused_copy_ends_the_layer)
{
	struct tensor t;
	struct okv_error err = {0};
	struct oki_cuda_api api = fake(false);
	struct oki_run runs[4];
	tensor_init(&t, ROW);
	for (uint32_t i = 0; i < 4; i++)
		runs[i] = (struct oki_run){.host = t.host,
					   .host_pitch = 4 * ROW,
					   .blocks = 4,
					   .page_pitch = 3,
					   .inner = 1,
					   .page = 16 * i};
	calls.fail_after = 3;
	const struct oki_layer_map *map = &t.map;
	ck_assert_int_eq(oki_cuda_copy(&api, rates, NULL, OKI_TO_PAGES, &map, 1, runs, 4, &err),
			 OKV_E_COPY);
	ck_assert_int_eq(calls.two, 4);
	ck_assert_int_eq(err.device_error, CUDA_ERROR_LAUNCH_FAILED);
	ck_assert_int_eq(err.stage, OKV_STAGE_SUBMIT);
	tensor_fini(&t);
}
END_TEST

/* One call with several layers shares its batches. */
START_TEST(layers_share_a_batch)
{
	struct tensor t;
	struct oki_cuda_api api = fake(true);
	struct oki_layer_map layers[4];
	const struct oki_layer_map *maps[4];
	tensor_init(&t, ROW);
	for (uint32_t l = 0; l < 4; l++) {
		layers[l] = t.map;
		layers[l].base = t.pages + l * 16 * ROW;
		layers[l].segment_count = 1;
		layers[l].segments[0].block_offset = l * ROW;
		maps[l] = &layers[l];
	}
	struct oki_run runs[2];
	for (uint32_t i = 0; i < 2; i++)
		runs[i] = (struct oki_run){
			.host = t.host + i * 12 * ROW, .blocks = 1, .inner = 1, .page = i * 3};
	memset(t.host, 0x77, 16 * 4 * ROW);
	ck_assert_int_eq(oki_cuda_copy(&api, rates, NULL, OKI_TO_PAGES, maps, 4, runs, 2, NULL), 0);
	ck_assert_int_eq(calls.batches, OKI_CUDA_HAS_BATCH ? 1 : 0);
	ck_assert_int_eq(OKI_CUDA_HAS_BATCH ? calls.entries : calls.one, 8);
	for (uint32_t l = 0; l < 4; l++)
		ck_assert(layers[l].base[3 * ROW] == 0x77 && layers[l].base[2 * ROW] == 0);
	tensor_fini(&t);
}
END_TEST

/* A device and a stream without a GPU. */
struct stage {
	struct oki_cuda_api api;
	struct oki_device device;
	struct oki_stream stream;
};

static void stage_init(struct stage *s, uint32_t path, bool batch)
{
	memset(s, 0, sizeof(*s));
	s->api = fake(batch);
	s->device.api = &s->api;
	s->device.path = path;
	s->device.sms = 4;
	s->device.rates[0] = s->device.rates[1] = oki_cuda_default_rates;
	s->stream.device = &s->device;
	s->stream.side = SIDE;
	s->stream.lanes[0] = (CUstream)(uintptr_t)16;
	s->stream.lanes[1] = (CUstream)(uintptr_t)24;
	for (uintptr_t i = 0; i < 3; i++)
		s->device.gather[i] = (CUfunction)((uintptr_t)8 << i);
}

/* Kernels count, from just before the counters wrap. */
static void stage_counters(struct stage *s)
{
	calls.counters = malloc(sizeof(s->stream.counts));
	for (uint32_t i = 0; i < OKI_CUDA_COUNTERS; i++)
		s->stream.counts[i] = calls.counters[i] = UINT32_MAX - 100;
	s->stream.counters = (CUdeviceptr)(uintptr_t)calls.counters;
}

/* Until every layer is taken. */
static void stage_copy(struct stage *s, enum oki_direction direction,
		       const struct oki_layer_map *const *maps, CUevent const *events,
		       uint32_t map_count, const struct oki_run *runs, uint32_t run_count)
{
	for (uint32_t done = 0; done < map_count;) {
		int taken = oki_cuda_ways_copy(&s->stream, direction, maps + done,
					       events ? events + done : NULL, map_count - done,
					       runs, run_count, NULL);
		ck_assert_int_ge(taken, 1);
		done += (uint32_t)taken;
		ck_assert_uint_le(done, map_count);
	}
}

static void stage_fini(struct stage *s)
{
	oki_cuda_plans_forget(&s->stream);
	oki_cuda_chunks_free(&s->stream);
}

/* Every path, both directions, tables that travel with the launch and such that do not. */
START_TEST(every_path_moves_the_same_bytes)
{
	uint64_t seed = 31 + (uint64_t)_i;
	struct stage s;
	stage_init(&s, (uint32_t)_i % 3, _i < 3);
	for (int n = 0; n < 200; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 40 : 1);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		uint8_t *host = malloc(c.host_bytes), *want_host = malloc(c.host_bytes);
		uint8_t *pages = malloc(c.pages_bytes), *want_pages = malloc(c.pages_bytes);
		case_noise(&seed, host, c.host_bytes);
		case_noise(&seed, pages, c.pages_bytes);
		memcpy(want_host, host, c.host_bytes);
		memcpy(want_pages, pages, c.pages_bytes);
		case_place(&c, host, pages);
		case_expect(&c, host, direction, want_host, want_pages);
		const struct oki_layer_map *map = &c.map;
		for (int again = 0; again < 2; again++)
			stage_copy(&s, direction, &map, NULL, 1, c.runs, c.run_count);
		ck_assert_msg(memcmp(host, want_host, c.host_bytes) == 0 &&
				      memcmp(pages, want_pages, c.pages_bytes) == 0,
			      "case %d of seed %d", n, _i);
		oki_cuda_plans_forget(&s.stream);
		free(host);
		free(pages);
		free(want_host);
		free(want_pages);
	}
	ck_assert(_i % 3 != OKV_COPY_KERNEL || calls.one + calls.two + calls.batches > 0);
	ck_assert(_i % 3 == OKV_COPY_DMA ? calls.launches == 0 : calls.launches > 0);
	ck_assert_ptr_null(s.stream.chunks ? s.stream.chunks->next : NULL);
	stage_fini(&s);
}
END_TEST

/* Where the GPU sees an arena elsewhere, the kernel gets the GPU's addresses. */
START_TEST(the_kernel_gets_device_addresses)
{
	uint8_t *arena = malloc(4 * ROW), *alias = malloc(4 * ROW), page[ROW];
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	struct oki_cuda_reach reach[] = {
		{.base = (uint8_t *)1, .bytes = 64, .shift = 12345},
		{.base = arena, .bytes = 4 * ROW, .shift = (uint64_t)(alias - arena)},
	};
	s.device.reach = reach;
	s.device.reach_count = 2;
	memset(arena, 1, 4 * ROW);
	memset(alias, 2, 4 * ROW);
	struct oki_layer_map map = {.base = page,
				    .page_stride = ROW,
				    .segment_count = 1,
				    .page_count = 1,
				    .segments = {{0, 0, ROW}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {.host = arena + 2 * ROW, .blocks = 1, .inner = 1};
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &run, 1);
	ck_assert_uint_eq(page[0], 2);
	stage_fini(&s);
	free(arena);
	free(alias);
}
END_TEST

#define MANY 5000u

/* Scattered rows of bytes each in block order; a block has `layers` of them. */
static struct oki_run *scattered(uint8_t *host, uint64_t block, uint32_t count)
{
	struct oki_run *runs = calloc(count, sizeof(*runs));
	for (uint32_t i = 0; i < count; i++)
		runs[i] = (struct oki_run){.host = host + i * 7ull % count * block,
					   .blocks = 1,
					   .inner = 1,
					   .page = i * 11 % count};
	return runs;
}

/* The table is made with the first layer; the calls of later ones are the same for any rows. */
START_TEST(one_table_for_all_layers)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	uint8_t *host = calloc(MANY, 64), *pages = calloc(MANY, 64);
	struct oki_run *runs = scattered(host, 64, MANY);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = 16,
				    .segment_count = 1,
				    .page_count = MANY,
				    .segments = {{0, 0, 16}}};
	const struct oki_layer_map *maps[] = {&map};
	for (uint32_t layer = 0; layer < 4; layer++) {
		map.base = pages + layer * MANY * 16;
		map.segments[0].block_offset = layer * 16;
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, MANY);
	}
	ck_assert_int_eq(calls.launches, 4);
	ck_assert_int_eq(calls.one, 1);
	ck_assert_int_eq(calls.two + calls.batches, 0);
	ck_assert_uint_le(calls.blocks, 4);

	/* No room for a table: the copy still happens. */
	oki_cuda_plans_forget(&s.stream);
	oki_cuda_chunks_free(&s.stream);
	calls.no_memory = true;
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, MANY);
	ck_assert_int_eq(calls.launches, 4);
	stage_fini(&s);
	free(runs);
	free(host);
	free(pages);
}
END_TEST

/* The first kernel follows the stream; each later one starts as the one before it ends. */
START_TEST(kernels_overlap_at_their_ends)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	const uint64_t row = 256u << 10;
	uint8_t *host = calloc(16, row), *pages = calloc(16, row);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = row,
				    .segment_count = 1,
				    .page_count = 16,
				    .segments = {{0, 0, row}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {
		.host = host, .host_pitch = row, .blocks = 16, .page_pitch = 1, .inner = 1};
	for (uint32_t n = 0; n < 5; n++) {
		uint32_t before = s.stream.counts[0];
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &run, 1);
		ck_assert_int_eq(calls.gates, (int)n);
		if (n > 0)
			ck_assert_uint_eq(calls.gate, before);
		ck_assert_uint_eq(s.stream.counts[0] - before,
				  calls.blocks * OKI_GATHER_THREADS / 32);
	}
	/* fork, then an event of its own for each later one, which the stream waits for; each
	 * lane waits for fork once */
	ck_assert_int_eq(calls.records, 1 + 4);
	ck_assert_int_eq(calls.waits, 4 + 2);
	/* The next user's first kernel follows that user's fences. */
	oki_cuda_plans_forget(&s.stream);
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &run, 1);
	ck_assert_int_eq(calls.gates, 4);
	ck_assert_int_eq(calls.records, 6);
	/* After a kernel that is all last pieces no gate is needed. */
	run.blocks = 2;
	oki_cuda_plans_forget(&s.stream);
	for (int n = 0; n < 3; n++)
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &run, 1);
	ck_assert_int_eq(calls.gates, 4);
	stage_fini(&s);
	free(host);
	free(pages);
}
END_TEST

#define EVENT_LAYERS 64u

/* Layers of `bytes` (one row of 16 KiB each, or many), an event each. Returns the launches. */
static int copy_with_events(struct stage *s, uint32_t rows, uint32_t segments)
{
	const uint64_t row = 16384;
	uint8_t *host = calloc(rows * EVENT_LAYERS, row), *pages = calloc(rows * EVENT_LAYERS, row);
	struct oki_layer_map layers[EVENT_LAYERS];
	const struct oki_layer_map *maps[EVENT_LAYERS];
	CUevent events[EVENT_LAYERS];
	uint64_t seed = 5;
	case_noise(&seed, host, rows * EVENT_LAYERS * row);
	for (uint32_t l = 0; l < EVENT_LAYERS; l++) {
		layers[l] = (struct oki_layer_map){.base = pages + l * rows * row,
						   .page_stride = row,
						   .segment_count = segments,
						   .page_count = rows};
		/* Their order on both sides differs, so that none can be joined. */
		for (uint32_t k = 0; k < segments; k++)
			layers[l].segments[k] = (struct oki_segment_map){
				.page_offset = k * (row / segments),
				.block_offset = l * row + (segments - 1 - k) * (row / segments),
				.bytes = row / segments};
		maps[l] = &layers[l];
		events[l] = (CUevent)(uintptr_t)(l + 1);
	}
	struct oki_run run = {.host = host,
			      .host_pitch = rows > 1 ? EVENT_LAYERS * row : 0,
			      .blocks = rows,
			      .page_pitch = rows > 1,
			      .inner = 1};
	int launches = calls.launches;
	calls.columns = calls.columns_waited = calls.events = 0;
	calls.columns_of_event = s->device.path == OKV_COPY_KERNEL ? segments : 0;
	stage_copy(s, OKI_TO_PAGES, maps, events, EVENT_LAYERS, &run, 1);
	if (calls.columns_of_event)
		ck_assert_uint_eq(calls.events, EVENT_LAYERS);
	for (uint32_t l = 0; l < EVENT_LAYERS; l++)
		for (uint32_t r = 0; r < rows; r++)
			for (uint32_t k = 0; k < segments; k++) {
				const struct oki_segment_map *seg = &layers[l].segments[k];
				ck_assert(memcmp(layers[l].base + r * row + seg->page_offset,
						 run.host + r * run.host_pitch + seg->block_offset,
						 seg->bytes) == 0);
			}
	oki_cuda_plans_forget(&s->stream);
	free(host);
	free(pages);
	return calls.launches - launches;
}

/* One kernel for many layers, and every event behind its own layer's bytes. */
START_TEST(events_follow_their_layers)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	/* Again and again: the counters are used in turn, and those of two launches differ. */
	for (int n = 0; n < 5; n++) {
		ck_assert_int_eq(copy_with_events(&s, 1, 1), 1);
		ck_assert_int_eq(copy_with_events(&s, 300, 1), 1);
		ck_assert_int_eq(copy_with_events(&s, 40, 2), 2);
	}
	/* Layers are small and share their waits; large ones have one each. */
	int waits = calls.waits;
	copy_with_events(&s, 300, 1);
	ck_assert_int_eq(calls.waits - waits, 1); /* for the side stream */
	stage_fini(&s);
}
END_TEST

/* A driver without waits for a value: an event can follow a kernel only. */
START_TEST(events_without_counters)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	ck_assert_int_eq(copy_with_events(&s, 300, 1), EVENT_LAYERS);
	/* 1 MiB of layers end together; the first stretches are shorter. */
	ck_assert_int_eq(copy_with_events(&s, 1, 1), 3);
	stage_fini(&s);
}
END_TEST

/* More segments than one launch has room for. */
START_TEST(more_columns_than_one_launch)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	uint8_t *host = malloc(64 * 8 * 32), *pages = calloc(64, 8 * 64);
	uint64_t seed = 8;
	struct oki_layer_map layers[64];
	const struct oki_layer_map *maps[64];
	case_noise(&seed, host, 64 * 8 * 32);
	for (uint32_t l = 0; l < 64; l++) {
		layers[l] = (struct oki_layer_map){
			.base = pages + l * 512, .page_stride = 512, .segment_count = 8};
		for (uint32_t k = 0; k < 8; k++)
			layers[l].segments[k] = (struct oki_segment_map){
				.page_offset = k * 64, .block_offset = (l * 8 + k) * 32, 32};
		maps[l] = &layers[l];
	}
	struct oki_run run = {.host = host, .blocks = 1, .inner = 1};
	stage_counters(&s);
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 64, &run, 1);
	/* A layer's segments stay together. */
	uint32_t layers_each = OKI_GATHER_COLUMNS / 8;
	ck_assert_int_eq(calls.launches, (64 + layers_each - 1) / layers_each);
	for (uint32_t i = 0; i < 64 * 8; i++)
		ck_assert(memcmp(pages + i * 64, host + i * 32, 32) == 0);
	stage_fini(&s);
	free(host);
	free(pages);
}
END_TEST

static struct oki_cuda_load even(uint64_t bytes, double dma_ns, double kernel_ns)
{
	return (struct oki_cuda_load){.bytes = bytes,
				      .dma_ns = dma_ns,
				      .kernel_ns = kernel_ns,
				      .short_kernel_ns = kernel_ns};
}

START_TEST(the_faster_way_is_chosen)
{
	/* One long run: nothing beats one copy. */
	struct oki_cuda_load load = even(64 << 20, 1.21e6, 1.32e6);
	load.long_dma_ns = load.dma_ns;
	load.short_kernel_ns = 0;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* 2,048 rows of 2 KiB: each would be a copy of its own. */
	load = even(4 << 20, 2048 * 740., 84e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	/* Nearly even: no SM is taken for so little. */
	load = even(4 << 20, 88e3, 82e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* Copy engines busy for someone else: a short copy does not queue behind that. */
	load = even(64 << 10, 4.2e3, 1.3e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load.ahead = 128 << 20;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load = even(1 << 30, 19.4e6, 21e6);
	load.ahead = 128 << 20;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* Within an operation a small gain is not worth changing sides. */
	load = even(512 << 10, 22e3, 10.3e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.follows = true;
	load.last = OKI_CUDA_WAY_DMA;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load = even(512 << 10, 12.5e3, 10.3e3);
	load.follows = true;
	load.last = OKI_CUDA_WAY_KERNEL;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	/* Half in long runs, half in pieces: each by what suits it. */
	load = (struct oki_cuda_load){.bytes = 64 << 20,
				      .dma_ns = 12e6,
				      .kernel_ns = 2.4e6,
				      .long_dma_ns = 0.61e6,
				      .short_kernel_ns = 1.2e6};
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_BOTH);
}
END_TEST

/* From runs to a choice: a tidy tensor, a shuffled one, one of both kinds. */
START_TEST(runs_decide)
{
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	const uint64_t row = 8192;
	uint8_t *host = calloc(2304, row), *pages = calloc(2304, row);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = row,
				    .segment_count = 1,
				    .page_count = 2304,
				    .segments = {{0, 0, row}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run *runs = scattered(host, row, 256);
	struct oki_run tidy = {
		.host = host, .host_pitch = row, .blocks = 256, .page_pitch = 1, .inner = 1};
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &tidy, 1);
	ck_assert_int_eq(calls.launches, 0);
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, 256);
	ck_assert_int_eq(calls.launches, 1);
	ck_assert_int_eq(calls.waits, 0);
	stage_counters(&s);

	oki_cuda_plans_forget(&s.stream);
	case_noise(&(uint64_t){5}, host, 2304 * row);
	memset(pages, 0, 2304 * row);
	runs[128] = (struct oki_run){.host = host + 256 * row,
				     .host_pitch = row,
				     .blocks = 2048,
				     .page = 256,
				     .page_pitch = 1,
				     .inner = 1};
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, 129);
	ck_assert_int_eq(calls.launches, 2);
	ck_assert_int_eq(calls.waits, 2); /* the side stream for ours, ours for it */
	for (uint32_t i = 0; i < 128; i++)
		ck_assert(memcmp(pages + runs[i].page * row, runs[i].host, row) == 0);
	ck_assert(memcmp(pages + 256 * row, host + 256 * row, 2048 * row) == 0);
	stage_fini(&s);
	free(runs);
	free(host);
	free(pages);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda copy operations");
	TCase *tc = tcase_create("operations");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 4);
	tcase_add_test(tc, a_run_is_one_copy_per_segment);
	tcase_add_test(tc, two_loops_take_the_shorter_one);
	tcase_add_test(tc, contiguous_is_one_plain_copy);
	tcase_add_loop_test(tc, scattered_rows_share_a_call, 0, 2);
	tcase_add_test(tc, few_long_rows_join_the_batch);
	tcase_add_test(tc, a_pitch_no_2d_copy_has);
	tcase_add_test(tc, a_refused_copy_ends_the_layer);
	tcase_add_test(tc, layers_share_a_batch);
	tcase_add_loop_test(tc, every_path_moves_the_same_bytes, 0, 6);
	tcase_add_test(tc, the_kernel_gets_device_addresses);
	tcase_add_test(tc, one_table_for_all_layers);
	tcase_add_test(tc, kernels_overlap_at_their_ends);
	tcase_add_test(tc, events_follow_their_layers);
	tcase_add_test(tc, events_without_counters);
	tcase_add_test(tc, more_columns_than_one_launch);
	tcase_add_test(tc, the_faster_way_is_chosen);
	tcase_add_test(tc, runs_decide);
	suite_add_tcase(suite, tc);
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
