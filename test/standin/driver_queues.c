/* SPDX-License-Identifier: Apache-2.0 */
/* Work of the stand-in driver: a stream is a queue and a thread, and may share a hardware queue. */
#include "standin/standin_queue.h"

#include <stdlib.h>
#include <string.h>

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
	bool ending;
	bool prompt;
	uint64_t random;
};

static CUstream streams, null_stream;
static uint32_t pending;  /* work in all queues */
static uint32_t settling; /* who waits in standin_settle() */
static enum standin_held held;
static struct channel channels[STANDIN_CHANNELS];
static uint32_t channel_count, channel_turn;

/* ---- work; with standin_lock held unless it says otherwise ---- */

void standin_point_drop(struct point *point)
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
		standin_gather(work->gather, work->lanes, work->blocks, work->threads,
			       &stream->random);
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
		if (!stream->first) {
			stream->last = &stream->first;
			if (stream->channel)
				stream->channel->streams--;
			stream->channel = NULL;
		}
		if (!stream->first || work->what == RECORD || settling)
			pthread_cond_broadcast(&standin_changed);
		standin_point_drop(work->point);
		free(work->gather);
		free(work);
	}
	pthread_mutex_unlock(&standin_lock);
	return NULL;
}

/* With the lock. */
CUresult standin_stream_new(bool prompt, CUstream *ret_stream)
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

void standin_stream_end(CUstream stream)
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
		standin_stream_end(stream);
}

/* The null stream is made when it is used first. */
CUresult standin_queue_of(CUstream stream, CUstream *ret_queue)
{
	CUresult result = CUDA_SUCCESS;
	if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) {
		*ret_queue = stream;
		return CUDA_SUCCESS;
	}
	pthread_mutex_lock(&standin_lock);
	if (!null_stream)
		result = standin_stream_new(false, &null_stream);
	*ret_queue = null_stream;
	pthread_mutex_unlock(&standin_lock);
	return result;
}

struct work *standin_work_new(enum what what)
{
	struct work *work = calloc(1, sizeof(*work));
	if (!work)
		standin_stop("no memory");
	work->what = what;
	return work;
}

CUresult standin_push(CUstream stream, struct work *work, uint32_t *counted)
{
	CUstream queue;
	CUresult result = standin_queue_of(stream, &queue);
	if (result != CUDA_SUCCESS)
		standin_stop("no thread for the null stream");
	pthread_mutex_lock(&standin_lock);
	if (counted)
		++*counted;
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
	struct work *work = standin_work_new(WAIT_EVENT);
	struct point *point = calloc(1, sizeof(*point));
	if (!point)
		standin_stop("no memory");
	point->users = 2;
	work->point = point;
	standin_push(stream, work, NULL);
	return (struct standin_gate *)point;
}

void standin_gate_open(struct standin_gate *gate)
{
	struct point *point = (struct point *)gate;
	pthread_mutex_lock(&standin_lock);
	point->reached = true;
	standin_point_drop(point);
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

bool standin_is_busy(CUstream queue)
{
	pthread_mutex_lock(&standin_lock);
	bool busy = queue->first;
	pthread_mutex_unlock(&standin_lock);
	return busy;
}

void standin_drain(CUstream queue)
{
	pthread_mutex_lock(&standin_lock);
	while (queue->first)
		pthread_cond_wait(&standin_changed, &standin_lock);
	pthread_mutex_unlock(&standin_lock);
}
