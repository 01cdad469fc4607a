/* SPDX-License-Identifier: Apache-2.0 */
/* Two GPUs: the one that is not named stays untouched, and both share one pool. Skips on one. */
#include "device/gpu_support.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 8u
#define COUNT 24u
#define PAGES 40u
#define OLD 0x3cu
#define POISON 0xe1u

static struct okv_layer_schema layers[LAYERS];
static const struct okv_group_schema group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layer_count = LAYERS,
	.layout_tag = "NHD",
	.layers = layers,
};
static uint32_t from_pages[COUNT], to_pages[COUNT];
static const struct kv_blocks source = {.count = COUNT, .pages = from_pages};
static const struct kv_blocks target = {.count = COUNT, .pages = to_pages};

static void setup(void)
{
	ck_assert_int_eq(setenv("ORBITKV_COPY", "", 1), 0);
	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = (struct okv_layer_schema){i, 2, {32768, 32768}};
	for (uint32_t i = 0; i < COUNT; i++) {
		from_pages[i] = i;
		to_pages[i] = (i * 7 + 3) % PAGES;
	}
}

static void place(struct gpu_kv *kv, int index)
{
	const uint32_t per_block = 1, pages = PAGES;
	gpu_ok(cudaSetDevice(index));
	gpu_kv_place(kv, &group, 1, KV_PLACE_HALVES, &pages, &per_block, 0);
	kv->index = index;
}

static void show(struct gpu_kv *kv, uint8_t background, uint64_t seq,
		 const struct kv_blocks *blocks)
{
	gpu_kv_image(kv, background, seq, blocks, blocks ? 1 : 0);
	gpu_kv_upload(kv);
}

static bool is_active(CUdevice device)
{
	unsigned flags;
	int active = -1;
	gpu_must(cu.cuDevicePrimaryCtxGetState(device, &flags, &active));
	return active != 0;
}

/* A caller's thread that never met CUDA; checks fail in the test's thread only. */
struct caller {
	struct gpu_kv *kv;
	uint64_t seq;
	cudaStream_t stream;
	struct okv_layer_event event;
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_lease *lease;
	struct okv_op *op;
	const char *failed; /* the first call that did, */
	int rc;		    /* what it returned, */
	struct okv_error err;
	CUcontext current; /* and what is current at the end */
};

#define STEP(c, call)                                       \
	do {                                                \
		int rc_ = (c)->failed ? 0 : (call);         \
		if (rc_ != 0)                               \
			(c)->failed = #call, (c)->rc = rc_; \
	} while (0)

static int open_engine(struct caller *c)
{
	struct okv_manager_options memory;
	struct okv_engine_options o;
	okv_manager_options_init(&memory);
	memory.memory_bytes = 128u << 20;
	memory.numa = OKV_NUMA_OFF;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &memory;
	return okv_engine_open(&o, &c->engine, &c->err);
}

static int open_namespace(struct caller *c)
{
	struct okv_namespace_options o;
	okv_namespace_options_init(&o);
	o.model = "two";
	o.group_count = 1;
	o.groups = &group;
	return okv_namespace_open(c->engine, &o, &c->ns, &c->err);
}

static int look_up(struct caller *c)
{
	struct okv_lookup_options o;
	struct okv_lookup_result found;
	uint8_t *keys = kv_group_keys(c->seq, 0, 0, COUNT);
	struct okv_keys wanted = {.count = COUNT, .key_bytes = KV_KEY_BYTES, .keys = keys};
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &wanted;
	int rc = okv_lookup(c->ns, &o, &found, &c->lease, &c->err);
	free(keys);
	return rc ? rc : found.groups[0].count != COUNT;
}

static void *store(void *arg)
{
	struct caller *c = arg;
	struct gpu_with with = {.streams = &c->stream, .stream_count = 1};
	STEP(c, open_engine(c));
	STEP(c, open_namespace(c));
	STEP(c, gpu_kv_register(c->kv, c->ns, &c->err));
	STEP(c, gpu_publish_start(c->kv, c->seq, &source, 1, &with, &c->op, &c->err));
	STEP(c, okv_op_wait(c->op, GPU_WAIT_MS, NULL));
	okv_op_release(c->op);
	STEP(c, look_up(c));
	cu.cuCtxGetCurrent(&c->current);
	return NULL;
}

static void *fetch(void *arg)
{
	struct caller *c = arg;
	struct gpu_with with = {
		.streams = &c->stream, .stream_count = 1, .events = &c->event, .event_count = 1};
	c->op = NULL;
	STEP(c, gpu_restore_start(c->kv, c->lease, &target, 1, &with, &c->op, &c->err));
	STEP(c, okv_op_wait_enqueued(c->op, c->event.layer, GPU_WAIT_MS));
	STEP(c, okv_op_wait(c->op, GPU_WAIT_MS, NULL));
	okv_op_release(c->op);
	okv_lease_release(c->lease);
	STEP(c, okv_binding_quiesce(c->kv->image.binding, GPU_WAIT_MS));
	STEP(c, okv_binding_resume(c->kv->image.binding));
	okv_binding_unregister(c->kv->image.binding);
	c->kv->image.binding = NULL;
	okv_namespace_close(c->ns);
	okv_engine_close(c->engine);
	cu.cuCtxGetCurrent(&c->current);
	return NULL;
}

static void in_a_fresh_thread(struct caller *c, void *(*run)(void *))
{
	pthread_t thread;
	ck_assert_int_eq(pthread_create(&thread, NULL, run, c), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_msg(!c->failed, "%s: %d, %s", c->failed, c->rc, c->err.text);
	ck_assert_ptr_null(c->current);
	ck_assert(!is_active(0));
	ck_assert(is_active(1));
}

/* First of all tests: the process touched GPU 1 alone so far. */
START_TEST(s35_a_fresh_thread_bound_to_gpu_1_leaves_gpu_0_alone)
{
	static const char *const paths[] = {"auto", "dma", "kernel"};
	struct gpu_kv kv;
	struct caller c = {.kv = &kv, .seq = 1 + (uint64_t)_i, .event = {.layer = LAYERS - 1}};
	ck_assert_int_eq(setenv("ORBITKV_COPY", paths[_i], 1), 0);
	ck_assert(!is_active(0));
	place(&kv, 1);
	gpu_ok(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
	gpu_ok(cudaEventCreateWithFlags(&c.event.event, cudaEventDisableTiming));
	/* The stream may still be busy with it: it is named as ready. */
	gpu_kv_image(&kv, OLD, c.seq, &source, 1);
	gpu_ok(cudaMemcpyAsync(kv.memory, kv.image.memory, kv.image.bytes, cudaMemcpyHostToDevice,
			       c.stream));
	in_a_fresh_thread(&c, store);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	show(&kv, POISON, 0, NULL);
	in_a_fresh_thread(&c, fetch);
	gpu_kv_image(&kv, POISON, c.seq, &target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	gpu_ok(cudaEventDestroy(c.event.event));
	gpu_ok(cudaStreamDestroy(c.stream));
	gpu_kv_close(&kv);
	ck_assert(!is_active(0));
}
END_TEST

/* Each restores what the other one stored; the arenas stay registered when one of them goes. */
START_TEST(two_gpus_share_the_pool)
{
	struct okv_engine *engine = kv_engine_embedded(256u << 20, 0);
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	const uint32_t n = COUNT;
	struct gpu_kv kv[2];
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	/* Whose binding pins the arenas, and is the first to go. */
	for (int i = 0; i < 2; i++) {
		place(&kv[i], i);
		show(&kv[i], OLD, 10 + (uint64_t)i, &source);
	}
	kv_ok(gpu_kv_register(&kv[_i], ns, kv_err));
	kv_ok(gpu_kv_register(&kv[!_i], ns, kv_err));
	for (int i = 0; i < 2; i++) {
		kv_ok(gpu_publish_start(&kv[i], 10 + (uint64_t)i, &source, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
	}
	for (int round = 0; round < 2; round++) {
		int i = round ? !_i : _i;
		uint64_t seq = 10 + (uint64_t)!i;
		show(&kv[i], POISON, 0, NULL);
		kv_groups_lookup(ns, seq, &n, 1, 1, NULL, &lease);
		ck_assert_ptr_nonnull(lease);
		kv_ok(gpu_restore_start(&kv[i], lease, &target, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
		okv_lease_release(lease);
		gpu_kv_image(&kv[i], POISON, seq, &target, 1);
		ck_assert_uint_eq(gpu_kv_differs(&kv[i]), 0);
		gpu_kv_close(&kv[i]);
	}
	okv_namespace_close(ns);
	okv_engine_close(engine);
}
END_TEST

int main(void)
{
	int rc = gpu_find_at(1);
	if (rc)
		return rc;
	Suite *suite = suite_create("two GPUs");
	TCase *t = tcase_create("two");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_loop_test(t, s35_a_fresh_thread_bound_to_gpu_1_leaves_gpu_0_alone, 0, 3);
	tcase_add_loop_test(t, two_gpus_share_the_pool, 0, 2);
	suite_add_tcase(suite, t);
	return kv_suite_run_here(suite);
}
