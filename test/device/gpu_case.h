/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the ordering tests: one binding on GPU 0, two streams, an event for each layer. */
#ifndef TEST_DEVICE_GPU_CASE_H
#define TEST_DEVICE_GPU_CASE_H

#include "device/gpu_support.h"

#define CASE_LAYERS 16
#define CASE_COUNT 16 /* blocks of one operation */
#define CASE_PAGES 40
#define CASE_OLD 0x3cu	  /* what lies around published pages, */
#define CASE_POISON 0xe1u /* and everywhere before a restore */

struct gpu_case {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct gpu_kv kv;	    /* layers of K, V and an index buffer */
	uint8_t *want;		    /* on the GPU: what the tensors must become */
	unsigned long long *counts; /* on the GPU, CASE_COUNTS of them */
	cudaStream_t a, b;	    /* b does the test's own uploads */
	cudaEvent_t events[CASE_LAYERS];
	uint32_t from[CASE_COUNT], to[CASE_COUNT];
	struct kv_blocks source, target; /* in pages from, and to */
	uint64_t seq;			 /* the sequence at work */
};
#define CASE_COUNTS 256

extern struct gpu_case cs;

void gpu_case_setup(void);
/* The same with plans of four parts. */
void gpu_case_setup_in_parts(void);
void gpu_case_teardown(void);

/* Store a sequence from `source`, then poison everything; seq is it. A lease of 4 shares. */
struct okv_lease *case_stored(uint64_t seq);
/* Put the image where the tensors must become like it. */
void case_upload_want(void);
/* The image, and want, become what a restore of seq into `target` must leave. */
void case_expect_restored(void);
/* Wait until every copy of a restore is queued; it must not have ended. */
void case_all_enqueued(struct okv_op *op);
/* One event for each layer, last layer first. */
void case_all_events(struct okv_layer_event *list);

/* Count the bytes of one layer's tensor that are not as wanted, in stream order. */
void case_check_layer(uint32_t layer, unsigned long long *count, cudaStream_t stream);
void case_counts_clear(void);
unsigned long long case_count(uint32_t i, cudaStream_t stream);

/* The tensors hold CASE_OLD; a kernel of 5 ms behind the gate of `stream` writes seq to `source`.
 */
struct gpu_gate *case_writer(cudaStream_t stream);
/* Restore seq to `target` of poisoned tensors; bytes that are wrong then. */
uint64_t case_stored_wrong(uint64_t seq);

#endif
