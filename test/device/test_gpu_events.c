/* SPDX-License-Identifier: Apache-2.0 */
/* Layer events, events and pages in use, cancels: what a consumer may rely on, on a real GPU. */
#include "device/gpu_case.h"
#include "device/gpu_kernels.h"
#include "support/suite.h"

#include <sched.h>
#include <string.h>

START_TEST(consumers_wait_for_layer_events)
{
	struct okv_lease *lease = case_stored(100);
	struct okv_layer_event list[CASE_LAYERS];
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .events = list, .event_count = CASE_LAYERS};
	struct okv_op *op;
	case_expect_restored();
	case_all_events(list);
	case_counts_clear();
	/* All is poison yet: the check can fail. */
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		case_check_layer(i, cs.counts + i, cs.b);
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		ck_assert_uint_gt(case_count(i, cs.b), CASE_COUNT * (65536u + 8192u));
	case_counts_clear();
	cudaStream_t consumer;
	gpu_ok(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	case_all_enqueued(op);
	/* Who does not wait sees poison. By a copy: under memcheck no kernel begins beside a gate.
	 */
	ck_assert_uint_gt(gpu_kv_differs(&cs.kv), CASE_LAYERS * CASE_COUNT * (65536u + 8192u));
	for (uint32_t i = 0; i < CASE_LAYERS; i++) {
		gpu_ok(cudaStreamWaitEvent(consumer, cs.events[i], 0));
		case_check_layer(i, cs.counts + i, consumer);
	}
	gpu_stream_busy(consumer);
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 0), OKV_E_TIMEOUT);
	gpu_gate_open(gate);
	gpu_ok(cudaStreamSynchronize(consumer));
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		ck_assert_uint_eq(case_count(i, cs.b), 0);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_ok(cudaStreamDestroy(consumer));
	okv_lease_release(lease);
}
END_TEST

/* No gate: consumers are linked while the copies run. K, V and the index are one layer. */
START_TEST(s12_consumers_race_with_the_copies)
{
	struct okv_lease *lease = case_stored(101);
	struct okv_layer_event list[CASE_LAYERS];
	struct gpu_with with = {
		.events = list, .event_count = CASE_LAYERS, .flags = OKV_RESTORE_KEEP};
	case_expect_restored();
	case_all_events(list);
	case_counts_clear();
	for (int round = 0; round < 12; round++) {
		struct okv_op *op;
		gpu_ok(cudaMemsetAsync(cs.kv.memory, CASE_POISON, cs.kv.image.bytes, cs.b));
		gpu_ok(cudaStreamSynchronize(cs.b));
		kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
		for (uint32_t i = 0; i < CASE_LAYERS; i++) {
			ck_assert_int_eq(okv_op_wait_enqueued(op, i, GPU_WAIT_MS), 0);
			gpu_ok(cudaStreamWaitEvent(cs.a, cs.events[i], 0));
			case_check_layer(i, cs.counts + i, cs.a);
		}
		gpu_ok(cudaStreamSynchronize(cs.a));
		for (uint32_t i = 0; i < CASE_LAYERS; i++)
			ck_assert_uint_eq(case_count(i, cs.b), 0);
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
		ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	}
	okv_lease_release(lease);
}
END_TEST

START_TEST(wait_layer_is_enough_for_the_cpu)
{
	struct okv_lease *lease = case_stored(102);
	struct okv_op *op;
	case_expect_restored();
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, NULL, &op, kv_err));
	for (uint32_t i = 0; i < CASE_LAYERS; i++) {
		case_counts_clear();
		ck_assert_int_eq(okv_op_wait_layer(op, i, GPU_WAIT_MS), 0);
		case_check_layer(i, cs.counts, cs.b);
		ck_assert_uint_eq(case_count(0, cs.b), 0);
	}
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
}
END_TEST

/* A source may be overwritten by work behind read_done_event, also while the result is awaited. The
 * event was recorded behind a gate that stays closed, so that only a new record lets it fire. */
START_TEST(read_done_event_lets_the_next_writer_in)
{
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .read_done_event = cs.events[0]};
	struct okv_op *op;
	cs.seq = 150;
	gpu_ok(cudaStreamSynchronize(cs.a));
	gpu_gate_open(case_writer(cs.a));
	/* Memcheck reads what kernels left when their stream is asked, and waits for a held one. */
	gpu_ok(cudaDeviceSynchronize());
	struct gpu_gate *old = gpu_gate_close(cs.b);
	gpu_ok(cudaEventRecord(cs.events[0], cs.b));
	gpu_event_busy(cs.events[0]);
	kv_ok(gpu_publish_start(&cs.kv, cs.seq, &cs.source, 1, &with, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, GPU_WAIT_MS, NULL), 0);
	gpu_ok(cudaEventSynchronize(cs.events[0]));
	gpu_gate_open(old);
	gpu_ok(cudaStreamWaitEvent(cs.a, cs.events[0], 0));
	gpu_ok(cudaMemsetAsync(cs.kv.memory, CASE_POISON, cs.kv.image.bytes, cs.a));
	gpu_ok(cudaStreamSynchronize(cs.a));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	ck_assert_uint_eq(case_stored_wrong(cs.seq), 0);
}
END_TEST

/* ---- events ---- */

START_TEST(s19_zero_blocks_make_every_event_fresh)
{
	struct okv_lease *lease = case_stored(160);
	struct okv_layer_event list[CASE_LAYERS];
	struct gpu_with with = {.events = list, .event_count = CASE_LAYERS};
	struct kv_blocks none = {.count = 0};
	struct okv_op *op;
	case_all_events(list);
	struct gpu_gate *old = gpu_gate_close(cs.a);
	for (uint32_t i = 0; i < CASE_LAYERS; i++)
		gpu_ok(cudaEventRecord(cs.events[i], cs.a));
	kv_ok(gpu_restore_start(&cs.kv, lease, &none, (uint32_t)_i, &with, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, GPU_WAIT_MS, NULL), 0);
	for (uint32_t i = 0; i < CASE_LAYERS; i++) {
		ck_assert_int_eq(okv_op_wait_enqueued(op, i, 0), 0);
		gpu_ok(cudaEventSynchronize(cs.events[i]));
	}
	gpu_gate_open(old);
	okv_op_release(op);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	okv_lease_release(lease);
}
END_TEST

/* A graph waits for the layer event; its second run must see the second data. */
START_TEST(s13_a_graph_that_waits_for_a_layer_event)
{
	struct okv_lease *leases[2] = {case_stored(170), case_stored(171)};
	struct okv_layer_event list = {.layer = 5, .event = cs.events[5]};
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .events = &list, .event_count = 1};
	cudaStream_t consumer;
	cudaGraph_t graph;
	cudaGraphExec_t runnable;
	gpu_ok(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
	gpu_ok(cudaStreamBeginCapture(consumer, cudaStreamCaptureModeThreadLocal));
	gpu_ok(cudaStreamWaitEvent(consumer, cs.events[5], cudaEventWaitExternal));
	case_check_layer(5, cs.counts, consumer);
	gpu_ok(cudaStreamEndCapture(consumer, &graph));
	gpu_ok(cudaGraphInstantiate(&runnable, graph, 0));
	for (uint64_t run = 0; run < 2; run++) {
		struct okv_op *op;
		cs.seq = 170 + run;
		case_expect_restored();
		case_counts_clear();
		struct gpu_gate *gate = gpu_gate_close(cs.a);
		kv_ok(gpu_restore_start(&cs.kv, leases[run], &cs.target, 1, &with, &op, kv_err));
		ck_assert_int_eq(okv_op_wait_enqueued(op, 5, GPU_WAIT_MS), 0);
		gpu_ok(cudaGraphLaunch(runnable, consumer));
		gpu_stream_busy(consumer);
		gpu_gate_open(gate);
		gpu_ok(cudaStreamSynchronize(consumer));
		ck_assert_uint_eq(case_count(0, cs.b), 0);
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
		okv_lease_release(leases[run]);
	}
	gpu_ok(cudaGraphExecDestroy(runnable));
	gpu_ok(cudaGraphDestroy(graph));
	gpu_ok(cudaStreamDestroy(consumer));
}
END_TEST

START_TEST(s18_pages_and_events_of_a_running_operation_are_busy)
{
	struct okv_lease *lease = case_stored(180);
	const uint32_t one[1] = {1};
	struct kv_blocks other = {.count = 1, .pages = one}, same = {.count = 1, .pages = cs.to};
	struct okv_layer_event first = {.layer = 3, .event = cs.events[3]};
	struct okv_layer_event twice[2] = {{.layer = 3, .event = cs.events[4]},
					   {.layer = 4, .event = cs.events[4]}};
	struct okv_layer_event again[2] = {{.layer = 3, .event = cs.events[4]},
					   {.layer = 3, .event = cs.events[5]}};
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .events = &first, .event_count = 1};
	struct gpu_with reuse = {.events = &first, .event_count = 1};
	struct gpu_with read = {.read_done_event = cs.events[3]};
	struct gpu_with two = {.events = twice, .event_count = 2};
	struct okv_op *op, *none = NULL;
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	/* the other operation would use free pages, but a busy event; then the reverse */
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &other, 1, &reuse, &none, NULL),
			 OKV_E_BUSY);
	ck_assert_int_eq(gpu_publish_start(&cs.kv, 181, &other, 1, &read, &none, NULL), OKV_E_BUSY);
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &same, 1, NULL, &none, NULL), OKV_E_BUSY);
	ck_assert_int_eq(gpu_publish_start(&cs.kv, 181, &same, 1, NULL, &none, NULL), OKV_E_BUSY);
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &other, 1, &two, &none, NULL),
			 OKV_E_INVAL);
	two.events = again;
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &other, 1, &two, &none, NULL),
			 OKV_E_INVAL);
	ck_assert_ptr_null(none);
	case_all_enqueued(op);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_gate_open(gate);
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	/* Nothing of the refused ones stuck, and nothing of the ended one. */
	kv_ok(gpu_restore_start(&cs.kv, lease, &same, 1, &reuse, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
}
END_TEST

/* ---- ends ---- */

/* All copies wait behind the gate: a cancel must not end the operation before they stopped. */
START_TEST(r4_a_cancel_ends_no_operation_with_copies_queued)
{
	struct okv_lease *lease = case_stored(200);
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .flags = OKV_OP_NOTIFY, .user_data = 9};
	struct okv_completion done[4];
	struct okv_op_result r;
	struct okv_op *op, *none = NULL;
	uint32_t n = 9;
	struct gpu_gate *gate = gpu_gate_close(cs.a);
	kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
	case_all_enqueued(op);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	ck_assert_int_eq(okv_op_wait(op, 20, NULL), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_engine_poll(cs.engine, done, 4, &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(gpu_restore_start(&cs.kv, lease, &cs.target, 1, NULL, &none, NULL),
			 OKV_E_BUSY);
	ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	gpu_gate_open(gate);
	int rc = okv_op_wait(op, GPU_WAIT_MS, &r);
	ck_assert(rc == 0 || rc == OKV_E_CANCELLED);
	ck_assert_int_eq(r.status, rc);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	ck_assert_int_eq(okv_op_poll(op, NULL), rc);
	ck_assert_int_eq(okv_engine_poll(cs.engine, done, 4, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_ptr_eq(done[0].op, op);
	ck_assert_int_eq(done[0].status, rc);
	ck_assert_uint_eq(done[0].user_data, 9);
	if (rc == 0) {
		gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
		ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
	}
	okv_op_release(op);
	ck_assert_int_eq(okv_engine_poll(cs.engine, done, 4, &n), 0);
	ck_assert_uint_eq(n, 0);
	okv_lease_release(lease);
}
END_TEST

/* Cancelled at once: an operation that ended with the gate closed never writes again. */
START_TEST(r4_nothing_is_written_after_a_cancelled_end)
{
	struct okv_lease *lease = case_stored(201);
	struct gpu_with with = {
		.streams = &cs.a, .stream_count = 1, .flags = OKV_RESTORE_KEEP | OKV_OP_NOTIFY};
	uint32_t completions = 0, n = 0;
	for (int round = 0; round < 20; round++) {
		struct okv_completion done[4];
		struct okv_op *op;
		struct gpu_gate *gate = gpu_gate_close(cs.a);
		kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, &with, &op, kv_err));
		for (int spin = 0; spin < round * 100; spin++)
			sched_yield();
		ck_assert_int_eq(okv_op_cancel(op), 0);
		int early = okv_op_wait(op, 2, NULL);
		ck_assert(early == OKV_E_CANCELLED || early == OKV_E_TIMEOUT);
		if (early == OKV_E_CANCELLED)
			gpu_kv_image(&cs.kv, CASE_POISON, 0, NULL, 0);
		gpu_gate_open(gate);
		int rc = okv_op_wait(op, GPU_WAIT_MS, NULL);
		ck_assert(rc == early || (early == OKV_E_TIMEOUT && rc == 0) ||
			  rc == OKV_E_CANCELLED);
		gpu_ok(cudaDeviceSynchronize());
		if (early != OKV_E_CANCELLED && rc == 0)
			gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
		if (early == OKV_E_CANCELLED || rc == 0)
			ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
		gpu_ok(cudaMemsetAsync(cs.kv.memory, CASE_POISON, cs.kv.image.bytes, cs.b));
		gpu_ok(cudaStreamSynchronize(cs.b));
		ck_assert_int_eq(okv_engine_poll(cs.engine, done, 4, &n), 0);
		completions += n;
		okv_op_release(op);
	}
	ck_assert_uint_eq(completions, 20);
	okv_lease_release(lease);
}
END_TEST

static void add_tests(TCase *t)
{
	tcase_add_test(t, consumers_wait_for_layer_events);
	tcase_add_test(t, s12_consumers_race_with_the_copies);
	tcase_add_test(t, wait_layer_is_enough_for_the_cpu);
	tcase_add_test(t, read_done_event_lets_the_next_writer_in);
	tcase_add_loop_test(t, s19_zero_blocks_make_every_event_fresh, 0, 2);
	tcase_add_test(t, s13_a_graph_that_waits_for_a_layer_event);
	tcase_add_test(t, s18_pages_and_events_of_a_running_operation_are_busy);
	tcase_add_test(t, r4_a_cancel_ends_no_operation_with_copies_queued);
	tcase_add_test(t, r4_nothing_is_written_after_a_cancelled_end);
}

int main(void)
{
	int rc = gpu_find();
	if (rc)
		return rc;
	Suite *suite = suite_create("gpu events");
	TCase *t = tcase_create("events"), *parts = tcase_create("events in parts");
	tcase_add_checked_fixture(t, gpu_case_setup, gpu_case_teardown);
	tcase_add_checked_fixture(parts, gpu_case_setup_in_parts, gpu_case_teardown);
	add_tests(t);
	add_tests(parts);
	suite_add_tcase(suite, t);
	suite_add_tcase(suite, parts);
	return kv_suite_run_here(suite);
}
