/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the ordering tests. */
#include "device/gpu_case.h"

#include <string.h>
#include "device/gpu_kernels.h"

/* K, V and an index buffer. */
static struct okv_layer_schema layers[CASE_LAYERS];
static const struct okv_group_schema group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layer_count = CASE_LAYERS,
	.layout_tag = "NHD",
	.layers = layers,
};

struct gpu_case cs;

/* part_bytes: of a plan, 0 for the default, which has room for all blocks. */
static struct okv_engine *open_engine(uint32_t part_bytes)
{
	struct okv_manager_options m;
	struct okv_engine_options o;
	struct okv_engine *engine = NULL;
	okv_manager_options_init(&m);
	m.memory_bytes = 512u << 20;
	m.numa = OKV_NUMA_OFF;
	if (part_bytes)
		m.part_bytes = part_bytes;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &m;
	kv_ok(okv_engine_open(&o, &engine, kv_err));
	return engine;
}

static void setup(uint32_t part_bytes)
{
	const uint32_t per_block = 1, pages = CASE_PAGES;
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		layers[i] = (struct okv_layer_schema){i, 3, {65536, 65536, 8192}};
	for (uint32_t i = 0; i < CASE_COUNT; i++) {
		cs.from[i] = i;
		cs.to[i] = CASE_PAGES / 2 + (i * 7) % CASE_COUNT;
	}
	cs.source = (struct kv_blocks){.count = CASE_COUNT, .pages = cs.from};
	cs.target = (struct kv_blocks){.count = CASE_COUNT, .pages = cs.to};
	cs.engine = open_engine(part_bytes);
	cs.ns = kv_groups_open(cs.engine, &group, 1, 1);
	gpu_kv_place(&cs.kv, &group, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	kv_ok(gpu_kv_register(&cs.kv, cs.ns, kv_err));
	gpu_ok(cudaMalloc((void **)&cs.want, cs.kv.image.bytes));
	gpu_ok(cudaMalloc((void **)&cs.counts, CASE_COUNTS * sizeof(*cs.counts)));
	gpu_ok(cudaStreamCreateWithFlags(&cs.a, cudaStreamNonBlocking));
	gpu_ok(cudaStreamCreateWithFlags(&cs.b, cudaStreamNonBlocking));
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		gpu_ok(cudaEventCreateWithFlags(&cs.events[i], cudaEventDisableTiming));
}

void gpu_case_setup(void)
{
	setup(0);
}

void gpu_case_setup_in_parts(void)
{
	setup(48 + 5 * 32);
}

void gpu_case_teardown(void)
{
	gpu_gates_open();
	gpu_kv_close(&cs.kv);
	okv_namespace_close(cs.ns);
	okv_engine_close(cs.engine);
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		gpu_ok(cudaEventDestroy(cs.events[i]));
	gpu_ok(cudaStreamDestroy(cs.a));
	gpu_ok(cudaStreamDestroy(cs.b));
	gpu_ok(cudaFree(cs.want));
	gpu_ok(cudaFree(cs.counts));
}

void case_upload_want(void)
{
	gpu_ok(cudaMemcpyAsync(cs.want, cs.kv.image.memory, cs.kv.image.bytes,
			       cudaMemcpyHostToDevice, cs.b));
	gpu_ok(cudaStreamSynchronize(cs.b));
}

struct okv_lease *case_stored(uint64_t seq)
{
	struct okv_op *op;
	struct okv_lease *lease = NULL;
	const uint32_t n = CASE_COUNT;
	cs.seq = seq;
	gpu_kv_image(&cs.kv, CASE_OLD, cs.seq, &cs.source, 1);
	gpu_kv_upload(&cs.kv);
	kv_ok(gpu_publish_start(&cs.kv, cs.seq, &cs.source, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	kv_groups_lookup(cs.ns, cs.seq, &n, 1, 4, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	gpu_kv_image(&cs.kv, CASE_POISON, 0, NULL, 0);
	gpu_kv_upload(&cs.kv);
	return lease;
}

void case_expect_restored(void)
{
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	case_upload_want();
}

void case_all_enqueued(struct okv_op *op)
{
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		ck_assert_int_eq(okv_op_wait_enqueued(op, i, GPU_WAIT_MS), 0);
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
}

void case_all_events(struct okv_layer_event *list)
{
	memset(list, 0, CASE_LAYERS * sizeof(*list));
	for (uint32_t i = 0; i < CASE_LAYERS; i++) {
		list[i].layer = CASE_LAYERS - 1 - i;
		list[i].event = cs.events[CASE_LAYERS - 1 - i];
	}
}

void case_check_layer(uint32_t layer, unsigned long long *count, cudaStream_t stream)
{
	const struct okv_layer *l = &cs.kv.layers[layer];
	gpu_ok(gpu_compare(l->base, cs.want + ((uint8_t *)l->base - cs.kv.memory), l->length, count,
			   stream));
}

void case_counts_clear(void)
{
	gpu_ok(cudaMemsetAsync(cs.counts, 0, CASE_COUNTS * sizeof(*cs.counts), cs.b));
	gpu_ok(cudaStreamSynchronize(cs.b));
}

unsigned long long case_count(uint32_t i, cudaStream_t stream)
{
	unsigned long long n = 0;
	gpu_ok(cudaMemcpyAsync(&n, cs.counts + i, sizeof(n), cudaMemcpyDeviceToHost, stream));
	gpu_ok(cudaStreamSynchronize(stream));
	return n;
}

struct gpu_gate *case_writer(cudaStream_t stream)
{
	gpu_kv_image(&cs.kv, CASE_OLD, cs.seq, &cs.source, 1);
	case_upload_want();
	gpu_ok(cudaMemsetAsync(cs.kv.memory, CASE_OLD, cs.kv.image.bytes, cs.b));
	gpu_ok(cudaStreamSynchronize(cs.b));
	struct gpu_gate *gate = gpu_gate_close(stream);
	gpu_ok(gpu_copy_late(cs.kv.memory, cs.want, cs.kv.image.bytes, 5000000, stream));
	return gate;
}

uint64_t case_stored_wrong(uint64_t seq)
{
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	const uint32_t n = CASE_COUNT;
	kv_groups_lookup(cs.ns, seq, &n, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	gpu_kv_image(&cs.kv, CASE_POISON, 0, NULL, 0);
	gpu_kv_upload(&cs.kv);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
	gpu_kv_image(&cs.kv, CASE_POISON, seq, &cs.target, 1);
	return gpu_kv_differs(&cs.kv);
}
