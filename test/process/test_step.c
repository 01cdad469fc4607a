/* SPDX-License-Identifier: Apache-2.0 */
/* A step of many requests between processes: leases by id alone, and SIGKILL in the middle. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process/child.h"
#include "support/gate.h"
#include "support/step.h"

#define STEP_SEQ 100u
#define STEP_REQUESTS 40u

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};

/* A process's engine, and its tensors. */
struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_tensors tensors;
	struct kv_step step;
};

static void side_open(struct side *s, const char *socket_path, uint32_t shuffle)
{
	s->engine = kv_engine_connect(socket_path, 0);
	s->ns = kv_groups_open(s->engine, kv_step_groups, 2, 1);
	kv_step_tensors(&s->tensors, s->ns, STEP_REQUESTS);
	kv_step_init(&s->step, &s->tensors, STEP_SEQ, STEP_REQUESTS, shuffle);
}

static void side_close(struct side *s)
{
	kv_step_fini(&s->step);
	kv_tensors_close(&s->tensors);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
}

static void publish(struct side *s)
{
	struct okv_op *op;
	struct okv_op_result r;
	kv_step_fill(&s->step);
	kv_ok(kv_step_publish(&s->step, 0, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.blocks, STEP_REQUESTS * (KV_STEP_BLOCKS + KV_STEP_WINDOW));
	okv_op_release(op);
}

static void restore(struct side *s, bool by_id)
{
	struct okv_op *op;
	struct okv_op_result r;
	kv_tensors_canary(&s->tensors);
	kv_ok(kv_step_restore(&s->step, by_id, 0, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.lease_spent, STEP_REQUESTS);
	okv_op_release(op);
	for (uint32_t i = 0; i < STEP_REQUESTS; i++)
		ck_assert_uint_eq(kv_step_wrong(&s->step, i), 0);
}

/* ---- roles ---- */

static void hear_ids(struct kv_step *step)
{
	char line[40];
	for (uint32_t r = 0; r < STEP_REQUESTS; r++) {
		ck_assert(child_hear(line, sizeof(line)));
		for (uint32_t i = 0; i < 16; i++)
			ck_assert_int_eq(sscanf(line + 2 * i, "%2hhx", &step->ids[r].bytes[i]), 1);
	}
}

/* Stop inside the one restore or publish of a step. */
static void gated(bool publishes)
{
	struct side s;
	struct kv_gate gate;
	struct okv_op *op;
	side_open(&s, child_socket, 3);
	if (publishes)
		kv_step_fill(&s.step);
	else
		hear_ids(&s.step);
	kv_gate_close(&gate, s.tensors.layers[1].base, s.tensors.layers[1].length);
	if (publishes)
		kv_ok(kv_step_publish(&s.step, 0, &op, kv_err));
	else
		kv_ok(kv_step_restore(&s.step, true, 0, &op, kv_err));
	kv_gate_wait(&gate);
	child_say("gated");
	child_stay();
}

START_TEST(role_gated_publish)
{
	gated(true);
}
END_TEST

START_TEST(role_gated_restore)
{
	gated(false);
}
END_TEST

/* A rank that never opens a lease. */
START_TEST(role_rank)
{
	struct side s;
	side_open(&s, child_socket, 4);
	hear_ids(&s.step);
	restore(&s, true);
	struct okv_engine_stats stats;
	okv_stats_get(s.engine, &stats);
	ck_assert_uint_eq(stats.leases, 0);
	side_close(&s);
	child_say("exact");
	child_stay();
}
END_TEST

/* ---- the tests ---- */

static void tell_ids(struct child *c, const struct kv_step *step)
{
	char line[33];
	for (uint32_t r = 0; r < STEP_REQUESTS; r++) {
		for (uint32_t i = 0; i < 16; i++)
			snprintf(line + 2 * i, 3, "%02x", step->ids[r].bytes[i]);
		child_tell(c, line);
	}
}

static bool one_quarantined(const struct okv_manager_status *s)
{
	return s->ops_quarantined == 1 && s->sessions_retained == 1;
}

START_TEST(ranks_restore_from_leases_that_they_never_opened)
{
	struct kv_manager m;
	struct side s;
	struct child ranks[2];
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&s, m.socket_path, 5);
	publish(&s);
	kv_step_lookup(&s.step, 3);
	for (uint32_t i = 0; i < 2; i++) {
		child_start(&ranks[i], "rank", m.socket_path, NULL);
		tell_ids(&ranks[i], &s.step);
	}
	for (uint32_t i = 0; i < 2; i++)
		child_wait(&ranks[i], "exact");
	restore(&s, false); /* the third share of each */
	ck_assert_uint_eq(kv_manager_status(&m).leases, 0);
	for (uint32_t i = 0; i < 2; i++)
		child_end(&ranks[i]);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* Killed in the middle of one operation over 40 leases, or of 80 stretches: all is accounted. */
START_TEST(r3_killed_inside_a_step)
{
	const bool publishes = _i;
	struct kv_manager m;
	struct side s;
	struct child c;
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&s, m.socket_path, 5);
	child_start(&c, publishes ? "gated_publish" : "gated_restore", m.socket_path, NULL);
	if (!publishes) {
		publish(&s);
		kv_step_lookup(&s.step, 1);
		tell_ids(&c, &s.step);
	}
	child_wait(&c, "gated");
	/* Each lease had one share, and the engine that dies spent it. */
	ck_assert_uint_eq(kv_manager_status(&m).leases, 0);
	child_kill(&c, SIGKILL);
	kv_manager_wait(&m, one_quarantined, "the grant quarantined");
	uint64_t bytes = STEP_REQUESTS * (KV_STEP_BLOCKS * okv_namespace_block_bytes(s.ns, 0) +
					  KV_STEP_WINDOW * okv_namespace_block_bytes(s.ns, 1));
	ck_assert_uint_eq(kv_manager_status(&m).bytes_quarantined, bytes);
	kv_step_release(&s.step);
	/* What it published is not visible, and its keys are anyone's; what it read is readable. */
	if (publishes)
		publish(&s);
	kv_step_lookup(&s.step, 1);
	restore(&s, false);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {
		{"gated_publish", role_gated_publish},
		{"gated_restore", role_gated_restore},
		{"rank", role_rank},
	};
	int rc = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("step");
	TCase *t = tcase_create("step");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, ranks_restore_from_leases_that_they_never_opened);
	tcase_add_loop_test(t, r3_killed_inside_a_step, 0, 2);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
