/* The first look at a GPU ends in its time, however slow the GPU is. No GPU, and no clock but ours.
 */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include <time.h>

#include "test/unit/fake_cuda.h"
#include "support/suite.h"

#define MS 1000000ull

static uint64_t now_ns;
static uint64_t sync_ns;			/* so long does each wait for the GPU take */
static uint32_t syncs, slow_syncs = UINT32_MAX; /* the first ones; others take no time */

/* In place of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	(void)clock;
	*ret_time = (struct timespec){(time_t)(now_ns / 1000000000u), (long)(now_ns % 1000000000u)};
	return 0;
}

static CUresult synchronize(CUstream stream)
{
	(void)stream;
	now_ns += syncs < slow_syncs ? sync_ns : 0;
	syncs++;
	return CUDA_SUCCESS;
}

static unsigned char card; /* the GPU's name: what is known of one is of no other */

static CUresult uuid(CUuuid *ret_id, CUdevice device)
{
	(void)device;
	memset(ret_id, card, sizeof(*ret_id));
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *ret_stream, unsigned flags, int priority)
{
	(void)flags, (void)priority;
	*ret_stream = STREAM;
	return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult device_pointer(CUdeviceptr *ret_at, void *at, unsigned flags)
{
	(void)flags;
	*ret_at = (CUdeviceptr)(uintptr_t)at;
	return CUDA_SUCCESS;
}

/* Nothing is copied: only the waits take time. */
static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)to, (void)from, (void)bytes, (void)stream;
	return CUDA_SUCCESS;
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)to, (void)from, (void)bytes, (void)stream;
	return CUDA_SUCCESS;
}

static CUresult rows(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	(void)copy, (void)stream;
	return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		       unsigned by, unsigned bz, unsigned shared, CUstream stream,
		       void **parameters, void **extra)
{
	(void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
	(void)stream, (void)parameters, (void)extra;
	return CUDA_SUCCESS;
}

/* As many waits as a look took. */
static uint32_t look(struct oki_device *device, uint64_t each_ns)
{
	struct oki_cuda_api api = fake(false);
	api.copy_to_device = to_device;
	api.copy_to_host = to_host;
	api.copy_2d = rows;
	api.launch = launch;
	api.stream_synchronize = synchronize;
	api.device_uuid = uuid;
	api.stream_create = stream_create;
	api.stream_destroy = stream_destroy;
	api.host_device_pointer = device_pointer;
	*device = (struct oki_device){.api = &api, .sms = 4, .module = (CUmodule)(uintptr_t)8};
	device->rates[0] = device->rates[1] = oki_cuda_default_rates;
	for (uintptr_t i = 0; i < 3; i++)
		device->gather[i] = (CUfunction)((uintptr_t)8 << i);
	sync_ns = each_ns;
	syncs = 0;
	oki_cuda_measure(device);
	return syncs;
}

START_TEST(a_slow_gpu_is_given_up)
{
	struct oki_device device;
	card = 1;
	now_ns = 1000 * MS;
	/* What was begun in time ends: two series, and a table before them. */
	ck_assert_uint_le(look(&device, 5 * MS), OKI_CUDA_MEASURE_NS / (5 * MS) + 2 * 3);
	ck_assert_uint_le(now_ns - 1000 * MS, OKI_CUDA_MEASURE_NS + 2 * 3 * 5 * MS);
	/* What was not measured is as before, and another time may be better. */
	ck_assert(device.rates[0].launch_ns == oki_cuda_default_rates.launch_ns);
	ck_assert_uint_gt(look(&device, 0), 0);
}
END_TEST

/* At whatever of the last waits of a direction the time is over. */
START_TEST(what_was_cut_short_is_not_kept)
{
	struct oki_device device;
	card = 100;
	uint32_t all = look(&device, 0);
	for (uint32_t left = 0; left < 12; left++) {
		card++;
		bool whole = look(&device, OKI_CUDA_MEASURE_NS / (all - 2 * left)) == all;
		ck_assert_msg(whole || look(&device, 0) > 0, "%u waits were left", left);
	}
}
END_TEST

/* Each has its own time: a GPU that was slow for the first one may be fast for the other. */
START_TEST(a_direction_is_not_given_up_for_the_other)
{
	struct oki_device device;
	card = 50;
	uint32_t all = look(&device, 0);
	card++;
	slow_syncs = 10;
	ck_assert_uint_ge(look(&device, 5 * MS), all / 2 + 8);
	slow_syncs = UINT32_MAX;
}
END_TEST

START_TEST(the_whole_of_it_is_kept)
{
	struct oki_device device;
	card = 255;
	ck_assert_uint_gt(look(&device, 1000), 50);
	ck_assert_uint_eq(look(&device, 1000), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda measure");
	TCase *tc = tcase_create("measure");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_slow_gpu_is_given_up);
	tcase_add_test(tc, the_whole_of_it_is_kept);
	tcase_add_test(tc, what_was_cut_short_is_not_kept);
	tcase_add_test(tc, a_direction_is_not_given_up_for_the_other);
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
