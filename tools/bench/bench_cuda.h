/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The streams, events and batched copies of orbitkv-bench on a GPU. */
#ifndef ORBITKV_TOOLS_BENCH_CUDA_H
#define ORBITKV_TOOLS_BENCH_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tool_cuda.h"

/* As the driver lays it out; a batch of plain copies in stream order. */
struct bench_copy_attributes {
	int source_order; /* 1: in stream order */
	int source_hint[2];
	int target_hint[2];
	unsigned flags;
};

typedef int bench_batch_fn(tool_device_address *to, tool_device_address *from, size_t *sizes,
			   size_t count, struct bench_copy_attributes *attributes,
			   size_t *attribute_starts, size_t attribute_count,
			   struct CUstream_st *stream);

#define BENCH_EVENTS 1024 /* one per layer of the largest schema */

struct bench_cuda {
	struct tool_cuda gpu;
	bench_batch_fn *batch;		/* NULL: a driver without the call */
	struct CUstream_st *streams[2]; /* of the baselines: to the device, to the host */
	struct CUstream_st *user;	/* the caller's stream that every operation names ready */
	struct CUevent_st *done[2];
	struct CUevent_st *layers[BENCH_EVENTS];
	uint32_t layer_events;
};

/* TOOL_SKIPPED with the reason in text (TOOL_TEXT bytes) where there is no GPU. */
int bench_cuda_open(struct bench_cuda **ret_cuda, char *text);
void bench_cuda_close(struct bench_cuda *cuda);
/* So that the events of at least count layers exist. */
int bench_cuda_events(struct bench_cuda *cuda, uint32_t count);
/* Poll until the event is reached, as a latency measurement wants. A CUresult. */
int bench_cuda_poll(struct bench_cuda *cuda, struct CUevent_st *event);

/* One batched call, where the driver has it. A CUresult. */
int bench_cuda_batch(struct bench_cuda *cuda, tool_device_address *to, tool_device_address *from,
		     size_t *sizes, size_t count, struct CUstream_st *stream);

#endif
