/* SPDX-License-Identifier: Apache-2.0 */
/* Callers and workers that spin for an answer, and those that sleep at once: the same outcomes. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

/* Blocks of 8 KiB: a segment has a whole memory page, so a gate fits into any of them. */
static const struct kv_shape shape = {
	.layers = 1, .segments = 1, .segment_bytes = 8192, .pages = 64};
#define RECORDS 1024u /* of one engine, as the limit of operations at a time says */

/* Nobody spins; the engine does; the Manager does; both, and far longer than anything takes. */
static const struct {
	uint32_t engine_us, manager_us;
} ways[] = {{0, 0}, {50, 0}, {0, 50}, {300000, 300000}};
#define WAYS ((int)(sizeof(ways) / sizeof(ways[0])))

static struct kv_local l;
static struct okv_engine *engine;
static struct okv_namespace *ns;
static struct kv_rank a;

static void start(int way)
{
	struct okv_manager_options o = kv_local_options(32u << 20);
	struct okv_engine_options eo;
	o.spin_us = ways[way].manager_us;
	o.reserve_percent = o.session_percent = 100;
	kv_local_start(&l, &o, 0, &shape);
	okv_engine_options_init(&eo);
	eo.socket_path = l.socket_path;
	eo.spin_us = ways[way].engine_us;
	kv_ok(okv_engine_open(&eo, &engine, kv_err));
	ns = kv_namespace(engine, &shape);
	kv_rank_open(&a, ns, &shape, 0);
}

static void stop(void)
{
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	kv_local_stop(&l);
}

START_TEST(every_outcome_is_told)
{
	start(_i);
	struct okv_lease *lease;
	struct okv_op *op, *queued;
	struct okv_op_result r;
	struct kv_gate gate;
	const uint32_t pages[] = {40, 41, 42, 43}, one = 50;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 4, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 4);
	/* All of it is there already: done without a grant. */
	ck_assert_int_eq(kv_publish(&a, 1, 0, 4, NULL, &r), 0);
	ck_assert_uint_eq(r.present, 4);
	ck_assert_uint_eq(kv_lookup(ns, 1, 4, 1, &lease), 4);
	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, 4, pages, OKV_RESTORE_KEEP, &op, kv_err));
	kv_gate_wait(&gate);
	/* The worker stands in a copy: a cancelled one is told all the same. */
	kv_ok(kv_restore_start(&a, lease, 0, 1, &one, OKV_RESTORE_KEEP, &queued, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 0, &r), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_wait(queued, 1, &r), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 0), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 1), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_cancel(queued), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(queued, 0, 60000), OKV_E_CANCELLED);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait_enqueued(op, 0, 60000), 0);
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 60000), 0);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_int_eq(okv_op_wait(queued, 60000, &r), OKV_E_CANCELLED);
	okv_op_release(op);
	okv_op_release(queued);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(kv_wrong(&a, 1, i, pages + i), 0);
	/* The share is spent: the next one is refused. */
	ck_assert_int_eq(kv_restore(&a, lease, 0, 4, pages, 0, &r), 0);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 4, pages, 0, &r), OKV_E_NOENT);
	okv_lease_release(lease);
	stop();
}
END_TEST

START_TEST(a_refusal_is_told_while_the_worker_stands_in_a_copy)
{
	start(_i);
	struct okv_lease *lease;
	struct okv_op *op, *refused;
	struct okv_op_result r;
	struct kv_gate gate;
	const uint32_t page = 40, one = 50;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &lease), 1);
	kv_gate_close_page(&gate, &a, 0, 0, page);
	kv_ok(kv_restore_start(&a, lease, 0, 1, &page, 0, &op, kv_err));
	kv_gate_wait(&gate);
	kv_ok(kv_restore_start(&a, lease, 0, 1, &one, 0, &refused, kv_err));
	ck_assert_int_eq(okv_op_wait_enqueued(refused, 0, 60000), OKV_E_NOENT);
	ck_assert_int_eq(okv_op_poll(refused, NULL), OKV_E_RUNNING);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(refused, 60000, &r), OKV_E_NOENT);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	okv_op_release(op);
	okv_op_release(refused);
	okv_lease_release(lease);
	stop();
}
END_TEST

/* The worker drained the publish, and then it stands: whoever sleeps for the blocks to be stored,
 * or polls for the completion, hears of it from somebody else. */
static void drained_and_told(uint64_t seq, struct okv_lease *lease, bool notify)
{
	struct okv_op *publish, *stands;
	struct okv_completion c;
	struct okv_op_result r;
	struct kv_gate gate;
	uint32_t n = 0;
	const uint32_t page = 40, from = 5;
	kv_gate_close_page(&gate, &a, 0, 0, page);
	kv_ok(kv_publish_start(&a, seq, 0, 1, &from, notify ? OKV_OP_NOTIFY : 0, &publish, kv_err));
	kv_ok(kv_restore_start(&a, lease, 0, 1, &page, OKV_RESTORE_KEEP, &stands, kv_err));
	kv_gate_wait(&gate);
	/* Not if the worker began with the restore. */
	bool stored = false;
	for (int i = 0; i < 200 && !stored; i++)
		stored = kv_lookup(ns, seq, 1, 1, NULL) == 1;
	if (stored && notify) {
		struct pollfd p = {.fd = okv_engine_fd(engine), .events = POLLIN};
		ck_assert_int_eq(poll(&p, 1, 60000), 1);
		ck_assert_int_eq(okv_engine_poll(engine, &c, 1, &n), 0);
		ck_assert_uint_eq(n, 1);
	} else if (stored) {
		ck_assert_int_eq(okv_op_wait(publish, 60000, &r), 0);
	}
	ck_assert_int_eq(okv_op_poll(stands, NULL), OKV_E_RUNNING);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(publish, 60000, &r), 0);
	ck_assert_int_eq(okv_op_wait(stands, 60000, &r), 0);
	if (notify && !n)
		ck_assert_int_eq(okv_engine_poll(engine, &c, 1, &n), 0);
	okv_op_release(publish);
	okv_op_release(stands);
}

START_TEST(a_stored_publish_is_told_while_the_worker_stands_in_a_copy)
{
	start(_i);
	struct okv_lease *lease;
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &lease), 1);
	for (uint32_t i = 0; i < 20; i++)
		drained_and_told(100 + i, lease, i % 2);
	okv_lease_release(lease);
	stop();
}
END_TEST

/* Whoever has waited for all operations finds the binding drained. */
START_TEST(a_waited_for_operation_does_not_run_any_more)
{
	start(_i);
	struct okv_lease *lease;
	struct okv_op_result r;
	const uint32_t page = 40;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &lease), 1);
	for (uint32_t i = 0; i < 2000; i++) {
		if (i % 10)
			ck_assert_int_eq(kv_restore(&a, lease, 0, 1, &page, OKV_RESTORE_KEEP, &r),
					 0);
		else
			ck_assert_int_eq(kv_publish(&a, 9, i, 1, (uint32_t[]){5}, &r), 0);
		ck_assert_int_eq(okv_binding_quiesce(a.binding, 0), 0);
		ck_assert_int_eq(okv_binding_resume(a.binding), 0);
	}
	okv_lease_release(lease);
	stop();
}
END_TEST

/* Start publishes that nobody can claim until no record is left. Their number comes back. */
static uint32_t fill_table(struct kv_rank *b, struct okv_op *ops[RECORDS], uint32_t wanted)
{
	struct okv_error err;
	uint32_t n = 0;
	/* What ended a moment ago may be given back a moment later. */
	kv_until(n == wanted ||
		 (kv_publish_start(b, 7, n, 1, (uint32_t[]){3}, 0, &ops[n], &err) == 0 &&
		  ++n == wanted));
	return n;
}

START_TEST(ten_thousand_small_operations_leave_no_record)
{
	start(_i);
	static struct okv_op *ops[RECORDS];
	struct okv_lease *lease;
	struct okv_op *op, *none = NULL;
	struct okv_op_result r;
	struct okv_error err;
	struct kv_rank b;
	struct kv_gate gate;
	const uint32_t page = 40;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &lease), 1);
	for (uint32_t i = 0; i < 10000; i++) {
		if (i % 10 == 9) {
			ck_assert_int_eq(kv_publish(&a, 100, i, 1, (uint32_t[]){5}, &r), 0);
			continue;
		}
		kv_ok(kv_restore_start(&a, lease, 0, 1, &page, OKV_RESTORE_KEEP, &op, kv_err));
		/* Some are cancelled on their way, and not all are waited for at once. */
		if (i % 10 == 7)
			okv_op_cancel(op);
		int rc = okv_op_wait(op, 60000, &r);
		ck_assert(rc == 0 || (rc == OKV_E_CANCELLED && i % 10 == 7));
		okv_op_release(op);
	}
	/* Every record can be taken once more, while the worker of another binding stands. */
	kv_rank_open(&b, ns, &shape, 0);
	kv_gate_close_page(&gate, &b, 0, 0, page);
	kv_ok(kv_restore_start(&b, lease, 0, 1, &page, OKV_RESTORE_KEEP, &op, kv_err));
	kv_gate_wait(&gate);
	ck_assert_uint_eq(fill_table(&b, ops, RECORDS - 1), RECORDS - 1);
	ck_assert_int_eq(kv_publish_start(&b, 7, RECORDS, 1, (uint32_t[]){3}, 0, &none, &err),
			 OKV_E_AGAIN);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	okv_op_release(op);
	for (uint32_t i = 0; i < RECORDS - 1; i++) {
		ck_assert_int_eq(okv_op_wait(ops[i], 60000, &r), 0);
		okv_op_release(ops[i]);
	}
	ck_assert_uint_eq(kv_wrong(&b, 1, 0, &page), 0);
	kv_rank_close(&b);
	okv_lease_release(lease);
	stop();
}
END_TEST

/* Where all spin and nobody sleeps, the session thread has nothing to do. */
START_TEST(a_hot_small_operation_wakes_nobody)
{
	start(WAYS - 1);
	struct okv_lease *lease;
	struct okv_op_result r;
	const uint32_t page = 40;
	ck_assert_int_eq(kv_publish(&a, 1, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &lease), 1);
	uint64_t before = kv_stats(engine).wakeups, done = 0;
	for (; done < 1000; done++) {
		ck_assert_int_eq(kv_restore(&a, lease, 0, 1, &page, OKV_RESTORE_KEEP, &r), 0);
		ck_assert_int_eq(kv_publish(&a, 9, (uint32_t)done, 1, (uint32_t[]){5}, &r), 0);
	}
	/* A machine that is busy with something else may send one to sleep now and then. */
	ck_assert_uint_lt(kv_stats(engine).wakeups - before, done / 10);
	okv_lease_release(lease);
	stop();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("spin");
	TCase *t = tcase_create("spin");
	tcase_set_timeout(t, 240);
	tcase_add_loop_test(t, every_outcome_is_told, 0, WAYS);
	tcase_add_loop_test(t, a_refusal_is_told_while_the_worker_stands_in_a_copy, 0, WAYS);
	tcase_add_loop_test(t, a_stored_publish_is_told_while_the_worker_stands_in_a_copy, 0, WAYS);
	tcase_add_loop_test(t, a_waited_for_operation_does_not_run_any_more, 0, WAYS);
	tcase_add_loop_test(t, ten_thousand_small_operations_leave_no_record, 0, WAYS);
	tcase_add_test(t, a_hot_small_operation_wakes_nobody);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
