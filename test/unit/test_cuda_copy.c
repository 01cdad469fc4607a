/* The operations cuda-dma emits: the bytes of a plain loop, and few of them. No GPU: the driver's
 * copy calls are replaced by ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda_device.h"
#include "test/device/copy_case.h"

static struct {
	int one, two, batches, entries;
	int fail_after; /* accept this many calls; negative: all */
} calls;

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
		ck_assert_int_eq(
			oki_cuda_copy(&api, NULL, direction, &c.map, c.runs, c.run_count, NULL), 0);
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
	ck_assert_int_eq(oki_cuda_copy(api, NULL, OKI_TO_PAGES, &t->map, runs, count, NULL),
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
	ck_assert_int_eq(oki_cuda_copy(&api, NULL, OKI_TO_PAGES, &t.map, runs, 4, &err),
			 OKV_E_COPY);
	ck_assert_int_eq(calls.two, 4);
	ck_assert_int_eq(err.device_error, CUDA_ERROR_LAUNCH_FAILED);
	ck_assert_int_eq(err.stage, OKV_STAGE_SUBMIT);
	tensor_fini(&t);
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
