/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the link is, as found by a few copies; and a GPU that is slow is given up in time. No
 * GPU, and no clock but ours. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include <time.h>

#include "test/unit/device/cuda/fake_cuda.h"
#include "support/suite.h"

#define MS 1000000ull
#define UNKNOWN 7.0 /* what a device starts with */
#define SIZES 8u    /* of copies, at most */

static double now_ns;

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	uint64_t ns = (uint64_t)now_ns;
	(void)clock;
	*ret_time = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	return 0;
}

static struct {
	unsigned char card; /* its name: what is known of one is of no other */
	double link[2];	    /* by direction: bytes per ns */
	double start_ns;    /* of every copy */
	double disturbed_ns;
	uint32_t undisturbed; /* the n-th copy of each size and direction; UINT32_MAX: all are */
	struct {
		size_t bytes;
		uint32_t copies;
	} sizes[2][SIZES];
	uint32_t copies;
	int streams, host, memory; /* that were not given back */
	const char *fails;	   /* this call */
} gpu;

static CUresult says(const char *call)
{
	return gpu.fails && strcmp(gpu.fails, call) == 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult uuid(CUuuid *ret_id, CUdevice device)
{
	(void)device;
	memset(ret_id, gpu.card, sizeof(*ret_id));
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *ret_stream, unsigned flags, int priority)
{
	(void)flags, (void)priority;
	*ret_stream = STREAM;
	gpu.streams += says("stream") == CUDA_SUCCESS;
	return says("stream");
}

static CUresult stream_destroy(CUstream stream)
{
	ck_assert_ptr_eq(stream, STREAM);
	gpu.streams--;
	return CUDA_SUCCESS;
}

static CUresult host_alloc(void **ret_at, size_t bytes, unsigned flags)
{
	if (says("host") != CUDA_SUCCESS)
		return says("host");
	gpu.host++;
	return fake_host_alloc(ret_at, bytes, flags);
}

static CUresult host_free(void *at)
{
	gpu.host--;
	return fake_host_free(at);
}

static CUresult memory_alloc(CUdeviceptr *ret_at, size_t bytes)
{
	if (says("memory") != CUDA_SUCCESS)
		return says("memory");
	gpu.memory++;
	return fake_alloc(ret_at, bytes);
}

static CUresult memory_free(CUdeviceptr at)
{
	gpu.memory--;
	return fake_free(at);
}

/* Which copy of this size it is. */
static uint32_t number_of(int direction, size_t bytes)
{
	uint32_t i = 0;
	while (i < SIZES && gpu.sizes[direction][i].copies &&
	       gpu.sizes[direction][i].bytes != bytes)
		i++;
	ck_assert_uint_lt(i, SIZES);
	gpu.sizes[direction][i].bytes = bytes;
	return gpu.sizes[direction][i].copies++;
}

static CUresult take_time(int direction, size_t bytes, CUstream stream)
{
	ck_assert_ptr_eq(stream, STREAM);
	uint32_t number = number_of(direction, bytes);
	gpu.copies++;
	now_ns += gpu.start_ns + (double)bytes / gpu.link[direction];
	if (gpu.undisturbed != UINT32_MAX && number != gpu.undisturbed)
		now_ns += gpu.disturbed_ns * (1 + number % 3);
	return says("copy");
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)to, (void)from;
	return take_time(OKI_TO_PAGES, bytes, stream);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)to, (void)from;
	return take_time(OKI_TO_BLOCKS, bytes, stream);
}

static CUresult synchronize(CUstream stream)
{
	ck_assert_ptr_eq(stream, STREAM);
	return says("wait");
}

static void setup(void)
{
	memset(&gpu, 0, sizeof(gpu));
	gpu.link[0] = gpu.link[1] = 50;
	gpu.start_ns = 10000;
	gpu.undisturbed = UINT32_MAX;
	now_ns = 1e12;
}

/* A device is opened. Returns the copies that were made. */
static uint32_t look(double ret_link[2])
{
	struct oki_cuda_api api = fake(false);
	api.copy_to_device = to_device;
	api.copy_to_host = to_host;
	api.stream_synchronize = synchronize;
	api.device_uuid = uuid;
	api.stream_create = stream_create;
	api.stream_destroy = stream_destroy;
	api.host_alloc = host_alloc;
	api.host_free = host_free;
	api.memory_alloc = memory_alloc;
	api.memory_free = memory_free;
	struct oki_device device = {.api = &api, .link = {UNKNOWN, UNKNOWN}};
	gpu.copies = 0;
	memset(gpu.sizes, 0, sizeof(gpu.sizes));
	oki_cuda_link_measure(&device);
	ck_assert_int_eq(gpu.streams, 0);
	ck_assert_int_eq(gpu.host, 0);
	ck_assert_int_eq(gpu.memory, 0);
	memcpy(ret_link, device.link, sizeof(device.link));
	return gpu.copies;
}

static bool is_near(double value, double wanted)
{
	return value > 0.99 * wanted && value < 1.01 * wanted;
}

/* What every copy costs beside its bytes is none of the link's, and each direction has its own. */
START_TEST(a_link_by_direction)
{
	double link[2];
	gpu.card = 1;
	gpu.link[OKI_TO_PAGES] = 55;
	gpu.link[OKI_TO_BLOCKS] = 40;
	gpu.start_ns = 300000;
	look(link);
	ck_assert(is_near(link[OKI_TO_PAGES], 55));
	ck_assert(is_near(link[OKI_TO_BLOCKS], 40));
}
END_TEST

/* One of them without others on the link is enough, whichever that is. */
START_TEST(the_best_of_several_tries_is_taken)
{
	double link[2];
	gpu.card = 10;
	look(link);
	const uint32_t tries = gpu.sizes[0][0].copies;
	ck_assert_uint_ge(tries, 3);
	gpu.disturbed_ns = 200000;
	for (gpu.undisturbed = 0; gpu.undisturbed < tries; gpu.undisturbed++) {
		gpu.card++;
		ck_assert_uint_gt(look(link), 0);
		ck_assert(is_near(link[0], 50) && is_near(link[1], 50));
	}
}
END_TEST

/* What was begun in time ends, and no more is begun. */
START_TEST(a_slow_gpu_is_given_up)
{
	static const double each_ms[] = {0.1, 1, 5, 30, 1000};
	for (uint32_t i = 0; i < 5; i++) {
		double link[2], from = now_ns;
		gpu.card = (unsigned char)(30 + i);
		gpu.start_ns = each_ms[i] * MS;
		look(link);
		ck_assert(now_ns - from <= 100 * MS + 4 * each_ms[i] * MS);
		/* Once for each size and direction. */
		ck_assert(each_ms[i] < 1000 || gpu.copies == 4);
	}
}
END_TEST

/* Others were on the link, or on the clock: one value for all of them, which some link has. */
START_TEST(what_cannot_be_is_not_believed)
{
	static const double rates[] = {1, 10, 20, 5000, 1e9, -50};
	double link[2], least = 0;
	gpu.start_ns = 1e6;
	for (uint32_t i = 0; i < 6; i++) {
		gpu.card = (unsigned char)(40 + i);
		gpu.link[0] = gpu.link[1] = rates[i];
		look(link);
		least = i ? least : link[0];
		ck_assert(link[0] == least && link[1] == least && least > 20 && least < 100);
	}
}
END_TEST

/* For as long as the process lives, and for no other GPU, however many there are. */
START_TEST(each_gpu_keeps_its_own)
{
	double link[2];
	for (int again = 0; again < 2; again++)
		for (uint32_t i = 0; i < 40; i++) {
			gpu.card = (unsigned char)(60 + i);
			gpu.link[0] = 30 + i;
			gpu.link[1] = 90 - i;
			uint32_t copies = look(link);
			ck_assert(again || copies);
			ck_assert(is_near(link[0], 30 + i) && is_near(link[1], 90 - i));
		}
	/* One of the first is not even looked at. */
	setup();
	gpu.card = 60;
	ck_assert_uint_eq(look(link), 0);
	ck_assert(is_near(link[0], 30) && is_near(link[1], 90));
}
END_TEST

/* The link stays as it was, nothing is left behind, and another time may be better. */
START_TEST(an_error_changes_nothing)
{
	static const char *const calls_that_fail[] = {"stream", "host", "memory", "copy", "wait"};
	double link[2];
	gpu.card = 200;
	for (uint32_t i = 0; i < 5; i++) {
		gpu.fails = calls_that_fail[i];
		look(link);
		ck_assert(link[0] == UNKNOWN && link[1] == UNKNOWN);
	}
	gpu.fails = NULL;
	ck_assert_uint_gt(look(link), 0);
	ck_assert(is_near(link[0], 50) && is_near(link[1], 50));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda link");
	TCase *tc = tcase_create("link");
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, setup, NULL);
	/* First, as a process keeps no more than some. */
	tcase_add_test(tc, an_error_changes_nothing);
	tcase_add_test(tc, each_gpu_keeps_its_own);
	tcase_add_test(tc, a_link_by_direction);
	tcase_add_test(tc, the_best_of_several_tries_is_taken);
	tcase_add_test(tc, a_slow_gpu_is_given_up);
	tcase_add_test(tc, what_cannot_be_is_not_believed);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
