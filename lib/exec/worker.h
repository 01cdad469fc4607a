/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The thread of one binding that submits copies and never waits for one. */
#ifndef OKI_EXEC_WORKER_H
#define OKI_EXEC_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include "exec/work.h"

/* For a reply of the Manager, callers and workers spin this many times spin_us: its thread may have
 * to wake first, and a reply to a sleeper costs two more wakeups. */
#define OKI_REPLY_SPINS 4u

struct oki_worker_config {
	const struct oki_device_ops *ops;
	int32_t device_index;
	uint32_t threads;
	uint32_t copy_path; /* CUDA: as in okv_binding_options */
	uint32_t copy_sms;
	uint32_t spin_us;
	const struct oki_log *log;	     /* borrowed; NULL: silent */
	const struct oki_schema *schema;     /* borrowed */
	const struct oki_geometry *geometry; /* borrowed */
};

struct oki_worker;

/* Open the device and start the thread. Returns owned. */
int oki_worker_create(const struct oki_worker_config *config, struct oki_worker **ret_worker,
		      struct okv_error *err);
/* All transfers must have ended. Stops the thread, closes the device. NULL is allowed. */
void oki_worker_destroy(struct oki_worker *worker);

struct oki_device *oki_worker_device(struct oki_worker *worker);
const struct oki_device_ops *oki_worker_ops(struct oki_worker *worker);

/* A stream for one transfer, from a pool that grows. 1: it may still wait for fences of an earlier
 * operation, since OKI_FENCED_STREAMS idle streams do. */
int oki_worker_stream_get(struct oki_worker *worker, struct oki_stream **ret_stream,
			  struct okv_error *err);
/* Add count new streams to the pool now: creating one later may block in the driver while a stream
 * of the caller is blocked. */
int oki_worker_streams_open(struct oki_worker *worker, uint32_t count, struct okv_error *err);
/* drained: everything queued ended. Otherwise only fences were queued, and the stream is used again
 * once these are over. */
void oki_worker_stream_put(struct oki_worker *worker, struct oki_stream *stream, bool drained);

/*
 * Prepare what a transfer needs so that running it cannot fail for lack of memory. On failure
 * nothing is kept. oki_transfer_fini() frees it, after ended or when it was never submitted.
 */
int oki_transfer_init(struct oki_worker *worker, struct oki_transfer *transfer,
		      struct okv_error *err);
void oki_transfer_fini(struct oki_worker *worker, struct oki_transfer *transfer);

/* Queue it. The worker owns it until ended (or a negative claim). */
void oki_worker_submit(struct oki_worker *worker, struct oki_transfer *transfer);
/* Wake the thread: what a source waits for may have happened. */
void oki_worker_wake(struct oki_worker *worker);
/* Times the thread woke from sleep. */
uint64_t oki_worker_wakeups(struct oki_worker *worker);

#endif
