/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that read and write the tensors as an engine would. */
#include "gpu_kernels.h"

#define BLOCKS 64
#define THREADS 256
#define PATIENCE_NS 20000000000ull

static __device__ unsigned long long now_ns(void)
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* Past the L1 cache: what a copy engine wrote meanwhile must be seen. */
static __device__ unsigned long long differing(const unsigned char *a, const unsigned char *b,
					       size_t n)
{
	size_t step = (size_t)gridDim.x * blockDim.x;
	unsigned long long found = 0;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		found += __ldcv(a + i) != __ldcv(b + i);
	return found;
}

static __global__ void compare(const unsigned char *a, const unsigned char *b, size_t n,
			       unsigned long long *differ)
{
	unsigned long long found = differing(a, b, n);
	if (found)
		atomicAdd(differ, found);
}

static __global__ void copy_late(unsigned char *to, const unsigned char *from, size_t n,
				 unsigned long long delay_ns)
{
	unsigned long long start = now_ns();
	while (now_ns() - start < delay_ns)
		continue;
	size_t step = (size_t)gridDim.x * blockDim.x;
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
		to[i] = from[i];
}

static __global__ void watch(const unsigned char *at, const unsigned char *want, size_t n,
			     unsigned long long *counts, volatile unsigned *flags)
{
	unsigned long long found = differing(at, want, n);
	if (found)
		atomicAdd(&counts[GPU_WATCH_BEFORE], found);
	__syncthreads();
	if (threadIdx.x == 0) {
		if (atomicAdd(&counts[GPU_WATCH_ARRIVED], 1) == gridDim.x - 1) {
			__threadfence_system();
			flags[0] = 1;
		}
		unsigned long long start = now_ns();
		while (!flags[1] && now_ns() - start < PATIENCE_NS)
			continue;
		if (!flags[1])
			atomicAdd(&counts[GPU_WATCH_GAVE_UP], 1);
	}
	__syncthreads();
	found = differing(at, want, n);
	if (found)
		atomicAdd(&counts[GPU_WATCH_AFTER], found);
}

extern "C" cudaError_t gpu_compare(const void *a, const void *b, size_t n,
				   unsigned long long *differ, cudaStream_t stream)
{
	compare<<<BLOCKS, THREADS, 0, stream>>>((const unsigned char *)a, (const unsigned char *)b,
						n, differ);
	return cudaGetLastError();
}

extern "C" cudaError_t gpu_copy_late(void *to, const void *from, size_t n,
				     unsigned long long delay_ns, cudaStream_t stream)
{
	copy_late<<<BLOCKS, THREADS, 0, stream>>>((unsigned char *)to, (const unsigned char *)from,
						  n, delay_ns);
	return cudaGetLastError();
}

extern "C" cudaError_t gpu_watch(const void *at, const void *want, size_t n,
				 unsigned long long *counts, volatile unsigned *flags,
				 cudaStream_t stream)
{
	watch<<<BLOCKS, THREADS, 0, stream>>>((const unsigned char *)at,
					      (const unsigned char *)want, n, counts, flags);
	return cudaGetLastError();
}
