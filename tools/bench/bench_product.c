/* SPDX-License-Identifier: Apache-2.0 */
/* [E] bf16 matrix products, as a model in its prefill phase runs them. */
#include "bench_beside.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE_SIDE 8192u
/* Products enqueued at a time: some milliseconds, so that a thread that wakes late leaves no gap.
 */
#define AHEAD_LARGE 4u
#define AHEAD_SMALL 16u
#define STREAM_NON_BLOCKING 0x1u
#define EVENT_BLOCKING_SYNC 0x1u
#define EVENT_DISABLE_TIMING 0x2u
#define TYPE_BF16 14	  /* CUDA_R_16BF */
#define COMPUTE_F32 68	  /* CUBLAS_COMPUTE_32F */
#define ALGO_DEFAULT (-1) /* CUBLAS_GEMM_DEFAULT */

struct cublas_calls {
	int (*create)(void **ret_handle);
	int (*destroy)(void *handle);
	int (*set_stream)(void *handle, struct CUstream_st *stream);
	int (*multiply)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
			const void *a, int type_a, int lda, const void *b, int type_b, int ldb,
			const void *beta, void *c, int type_c, int ldc, int compute, int algo);
};

static const struct tool_symbol symbols[] = {
	{"cublasCreate_v2", offsetof(struct cublas_calls, create)},
	{"cublasDestroy_v2", offsetof(struct cublas_calls, destroy)},
	{"cublasSetStream_v2", offsetof(struct cublas_calls, set_stream)},
	{"cublasGemmEx", offsetof(struct cublas_calls, multiply)},
};

static const char *const libraries[] = {
	"libcublas.so.13",
	"libcublas.so.12",
	"libcublas.so",
	"/usr/local/cuda/lib64/libcublas.so",
};

struct product {
	struct bench_cuda *cuda; /* borrowed */
	struct cublas_calls blas;
	unsigned side;
	unsigned ahead;
	void *library;
	tool_device_address a;
	tool_device_address b;
	tool_device_address c;
	struct CUstream_st *stream;
	struct CUevent_st *events[AHEAD_SMALL]; /* so many as ahead says */
	void *handle;
	uint64_t enqueued;
	uint64_t ended;
};

static size_t matrix_bytes(const struct product *p)
{
	return (size_t)p->side * p->side * 2;
}

static int load(struct product *p, char *text)
{
	const char *missing;

	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]) && p->library == NULL; i++)
		p->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (p->library == NULL) {
		snprintf(text, TOOL_TEXT, "no cuBLAS: %.200s", dlerror());
		return TOOL_SKIPPED;
	}
	missing = tool_symbols_load(p->library, symbols, sizeof(symbols) / sizeof(symbols[0]),
				    &p->blas);
	if (missing != NULL) {
		snprintf(text, TOOL_TEXT, "cuBLAS lacks %s", missing);
		return TOOL_SKIPPED;
	}
	return TOOL_OK;
}

/* bf16 values of either sign between 2^-7 and 2: no zeros, no subnormals. */
static void randomize(void *arg, uint64_t first, uint64_t last)
{
	uint16_t *values = arg;
	uint64_t x = (first + 1) * 0x9e3779b97f4a7c15ull;

	for (uint64_t i = first; i < last; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		values[i] =
			(uint16_t)((x & 0x8000) | ((120 + (x >> 16 & 7)) << 7) | (x >> 32 & 0x7f));
	}
}

static int fill_matrices(struct product *p)
{
	const struct tool_cuda_calls *cu = &p->cuda->gpu.cu;
	size_t bytes = matrix_bytes(p);
	void *values = malloc(bytes);
	int result = -1;

	if (values == NULL)
		return result;
	tool_pool_run(randomize, values, bytes / 2, 1u << 16);
	result = cu->memory_alloc(&p->a, bytes);
	if (result == 0)
		result = cu->memory_alloc(&p->b, bytes);
	if (result == 0)
		result = cu->memory_alloc(&p->c, bytes);
	if (result == 0)
		result = cu->to_device(p->a, values, bytes);
	if (result == 0)
		result = cu->to_device(p->b, (char *)values, bytes);
	free(values);
	return result;
}

static int create_objects(struct product *p, char *text)
{
	const struct tool_cuda_calls *cu = &p->cuda->gpu.cu;
	int result = fill_matrices(p);

	if (result == 0)
		result = cu->stream_create(&p->stream, STREAM_NON_BLOCKING);
	for (uint32_t i = 0; i < p->ahead && result == 0; i++)
		result =
			cu->event_create(&p->events[i], EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
	if (result == 0)
		result = p->blas.create(&p->handle);
	if (result == 0)
		result = p->blas.set_stream(p->handle, p->stream);
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "the matrix product cannot be set up: error %d", result);
	return TOOL_SKIPPED;
}

static int enqueue(struct product *p)
{
	const float alpha = 1;
	const float beta = 0;
	int side = (int)p->side;
	int result = p->blas.multiply(
		p->handle, 0, 0, side, side, side, &alpha, (const void *)(uintptr_t)p->a, TYPE_BF16,
		side, (const void *)(uintptr_t)p->b, TYPE_BF16, side, &beta,
		(void *)(uintptr_t)p->c, TYPE_BF16, side, COMPUTE_F32, ALGO_DEFAULT);

	if (result == 0)
		result = p->cuda->gpu.cu.event_record(p->events[p->enqueued % p->ahead], p->stream);
	if (result == 0)
		p->enqueued++;
	return result;
}

static int wait_for_one(struct product *p)
{
	return p->cuda->gpu.cu.event_synchronize(p->events[p->ended++ % p->ahead]);
}

static int turn(void *self)
{
	struct product *p = self;
	int result = 0;

	while (result == 0 && p->enqueued < p->ended + p->ahead)
		result = enqueue(p);
	return result != 0 ? result : wait_for_one(p);
}

static int drain(void *self)
{
	struct product *p = self;
	int result = 0;

	while (p->ended < p->enqueued) {
		int waited = wait_for_one(p);

		if (result == 0)
			result = waited;
	}
	return result;
}

static void close_product(void *self)
{
	struct product *p = self;
	const struct tool_cuda_calls *cu = &p->cuda->gpu.cu;

	if (p->handle != NULL)
		p->blas.destroy(p->handle);
	for (uint32_t i = p->ahead; i > 0; i--) {
		if (p->events[i - 1] != NULL)
			cu->event_destroy(p->events[i - 1]);
	}
	if (p->stream != NULL)
		cu->stream_destroy(p->stream);
	if (p->c != 0)
		cu->memory_free(p->c);
	if (p->b != 0)
		cu->memory_free(p->b);
	if (p->a != 0)
		cu->memory_free(p->a);
	if (p->library != NULL)
		dlclose(p->library);
	free(p);
}

static double product_tflops(const void *self, double unit_ns)
{
	const struct product *p = self;

	return 2.0 * p->side * p->side * p->side / unit_ns / 1e3;
}

static const struct bench_work_calls work_calls = {.turn = turn,
						   .drain = drain,
						   .close = close_product,
						   .figure = product_tflops,
						   .name = "model",
						   .terms = "tflops",
						   .overlap = true};

int bench_product_open(struct bench_cuda *cuda, unsigned side, struct bench_work *ret_work,
		       char *text)
{
	struct product *p = calloc(1, sizeof(*p));
	int rc;

	if (p == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	p->cuda = cuda;
	p->side = side;
	p->ahead = side < LARGE_SIDE ? AHEAD_SMALL : AHEAD_LARGE;
	rc = load(p, text);
	if (rc == TOOL_OK)
		rc = create_objects(p, text);
	if (rc != TOOL_OK) {
		close_product(p);
		return rc;
	}
	*ret_work = (struct bench_work){&work_calls, p};
	return TOOL_OK;
}
