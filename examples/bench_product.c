/* [E] A bf16 matrix product, again and again, that stands for the model beside the copies. */
#include "bench.h"
#include "bench_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIDE 8192u
#define MATRIX_BYTES ((size_t)SIDE * SIDE * 2)
#define AHEAD 4u /* products enqueued at a time */
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

static const struct {
	const char *name;
	size_t offset;
} symbols[] = {
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

struct bench_product {
	struct bench_cuda *cuda; /* borrowed */
	struct cublas_calls blas;
	void *library;
	void *handle;
	struct CUstream_st *stream;
	struct CUevent_st *events[AHEAD];
	bench_device_address a;
	bench_device_address b;
	bench_device_address c;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended; /* one more product */
	bool running;	      /* the thread exists */
	bool stop;
	int failure;			/* nonzero: a CUresult or a cublasStatus_t */
	struct bench_product_mark last; /* the latest product that ended */
};

static int load(struct bench_product *p, char *text)
{
	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]) && p->library == NULL; i++)
		p->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (p->library == NULL) {
		snprintf(text, BENCH_TEXT, "no cuBLAS: %.200s", dlerror());
		return BENCH_SKIPPED;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *call = dlsym(p->library, symbols[i].name);

		if (call == NULL) {
			snprintf(text, BENCH_TEXT, "cuBLAS lacks %s", symbols[i].name);
			return BENCH_SKIPPED;
		}
		memcpy((char *)&p->blas + symbols[i].offset, &call, sizeof(call));
	}
	return BENCH_OK;
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

static int fill_matrices(struct bench_product *p)
{
	const struct bench_cuda_calls *cu = &p->cuda->cu;
	void *values = malloc(MATRIX_BYTES);
	int result = -1;

	if (values == NULL)
		return result;
	bench_pool_run(randomize, values, MATRIX_BYTES / 2, 1u << 16);
	result = cu->memory_alloc(&p->a, MATRIX_BYTES);
	if (result == 0)
		result = cu->memory_alloc(&p->b, MATRIX_BYTES);
	if (result == 0)
		result = cu->memory_alloc(&p->c, MATRIX_BYTES);
	if (result == 0)
		result = cu->to_device(p->a, values, MATRIX_BYTES);
	if (result == 0)
		result = cu->to_device(p->b, (char *)values, MATRIX_BYTES);
	free(values);
	return result;
}

static int create_objects(struct bench_product *p, char *text)
{
	const struct bench_cuda_calls *cu = &p->cuda->cu;
	int result = fill_matrices(p);

	if (result == 0)
		result = cu->stream_create(&p->stream, STREAM_NON_BLOCKING);
	for (uint32_t i = 0; i < AHEAD && result == 0; i++)
		result =
			cu->event_create(&p->events[i], EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC);
	if (result == 0)
		result = p->blas.create(&p->handle);
	if (result == 0)
		result = p->blas.set_stream(p->handle, p->stream);
	if (result == 0)
		return BENCH_OK;
	snprintf(text, BENCH_TEXT, "the matrix product cannot be set up: error %d", result);
	return BENCH_SKIPPED;
}

int bench_product_open(struct bench_cuda *cuda, struct bench_product **ret_product, char *text)
{
	struct bench_product *p = calloc(1, sizeof(*p));
	int rc;

	if (p == NULL) {
		snprintf(text, BENCH_TEXT, "out of memory");
		return BENCH_FAILED;
	}
	p->cuda = cuda;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->ended, NULL);
	rc = load(p, text);
	if (rc == BENCH_OK)
		rc = create_objects(p, text);
	if (rc != BENCH_OK) {
		bench_product_close(p);
		return rc;
	}
	*ret_product = p;
	return BENCH_OK;
}

void bench_product_close(struct bench_product *p)
{
	const struct bench_cuda_calls *cu;

	if (p == NULL)
		return;
	cu = &p->cuda->cu;
	bench_product_stop(p);
	if (p->handle != NULL)
		p->blas.destroy(p->handle);
	for (uint32_t i = 0; i < AHEAD; i++) {
		if (p->events[i] != NULL)
			cu->event_destroy(p->events[i]);
	}
	if (p->stream != NULL)
		cu->stream_destroy(p->stream);
	if (p->a != 0)
		cu->memory_free(p->a);
	if (p->b != 0)
		cu->memory_free(p->b);
	if (p->c != 0)
		cu->memory_free(p->c);
	if (p->library != NULL)
		dlclose(p->library);
	pthread_cond_destroy(&p->ended);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int enqueue(struct bench_product *p, uint64_t index)
{
	const float alpha = 1;
	const float beta = 0;
	int side = (int)SIDE;
	int result = p->blas.multiply(
		p->handle, 0, 0, side, side, side, &alpha, (const void *)(uintptr_t)p->a, TYPE_BF16,
		side, (const void *)(uintptr_t)p->b, TYPE_BF16, side, &beta,
		(void *)(uintptr_t)p->c, TYPE_BF16, side, COMPUTE_F32, ALGO_DEFAULT);

	return result != 0 ? result : p->cuda->cu.event_record(p->events[index % AHEAD], p->stream);
}

static bool count_one(struct bench_product *p, int result)
{
	bool stop;

	pthread_mutex_lock(&p->lock);
	p->last.products++;
	p->last.ns = bench_now_ns();
	p->failure = result;
	stop = p->stop || result != 0;
	pthread_cond_broadcast(&p->ended);
	pthread_mutex_unlock(&p->lock);
	return !stop;
}

static void *multiply(void *arg)
{
	struct bench_product *p = arg;
	const struct bench_cuda_calls *cu = &p->cuda->cu;
	uint64_t enqueued = 0;
	uint64_t ended = 0;
	int result = cu->context_set_current(p->cuda->context);

	do {
		while (result == 0 && enqueued < ended + AHEAD)
			result = enqueue(p, enqueued++);
		if (result == 0)
			result = cu->event_synchronize(p->events[ended++ % AHEAD]);
	} while (count_one(p, result));
	for (; result == 0 && ended < enqueued; ended++)
		cu->event_synchronize(p->events[ended % AHEAD]);
	cu->context_set_current(NULL);
	return NULL;
}

void bench_product_start(struct bench_product *p)
{
	if (p->running)
		return;
	p->stop = false;
	p->running = pthread_create(&p->thread, NULL, multiply, p) == 0;
	if (!p->running)
		return;
	/* The first ones load kernels. */
	for (int i = 0; i < 8; i++)
		bench_product_mark(p);
}

void bench_product_stop(struct bench_product *p)
{
	if (!p->running)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	p->running = false;
}

bool bench_product_running(struct bench_product *p)
{
	bool running;

	pthread_mutex_lock(&p->lock);
	running = p->running && p->failure == 0;
	pthread_mutex_unlock(&p->lock);
	return running;
}

struct bench_product_mark bench_product_mark(struct bench_product *p)
{
	struct bench_product_mark mark;
	uint64_t before;

	pthread_mutex_lock(&p->lock);
	before = p->last.products;
	while (p->running && p->last.products == before && p->failure == 0)
		pthread_cond_wait(&p->ended, &p->lock);
	mark = p->last;
	pthread_mutex_unlock(&p->lock);
	return mark;
}

double bench_product_tflops(const struct bench_product_mark *from,
			    const struct bench_product_mark *to)
{
	double products = (double)(to->products - from->products);

	if (to->ns <= from->ns)
		return 0;
	return products * 2 * SIDE * SIDE * SIDE / (double)(to->ns - from->ns) / 1e3;
}
