/* SPDX-License-Identifier: Apache-2.0 */
/* What the GPU tests share. */
#include "device/gpu_support.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Uploads and downloads: waits for no other stream, so that it works beside a closed gate. */
static cudaStream_t side;

int gpu_find_at(int index)
{
	int count = 0;
	/* A kernel loaded at its first launch may wait for kernels that run. */
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	cudaError_t rc = cudaGetDeviceCount(&count);
	if (rc != cudaSuccess || count <= index) {
		printf("skipped: no GPU %d: ", index);
		if (rc != cudaSuccess)
			puts(cudaGetErrorString(rc));
		else
			printf("%d visible\n", count);
		return GPU_SKIPPED;
	}
	const char *why = driver_calls_load();
	if (!why) {
		rc = cudaSetDevice(index);
		if (rc == cudaSuccess)
			rc = cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
		why = rc == cudaSuccess ? NULL : cudaGetErrorString(rc);
	}
	if (!why)
		return 0;
	printf("GPU %d cannot be used: %s\n", index, why);
	return EXIT_FAILURE;
}

int gpu_find(void)
{
	return gpu_find_at(0);
}

void gpu_stream_busy(cudaStream_t stream)
{
	ck_assert_int_eq(cudaStreamQuery(stream), cudaErrorNotReady);
	cudaGetLastError();
}

void gpu_event_busy(cudaEvent_t event)
{
	ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
	cudaGetLastError();
}

void gpu_stream_ends(cudaStream_t stream)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	const time_t last = now.tv_sec + GPU_WAIT_MS / 1000;
	cudaError_t rc;
	while ((rc = cudaStreamQuery(stream)) == cudaErrorNotReady) {
		cudaGetLastError();
		clock_gettime(CLOCK_MONOTONIC, &now);
		ck_assert_msg(now.tv_sec <= last, "a stream does not get on");
	}
	gpu_ok(rc);
}

CUcontext gpu_second_context(void)
{
	CUcontext before, made;
	gpu_must(cu.cuCtxGetCurrent(&before));
#if CUDA_VERSION >= 13000
	gpu_must(cu.cuCtxCreate(&made, NULL, 0, 0));
#else
	gpu_must(cu.cuCtxCreate(&made, 0, 0));
#endif
	gpu_must(cu.cuCtxSetCurrent(before));
	return made;
}

void gpu_kv_place_in(struct gpu_kv *k, const struct okv_group_schema *groups, uint32_t group_count,
		     enum kv_place place, const uint32_t *pages, const uint32_t *pages_per_block,
		     uint32_t pad, uint8_t *(*get)(void *arg, uint64_t bytes), void *arg)
{
	memset(k, 0, sizeof(*k));
	kv_tensors_place(&k->image, groups, group_count, 0, place, pages, pages_per_block, pad);
	k->memory = get(arg, k->image.bytes);
	k->layers = calloc(k->image.layer_count, sizeof(*k->layers));
	ck_assert(k->layers && k->memory);
	for (uint32_t i = 0; i < k->image.layer_count; i++) {
		k->layers[i] = k->image.layers[i];
		k->layers[i].base =
			k->memory + ((uint8_t *)k->image.layers[i].base - k->image.memory);
	}
}

static uint8_t *get_plain(void *arg, uint64_t bytes)
{
	void **ret_allocation = arg;
	gpu_ok(cudaMalloc(ret_allocation, bytes));
	return *ret_allocation;
}

void gpu_kv_place(struct gpu_kv *k, const struct okv_group_schema *groups, uint32_t group_count,
		  enum kv_place place, const uint32_t *pages, const uint32_t *pages_per_block,
		  uint32_t pad)
{
	void *allocation = NULL;
	gpu_kv_place_in(k, groups, group_count, place, pages, pages_per_block, pad, get_plain,
			&allocation);
	k->allocation = allocation;
}

int gpu_kv_register(struct gpu_kv *k, struct okv_namespace *ns, struct okv_error *err)
{
	struct okv_binding_options o;
	okv_binding_options_init(&o);
	o.device = OKV_DEVICE_CUDA;
	o.device_index = k->index;
	o.layer_count = k->image.layer_count;
	o.layers = k->layers;
	k->image.ns = ns;
	return okv_binding_register(ns, &o, &k->image.binding, err);
}

void gpu_kv_close(struct gpu_kv *k)
{
	kv_tensors_close(&k->image);
	gpu_ok(cudaFree(k->allocation));
	free(k->layers);
	memset(k, 0, sizeof(*k));
}

void gpu_kv_image(struct gpu_kv *k, uint8_t background, uint64_t seq,
		  const struct kv_blocks *blocks, uint32_t n)
{
	memset(k->image.memory, background, k->image.bytes);
	for (uint32_t i = 0; i < n; i++)
		kv_tensors_fill(&k->image, seq, &blocks[i]);
}

void gpu_kv_upload(struct gpu_kv *k)
{
	gpu_ok(cudaMemcpyAsync(k->memory, k->image.memory, k->image.bytes, cudaMemcpyHostToDevice,
			       side));
	gpu_ok(cudaStreamSynchronize(side));
}

uint64_t gpu_kv_differs(const struct gpu_kv *k)
{
	uint64_t n = k->image.bytes, differ = 0;
	uint8_t *got = malloc(n);
	ck_assert(got != NULL);
	gpu_ok(cudaMemcpyAsync(got, k->memory, n, cudaMemcpyDeviceToHost, side));
	gpu_ok(cudaStreamSynchronize(side));
	if (memcmp(got, k->image.memory, n) != 0)
		for (uint64_t i = 0; i < n; i++)
			differ += got[i] != k->image.memory[i];
	free(got);
	return differ;
}

int gpu_publish_start(struct gpu_kv *k, uint64_t seq, const struct kv_blocks *blocks, uint32_t n,
		      const struct gpu_with *with, struct okv_op **ret_op, struct okv_error *err)
{
	struct okv_publish_group g[OKV_MAX_GROUPS] = {{.first_position = 0}};
	uint8_t *keys[OKV_MAX_GROUPS], parents[OKV_MAX_GROUPS][KV_KEY_BYTES];
	for (uint32_t i = 0; i < n; i++) {
		const struct kv_blocks *b = &blocks[i];
		keys[i] = kv_group_keys(seq, b->group, b->first, b->count);
		if (b->first)
			kv_group_key(seq, b->group, b->first - 1, parents[i]);
		g[i] = (struct okv_publish_group){
			.keys = {.group = b->group,
				 .count = b->count,
				 .key_bytes = KV_KEY_BYTES,
				 .keys = keys[i]},
			.first_position = b->first,
			.tokens = b->count * k->image.groups[b->group].block_tokens,
			.parent = b->first ? parents[i] : NULL,
			.pages = b->pages,
		};
	}
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.group_count = n;
	o.groups = g;
	if (with) {
		o.flags = with->flags;
		o.ready.streams = with->streams;
		o.ready.stream_count = with->stream_count;
		o.read_done_event = with->read_done_event;
		o.owner = with->owner;
		o.user_data = with->user_data;
	}
	int rc = okv_publish_start(k->image.binding, &o, ret_op, err);
	for (uint32_t i = 0; i < n; i++)
		free(keys[i]);
	return rc;
}

int gpu_restore_start(struct gpu_kv *k, struct okv_lease *lease, const struct kv_blocks *blocks,
		      uint32_t n, const struct gpu_with *with, struct okv_op **ret_op,
		      struct okv_error *err)
{
	struct okv_restore_group g[OKV_MAX_GROUPS] = {{.group = 0}};
	for (uint32_t i = 0; i < n; i++)
		g[i] = (struct okv_restore_group){.group = blocks[i].group,
						  .first = blocks[i].first,
						  .count = blocks[i].count,
						  .pages = blocks[i].pages};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = n;
	o.groups = g;
	if (with) {
		o.flags = with->flags;
		o.ready.streams = with->streams;
		o.ready.stream_count = with->stream_count;
		o.events = with->events;
		o.event_count = with->event_count;
		o.owner = with->owner;
		o.user_data = with->user_data;
	}
	return okv_restore_start(k->image.binding, lease, &o, ret_op, err);
}

int gpu_finish(struct okv_op *op, struct okv_op_result *ret_result)
{
	int rc = okv_op_wait(op, GPU_WAIT_MS, ret_result);
	okv_op_release(op);
	return rc;
}

#define GATES 256

/* A word of pinned memory: a function of the host would keep the thread that all of them share, and
 * tools that look at kernels use it too. */
struct gpu_gate {
	_Atomic uint32_t *word;
	bool closed;
};

static struct gpu_gate gates[GATES];
static unsigned gate_count;
static _Atomic uint32_t *words;

struct gpu_gate *gpu_gate_close(cudaStream_t stream)
{
	ck_assert_uint_lt(gate_count, GATES);
	if (!words)
		gpu_ok(cudaHostAlloc((void **)&words, GATES * sizeof(*words), cudaHostAllocMapped));
	struct gpu_gate *gate = &gates[gate_count];
	gate->word = &words[gate_count++];
	atomic_store(gate->word, 0);
	/* The GPU sees pinned memory where the CPU does. */
	ck_assert_int_eq(cu.cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)gate->word, 1,
						CU_STREAM_WAIT_VALUE_GEQ),
			 CUDA_SUCCESS);
	gate->closed = true;
	return gate;
}

void gpu_gate_open(struct gpu_gate *gate)
{
	gate->closed = false;
	atomic_store(gate->word, 1);
}

void gpu_gates_open(void)
{
	for (unsigned i = 0; i < gate_count; i++)
		if (gates[i].closed)
			gpu_gate_open(&gates[i]);
}

static void count_retain(void *object)
{
	__atomic_fetch_add(&((struct gpu_count *)object)->retained, 1, __ATOMIC_SEQ_CST);
}

static void count_release(void *object)
{
	__atomic_fetch_add(&((struct gpu_count *)object)->released, 1, __ATOMIC_SEQ_CST);
}

struct okv_owner gpu_owner(struct gpu_count *count)
{
	return (struct okv_owner){count, count_retain, count_release};
}

int gpu_retained(const struct gpu_count *count)
{
	return __atomic_load_n(&count->retained, __ATOMIC_SEQ_CST);
}

int gpu_released(const struct gpu_count *count)
{
	return __atomic_load_n(&count->released, __ATOMIC_SEQ_CST);
}

uint32_t *gpu_pages(uint32_t total, uint32_t n, uint32_t first, uint64_t shuffle_seed)
{
	uint32_t *all = malloc(total * sizeof(*all));
	ck_assert(all != NULL && n <= total);
	for (uint32_t i = 0; i < total; i++)
		all[i] = (first + i) % total;
	for (uint32_t i = total - 1; i > 0 && shuffle_seed; i--) {
		shuffle_seed = shuffle_seed * 6364136223846793005u + 1442695040888963407u;
		uint32_t j = (uint32_t)((shuffle_seed >> 33) % (i + 1)), swap = all[i];
		all[i] = all[j];
		all[j] = swap;
	}
	return all;
}
