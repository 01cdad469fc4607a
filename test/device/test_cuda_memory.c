/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device on a real GPU, by each path: memory and registrations, its own and others'. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/device/cuda_fixture.h"
#include "test/device/same_runs.h"

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
	ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem),
			 1);
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
			copy_same(ops, stream, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1, &problem),
			1);
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

static void add_tests(TCase *tc)
{
	tcase_add_test(tc, memory_is_checked);
	tcase_add_test(tc, mapped_memory_is_checked_and_copied);
	tcase_add_test(tc, pins_are_counted);
	tcase_add_test(tc, read_only_arenas);
	tcase_add_test(tc, no_such_gpu);
}

int main(void)
{
	int rc = find_gpu(OKV_COPY_AUTO);
	return rc != 0 ? rc : run_each_path("cuda memory", add_tests);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
