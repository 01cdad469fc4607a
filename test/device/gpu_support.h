/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU tests share: a GPU or a reason to skip, tensors in its memory, gates. */
#ifndef TEST_DEVICE_GPU_SUPPORT_H
#define TEST_DEVICE_GPU_SUPPORT_H

#include <check.h>
#include <cuda_runtime_api.h>

#include "device/driver_calls.h"
#include "support/tensors.h"

#define GPU_SKIPPED 77
#define GPU_WAIT_MS 60000 /* bound of every wait; nothing is measured with it */

#define gpu_ok(call)                                                   \
	do {                                                           \
		cudaError_t gpu_rc_ = (call);                          \
		ck_assert_msg(gpu_rc_ == cudaSuccess, "%s: %s", #call, \
			      cudaGetErrorString(gpu_rc_));            \
	} while (0)

#define gpu_must(call)                                                                          \
	do {                                                                                    \
		CUresult gpu_rc_ = (call);                                                      \
		ck_assert_msg(gpu_rc_ == CUDA_SUCCESS, "%s: CUresult %d", #call, (int)gpu_rc_); \
	} while (0)

/* 0 when GPU 0 can be used; else what main() returns, with the reason printed. */
int gpu_find(void);
/* The same of another one, which becomes the current device; no lower one is touched. */
int gpu_find_at(int index);
/* Work is still queued there. The runtime keeps "not ready" as its last error: that is cleared. */
void gpu_stream_busy(cudaStream_t stream);
void gpu_event_busy(cudaEvent_t event);
/* All that is in the stream ends, within GPU_WAIT_MS. */
void gpu_stream_ends(cudaStream_t stream);
/* A second context of GPU 0; not current. */
CUcontext gpu_second_context(void);

/* A rank's tensors on the GPU. `image` says where everything lies and holds the bytes that were
 * uploaded, or that are expected; image.binding is the binding of the GPU's tensors. */
struct gpu_kv {
	struct kv_tensors image;
	struct okv_layer *layers; /* on the GPU */
	uint8_t *memory;	  /* of the GPU, laid out as image.memory */
	void *allocation;	  /* what cudaFree() gets, or NULL */
	int32_t index;		  /* GPU to register with: 0 unless changed after placing */
};

void gpu_kv_place(struct gpu_kv *k, const struct okv_group_schema *groups, uint32_t group_count,
		  enum kv_place place, const uint32_t *pages, const uint32_t *pages_per_block,
		  uint32_t pad);
/* The same in memory of the caller's: called with the bytes needed, returns where. */
void gpu_kv_place_in(struct gpu_kv *k, const struct okv_group_schema *groups, uint32_t group_count,
		     enum kv_place place, const uint32_t *pages, const uint32_t *pages_per_block,
		     uint32_t pad, uint8_t *(*get)(void *arg, uint64_t bytes), void *arg);
int gpu_kv_register(struct gpu_kv *k, struct okv_namespace *ns, struct okv_error *err);
void gpu_kv_close(struct gpu_kv *k);

/* The image: one byte everywhere, then blocks of a sequence in their pages. */
void gpu_kv_image(struct gpu_kv *k, uint8_t background, uint64_t seq,
		  const struct kv_blocks *blocks, uint32_t n);
void gpu_kv_upload(struct gpu_kv *k);
/* Download all of the GPU's memory; how many bytes are not as in the image. */
uint64_t gpu_kv_differs(const struct gpu_kv *k);

/* What start calls take beside blocks. */
struct gpu_with {
	struct CUstream_st *const *streams;
	uint32_t stream_count;
	uint32_t flags;
	const struct okv_layer_event *events;
	uint32_t event_count;
	struct CUevent_st *read_done_event;
	struct okv_owner owner;
	uint64_t user_data;
};

/* with may be NULL */
int gpu_publish_start(struct gpu_kv *k, uint64_t seq, const struct kv_blocks *blocks, uint32_t n,
		      const struct gpu_with *with, struct okv_op **ret_op, struct okv_error *err);
int gpu_restore_start(struct gpu_kv *k, struct okv_lease *lease, const struct kv_blocks *blocks,
		      uint32_t n, const struct gpu_with *with, struct okv_op **ret_op,
		      struct okv_error *err);
/* Wait for the end and release. */
int gpu_finish(struct okv_op *op, struct okv_op_result *ret_result);

/* A gate holds all later work of a stream until it is opened. */
struct gpu_gate;
struct gpu_gate *gpu_gate_close(cudaStream_t stream);
void gpu_gate_open(struct gpu_gate *gate);
/* Open what a failed test left closed. */
void gpu_gates_open(void);

/* An owner that counts. */
struct gpu_count {
	int retained;
	int released;
};
struct okv_owner gpu_owner(struct gpu_count *count);
int gpu_retained(const struct gpu_count *count);
int gpu_released(const struct gpu_count *count);

/* n page numbers in a random order, or in a row from first on; free() them */
uint32_t *gpu_pages(uint32_t total, uint32_t n, uint32_t first, uint64_t shuffle_seed);

#endif
