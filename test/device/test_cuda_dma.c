/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device on a real GPU, by each path: bytes against a plain loop, fences, events,
 * contexts, captures. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda/cuda_device.h"
#include "test/device/copy_case.h"
#include "test/device/cuda_fixture.h"
#include "test/device/same_runs.h"

static struct oki_mark *open_mark(void)
{
	struct oki_mark *mark = NULL;
	OKAY(ops->mark_create(device, &mark, &problem));
	return mark;
}

static void wait_mark(struct oki_mark *mark)
{
	int rc;
	while ((rc = ops->query(mark, &problem)) == 0)
		sched_yield();
	ck_assert_msg(rc == 1, "%s", problem.text);
}

#define HOST_ROOM (32u << 20)
#define PAGE_ROOM (64u << 20)

START_TEST(bytes_as_a_plain_loop)
{
	uint64_t seed = 21 + (uint64_t)_i;
	uint8_t *host = host_memory(HOST_ROOM), *pages = device_memory(PAGE_ROOM);
	uint8_t *want_host = malloc(HOST_ROOM), *want_pages = malloc(PAGE_ROOM);
	uint8_t *got_pages = malloc(PAGE_ROOM);
	struct oki_stream *stream = open_stream();
	struct oki_mark *mark = open_mark();
	OKAY(ops->pin(device, host, HOST_ROOM, false, &problem));
	for (int n = 0; n < 150; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 16 : 1);
		ck_assert_uint_le(c.host_bytes, HOST_ROOM);
		ck_assert_uint_le(c.pages_bytes, PAGE_ROOM);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		case_noise(&seed, want_host, c.host_bytes);
		case_noise(&seed, want_pages, c.pages_bytes);
		memcpy(host, want_host, c.host_bytes);
		MUST(cu.cuMemcpyHtoD((CUdeviceptr)pages, want_pages, c.pages_bytes));
		/* From pageable memory it returns before the bytes are in place. */
		MUST(cu.cuStreamSynchronize(NULL));
		case_place(&c, host, pages);
		case_expect(&c, host, direction, want_host, want_pages);
		const struct oki_layer_map *map = &c.map;
		ck_assert_int_eq(copy_same(ops, stream, direction, &map, NULL, 1, c.runs,
					   c.run_count, &problem),
				 1);
		OKAY(ops->record(stream, mark, &problem));
		wait_mark(mark);
		ops->stream_recycle(stream);
		MUST(cu.cuMemcpyDtoH(got_pages, (CUdeviceptr)pages, c.pages_bytes));
		ck_assert_msg(memcmp(host, want_host, c.host_bytes) == 0 &&
				      memcmp(got_pages, want_pages, c.pages_bytes) == 0,
			      "case %d of seed %d", n, _i);
	}
	ops->mark_destroy(mark);
	ops->stream_destroy(stream);
	ops->unpin(device, host);
	device_free(pages);
	munmap(host, HOST_ROOM);
	free(want_host);
	free(want_pages);
	free(got_pages);
}
END_TEST

/* A caller's stream that stands still until the test opens the gate. */
struct gate {
	_Atomic uint32_t *word; /* pinned */
};

static void gate_close(struct gate *gate, CUstream stream)
{
	void *word = NULL;
	MUST(device->api->host_alloc(&word, sizeof(*gate->word), CU_MEMHOSTALLOC_DEVICEMAP));
	gate->word = word;
	atomic_store(gate->word, 0);
	/* The GPU sees pinned memory where the CPU does. */
	MUST(cu.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)word, 1,
				    CU_STREAM_WAIT_VALUE_GEQ));
}

static void gate_open(struct gate *gate)
{
	atomic_store(gate->word, 1);
}

/* The stream is through it. */
static void gate_end(struct gate *gate)
{
	MUST(device->api->host_free((void *)gate->word));
}

static void copy_both_ways(struct oki_stream *stream, struct pool *p)
{
	for (int d = 0; d < 2; d++)
		ck_assert_int_eq(copy_same(ops, stream, (enum oki_direction)d, p->maps, NULL, 1,
					   &p->run, 1, &problem),
				 1);
	OKAY(ops->drain(stream, &problem));
	ops->stream_recycle(stream);
}

/*
 * The last writer of the pages is stuck in the caller's stream (0: its own, 1: the null stream,
 * 2: the second of two). A publish behind the fence sees what the writer wrote; one without it
 * is not held up.
 */
START_TEST(a_fence_waits_for_busy_streams)
{
	struct pool p, other;
	struct gate gate;
	CUstream busy = NULL, idle;
	struct oki_stream *fenced = open_stream(), *free_stream = open_stream();
	struct oki_mark *mark = open_mark(), *free_mark = open_mark();
	pool_init(&p);
	pool_init(&other);
	MUST(cu.cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	/* The first of everything may wait for the whole GPU. */
	MUST(cu.cuMemsetD8Async((CUdeviceptr)p.pages, 0xcd, PAGES * PAGE, idle));
	copy_both_ways(free_stream, &other);
	copy_both_ways(fenced, &p);
	MUST(cu.cuStreamSynchronize(idle));
	memset(p.host, 1, PAGES * PAGE);
	if (_i != 1)
		MUST(cu.cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));

	gate_close(&gate, busy);
	MUST(cu.cuMemsetD8Async((CUdeviceptr)p.pages, 0xab, PAGES * PAGE, busy));
	CUstream ready[2] = {idle, busy};
	ck_assert_int_eq(ops->fence(fenced, _i == 2 ? ready : &ready[1], _i == 2 ? 2 : 1, &problem),
			 1);
	ck_assert_int_eq(
		copy_same(ops, fenced, OKI_TO_BLOCKS, p.maps, NULL, 1, &p.run, 1, &problem), 1);
	OKAY(ops->record(fenced, mark, &problem));
	OKAY(ops->fence(free_stream, &idle, 1, &problem));
	ck_assert_int_eq(copy_same(ops, free_stream, OKI_TO_PAGES, other.maps, NULL, 1, &other.run,
				   1, &problem),
			 1);
	OKAY(ops->record(free_stream, free_mark, &problem));
	wait_mark(free_mark);
	ck_assert_int_eq(ops->query(mark, &problem), 0);
	ck_assert_int_eq(p.host[0], 1);

	gate_open(&gate);
	wait_mark(mark);
	for (size_t i = 0; i < PAGES * PAGE; i++)
		ck_assert(p.host[i] == 0xab);

	OKAY(ops->drain(fenced, &problem));
	gate_end(&gate);
	if (busy)
		MUST(cu.cuStreamDestroy(busy));
	MUST(cu.cuStreamDestroy(idle));
	ops->mark_destroy(mark);
	ops->mark_destroy(free_mark);
	ops->stream_destroy(fenced);
	ops->stream_destroy(free_stream);
	pool_fini(&p);
	pool_fini(&other);
}
END_TEST

/* A consumer that waits for the event on the GPU reads the restored bytes. */
START_TEST(an_event_comes_after_the_bytes)
{
	struct pool p;
	struct gate gate;
	CUstream writer, consumer;
	CUevent event;
	struct oki_stream *stream = open_stream();
	uint8_t *seen = host_memory(PAGES * PAGE);
	pool_init(&p);
	memset(p.host, 0x5c, PAGES * PAGE);
	MUST(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	MUST(cu.cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
	MUST(cu.cuStreamCreate(&consumer, CU_STREAM_NON_BLOCKING));
	OKAY(ops->pin(device, seen, PAGES * PAGE, false, &problem));
	OKAY(ops->check_events(device, &event, 1, &problem));

	gate_close(&gate, writer);
	MUST(cu.cuMemsetD8Async((CUdeviceptr)p.pages, 0, PAGES * PAGE, writer));
	ck_assert_int_eq(ops->fence(stream, &writer, 1, &problem), 1);
	ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem),
			 1);
	OKAY(ops->record_event(stream, event, &problem));
	OKAY(ops->check_events(device, &event, 1, &problem));
	MUST(cu.cuStreamWaitEvent(consumer, event, 0));
	MUST(cu.cuMemcpyDtoHAsync(seen, (CUdeviceptr)p.pages, PAGES * PAGE, consumer));
	gate_open(&gate);
	MUST(cu.cuStreamSynchronize(consumer));
	ck_assert(memcmp(seen, p.host, PAGES * PAGE) == 0);

	OKAY(ops->check_events(device, (CUevent[]){NULL, event, NULL}, 3, &problem));
	OKAY(ops->drain(stream, &problem));
	gate_end(&gate);
	MUST(cu.cuEventDestroy(event));
	MUST(cu.cuStreamDestroy(writer));
	MUST(cu.cuStreamDestroy(consumer));
	ops->stream_destroy(stream);
	ops->unpin(device, seen);
	munmap(seen, PAGES * PAGE);
	pool_fini(&p);
}
END_TEST

static void *use_everything(void *arg)
{
	struct pool *p = arg;
	CUcontext before, after;
	uint8_t id[16] = {0}, zero[16] = {0};
	int32_t node;
	MUST(cu.cuCtxGetCurrent(&before));
	struct oki_device_config config = {.copy_path = copy_path};
	struct oki_device *second;
	OKAY(ops->open(&config, &second, &problem));
	struct oki_stream *stream = open_stream();
	struct oki_mark *mark = open_mark();
	ops->identify(device, id, &node);
	ck_assert_int_ge(node, -1);
	ck_assert(memcmp(id, zero, 16) != 0);
	OKAY(ops->check_memory(device, p->pages, PAGES * PAGE, &problem));
	OKAY(ops->pin(second, p->host, PAGES * PAGE, false, &problem));
	ck_assert_int_eq(
		copy_same(ops, stream, OKI_TO_PAGES, p->maps, NULL, 1, &p->run, 1, &problem), 1);
	OKAY(ops->record(stream, mark, &problem));
	wait_mark(mark);
	OKAY(ops->drain(stream, &problem));
	ops->unpin(second, p->host);
	ops->mark_destroy(mark);
	ops->stream_destroy(stream);
	ops->close(second);
	MUST(cu.cuCtxGetCurrent(&after));
	ck_assert_ptr_eq(before, after);
	return NULL;
}

START_TEST(the_current_context_stays)
{
	struct pool p;
	pthread_t bare;
	pool_init(&p);
	use_everything(&p);
	ck_assert_int_eq(pthread_create(&bare, NULL, use_everything, &p), 0);
	pthread_join(bare, NULL);
	pool_fini(&p);
}
END_TEST

/* A stream under capture is refused, and polling beside a global capture does not break it. */
START_TEST(captures_are_refused_and_survive)
{
	struct pool p;
	CUstream stream, blocking, none = NULL;
	CUgraph graph = NULL;
	struct oki_stream *copies = open_stream();
	struct oki_mark *mark = open_mark();
	pool_init(&p);
	MUST(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	MUST(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));

	MUST(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	ck_assert_int_eq(ops->fence(copies, &stream, 1, &problem), OKV_E_INVAL);
	ck_assert_int_eq(copy_same(ops, copies, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem),
			 1);
	OKAY(ops->record(copies, mark, &problem));
	wait_mark(mark);
	OKAY(ops->drain(copies, &problem));
	MUST(cu.cuStreamEndCapture(stream, &graph));
	MUST(cu.cuGraphDestroy(graph));

	MUST(cu.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
	ck_assert_int_eq(ops->fence(copies, &none, 1, &problem), OKV_E_INVAL);
	MUST(cu.cuStreamEndCapture(blocking, &graph));
	MUST(cu.cuGraphDestroy(graph));
	OKAY(ops->fence(copies, &none, 1, &problem));

	MUST(cu.cuStreamDestroy(stream));
	MUST(cu.cuStreamDestroy(blocking));
	ops->mark_destroy(mark);
	ops->stream_destroy(copies);
	pool_fini(&p);
}
END_TEST

static void add_tests(TCase *tc)
{
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 4);
	tcase_add_loop_test(tc, a_fence_waits_for_busy_streams, 0, 3);
	tcase_add_test(tc, an_event_comes_after_the_bytes);
	tcase_add_test(tc, the_current_context_stays);
	tcase_add_test(tc, captures_are_refused_and_survive);
}

int main(void)
{
	int rc = find_gpu(OKV_COPY_AUTO);
	return rc != 0 ? rc : run_each_path("cuda", add_tests);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
