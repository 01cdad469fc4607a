/* SPDX-License-Identifier: Apache-2.0 */
/* [B] CUDA objects of callers: events for layers, and streams to wait for. */
#include "device/cuda/cuda_device.h"

#include "base/error.h"

/* ---- events ---- */

/* The cache entry of an event; events with the same entry replace each other. */
static _Atomic uintptr_t *event_entry(struct oki_device *device, const struct CUevent_st *event)
{
	uint64_t mixed = (uint64_t)(uintptr_t)event * 0x9e3779b97f4a7c15ull;
	return &device->events[mixed >> (64 - OKI_CUDA_EVENT_BITS)];
}

/* The first event from i on that is not validated. Relaxed: the entry publishes nothing but its own
 * value. */
static uint32_t next_unvalidated(struct oki_device *device, struct CUevent_st *const *events,
				 uint32_t i, uint32_t count)
{
	while (i < count &&
	       (!events[i] || atomic_load_explicit(event_entry(device, events[i]),
						   memory_order_relaxed) == (uintptr_t)events[i]))
		i++;
	return i;
}

/* Validate events on first use, all in one scope; the result is cached. Validation takes 1 to 2 us,
 * which for all layers of a model is as long as their first copies. */
int oki_cuda_check_events(struct oki_device *device, struct CUevent_st *const *events,
			  uint32_t count, struct okv_error *err)
{
	struct oki_cuda_scope scope;
	uint32_t i = next_unvalidated(device, events, 0, count);
	if (i == count)
		return 0;
	CUresult result = oki_cuda_enter(device->api, device->context, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, device->api, result,
				     "GPU %d cannot look at events", device->index);
	for (; i < count; i = next_unvalidated(device, events, i + 1, count)) {
		result = device->api->event_query(events[i]);
		if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
			break;
		atomic_store_explicit(event_entry(device, events[i]), (uintptr_t)events[i],
				      memory_order_relaxed);
	}
	oki_cuda_leave(&scope);
	if (i == count)
		return 0;
	return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, device->api, result,
			     "%p is no usable event", (void *)events[i]);
}

/* ---- streams ---- */

/* 1: the stream was busy. Check for a capture first: to query a legacy stream while a graph is
 * captured would break the capture. */
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
	bool busy = result == CUDA_ERROR_NOT_READY;
	if (busy)
		result = oki_cuda_follow(stream, stream->stream, ready);
	if (result == CUDA_SUCCESS)
		return busy;
	return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_READY, api, result,
			     "stream %p cannot be waited for", (void *)ready);
}

int oki_cuda_fence(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		   struct okv_error *err)
{
	struct oki_cuda_scope scope;
	if (count == 0)
		return 0;
	CUresult result = oki_cuda_enter(stream->device->api, stream->device->context, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_READY, stream->device->api, result,
				     "GPU %d cannot be used", stream->device->index);
	int rc = 0;
	for (uint32_t i = 0; i < count && rc >= 0; i++) {
		int busy = fence_one(stream, ready[i], err);
		rc = busy < 0 ? busy : rc | busy;
	}
	oki_cuda_leave(&scope);
	return rc;
}
