/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's streams and what is in them. */
#ifndef TEST_STANDIN_STANDIN_QUEUE_H
#define TEST_STANDIN_STANDIN_QUEUE_H

#include "standin/standin_driver.h"

/* One moment in a stream; shared by the event, the record and the waits. */
struct point {
	uint32_t users;
	bool reached;
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
	struct work *next;	 /* in its stream */
	struct channel *channel; /* NULL: it is in none */
	struct work *behind;	 /* the next one there */
	enum what what;
	struct copy copy;
	struct point *point;
	CUdeviceptr at;
	uint32_t value;
	uint32_t lanes, blocks, threads;
	struct oki_gather *gather;
};

/* With the lock. */
void standin_point_drop(struct point *point);

struct work *standin_work_new(enum what what);
/* Takes it. counted: one more of these, or NULL. */
CUresult standin_push(CUstream stream, struct work *work, uint32_t *counted);

/* With the lock. prompt: no delays, and no part in hardware queues. */
CUresult standin_stream_new(bool prompt, CUstream *ret_stream);
/* Does what it has first. */
void standin_stream_end(CUstream stream);
/* The stream itself, or the null stream's, which is made when it is used first. */
CUresult standin_queue_of(CUstream stream, CUstream *ret_queue);
bool standin_is_busy(CUstream queue);
/* Until it has no work. */
void standin_drain(CUstream queue);

#endif
