/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The CUDA driver, loaded at run time. The only place that names its entry points. */
#ifndef OKI_DEVICE_CUDA_API_H
#define OKI_DEVICE_CUDA_API_H

#include <cuda.h>
#include <orbitkv/status.h>

/*
 * Field and entry point. cuda.h maps most names to versioned ones by macro; type and symbol are
 * both taken after that mapping, so they always belong together.
 */
#define OKI_CUDA_CALLS(CALL)                                           \
	CALL(init, cuInit)                                             \
	CALL(error_name, cuGetErrorName)                               \
	CALL(error_string, cuGetErrorString)                           \
	CALL(device_count, cuDeviceGetCount)                           \
	CALL(device_get, cuDeviceGet)                                  \
	CALL(device_attribute, cuDeviceGetAttribute)                   \
	CALL(device_uuid, cuDeviceGetUuid)                             \
	CALL(primary_retain, cuDevicePrimaryCtxRetain)                 \
	CALL(primary_release, cuDevicePrimaryCtxRelease)               \
	CALL(context_push, cuCtxPushCurrent)                           \
	CALL(context_pop, cuCtxPopCurrent)                             \
	CALL(capture_mode_exchange, cuThreadExchangeStreamCaptureMode) \
	CALL(host_register, cuMemHostRegister)                         \
	CALL(host_unregister, cuMemHostUnregister)                     \
	CALL(pointer_attribute, cuPointerGetAttribute)                 \
	CALL(stream_create, cuStreamCreateWithPriority)                \
	CALL(stream_destroy, cuStreamDestroy)                          \
	CALL(stream_query, cuStreamQuery)                              \
	CALL(stream_synchronize, cuStreamSynchronize)                  \
	CALL(stream_wait_event, cuStreamWaitEvent)                     \
	CALL(stream_is_capturing, cuStreamIsCapturing)                 \
	CALL(stream_context, cuStreamGetCtx)                           \
	CALL(event_create, cuEventCreate)                              \
	CALL(event_destroy, cuEventDestroy)                            \
	CALL(event_record, cuEventRecord)                              \
	CALL(event_query, cuEventQuery)                                \
	CALL(copy_to_device, cuMemcpyHtoDAsync)                        \
	CALL(copy_to_host, cuMemcpyDtoHAsync)                          \
	CALL(copy_2d, cuMemcpy2DAsync)                                 \
	CALL(host_device_pointer, cuMemHostGetDevicePointer)           \
	CALL(host_alloc, cuMemHostAlloc)                               \
	CALL(host_free, cuMemFreeHost)                                 \
	CALL(memory_alloc, cuMemAlloc)                                 \
	CALL(memory_free, cuMemFree)                                   \
	CALL(module_load, cuModuleLoadData)                            \
	CALL(module_unload, cuModuleUnload)                            \
	CALL(module_function, cuModuleGetFunction)                     \
	CALL(launch, cuLaunchKernel)                                   \
	CALL(priority_range, cuCtxGetStreamPriorityRange)

/* NULL if the driver lacks it; the device then works without it. */
#define OKI_CUDA_OPTIONAL_CALLS(CALL) CALL(stream_wait_value, cuStreamWaitValue32)
/*
 * Also optional. cuda.h has one name for both: from 13.0 on it means the first one, before it meant
 * the second one, which also returns the index of a copy that failed. Drivers of 13.0 have both,
 * those of 12.8 only the second. So both are named here, whichever the header has.
 */
#define OKI_CUDA_HAS_BATCH (CUDA_VERSION >= 12080)
#define OKI_CUDA_BATCH_NAME "cuMemcpyBatchAsync_v2"
#define OKI_CUDA_BATCH_12_NAME "cuMemcpyBatchAsync"
#if OKI_CUDA_HAS_BATCH
typedef CUresult oki_cuda_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
				CUmemcpyAttributes *attributes, size_t *first,
				size_t attribute_count, CUstream stream);
typedef CUresult oki_cuda_batch_12(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
				   CUmemcpyAttributes *attributes, size_t *first,
				   size_t attribute_count, size_t *ret_failed, CUstream stream);
#endif
/* Also optional. Most builds of the stand-in driver omit it, as the choice of a copy path would
 * depend on timing. */
#define OKI_CUDA_TIME_CALLS(CALL) CALL(event_elapsed, cuEventElapsedTime)

struct oki_cuda_api {
#define OKI_CUDA_FIELD(field, symbol) __typeof__(symbol) *(field);
	OKI_CUDA_CALLS(OKI_CUDA_FIELD)
	OKI_CUDA_OPTIONAL_CALLS(OKI_CUDA_FIELD)
	OKI_CUDA_TIME_CALLS(OKI_CUDA_FIELD)
#undef OKI_CUDA_FIELD
#if OKI_CUDA_HAS_BATCH
	oki_cuda_batch *copy_batch;
	oki_cuda_batch_12 *copy_batch_12; /* for drivers that lack the other one */
#endif
};

/* Load the driver and initialize it, once per process. OKV_E_UNSUPPORTED says what is missing. */
int oki_cuda_api_get(const struct oki_cuda_api **ret_api, struct okv_error *err);

/* oki_fail() with a CUresult: sets device_error and appends ": " and its name and text. */
int oki_cuda_fail(struct okv_error *err, int status, int stage, const struct oki_cuda_api *api,
		  CUresult result, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
