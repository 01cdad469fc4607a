/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver without a GPU: one device whose memory is the host's. It has the entry points that
 * the library loads, no others, and stops the process where a GPU would fault. It tests our logic;
 * about CUDA it proves nothing.
 */
#include "standin/standin_driver.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUctx_st {
	uint32_t retained;
};
struct CUmod_st {
	int loaded;
};

struct CUfunc_st {
	const char *name;
	uint32_t lanes;
};

struct standin_counts standin_now;
pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_changed = PTHREAD_COND_INITIALIZER;

static struct CUctx_st primary;
static struct CUfunc_st functions[] = {
	{OKI_GATHER_NAME_8, 8}, {OKI_GATHER_NAME_16, 16}, {OKI_GATHER_NAME_32, 32}};

static __thread uint32_t pushed, entered;
static __thread bool exempt;

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char name[64];
	uint32_t left; /* calls until one fails; 0: none will */
	CUresult result;
	bool for_ever;
	const char *failed;
} fault;

static _Atomic uint64_t seed, sequence;

void standin_stop(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	fprintf(stderr, "stand-in driver: ");
	vfprintf(stderr, fmt, args);
	fprintf(stderr, "\n");
	va_end(args);
	abort();
}

/* ---- control ---- */

void standin_counts(struct standin_counts *ret_counts)
{
	pthread_mutex_lock(&standin_lock);
	*ret_counts = standin_now;
	pthread_mutex_unlock(&standin_lock);
}

void standin_seed(uint64_t value)
{
	atomic_store(&seed, value);
}

void standin_fail(const char *name, uint32_t nth, CUresult result, bool for_ever)
{
	pthread_mutex_lock(&fault_lock);
	snprintf(fault.name, sizeof(fault.name), "%s", name ? name : "");
	fault.left = nth;
	fault.result = result;
	fault.for_ever = for_ever;
	fault.failed = NULL;
	pthread_mutex_unlock(&fault_lock);
}

const char *standin_failed(void)
{
	pthread_mutex_lock(&fault_lock);
	const char *name = fault.failed;
	pthread_mutex_unlock(&fault_lock);
	return name;
}

void standin_exempt(bool on)
{
	exempt = on;
}

bool standin_is_exempt(void)
{
	return exempt;
}

uint32_t standin_pushed(void)
{
	return pushed;
}

uint32_t standin_entered(void)
{
	return entered;
}

CUresult standin_enter(const char *name, enum standin_enter needs)
{
	CUresult result = CUDA_SUCCESS;
	if (exempt)
		return CUDA_SUCCESS;
	if (needs == STANDIN_IN_CONTEXT && !pushed)
		standin_stop("%s without a current context", name);
	pthread_mutex_lock(&fault_lock);
	if (fault.left && strcmp(fault.name[0] ? fault.name : name, name) == 0) {
		if (fault.left == 1) {
			result = fault.result;
			fault.failed = name;
		}
		if (fault.left > 1 || !fault.for_ever)
			fault.left--;
	}
	pthread_mutex_unlock(&fault_lock);
	return result;
}

void standin_count(uint32_t *count, int by)
{
	pthread_mutex_lock(&standin_lock);
	*count += (uint32_t)by;
	pthread_mutex_unlock(&standin_lock);
}

uint64_t standin_random_new(void)
{
	return (atomic_fetch_add(&sequence, 1) + 1) * 0x9e3779b97f4a7c15ull;
}

void standin_delay(uint64_t *random, uint32_t one_in, uint32_t most_us)
{
	uint64_t with = atomic_load(&seed), x = *random;
	if (!with)
		return;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	*random = x;
	uint64_t drawn = (x ^ with * 0xff51afd7ed558ccdull) * 0xc4ceb9fe1a85ec53ull >> 32;
	if (drawn % one_in == 0)
		usleep((useconds_t)(drawn / one_in % most_us + 1));
}

/* ---- devices, contexts, errors ---- */

/* Once per process: it fails by its name only, or no other call would get a turn. */
CUresult cuInit(unsigned int flags)
{
	pthread_mutex_lock(&fault_lock);
	bool fails = fault.left && strcmp(fault.name, __func__) == 0;
	pthread_mutex_unlock(&fault_lock);
	if (fails)
		return fault.result;
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **ret_name)
{
	*ret_name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **ret_text)
{
	*ret_text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "made to fail";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *ret_count)
{
	ENTER(STANDIN_ANY);
	*ret_count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret_device, int ordinal)
{
	ENTER(STANDIN_ANY);
	*ret_device = 0;
	return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *ret_value, CUdevice_attribute attribute, CUdevice device)
{
	ENTER(STANDIN_ANY);
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
		*ret_value = 1;
	else if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
		*ret_value = 0;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device)
{
	ENTER(STANDIN_ANY);
	memset(ret_uuid, 0x5d, sizeof(*ret_uuid));
	return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUcontext standin_context(void)
{
	return &primary;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device)
{
	ENTER(STANDIN_ANY);
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&standin_lock);
	standin_now.contexts = ++primary.retained;
	pthread_mutex_unlock(&standin_lock);
	*ret_context = &primary;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult result = standin_enter(__func__, STANDIN_ANY);
	if (device != 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&standin_lock);
	if (!primary.retained)
		standin_stop("the primary context is released more often than retained");
	bool last = --primary.retained == 0;
	standin_now.contexts = primary.retained;
	pthread_mutex_unlock(&standin_lock);
	if (last)
		standin_null_stream_end();
	return result;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	ENTER(STANDIN_ANY);
	pthread_mutex_lock(&standin_lock);
	bool live = context == &primary && primary.retained;
	pthread_mutex_unlock(&standin_lock);
	if (!live)
		return CUDA_ERROR_INVALID_CONTEXT;
	pushed++;
	entered++;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *ret_context)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	pushed--;
	*ret_context = &primary;
	return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	static __thread CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
	ENTER(STANDIN_ANY);
	CUstreamCaptureMode before = now;
	now = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
	ENTER(STANDIN_IN_CONTEXT);
	*ret_least = 0;
	*ret_greatest = -5;
	return CUDA_SUCCESS;
}

/* ---- modules: the kernel is the stand-in's own, whatever the image holds ---- */

CUresult cuModuleLoadData(CUmodule *ret_module, const void *image)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (!image)
		return CUDA_ERROR_INVALID_IMAGE;
	struct CUmod_st *module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	standin_count(&standin_now.modules, 1);
	*ret_module = module;
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	standin_count(&standin_now.modules, -1);
	free(module);
	return result;
}

CUresult cuModuleGetFunction(CUfunction *ret_function, CUmodule module, const char *name)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (!module)
		return CUDA_ERROR_INVALID_HANDLE;
	for (uint32_t i = 0; i < 3; i++)
		if (strcmp(functions[i].name, name) == 0) {
			*ret_function = &functions[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

uint32_t standin_lanes(CUfunction function)
{
	for (uint32_t i = 0; i < 3; i++)
		if (function == &functions[i])
			return functions[i].lanes;
	return 0;
}
