/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA device share. */
#include <check.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "support/suite.h"
#include "test/device/cuda_fixture.h"

struct okv_error problem;
uint32_t copy_path;
struct oki_device *device;

/* Retained for the life of the program: to make one takes a second, and more beside others. */
static CUcontext primary;

int find_gpu(uint32_t with_path)
{
	struct oki_device_config config = {.copy_path = with_path};
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
	const char *why = driver_calls_load();
	if (!why && cu.cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS)
		why = "cannot retain the primary context";
	ops->close(probe);
	if (!why)
		return 0;
	puts(why);
	return EXIT_FAILURE;
}

static void setup(void)
{
	struct oki_device_config config = {.copy_path = copy_path};
	MUST(cu.cuCtxSetCurrent(primary));
	OKAY(ops->open(&config, &device, &problem));
}

static void teardown(void)
{
	ops->close(device);
	MUST(cu.cuCtxSetCurrent(NULL));
}

static int run_path(const char *suite_name, void (*add)(TCase *tc))
{
	static const char *const names[] = {"auto", "dma", "kernel"};
	char name[64];
	snprintf(name, sizeof(name), "%s, %s", suite_name, names[copy_path]);
	Suite *suite = suite_create(name);
	TCase *tc = tcase_create("gpu");
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	add(tc);
	suite_add_tcase(suite, tc);
	return kv_suite_run_here(suite);
}

int run_each_path(const char *suite_name, void (*add)(TCase *tc))
{
	int failed = 0;
	for (copy_path = OKV_COPY_AUTO; copy_path <= OKV_COPY_KERNEL; copy_path++)
		failed |= run_path(suite_name, add) != 0;
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

void *host_memory(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

uint8_t *device_memory(size_t bytes)
{
	CUdeviceptr p;
	MUST(cu.cuMemAlloc(&p, bytes));
	return (uint8_t *)p;
}

void device_free(void *p)
{
	MUST(cu.cuMemFree((CUdeviceptr)p));
}

struct oki_stream *open_stream(void)
{
	struct oki_stream *stream = NULL;
	OKAY(ops->stream_create(device, &stream, &problem));
	return stream;
}

void pool_init(struct pool *p)
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

void pool_fini(struct pool *p)
{
	ops->unpin(device, p->host);
	device_free(p->pages);
	munmap(p->host, PAGES * PAGE);
}

#endif
