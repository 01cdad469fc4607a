/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that read and write the tensors as an engine would. Plain C to the callers. */
#ifndef TEST_DEVICE_GPU_KERNELS_H
#define TEST_DEVICE_GPU_KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Add the number of bytes at a and b that differ to *differ (memory of the GPU). */
cudaError_t gpu_compare(const void *a, const void *b, size_t n, unsigned long long *differ,
			cudaStream_t stream);

/* Do nothing for delay_ns, then copy n bytes. */
cudaError_t gpu_copy_late(void *to, const void *from, size_t n, unsigned long long delay_ns,
			  cudaStream_t stream);

#define GPU_WATCH_BEFORE 0  /* bytes that differed at first */
#define GPU_WATCH_AFTER 1   /* … and when told to look again */
#define GPU_WATCH_GAVE_UP 2 /* blocks of threads that were not told in 20 s */
#define GPU_WATCH_ARRIVED 3
#define GPU_WATCH_COUNTS 4

/* Compare, say so in flags[0], run on until flags[1] is set, compare again. counts: memory of the
 * GPU, GPU_WATCH_COUNTS zeros; flags: host memory that the GPU sees, two zeros. */
cudaError_t gpu_watch(const void *at, const void *want, size_t n, unsigned long long *counts,
		      volatile unsigned *flags, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
