/* SPDX-License-Identifier: Apache-2.0 */
/* How long kernels wait for SMs, what that decides, and what a publish leaves to a restore. No GPU
 * and no clock but ours: the probe's events say what a test wants. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include <time.h>

#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_stage.h"
#include "support/suite.h"

#define ROW 4096u
#define ROWS 256u
#define ENOUGH 32u /* looks, for what was before to be forgotten */
#define US 1000ull
#define MS 1000000ull

static uint64_t now_ns;

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	(void)clock;
	*ret_time = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
	return 0;
}

static struct {
	CUresult reached, elapsed, launched; /* what these calls say */
	float ms;
	uint64_t call_ns; /* so long a launch takes the CPU */
	int launches, queries, streams, events, unloads;
	unsigned threads;
	uint32_t stands; /* how far the probe's stream is: FROM, the kernel */
} probe;

/* The probe's own, by the order in which they are made. */
#define PROBE_STREAM ((CUstream)(uintptr_t)65)
#define FROM ((CUevent)(uintptr_t)3001)
#define TO ((CUevent)(uintptr_t)3002)

/* That it has not ended may go on for long. */
static CUresult probe_query(CUevent event)
{
	if (event != MARK)
		ck_assert_ptr_eq(event, TO);
	probe.queries++;
	now_ns += 100;
	return probe.reached;
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
	probe.threads = bx;
	ck_assert_uint_eq(probe.stands++, 1);
	probe.launches++;
	now_ns += probe.call_ns;
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
	ck_assert_int_eq(flags == CU_EVENT_DEFAULT, probe.events < 2);
	*ret_event = probe.events < 2 ? (CUevent)(uintptr_t)(3001 + probe.events) : MARK;
	probe.events++;
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
	now_ns = 1000 * MS;
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

/* The worker has time, again and again. */
static void go_on(uint64_t ns)
{
	for (const uint64_t end = now_ns + ns; now_ns < end; now_ns += 10 * US)
		oki_cuda_probe_look(&s.device, now_ns);
}

static double wait_ns(void)
{
	return oki_cuda_probe_wait(&s.device.probe);
}

/* The next look that is launched finds this. */
static void look(double ms)
{
	int launches = probe.launches, steps = 0;
	probe.ms = (float)ms;
	for (; probe.launches == launches || s.device.probe.out; steps++) {
		ck_assert_int_lt(steps, 10000);
		go_on(10 * US);
	}
	ck_assert_int_eq(probe.launches, launches + 1);
}

/* A new operation of scattered rows: the kernel is faster, if it does not wait. */
static bool next_by_kernel(enum oki_direction direction)
{
	struct oki_layer_copy layer = {.map = &map, .runs = runs, .run_count = ROWS};
	oki_cuda_plans_forget(&s.stream);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, direction, &layer, 1, NULL), 1);
	return s.stream.by_kernel;
}

START_TEST(what_kernels_waited_decides)
{
	ck_assert(next_by_kernel(OKI_TO_PAGES));
	/* An idle GPU. */
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(0.009);
	ck_assert(next_by_kernel(OKI_TO_PAGES));
	ck_assert(wait_ns() == 0);
	/* It needs as much of an SM as a restore. */
	ck_assert_uint_eq(probe.threads, calls.threads);
	/* A model, in whose blocks it waits for longer than the copy engines take. */
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(15);
	ck_assert(!next_by_kernel(OKI_TO_PAGES));
	/* That is what is known, until somebody looks again. */
	int launches = probe.launches;
	ck_assert(!next_by_kernel(OKI_TO_BLOCKS));
	ck_assert_int_eq(probe.launches, launches);
	/* It has gone. */
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(0.004);
	ck_assert(wait_ns() == 0);
	ck_assert(next_by_kernel(OKI_TO_PAGES));
}
END_TEST

/* The link delays one now and then, and a model lets some through. */
START_TEST(no_look_decides_alone)
{
	for (uint32_t i = 0; i < 2 * ENOUGH; i++) {
		look(i % 16 == 3 ? 5 : 0.004);
		ck_assert(wait_ns() == 0);
	}
	for (uint32_t i = 0; i < 2 * ENOUGH; i++) {
		look(i % 4 == 3 ? 0.004 : 5);
		ck_assert(i < ENOUGH || wait_ns() > 4.9e6);
	}
}
END_TEST

/* What the launch takes the CPU is no wait for an SM: the first event may be there before it. */
START_TEST(a_slow_call_is_no_wait)
{
	probe.call_ns = MS / 4;
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(0.254);
	ck_assert(wait_ns() == 0);
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(8);
	ck_assert(wait_ns() > 7.7e6 && wait_ns() < 7.8e6);
}
END_TEST

/* So many are launched in a second. */
static int launches_of(double ms)
{
	int launches = probe.launches;
	probe.ms = (float)ms;
	go_on(1000 * MS);
	return probe.launches - launches;
}

/* More often beside a model, which may be gone soon; and never so often that they are in the way.
 */
START_TEST(looks_now_and_then)
{
	oki_cuda_probe_look(&s.device, now_ns);
	ck_assert_int_eq(probe.launches, 1);
	launches_of(0.004);
	int idle = launches_of(0.004);
	launches_of(1);
	int held = launches_of(1);
	ck_assert_int_ge(idle, 100);
	ck_assert_int_gt(held, idle);
	ck_assert_int_le(held, 5000);
}
END_TEST

/* One at a time: while it waits nothing new is known, and its end is not asked for all the time. */
START_TEST(one_that_still_waits)
{
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(2);
	double known = wait_ns();
	probe.reached = CUDA_ERROR_NOT_READY;
	go_on(10 * MS);
	int launches = probe.launches, queries = probe.queries;
	go_on(10 * MS);
	ck_assert_int_eq(probe.launches, launches);
	ck_assert(wait_ns() == known);
	/* The worker was here a thousand times. */
	ck_assert_int_gt(probe.queries, queries);
	ck_assert_int_lt(probe.queries, queries + 500);
	/* Then that is what it took. */
	probe.ms = 20;
	probe.reached = CUDA_SUCCESS;
	go_on(MS / 2);
	ck_assert(wait_ns() > 19.9e6);
	/* Not ended at the end: its module stays. */
	probe.reached = CUDA_ERROR_NOT_READY;
	go_on(10 * MS);
	ck_assert(!oki_cuda_probe_fini(&s.device));
	ck_assert(oki_cuda_probe_fini(&s.device));
}
END_TEST

/* Where it fails nothing else does, and what was found before holds no longer. */
START_TEST(does_without)
{
	struct oki_cuda_probe *p = &s.device.probe;
	for (uint32_t i = 0; i < ENOUGH; i++)
		look(50);
	ck_assert(!next_by_kernel(OKI_TO_PAGES));
	int launches = probe.launches;
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
	go_on(10 * MS);
	ck_assert(!p->works && !p->out && wait_ns() == 0);
	ck_assert(next_by_kernel(OKI_TO_PAGES));
	go_on(100 * MS);
	ck_assert(next_by_kernel(OKI_TO_PAGES));
	ck_assert_int_eq(probe.launches, launches + (_i < 3 ? 1 : 0));
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

/* ---- what a publish leaves ---- */

/* The last launch's, on all SMs, always. */
static double pace_of_next(enum oki_direction direction)
{
	ck_assert(next_by_kernel(direction));
	ck_assert_uint_eq(calls.blocks, s.device.sms);
	return calls.last.pace;
}

/* Bytes per ns, by what the next one says of its end. */
static double rate_of_publish(void)
{
	ck_assert(pace_of_next(OKI_TO_BLOCKS) > 0);
	return (double)ROWS * ROW / calls.last.lasts_ns;
}

/* By the link of its own direction, however many write; a restore goes as fast as it can. */
START_TEST(a_publish_leaves_gaps)
{
	const double link = s.device.link[OKI_TO_BLOCKS], rate = rate_of_publish();
	/* A part of what the link has, but not much less than that. */
	ck_assert(rate < link && rate > 0.8 * link);
	s.device.link[OKI_TO_PAGES] /= 2;
	s.device.sms = 2;
	ck_assert(rate_of_publish() == rate);
	s.device.link[OKI_TO_BLOCKS] /= 2;
	ck_assert(rate_of_publish() < link / 2);
	ck_assert(pace_of_next(OKI_TO_PAGES) == 0);
}
END_TEST

/* Whatever rows there are, however many SMs: no more than it may, but for what a whole number cuts
 * off, and the most of that where rows are long. */
START_TEST(a_publish_keeps_its_rate)
{
	static const double rates[] = {3, 24, 400};
	for (uint32_t bytes = 64; bytes <= 1u << 24; bytes *= 16)
		for (uint32_t sms = 1; sms <= 64; sms *= 4)
			for (uint32_t r = 0; r < 3; r++) {
				const struct oki_cuda_budget budget = {sms, rates[r], rates[r] / 2};
				struct oki_cuda_table table = {.device = 8, .count = 4096};
				const struct oki_cuda_table *tables[] = {&table};
				const struct oki_layer_map *maps[] = {&map};
				struct oki_cuda_launch l;
				map.page_stride = map.segments[0].bytes = bytes;
				oki_cuda_launch_fill(tables, OKI_TO_BLOCKS, maps, 0, 1, &budget,
						     &l);
				bool holds = true;
				for (uint32_t n = 1; n <= l.gather.tile; n++)
					holds = holds &&
						rate_of_pace(&l, l.gather.pace, n) <
							1.01 * rates[r] &&
						rate_of_pace(&l, l.gather.beside_pace, n) <
							1.01 * rates[r] / 2;
				ck_assert(holds);
				if (bytes >= 1u << 16)
					ck_assert(rate_of_pace(&l, l.gather.pace, l.gather.tile) >
						  0.9 * rates[r]);
			}
}
END_TEST

/* Its next kernels begin when the one before is through, by what that says; the first one of a
 * part, or of another operation, has none before it. */
START_TEST(publishes_take_turns)
{
	struct oki_layer_copy layer = {.map = &map, .runs = runs, .run_count = ROWS};
	uint64_t *until[2] = {NULL, NULL};
	for (int n = 0; n < 6; n++) {
		ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_BLOCKS, &layer, 1, NULL), 1);
		const struct oki_gather *g = &calls.last;
		ck_assert_ptr_nonnull(g->until);
		ck_assert_uint_gt(g->lasts_ns, 0);
		ck_assert_ptr_eq(g->until_before, until[!(n % 2)]);
		ck_assert(n < 2 || g->until == until[n % 2]);
		until[n % 2] = g->until;
	}
	layer.run_count--;
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_BLOCKS, &layer, 1, NULL), 1);
	ck_assert_ptr_null(calls.last.until_before);
	next_by_kernel(OKI_TO_BLOCKS);
	ck_assert_ptr_null(calls.last.until_before);
}
END_TEST

/* Where a kernel can look itself, and so slow down while it is at work, or where it cannot. */
static _Atomic uint32_t word;

static void show_restores(bool shown)
{
	s.device.restores = shown ? &word : &s.device.own_restores;
	s.device.restores_at = shown ? (CUdeviceptr)(uintptr_t)&word : 0;
	atomic_store(s.device.restores, 0);
}

/* Of a kernel that is launched now. */
static bool makes_way(double pace)
{
	double now = pace_of_next(OKI_TO_BLOCKS);
	bool looks = calls.last.restores;
	if (looks) {
		ck_assert_ptr_eq(calls.last.restores, (const uint32_t *)(uintptr_t)&word);
		ck_assert_ptr_nonnull(calls.last.beside);
		ck_assert(now == pace && calls.last.beside_pace > pace);
	}
	return looks ? *calls.last.restores : now > pace;
}

/* Beside a restore a publish takes less, and all when that has ended. */
START_TEST(a_publish_makes_way)
{
	struct oki_stream restores[2] = {{.device = &s.device, .stream = STREAM},
					 {.device = &s.device, .stream = STREAM}};
	struct oki_layer_copy layer = {.map = &map, .runs = runs, .run_count = ROWS};
	double pace = pace_of_next(OKI_TO_BLOCKS);
	/* Without counters there is no memory to tell each other in. */
	if (_i == 2)
		s.stream.counters = 0;
	show_restores(_i > 0);
	ck_assert(!makes_way(pace));
	/* Each counts once, however many calls it has. */
	for (uint32_t n = 0; n < 4; n++) {
		ck_assert_int_eq(oki_cuda_submit(&restores[n / 2], OKI_TO_PAGES, &layer, 1, NULL),
				 1);
		ck_assert_uint_eq(atomic_load(s.device.restores), 1 + n / 2);
		ck_assert(calls.last.pace == 0 && calls.blocks == s.device.sms);
		ck_assert(makes_way(pace));
	}
	for (uint32_t n = 0; n < 2; n++) {
		ck_assert(makes_way(pace));
		oki_cuda_plans_forget(&restores[n]);
		oki_cuda_plans_forget(&restores[n]);
		oki_cuda_chunks_free(&restores[n]);
		ck_assert_uint_eq(atomic_load(s.device.restores), 1 - n);
	}
	ck_assert(!makes_way(pace));
	/* Nor does a publish count as one, or one restore hold up another. */
	ck_assert_uint_eq(atomic_load(s.device.restores), 0);
	ck_assert(pace_of_next(OKI_TO_PAGES) == 0);
	ck_assert_uint_eq(atomic_load(s.device.restores), 1);
	s.stream.counters = s.stream.counter_memory;
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda probe");
	TCase *tcase = tcase_create("probe");
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, what_kernels_waited_decides);
	tcase_add_test(tcase, no_look_decides_alone);
	tcase_add_test(tcase, a_slow_call_is_no_wait);
	tcase_add_test(tcase, looks_now_and_then);
	tcase_add_test(tcase, one_that_still_waits);
	tcase_add_loop_test(tcase, does_without, 0, 4);
	tcase_add_loop_test(tcase, the_worker_looks_while_it_waits, 0, 2);
	tcase_add_test(tcase, a_publish_leaves_gaps);
	tcase_add_test(tcase, a_publish_keeps_its_rate);
	tcase_add_test(tcase, publishes_take_turns);
	tcase_add_loop_test(tcase, a_publish_makes_way, 0, 3);
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
