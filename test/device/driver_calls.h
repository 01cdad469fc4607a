/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own calls, loaded by name as the engine beside us would have them. */
#ifndef TEST_DEVICE_DRIVER_CALLS_H
#define TEST_DEVICE_DRIVER_CALLS_H

#include <cuda.h>

#define DRIVER_CALLS(CALL)                  \
	CALL(cuDevicePrimaryCtxRetain)      \
	CALL(cuDevicePrimaryCtxRelease)     \
	CALL(cuDevicePrimaryCtxGetState)    \
	CALL(cuCtxCreate)                   \
	CALL(cuCtxDestroy)                  \
	CALL(cuCtxSetCurrent)               \
	CALL(cuCtxGetCurrent)               \
	CALL(cuMemAlloc)                    \
	CALL(cuMemAllocManaged)             \
	CALL(cuMemAllocAsync)               \
	CALL(cuMemFree)                     \
	CALL(cuMemHostRegister)             \
	CALL(cuMemHostUnregister)           \
	CALL(cuMemHostGetFlags)             \
	CALL(cuMemsetD8Async)               \
	CALL(cuMemcpyHtoD)                  \
	CALL(cuMemcpyDtoH)                  \
	CALL(cuMemcpyDtoHAsync)             \
	CALL(cuStreamCreate)                \
	CALL(cuStreamDestroy)               \
	CALL(cuStreamSynchronize)           \
	CALL(cuStreamWaitEvent)             \
	CALL(cuStreamWaitValue32)           \
	CALL(cuStreamBeginCapture)          \
	CALL(cuStreamEndCapture)            \
	CALL(cuGraphDestroy)                \
	CALL(cuEventCreate)                 \
	CALL(cuEventDestroy)                \
	CALL(cuMemGetAllocationGranularity) \
	CALL(cuMemAddressReserve)           \
	CALL(cuMemAddressFree)              \
	CALL(cuMemCreate)                   \
	CALL(cuMemRelease)                  \
	CALL(cuMemMap)                      \
	CALL(cuMemUnmap)                    \
	CALL(cuMemSetAccess)

#define DRIVER_FIELD(symbol) __typeof__(symbol) *symbol;
struct driver_calls {
	DRIVER_CALLS(DRIVER_FIELD)
};
#undef DRIVER_FIELD
extern struct driver_calls cu;

/* NULL, or why they are not there. */
const char *driver_calls_load(void);

#endif
