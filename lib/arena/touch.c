/* SPDX-License-Identifier: Apache-2.0 */
/* [M] First touch: threads allocate and zero the pages of new files, on the CPUs of their node. */
#include "arena/touch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "arena/place.h"
#include "base/cond.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/fd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define CHUNK_BYTES (UINT64_C(32) << 20) /* a multiple of every page size in use */
#define DEFAULT_THREADS 16u
#define MAX_THREADS 256u

/* The ranges of one node, as chunks. */
struct queue {
	int32_t node;
	uint64_t chunks;
	_Atomic uint64_t next;
};

struct touch_job {
	const struct oki_touch_range *ranges;
	uint32_t count;
	struct queue *queues;
	uint32_t queue_count;
	_Atomic uint32_t joined; /* threads that have chosen their first queue */
	_Atomic bool stop;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t done;
	uint32_t running;
	int error; /* errno value of the first failure */
	uint32_t error_range;
};

static uint64_t chunks_of(const struct oki_touch_range *range)
{
	return (range->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

/* Before Linux 5.14: allocate first, since a write without memory would raise SIGBUS. */
static int touch_by_hand(const struct oki_touch_range *range, uint64_t offset, uint64_t bytes)
{
	while (fallocate(range->fd, 0, (off_t)offset, (off_t)bytes) < 0)
		if (errno != EINTR)
			return errno;
	for (uint64_t at = offset; at < offset + bytes; at += range->page)
		*(volatile uint8_t *)(range->base + at) = 0;
	return 0;
}

static int touch_chunk(const struct oki_touch_range *range, uint64_t offset)
{
	uint64_t bytes = range->bytes - offset;
	if (bytes > CHUNK_BYTES)
		bytes = CHUNK_BYTES;
	while (madvise(range->base + offset, bytes, MADV_POPULATE_WRITE) < 0) {
		if (errno == EINVAL)
			return touch_by_hand(range, offset, bytes);
		if (errno != EINTR && errno != EAGAIN)
			return errno;
	}
	return 0;
}

static void report(struct touch_job *job, uint64_t bytes, int error, uint32_t range)
{
	pthread_mutex_lock(&job->lock);
	if (!error)
		job->done += bytes;
	if (error && !job->error) {
		job->error = error;
		job->error_range = range;
	}
	pthread_cond_signal(&job->changed);
	pthread_mutex_unlock(&job->lock);
	if (error)
		atomic_store(&job->stop, true);
}

/* The range of a node's chunk number *chunk, which becomes its number in that range. */
static uint32_t locate(const struct touch_job *job, int32_t node, uint64_t *chunk)
{
	uint32_t i = 0;
	for (;; i++) {
		if (job->ranges[i].node != node)
			continue;
		uint64_t chunks = chunks_of(&job->ranges[i]);
		if (*chunk < chunks)
			return i;
		*chunk -= chunks;
	}
}

static void drain_queue(struct touch_job *job, struct queue *queue)
{
	while (!atomic_load(&job->stop)) {
		uint64_t chunk = atomic_fetch_add(&queue->next, 1);
		if (chunk >= queue->chunks)
			return;
		uint32_t i = locate(job, queue->node, &chunk);
		const struct oki_touch_range *range = &job->ranges[i];
		uint64_t offset = chunk * CHUNK_BYTES;
		uint64_t left = range->bytes - offset;
		int error = touch_chunk(range, offset);
		report(job, left < CHUNK_BYTES ? left : CHUNK_BYTES, error, i);
	}
}

/* Each thread starts with one node's queue, and continues with those of the others. */
static void *work(void *arg)
{
	struct touch_job *job = arg;
	uint32_t first = atomic_fetch_add(&job->joined, 1);
	for (uint32_t i = 0; i < job->queue_count; i++) {
		struct queue *queue = &job->queues[(first + i) % job->queue_count];
		if (atomic_load(&queue->next) >= queue->chunks)
			continue;
		oki_place_thread(queue->node);
		drain_queue(job, queue);
	}
	pthread_mutex_lock(&job->lock);
	job->running--;
	pthread_cond_signal(&job->changed);
	pthread_mutex_unlock(&job->lock);
	return NULL;
}

static uint64_t fill_queues(struct touch_job *job)
{
	uint64_t chunks = 0;
	for (uint32_t i = 0; i < job->count; i++) {
		uint32_t q = 0;
		while (q < job->queue_count && job->queues[q].node != job->ranges[i].node)
			q++;
		if (q == job->queue_count)
			job->queues[job->queue_count++].node = job->ranges[i].node;
		job->queues[q].chunks += chunks_of(&job->ranges[i]);
		chunks += chunks_of(&job->ranges[i]);
	}
	return chunks;
}

static uint32_t thread_count(uint32_t wanted, uint64_t chunks)
{
	uint32_t threads = wanted;
	if (threads == 0) {
		cpu_set_t cpus;
		threads = DEFAULT_THREADS;
		if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
		    CPU_COUNT(&cpus) < (int)DEFAULT_THREADS)
			threads = (uint32_t)CPU_COUNT(&cpus);
	}
	if (threads > MAX_THREADS)
		threads = MAX_THREADS;
	return threads > chunks ? (uint32_t)chunks : threads;
}

static uint32_t start(struct touch_job *job, pthread_t *threads, uint32_t wanted, int *ret_error)
{
	uint32_t started = 0;
	int error = 0;
	job->running = wanted;
	while (started < wanted && !error) {
		error = oki_thread_start(&threads[started], work, job);
		started += !error;
	}
	pthread_mutex_lock(&job->lock);
	job->running -= wanted - started;
	pthread_mutex_unlock(&job->lock);
	*ret_error = error;
	return started;
}

static void follow(struct touch_job *job, uint64_t total, okv_progress_fn *progress, void *arg)
{
	uint64_t shown = 0;
	pthread_mutex_lock(&job->lock);
	for (;;) {
		uint64_t done = job->done;
		if (done != shown && progress) {
			pthread_mutex_unlock(&job->lock);
			progress(arg, done, total);
			pthread_mutex_lock(&job->lock);
			shown = done;
			continue;
		}
		if (job->running == 0)
			break;
		oki_cond_wait(&job->changed, &job->lock, UINT64_MAX);
	}
	pthread_mutex_unlock(&job->lock);
}

static int explain(const struct touch_job *job, struct okv_error *err)
{
	const struct oki_touch_range *range = &job->ranges[job->error_range];
	return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, job->error,
			   "no memory for shard %" PRIu32 " (%" PRIu64 " bytes in pages of %" PRIu64
			   ", NUMA node %d)",
			   job->error_range, range->bytes, range->page, range->node);
}

int oki_touch(const struct oki_touch_range *ranges, uint32_t count, uint32_t threads,
	      okv_progress_fn *progress, void *arg, struct okv_error *err)
{
	OKI_FREE struct queue *queues = calloc(count, sizeof(*queues));
	OKI_FREE pthread_t *ids = calloc(MAX_THREADS, sizeof(*ids));
	if (!queues || !ids)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
	struct touch_job job = {.ranges = ranges, .count = count, .queues = queues};
	uint64_t total = 0;
	for (uint32_t i = 0; i < count; i++)
		total += ranges[i].bytes;
	uint64_t chunks = fill_queues(&job);
	pthread_mutex_init(&job.lock, NULL);
	oki_cond_init(&job.changed);

	int error;
	uint32_t started = start(&job, ids, thread_count(threads, chunks), &error);
	follow(&job, total, progress, arg);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(ids[i], NULL);
	pthread_cond_destroy(&job.changed);
	pthread_mutex_destroy(&job.lock);

	if (started == 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, error,
				   "starting a thread to touch memory");
	return job.error ? explain(&job, err) : 0;
}
