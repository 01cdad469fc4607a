/* SPDX-License-Identifier: Apache-2.0 */
/* A step of many requests is one publish and one restore: bytes, leases, counts and failures. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/step.h"
#include "support/suite.h"

#define REQUESTS 300u
#define BLOCKS (REQUESTS * (KV_STEP_BLOCKS + KV_STEP_WINDOW))

static struct okv_engine *engine;
static struct okv_namespace *ns;
static struct kv_tensors tensors;

static void setup(void)
{
	engine = kv_engine_embedded(64u << 20, 0);
	ns = kv_groups_open(engine, kv_step_groups, 2, 1);
	kv_step_tensors(&tensors, ns, REQUESTS);
}

static void teardown(void)
{
	kv_tensors_close(&tensors);
	okv_namespace_close(ns);
	okv_engine_close(engine);
}

static struct okv_op_result end(struct okv_op *op, int status)
{
	struct okv_op_result r;
	int rc = okv_op_wait(op, 60000, &r);
	ck_assert_msg(rc == status, "%s: %s", okv_status_name(rc), r.text);
	return r;
}

/* Publish the whole step and forget its pages. */
static void store(struct kv_step *s)
{
	struct okv_op *op;
	kv_tensors_canary(&tensors);
	kv_step_fill(s);
	kv_ok(kv_step_publish(s, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).blocks, s->requests * (KV_STEP_BLOCKS + KV_STEP_WINDOW));
	okv_op_release(op);
	kv_tensors_canary(&tensors);
}

/* Other pages than those it was published from. */
static void again(struct kv_step *s, uint64_t seq, uint32_t requests)
{
	kv_step_init(s, &tensors, seq, requests, 77);
}

START_TEST(three_hundred_requests_are_two_operations)
{
	struct kv_step from, to;
	struct okv_op *op;
	struct okv_stretch_result each[2 * REQUESTS];
	kv_step_init(&from, &tensors, 100, REQUESTS, 1);
	kv_step_fill(&from);
	kv_ok(kv_step_publish(&from, 0, &op, kv_err));
	struct okv_op_result r = end(op, 0);
	ck_assert_uint_eq(r.blocks, BLOCKS);
	ck_assert_uint_eq(r.present + r.in_progress + r.not_stored, 0);
	ck_assert_uint_eq(r.bytes, REQUESTS * (KV_STEP_BLOCKS * 8192 + KV_STEP_WINDOW * 1024));
	ck_assert_int_eq(okv_op_stretches(op, 0, 2 * REQUESTS, each), 0);
	for (uint32_t i = 0; i < 2 * REQUESTS; i++) {
		ck_assert_int_eq(each[i].status, 0);
		ck_assert_uint_eq(each[i].blocks, i % 2 ? KV_STEP_WINDOW : KV_STEP_BLOCKS);
	}
	okv_op_release(op);

	kv_tensors_canary(&tensors);
	again(&to, 100, REQUESTS);
	kv_step_lookup(&to, 2);
	for (uint32_t round = 0; round < 2; round++) {
		kv_tensors_canary(&tensors);
		kv_ok(kv_step_restore(&to, round == 1, 0, &op, kv_err));
		for (uint32_t layer = 0; layer < 3; layer++)
			ck_assert_int_eq(okv_op_wait_layer(op, layer, 60000), 0);
		r = end(op, 0);
		ck_assert_uint_eq(r.blocks, BLOCKS);
		ck_assert_uint_eq(r.lease_spent, REQUESTS);
		ck_assert_int_eq(okv_op_stretches(op, 0, 2 * REQUESTS, each), 0);
		ck_assert_uint_eq(each[2 * REQUESTS - 1].blocks, KV_STEP_WINDOW);
		for (uint32_t i = 0; i < REQUESTS; i++)
			ck_assert_uint_eq(kv_step_wrong(&to, i), 0);
		okv_op_release(op);
	}
	/* Both shares of every lease are spent. */
	kv_ok(kv_step_restore(&to, true, 0, &op, kv_err));
	end(op, OKV_E_NOENT);
	ck_assert_int_eq(okv_op_stretches(op, 0, 2 * REQUESTS, each), 0);
	for (uint32_t i = 0; i < 2 * REQUESTS; i++)
		ck_assert_int_eq(each[i].status, OKV_E_NOENT);
	okv_op_release(op);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

START_TEST(groups_may_follow_in_any_order)
{
	struct kv_step from, to;
	struct okv_op *op;
	kv_step_init(&from, &tensors, 100, 40, 1);
	store(&from);
	again(&to, 100, 40);
	kv_step_lookup(&to, 1);
	/* The window stretches of all requests, then the full ones backwards. */
	struct okv_restore_group order[80];
	for (uint32_t i = 0; i < 40; i++) {
		order[i] = to.restore[2 * i + 1];
		order[i].lease = to.leases[i];
		order[79 - i] = to.restore[2 * i];
		order[79 - i].lease_id = &to.ids[i];
	}
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = 80;
	o.groups = order;
	kv_ok(okv_restore_start(tensors.binding, NULL, &o, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).lease_spent, 40);
	okv_op_release(op);
	for (uint32_t i = 0; i < 40; i++)
		ck_assert_uint_eq(kv_step_wrong(&to, i), 0);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

/* One lease has ended: nothing is copied, no share is spent, and the result says which. */
START_TEST(one_ended_lease_costs_the_others_nothing)
{
	enum { GONE = 7 };
	const bool by_id = _i;
	struct kv_step from, to;
	struct okv_op *op;
	struct okv_stretch_result each[40];
	kv_step_init(&from, &tensors, 100, 20, 1);
	store(&from);
	again(&to, 100, 20);
	kv_step_lookup(&to, 1);
	const struct kv_blocks one = kv_step_blocks(&to, GONE, 0);
	ck_assert_int_eq(kv_blocks_restore(&tensors, to.leases[GONE], &one, 1, NULL), 0);
	kv_tensors_canary(&tensors);

	kv_ok(kv_step_restore(&to, by_id, 0, &op, kv_err));
	struct okv_op_result r = end(op, OKV_E_NOENT);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_uint_eq(r.blocks + r.bytes, 0);
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 0), OKV_E_NOENT);
	ck_assert_int_eq(okv_op_stretches(op, 0, 40, each), 0);
	for (uint32_t i = 0; i < 40; i++) {
		ck_assert_int_eq(each[i].status, i / 2 == GONE ? OKV_E_NOENT : 0);
		ck_assert_uint_eq(each[i].blocks, 0);
	}
	okv_op_release(op);
	ck_assert_uint_eq(kv_tensors_stray(&tensors, NULL, 0), 0);

	/* Again without it: every other lease has its share still. */
	memmove(&to.restore[2 * GONE], &to.restore[2 * GONE + 2],
		(38 - 2 * GONE) * sizeof(to.restore[0]));
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = 38;
	o.groups = to.restore;
	kv_ok(okv_restore_start(tensors.binding, NULL, &o, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).lease_spent, 19);
	okv_op_release(op);
	for (uint32_t i = 0; i < 20; i++)
		if (i != GONE)
			ck_assert_uint_eq(kv_step_wrong(&to, i), 0);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

/* A range that a named lease does not hold is refused by the Manager; a handle knows it here. */
START_TEST(ranges_count_in_the_sequence)
{
	struct kv_step from, to;
	struct okv_op *op = NULL;
	struct okv_stretch_result each[6];
	kv_step_init(&from, &tensors, 100, 3, 1);
	store(&from);
	again(&to, 100, 3);
	kv_step_lookup(&to, 1);
	to.restore[3].first = 0; /* the lease holds the window from block 1 on */
	kv_ok(kv_step_restore(&to, true, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, OKV_E_INVAL).lease_spent, 0);
	ck_assert_int_eq(okv_op_stretches(op, 0, 6, each), 0);
	for (uint32_t i = 0; i < 6; i++)
		ck_assert_int_eq(each[i].status, i == 3 ? OKV_E_INVAL : 0);
	okv_op_release(op);
	ck_assert_int_eq(kv_step_restore(&to, false, 0, &op, NULL), OKV_E_INVAL);
	to.restore[3].first = 1;
	to.restore[2].lease = to.leases[1];
	to.restore[2].lease_id = &to.ids[1];
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = 6;
	o.groups = to.restore;
	ck_assert_int_eq(okv_restore_start(tensors.binding, NULL, &o, &op, NULL), OKV_E_INVAL);
	to.restore[2].lease = NULL;
	to.restore[2].lease_id = NULL;
	ck_assert_int_eq(okv_restore_start(tensors.binding, NULL, &o, &op, NULL), OKV_E_INVAL);
	/* The lease of the call is that of the stretches that name none. */
	kv_ok(okv_restore_start(tensors.binding, to.leases[1], &o, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).lease_spent, 3);
	ck_assert_int_eq(okv_op_stretches(op, 0, 7, each), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_stretches(op, 6, 1, each), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_stretches(op, UINT32_MAX, 2, each), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_stretches(op, 0, 1, NULL), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_stretches(NULL, 0, 1, each), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_stretches(op, 6, 0, NULL), 0);
	okv_op_release(op);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(kv_step_wrong(&to, i), 0);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

START_TEST(a_share_is_spent_once_and_kept_if_all_stretches_keep_it)
{
	struct kv_step from, to;
	struct okv_op *op;
	kv_step_init(&from, &tensors, 100, 4, 1);
	store(&from);
	again(&to, 100, 4);
	kv_step_lookup(&to, 1);
	to.restore[0].flags = to.restore[1].flags = OKV_RESTORE_KEEP; /* kept */
	to.restore[2].flags = OKV_RESTORE_KEEP; /* the other stretch of this lease spends */
	kv_ok(kv_step_restore(&to, true, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).lease_spent, 3);
	okv_op_release(op);
	/* What is left is the lease of request 0. */
	struct okv_stretch_result each[8];
	kv_ok(kv_step_restore(&to, true, OKV_RESTORE_KEEP, &op, kv_err));
	end(op, OKV_E_NOENT);
	ck_assert_int_eq(okv_op_stretches(op, 0, 8, each), 0);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_int_eq(each[i].status, i < 2 ? 0 : OKV_E_NOENT);
	okv_op_release(op);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

/* Requests with the same prefix in one step, from the same pages. */
START_TEST(a_key_of_an_earlier_stretch_is_stored_once)
{
	struct kv_step from, to;
	struct okv_op *op;
	struct okv_stretch_result each[6];
	kv_step_init(&from, &tensors, 100, 3, 1);
	kv_step_fill(&from);
	from.publish[2] = from.publish[0];
	from.publish[4] = from.publish[0];
	from.publish[4].pages = from.pages[0] + KV_STEP_BLOCKS; /* equal bytes elsewhere */
	const struct kv_blocks copy = {.count = KV_STEP_BLOCKS, .pages = from.publish[4].pages};
	kv_tensors_fill(&tensors, 100, &copy);
	kv_ok(kv_step_publish(&from, 0, &op, kv_err));
	struct okv_op_result r = end(op, 0);
	ck_assert_uint_eq(r.blocks, KV_STEP_BLOCKS + 3 * KV_STEP_WINDOW);
	ck_assert_uint_eq(r.in_progress, 2 * KV_STEP_BLOCKS);
	ck_assert_int_eq(okv_op_stretches(op, 0, 6, each), 0);
	ck_assert_uint_eq(each[0].blocks, KV_STEP_BLOCKS);
	ck_assert_uint_eq(each[2].in_progress, KV_STEP_BLOCKS);
	ck_assert_uint_eq(each[4].in_progress, KV_STEP_BLOCKS);
	okv_op_release(op);
	kv_ok(kv_step_publish(&from, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).present, 3 * (KV_STEP_BLOCKS + KV_STEP_WINDOW));
	okv_op_release(op);
	again(&to, 100, 1);
	kv_step_lookup(&to, 1);
	kv_tensors_canary(&tensors);
	kv_ok(kv_step_restore(&to, false, 0, &op, kv_err));
	end(op, 0);
	okv_op_release(op);
	ck_assert_uint_eq(kv_step_wrong(&to, 0), 0);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

/* Two keys for one page: legal, since the page is only read. */
START_TEST(stretches_of_a_publish_may_share_pages)
{
	struct kv_step from;
	struct okv_op *op = NULL;
	uint32_t *pages;
	kv_step_init(&from, &tensors, 100, 2, 1);
	from.publish[2].pages = from.publish[0].pages;
	kv_ok(kv_step_publish(&from, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).blocks, 2 * (KV_STEP_BLOCKS + KV_STEP_WINDOW));
	okv_op_release(op);
	/* Not twice in one stretch, and never in a restore. */
	pages = from.pages[0];
	kv_step_lookup(&from, 1);
	from.restore[2].pages = pages;
	ck_assert_int_eq(kv_step_restore(&from, false, 0, &op, NULL), OKV_E_INVAL);
	pages[2] = pages[0];
	ck_assert_int_eq(kv_step_publish(&from, 0, &op, NULL), OKV_E_INVAL);
	kv_step_fini(&from);
}
END_TEST

START_TEST(limits_are_named)
{
	enum { MOST = OKV_MAX_OPERATION_BLOCKS / OKV_MAX_BLOCKS };
	struct okv_publish_group *g = calloc(OKV_MAX_STRETCHES + 1, sizeof(*g));
	uint8_t *keys = kv_group_keys(1, 0, 0, OKV_MAX_BLOCKS);
	const uint32_t page = 0;
	uint32_t *pages = calloc(OKV_MAX_BLOCKS, sizeof(*pages));
	struct okv_publish_options o;
	struct okv_op *op = NULL;
	for (uint32_t i = 0; i <= OKV_MAX_STRETCHES; i++)
		g[i] = (struct okv_publish_group){.keys = {.count = 1,
							   .key_bytes = KV_KEY_BYTES,
							   .keys = keys + (size_t)i * KV_KEY_BYTES},
						  .tokens = 16,
						  .pages = &page};
	okv_publish_options_init(&o);
	o.groups = g;
	o.group_count = OKV_MAX_STRETCHES + 1;
	ck_assert_int_eq(okv_publish_start(tensors.binding, &o, &op, NULL), OKV_E_INVAL);
	o.group_count = OKV_MAX_STRETCHES;
	kv_ok(okv_publish_start(tensors.binding, &o, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).blocks, OKV_MAX_STRETCHES);
	okv_op_release(op);
	o.group_count = MOST + 1;
	for (uint32_t i = 0; i <= MOST; i++)
		g[i] = (struct okv_publish_group){.keys = {.count = i < MOST ? OKV_MAX_BLOCKS : 1,
							   .key_bytes = KV_KEY_BYTES,
							   .keys = keys},
						  .tokens = (i < MOST ? OKV_MAX_BLOCKS : 1) * 16,
						  .pages = pages};
	ck_assert_int_eq(okv_publish_start(tensors.binding, &o, &op, NULL), OKV_E_LIMIT);
	free(pages);
	free(keys);
	free(g);
}
END_TEST

/* What the budgets refuse is refused whole, with a name. */
START_TEST(budgets_refuse_the_whole_step)
{
	enum { STEP = 8, STEP_BLOCKS = STEP * (KV_STEP_BLOCKS + KV_STEP_WINDOW) };
	const uint64_t most = STEP_BLOCKS / 2 * 32;
	struct kv_local l;
	struct okv_manager_options opts = kv_local_options(16u << 20);
	struct kv_step step;
	struct kv_tensors t;
	struct okv_op *op;
	struct okv_stretch_result each[2 * STEP];
	const bool session = _i;
	if (session)
		opts.session_plan_bytes = most;
	else
		opts.operation_plan_bytes = most;
	kv_local_start(&l, &opts, 0, &(struct kv_shape){.pages = 4});
	struct okv_namespace *own = kv_groups_open(l.engine, kv_step_groups, 2, 1);
	kv_step_tensors(&t, own, STEP);
	kv_step_init(&step, &t, 100, STEP, 1);
	kv_step_fill(&step);
	kv_ok(kv_step_publish(&step, 0, &op, kv_err));
	end(op, session ? OKV_E_AGAIN : OKV_E_LIMIT);
	ck_assert_int_eq(okv_op_stretches(op, 0, 2 * STEP, each), 0);
	for (uint32_t i = 0; i < 2 * STEP; i++)
		ck_assert_uint_eq(each[i].blocks + each[i].present + (uint32_t)each[i].status, 0);
	okv_op_release(op);
	/* A request at a time fits; then the restore of all is too large again. */
	struct kv_step one = step;
	for (uint32_t r = 0; r < STEP; r++) {
		one.publish = step.publish + 2 * r;
		one.requests = 1;
		kv_ok(kv_step_publish(&one, 0, &op, kv_err));
		end(op, 0);
		okv_op_release(op);
	}
	kv_step_lookup(&step, 1);
	kv_ok(kv_step_restore(&step, true, OKV_RESTORE_KEEP, &op, kv_err));
	ck_assert_uint_eq(end(op, session ? OKV_E_AGAIN : OKV_E_LIMIT).lease_spent, 0);
	okv_op_release(op);
	kv_tensors_canary(&t);
	one = step;
	one.requests = 2;
	kv_ok(kv_step_restore(&one, true, 0, &op, kv_err));
	ck_assert_uint_eq(end(op, 0).lease_spent, 2);
	okv_op_release(op);
	for (uint32_t r = 0; r < 2; r++)
		ck_assert_uint_eq(kv_step_wrong(&step, r), 0);
	kv_step_fini(&step);
	kv_tensors_close(&t);
	okv_namespace_close(own);
	kv_local_stop(&l);
}
END_TEST

/* ---- readiness and cancels ---- */

/* The last stretch's page of one layer does not move: earlier layers are ready, this one is not. */
START_TEST(a_layer_waits_for_its_last_stretch)
{
	struct kv_step from, to;
	struct okv_op *op;
	struct kv_gate gate;
	kv_step_init(&from, &tensors, 100, 60, 1);
	store(&from);
	again(&to, 100, 60);
	kv_step_lookup(&to, 1);
	/* Layers by index: 0 and 1 are full (order 0 and 2), 2 is the window (order 1). The whole
	 * tensor of layer 2 is behind the gate. */
	kv_gate_close(&gate, tensors.layers[2].base, tensors.layers[2].length);
	kv_ok(kv_step_restore(&to, true, 0, &op, kv_err));
	ck_assert_int_eq(okv_op_wait_layer(op, 0, 60000), 0);
	for (uint32_t r = 0; r < 60; r++) {
		const struct kv_blocks b = kv_step_blocks(&to, r, 0);
		ck_assert_uint_eq(kv_layer_wrong(&tensors, 100 + r, &b, 0), 0);
	}
	kv_gate_wait(&gate);
	ck_assert_int_eq(okv_op_wait_layer(op, 2, 0), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_stretches(op, 0, 1, &(struct okv_stretch_result){0}),
			 OKV_E_RUNNING);
	if (_i)
		okv_op_cancel(op);
	kv_gate_open(&gate);
	int rc = okv_op_wait(op, 60000, NULL);
	ck_assert_msg(rc == 0 || (_i && rc == OKV_E_CANCELLED), "%s", okv_status_name(rc));
	okv_op_release(op);
	for (uint32_t r = 0; r < 60 && !rc; r++)
		ck_assert_uint_eq(kv_step_wrong(&to, r), 0);
	/* Every page is free again, whichever way it ended. */
	kv_step_release(&to);
	kv_step_lookup(&to, 1);
	kv_ok(kv_step_restore(&to, false, 0, &op, kv_err));
	end(op, 0);
	okv_op_release(op);
	for (uint32_t r = 0; r < 60; r++)
		ck_assert_uint_eq(kv_step_wrong(&to, r), 0);
	kv_step_fini(&from);
	kv_step_fini(&to);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stretches");
	TCase *t = tcase_create("stretches");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, three_hundred_requests_are_two_operations);
	tcase_add_test(t, groups_may_follow_in_any_order);
	tcase_add_loop_test(t, one_ended_lease_costs_the_others_nothing, 0, 2);
	tcase_add_test(t, ranges_count_in_the_sequence);
	tcase_add_test(t, a_share_is_spent_once_and_kept_if_all_stretches_keep_it);
	tcase_add_test(t, a_key_of_an_earlier_stretch_is_stored_once);
	tcase_add_test(t, stretches_of_a_publish_may_share_pages);
	tcase_add_test(t, limits_are_named);
	tcase_add_loop_test(t, a_layer_waits_for_its_last_stretch, 0, 2);
	tcase_add_loop_test(t, budgets_refuse_the_whole_step, 0, 2);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
