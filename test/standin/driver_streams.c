/*
 * The stand-in driver's streams: a queue and a thread each. An event holds its last record, and who
 * waits for it takes the record of that moment.
 */
#include "standin/standin_driver.h"

#include <stdlib.h>
#include <string.h>

/* One moment in a stream; shared by the event, the record and the waits. */
struct point {
	uint32_t users;
	bool reached;
};

struct CUevent_st {
	struct point *point; /* NULL: never recorded */
};

enum what { COPY, RECORD, WAIT_EVENT, WAIT_VALUE, LAUNCH };

/* By the addresses that the caller gave: they are looked up again when it runs. */
struct copy {
	CUdeviceptr device;
	const void *host;
	bool to_host;
	size_t width, height, device_pitch, host_pitch;
};

struct channel;

struct work {
	struct work *next;
	struct channel *channel; /* NULL: it is in none */
	struct work *behind;	 /* in it */
	enum what what;
	struct copy copy;
	struct point *point;
	CUdeviceptr at;
	uint32_t value;
	uint32_t lanes, blocks;
	struct oki_gather *gather;
};

/* Work that has not begun, of all streams that share it. */
struct channel {
	struct work *first, **last;
	uint32_t streams; /* that have work in it */
};

struct CUstream_st {
	CUstream next;
	struct channel *channel; /* while it has work */
	pthread_t thread;
	pthread_cond_t more;	    /* work, or the end */
	struct work *first, **last; /* the first one is being done */
	uint32_t launches;	    /* among its work */
	bool ending;
	bool prompt; /* no delays */
	uint64_t random;
};

static CUstream streams, null_stream;
static uint32_t pending, launches; /* work in all queues */
static uint32_t settling;	   /* who waits in standin_settle() */
static enum standin_held held;
static struct channel channels[STANDIN_CHANNELS];
static uint32_t channel_count, channel_turn;

/* ---- work; with standin_lock held unless it says otherwise ---- */

static void point_drop(struct point *point)
{
	if (point && --point->users == 0)
		free(point);
}

/* Without the lock. */
static void do_copy(const struct copy *c)
{
	for (size_t y = 0; y < c->height; y++) {
		uint8_t *device = standin_device(c->device + y * c->device_pitch, c->width);
		const uint8_t *row = (const uint8_t *)c->host + y * c->host_pitch;
		if (c->to_host)
			memcpy(standin_pinned(row, c->width, STANDIN_WRITE), device, c->width);
		else
			memcpy(device, standin_pinned(row, c->width, STANDIN_READ), c->width);
	}
}

/* Does it wait for what is not there yet? */
static bool is_stuck(const struct work *work)
{
	const uint32_t *counter;
	if (work->channel && work->channel->first != work)
		return true;
	switch (work->what) {
	case WAIT_EVENT: return !work->point->reached;
	case WAIT_VALUE:
		counter =
			(const uint32_t *)(const void *)standin_device(work->at, sizeof(*counter));
		return (int32_t)(__atomic_load_n(counter, __ATOMIC_ACQUIRE) - work->value) < 0;
	case COPY: return held == STANDIN_COPIES && standin_is_registered(work->copy.host);
	case LAUNCH: return held == STANDIN_LAUNCHES;
	case RECORD: break;
	}
	return false;
}

/* One that no stream uses, if there is one; otherwise each in turn. */
static struct channel *channel_find(void)
{
	for (uint32_t i = 0; i < channel_count; i++)
		if (channels[i].streams == 0)
			return &channels[i];
	return &channels[channel_turn++ % channel_count];
}

static void channel_enter(CUstream stream, struct work *work)
{
	if (channel_count == 0 || stream->prompt)
		return;
	if (!stream->first) {
		stream->channel = channel_find();
		stream->channel->streams++;
	}
	work->channel = stream->channel;
	*work->channel->last = work;
	work->channel->last = &work->behind;
}

/* It begins. */
static void channel_leave(struct work *work)
{
	struct channel *channel = work->channel;
	if (!channel)
		return;
	channel->first = work->behind;
	if (!channel->first)
		channel->last = &channel->first;
	pthread_cond_broadcast(&standin_changed);
}

void standin_channels(uint32_t count)
{
	pthread_mutex_lock(&standin_lock);
	if (count > STANDIN_CHANNELS)
		standin_stop("%u hardware queues", count);
	while (pending)
		pthread_cond_wait(&standin_changed, &standin_lock);
	for (uint32_t i = 0; i < count; i++)
		channels[i] = (struct channel){.last = &channels[i].first};
	channel_count = count;
	pthread_mutex_unlock(&standin_lock);
}

static void do_work(CUstream stream, struct work *work)
{
	pthread_mutex_unlock(&standin_lock);
	if (!stream->prompt)
		standin_delay(&stream->random, 4, 300);
	pthread_mutex_lock(&standin_lock);
	while (is_stuck(work))
		pthread_cond_wait(&standin_changed, &standin_lock);
	channel_leave(work);
	if (work->what == RECORD)
		work->point->reached = true;
	if (work->what != COPY && work->what != LAUNCH)
		return;
	pthread_mutex_unlock(&standin_lock);
	if (work->what == COPY)
		do_copy(&work->copy);
	else
		standin_gather(work->gather, work->lanes, work->blocks, &stream->random);
	pthread_mutex_lock(&standin_lock);
}

static void *stream_main(void *arg)
{
	CUstream stream = arg;
	pthread_mutex_lock(&standin_lock);
	while (stream->first || !stream->ending) {
		struct work *work = stream->first;
		if (!work) {
			pthread_cond_wait(&stream->more, &standin_lock);
			continue;
		}
		do_work(stream, work);
		stream->first = work->next;
		pending--;
		stream->launches -= work->what == LAUNCH;
		launches -= work->what == LAUNCH;
		if (!stream->first) {
			stream->last = &stream->first;
			if (stream->channel)
				stream->channel->streams--;
			stream->channel = NULL;
		}
		if (!stream->first || work->what == RECORD || settling)
			pthread_cond_broadcast(&standin_changed);
		point_drop(work->point);
		free(work->gather);
		free(work);
	}
	pthread_mutex_unlock(&standin_lock);
	return NULL;
}

/* With the lock. */
static CUresult stream_new(bool prompt, CUstream *ret_stream)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->last = &stream->first;
	stream->prompt = prompt;
	stream->random = standin_random_new();
	pthread_cond_init(&stream->more, NULL);
	if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0) {
		pthread_cond_destroy(&stream->more);
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	stream->next = streams;
	streams = stream;
	*ret_stream = stream;
	return CUDA_SUCCESS;
}

static void stream_end(CUstream stream)
{
	pthread_mutex_lock(&standin_lock);
	stream->ending = true;
	pthread_cond_signal(&stream->more);
	pthread_mutex_unlock(&standin_lock);
	pthread_join(stream->thread, NULL);
	pthread_mutex_lock(&standin_lock);
	CUstream *at = &streams;
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	pthread_mutex_unlock(&standin_lock);
	pthread_cond_destroy(&stream->more);
	free(stream);
}

void standin_null_stream_end(void)
{
	pthread_mutex_lock(&standin_lock);
	CUstream stream = null_stream;
	null_stream = NULL;
	pthread_mutex_unlock(&standin_lock);
	if (stream)
		stream_end(stream);
}

/* The null stream is made when it is used first. */
static CUresult queue_of(CUstream stream, CUstream *ret_queue)
{
	CUresult result = CUDA_SUCCESS;
	if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) {
		*ret_queue = stream;
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&standin_lock);
	if (!null_stream)
		result = stream_new(false, &null_stream);
	*ret_queue = null_stream;
	pthread_mutex_unlock(&standin_lock);
	return result;
}

static struct work *work_new(enum what what)
{
	struct work *work = calloc(1, sizeof(*work));
	if (!work)
		standin_stop("no memory");
	work->what = what;
	return work;
}

static CUresult push(CUstream stream, struct work *work, uint32_t *counted)
{
	CUstream queue;
	CUresult result = queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		standin_stop("no thread for the null stream");
	pthread_mutex_lock(&standin_lock);
	if (counted)
		++*counted;
	if (work->what == COPY && launches > queue->launches && !standin_is_exempt())
		standin_now.beside++;
	queue->launches += work->what == LAUNCH;
	launches += work->what == LAUNCH;
	pending++;
	channel_enter(queue, work);
	*queue->last = work;
	queue->last = &work->next;
	pthread_cond_signal(&queue->more);
	pthread_mutex_unlock(&standin_lock);
	return CUDA_SUCCESS;
}

void standin_wait_for_all(void)
{
	pthread_mutex_lock(&standin_lock);
	while (pending && !standin_is_exempt())
		pthread_cond_wait(&standin_changed, &standin_lock);
	pthread_mutex_unlock(&standin_lock);
}

struct standin_gate *standin_gate_close(CUstream stream)
{
	struct work *work = work_new(WAIT_EVENT);
	struct point *point = calloc(1, sizeof(*point));
	if (!point)
		standin_stop("no memory");
	point->users = 2;
	work->point = point;
	push(stream, work, NULL);
	return (struct standin_gate *)point;
}

void standin_gate_open(struct standin_gate *gate)
{
	struct point *point = (struct point *)gate;
	pthread_mutex_lock(&standin_lock);
	point->reached = true;
	point_drop(point);
	pthread_cond_broadcast(&standin_changed);
	pthread_mutex_unlock(&standin_lock);
}

void standin_hold(enum standin_held what)
{
	pthread_mutex_lock(&standin_lock);
	held = what;
	pthread_cond_broadcast(&standin_changed);
	pthread_mutex_unlock(&standin_lock);
}

/* False: some stream goes on. */
static bool all_stuck(uint32_t *ret_busy)
{
	uint32_t busy = 0;
	for (CUstream stream = streams; stream; stream = stream->next) {
		if (stream->first && !is_stuck(stream->first))
			return false;
		busy += stream->first != NULL;
	}
	*ret_busy = busy;
	return true;
}

uint32_t standin_settle(void)
{
	uint32_t busy = 0;
	pthread_mutex_lock(&standin_lock);
	settling++;
	while (!all_stuck(&busy))
		pthread_cond_wait(&standin_changed, &standin_lock);
	settling--;
	pthread_mutex_unlock(&standin_lock);
	return busy;
}

static bool is_busy(CUstream queue)
{
	pthread_mutex_lock(&standin_lock);
	bool busy = queue->first;
	pthread_mutex_unlock(&standin_lock);
	return busy;
}

/* ---- streams ---- */

CUresult cuStreamCreateWithPriority(CUstream *ret_stream, unsigned int flags, int priority)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags != CU_STREAM_NON_BLOCKING || priority > 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&standin_lock);
	CUresult result = stream_new(standin_is_exempt(), ret_stream);
	standin_now.streams += result == CUDA_SUCCESS;
	pthread_mutex_unlock(&standin_lock);
	return result;
}

CUresult cuStreamDestroy(CUstream stream)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	stream_end(stream);
	standin_count(&standin_now.streams, -1);
	return result;
}

CUresult cuStreamQuery(CUstream stream)
{
	CUstream queue;
	CUresult result = queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		return result;
	if (is_busy(queue))
		return CUDA_ERROR_NOT_READY;
	ENTER(STANDIN_IN_CONTEXT);
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUstream queue;
	ENTER(STANDIN_IN_CONTEXT);
	CUresult result = queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		return result;
	pthread_mutex_lock(&standin_lock);
	while (queue->first)
		pthread_cond_wait(&standin_changed, &standin_lock);
	pthread_mutex_unlock(&standin_lock);
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
	point_drop(event->point);
	pthread_mutex_unlock(&standin_lock);
	free(event);
	return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	struct work *work = work_new(RECORD);
	struct point *point = calloc(1, sizeof(*point));
	if (!point)
		standin_stop("no memory");
	point->users = 2;
	work->point = point;
	pthread_mutex_lock(&standin_lock);
	point_drop(event->point);
	event->point = point;
	pthread_mutex_unlock(&standin_lock);
	return push(stream, work, NULL);
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
	struct work *work = work_new(WAIT_EVENT);
	work->point = point;
	return push(stream, work, NULL);
}

#ifndef STANDIN_OLD
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (flags != CU_STREAM_WAIT_VALUE_GEQ || at % sizeof(value) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	standin_device(at, sizeof(value));
	struct work *work = work_new(WAIT_VALUE);
	work->at = at;
	work->value = value;
	return push(stream, work, &standin_now.value_waits);
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
	struct work *work = work_new(COPY);
	work->copy = *copy;
	return push(stream, work, &standin_now.copies);
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

#if CUDA_VERSION >= 13000 && !defined(STANDIN_OLD)
/* The copies of a batch come in any order: here from the last one to the first. */
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *indexes, size_t attribute_count,
			    CUstream stream)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (count == 0 || attribute_count != 1 || indexes[0] != 0 ||
	    attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || stream == NULL ||
	    stream == CU_STREAM_LEGACY)
		return CUDA_ERROR_INVALID_VALUE;
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
#endif

/* ---- launches ---- */

CUresult cuLaunchKernel(CUfunction function, unsigned int blocks, unsigned int blocks_y,
			unsigned int blocks_z, unsigned int threads, unsigned int threads_y,
			unsigned int threads_z, unsigned int shared, CUstream stream,
			void **parameters, void **extra)
{
	ENTER(STANDIN_IN_CONTEXT);
	uint32_t lanes = standin_lanes(function);
	if (!lanes || !blocks || blocks_y != 1 || blocks_z != 1 || threads != OKI_GATHER_THREADS ||
	    threads_y != 1 || threads_z != 1 || shared || extra)
		return CUDA_ERROR_INVALID_VALUE;
	struct work *work = work_new(LAUNCH);
	work->lanes = lanes;
	work->blocks = blocks;
	work->gather = malloc(sizeof(*work->gather));
	if (!work->gather)
		standin_stop("no memory");
	/* Parameters are taken at the call. */
	memcpy(work->gather, parameters[0], sizeof(*work->gather));
	return push(stream, work,
		    work->gather->column_count ? &standin_now.launches : &standin_now.empty);
}
