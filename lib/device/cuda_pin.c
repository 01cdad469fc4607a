/* [B] Host memory registered with CUDA, once per process. */
#include "device/cuda_device.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

/* Holds the context that registered it: a registration ends with its context. */
struct pin {
	struct pin *next;
	void *base;
	uint64_t bytes;
	bool read_only;
	uint32_t count;
	const struct oki_cuda_api *api;
	CUdevice device;
	CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pin *pins;

static struct pin **find(void *base)
{
	struct pin **at = &pins;
	while (*at && (*at)->base != base)
		at = &(*at)->next;
	return at;
}

static int pin_again(struct pin *pin, uint64_t bytes, bool read_only, struct okv_error *err)
{
	if (pin->bytes != bytes)
		return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_IMPORT,
				"%p is pinned with %llu bytes, not %llu", pin->base,
				(unsigned long long)pin->bytes, (unsigned long long)bytes);
	if (pin->read_only && !read_only)
		return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_IMPORT, "%p is pinned read-only",
				pin->base);
	pin->count++;
	return 0;
}

static unsigned register_flags(const struct oki_device *device, bool read_only)
{
	int supported = 0;
	unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	if (read_only)
		device->api->device_attribute(&supported,
					      CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
					      device->device);
	return supported ? flags | CU_MEMHOSTREGISTER_READ_ONLY : flags;
}

static int register_memory(struct oki_device *device, struct pin *pin, struct okv_error *err)
{
	const struct oki_cuda_api *api = pin->api;
	struct oki_cuda_scope scope;
	CUresult result = oki_cuda_enter(api, pin->context, &scope);
	if (result == CUDA_SUCCESS) {
		result = api->host_register(pin->base, pin->bytes,
					    register_flags(device, pin->read_only));
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	int status = OKV_E_UNSUPPORTED;
	if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		status = OKV_E_EXISTS;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		status = OKV_E_NOMEM;
	return oki_cuda_fail(err, status, OKV_STAGE_IMPORT, api, result,
			     "GPU %d cannot pin %llu bytes at %p", device->index,
			     (unsigned long long)pin->bytes, pin->base);
}

static int pin_first(struct oki_device *device, struct pin **at, void *base, uint64_t bytes,
		     bool read_only, struct okv_error *err)
{
	const struct oki_cuda_api *api = device->api;
	struct pin *pin = malloc(sizeof(*pin));
	if (!pin)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_IMPORT, "no memory to pin an arena");
	*pin = (struct pin){
		.base = base,
		.bytes = bytes,
		.read_only = read_only,
		.count = 1,
		.api = api,
		.device = device->device,
	};
	int rc;
	CUresult result = api->primary_retain(&pin->context, pin->device);
	if (result != CUDA_SUCCESS) {
		rc = oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_IMPORT, api, result,
				   "GPU %d has no context", device->index);
		goto undo_alloc;
	}
	rc = register_memory(device, pin, err);
	if (rc < 0)
		goto undo_retain;
	*at = pin;
	return 0;

undo_retain:
	api->primary_release(pin->device);
undo_alloc:
	free(pin);
	return rc;
}

int oki_cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		 struct okv_error *err)
{
	pthread_mutex_lock(&lock);
	struct pin **at = find(base);
	int rc = *at ? pin_again(*at, bytes, read_only, err)
		     : pin_first(device, at, base, bytes, read_only, err);
	pthread_mutex_unlock(&lock);
	return rc;
}

void oki_cuda_unpin(void *base)
{
	pthread_mutex_lock(&lock);
	struct pin **at = find(base);
	struct pin *pin = *at;
	if (pin && --pin->count == 0) {
		struct oki_cuda_scope scope;
		*at = pin->next;
		if (oki_cuda_enter(pin->api, pin->context, &scope) == CUDA_SUCCESS) {
			pin->api->host_unregister(base);
			oki_cuda_leave(&scope);
		}
		pin->api->primary_release(pin->device);
		free(pin);
	}
	pthread_mutex_unlock(&lock);
}
