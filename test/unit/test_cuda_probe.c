/* How long kernels wait for SMs, what that decides, and what a publish leaves to a restore. No GPU:
 * the probe's events say what a test wants. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/device/copy_case.h"
#include "test/unit/fake_stage.h"
#include "support/suite.h"

#define ROW 4096u
#define ROWS 256u
#define MS 1000000ull

static struct {
	CUresult begun, reached, elapsed, launched; /* what these calls say */
	float ms;
	int launches, streams, events, unloads;
	uint32_t stands; /* how far the probe's stream is: FROM, the kernel */
} probe;

/* The probe's own, by the order in which they are made. */
#define PROBE_STREAM ((CUstream)(uintptr_t)65)
#define FROM ((CUevent)(uintptr_t)3001)
#define TO ((CUevent)(uintptr_t)3002)

static CUresult probe_query(CUevent event)
{
	return event == FROM ? probe.begun : probe.reached;
}

/* Before the kernel, and behind it. */
static CUresult probe_record(CUevent event, CUstream stream)
{
	if (event != FROM && event != TO)
		return fake_record(event, stream);
	ck_assert_ptr_eq(stream, PROBE_STREAM);
	ck_assert_uint_eq(probe.stands, event == FROM ? 0 : 2);
	probe.stands = event == FROM;
	return CUDA_SUCCESS;
}

static CUresult probe_elapsed(float *ret_ms, CUevent from, CUevent to)
{
	ck_assert_ptr_eq(from, FROM);
	ck_assert_ptr_eq(to, TO);
	*ret_ms = probe.ms;
	return probe.elapsed;
}

static CUresult probe_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
			     unsigned bx, unsigned by, unsigned bz, unsigned shared,
			     CUstream stream, void **parameters, void **extra)
{
	const struct oki_gather *g = parameters[0];
	if (g->column_count)
		return fake_launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters,
				   extra);
	ck_assert_ptr_eq(stream, PROBE_STREAM);
	ck_assert_uint_eq(gx, 1);
	/* As much of an SM as a restore needs. */
	ck_assert_uint_eq(bx, OKI_GATHER_THREADS);
	ck_assert_uint_eq(probe.stands++, 1);
	probe.launches++;
	return probe.launched;
}

static CUresult probe_stream_create(CUstream *ret_stream, unsigned flags, int priority)
{
	(void)flags, (void)priority;
	*ret_stream = (CUstream)(uintptr_t)(64 + ++probe.streams);
	return CUDA_SUCCESS;
}

static CUresult probe_stream_destroy(CUstream stream)
{
	(void)stream;
	probe.streams--;
	return CUDA_SUCCESS;
}

static CUresult probe_event_create(CUevent *ret_event, unsigned flags)
{
	if (probe.events < 2)
		ck_assert_uint_eq(flags, CU_EVENT_DEFAULT);
	*ret_event = (CUevent)(uintptr_t)(3000 + ++probe.events);
	return CUDA_SUCCESS;
}

static CUresult probe_event_destroy(CUevent event)
{
	(void)event;
	probe.events--;
	return CUDA_SUCCESS;
}

static struct stage s;
static uint8_t *host, *pages;
static struct oki_run *runs;
static struct oki_layer_map map;

static void setup(void)
{
	memset(&probe, 0, sizeof(probe));
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.api.event_query = probe_query;
	s.api.event_record = probe_record;
	s.api.event_elapsed = probe_elapsed;
	s.api.launch = probe_launch;
	s.api.stream_create = probe_stream_create;
	s.api.stream_destroy = probe_stream_destroy;
	s.api.event_create = probe_event_create;
	s.api.event_destroy = probe_event_destroy;
	oki_cuda_probe_init(&s.device);
	ck_assert_int_eq(probe.streams, 1);
	ck_assert_int_eq(probe.events, 2);
	host = calloc(ROWS, ROW);
	pages = calloc(ROWS, ROW);
	runs = scattered(host, ROW, ROWS);
	map = (struct oki_layer_map){.base = pages,
				     .page_stride = ROW,
				     .page_count = ROWS,
				     .segment_count = 1,
				     .segments = {{0, 0, ROW}}};
}

static void teardown(void)
{
	stage_fini(&s);
	oki_cuda_probe_fini(&s.device);
	ck_assert_int_eq(probe.streams, 0);
	ck_assert_int_eq(probe.events, 0);
	free(runs);
	free(host);
	free(pages);
}

/* The calls of a launch take 3 us, as far as the probe knows. */
static void look(uint64_t now_ns)
{
	oki_cuda_probe_launch(&s.device, now_ns);
	s.device.probe.call_ns = 3000;
}

/* A new operation of scattered rows: the kernel is faster, if it does not wait. */
static enum oki_cuda_way way_of_next(enum oki_direction direction)
{
	struct oki_layer_copy layer = {.map = &map, .runs = runs, .run_count = ROWS};
	oki_cuda_plans_forget(&s.stream);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, direction, &layer, 1, NULL), 1);
	return s.stream.way;
}

START_TEST(what_a_kernel_waited_decides)
{
	uint64_t now = MS;
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_KERNEL);
	/* An idle GPU, however little of that was our call. */
	probe.ms = 0.009f;
	look(now += MS);
	s.device.probe.call_ns = 0;
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_KERNEL);
	ck_assert(s.device.probe.wait_ns == 0);
	/* A model, in whose blocks it waits for longer than the copy engines take. */
	probe.ms = 1.5f;
	look(now += MS);
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_DMA);
	/* That is what is known, until somebody looks again. */
	ck_assert_int_eq(way_of_next(OKI_TO_BLOCKS), OKI_CUDA_WAY_DMA);
	ck_assert_int_eq(probe.launches, 2);
	/* It has gone, but one look is not enough. */
	probe.ms = 0.004f;
	look(now += MS);
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_DMA);
	look(now += MS);
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_KERNEL);
}
END_TEST

START_TEST(looks_now_and_then)
{
	look(5 * MS);
	ck_assert_int_eq(probe.launches, 1);
	look(5 * MS + MS / 2 - 1);
	ck_assert_int_eq(probe.launches, 1);
	/* What the last one found is taken first, whoever needs it. */
	probe.ms = 1.5f;
	look(5 * MS + MS / 2);
	ck_assert_int_eq(probe.launches, 2);
	ck_assert(s.device.probe.wait_ns > 1.4e6);
	/* One at a time. */
	probe.reached = CUDA_ERROR_NOT_READY;
	look(50 * MS);
	ck_assert_int_eq(probe.launches, 2);
	probe.reached = CUDA_SUCCESS;
	look(50 * MS);
	ck_assert_int_eq(probe.launches, 3);
}
END_TEST

/* One that still waits says how long it has, at least. */
START_TEST(one_that_still_waits)
{
	probe.reached = CUDA_ERROR_NOT_READY;
	look(MS);
	ck_assert(oki_cuda_probe_wait(&s.device, MS + 12000) == 0);
	/* The GPU has not come to it: it may wait for anything. */
	probe.begun = CUDA_ERROR_NOT_READY;
	ck_assert(oki_cuda_probe_wait(&s.device, 3 * MS) == 0);
	probe.begun = CUDA_SUCCESS;
	ck_assert(oki_cuda_probe_wait(&s.device, 3 * MS) == 2e6 - 3000);
	ck_assert(oki_cuda_probe_wait(&s.device, 4 * MS) == 3e6 - 3000);
	probe.reached = CUDA_SUCCESS;
	probe.ms = 0.5f;
	ck_assert(oki_cuda_probe_wait(&s.device, 9 * MS) == 5e5 - 3000);
	/* The next one has not waited so long yet, which says nothing. */
	probe.reached = CUDA_ERROR_NOT_READY;
	look(10 * MS);
	ck_assert(oki_cuda_probe_wait(&s.device, 10 * MS + 20000) == 5e5 - 3000);
	/* Not ended at the end: its module stays. */
	ck_assert(!oki_cuda_probe_fini(&s.device));
	ck_assert(oki_cuda_probe_fini(&s.device));
}
END_TEST

/* Where it fails nothing else does, and what one found before holds no longer. */
START_TEST(does_without)
{
	struct oki_cuda_probe *p = &s.device.probe;
	probe.ms = 5;
	look(MS / 2);
	ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_DMA);
	if (_i == 0)
		probe.launched = CUDA_ERROR_LAUNCH_FAILED;
	if (_i == 1)
		probe.reached = CUDA_ERROR_LAUNCH_FAILED;
	if (_i == 2)
		probe.elapsed = CUDA_ERROR_INVALID_HANDLE;
	if (_i == 3) {
		oki_cuda_probe_fini(&s.device);
		s.api.event_elapsed = NULL;
		oki_cuda_probe_init(&s.device);
	}
	for (uint64_t now = MS; now < 9 * MS; now += MS) {
		look(now);
		ck_assert_int_eq(way_of_next(OKI_TO_PAGES), OKI_CUDA_WAY_KERNEL);
	}
	ck_assert(!p->works && !p->out && p->wait_ns == 0);
	ck_assert_int_eq(probe.launches, _i < 3 ? 2 : 1);
	/* Of a kernel that nobody can ask about any more the module stays. */
	ck_assert_int_eq(oki_cuda_probe_fini(&s.device), _i != 1);
}
END_TEST

static CUresult probe_unload(CUmodule module)
{
	(void)module;
	probe.unloads++;
	return CUDA_SUCCESS;
}

static CUresult probe_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}

/* The worker that asks for a copy's end has time to look, if it did not end yet; and a kernel that
 * is still out when the device is closed keeps its module. */
START_TEST(the_worker_looks_while_it_waits)
{
	const struct oki_device_ops *ops = &oki_device_cuda;
	struct oki_device *device = malloc(sizeof(*device));
	struct oki_mark *mark;
	s.api.module_unload = probe_unload;
	s.api.primary_release = probe_release;
	*device = s.device;
	s.device.probe = (struct oki_cuda_probe){0};
	device->module = (CUmodule)(uintptr_t)1;
	ck_assert_int_eq(ops->mark_create(device, &mark, NULL), 0);
	ck_assert_int_eq(ops->query(mark, NULL), 1);
	ck_assert_int_eq(probe.launches, 0);
	probe.reached = CUDA_ERROR_NOT_READY;
	for (int n = 0; n < 3; n++)
		ck_assert_int_eq(ops->query(mark, NULL), 0);
	ck_assert_int_eq(probe.launches, 1);
	ops->mark_destroy(mark);
	if (_i)
		probe.reached = CUDA_SUCCESS;
	ops->close(device);
	ck_assert_int_eq(probe.unloads, _i);
}
END_TEST

/* By the link of its own direction; a restore has all threads there are. */
START_TEST(a_publish_leaves_gaps)
{
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.threads, 256);
	s.device.rates[OKI_TO_PAGES].link /= 2;
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.threads, 256);
	s.device.rates[OKI_TO_BLOCKS].link /= 2;
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.threads, 128);
	way_of_next(OKI_TO_PAGES);
	ck_assert_uint_eq(calls.threads, OKI_GATHER_THREADS);
}
END_TEST

/* Beside a restore a publish has few SMs, and all of them when that has ended. */
START_TEST(a_publish_makes_way)
{
	struct oki_stream restore = {.device = &s.device};
	struct oki_layer_copy layer = {.map = &map, .runs = runs, .run_count = ROWS};
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.blocks, 4);
	ck_assert_uint_eq(atomic_load(&s.device.active[OKI_TO_BLOCKS]), 1);
	oki_cuda_plans_forget(&s.stream);
	ck_assert_uint_eq(atomic_load(&s.device.active[OKI_TO_BLOCKS]), 0);
	/* It counts once, however many calls it has. */
	for (int n = 0; n < 2; n++)
		ck_assert_int_eq(oki_cuda_ways_copy(&restore, OKI_TO_PAGES, &layer, 1, NULL), 1);
	ck_assert_uint_eq(calls.blocks, 4);
	ck_assert_uint_eq(atomic_load(&s.device.active[OKI_TO_PAGES]), 1);
	/* A part of them, but one at least. */
	for (s.device.sms = 1; s.device.sms <= 9; s.device.sms++) {
		way_of_next(OKI_TO_BLOCKS);
		ck_assert_uint_eq(calls.blocks, (s.device.sms + 3) / 4);
	}
	s.device.sms = 4;
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.blocks, 1);
	/* Then it takes longer, and copy engines are the better way sooner. */
	s.device.rates[OKI_TO_BLOCKS].entry_least_ns = 120;
	ck_assert_int_eq(way_of_next(OKI_TO_BLOCKS), OKI_CUDA_WAY_DMA);
	atomic_fetch_sub(&s.device.active[OKI_TO_PAGES], 1);
	ck_assert_int_eq(way_of_next(OKI_TO_BLOCKS), OKI_CUDA_WAY_KERNEL);
	atomic_fetch_add(&s.device.active[OKI_TO_PAGES], 1);
	way_of_next(OKI_TO_PAGES);
	ck_assert_uint_eq(calls.blocks, 4);
	oki_cuda_plans_forget(&s.stream);
	oki_cuda_plans_forget(&restore);
	oki_cuda_chunks_free(&restore);
	ck_assert_uint_eq(atomic_load(&s.device.active[OKI_TO_PAGES]), 0);
	way_of_next(OKI_TO_BLOCKS);
	ck_assert_uint_eq(calls.blocks, 4);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda probe");
	TCase *tcase = tcase_create("probe");
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, what_a_kernel_waited_decides);
	tcase_add_test(tcase, looks_now_and_then);
	tcase_add_test(tcase, one_that_still_waits);
	tcase_add_loop_test(tcase, does_without, 0, 4);
	tcase_add_loop_test(tcase, the_worker_looks_while_it_waits, 0, 2);
	tcase_add_test(tcase, a_publish_leaves_gaps);
	tcase_add_test(tcase, a_publish_makes_way);
	suite_add_tcase(suite, tcase);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
