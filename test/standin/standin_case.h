/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the stand-in's tests: a binding on the stand-in driver, tensors in its memory. */
#ifndef TEST_STANDIN_STANDIN_CASE_H
#define TEST_STANDIN_STANDIN_CASE_H

#include <check.h>
#include <stdatomic.h>

#include "standin/standin_control.h"
#include "support/tensors.h"

/* Built without nvcc the library has no kernel. */
#ifndef SIM_HAS_KERNEL
#define SIM_HAS_KERNEL 0
#endif

#define SIM_WAIT_MS 60000 /* bound of every wait; nothing is measured with it */
#define SIM_GROUPS 2u
#define SIM_LAYERS 100u /* of a group */
#define SIM_CONSUMERS 4u
#define SIM_STRETCHES (OKV_MAX_GROUPS / SIM_GROUPS)

/* The driver's calls that a test makes itself. */
#define SIM_CALLS(CALL)                  \
	CALL(cuMemAlloc)                 \
	CALL(cuMemFree)                  \
	CALL(cuMemHostAlloc)             \
	CALL(cuMemFreeHost)              \
	CALL(cuEventCreate)              \
	CALL(cuEventDestroy)             \
	CALL(cuStreamCreateWithPriority) \
	CALL(cuStreamDestroy)            \
	CALL(cuStreamSynchronize)        \
	CALL(cuStreamWaitEvent)          \
	CALL(cuMemcpy2DAsync)

#define SIM_FIELD(symbol) __typeof__(symbol) *symbol;
struct sim_driver {
	SIM_CALLS(SIM_FIELD)
	STANDIN_CONTROLS(SIM_FIELD)
};
#undef SIM_FIELD
extern struct sim_driver sim;

#define SIM_NAME(symbol) SIM_NAME_EXPANDED(symbol)
#define SIM_NAME_EXPANDED(symbol) #symbol

/* Load the stand-in and set it up for tests. False, and a line: another libcuda came, or none. */
bool sim_find(void);
void *sim_symbol(const char *name);

/* What the library holds of the driver; events and streams of the fixture are not among it. */
void sim_held(struct standin_counts *ret_counts);
void sim_nothing_held(const struct standin_counts *before);

struct sim_geometry {
	const char *name;
	enum kv_place place;
	uint32_t group_count;
	struct sim_group {
		uint32_t layers, segments, per_block, blocks;
		uint32_t bytes[3]; /* of each segment, per page */
	} groups[SIM_GROUPS];
	uint32_t pad;
	uint32_t part_bytes; /* of a plan; 0: the default */
	uint32_t in_row; /* so many blocks of a part have pages in a row, the rest is scattered */
};

struct sim_case {
	const struct sim_geometry *geometry;
	struct okv_layer_schema schema[SIM_GROUPS][SIM_LAYERS];
	struct okv_group_schema groups[SIM_GROUPS];
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_tensors image; /* what was uploaded or downloaded last; and the binding */
	struct kv_tensors seen;	 /* what consumers saw: pinned memory, laid out as the image */
	CUdeviceptr memory;
	CUevent events[SIM_GROUPS * SIM_LAYERS];
	CUstream consumers[SIM_CONSUMERS];
	CUstream producer;  /* restores are ready when it is, and it is idle unless gated */
	uint32_t stretches; /* of each group, up to SIM_STRETCHES; restored by lease id. 0: whole */
	bool gated;	    /* it is busy until all of a restore is queued, and nothing copied */
	enum standin_held held; /* while a restore is queued */
	/* Told what was so when no stream could go on because of that: the image is downloaded from
	 * then, `busy` streams had work. */
	void (*look)(struct sim_case *c, uint64_t seq, uint32_t busy);
	int early; /* what a short wait for its end said meanwhile */
	uint32_t *from[SIM_GROUPS], *to[SIM_GROUPS];
	struct kv_blocks source[SIM_GROUPS], target[SIM_GROUPS];
	_Atomic int retained, released; /* owners of operations, and of the layers */
};

/* Engine, namespace and tensors; then the binding by an enum okv_copy_path. */
struct sim_case *sim_case_new(const struct sim_geometry *geometry, uint64_t memory, uint32_t flags);
int sim_case_register(struct sim_case *c, uint32_t path, struct okv_error *err);
/* Everything given back, owners released, nothing held; a poisoned case stays until exit. */
void sim_case_close(struct sim_case *c, const struct standin_counts *before);

/* Blocks of a part of the plan, if all blocks of a group are a multiple of it. */
uint32_t sim_part_blocks(const struct sim_geometry *geometry, uint32_t group);

/* Publish a sequence from `source`; its final status. */
int sim_publish(struct sim_case *c, uint64_t seq);
/*
 * Restore it to `target`, with an event for each layer, and consumers that copy each layer as soon
 * as its event is complete. Whatever it ends with: what they saw is right, no byte outside the
 * target's payload changed; with 0 every byte is right. *ret_seen: layers that were seen.
 */
int sim_restore(struct sim_case *c, uint64_t seq, uint32_t *ret_seen);
/* Blocks of each group can be found: all of them, else none. */
bool sim_is_stored(struct sim_case *c, uint64_t seq);

#endif
