/* SPDX-License-Identifier: Apache-2.0 */
/* Who may touch pages when: ready streams, layer events, events in use, cancels, on a real GPU. */
#include "device/gpu_case.h"
#include "device/gpu_kernels.h"
#include "support/suite.h"

#include <sched.h>

/* ---- what may be restored into ---- */

/* A kernel reads the pages on the ready stream while they are to be overwritten. _i 0: the stream
 * is not named, and the reader sees the change. */
START_TEST(s10_a_reader_on_the_ready_stream_sees_no_change)
{
	struct okv_lease *lease = case_stored(110);
	struct gpu_with with = {.streams = &cs.a, .stream_count = (uint32_t)_i};
	const struct okv_layer *l = &cs.kv.layers[0];
	volatile unsigned *flags;
	struct okv_op *op;
	case_upload_want(); /* poison stays poison for the reader */
	case_counts_clear();
	gpu_ok(cudaHostAlloc((void **)(uintptr_t)&flags, 64, cudaHostAllocMapped));
	flags[0] = flags[1] = 0;
	gpu_ok(gpu_watch(l->base, cs.want + ((uint8_t *)l->base - cs.kv.memory), l->length,
			 cs.counts, flags, cs.a));
	while (!flags[0])
		sched_yield();
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	if (_i == 1) {
		case_all_enqueued(op);
		ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	} else {
		ck_assert_int_eq(okv_op_wait(op, GPU_WAIT_MS, NULL), 0);
	}
	gpu_stream_busy(cs.a);
	flags[1] = 1;
	gpu_ok(cudaStreamSynchronize(cs.a));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_uint_eq(case_count(GPU_WATCH_GAVE_UP, cs.b), 0);
	ck_assert_uint_eq(case_count(GPU_WATCH_BEFORE, cs.b), 0);
	if (_i == 1)
		ck_assert_uint_eq(case_count(GPU_WATCH_AFTER, cs.b), 0);
	else
		ck_assert_uint_gt(case_count(GPU_WATCH_AFTER, cs.b), 0);
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_ok(cudaFreeHost((void *)(uintptr_t)flags));
	okv_lease_release(lease);
}
END_TEST

START_TEST(restore_waits_for_the_null_stream)
{
	struct okv_lease *lease = case_stored(111);
	const cudaStream_t null[3] = {NULL, cudaStreamLegacy, cudaStreamPerThread};
	struct gpu_with with = {.streams = &null[_i], .stream_count = 1};
	struct okv_op *op;
	struct gpu_gate *gate = gpu_gate_close(null[_i]);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	case_all_enqueued(op);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	okv_lease_release(lease);
}
END_TEST

/* A refused operation had its fences placed already: whoever comes next does not wait for them. */
START_TEST(a_refused_operation_leaves_no_fence)
{
	struct okv_lease *spent = case_stored(112);
	const struct gpu_with fenced = {.streams = &cs.a, .stream_count = 1};
	struct okv_op *op;
	for (int share = 0; share < 4; share++) {
		kv_ok(gpu_restore_start(&cs.kv, spent, &cs.target, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
	}
	struct okv_lease *lease = case_stored(113);
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&cs.kv, spent, &cs.target, 1, &fenced, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), OKV_E_NOENT);
	for (int share = 0; share < 4; share++) {
		kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
	}
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_stream_busy(cs.a);
	gpu_gate_open(gate);
	okv_lease_release(spent);
	okv_lease_release(lease);
}
END_TEST

/* ---- what may be published ---- */

/* A publish of other pages ends while op waits for its stream. */
static void others_go_on(struct okv_op *op)
{
	struct okv_op *other;
	kv_ok(gpu_publish_start(&cs.kv, cs.seq + 1000, &cs.target, 1, NULL, &other, kv_err));
	ck_assert_int_eq(gpu_finish(other, NULL), 0);
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
}

/* 1: the writer's stream is named. 0: it is not, and what was there before is stored. */
START_TEST(s9_stored_bytes_are_the_writers_last)
{
	struct gpu_with with = {.streams = &cs.a, .stream_count = (uint32_t)_i};
	struct okv_op *op;
	cs.seq = 120 + (uint64_t)_i;
	struct gpu_gate *gate = case_writer(cs.a);
	kv_ok(gpu_publish_start(&cs.kv, cs.seq, &cs.source, 1, &with, &op, kv_err));
	if (_i == 0)
		ck_assert_int_eq(okv_op_wait(op, GPU_WAIT_MS, NULL), 0);
	else
		others_go_on(op);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_ok(cudaStreamSynchronize(cs.a));
	if (_i == 0)
		ck_assert_uint_gt(case_stored_wrong(cs.seq), CASE_COUNT * CASE_LAYERS * 65536u);
	else
		ck_assert_uint_eq(case_stored_wrong(cs.seq), 0);
}
END_TEST

START_TEST(s9_a_kernel_of_5_ms_and_publish_at_once)
{
	for (uint64_t round = 0; round < 5; round++) {
		struct gpu_with with = {.streams = &cs.a, .stream_count = 1};
		struct okv_op *op;
		cs.seq = 130 + round;
		gpu_gate_open(case_writer(cs.a));
		kv_ok(gpu_publish_start(&cs.kv, cs.seq, &cs.source, 1, &with, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
		ck_assert_uint_eq(case_stored_wrong(cs.seq), 0);
	}
}
END_TEST

/* Of several named streams the one in this place is held back; the last one is another one. */
static void one_is_held(int place, cudaStream_t last)
{
	cudaStream_t list[4] = {cs.b, cs.b, cs.b, last};
	struct gpu_with with = {.streams = list, .stream_count = 4};
	struct okv_op *op;
	cs.seq = 140 + (uint64_t)place;
	list[place] = cs.a;
	gpu_kv_image(&cs.kv, CASE_OLD, 0, NULL, 0);
	gpu_kv_upload(&cs.kv);
	/* Memcheck reads what kernels left when their stream is asked, and waits for a held one. */
	gpu_ok(cudaDeviceSynchronize());
	struct gpu_gate *gate = gpu_gate_close(cs.a), *other = gpu_gate_close(cs.b);
	kv_ok(gpu_publish_start(&cs.kv, cs.seq, &cs.source, 1, &with, &op, kv_err));
	gpu_gate_open(other);
	gpu_ok(cudaStreamSynchronize(cs.b));
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	/* Written while it waits. */
	gpu_kv_image(&cs.kv, CASE_OLD, cs.seq, &cs.source, 1);
	gpu_kv_upload(&cs.kv);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_uint_eq(case_stored_wrong(cs.seq), 0);
}

START_TEST(s11_every_named_stream_is_waited_for)
{
	one_is_held(_i, cs.b);
}
END_TEST

START_TEST(s11_the_null_stream_among_others)
{
	one_is_held(_i, NULL);
}
END_TEST

/* ---- streams that are refused ---- */

START_TEST(a_capturing_stream_is_refused_and_its_capture_lives)
{
	struct okv_lease *lease = case_stored(190);
	const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
						    cudaStreamCaptureModeThreadLocal,
						    cudaStreamCaptureModeRelaxed};
	struct gpu_with with = {.streams = &cs.a, .stream_count = 1};
	struct gpu_with idle = {.streams = &cs.b, .stream_count = 1};
	struct okv_op *op, *none = NULL;
	cudaGraph_t graph = NULL;
	gpu_ok(cudaStreamBeginCapture(cs.a, modes[_i]));
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &none, NULL),
			 OKV_E_INVAL);
	ck_assert_int_eq(gpu_publish_start(&cs.kv, 191, &cs.source, 1, &with, &none, NULL),
			 OKV_E_INVAL);
	ck_assert_ptr_null(none);
	/* Beside a capture everything else goes on. */
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &idle, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
	gpu_ok(gpu_compare(cs.want, cs.want, 1, cs.counts, cs.a));
	gpu_ok(cudaStreamEndCapture(cs.a, &graph));
	ck_assert_ptr_nonnull(graph);
	gpu_ok(cudaGraphDestroy(graph));
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
}
END_TEST

START_TEST(a_stream_of_another_context_is_refused)
{
	struct okv_lease *lease = case_stored(192);
	CUcontext other = gpu_second_context(), before;
	CUstream foreign;
	gpu_must(cu.cuCtxGetCurrent(&before));
	gpu_must(cu.cuCtxSetCurrent(other));
	gpu_must(cu.cuStreamCreate(&foreign, CU_STREAM_NON_BLOCKING));
	gpu_must(cu.cuCtxSetCurrent(before));
	cudaStream_t list[2] = {cs.a, foreign};
	struct gpu_with with = {.streams = list, .stream_count = 2};
	struct okv_op *none = NULL;
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &none, NULL),
			 OKV_E_INVAL);
	ck_assert_int_eq(gpu_publish_start(&cs.kv, 193, &cs.source, 1, &with, &none, NULL),
			 OKV_E_INVAL);
	ck_assert_ptr_null(none);
	ck_assert_int_eq(cudaPeekAtLastError(), cudaSuccess);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_must(cu.cuStreamDestroy(foreign));
	gpu_must(cu.cuCtxDestroy(other));
	okv_lease_release(lease);
}
END_TEST

static void add_tests(TCase *t)
{
	tcase_add_loop_test(t, s10_a_reader_on_the_ready_stream_sees_no_change, 0, 2);
	tcase_add_test(t, a_refused_operation_leaves_no_fence);
	tcase_add_loop_test(t, restore_waits_for_the_null_stream, 0, 3);
	tcase_add_loop_test(t, s9_stored_bytes_are_the_writers_last, 0, 2);
	tcase_add_test(t, s9_a_kernel_of_5_ms_and_publish_at_once);
	tcase_add_loop_test(t, s11_every_named_stream_is_waited_for, 0, 4);
	tcase_add_loop_test(t, s11_the_null_stream_among_others, 0, 3);
	tcase_add_loop_test(t, a_capturing_stream_is_refused_and_its_capture_lives, 0, 3);
	tcase_add_test(t, a_stream_of_another_context_is_refused);
}

int main(void)
{
	int rc = gpu_find();
	if (rc)
		return rc;
	Suite *suite = suite_create("gpu order");
	TCase *t = tcase_create("order");
	tcase_add_checked_fixture(t, gpu_case_setup, gpu_case_teardown);
	add_tests(t);
	suite_add_tcase(suite, t);
	return kv_suite_run_here(suite);
}
