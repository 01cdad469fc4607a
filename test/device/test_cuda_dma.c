/* The CUDA device on a real GPU, by each path: bytes against a plain loop, fences, events,
 * contexts, registration. */
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include <cuda.h>

#include "support/suite.h"
#include "test/device/copy_case.h"

static const struct oki_device_ops *const ops = &oki_device_cuda;
static uint32_t path; /* enum okv_copy_path */

/* The driver, as the engine beside us would use it. */
#define CALLS(CALL)                         \
	CALL(cuDevicePrimaryCtxRetain)      \
	CALL(cuDevicePrimaryCtxRelease)     \
	CALL(cuCtxSetCurrent)               \
	CALL(cuCtxGetCurrent)               \
	CALL(cuMemAlloc)                    \
	CALL(cuMemAllocManaged)             \
	CALL(cuMemAllocAsync)               \
	CALL(cuMemFree)                     \
	CALL(cuMemHostRegister)             \
	CALL(cuMemHostUnregister)           \
	CALL(cuMemHostGetFlags)             \
	CALL(cuMemsetD8Async)               \
	CALL(cuMemcpyHtoD)                  \
	CALL(cuMemcpyDtoH)                  \
	CALL(cuMemcpyDtoHAsync)             \
	CALL(cuLaunchHostFunc)              \
	CALL(cuStreamCreate)                \
	CALL(cuStreamDestroy)               \
	CALL(cuStreamSynchronize)           \
	CALL(cuStreamWaitEvent)             \
	CALL(cuStreamBeginCapture)          \
	CALL(cuStreamEndCapture)            \
	CALL(cuGraphDestroy)                \
	CALL(cuEventCreate)                 \
	CALL(cuEventDestroy)                \
	CALL(cuMemGetAllocationGranularity) \
	CALL(cuMemAddressReserve)           \
	CALL(cuMemAddressFree)              \
	CALL(cuMemCreate)                   \
	CALL(cuMemRelease)                  \
	CALL(cuMemMap)                      \
	CALL(cuMemUnmap)                    \
	CALL(cuMemSetAccess)

#define NAME(symbol) NAME_EXPANDED(symbol)
#define NAME_EXPANDED(symbol) #symbol
#define FIELD(symbol) __typeof__(symbol) *symbol;
static struct {
	CALLS(FIELD)
} cu;

/* The primary context, current in the test's thread. */
static CUcontext primary;
static struct oki_device *device;

#define MUST(call) ck_assert_int_eq((call), CUDA_SUCCESS)
#define OKAY(call)                                                          \
	do {                                                                \
		int okay_rc = (call);                                       \
		ck_assert_msg(okay_rc == 0, "%s: %s", #call, problem.text); \
	} while (0)

static struct okv_error problem;

/* 77 with a reason if there is no GPU here. */
static int find_gpu(void)
{
	struct oki_device_config config = {0};
	struct okv_error err = {0};
	struct oki_device *probe;
	int rc = ops->open(&config, &probe, &err);
	if (rc == OKV_E_UNSUPPORTED) {
		printf("skipped: %s\n", err.text);
		return 77;
	}
	if (rc < 0) {
		printf("cannot open GPU 0: %s\n", err.text);
		return EXIT_FAILURE;
	}
	ops->close(probe);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define LOAD(symbol)                                                              \
	if (!(cu.symbol = (__typeof__(cu.symbol))dlsym(library, NAME(symbol)))) { \
		puts("the driver has no " NAME(symbol));                          \
		return EXIT_FAILURE;                                              \
	}
	CALLS(LOAD)
	return 0;
}

static void setup(void)
{
	struct oki_device_config config = {.copy_path = path};
	MUST(cu.cuDevicePrimaryCtxRetain(&primary, 0));
	MUST(cu.cuCtxSetCurrent(primary));
	OKAY(ops->open(&config, &device, &problem));
}

static void teardown(void)
{
	ops->close(device);
	MUST(cu.cuCtxSetCurrent(NULL));
	MUST(cu.cuDevicePrimaryCtxRelease(0));
}

static void *host_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

static uint8_t *device_memory(size_t bytes)
{
	CUdeviceptr p;
	MUST(cu.cuMemAlloc(&p, bytes));
	return (uint8_t *)p;
}

static void device_free(void *p)
{
	MUST(cu.cuMemFree((CUdeviceptr)p));
}

static struct oki_stream *open_stream(void)
{
	struct oki_stream *stream = NULL;
	OKAY(ops->stream_create(device, &stream, &problem));
	return stream;
}

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
		ck_assert_int_eq(
			ops->copy(stream, direction, &map, NULL, 1, c.runs, c.run_count, &problem),
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
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool is_open;
};

static void CUDA_CB gate_wait(void *arg)
{
	struct gate *gate = arg;
	pthread_mutex_lock(&gate->lock);
	while (!gate->is_open)
		pthread_cond_wait(&gate->cond, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

static void gate_close(struct gate *gate, CUstream stream)
{
	pthread_mutex_init(&gate->lock, NULL);
	pthread_cond_init(&gate->cond, NULL);
	gate->is_open = false;
	MUST(cu.cuLaunchHostFunc(stream, gate_wait, gate));
}

static void gate_open(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->is_open = true;
	pthread_cond_broadcast(&gate->cond);
	pthread_mutex_unlock(&gate->lock);
}

#define PAGE (64u << 10)
#define PAGES 16u

/* Pinned blocks of one page each, and pages; adjacent both ways unless scattered. */
struct pool {
	uint8_t *host, *pages;
	struct oki_layer_map map;
	const struct oki_layer_map *maps[1];
	struct oki_run run;
};

static void pool_init(struct pool *p)
{
	p->host = host_memory(PAGES * PAGE);
	p->pages = device_memory(PAGES * PAGE);
	OKAY(ops->pin(device, p->host, PAGES * PAGE, false, &problem));
	p->maps[0] = &p->map;
	p->map = (struct oki_layer_map){
		.base = p->pages,
		.page_stride = PAGE,
		.segment_count = 1,
		.page_count = PAGES,
		.segments = {{.bytes = PAGE}},
	};
	p->run = (struct oki_run){
		.host = p->host,
		.host_pitch = PAGE,
		.blocks = PAGES,
		.page_pitch = 1,
		.inner = 1,
	};
}

static void pool_fini(struct pool *p)
{
	ops->unpin(device, p->host);
	device_free(p->pages);
	munmap(p->host, PAGES * PAGE);
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
	memset(p.host, 1, PAGES * PAGE);
	MUST(cu.cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
	if (_i != 1)
		MUST(cu.cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));

	gate_close(&gate, busy);
	MUST(cu.cuMemsetD8Async((CUdeviceptr)p.pages, 0xab, PAGES * PAGE, busy));
	CUstream ready[2] = {idle, busy};
	OKAY(ops->fence(fenced, _i == 2 ? ready : &ready[1], _i == 2 ? 2 : 1, &problem));
	ck_assert_int_eq(ops->copy(fenced, OKI_TO_BLOCKS, p.maps, NULL, 1, &p.run, 1, &problem), 1);
	OKAY(ops->record(fenced, mark, &problem));
	OKAY(ops->fence(free_stream, &idle, 1, &problem));
	ck_assert_int_eq(
		ops->copy(free_stream, OKI_TO_PAGES, other.maps, NULL, 1, &other.run, 1, &problem),
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
	OKAY(ops->check_event(device, event, &problem));

	gate_close(&gate, writer);
	MUST(cu.cuMemsetD8Async((CUdeviceptr)p.pages, 0, PAGES * PAGE, writer));
	OKAY(ops->fence(stream, &writer, 1, &problem));
	ck_assert_int_eq(ops->copy(stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem), 1);
	OKAY(ops->record_event(stream, event, &problem));
	OKAY(ops->check_event(device, event, &problem));
	MUST(cu.cuStreamWaitEvent(consumer, event, 0));
	MUST(cu.cuMemcpyDtoHAsync(seen, (CUdeviceptr)p.pages, PAGES * PAGE, consumer));
	gate_open(&gate);
	MUST(cu.cuStreamSynchronize(consumer));
	ck_assert(memcmp(seen, p.host, PAGES * PAGE) == 0);

	ck_assert_int_eq(ops->check_event(device, NULL, &problem), OKV_E_INVAL);
	OKAY(ops->drain(stream, &problem));
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
	struct oki_device_config config = {.copy_path = path};
	struct oki_device *second;
	OKAY(ops->open(&config, &second, &problem));
	struct oki_stream *stream = open_stream();
	struct oki_mark *mark = open_mark();
	ops->identify(device, id, &node);
	ck_assert_int_ge(node, -1);
	ck_assert(memcmp(id, zero, 16) != 0);
	OKAY(ops->check_memory(device, p->pages, PAGES * PAGE, &problem));
	OKAY(ops->pin(second, p->host, PAGES * PAGE, false, &problem));
	ck_assert_int_eq(ops->copy(stream, OKI_TO_PAGES, p->maps, NULL, 1, &p->run, 1, &problem),
			 1);
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
	ck_assert_int_eq(ops->copy(copies, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem), 1);
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

START_TEST(memory_is_checked)
{
	uint8_t *pages = device_memory(4 * PAGE), *host = host_memory(PAGE);
	CUdeviceptr managed, pooled;
	OKAY(ops->check_memory(device, pages, 4 * PAGE, &problem));
	OKAY(ops->check_memory(device, pages + 3 * PAGE, PAGE, &problem));
	ck_assert_int_eq(ops->check_memory(device, pages, 1ull << 45, &problem), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, pages, UINT64_MAX, &problem), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, pages, 0, &problem), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, NULL, 1, &problem), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, host, PAGE, &problem), OKV_E_INVAL);
	OKAY(ops->pin(device, host, PAGE, false, &problem));
	ck_assert_int_eq(ops->check_memory(device, host, PAGE, &problem), OKV_E_INVAL);
	ops->unpin(device, host);
	MUST(cu.cuMemAllocManaged(&managed, PAGE, CU_MEM_ATTACH_GLOBAL));
	OKAY(ops->check_memory(device, (void *)managed, PAGE, &problem));
	MUST(cu.cuMemFree(managed));
	MUST(cu.cuMemAllocAsync(&pooled, PAGE, NULL));
	OKAY(ops->check_memory(device, (void *)pooled, PAGE, &problem));
	ck_assert_int_eq(ops->check_memory(device, (void *)pooled, 1ull << 33, &problem),
			 OKV_E_INVAL);
	MUST(cu.cuMemFree(pooled));
	munmap(host, PAGE);
	device_free(pages);
}
END_TEST

/* Two allocations mapped side by side, as growing allocators do, then a hole. */
START_TEST(mapped_memory_is_checked_and_copied)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle pieces[2];
	CUdeviceptr at;
	size_t size;
	MUST(cu.cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	MUST(cu.cuMemAddressReserve(&at, 3 * size, 0, 0, 0));
	for (size_t i = 0; i < 2; i++) {
		MUST(cu.cuMemCreate(&pieces[i], size, &prop, 0));
		MUST(cu.cuMemMap(at + i * size, size, 0, pieces[i], 0));
	}
	MUST(cu.cuMemSetAccess(at, 2 * size, &access, 1));
	OKAY(ops->check_memory(device, (void *)at, 2 * size, &problem));
	OKAY(ops->check_memory(device, (void *)(at + size - 64), 128, &problem));
	ck_assert_int_eq(ops->check_memory(device, (void *)at, 3 * size, &problem), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, (void *)(at + 2 * size), 64, &problem),
			 OKV_E_INVAL);

	struct pool p;
	struct oki_stream *stream = open_stream();
	uint8_t *seen = malloc(PAGES * PAGE);
	pool_init(&p);
	for (size_t i = 0; i < PAGES * PAGE; i++)
		p.host[i] = (uint8_t)(i * 31 >> 3);
	p.map.base = (uint8_t *)(at + size - PAGE * PAGES / 2);
	ck_assert_int_eq(ops->copy(stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem), 1);
	OKAY(ops->drain(stream, &problem));
	MUST(cu.cuMemcpyDtoH(seen, (CUdeviceptr)p.map.base, PAGES * PAGE));
	ck_assert(memcmp(seen, p.host, PAGES * PAGE) == 0);

	free(seen);
	pool_fini(&p);
	ops->stream_destroy(stream);
	MUST(cu.cuMemUnmap(at, 2 * size));
	for (int i = 0; i < 2; i++)
		MUST(cu.cuMemRelease(pieces[i]));
	MUST(cu.cuMemAddressFree(at, 3 * size));
}
END_TEST

static bool is_registered(void *host)
{
	unsigned flags;
	return cu.cuMemHostGetFlags(&flags, host) == CUDA_SUCCESS;
}

START_TEST(pins_are_counted)
{
	uint8_t *host = host_memory(4 * PAGE);
	OKAY(ops->pin(device, host, 4 * PAGE, false, &problem));
	OKAY(ops->pin(device, host, 4 * PAGE, false, &problem));
	ck_assert_int_eq(ops->pin(device, host, 2 * PAGE, false, &problem), OKV_E_EXISTS);
	ops->unpin(device, host);
	ck_assert(is_registered(host));
	ops->unpin(device, host);
	ck_assert(!is_registered(host));

	/* Somebody else's registration is left alone. */
	MUST(cu.cuMemHostRegister(host, 4 * PAGE, 0));
	ck_assert_int_eq(ops->pin(device, host, 4 * PAGE, false, &problem), OKV_E_EXISTS);
	ck_assert_int_eq(problem.device_error, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	ck_assert(is_registered(host));
	MUST(cu.cuMemHostUnregister(host));
	munmap(host, 4 * PAGE);
}
END_TEST

/* An arena mapped read-only is pinned read-only and restores at full reach. */
START_TEST(read_only_arenas)
{
	int fd = memfd_create("arena", MFD_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, PAGES * PAGE), 0);
	uint8_t *writer = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint8_t *reader = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert(writer != MAP_FAILED && reader != MAP_FAILED);
	memset(writer, 0x3e, PAGES * PAGE);
	int rc = ops->pin(device, reader, PAGES * PAGE, true, &problem);
	if (rc == OKV_E_UNSUPPORTED) {
		printf("read-only registration is not supported here: %s\n", problem.text);
	} else {
		struct pool p;
		struct oki_stream *stream = open_stream();
		uint8_t *seen = malloc(PAGES * PAGE);
		ck_assert_int_eq(rc, 0);
		pool_init(&p);
		p.run.host = reader;
		ck_assert_int_eq(
			ops->copy(stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem), 1);
		OKAY(ops->drain(stream, &problem));
		MUST(cu.cuMemcpyDtoH(seen, (CUdeviceptr)p.pages, PAGES * PAGE));
		ck_assert(memcmp(seen, writer, PAGES * PAGE) == 0);
		ck_assert_int_eq(ops->pin(device, reader, PAGES * PAGE, false, &problem),
				 OKV_E_EXISTS);
		ops->unpin(device, reader);
		free(seen);
		ops->stream_destroy(stream);
		pool_fini(&p);
	}
	munmap(writer, PAGES * PAGE);
	munmap(reader, PAGES * PAGE);
	close(fd);
}
END_TEST

START_TEST(no_such_gpu)
{
	struct oki_device_config config = {.index = 4096};
	struct oki_device *none = NULL;
	struct okv_error err = {0};
	ck_assert_int_eq(ops->open(&config, &none, &err), OKV_E_UNSUPPORTED);
	config.index = -1;
	ck_assert_int_eq(ops->open(&config, &none, &err), OKV_E_UNSUPPORTED);
	ck_assert_ptr_null(none);
}
END_TEST

static int run_path(uint32_t which)
{
	static const char *const names[] = {"cuda, auto", "cuda, dma", "cuda, kernel"};
	path = which;
	Suite *suite = suite_create(names[which]);
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 4);
	tcase_add_loop_test(tc, a_fence_waits_for_busy_streams, 0, 3);
	tcase_add_test(tc, an_event_comes_after_the_bytes);
	tcase_add_test(tc, the_current_context_stays);
	tcase_add_test(tc, captures_are_refused_and_survive);
	tcase_add_test(tc, memory_is_checked);
	tcase_add_test(tc, mapped_memory_is_checked_and_copied);
	tcase_add_test(tc, pins_are_counted);
	tcase_add_test(tc, read_only_arenas);
	tcase_add_test(tc, no_such_gpu);
	suite_add_tcase(suite, tc);
	return kv_suite_run_here(suite);
}

int main(void)
{
	int rc = find_gpu();
	if (rc != 0)
		return rc;
	int failed = 0;
	for (uint32_t which = OKV_COPY_AUTO; which <= OKV_COPY_KERNEL; which++)
		failed |= run_path(which) != 0;
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
