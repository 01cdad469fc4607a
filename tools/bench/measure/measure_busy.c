/* SPDX-License-Identifier: Apache-2.0 */
/* What a matrix product keeps of its speed beside copies. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/measure/measure_rig.h"

static int (*blas_create)(void **);
static int (*blas_stream)(void *, CUstream);
static int (*blas_gemm)(void *, int, int, int, int, int, const void *, const void *, int, int,
			const void *, int, int, const void *, void *, int, int, int, int);

static bool blas_load(void)
{
	static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
	void *library = NULL;
	for (int i = 0; i < 3 && !library; i++)
		library = dlopen(files[i], RTLD_NOW);
	if (!library)
		return false;
	blas_create = (__typeof__(blas_create))dlsym(library, "cublasCreate_v2");
	blas_stream = (__typeof__(blas_stream))dlsym(library, "cublasSetStream_v2");
	blas_gemm = (__typeof__(blas_gemm))dlsym(library, "cublasGemmEx");
	return blas_create && blas_stream && blas_gemm;
}

static void beside_start(struct beside *b)
{
	b->started = oki_now_ns();
	if (b->worker) {
		job_start(&b->job, b->worker, b->m, b->direction, 0, b->m->pages, NULL);
		return;
	}
	must(api->copy_to_device(gpu, arena, model_bytes(b->m), b->stream));
	must(api->event_record(b->event, b->stream));
}

static bool beside_ended(struct beside *b)
{
	if (b->worker)
		return atomic_load(&b->job.ended);
	return api->event_query(b->event) != CUDA_ERROR_NOT_READY;
}

/* Returns ns from its start. */
static double beside_wait(struct beside *b)
{
	if (b->worker)
		return job_wait(&b->job, b->worker);
	while (!beside_ended(b))
		;
	return (double)(oki_now_ns() - b->started);
}

void beside_begin(struct beside *b)
{
	if (!b)
		return;
	b->copied = 0;
	beside_start(b);
	b->begun = b->started;
}

void beside_go_on(struct beside *b)
{
	if (!b || !beside_ended(b))
		return;
	beside_wait(b);
	b->copied += (double)model_bytes(b->m);
	beside_start(b);
}

void beside_end(struct beside *b, double *ret_rate)
{
	if (!b)
		return;
	uint64_t end = oki_now_ns();
	double last = beside_wait(b);
	b->copied += (double)model_bytes(b->m) * (double)(end - b->started) / last;
	*ret_rate = b->copied / (double)(end - b->begun);
}

double products(const struct product *p, struct beside *beside, double *ret_rate)
{
	const uint64_t matrix = (uint64_t)MOST_SIDE * MOST_SIDE * 2;
	const int n = p->side;
	CUdeviceptr at = gpu + PRODUCT_AT;
	float one = 1, zero = 0;
	beside_begin(beside);
	uint64_t start = oki_now_ns();
	for (int i = 0; i < p->times; i++)
		if (blas_gemm(p->blas, 0, 0, n, n, n, &one, (void *)at, 14, n,
			      (void *)(at + matrix), 14, n, &zero, (void *)(at + 2 * matrix), 14, n,
			      68, 99))
			die("a matrix product failed");
	must(api->event_record(plain_event, p->stream));
	while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY)
		beside_go_on(beside);
	uint64_t end = oki_now_ns();
	beside_end(beside, ret_rate);
	return (double)(end - start);
}

static void print_one(const struct product *p, struct beside *beside, const char *name)
{
	double alone[5], with[5], rates[5];
	for (int i = 0; i < 5; i++) {
		alone[i] = products(p, NULL, NULL);
		with[i] = products(p, beside, &rates[i]);
	}
	double a = median(alone, 5), b = median(with, 5), n = p->side;
	printf("side %d, %-20s: product %.0f TFLOP/s alone, keeps %.1f %%; copies %.1f GB/s\n",
	       p->side, name, 2 * n * n * n * p->times / a / 1000, 100 * a / b, median(rates, 5));
	fflush(stdout);
}

static void beside_model(const struct product *p, bool shuffled)
{
	struct model m;
	model_init(&m, 36, 2, 32768, 512, shuffled);
	struct beside beside = {.m = &m};
	must(api->stream_create(&beside.stream, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&beside.event, CU_EVENT_DISABLE_TIMING));
	print_one(p, &beside, "contiguous");
	for (int w = 0; w < WORKERS; w++) {
		char name[64];
		snprintf(name, sizeof(name), "%s %s", ways[w].name, shuffled ? "shuffled" : "tidy");
		beside.worker = worker_for(&ways[w], &m);
		print_one(p, &beside, name);
		worker_end(beside.worker);
	}
	must(api->event_destroy(beside.event));
	must(api->stream_destroy(beside.stream));
	model_fini(&m);
}

bool product_init(struct product *p)
{
	const uint64_t numbers = 3ull * MOST_SIDE * MOST_SIDE;
	if (!blas_load()) {
		printf("\nno cuBLAS here: no model beside the copies\n");
		return false;
	}
	must(api->stream_create(&p->stream, CU_STREAM_NON_BLOCKING, 0));
	if (blas_create(&p->blas) || blas_stream(p->blas, p->stream))
		die("cuBLAS does not start");
	/* Random bf16 numbers of ordinary size: zeros would run faster. */
	noise(shadow, numbers * 2);
	for (uint64_t i = 0; i < numbers; i++) {
		uint16_t *number = (uint16_t *)(void *)shadow + i;
		*number = (uint16_t)((*number & 0x807f) | 0x3f00);
	}
	must(api->copy_to_device(gpu + PRODUCT_AT, shadow, numbers * 2, plain));
	must(api->stream_synchronize(plain));
	return true;
}

void product_fini(struct product *p)
{
	must(api->stream_destroy(p->stream));
}

void busy(void)
{
	static const int sides[] = {4096, MOST_SIDE};
	struct product p = {0};
	if (!product_init(&p))
		return;
	printf("\nbf16 products beside restores of 512 pages of 36 x (K, V) x 32 KiB\n");
	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
		p.side = sides[i];
		p.times = sides[i] == MOST_SIDE ? 60 : 480;
		products(&p, NULL, NULL);
		beside_model(&p, false);
		beside_model(&p, true);
	}
	product_fini(&p);
}
