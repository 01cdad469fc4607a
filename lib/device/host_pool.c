/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The host device's threads: each takes a chunk, copies it and removes complete steps. */
#include "device/host_pool.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"

/* Long enough that the lock costs little, short enough that all threads finish a layer together. */
#define CHUNK_BYTES (256u << 10)

struct chunk {
	struct oki_stream *stream;
	struct oki_host_step *step;
	struct oki_host_cursor from;
	uint64_t bytes;
};

static bool all_taken(const struct oki_host_step *step)
{
	return step->next.run == step->work.run_count;
}

static bool is_complete(const struct oki_host_step *step)
{
	return step->mark || (all_taken(step) && step->copying == 0);
}

/* Take the next chunk of the stream that waited longest; streams take turns. */
static struct chunk take_chunk(struct oki_device *device)
{
	struct oki_stream *stream = TAILQ_FIRST(&device->open);
	struct oki_host_step *step = stream->open;
	struct chunk chunk = {.stream = stream, .step = step, .from = step->next};
	chunk.bytes = oki_host_advance(&step->work, &step->next, CHUNK_BYTES);
	step->copying++;

	TAILQ_REMOVE(&device->open, stream, link);
	while (step && (step->mark || all_taken(step)))
		step = STAILQ_NEXT(step, link);
	stream->open = step;
	if (step)
		TAILQ_INSERT_TAIL(&device->open, stream, link);
	return chunk;
}

/* Remove complete steps from the front; true if a mark was among them. */
static bool remove_complete(struct oki_stream *stream)
{
	struct oki_device *device = stream->device;
	struct oki_host_step *step;
	bool marked = false;
	while ((step = STAILQ_FIRST(&stream->steps)) && is_complete(step)) {
		STAILQ_REMOVE_HEAD(&stream->steps, link);
		if (step->mark) {
			marked = true;
			__atomic_store_n(&step->mark->pending, 0, __ATOMIC_RELEASE);
		} else {
			stream->queued -= step->bytes;
			STAILQ_INSERT_HEAD(&device->spare, step, link);
		}
	}
	if (STAILQ_EMPTY(&stream->steps) && device->drainers > 0)
		pthread_cond_broadcast(&device->idle);
	return marked;
}

static void *copier(void *arg)
{
	struct oki_device *device = arg;
	pthread_mutex_lock(&device->lock);
	for (;;) {
		while (TAILQ_EMPTY(&device->open) && !device->stop) {
			device->sleepers++;
			pthread_cond_wait(&device->work, &device->lock);
			device->sleepers--;
		}
		if (TAILQ_EMPTY(&device->open))
			break;
		struct chunk chunk = take_chunk(device);
		/* Each thread wakes the next one while chunks are left, so that a submitter wakes
		 * only one. */
		bool wake = !TAILQ_EMPTY(&device->open) && device->sleepers > 0;
		pthread_mutex_unlock(&device->lock);
		if (wake)
			pthread_cond_signal(&device->work);

		oki_host_copy(&chunk.step->work, chunk.from, chunk.bytes);

		pthread_mutex_lock(&device->lock);
		chunk.step->copying--;
		if (remove_complete(chunk.stream) && device->notify) {
			pthread_mutex_unlock(&device->lock);
			device->notify(device->arg);
			pthread_mutex_lock(&device->lock);
		}
	}
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

bool oki_host_push_copy(struct oki_stream *stream, struct oki_host_step *step)
{
	struct oki_device *device = stream->device;
	STAILQ_INSERT_TAIL(&stream->steps, step, link);
	stream->queued += step->bytes;
	if (!stream->open) {
		stream->open = step;
		TAILQ_INSERT_TAIL(&device->open, stream, link);
	}
	return device->sleepers > 0;
}

void oki_host_push_mark(struct oki_stream *stream, struct oki_mark *mark)
{
	stream->inline_bytes = 0;
	if (STAILQ_EMPTY(&stream->steps))
		return;
	__atomic_store_n(&mark->pending, 1, __ATOMIC_RELAXED);
	mark->step.mark = mark;
	STAILQ_INSERT_TAIL(&stream->steps, &mark->step, link);
}

int oki_host_pool_start(struct oki_device *device, uint32_t threads, struct okv_error *err)
{
	int rc = 0;
	while (device->thread_count < threads && rc == 0) {
		pthread_t *thread = &device->threads[device->thread_count];
		rc = oki_thread_start(thread, copier, device);
		if (rc == 0) {
			pthread_setname_np(*thread, "okv-copy");
			device->thread_count++;
		}
	}
	if (rc == 0)
		return 0;
	oki_host_pool_stop(device);
	return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, rc,
			   "cannot start copy thread %u of %u", device->thread_count + 1, threads);
}

void oki_host_pool_stop(struct oki_device *device)
{
	pthread_mutex_lock(&device->lock);
	device->stop = true;
	pthread_cond_broadcast(&device->work);
	pthread_mutex_unlock(&device->lock);
	for (uint32_t i = 0; i < device->thread_count; i++)
		pthread_join(device->threads[i], NULL);
}
