/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The dozen driver calls that this example needs; no CUDA header, no CUDA at link time. */
#include "cuda_pages.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUctx_st;

#define EVENT_DISABLE_TIMING 0x2u

struct driver {
	int (*init)(unsigned flags);
	int (*device_get)(int *ret_device, int ordinal);
	int (*context_retain)(struct CUctx_st **ret_context, int device);
	int (*context_release)(int device);
	int (*context_set_current)(struct CUctx_st *context);
	int (*memory_alloc)(unsigned long long *ret_pointer, size_t bytes);
	int (*memory_free)(unsigned long long pointer);
	int (*to_device)(unsigned long long to, const void *from, size_t bytes);
	int (*to_host)(void *to, unsigned long long from, size_t bytes);
	int (*event_create)(struct CUevent_st **ret_event, unsigned flags);
	int (*event_destroy)(struct CUevent_st *event);
	int (*event_synchronize)(struct CUevent_st *event);
};

static const struct {
	const char *name;
	size_t offset;
} symbols[] = {
	{"cuInit", offsetof(struct driver, init)},
	{"cuDeviceGet", offsetof(struct driver, device_get)},
	{"cuDevicePrimaryCtxRetain", offsetof(struct driver, context_retain)},
	{"cuDevicePrimaryCtxRelease_v2", offsetof(struct driver, context_release)},
	{"cuCtxSetCurrent", offsetof(struct driver, context_set_current)},
	{"cuMemAlloc_v2", offsetof(struct driver, memory_alloc)},
	{"cuMemFree_v2", offsetof(struct driver, memory_free)},
	{"cuMemcpyHtoD_v2", offsetof(struct driver, to_device)},
	{"cuMemcpyDtoH_v2", offsetof(struct driver, to_host)},
	{"cuEventCreate", offsetof(struct driver, event_create)},
	{"cuEventDestroy_v2", offsetof(struct driver, event_destroy)},
	{"cuEventSynchronize", offsetof(struct driver, event_synchronize)},
};

struct cuda_pages {
	struct driver cu;
	void *library;
	struct CUctx_st *context;
	int device;
	uint32_t layers;
	size_t layer_bytes;
	unsigned long long *bases;
	struct CUevent_st **events;
};

static int load(struct cuda_pages *p, char ret_reason[200])
{
	p->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!p->library) {
		snprintf(ret_reason, 200, "no NVIDIA driver: %s", dlerror());
		return -1;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *call = dlsym(p->library, symbols[i].name);

		if (!call) {
			snprintf(ret_reason, 200, "the driver lacks %s", symbols[i].name);
			return -1;
		}
		memcpy((char *)&p->cu + symbols[i].offset, &call, sizeof(call));
	}
	return 0;
}

static int open_context(struct cuda_pages *p, int ordinal, char ret_reason[200])
{
	const char *what = "cuInit";
	int r = p->cu.init(0);

	if (!r) {
		what = "cuDeviceGet";
		r = p->cu.device_get(&p->device, ordinal);
	}
	if (!r) {
		what = "cuDevicePrimaryCtxRetain";
		r = p->cu.context_retain(&p->context, p->device);
	}
	if (!r) {
		what = "cuCtxSetCurrent";
		r = p->cu.context_set_current(p->context);
	}
	if (r)
		snprintf(ret_reason, 200, "%s says CUDA error %d for GPU %d", what, r, ordinal);
	return r ? -1 : 0;
}

static int allocate(struct cuda_pages *p, uint32_t layers, size_t layer_bytes)
{
	p->bases = calloc(layers, sizeof(*p->bases));
	p->events = calloc(layers, sizeof(struct CUevent_st *));
	if (!p->bases || !p->events)
		return -1;
	p->layers = layers;
	p->layer_bytes = layer_bytes;
	for (uint32_t l = 0; l < layers; l++) {
		if (p->cu.memory_alloc(&p->bases[l], layer_bytes) ||
		    p->cu.event_create(&p->events[l], EVENT_DISABLE_TIMING))
			return -1;
	}
	return 0;
}

int cuda_pages_create(int device, uint32_t layers, size_t layer_bytes, struct cuda_pages **ret_p,
		      char ret_reason[200])
{
	struct cuda_pages *p = calloc(1, sizeof(*p));

	if (!p) {
		snprintf(ret_reason, 200, "out of memory");
		return -1;
	}
	if (load(p, ret_reason) || open_context(p, device, ret_reason))
		goto fail;
	if (allocate(p, layers, layer_bytes)) {
		snprintf(ret_reason, 200, "no room for %u layers of %zu bytes on GPU %d", layers,
			 layer_bytes, device);
		goto fail;
	}
	*ret_p = p;
	return 0;

fail:
	cuda_pages_destroy(p);
	return -1;
}

void cuda_pages_destroy(struct cuda_pages *p)
{
	if (!p)
		return;
	if (p->context)
		p->cu.context_set_current(p->context);
	for (uint32_t l = 0; l < p->layers; l++) {
		if (p->events[l])
			p->cu.event_destroy(p->events[l]);
		if (p->bases[l])
			p->cu.memory_free(p->bases[l]);
	}
	free(p->events);
	free(p->bases);
	if (p->context) {
		p->cu.context_set_current(NULL);
		p->cu.context_release(p->device);
	}
	if (p->library)
		dlclose(p->library);
	free(p);
}

void *cuda_pages_base(const struct cuda_pages *p, uint32_t layer)
{
	return (void *)(uintptr_t)p->bases[layer];
}

struct CUevent_st *cuda_pages_event(const struct cuda_pages *p, uint32_t layer)
{
	return p->events[layer];
}

int cuda_pages_upload(struct cuda_pages *p, uint32_t layer, const void *from)
{
	int r = p->cu.context_set_current(p->context);

	return r ? r : p->cu.to_device(p->bases[layer], from, p->layer_bytes);
}

int cuda_pages_download(struct cuda_pages *p, uint32_t layer, void *to)
{
	int r = p->cu.context_set_current(p->context);

	return r ? r : p->cu.to_host(to, p->bases[layer], p->layer_bytes);
}

int cuda_pages_wait_event(struct cuda_pages *p, uint32_t layer)
{
	int r = p->cu.context_set_current(p->context);

	return r ? r : p->cu.event_synchronize(p->events[layer]);
}
