/* SPDX-License-Identifier: Apache-2.0 */
/* The Manager against records moved by hand: answers, grants, parts, ends, budgets. */
#include "fake_engine.h"
#include "manager/manager_private.h"
#include "support/suite.h"

static struct fixture f;
static struct fake e;

static void setup_with(void (*change)(struct okv_manager_options *))
{
	struct okv_manager_options opts;
	fixture_options(&opts);
	if (change)
		change(&opts);
	fixture_start(&f, &opts);
	fake_open(&e, &f);
}

static void setup(void)
{
	setup_with(NULL);
}

static void teardown(void)
{
	fake_close(&e);
	fixture_end(&f, 0);
}

/* ---- lookups and leases ---- */

START_TEST(a_miss_has_no_lease)
{
	setup();
	struct okw_lookup_reply reply = do_lookup(&e, 1, 4, 0);
	ck_assert_uint_eq(reply.tokens, 0);
	ck_assert_uint_eq(reply.lease_slot, OKW_LEASES);
	ck_assert_uint_eq(fixture_status(&f).leases, 0);
	teardown();
}
END_TEST

START_TEST(a_published_block_is_found_and_restored_from_the_same_bytes)
{
	struct okw_plan_head head;
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	struct okw_transfer_reply reply = transfer_reply(&e, 3);
	ck_assert_uint_eq(rec(&e, 3)->reply_bytes,
			  sizeof(reply) + sizeof(struct okw_stretch_reply));
	ck_assert_uint_eq(reply.blocks, 4);
	ck_assert_uint_eq(reply.part_total, 1);
	ck_assert_uint_eq(do_lookup(&e, 1, 4, OKW_REQUEST_PEEK).tokens, 0);
	claim(&e, 3);
	struct okw_plan_entry *stored = take_part(&e, 3, &head);
	ck_assert_uint_eq(head.entry_count, 4);
	ck_assert_uint_eq(head.groups_done, 1);
	for (uint32_t k = 0; k < 4; k++) {
		ck_assert_uint_eq(stored[k].ordinal, k);
		ck_assert_uint_eq(stored[k].group, 0);
		ck_assert_uint_eq(stored[k].bytes, BLOCK_BYTES);
		ck_assert_uint_eq(stored[k].arena, 0);
	}
	drain(&e, 3, 0);
	wait_one(&e, 3, OKW_REAPED);
	free_record(&e, 3);

	struct okw_lookup_reply hit = do_lookup(&e, 1, 4, 0);
	ck_assert_uint_eq(hit.tokens, 64);
	ck_assert_uint_lt(hit.lease_slot, OKW_LEASES);
	send_restore(&e, 4, &hit, 4, 0);
	wait_one(&e, 4, OKW_GRANTED);
	ck_assert_uint_eq(transfer_reply(&e, 4).lease_spent, 1);
	claim(&e, 4);
	struct okw_plan_entry *sources = take_part(&e, 4, &head);
	ck_assert_uint_eq(head.entry_count, 4);
	ck_assert_mem_eq(sources, stored, 4 * sizeof(*sources));
	drain(&e, 4, 0);
	wait_one(&e, 4, OKW_REAPED);
	ck_assert_int_eq(rec(&e, 4)->status, 0);
	free_record(&e, 4);
	free(sources);
	free(stored);
	ck_assert_uint_eq(fixture_status(&f).ops_reaped, 2);
	teardown();
}
END_TEST

START_TEST(publishing_what_is_there_is_done_at_once)
{
	setup();
	do_publish(&e, 1, 4);
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, 0);
	ck_assert_uint_eq(transfer_reply(&e, 3).present, 4);
	ck_assert_uint_eq(transfer_reply(&e, 3).blocks, 0);
	free_record(&e, 3);
	teardown();
}
END_TEST

/* S21, R6 */
START_TEST(a_failed_publish_is_never_visible)
{
	setup();
	send_publish(&e, 3, 1, 4);
	run_to_end(&e, 3, OKV_E_COPY);
	ck_assert_uint_eq(do_lookup(&e, 1, 4, 0).tokens, 0);
	ck_assert_uint_eq(fixture_status(&f).bytes_used, 0);
	teardown();
}
END_TEST

START_TEST(a_released_lease_ends_after_what_was_submitted_before)
{
	setup();
	do_publish(&e, 1, 2);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0);
	ck_assert_uint_eq(fixture_status(&f).leases, 1);
	/* Announced, then released, before the Manager is told of either. */
	struct request r;
	request_init(&r, &e, OKW_OP_RESTORE);
	request_part(&r, &hit, 0, 2, OKW_PART_KEEP);
	submit_raw(&e, 3, &r, false);
	struct okw_control *control = e.channel.control;
	atomic_fetch_or(&control->submit.dirty[0], 1ull << 3);
	atomic_fetch_or(&control->lease_release[hit.lease_slot / 64],
			1ull << (hit.lease_slot % 64));
	oki_doorbell_wake(&control->retire, e.channel.manager_doorbell);
	run_to_end(&e, 3, 0);
	WAIT_STATUS(&f, leases, 0);
	ck_assert_uint_eq(fixture_status(&f).bytes_pinned, 0);
	teardown();
}
END_TEST

START_TEST(a_lease_opens_in_another_session)
{
	struct fake other;
	struct request r;
	struct okw_lookup_reply opened;
	setup();
	fake_open(&other, &f);
	do_publish(&e, 1, 2);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0);
	request_init(&r, &other, OKW_OP_LEASE_OPEN);
	memcpy(r.head.lease_id, hit.lease_id, sizeof(hit.lease_id));
	submit(&other, 5, &r);
	wait_one(&other, 5, OKW_DONE);
	ck_assert_int_eq(rec(&other, 5)->status, 0);
	memcpy(&opened, reply_of(&other, 5), sizeof(opened));
	free_record(&other, 5);
	ck_assert_uint_eq(opened.tokens, 32);
	send_restore(&other, 6, &opened, 2, 0);
	run_to_end(&other, 6, 0);
	fake_close(&other);
	teardown();
}
END_TEST

START_TEST(an_unknown_lease_is_refused_and_the_session_lives)
{
	struct okw_lookup_reply none = {.lease_slot = 7};
	setup();
	send_restore(&e, 3, &none, 1, 0);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_NOENT);
	ck_assert_uint_gt(strlen(rec(&e, 3)->text), 0);
	free_record(&e, 3);
	do_lookup(&e, 1, 1, 0);
	teardown();
}
END_TEST

/* S19 */
START_TEST(a_restore_of_no_blocks_is_granted_without_parts)
{
	setup();
	do_publish(&e, 1, 2);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0);
	send_restore(&e, 3, &hit, 0, 0);
	wait_one(&e, 3, OKW_GRANTED);
	ck_assert_uint_eq(transfer_reply(&e, 3).part_total, 0);
	ck_assert_uint_eq(oki_parts_load(rec(&e, 3)).offered, 0);
	run_to_end(&e, 3, 0);
	teardown();
}
END_TEST

/* ---- parts and the bank ---- */

static void tiny_parts(struct okv_manager_options *opts)
{
	opts->part_bytes = sizeof(struct okw_plan_head) + 2 * sizeof(struct okw_plan_entry);
}

START_TEST(parts_follow_each_other_two_at_a_time)
{
	struct okw_plan_head head;
	uint32_t part, seen = 0;
	setup_with(tiny_parts);
	send_publish(&e, 3, 1, 7);
	wait_one(&e, 3, OKW_GRANTED);
	ck_assert_uint_eq(transfer_reply(&e, 3).part_total, 4);
	ck_assert_uint_eq(oki_parts_load(rec(&e, 3)).offered, 2);
	claim(&e, 3);
	/* Parts that are not consumed hold their extents. */
	ring_retire(&e, 3);
	do_lookup(&e, 100, 1, 0);
	ck_assert_uint_eq(oki_parts_load(rec(&e, 3)).offered, 2);
	for (part = 0; part < 4; part++) {
		while (oki_parts_load(rec(&e, 3)).offered <= part)
			sched_yield();
		struct okw_plan_entry *entries = take_part(&e, 3, &head);
		for (uint32_t k = 0; k < head.entry_count; k++)
			ck_assert_uint_eq(entries[k].ordinal, seen++);
		ck_assert_uint_eq(head.groups_done, part == 3);
		free(entries);
	}
	ck_assert_uint_eq(seen, 7);
	drain(&e, 3, 0);
	wait_one(&e, 3, OKW_REAPED);
	free_record(&e, 3);
	ck_assert_uint_eq(do_lookup(&e, 1, 7, OKW_REQUEST_PEEK).tokens, 7 * 16);
	teardown();
}
END_TEST

START_TEST(groups_are_done_in_the_part_that_ends_them)
{
	struct okw_plan_head head;
	struct request r;
	setup_with(tiny_parts);
	fake_bind(&e, "two groups", 2);
	request_init(&r, &e, OKW_OP_PUBLISH);
	request_group(&r, 0, 0, 1, 8);
	request_group(&r, 1, 0, 3, 8);
	request_keys(&r, 1, 1);
	request_keys(&r, 1, 3);
	submit(&e, 3, &r);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	free(take_part(&e, 3, &head));
	ck_assert_uint_eq(head.groups_done, 1);
	free(take_part(&e, 3, &head));
	ck_assert_uint_eq(head.groups_done, 3);
	drain(&e, 3, 0);
	wait_one(&e, 3, OKW_REAPED);
	free_record(&e, 3);
	teardown();
}
END_TEST

static void huge_plans(struct okv_manager_options *opts)
{
	opts->memory_bytes = 16u << 20;
}

/* Two groups of 4,096 blocks: two parts of 256 KiB, half the bank. */
static void send_huge(uint32_t i, uint64_t first_key)
{
	struct request r;
	request_init(&r, &e, OKW_OP_PUBLISH);
	request_group(&r, 0, 0, OKW_MAX_BLOCKS, 8);
	request_group(&r, 1, 0, OKW_MAX_BLOCKS, 8);
	request_keys(&r, first_key, OKW_MAX_BLOCKS);
	request_keys(&r, first_key, OKW_MAX_BLOCKS);
	submit(&e, i, &r);
}

/* R10 */
START_TEST(a_full_bank_makes_grants_wait_in_order)
{
	struct okw_plan_head head;
	setup_with(huge_plans);
	fake_bind(&e, "two groups", 2);
	send_huge(3, 1u << 20);
	send_huge(6, 2u << 20);
	wait_one(&e, 3, OKW_GRANTED);
	wait_one(&e, 6, OKW_GRANTED);
	send_huge(9, 3u << 20);
	send_huge(12, 4u << 20);
	send_huge(15, 5u << 20);
	WAIT_STATUS(&f, ops_preparing, 3);
	/* Waiting ones can be cancelled; nothing of them is kept. */
	cancel(&e, 12);
	wait_one(&e, 12, OKW_DONE);
	ck_assert_int_eq(rec(&e, 12)->status, OKV_E_CANCELLED);
	free_record(&e, 12);
	ck_assert_uint_eq(state_of(&e, 9), OKW_PREPARING);

	claim(&e, 3);
	free(take_part(&e, 3, &head));
	free(take_part(&e, 3, &head));
	/* Its last part is consumed: the space goes to the first that waits, copies still run. */
	wait_one(&e, 9, OKW_GRANTED);
	ck_assert_uint_eq(state_of(&e, 15), OKW_PREPARING);
	cancel(&e, 6);
	wait_one(&e, 6, OKW_REVOKED);
	wait_one(&e, 15, OKW_GRANTED);
	drain(&e, 3, 0);
	wait_one(&e, 3, OKW_REAPED);
	teardown();
}
END_TEST

/* ---- cancel and expiry ---- */

/* S17 */
START_TEST(cancel_before_the_claim_revokes)
{
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	cancel(&e, 3);
	wait_one(&e, 3, OKW_REVOKED);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_CANCELLED);
	uint64_t tag = oki_tag_load(rec(&e, 3));
	ck_assert(!oki_move(rec(&e, 3), &tag, OKW_ACTIVE, OKI_MOVER_ENGINE));
	free_record(&e, 3);
	ck_assert_uint_eq(fixture_status(&f).bytes_used, 0);
	ck_assert_uint_eq(fixture_status(&f).ops_revoked, 1);
	teardown();
}
END_TEST

START_TEST(cancel_after_the_claim_closes_the_parts)
{
	struct okw_plan_head head;
	uint32_t part;
	setup_with(tiny_parts);
	send_publish(&e, 3, 1, 7);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	free(take_part(&e, 3, &head));
	cancel(&e, 3);
	while (!oki_parts_load(rec(&e, 3)).closed)
		sched_yield();
	ck_assert(!oki_parts_claim(rec(&e, 3), &part));
	ck_assert_uint_eq(state_of(&e, 3), OKW_ACTIVE);
	ck_assert_uint_ne(fixture_status(&f).bytes_used, 0);
	drain(&e, 3, OKV_E_CANCELLED);
	wait_one(&e, 3, OKW_REAPED);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_CANCELLED);
	free_record(&e, 3);
	ck_assert_uint_eq(fixture_status(&f).bytes_used, 0);
	teardown();
}
END_TEST

static void short_lease(struct okv_manager_options *opts)
{
	opts->lease_ttl_ms = 1;
}

START_TEST(an_unclaimed_grant_expires)
{
	setup_with(short_lease);
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_REVOKED);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_CANCELLED);
	free_record(&e, 3);
	teardown();
}
END_TEST

/* ---- budgets ---- */

static void one_permit(struct okv_manager_options *opts)
{
	opts->restore_permits = 1;
}

START_TEST(restore_permits_are_per_device_and_refuse_before_the_lease)
{
	setup_with(one_permit);
	do_publish(&e, 1, 2);
	struct okw_lookup_reply first = do_lookup(&e, 1, 2, 0);
	struct okw_lookup_reply second = do_lookup(&e, 1, 2, 0);
	send_restore(&e, 3, &first, 2, 0);
	wait_one(&e, 3, OKW_GRANTED);
	send_restore(&e, 4, &second, 2, 0);
	wait_one(&e, 4, OKW_DONE);
	ck_assert_int_eq(rec(&e, 4)->status, OKV_E_AGAIN);
	free_record(&e, 4);
	/* Unregistering gives no permit back while the operation lives. */
	const struct okw_bind_reply bound = {.binding_id = e.binding_id};
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_UNBIND, &bound, sizeof(bound), NULL, 0), 0);
	fake_bind(&e, "model", 1);
	ck_assert_uint_ne(e.binding_id, bound.binding_id);
	send_restore(&e, 4, &second, 2, 0);
	wait_one(&e, 4, OKW_DONE);
	ck_assert_int_eq(rec(&e, 4)->status, OKV_E_AGAIN);
	free_record(&e, 4);
	run_to_end(&e, 3, 0);
	send_restore(&e, 4, &second, 2, 0);
	run_to_end(&e, 4, 0);
	teardown();
}
END_TEST

static void small_operation(struct okv_manager_options *opts)
{
	opts->operation_plan_bytes = sizeof(struct okw_plan_head) + sizeof(struct okw_plan_entry);
}

START_TEST(a_plan_above_the_limit_does_not_spend_the_lease)
{
	setup_with(small_operation);
	do_publish(&e, 1, 1);
	do_publish(&e, 2, 1);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0);
	ck_assert_uint_eq(hit.tokens, 32);
	send_restore(&e, 3, &hit, 2, 0);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_LIMIT);
	free_record(&e, 3);
	send_restore(&e, 3, &hit, 1, 0);
	run_to_end(&e, 3, 0);
	teardown();
}
END_TEST

static void small_session(struct okv_manager_options *opts)
{
	opts->session_plan_bytes = sizeof(struct okw_plan_head) + sizeof(struct okw_plan_entry);
}

START_TEST(the_session_budget_spends_the_lease_and_says_so)
{
	setup_with(small_session);
	do_publish(&e, 1, 1);
	do_publish(&e, 2, 1);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0);
	send_restore(&e, 3, &hit, 2, OKW_PART_KEEP);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_AGAIN);
	ck_assert_uint_eq(transfer_reply(&e, 3).lease_spent, 0);
	free_record(&e, 3);
	send_restore(&e, 3, &hit, 2, 0);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_SPENT);
	ck_assert_uint_eq(transfer_reply(&e, 3).lease_spent, 1);
	free_record(&e, 3);
	send_restore(&e, 3, &hit, 1, 0);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_NOENT);
	free_record(&e, 3);
	send_publish(&e, 4, 10, 2);
	wait_one(&e, 4, OKW_DONE);
	ck_assert_int_eq(rec(&e, 4)->status, OKV_E_AGAIN);
	free_record(&e, 4);
	teardown();
}
END_TEST

/* ---- hints ---- */

START_TEST(a_lost_hint_is_made_up_for_while_records_are_in_use)
{
	struct request r;
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	request_init(&r, &e, OKW_OP_LOOKUP);
	request_group(&r, 0, 0, 1, 8);
	request_keys(&r, 1, 1);
	submit_raw(&e, 4, &r, false);
	wait_one(&e, 4, OKW_DONE);
	free_record(&e, 4);
	/* The same for Drained: the record counts, not the bell. */
	claim(&e, 3);
	uint64_t tag = oki_tag_load(rec(&e, 3));
	rec(&e, 3)->engine_status = OKV_E_CANCELLED;
	ck_assert(oki_move(rec(&e, 3), &tag, OKW_DRAINED, OKI_MOVER_ENGINE));
	wait_one(&e, 3, OKW_REAPED);
	free_record(&e, 3);
	teardown();
}
END_TEST

START_TEST(a_spinning_engine_gets_no_bell)
{
	struct request r;
	setup();
	struct okw_doorbell *bell = &e.channel.control->engine;
	request_init(&r, &e, OKW_OP_LOOKUP);
	request_group(&r, 0, 0, 1, 8);
	request_keys(&r, 1, 1);
	submit_raw(&e, 4, &r, false);
	atomic_store(&rec(&e, 4)->engine_flags, OKW_ENGINE_SPINNING);
	oki_doorbell_ring(&e.channel.control->submit, e.channel.manager_doorbell, 4);
	while (state_of(&e, 4) != OKW_DONE)
		sched_yield();
	free_record(&e, 4);
	/* The next answer comes after whatever the first one still did. */
	do_lookup(&e, 1, 1, 0);
	ck_assert_uint_eq(atomic_load(&bell->dirty[0]) & 1u << 4, 0);
	teardown();
}
END_TEST

/* P12 */
START_TEST(with_every_record_free_no_timer_runs)
{
	setup();
	do_publish(&e, 1, 2);
	do_lookup(&e, 1, 2, OKW_REQUEST_PEEK);
	uint64_t deadline = oki_deadline_ns(PATIENCE_MS);
	while (!atomic_load(&f.manager->resting) && oki_now_ns() < deadline)
		sched_yield();
	ck_assert(atomic_load(&f.manager->resting));
	/* A grant makes it look after its records again, without the engine's doorbell. */
	send_publish(&e, 3, 100, 2);
	wait_one(&e, 3, OKW_GRANTED);
	while (atomic_load(&f.manager->resting) && oki_now_ns() < deadline)
		sched_yield();
	ck_assert(!atomic_load(&f.manager->resting));
	run_to_end(&e, 3, 0);
	teardown();
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("manager");
	TCase *t = tcase_create("records");
	tcase_set_timeout(t, 60);
	ADD(t, a_miss_has_no_lease);
	ADD(t, a_published_block_is_found_and_restored_from_the_same_bytes);
	ADD(t, publishing_what_is_there_is_done_at_once);
	ADD(t, a_failed_publish_is_never_visible);
	ADD(t, a_released_lease_ends_after_what_was_submitted_before);
	ADD(t, a_lease_opens_in_another_session);
	ADD(t, an_unknown_lease_is_refused_and_the_session_lives);
	ADD(t, a_restore_of_no_blocks_is_granted_without_parts);
	ADD(t, parts_follow_each_other_two_at_a_time);
	ADD(t, groups_are_done_in_the_part_that_ends_them);
	ADD(t, a_full_bank_makes_grants_wait_in_order);
	ADD(t, cancel_before_the_claim_revokes);
	ADD(t, cancel_after_the_claim_closes_the_parts);
	ADD(t, an_unclaimed_grant_expires);
	ADD(t, restore_permits_are_per_device_and_refuse_before_the_lease);
	ADD(t, a_plan_above_the_limit_does_not_spend_the_lease);
	ADD(t, the_session_budget_spends_the_lease_and_says_so);
	ADD(t, a_lost_hint_is_made_up_for_while_records_are_in_use);
	ADD(t, with_every_record_free_no_timer_runs);
	ADD(t, a_spinning_engine_gets_no_bell);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kv_suite_run(suite());
}
