/* SPDX-License-Identifier: Apache-2.0 */
/* Long queues: a caller's stream with work for long, operations of many fragments behind it, an
 * engine that wants its memory back meanwhile. By each path. */
#include "device/gpu_support.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OLD 0x3cu
#define POISON 0xe1u
#define MAX_LAYERS 16u
#define QUEUES 8u	/* of the GPU, for a process that asks for no other number */
#define OF_OPERATION 4u /* three, and one to look how long kernels wait */
#define OTHER_STREAMS (QUEUES - OF_OPERATION - 1)
#define HELD_STREAMS QUEUES
#define QUEUED 400u /* below what a driver takes before a launch blocks */

static struct okv_layer_schema layers[MAX_LAYERS];
static struct okv_group_schema group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layout_tag = "NHD",
	.layers = layers,
};
static struct okv_engine *engine;
static struct okv_namespace *ns;
static struct gpu_kv kv;
static cudaStream_t busy;
static uint32_t *from_pages, *to_pages;
static struct kv_blocks source, target;

static void close_all(void)
{
	gpu_gates_open();
	gpu_kv_close(&kv);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	gpu_ok(cudaStreamDestroy(busy));
	free(from_pages);
	free(to_pages);
}

/* A sequence of all blocks is stored; then everything is poison. */
static struct okv_lease *stored(uint64_t seq, uint32_t shares)
{
	const uint32_t n = source.count;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	struct okv_op_result r;
	gpu_kv_image(&kv, OLD, seq, &source, 1);
	gpu_kv_upload(&kv);
	kv_ok(gpu_publish_start(&kv, seq, &source, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, &r), 0);
	ck_assert_uint_eq(r.blocks, n);
	kv_groups_lookup(ns, seq, &n, 1, shares, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	gpu_kv_image(&kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
	return lease;
}

static void is_restored(uint64_t seq)
{
	gpu_kv_image(&kv, POISON, seq, &target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
}

/* ---- many fragments ---- */

#define FRAGMENTS 4096u /* of each layer */
#define FRAGMENT 16384u
#define FRAGMENT_LAYERS 4u
#define OTHERS 32u /* pages that the large operation does not touch, twice */

/* Four layers of 64 MiB: each is as much as a transfer may have in one piece. */
static void fragments_setup(void)
{
	const uint32_t per_block = 1, pages = FRAGMENTS + 2 * OTHERS;
	group.layer_count = FRAGMENT_LAYERS;
	for (uint32_t i = 0; i < group.layer_count; i++)
		layers[i] = (struct okv_layer_schema){i, 1, {FRAGMENT}};
	engine = kv_engine_embedded(640u << 20, 0);
	ns = kv_groups_open(engine, &group, 1, 1);
	gpu_kv_place(&kv, &group, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	kv_ok(gpu_kv_register(&kv, ns, kv_err));
	gpu_ok(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
	from_pages = gpu_pages(FRAGMENTS, FRAGMENTS, 0, 11);
	to_pages = gpu_pages(FRAGMENTS, FRAGMENTS, 0, 12);
	source = (struct kv_blocks){.count = FRAGMENTS, .pages = from_pages};
	target = (struct kv_blocks){.count = FRAGMENTS, .pages = to_pages};
}

/* A small publish and a restore of it, from their starts to their ends. */
static void a_small_round(uint64_t seq)
{
	uint32_t first[OTHERS], second[OTHERS];
	const uint32_t n = OTHERS;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	for (uint32_t i = 0; i < OTHERS; i++) {
		first[i] = FRAGMENTS + i;
		second[i] = FRAGMENTS + OTHERS + (i * 5) % OTHERS;
	}
	const struct kv_blocks from = {.count = n, .pages = first};
	const struct kv_blocks to = {.count = n, .pages = second};
	kv_ok(gpu_publish_start(&kv, seq, &from, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	kv_groups_lookup(ns, seq, &n, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	kv_ok(gpu_restore_start(&kv, lease, &to, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
}

/* The first copies by each way may wait for the whole GPU. */
static void restored_before(struct okv_lease *lease)
{
	struct gpu_with keep = {.flags = OKV_RESTORE_KEEP};
	struct okv_op *op;
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, &keep, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(1);
	gpu_kv_image(&kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
}

/* The gate is closed and much is queued behind it. */
static struct gpu_gate *long_queue(void *scratch)
{
	struct gpu_gate *gate = gpu_gate_close(busy);
	for (uint32_t i = 0; i < QUEUED; i++)
		gpu_ok(cudaMemsetAsync(scratch, (int)(i & 0xff), 4096, busy));
	return gate;
}

/* The start calls return although the stream they follow stands still; so does the worker, which
 * queues two pieces of 64 MiB and no more, and goes on with others. */
START_TEST(s14_fragments_behind_a_long_queue)
{
	struct okv_lease *lease = stored(1, 1);
	struct gpu_with with = {.streams = &busy, .stream_count = 1};
	struct okv_op *op;
	void *scratch;
	gpu_ok(cudaMalloc(&scratch, 4096));
	restored_before(lease);
	struct gpu_gate *gate = long_queue(scratch);
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, &with, &op, kv_err));
	ck_assert_int_eq(okv_op_wait_enqueued(op, 0, GPU_WAIT_MS), 0);
	for (uint64_t round = 0; round < 8; round++) {
		a_small_round(100 + round);
		ck_assert_int_eq(okv_op_wait_enqueued(op, 3, 0), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	}
	/* What the small ones moved was poison: not a byte is another one. */
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	gpu_stream_busy(busy);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(1);
	gpu_ok(cudaFree(scratch));
	okv_lease_release(lease);
}
END_TEST

/* The GPU's queues are few, 8 for the streams of a process unless it asks for more, and a stream
 * that waits keeps one. Whatever an operation behind a stream has, others go on. */
START_TEST(s14_a_waiting_operation_leaves_queues_to_others)
{
	struct okv_lease *lease = stored(1, 1);
	struct okv_layer_event list[FRAGMENT_LAYERS];
	struct gpu_with with = {.streams = &busy,
				.stream_count = 1,
				.events = list,
				.event_count = FRAGMENT_LAYERS};
	cudaStream_t others[OTHER_STREAMS];
	struct okv_op *op;
	void *scratch;
	gpu_ok(cudaMalloc(&scratch, 4096));
	for (uint32_t i = 0; i < FRAGMENT_LAYERS; i++) {
		cudaEvent_t event;
		gpu_ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
		list[i] = (struct okv_layer_event){.layer = i, .event = event};
	}
	for (uint32_t i = 0; i < OTHER_STREAMS; i++)
		gpu_ok(cudaStreamCreateWithFlags(&others[i], cudaStreamNonBlocking));
	restored_before(lease);
	long_queue(scratch);
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, &with, &op, kv_err));
	/* The second piece, a second kernel if the kernel copies. */
	ck_assert_int_eq(okv_op_wait_enqueued(op, 1, GPU_WAIT_MS), 0);
	/* All but the last one stand still as well. */
	for (uint32_t i = 0; i < OTHER_STREAMS; i++) {
		if (i + 1 < OTHER_STREAMS)
			gpu_gate_close(others[i]);
		gpu_ok(cudaMemsetAsync(scratch, 0, 4096, others[i]));
	}
	gpu_stream_ends(others[OTHER_STREAMS - 1]);
	gpu_stream_busy(busy);
	gpu_gates_open();
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(1);
	for (uint32_t i = 0; i < OTHER_STREAMS; i++)
		gpu_ok(cudaStreamDestroy(others[i]));
	for (uint32_t i = 0; i < FRAGMENT_LAYERS; i++)
		gpu_ok(cudaEventDestroy(list[i].event));
	gpu_ok(cudaFree(scratch));
	okv_lease_release(lease);
}
END_TEST

/* All queues of the GPU stand, and it is the caller who will open them: start calls return all the
 * same, also that of the operation for which no stream is there yet. */
START_TEST(s14_start_calls_return_while_all_queues_stand)
{
	struct okv_lease *lease = stored(1, 1);
	uint32_t pages[2][OTHERS];
	struct okv_op *ops[2];
	cudaStream_t held[HELD_STREAMS];
	void *scratch;
	gpu_ok(cudaMalloc(&scratch, 4096));
	for (uint32_t i = 0; i < HELD_STREAMS; i++) {
		gpu_ok(cudaStreamCreateWithFlags(&held[i], cudaStreamNonBlocking));
		gpu_gate_close(held[i]);
		gpu_ok(cudaMemsetAsync(scratch, 0, 4096, held[i]));
	}
	for (uint32_t i = 0; i < 2; i++) {
		struct gpu_with with = {
			.streams = held, .stream_count = 1, .flags = OKV_RESTORE_KEEP};
		for (uint32_t k = 0; k < OTHERS; k++)
			pages[i][k] = FRAGMENTS + i * OTHERS + k;
		const struct kv_blocks to = {.count = OTHERS, .pages = pages[i]};
		kv_ok(gpu_restore_start(&kv, lease, &to, 1, &with, &ops[i], kv_err));
	}
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(okv_op_poll(ops[i], NULL), OKV_E_RUNNING);
	gpu_gates_open();
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(gpu_finish(ops[i], NULL), 0);
	for (uint32_t i = 0; i < HELD_STREAMS; i++)
		gpu_ok(cudaStreamDestroy(held[i]));
	gpu_ok(cudaFree(scratch));
	okv_lease_release(lease);
}
END_TEST

/* The same with the direction turned; the pages are written behind the gate. */
START_TEST(s14_fragments_to_publish_behind_a_long_queue)
{
	struct gpu_with with = {.streams = &busy, .stream_count = 1};
	const uint32_t n = FRAGMENTS;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	void *scratch;
	gpu_ok(cudaMalloc(&scratch, 4096));
	gpu_kv_image(&kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
	/* Pinned, or the copy behind the gate would block this thread. */
	gpu_ok(cudaHostRegister(kv.image.memory, kv.image.bytes, 0));
	gpu_kv_image(&kv, POISON, 2, &source, 1);
	struct gpu_gate *gate = long_queue(scratch);
	gpu_ok(cudaMemcpyAsync(kv.memory, kv.image.memory, kv.image.bytes, cudaMemcpyHostToDevice,
			       busy));
	kv_ok(gpu_publish_start(&kv, 2, &source, 1, &with, &op, kv_err));
	for (uint64_t round = 0; round < 8; round++) {
		a_small_round(200 + round);
		ck_assert_int_eq(okv_op_wait_enqueued(op, 3, 0), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	}
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_ok(cudaStreamSynchronize(busy));
	gpu_ok(cudaHostUnregister(kv.image.memory));
	gpu_kv_image(&kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
	kv_groups_lookup(ns, 2, &n, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(2);
	gpu_ok(cudaFree(scratch));
	okv_lease_release(lease);
}
END_TEST

/* ---- memory that comes and goes ---- */

#define SEGMENT (128u << 10)
#define BLOCK ((uint64_t)MAX_LAYERS * 2 * SEGMENT)
#define HALVES 2u

/* Addresses that stay reserved; what is mapped there comes and goes in two halves. */
static struct mapped {
	CUdeviceptr at;
	size_t half;
	CUmemGenericAllocationHandle handles[HALVES];
	bool is_mapped[HALVES];
} mapped;

static CUmemAllocationProp memory_of_gpu_0(void)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
}

static void map_half(uint32_t i)
{
	const CUmemAllocationProp prop = memory_of_gpu_0();
	const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at = mapped.at + i * mapped.half;
	gpu_must(cu.cuMemCreate(&mapped.handles[i], mapped.half, &prop, 0));
	gpu_must(cu.cuMemMap(at, mapped.half, 0, mapped.handles[i], 0));
	gpu_must(cu.cuMemSetAccess(at, mapped.half, &access, 1));
	mapped.is_mapped[i] = true;
}

static void unmap_half(uint32_t i)
{
	if (!mapped.is_mapped[i])
		return;
	gpu_must(cu.cuMemUnmap(mapped.at + i * mapped.half, mapped.half));
	gpu_must(cu.cuMemRelease(mapped.handles[i]));
	mapped.is_mapped[i] = false;
}

static uint8_t *get_mapped(void *arg, uint64_t bytes)
{
	const CUmemAllocationProp prop = memory_of_gpu_0();
	size_t unit = 0;
	(void)arg;
	gpu_must(cu.cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	mapped.half = (bytes / HALVES + unit) / unit * unit;
	gpu_must(cu.cuMemAddressReserve(&mapped.at, HALVES * mapped.half, 0, 0, 0));
	for (uint32_t i = 0; i < HALVES; i++)
		map_half(i);
	return (uint8_t *)mapped.at;
}

/* 1 GiB, or a quarter where the host has no room for its images. */
static void mapped_setup(void)
{
	const uint64_t free_bytes =
		(uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	const uint32_t per_block = 1, pages = free_bytes >> 30 >= 6 ? 256 : 64;
	group.layer_count = MAX_LAYERS;
	for (uint32_t i = 0; i < MAX_LAYERS; i++)
		layers[i] = (struct okv_layer_schema){i, 2, {SEGMENT, SEGMENT}};
	/* A lease holds no more than three quarters of the pool. */
	engine = kv_engine_embedded(pages * BLOCK / 2 * 3, 0);
	ns = kv_groups_open(engine, &group, 1, 1);
	gpu_kv_place_in(&kv, &group, 1, KV_PLACE_PAGES, &pages, &per_block, 0, get_mapped, NULL);
	kv_ok(gpu_kv_register(&kv, ns, kv_err));
	gpu_ok(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
	from_pages = gpu_pages(pages, pages, 0, 21);
	to_pages = gpu_pages(pages, pages, 0, 22);
	source = (struct kv_blocks){.count = pages, .pages = from_pages};
	target = (struct kv_blocks){.count = pages, .pages = to_pages};
}

static void mapped_teardown(void)
{
	close_all();
	for (uint32_t i = 0; i < HALVES; i++)
		unmap_half(i);
	gpu_must(cu.cuMemAddressFree(mapped.at, HALVES * mapped.half));
}

struct sleeper {
	struct gpu_count owner; /* of the operation: released after its last copy */
	_Atomic bool entered, returned;
	int rc;
	int released; /* the moment the call returned */
};

static void *go_to_sleep(void *arg)
{
	struct sleeper *s = arg;
	s->entered = true;
	s->rc = okv_binding_quiesce(kv.image.binding, -1);
	s->released = gpu_released(&s->owner);
	s->returned = true;
	return NULL;
}

static void is_refused(struct okv_lease *lease)
{
	struct okv_op *none = NULL;
	ck_assert_int_eq(gpu_restore_start(&kv, lease, &target, 1, NULL, &none, NULL),
			 OKV_E_CLOSED);
	ck_assert_int_eq(gpu_publish_start(&kv, 7, &source, 1, NULL, &none, NULL), OKV_E_CLOSED);
	ck_assert_ptr_null(none);
}

/* An engine goes to sleep in the middle of a restore: quiesce returns when the last byte is in
 * place. Its memory goes and comes back at the same addresses; restores are refused all the time,
 * and the binding does not resume over a hole. */
START_TEST(s15_quiesce_drains_and_remapped_memory_waits_for_resume)
{
	struct okv_lease *lease = stored(5, 2);
	struct okv_binding *binding = kv.image.binding;
	struct sleeper s = {.rc = -1};
	struct gpu_with with = {.streams = &busy, .stream_count = 1, .owner = gpu_owner(&s.owner)};
	struct okv_op *op;
	pthread_t thread;
	struct gpu_gate *gate = gpu_gate_close(busy);
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, &with, &op, kv_err));
	ck_assert_int_eq(okv_op_wait_enqueued(op, 0, GPU_WAIT_MS), 0);
	ck_assert_int_eq(okv_binding_quiesce(binding, 0), OKV_E_TIMEOUT);
	is_refused(lease);
	ck_assert_int_eq(pthread_create(&thread, NULL, go_to_sleep, &s), 0);
	while (!s.entered)
		ck_assert_int_eq(okv_binding_quiesce(binding, 1), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_binding_quiesce(binding, 5), OKV_E_TIMEOUT);
	ck_assert(!s.returned);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	gpu_gate_open(gate);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_int_eq(s.rc, 0);
	ck_assert_int_eq(s.released, 1);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(5);

	unmap_half(1);
	ck_assert_int_eq(okv_binding_resume(binding), OKV_E_INVAL);
	unmap_half(0);
	ck_assert_int_eq(okv_binding_resume(binding), OKV_E_INVAL);
	is_refused(lease);
	map_half(1);
	ck_assert_int_eq(okv_binding_resume(binding), OKV_E_INVAL);
	map_half(0);
	/* Whole again, but nobody said that these are the tensors. */
	is_refused(lease);
	gpu_ok(cudaPeekAtLastError());
	gpu_kv_image(&kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
	ck_assert_int_eq(okv_binding_resume(binding), 0);
	kv_ok(gpu_restore_start(&kv, lease, &target, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	is_restored(5);
	okv_lease_release(lease);
}
END_TEST

static int run(const char *path)
{
	if (setenv("ORBITKV_COPY", path, 1) != 0)
		return EXIT_FAILURE;
	Suite *suite = suite_create(path);
	TCase *fragments = tcase_create("fragments"), *memory = tcase_create("memory");
	tcase_add_checked_fixture(fragments, fragments_setup, close_all);
	tcase_add_test(fragments, s14_fragments_behind_a_long_queue);
	tcase_add_test(fragments, s14_start_calls_return_while_all_queues_stand);
	tcase_add_test(fragments, s14_a_waiting_operation_leaves_queues_to_others);
	tcase_add_test(fragments, s14_fragments_to_publish_behind_a_long_queue);
	suite_add_tcase(suite, fragments);
	tcase_add_checked_fixture(memory, mapped_setup, mapped_teardown);
	tcase_add_test(memory, s15_quiesce_drains_and_remapped_memory_waits_for_resume);
	suite_add_tcase(suite, memory);
	return kv_suite_run_here(suite);
}

int main(void)
{
	static const char *const paths[] = {"auto", "dma", "kernel"};
	int rc = gpu_find();
	if (rc)
		return rc;
	for (uint32_t i = 0; i < 3; i++)
		if (run(paths[i]) != EXIT_SUCCESS)
			rc = EXIT_FAILURE;
	return rc;
}
