/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The host device's queues. Its threads copy chunks of each stream's oldest steps. */
#ifndef OKI_DEVICE_HOST_POOL_H
#define OKI_DEVICE_HOST_POOL_H

#include <pthread.h>
#include <sys/queue.h>

#include "device/device.h"

/* A position in a step: byte pos of a run, counted segment after segment, row after row. */
struct oki_host_cursor {
	uint32_t run;
	uint64_t pos;
};

/* The copy of one layer. */
struct oki_host_work {
	enum oki_direction direction;
	uint32_t run_count;
	const struct oki_run *runs;
	const struct oki_layer_map *map;
	struct oki_layer_map joined;
	uint64_t row_bytes; /* of all segments together */
	bool past_cache;    /* too much for the caches: use non-temporal stores */
};

/* One entry of a stream: a copy, or a mark. Guarded by the device's lock. */
struct oki_host_step {
	STAILQ_ENTRY(oki_host_step) link;
	struct oki_mark *mark; /* NULL for a copy */
	struct oki_host_work work;
	struct oki_host_cursor next; /* the first byte that no thread has taken */
	uint32_t copying;	     /* chunks taken and not finished */
	uint64_t bytes;		     /* added to the stream's queued */
};

STAILQ_HEAD(oki_host_steps, oki_host_step);

struct oki_stream {
	struct oki_device *device;
	struct oki_host_steps steps;  /* oldest first; the first one is not complete */
	struct oki_host_step *open;   /* the oldest copy with bytes not yet taken, or NULL */
	TAILQ_ENTRY(oki_stream) link; /* in the device's open list while open is set */
	uint64_t inline_bytes;	      /* copied by the caller since the last mark */
	uint64_t queued;	      /* bytes of its copies; of a long step only some count */
};

struct oki_mark {
	struct oki_host_step step;
	uint32_t pending; /* atomic; cleared last, after which the mark may be freed */
};

struct oki_device {
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_cond_t idle; /* some stream became empty */
	TAILQ_HEAD(, oki_stream) open;
	struct oki_host_steps spare; /* copy steps kept for reuse */
	uint32_t sleepers;	     /* threads that wait for work */
	uint32_t drainers;	     /* callers that wait for idle */
	bool stop;
	void (*notify)(void *arg);
	void *arg;
	uint32_t thread_count;
	pthread_t threads[];
};

/* Start the threads. On failure none runs. */
int oki_host_pool_start(struct oki_device *device, uint32_t threads, struct okv_error *err);
void oki_host_pool_stop(struct oki_device *device);

/* Append a step; the caller holds the lock. push_copy returns whether to wake a thread. */
bool oki_host_push_copy(struct oki_stream *stream, struct oki_host_step *step);
void oki_host_push_mark(struct oki_stream *stream, struct oki_mark *mark);

/* The bytes of a step; if that is limit or more, any number from limit on. */
uint64_t oki_host_work_bytes(const struct oki_host_work *work, uint64_t limit);
/* Move *cursor on by up to bytes; returns by how many. */
uint64_t oki_host_advance(const struct oki_host_work *work, struct oki_host_cursor *cursor,
			  uint64_t bytes);
/* Copy the bytes that oki_host_advance() passed over. */
void oki_host_copy(const struct oki_host_work *work, struct oki_host_cursor from, uint64_t bytes);

/* Is [base, base + bytes) mapped in this process, for reading and writing? */
int oki_host_check_memory(const void *base, uint64_t bytes, struct okv_error *err);

#endif
