/* [B] The CUDA device that uses copy engines only: no kernel, no SM time. */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "device/cuda_device.h"

struct oki_stream {
	struct oki_device *device;
	CUstream stream;
	CUevent fence; /* for callers' busy streams */
};

struct oki_mark {
	struct oki_device *device;
	CUevent event;
};

CUresult oki_cuda_enter(const struct oki_cuda_api *api, CUcontext context,
			struct oki_cuda_scope *ret_scope)
{
	CUresult result = api->context_push(context);
	if (result != CUDA_SUCCESS)
		return result;
	ret_scope->api = api;
	ret_scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	result = api->capture_mode_exchange(&ret_scope->mode);
	if (result != CUDA_SUCCESS)
		api->context_pop(&context);
	return result;
}

void oki_cuda_leave(struct oki_cuda_scope *scope)
{
	CUcontext ours;
	scope->api->capture_mode_exchange(&scope->mode);
	scope->api->context_pop(&ours);
}

static CUresult enter(const struct oki_device *device, struct oki_cuda_scope *ret_scope)
{
	return oki_cuda_enter(device->api, device->context, ret_scope);
}

static int cuda_open(const struct oki_device_config *config, struct oki_device **ret_device,
		     struct okv_error *err)
{
	const struct oki_cuda_api *api;
	int rc = oki_cuda_api_get(&api, err);
	if (rc < 0)
		return rc;
	int count = 0;
	CUresult result = api->device_count(&count);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
				     "no GPU can be counted");
	if (config->index < 0 || config->index >= count)
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
				"no GPU %d: this process sees %d", config->index, count);
	struct oki_device *device = calloc(1, sizeof(*device));
	if (!device)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a device");
	device->api = api;
	device->index = config->index;
	result = api->device_get(&device->device, config->index);
	if (result == CUDA_SUCCESS)
		result = api->primary_retain(&device->context, device->device);
	if (result != CUDA_SUCCESS) {
		free(device);
		return oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
				     "GPU %d has no context", config->index);
	}
	*ret_device = device;
	return 0;
}

static void cuda_close(struct oki_device *device)
{
	if (!device)
		return;
	device->api->primary_release(device->device);
	free(device);
}

static void cuda_identify(struct oki_device *device, uint8_t ret_id[16])
{
	CUuuid uuid = {{0}};
	device->api->device_uuid(&uuid, device->device);
	memcpy(ret_id, uuid.bytes, 16);
}

static void cuda_unpin(struct oki_device *device, void *base)
{
	(void)device;
	oki_cuda_unpin(base);
}

/* The allocation of this GPU that holds at; managed memory counts. */
struct range {
	uint64_t start;
	uint64_t size;
	bool pieces; /* mapped piece by piece (cuMemMap), with holes perhaps */
};

static bool find_range(struct oki_device *device, CUdeviceptr at, struct range *ret_range)
{
	const struct oki_cuda_api *api = device->api;
	CUdeviceptr start = 0;
	CUmemorytype type = (CUmemorytype)0;
	CUcontext context = NULL;
	int ordinal = -1, managed = 0;
	size_t size = 0;
	if (api->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS)
		return false;
	api->pointer_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
	if (type != CU_MEMORYTYPE_DEVICE && !managed)
		return false;
	api->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
	if (ordinal != device->device && !managed)
		return false;
	if (api->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) !=
		    CUDA_SUCCESS ||
	    api->pointer_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) != CUDA_SUCCESS)
		return false;
	/* Memory of no context: mapped by cuMemMap, or of a pool. */
	api->pointer_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
	*ret_range = (struct range){start, size, !context && !managed};
	return true;
}

/* For memory in pieces a range is what was reserved; the pieces must leave no hole. */
static bool is_mapped(struct oki_device *device, uint64_t at, uint64_t end)
{
	const struct oki_cuda_api *api = device->api;
	while (at < end) {
		CUdeviceptr start = 0;
		size_t size = 0;
		int mapped = 0, ordinal = -1;
		api->pointer_attribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at);
		api->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
		if (!mapped || ordinal != device->device)
			return false;
		if (api->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at) !=
			    CUDA_SUCCESS ||
		    api->pointer_attribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at) !=
			    CUDA_SUCCESS ||
		    start + size <= at)
			return false;
		at = start + size;
	}
	return true;
}

static int check_range(struct oki_device *device, uint64_t base, uint64_t bytes,
		       struct okv_error *err)
{
	struct range range;
	if (!find_range(device, base, &range))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%#llx is no memory of GPU %d", (unsigned long long)base,
				device->index);
	if (bytes == 0 || base < range.start || !oki_within(base - range.start, bytes, range.size))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%llu bytes at %#llx do not lie in one allocation: GPU %d has "
				"%llu bytes at %#llx",
				(unsigned long long)bytes, (unsigned long long)base, device->index,
				(unsigned long long)range.size, (unsigned long long)range.start);
	if (range.pieces && !is_mapped(device, base, base + bytes))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%llu bytes at %#llx are reserved on GPU %d, but not all mapped",
				(unsigned long long)bytes, (unsigned long long)base, device->index);
	return 0;
}

static int cuda_check_memory(struct oki_device *device, const void *base, uint64_t bytes,
			     struct okv_error *err)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(device, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER, device->api, result,
				     "GPU %d cannot look at memory", device->index);
	int rc = check_range(device, (uint64_t)(uintptr_t)base, bytes, err);
	oki_cuda_leave(&scope);
	return rc;
}

static int cuda_check_event(struct oki_device *device, struct CUevent_st *event,
			    struct okv_error *err)
{
	struct oki_cuda_scope scope;
	if (!event)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "an event is NULL");
	CUresult result = enter(device, &scope);
	if (result == CUDA_SUCCESS) {
		result = device->api->event_query(event);
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
		return 0;
	return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, device->api, result,
			     "%p is no usable event", (void *)event);
}

static int cuda_stream_create(struct oki_device *device, struct oki_stream **ret_stream,
			      struct okv_error *err)
{
	const struct oki_cuda_api *api = device->api;
	struct oki_cuda_scope scope;
	struct oki_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a stream");
	stream->device = device;
	CUresult result = enter(device, &scope);
	if (result != CUDA_SUCCESS)
		goto undo_alloc;
	result = api->stream_create(&stream->stream, CU_STREAM_NON_BLOCKING, 0);
	if (result != CUDA_SUCCESS)
		goto undo_enter;
	result = api->event_create(&stream->fence, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS)
		goto undo_stream;
	oki_cuda_leave(&scope);
	*ret_stream = stream;
	return 0;

undo_stream:
	api->stream_destroy(stream->stream);
undo_enter:
	oki_cuda_leave(&scope);
undo_alloc:
	free(stream);
	return oki_cuda_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, api, result,
			     "GPU %d gives no stream", device->index);
}

static void cuda_stream_destroy(struct oki_stream *stream)
{
	if (!stream)
		return;
	struct oki_cuda_scope scope;
	if (enter(stream->device, &scope) == CUDA_SUCCESS) {
		stream->device->api->event_destroy(stream->fence);
		stream->device->api->stream_destroy(stream->stream);
		oki_cuda_leave(&scope);
	}
	free(stream);
}

/* Order matters: to query a legacy stream while a graph is captured would break the capture. */
static int fence_one(struct oki_stream *stream, CUstream ready, struct okv_error *err)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
	CUcontext context = NULL;
	CUresult result = api->stream_is_capturing(ready, &capturing);
	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
	    (result == CUDA_SUCCESS && capturing != CU_STREAM_CAPTURE_STATUS_NONE))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_READY,
				"stream %p is capturing a graph: start outside the capture",
				(void *)ready);
	if (result == CUDA_SUCCESS)
		result = api->stream_context(ready, &context);
	if (result == CUDA_SUCCESS && context != stream->device->context)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_READY,
				"stream %p belongs to another context than GPU %d's primary one",
				(void *)ready, stream->device->index);
	if (result == CUDA_SUCCESS)
		result = api->stream_query(ready);
	if (result == CUDA_ERROR_NOT_READY) {
		/* A wait takes what the event holds at this moment, so one event serves all. */
		result = api->event_record(stream->fence, ready);
		if (result == CUDA_SUCCESS)
			result = api->stream_wait_event(stream->stream, stream->fence, 0);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_READY, api, result,
			     "stream %p cannot be waited for", (void *)ready);
}

static int cuda_fence(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		      struct okv_error *err)
{
	struct oki_cuda_scope scope;
	if (count == 0)
		return 0;
	CUresult result = enter(stream->device, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_READY, stream->device->api, result,
				     "GPU %d cannot be used", stream->device->index);
	int rc = 0;
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = fence_one(stream, ready[i], err);
	oki_cuda_leave(&scope);
	return rc;
}

static int cuda_copy(struct oki_stream *stream, enum oki_direction direction,
		     const struct oki_layer_map *map, const struct oki_run *runs,
		     uint32_t run_count, struct okv_error *err)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, api, result,
				     "GPU %d cannot be used", stream->device->index);
	int rc = oki_cuda_copy(api, stream->stream, direction, map, runs, run_count, err);
	oki_cuda_leave(&scope);
	return rc;
}

static int cuda_record_event(struct oki_stream *stream, struct CUevent_st *event,
			     struct okv_error *err)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result == CUDA_SUCCESS) {
		result = api->event_record(event, stream->stream);
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, api, result,
			     "an event cannot be recorded on GPU %d", stream->device->index);
}

static int cuda_mark_create(struct oki_device *device, struct oki_mark **ret_mark,
			    struct okv_error *err)
{
	struct oki_cuda_scope scope;
	struct oki_mark *mark = calloc(1, sizeof(*mark));
	if (!mark)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a mark");
	mark->device = device;
	CUresult result = enter(device, &scope);
	if (result == CUDA_SUCCESS) {
		result = device->api->event_create(&mark->event, CU_EVENT_DISABLE_TIMING);
		oki_cuda_leave(&scope);
	}
	if (result != CUDA_SUCCESS) {
		free(mark);
		return oki_cuda_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, device->api, result,
				     "GPU %d gives no event", device->index);
	}
	*ret_mark = mark;
	return 0;
}

static void cuda_mark_destroy(struct oki_mark *mark)
{
	if (!mark)
		return;
	struct oki_cuda_scope scope;
	if (enter(mark->device, &scope) == CUDA_SUCCESS) {
		mark->device->api->event_destroy(mark->event);
		oki_cuda_leave(&scope);
	}
	free(mark);
}

static int cuda_record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	return cuda_record_event(stream, mark->event, err);
}

/*
 * An asynchronous error is sticky in its context, and after one the driver tells nothing more
 * about copies in flight. No error a query returns proves that the copies ended.
 */
static int unknown_end(const struct oki_device *device, CUresult result, struct okv_error *err)
{
	return oki_cuda_fail(err, OKV_E_POISONED, OKV_STAGE_DRAIN, device->api, result,
			     "completion unknown on GPU %d", device->index);
}

static int cuda_query(struct oki_mark *mark, struct okv_error *err)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(mark->device, &scope);
	if (result == CUDA_SUCCESS) {
		result = mark->device->api->event_query(mark->event);
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS)
		return 1;
	return result == CUDA_ERROR_NOT_READY ? 0 : unknown_end(mark->device, result, err);
}

static int cuda_drain(struct oki_stream *stream, struct okv_error *err)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result == CUDA_SUCCESS) {
		result = stream->device->api->stream_synchronize(stream->stream);
		oki_cuda_leave(&scope);
	}
	return result == CUDA_SUCCESS ? 0 : unknown_end(stream->device, result, err);
}

const struct oki_device_ops oki_device_cuda_dma = {
	.name = "cuda-dma",
	.kind = OKV_DEVICE_CUDA,
	.has_callbacks = false,
	.has_gpu_streams = true,
	.max_pitch = OKI_CUDA_MAX_PITCH,
	.open = cuda_open,
	.close = cuda_close,
	.identify = cuda_identify,
	.pin = oki_cuda_pin,
	.unpin = cuda_unpin,
	.check_memory = cuda_check_memory,
	.check_event = cuda_check_event,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.fence = cuda_fence,
	.copy = cuda_copy,
	.record_event = cuda_record_event,
	.mark_create = cuda_mark_create,
	.mark_destroy = cuda_mark_destroy,
	.record = cuda_record,
	.query = cuda_query,
	.drain = cuda_drain,
};
