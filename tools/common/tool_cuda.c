/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The CUDA driver for the tools, loaded at run time. */
#include "tool_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct tool_symbol symbols[] = {
	{"cuInit", offsetof(struct tool_cuda_calls, init)},
	{"cuDriverGetVersion", offsetof(struct tool_cuda_calls, driver_version)},
	{"cuDeviceGet", offsetof(struct tool_cuda_calls, device_get)},
	{"cuDeviceGetName", offsetof(struct tool_cuda_calls, device_name)},
	{"cuDevicePrimaryCtxRetain", offsetof(struct tool_cuda_calls, context_retain)},
	{"cuDevicePrimaryCtxRelease_v2", offsetof(struct tool_cuda_calls, context_release)},
	{"cuCtxSetCurrent", offsetof(struct tool_cuda_calls, context_set_current)},
	{"cuCtxSynchronize", offsetof(struct tool_cuda_calls, context_synchronize)},
	{"cuMemGetInfo_v2", offsetof(struct tool_cuda_calls, memory_info)},
	{"cuMemAlloc_v2", offsetof(struct tool_cuda_calls, memory_alloc)},
	{"cuMemFree_v2", offsetof(struct tool_cuda_calls, memory_free)},
	{"cuMemsetD8_v2", offsetof(struct tool_cuda_calls, memory_set)},
	{"cuMemHostRegister_v2", offsetof(struct tool_cuda_calls, host_register)},
	{"cuMemHostUnregister", offsetof(struct tool_cuda_calls, host_unregister)},
	{"cuMemcpyHtoD_v2", offsetof(struct tool_cuda_calls, to_device)},
	{"cuMemcpyDtoH_v2", offsetof(struct tool_cuda_calls, to_host)},
	{"cuMemcpyHtoDAsync_v2", offsetof(struct tool_cuda_calls, to_device_async)},
	{"cuMemcpyDtoHAsync_v2", offsetof(struct tool_cuda_calls, to_host_async)},
	{"cuStreamCreate", offsetof(struct tool_cuda_calls, stream_create)},
	{"cuStreamDestroy_v2", offsetof(struct tool_cuda_calls, stream_destroy)},
	{"cuEventCreate", offsetof(struct tool_cuda_calls, event_create)},
	{"cuEventDestroy_v2", offsetof(struct tool_cuda_calls, event_destroy)},
	{"cuEventRecord", offsetof(struct tool_cuda_calls, event_record)},
	{"cuEventQuery", offsetof(struct tool_cuda_calls, event_query)},
	{"cuEventSynchronize", offsetof(struct tool_cuda_calls, event_synchronize)},
};

const char *tool_symbols_load(void *library, const struct tool_symbol *wanted, size_t count,
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

static int load(struct tool_cuda *cuda, char *text)
{
	const char *missing;

	cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (cuda->library == NULL) {
		snprintf(text, TOOL_TEXT, "no NVIDIA driver: %s", dlerror());
		return TOOL_SKIPPED;
	}
	missing = tool_symbols_load(cuda->library, symbols, sizeof(symbols) / sizeof(symbols[0]),
				    &cuda->cu);
	if (missing != NULL) {
		snprintf(text, TOOL_TEXT, "the driver lacks %s", missing);
		return TOOL_SKIPPED;
	}
	return TOOL_OK;
}

int tool_cuda_said(int result, const char *what, char *text)
{
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "%s says CUDA error %d", what, result);
	return TOOL_SKIPPED;
}

static int open_context(struct tool_cuda *cuda, char *text)
{
	const struct tool_cuda_calls *cu = &cuda->cu;
	int rc = tool_cuda_said(cu->init(0), "cuInit", text);

	if (rc == TOOL_OK)
		rc = tool_cuda_said(cu->device_get(&cuda->device, 0), "cuDeviceGet", text);
	if (rc == TOOL_OK)
		rc = tool_cuda_said(cu->context_retain(&cuda->context, cuda->device),
				    "cuDevicePrimaryCtxRetain", text);
	if (rc == TOOL_OK)
		rc = tool_cuda_said(cu->context_set_current(cuda->context), "cuCtxSetCurrent",
				    text);
	if (rc != TOOL_OK)
		return rc;
	cu->driver_version(&cuda->driver);
	cu->device_name(cuda->name, sizeof(cuda->name), cuda->device);
	return TOOL_OK;
}

int tool_cuda_open(struct tool_cuda *ret_cuda, char *text)
{
	struct tool_cuda cuda = {.library = NULL};
	int rc = load(&cuda, text);

	if (rc == TOOL_OK)
		rc = open_context(&cuda, text);
	if (rc != TOOL_OK) {
		tool_cuda_close(&cuda);
		return rc;
	}
	*ret_cuda = cuda;
	return TOOL_OK;
}

void tool_cuda_close(struct tool_cuda *cuda)
{
	if (cuda->context != NULL) {
		cuda->cu.context_set_current(NULL);
		cuda->cu.context_release(cuda->device);
	}
	if (cuda->library != NULL)
		dlclose(cuda->library);
	memset(cuda, 0, sizeof(*cuda));
}
