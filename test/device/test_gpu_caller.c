/* SPDX-License-Identifier: Apache-2.0 */
/* What is the caller's stays the caller's: contexts, CUDA errors, captures, registrations, owners.
 */
#include "device/gpu_case.h"
#include "device/gpu_kernels.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contexts and errors ---- */

/* A caller's thread: what is current there, and which CUDA error it has pending. */
struct caller {
	CUcontext context;
	bool failed_before;
	struct okv_layer *layers; /* of tensors on GPU 0 that are not registered */
	const char *broken_by;	  /* the first call after which something was different */
};

static void look(struct caller *c, const char *call, cudaError_t pending)
{
	CUcontext now = NULL;
	CUresult rc = cu.cuCtxGetCurrent(&now);
	if (!c->broken_by && (rc != CUDA_SUCCESS || now != c->context))
		c->broken_by = call;
	/* After the look at the context: the runtime might make one current. */
	if (!c->broken_by && c->context && cudaPeekAtLastError() != pending)
		c->broken_by = call;
}

#define STEP(c, pending, expected, call)                                       \
	do {                                                                   \
		struct okv_error err = {0};                                    \
		int rc_ = (call);                                              \
		if (rc_ != (expected)) {                                       \
			fprintf(stderr, "%s: %d, %s\n", #call, rc_, err.text); \
			(c)->broken_by = #call;                                \
		}                                                              \
		look(c, #call, pending);                                       \
	} while (0)

static struct okv_binding_options binding_of(struct okv_layer *layers)
{
	struct okv_binding_options o;
	okv_binding_options_init(&o);
	o.device = OKV_DEVICE_CUDA;
	o.layer_count = CASE_LAYERS;
	o.layers = layers;
	return o;
}

static void refused_registrations(struct caller *c, struct okv_namespace *ns, cudaError_t pending)
{
	struct okv_layer host[CASE_LAYERS], beyond[CASE_LAYERS];
	struct okv_binding *none = NULL;
	struct okv_binding_options o = binding_of(host);
	memcpy(host, cs.kv.image.layers, sizeof(host));
	STEP(c, pending, OKV_E_INVAL, okv_binding_register(ns, &o, &none, &err));
	memcpy(beyond, c->layers, sizeof(beyond));
	beyond[CASE_LAYERS - 1].length += 1u << 30;
	o.layers = beyond;
	STEP(c, pending, OKV_E_INVAL, okv_binding_register(ns, &o, &none, &err));
	o.layers = c->layers;
	o.device_index = 4096;
	STEP(c, pending, OKV_E_UNSUPPORTED, okv_binding_register(ns, &o, &none, &err));
	o.device_index = 0;
	o.layer_count = 1;
	STEP(c, pending, OKV_E_INVAL, okv_binding_register(ns, &o, &none, &err));
	o = binding_of(cs.kv.layers);
	STEP(c, pending, OKV_E_EXISTS, okv_binding_register(cs.ns, &o, &none, &err));
}

static void refused_transfers(struct caller *c, struct gpu_kv *kv, struct okv_lease *lease,
			      cudaError_t pending)
{
	static const uint32_t twice[2] = {3, 3}, outside[1] = {CASE_PAGES};
	const struct kv_blocks same = {.count = 2, .pages = twice};
	const struct kv_blocks out = {.count = 1, .pages = outside};
	struct okv_layer_event none_event = {.layer = 0};
	struct gpu_with with = {.events = &none_event, .event_count = 1};
	struct okv_op *none = NULL;
	STEP(c, pending, OKV_E_INVAL, gpu_restore_start(kv, lease, &same, 1, NULL, &none, &err));
	STEP(c, pending, OKV_E_INVAL, gpu_restore_start(kv, lease, &out, 1, NULL, &none, &err));
	STEP(c, pending, OKV_E_INVAL,
	     gpu_restore_start(kv, lease, &cs.target, 1, &with, &none, &err));
	STEP(c, pending, OKV_E_INVAL, gpu_publish_start(kv, 999, &out, 1, NULL, &none, &err));
}

static void transfers(struct caller *c, struct okv_namespace *ns, struct gpu_kv *kv,
		      cudaError_t pending)
{
	const struct okv_layer_event event = {.layer = 2, .event = cs.events[2]};
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .events = &event, .event_count = 1};
	struct gpu_with without = {.streams = &cs.a, .stream_count = 1};
	uint8_t *keys = kv_group_keys(5, 0, 0, CASE_COUNT);
	struct okv_keys wanted = {.count = CASE_COUNT, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options look_up;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	struct okv_op *op = NULL;
	STEP(c, pending, 0, gpu_publish_start(kv, 5, &cs.source, 1, &without, &op, &err));
	STEP(c, pending, 0, okv_op_wait(op, GPU_WAIT_MS, NULL));
	STEP(c, pending, 0, (okv_op_release(op), 0));
	okv_lookup_options_init(&look_up);
	look_up.group_count = 1;
	look_up.groups = &wanted;
	STEP(c, pending, 0, okv_lookup(ns, &look_up, &found, &lease, &err));
	refused_transfers(c, kv, lease, pending);
	STEP(c, pending, 0, gpu_restore_start(kv, lease, &cs.target, 1, &with, &op, &err));
	STEP(c, pending, 0, okv_op_wait_enqueued(op, 2, GPU_WAIT_MS));
	STEP(c, pending, 0, okv_op_wait_layer(op, CASE_LAYERS - 1, GPU_WAIT_MS));
	STEP(c, pending, 0, okv_op_wait(op, GPU_WAIT_MS, NULL));
	STEP(c, pending, 0, okv_op_cancel(op));
	STEP(c, pending, 0, okv_op_poll(op, NULL));
	STEP(c, pending, 0, (okv_op_release(op), 0));
	STEP(c, pending, 0, okv_binding_quiesce(kv->image.binding, GPU_WAIT_MS));
	STEP(c, pending, 0, okv_binding_resume(kv->image.binding));
	STEP(c, pending, 0, (okv_lease_release(lease), 0));
	free(keys);
}

/* Every public call that could meet CUDA, on one thread. */
static void *call_everything(void *arg)
{
	struct caller *c = arg;
	cudaError_t pending = cudaSuccess;
	struct okv_manager_options memory;
	struct okv_engine_options o;
	struct okv_engine *engine = NULL;
	struct okv_engine_stats stats;
	struct gpu_kv kv = {.image = cs.kv.image, .layers = c->layers};
	if (cu.cuCtxSetCurrent(c->context) != CUDA_SUCCESS)
		c->broken_by = "cuCtxSetCurrent";
	if (c->failed_before) {
		void *none;
		pending = cudaMalloc(&none, (size_t)1 << 60);
	}
	okv_manager_options_init(&memory);
	memory.memory_bytes = 256u << 20;
	memory.numa = OKV_NUMA_OFF;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &memory;
	STEP(c, pending, 0, okv_engine_open(&o, &engine, &err));
	struct okv_namespace_options named;
	okv_namespace_options_init(&named);
	named.model = "caller";
	named.group_count = 1;
	named.groups = cs.kv.image.groups;
	struct okv_namespace *ns = NULL;
	STEP(c, pending, 0, okv_namespace_open(engine, &named, &ns, &err));
	refused_registrations(c, ns, pending);
	struct okv_binding_options bound = binding_of(c->layers);
	STEP(c, pending, 0, okv_binding_register(ns, &bound, &kv.image.binding, &err));
	transfers(c, ns, &kv, pending);
	STEP(c, pending, 0, okv_stats_get(engine, &stats));
	STEP(c, pending, 0, (okv_binding_unregister(kv.image.binding), 0));
	STEP(c, pending, 0, (okv_namespace_close(ns), 0));
	STEP(c, pending, 0, (okv_engine_close(engine), 0));
	if (!c->broken_by && cudaGetLastError() != pending)
		c->broken_by = "the end";
	cu.cuCtxSetCurrent(NULL);
	return NULL;
}

enum current { NO_CONTEXT, OTHER_CONTEXT, PRIMARY_CONTEXT, PRIMARY_WITH_AN_ERROR, CURRENTS };

START_TEST(r9_the_context_and_the_errors_of_the_caller_stay)
{
	struct caller c = {.failed_before = _i == PRIMARY_WITH_AN_ERROR};
	struct gpu_kv spare;
	const uint32_t per_block = 1, pages = CASE_PAGES;
	CUcontext other = NULL;
	pthread_t thread;
	if (_i == OTHER_CONTEXT)
		c.context = other = gpu_second_context();
	if (_i >= PRIMARY_CONTEXT)
		gpu_must(cu.cuCtxGetCurrent(&c.context));
	gpu_kv_place(&spare, cs.kv.image.groups, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	c.layers = spare.layers;
	ck_assert_int_eq(pthread_create(&thread, NULL, call_everything, &c), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_msg(c.broken_by == NULL, "after %s", c.broken_by);
	if (other)
		gpu_must(cu.cuCtxDestroy(other));
	gpu_kv_close(&spare);
	ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
}
END_TEST

START_TEST(s31_a_failing_registration_and_then_a_call_of_ones_own)
{
	struct okv_binding *none = NULL;
	struct okv_error err = {0};
	struct okv_binding_options o = binding_of(cs.kv.image.layers);
	void *own = NULL;
	gpu_ok(cudaFree(NULL));
	ck_assert_int_eq(okv_binding_register(cs.ns, &o, &none, &err), OKV_E_INVAL);
	ck_assert_ptr_null(none);
	gpu_ok(cudaGetLastError());
	gpu_ok(cudaMalloc(&own, 1 << 20));
	gpu_ok(cudaMemset(own, 1, 1 << 20));
	gpu_ok(cudaDeviceSynchronize());
	gpu_ok(cudaFree(own));
	gpu_ok(gpu_compare(cs.want, cs.want, 64, cs.counts, cs.a));
	gpu_ok(cudaStreamSynchronize(cs.a));
}
END_TEST

/* ---- registered memory ---- */

/* A host binding maps the pool; someone else registers all of it; the GPU's binding is refused and
 * leaves that registration alone. Every mapping is taken, for the engine may use any. */
START_TEST(s32_memory_that_someone_else_registered)
{
	struct okv_engine *engine = kv_engine_embedded(64u << 20, 0);
	struct okv_namespace *ns = kv_groups_open(engine, cs.kv.image.groups, 1, 1);
	struct kv_tensors host;
	struct gpu_kv kv;
	const uint32_t per_block = 1, pages = CASE_PAGES;
	struct okv_error err = {0};
	char line[512];
	void *taken[64];
	uint32_t n = 0;
	unsigned flags;
	kv_tensors_place(&host, cs.kv.image.groups, 1, 0, KV_PLACE_PAGES, &pages, &per_block, 0);
	kv_ok(kv_tensors_register(&host, ns, kv_err));
	gpu_kv_place(&kv, cs.kv.image.groups, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	FILE *maps = fopen("/proc/self/maps", "r");
	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps) && n < 64) {
		unsigned long start, end;
		if (!strstr(line, "orbitkv-shard") || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		/* The first binding's pins of the fixture are in this list as well: left alone. */
		if (cudaHostRegister((void *)start, end - start, 0) == cudaSuccess)
			taken[n++] = (void *)start;
		cudaGetLastError();
	}
	fclose(maps);
	ck_assert_uint_gt(n, 0);
	ck_assert_int_eq(gpu_kv_register(&kv, ns, &err), OKV_E_EXISTS);
	ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
	for (uint32_t i = 0; i < n; i++) {
		gpu_ok(cudaHostGetFlags(&flags, taken[i]));
		gpu_ok(cudaHostUnregister(taken[i]));
	}
	kv_ok(gpu_kv_register(&kv, ns, kv_err));
	gpu_kv_close(&kv);
	kv_tensors_close(&host);
	okv_namespace_close(ns);
	okv_engine_close(engine);
}
END_TEST

/* Bindings come and go; the pool is registered once and, at the end, not at all. */
START_TEST(s32_two_bindings_one_registration)
{
	struct okv_engine *engine = kv_engine_embedded(64u << 20, 0);
	struct okv_namespace *ns = kv_groups_open(engine, cs.kv.image.groups, 1, 1);
	const uint32_t per_block = 1, pages = CASE_PAGES;
	const uint32_t n = CASE_COUNT;
	struct gpu_kv first, second;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	gpu_kv_place(&first, cs.kv.image.groups, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	gpu_kv_place(&second, cs.kv.image.groups, 1, KV_PLACE_CROSS, &pages, &per_block, 64);
	kv_ok(gpu_kv_register(&first, ns, kv_err));
	kv_ok(gpu_kv_register(&second, ns, kv_err));
	gpu_kv_image(&first, CASE_OLD, 7, &cs.source, 1);
	gpu_kv_upload(&first);
	kv_ok(gpu_publish_start(&first, 7, &cs.source, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_kv_close(&first);
	/* The second still copies from registered memory. */
	gpu_kv_image(&second, CASE_POISON, 0, NULL, 0);
	gpu_kv_upload(&second);
	kv_groups_lookup(ns, 7, &n, 1, 1, NULL, &lease);
	kv_ok(gpu_restore_start(&second, lease, &cs.target, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_kv_image(&second, CASE_POISON, 7, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&second), 0);
	okv_lease_release(lease);
	gpu_kv_close(&second);
	okv_namespace_close(ns);
	okv_engine_close(engine);
}
END_TEST

/* ---- owners ---- */

START_TEST(r5_owners_are_held_until_the_copies_stopped)
{
	struct okv_lease *lease = case_stored(300);
	struct gpu_count of_op = {0}, of_event = {0}, of_publish = {0};
	struct okv_layer_event event = {
		.layer = 1, .event = cs.events[1], .owner = gpu_owner(&of_event)};
	struct gpu_with with = {.streams = &cs.a,
				.stream_count = 1,
				.events = &event,
				.event_count = 1,
				.owner = gpu_owner(&of_op)};
	struct gpu_with publish = {
		.streams = &cs.a, .stream_count = 1, .owner = gpu_owner(&of_publish)};
	struct okv_op *op, *other, *none = NULL;
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	kv_ok(gpu_publish_start(&cs.kv, 301, &cs.source, 1, &publish, &other, kv_err));
	case_all_enqueued(op);
	ck_assert_int_eq(gpu_retained(&of_op), 1);
	ck_assert_int_eq(gpu_retained(&of_event), 1);
	ck_assert_int_eq(gpu_retained(&of_publish), 1);
	/* Refused: retained and released alike. */
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &none, NULL),
			 OKV_E_BUSY);
	ck_assert_int_eq(gpu_retained(&of_op) - gpu_released(&of_op), 1);
	/* A dropped handle ends nothing. */
	okv_op_release(other);
	ck_assert_int_eq(okv_binding_quiesce(cs.kv.image.binding, 0), OKV_E_TIMEOUT);
	ck_assert_int_eq(gpu_released(&of_publish), 0);
	ck_assert_int_eq(gpu_released(&of_event), 0);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_int_eq(gpu_released(&of_op), gpu_retained(&of_op));
	ck_assert_int_eq(gpu_released(&of_event), gpu_retained(&of_event));
	ck_assert_int_eq(okv_binding_quiesce(cs.kv.image.binding, GPU_WAIT_MS), 0);
	ck_assert_int_eq(gpu_released(&of_publish), 1);
	ck_assert_int_eq(okv_binding_resume(cs.kv.image.binding), 0);
	okv_lease_release(lease);
}
END_TEST

static void *unregister(void *arg)
{
	okv_binding_unregister(arg);
	return NULL;
}

/* Unregister blocks while copies wait behind a gate, and the tensors stay owned until it ends. */
START_TEST(r5_unregister_drains_before_it_lets_go)
{
	const uint32_t per_block = 1, pages = CASE_PAGES;
	struct okv_lease *lease = case_stored(302);
	struct gpu_count owner = {0};
	struct gpu_with with = {.streams = &cs.a, .stream_count = 1};
	struct gpu_kv kv;
	struct okv_op *op, *none = NULL;
	pthread_t thread;
	gpu_kv_place(&kv, cs.kv.image.groups, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		kv.layers[i].owner = gpu_owner(&owner);
	kv_ok(gpu_kv_register(&kv, cs.ns, kv_err));
	ck_assert_int_eq(gpu_retained(&owner), CASE_LAYERS);
	gpu_kv_image(&kv, CASE_POISON, 0, NULL, 0);
	gpu_kv_upload(&kv);
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&kv, lease, &cs.target, 1, &with, &op, kv_err));
	case_all_enqueued(op);
	ck_assert_int_eq(pthread_create(&thread, NULL, unregister, kv.image.binding), 0);
	while (gpu_restore_start(&kv, lease, &(struct kv_blocks){.count = 0}, 1, NULL, &none,
				 NULL) != OKV_E_CLOSED) {
		okv_op_release(none);
		none = NULL;
	}
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	ck_assert_int_eq(gpu_released(&owner), 0);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	gpu_gate_open(gate);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_int_eq(gpu_released(&owner), CASE_LAYERS);
	ck_assert_int_eq(okv_op_poll(op, NULL), 0);
	okv_op_release(op);
	gpu_kv_image(&kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&kv), 0);
	kv.image.binding = NULL;
	gpu_kv_close(&kv);
	okv_lease_release(lease);
}
END_TEST

int main(void)
{
	int rc = gpu_find();
	if (rc)
		return rc;
	Suite *suite = suite_create("gpu caller");
	TCase *t = tcase_create("caller");
	tcase_add_checked_fixture(t, gpu_case_setup, gpu_case_teardown);
	tcase_add_loop_test(t, r9_the_context_and_the_errors_of_the_caller_stay, 0, CURRENTS);
	tcase_add_test(t, s31_a_failing_registration_and_then_a_call_of_ones_own);
	tcase_add_test(t, s32_memory_that_someone_else_registered);
	tcase_add_test(t, s32_two_bindings_one_registration);
	tcase_add_test(t, r5_owners_are_held_until_the_copies_stopped);
	tcase_add_test(t, r5_unregister_drains_before_it_lets_go);
	suite_add_tcase(suite, t);
	return kv_suite_run_here(suite);
}
