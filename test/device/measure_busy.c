/* What a matrix product keeps of its speed beside copies. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "test/device/measure_rig.h"

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

#define SIDE 8192
#define PRODUCTS 60

/* Products from start to end; meanwhile one restore after the other, unless worker is NULL. */
static double products(void *blas, CUstream stream, struct oki_worker *worker,
		       const struct model *m, double *ret_rate)
{
	const uint64_t matrix = (uint64_t)SIDE * SIDE * 2;
	CUdeviceptr at = gpu + (6ull << 30);
	float one = 1, zero = 0;
	struct job job;
	double copied = 0;
	if (worker)
		job_start(&job, worker, m, OKI_TO_PAGES, m->pages, NULL);
	uint64_t start = oki_now_ns();
	for (int i = 0; i < PRODUCTS; i++)
		if (blas_gemm(blas, 0, 0, SIDE, SIDE, SIDE, &one, (void *)at, 14, SIDE,
			      (void *)(at + matrix), 14, SIDE, &zero, (void *)(at + 2 * matrix), 14,
			      SIDE, 68, 99))
			die("a matrix product failed");
	must(api->event_record(plain_event, stream));
	while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY) {
		if (!worker || !atomic_load(&job.ended))
			continue;
		job_wait(&job, worker);
		copied += (double)model_bytes(m);
		job_start(&job, worker, m, OKI_TO_PAGES, m->pages, NULL);
	}
	uint64_t end = oki_now_ns();
	if (worker) {
		double last = job_wait(&job, worker);
		if (job.started < end)
			copied += (double)model_bytes(m) * (double)(end - job.started) / last;
		*ret_rate = copied / (double)(end - start);
	}
	return (double)(end - start);
}

void busy(void)
{
	void *blas;
	CUstream stream;
	if (!blas_load()) {
		printf("\nno cuBLAS here: no model beside the copies\n");
		return;
	}
	must(api->stream_create(&stream, CU_STREAM_NON_BLOCKING, 0));
	if (blas_create(&blas) || blas_stream(blas, stream))
		die("cuBLAS does not start");
	/* Random bf16 numbers of ordinary size: zeros would run faster. */
	noise(shadow, 3ull * SIDE * SIDE * 2);
	for (uint64_t i = 0; i < 3ull * SIDE * SIDE; i++) {
		uint16_t *number = (uint16_t *)(void *)shadow + i;
		*number = (uint16_t)((*number & 0x807f) | 0x3f00);
	}
	must(api->copy_to_device(gpu + (6ull << 30), shadow, 3ull * SIDE * SIDE * 2, plain));
	must(api->stream_synchronize(plain));
	products(blas, stream, NULL, NULL, NULL);
	printf("\nbf16 products of side %d beside restores of 512 pages of 36 x (K, V) x 32 KiB\n",
	       SIDE);
	for (int shuffled = 0; shuffled < 2; shuffled++) {
		struct model m;
		model_init(&m, 36, 2, 32768, 512, shuffled);
		for (int w = 0; w < WORKERS; w++) {
			struct oki_worker *worker = worker_for(&ways[w], &m);
			double alone[5], beside[5], rates[5];
			for (int i = 0; i < 5; i++) {
				alone[i] = products(blas, stream, NULL, NULL, NULL);
				beside[i] = products(blas, stream, worker, &m, &rates[i]);
			}
			double a = median(alone, 5), b = median(beside, 5);
			printf("%-8s %-9s: product %.0f TFLOP/s alone, keeps %.1f %%; copies %.1f "
			       "GB/s\n",
			       shuffled ? "shuffled" : "tidy", ways[w].name,
			       2.0 * SIDE * SIDE * SIDE * PRODUCTS / a / 1000, 100 * a / b,
			       median(rates, 5));
			fflush(stdout);
			worker_end(worker);
		}
		model_fini(&m);
	}
	must(api->stream_destroy(stream));
}
