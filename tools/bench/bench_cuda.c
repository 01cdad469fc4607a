/* [E] The CUDA driver, loaded at run time: one context, the baselines' streams and events. */
#include "bench_cuda.h"
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_DISABLE_TIMING 0x2u
#define STREAM_NON_BLOCKING 0x1u
#define NOT_READY 600

static const struct bench_symbol symbols[] = {
	{"cuInit", offsetof(struct bench_cuda_calls, init)},
	{"cuDriverGetVersion", offsetof(struct bench_cuda_calls, driver_version)},
	{"cuDeviceGet", offsetof(struct bench_cuda_calls, device_get)},
	{"cuDeviceGetName", offsetof(struct bench_cuda_calls, device_name)},
	{"cuDevicePrimaryCtxRetain", offsetof(struct bench_cuda_calls, context_retain)},
	{"cuDevicePrimaryCtxRelease_v2", offsetof(struct bench_cuda_calls, context_release)},
	{"cuCtxSetCurrent", offsetof(struct bench_cuda_calls, context_set_current)},
	{"cuCtxSynchronize", offsetof(struct bench_cuda_calls, context_synchronize)},
	{"cuMemGetInfo_v2", offsetof(struct bench_cuda_calls, memory_info)},
	{"cuMemAlloc_v2", offsetof(struct bench_cuda_calls, memory_alloc)},
	{"cuMemFree_v2", offsetof(struct bench_cuda_calls, memory_free)},
	{"cuMemsetD8_v2", offsetof(struct bench_cuda_calls, memory_set)},
	{"cuMemHostRegister_v2", offsetof(struct bench_cuda_calls, host_register)},
	{"cuMemHostUnregister", offsetof(struct bench_cuda_calls, host_unregister)},
	{"cuMemcpyHtoD_v2", offsetof(struct bench_cuda_calls, to_device)},
	{"cuMemcpyDtoH_v2", offsetof(struct bench_cuda_calls, to_host)},
	{"cuMemcpyHtoDAsync_v2", offsetof(struct bench_cuda_calls, to_device_async)},
	{"cuMemcpyDtoHAsync_v2", offsetof(struct bench_cuda_calls, to_host_async)},
	{"cuStreamCreate", offsetof(struct bench_cuda_calls, stream_create)},
	{"cuStreamDestroy_v2", offsetof(struct bench_cuda_calls, stream_destroy)},
	{"cuEventCreate", offsetof(struct bench_cuda_calls, event_create)},
	{"cuEventDestroy_v2", offsetof(struct bench_cuda_calls, event_destroy)},
	{"cuEventRecord", offsetof(struct bench_cuda_calls, event_record)},
	{"cuEventQuery", offsetof(struct bench_cuda_calls, event_query)},
	{"cuEventSynchronize", offsetof(struct bench_cuda_calls, event_synchronize)},
};

const char *bench_symbols_load(void *library, const struct bench_symbol *wanted, size_t count,
			       void *ret_calls)
{
	for (size_t i = 0; i < count; i++) {
		void *call = dlsym(library, wanted[i].name);

		if (call == NULL)
			return wanted[i].name;
		memcpy((char *)ret_calls + wanted[i].offset, &call, sizeof(call));
	}
	return NULL;
}

static int load(struct bench_cuda *cuda, char *text)
{
	const char *missing;

	cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (cuda->library == NULL) {
		snprintf(text, TOOL_TEXT, "no NVIDIA driver: %s", dlerror());
		return TOOL_SKIPPED;
	}
	missing = bench_symbols_load(cuda->library, symbols, sizeof(symbols) / sizeof(symbols[0]),
				     &cuda->cu);
	if (missing != NULL) {
		snprintf(text, TOOL_TEXT, "the driver lacks %s", missing);
		return TOOL_SKIPPED;
	}
	/* The form of CUDA 13; the one of 12.8 takes one more argument. */
	void *batch = dlsym(cuda->library, "cuMemcpyBatchAsync_v2");

	memcpy(&cuda->batch, &batch, sizeof(batch));
	return TOOL_OK;
}

int bench_cuda_said(int result, const char *what, char *text)
{
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "%s says CUDA error %d", what, result);
	return TOOL_SKIPPED;
}

static int open_context(struct bench_cuda *cuda, char *text)
{
	const struct bench_cuda_calls *cu = &cuda->cu;
	int rc = bench_cuda_said(cu->init(0), "cuInit", text);

	if (rc == TOOL_OK)
		rc = bench_cuda_said(cu->device_get(&cuda->device, 0), "cuDeviceGet", text);
	if (rc == TOOL_OK)
		rc = bench_cuda_said(cu->context_retain(&cuda->context, cuda->device),
				     "cuDevicePrimaryCtxRetain", text);
	if (rc == TOOL_OK)
		rc = bench_cuda_said(cu->context_set_current(cuda->context), "cuCtxSetCurrent",
				     text);
	if (rc != TOOL_OK)
		return rc;
	cu->driver_version(&cuda->driver);
	cu->device_name(cuda->name, sizeof(cuda->name), cuda->device);
	return TOOL_OK;
}

static int create_streams(struct bench_cuda *cuda, char *text)
{
	const struct bench_cuda_calls *cu = &cuda->cu;
	int result = cu->stream_create(&cuda->user, STREAM_NON_BLOCKING);

	for (int i = 0; i < 2 && result == 0; i++) {
		result = cu->stream_create(&cuda->streams[i], STREAM_NON_BLOCKING);
		if (result == 0)
			result = cu->event_create(&cuda->done[i], EVENT_DISABLE_TIMING);
	}
	return bench_cuda_said(result, "cuStreamCreate", text);
}

int bench_cuda_open(struct bench_cuda **ret_cuda, char *text)
{
	struct bench_cuda *cuda = calloc(1, sizeof(*cuda));
	int rc;

	if (cuda == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	rc = load(cuda, text);
	if (rc == TOOL_OK)
		rc = open_context(cuda, text);
	if (rc == TOOL_OK)
		rc = create_streams(cuda, text);
	if (rc != TOOL_OK) {
		bench_cuda_close(cuda);
		return rc;
	}
	*ret_cuda = cuda;
	return TOOL_OK;
}

void bench_cuda_close(struct bench_cuda *cuda)
{
	if (cuda == NULL)
		return;
	for (uint32_t l = 0; l < cuda->layer_events; l++)
		cuda->cu.event_destroy(cuda->layers[l]);
	for (int i = 0; i < 2; i++) {
		if (cuda->done[i] != NULL)
			cuda->cu.event_destroy(cuda->done[i]);
		if (cuda->streams[i] != NULL)
			cuda->cu.stream_destroy(cuda->streams[i]);
	}
	if (cuda->user != NULL)
		cuda->cu.stream_destroy(cuda->user);
	if (cuda->context != NULL) {
		cuda->cu.context_set_current(NULL);
		cuda->cu.context_release(cuda->device);
	}
	if (cuda->library != NULL)
		dlclose(cuda->library);
	free(cuda);
}

int bench_cuda_events(struct bench_cuda *cuda, uint32_t count)
{
	while (cuda->layer_events < count) {
		int result = cuda->cu.event_create(&cuda->layers[cuda->layer_events],
						   EVENT_DISABLE_TIMING);

		if (result != 0)
			return result;
		cuda->layer_events++;
	}
	return 0;
}

int bench_cuda_poll(struct bench_cuda *cuda, struct CUevent_st *event)
{
	int result;

	do
		result = cuda->cu.event_query(event);
	while (result == NOT_READY);
	return result;
}

int bench_cuda_batch(struct bench_cuda *cuda, bench_device_address *to, bench_device_address *from,
		     size_t *sizes, size_t count, struct CUstream_st *stream)
{
	struct bench_copy_attributes attributes = {.source_order = 1};
	size_t start = 0;

	return count > 0 ? cuda->batch(to, from, sizes, count, &attributes, &start, 1, stream) : 0;
}
