/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The host device: pages in ordinary memory, copied by a pool of threads. */
#include "device/device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cond.h"
#include "base/error.h"
#include "device/host_pool.h"
#include "device/rect.h"

#define DEFAULT_THREADS_MAX 8u
#define THREADS_MAX 256u

/* Between two marks a caller copies this much itself: waking a thread would take about as long. */
#define INLINE_BYTES (64u << 10)

/*
 * With this many bytes queued in one stream the caches cannot hold them. Non-temporal stores then
 * avoid reading every destination line first (measured: a third faster from memory to memory, a
 * fifth slower inside a cache).
 */
#define PAST_CACHE_BYTES (8u << 20)

static uint32_t cpu_count(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	int count = CPU_COUNT(&set);
	return count < 1 ? 1 : (uint32_t)count;
}

static int host_open(const struct oki_device_config *config, struct oki_device **ret_device,
		     struct okv_error *err)
{
	uint32_t threads = config->threads;
	if (threads > THREADS_MAX)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_REGISTER,
				"%u copy threads asked for, at most %u", threads, THREADS_MAX);
	if (threads == 0) {
		threads = cpu_count();
		if (threads > DEFAULT_THREADS_MAX)
			threads = DEFAULT_THREADS_MAX;
	}
	struct oki_device *device =
		calloc(1, sizeof(*device) + threads * sizeof(device->threads[0]));
	if (!device)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a device");
	pthread_mutex_init(&device->lock, NULL);
	oki_cond_init(&device->work);
	oki_cond_init(&device->idle);
	TAILQ_INIT(&device->open);
	STAILQ_INIT(&device->spare);
	device->notify = config->notify;
	device->arg = config->arg;
	int rc = oki_host_pool_start(device, threads, err);
	if (rc < 0)
		goto undo_locks;
	*ret_device = device;
	return 0;

undo_locks:
	pthread_cond_destroy(&device->idle);
	pthread_cond_destroy(&device->work);
	pthread_mutex_destroy(&device->lock);
	free(device);
	return rc;
}

static void host_close(struct oki_device *device)
{
	if (!device)
		return;
	oki_host_pool_stop(device);
	struct oki_host_step *step;
	while ((step = STAILQ_FIRST(&device->spare))) {
		STAILQ_REMOVE_HEAD(&device->spare, link);
		free(step);
	}
	pthread_cond_destroy(&device->idle);
	pthread_cond_destroy(&device->work);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

static void host_attach(struct oki_device *device)
{
	(void)device;
}

static void host_identify(struct oki_device *device, uint8_t ret_id[16], int32_t *ret_node)
{
	static const uint8_t id[16] = "host";
	(void)device;
	memcpy(ret_id, id, sizeof(id));
	*ret_node = -1;
}

/* A CPU copies from any mapping: there is nothing to prepare and nothing to undo. */
static int host_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		    struct okv_error *err)
{
	(void)device, (void)base, (void)bytes, (void)read_only, (void)err;
	return 0;
}

static void host_unpin(struct oki_device *device, void *base)
{
	(void)device, (void)base;
}

static int host_check_memory(struct oki_device *device, const void *base, uint64_t bytes,
			     struct okv_error *err)
{
	(void)device;
	return oki_host_check_memory(base, bytes, err);
}

static int host_check_events(struct oki_device *device, struct CUevent_st *const *events,
			     uint32_t count, struct okv_error *err)
{
	(void)device, (void)events, (void)count;
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_ARGUMENTS,
			"the host device has no GPU events");
}

static int host_stream_create(struct oki_device *device, struct oki_stream **ret_stream,
			      struct okv_error *err)
{
	struct oki_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a stream");
	stream->device = device;
	STAILQ_INIT(&stream->steps);
	*ret_stream = stream;
	return 0;
}

static void host_stream_destroy(struct oki_stream *stream)
{
	if (!stream)
		return;
	/* The thread that completed the last mark may still hold the lock. */
	pthread_mutex_lock(&stream->device->lock);
	bool empty = STAILQ_EMPTY(&stream->steps);
	pthread_mutex_unlock(&stream->device->lock);
	if (!empty)
		oki_die("a host stream was destroyed before it was drained");
	free(stream);
}

/* The host device prepares nothing for runs. */
static void host_stream_recycle(struct oki_stream *stream)
{
	(void)stream;
}

static int host_fence(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		      struct okv_error *err)
{
	(void)stream, (void)ready;
	if (count > 0)
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_READY,
				"the host device has no GPU streams to wait for");
	return 0;
}

static struct oki_host_step *step_get(struct oki_device *device)
{
	struct oki_host_step *step = STAILQ_FIRST(&device->spare);
	if (!step)
		return malloc(sizeof(*step));
	STAILQ_REMOVE_HEAD(&device->spare, link);
	return step;
}

/* Takes one layer a call, since the caller records a mark behind each. */
static int host_copy(struct oki_stream *stream, enum oki_direction direction,
		     const struct oki_layer_copy *layers, uint32_t layer_count,
		     struct okv_error *err)
{
	(void)layer_count;
	const struct oki_layer_map *map = layers->map;
	struct oki_device *device = stream->device;
	struct oki_host_work work = {
		.direction = direction,
		.run_count = layers->run_count,
		.runs = layers->runs,
		.map = map,
		.row_bytes = oki_layer_row_bytes(map),
	};
	uint64_t bytes = oki_host_work_bytes(&work, PAST_CACHE_BYTES);
	if (bytes == 0)
		return 1;
	oki_join_segments(map, &work.joined);

	pthread_mutex_lock(&device->lock);
	if (STAILQ_EMPTY(&stream->steps) && stream->inline_bytes + bytes <= INLINE_BYTES) {
		stream->inline_bytes += bytes;
		pthread_mutex_unlock(&device->lock);
		oki_host_copy(&work, (struct oki_host_cursor){0}, bytes);
		return 1;
	}
	struct oki_host_step *step = step_get(device);
	bool wake = false;
	if (step) {
		work.past_cache = stream->queued + bytes >= PAST_CACHE_BYTES;
		*step = (struct oki_host_step){.work = work, .bytes = bytes};
		wake = oki_host_push_copy(stream, step);
	}
	pthread_mutex_unlock(&device->lock);
	if (!step)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_SUBMIT, "no memory to queue a copy");
	if (wake)
		pthread_cond_signal(&device->work);
	return 1;
}

static int host_record_event(struct oki_stream *stream, struct CUevent_st *event,
			     struct okv_error *err)
{
	(void)stream, (void)event;
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_SUBMIT,
			"the host device has no GPU events");
}

static int host_mark_create(struct oki_device *device, struct oki_mark **ret_mark,
			    struct okv_error *err)
{
	(void)device;
	struct oki_mark *mark = calloc(1, sizeof(*mark));
	if (!mark)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a mark");
	*ret_mark = mark;
	return 0;
}

static void host_mark_destroy(struct oki_mark *mark)
{
	free(mark);
}

static int host_record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	(void)err;
	pthread_mutex_lock(&stream->device->lock);
	oki_host_push_mark(stream, mark);
	pthread_mutex_unlock(&stream->device->lock);
	return 0;
}

static int host_query(struct oki_mark *mark, struct okv_error *err)
{
	(void)err;
	return __atomic_load_n(&mark->pending, __ATOMIC_ACQUIRE) == 0;
}

static bool host_is_idle(struct oki_stream *stream)
{
	pthread_mutex_lock(&stream->device->lock);
	bool empty = STAILQ_EMPTY(&stream->steps);
	pthread_mutex_unlock(&stream->device->lock);
	return empty;
}

static int host_drain(struct oki_stream *stream, struct okv_error *err)
{
	(void)err;
	struct oki_device *device = stream->device;
	pthread_mutex_lock(&device->lock);
	device->drainers++;
	while (!STAILQ_EMPTY(&stream->steps))
		pthread_cond_wait(&device->idle, &device->lock);
	device->drainers--;
	pthread_mutex_unlock(&device->lock);
	return 0;
}

const struct oki_device_ops oki_device_host = {
	.name = "host",
	.kind = OKV_DEVICE_HOST,
	.has_callbacks = true,
	.has_gpu_streams = false,
	.max_pitch = UINT64_MAX,
	.open = host_open,
	.close = host_close,
	.attach = host_attach,
	.identify = host_identify,
	.pin = host_pin,
	.unpin = host_unpin,
	.check_memory = host_check_memory,
	.check_events = host_check_events,
	.stream_create = host_stream_create,
	.stream_destroy = host_stream_destroy,
	.stream_recycle = host_stream_recycle,
	.fence = host_fence,
	.copy = host_copy,
	.record_event = host_record_event,
	.mark_create = host_mark_create,
	.mark_destroy = host_mark_destroy,
	.record = host_record,
	.query = host_query,
	.is_idle = host_is_idle,
	.drain = host_drain,
};
