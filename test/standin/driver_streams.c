/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in driver's calls for streams, events, copies and launches. An event holds its last
 * record, and who waits for it takes the record of that moment.
 */
#include "standin/standin_queue.h"

#include <stdlib.h>
#include <string.h>

struct CUevent_st {
	struct point *point; /* NULL: never recorded */
};

/* ---- streams ---- */

CUresult cuStreamCreateWithPriority(CUstream *ret_stream, unsigned int flags, int priority)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags != CU_STREAM_NON_BLOCKING || priority > 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	CUresult result = standin_stream_new(standin_is_exempt(), ret_stream);
	standin_now.streams += result == CUDA_SUCCESS;
	pthread_mutex_unlock(&standin_lock);
	return result;
}

CUresult cuStreamDestroy(CUstream stream)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	standin_stream_end(stream);
	standin_count(&standin_now.streams, -1);
	return result;
}

CUresult cuStreamQuery(CUstream stream)
{
	CUstream queue;
	CUresult result = standin_queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		return result;
	if (standin_is_busy(queue))
		return CUDA_ERROR_NOT_READY;
	ENTER(STANDIN_IN_CONTEXT);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUstream queue;
	ENTER(STANDIN_IN_CONTEXT);
	CUresult result = standin_queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		return result;
	standin_drain(queue);
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *ret_status)
{
	(void)stream;
	ENTER(STANDIN_IN_CONTEXT);
	*ret_status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ret_context)
{
	(void)stream;
	ENTER(STANDIN_IN_CONTEXT);
	*ret_context = standin_context();
	return CUDA_SUCCESS;
}

/* ---- events ---- */

#ifdef STANDIN_TIMED
#define TIMED true
#else
#define TIMED false
#endif

CUresult cuEventCreate(CUevent *ret_event, unsigned int flags)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags != CU_EVENT_DISABLE_TIMING && !(TIMED && flags == CU_EVENT_DEFAULT))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUevent_st *event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	standin_count(&standin_now.events, 1);
	*ret_event = event;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	pthread_mutex_lock(&standin_lock);
	standin_now.events--;
	standin_point_drop(event->point);
	pthread_mutex_unlock(&standin_lock);
	free(event);
	return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	struct work *work = standin_work_new(RECORD);
	struct point *point = calloc(1, sizeof(*point));
	if (!point)
		standin_stop("no memory");
	point->users = 2;
	work->point = point;
	pthread_mutex_lock(&standin_lock);
	standin_point_drop(event->point);
	event->point = point;
	pthread_mutex_unlock(&standin_lock);
	return standin_push(stream, work, NULL);
}

CUresult cuEventQuery(CUevent event)
{
	pthread_mutex_lock(&standin_lock);
	bool reached = !event->point || event->point->reached;
	pthread_mutex_unlock(&standin_lock);
	if (!reached)
		return CUDA_ERROR_NOT_READY;
	ENTER(STANDIN_IN_CONTEXT);
	return CUDA_SUCCESS;
}

static float elapsed;

void standin_elapsed(float ms)
{
	pthread_mutex_lock(&standin_lock);
	elapsed = ms;
	pthread_mutex_unlock(&standin_lock);
}

#ifdef STANDIN_TIMED
CUresult cuEventElapsedTime(float *ret_ms, CUevent from, CUevent to)
{
	ENTER(STANDIN_IN_CONTEXT);
	pthread_mutex_lock(&standin_lock);
	bool reached = from->point && from->point->reached && to->point && to->point->reached;
	*ret_ms = elapsed;
	pthread_mutex_unlock(&standin_lock);
	return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
#endif

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	struct point *point = event->point;
	if (point)
		point->users++;
	pthread_mutex_unlock(&standin_lock);
	if (!point)
		return CUDA_SUCCESS;
	struct work *work = standin_work_new(WAIT_EVENT);
	work->point = point;
	return standin_push(stream, work, NULL);
}

#ifndef STANDIN_OLD
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags != CU_STREAM_WAIT_VALUE_GEQ || at % sizeof(value) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	standin_device(at, sizeof(value));
	struct work *work = standin_work_new(WAIT_VALUE);
	work->at = at;
	work->value = value;
	return standin_push(stream, work, &standin_now.value_waits);
}
#endif

/* ---- copies ---- */

static CUresult push_copy(CUstream stream, const struct copy *copy)
{
	const uint8_t *host = copy->host;
	size_t span = copy->height ? (copy->height - 1) * copy->host_pitch + copy->width : 0;
	if (copy->width == 0 || copy->height == 0)
		return CUDA_ERROR_INVALID_VALUE;
	/* One operation has all its bytes in one registration and in one allocation. */
	standin_pinned(host, span, copy->to_host ? STANDIN_WRITE : STANDIN_READ);
	standin_device(copy->device, (copy->height - 1) * copy->device_pitch + copy->width);
	struct work *work = standin_work_new(COPY);
	work->copy = *copy;
	return standin_push(stream, work, &standin_now.copies);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	struct copy copy = {.device = to, .host = from, .width = bytes, .height = 1};
	return push_copy(stream, &copy);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	struct copy copy = {
		.device = from, .host = to, .to_host = true, .width = bytes, .height = 1};
	return push_copy(stream, &copy);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	struct copy copy = {.width = c->WidthInBytes, .height = c->Height};
	copy.to_host = c->dstMemoryType == CU_MEMORYTYPE_HOST;
	if (c->srcXInBytes || c->srcY || c->dstXInBytes || c->dstY ||
	    c->srcPitch < c->WidthInBytes || c->dstPitch < c->WidthInBytes ||
	    c->srcPitch > INT32_MAX || c->dstPitch > INT32_MAX ||
	    c->srcMemoryType != (copy.to_host ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST) ||
	    (!copy.to_host && c->dstMemoryType != CU_MEMORYTYPE_DEVICE))
		return CUDA_ERROR_INVALID_VALUE;
	copy.device = copy.to_host ? c->srcDevice : c->dstDevice;
	copy.device_pitch = copy.to_host ? c->srcPitch : c->dstPitch;
	copy.host = copy.to_host ? c->dstHost : c->srcHost;
	copy.host_pitch = copy.to_host ? c->dstPitch : c->srcPitch;
	return push_copy(stream, &copy);
}

#define BATCH_13 "cuMemcpyBatchAsync_v2"
#define BATCH_12 "cuMemcpyBatchAsync"

#if CUDA_VERSION >= 12080 && !defined(STANDIN_OLD)
/* The copies of a batch come in any order: here from the last one to the first. */
static CUresult push_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
			   CUstream stream)
{
	if (count == 0 || attribute_count != 1 || indexes[0] != 0 ||
	    attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || stream == NULL ||
	    stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
	standin_count(&standin_now.batches, 1);
	for (size_t i = count; i-- > 0;) {
		const void *host = (const void *)(uintptr_t)to[i];
		struct copy copy = {
			.device = from[i], .host = host, .width = bytes[i], .height = 1};
		copy.to_host = standin_is_pinned(host);
		if (!copy.to_host) {
			copy.device = to[i];
			copy.host = (const void *)(uintptr_t)from[i];
		}
		CUresult result = push_copy(stream, &copy);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* By their names: cuda.h has one of them. */
CUresult batch_12(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
		  CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
		  size_t *ret_failed, CUstream stream) __asm__(BATCH_12);

CUresult batch_12(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
		  CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
		  size_t *ret_failed, CUstream stream)
{
	CUresult result = standin_enter(BATCH_12, STANDIN_IN_CONTEXT);
	*ret_failed = SIZE_MAX;
	return result != CUDA_SUCCESS ? result
				      : push_batch(to, from, bytes, count, attributes, indexes,
						   attribute_count, stream);
}

#ifndef STANDIN_12
CUresult batch_13(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
		  CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
		  CUstream stream) __asm__(BATCH_13);

CUresult batch_13(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
		  CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
		  CUstream stream)
{
	CUresult result = standin_enter(BATCH_13, STANDIN_IN_CONTEXT);
	return result != CUDA_SUCCESS ? result
				      : push_batch(to, from, bytes, count, attributes, indexes,
						   attribute_count, stream);
}
#endif
#endif

/* ---- launches ---- */

CUresult cuLaunchKernel(CUfunction function, unsigned int blocks, unsigned int blocks_y,
			unsigned int blocks_z, unsigned int threads, unsigned int threads_y,
			unsigned int threads_z, unsigned int shared, CUstream stream,
			void **parameters, void **extra)
{
	ENTER(STANDIN_IN_CONTEXT);
	uint32_t lanes = standin_lanes(function);
	if (!lanes || !blocks || blocks_y != 1 || blocks_z != 1 || !threads || threads % 32 ||
	    threads > OKI_GATHER_THREADS || threads_y != 1 || threads_z != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	/* The null stream is the caller's: what the library puts there waits for the caller's work
	 * and holds it up. */
	if (!stream)
		return CUDA_ERROR_NOT_PERMITTED;
	struct work *work = standin_work_new(LAUNCH);
	work->lanes = lanes;
	work->blocks = blocks;
	work->threads = threads;
	work->gather = malloc(sizeof(*work->gather));
	if (!work->gather)
		standin_stop("no memory");
	/* Parameters are taken at the call. */
	memcpy(work->gather, parameters[0], sizeof(*work->gather));
	return standin_push(stream, work,
			    work->gather->column_count ? &standin_now.launches
						       : &standin_now.empty);
}
