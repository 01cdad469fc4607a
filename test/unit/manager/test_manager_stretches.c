/* SPDX-License-Identifier: Apache-2.0 */
/* The Manager and requests of many stretches: their order in the plan, and hostile ones. */
#include "fake_engine.h"
#include "support/suite.h"

static struct fixture f;
static struct fake e;

/* Parts of two entries. */
static void setup(void)
{
	struct okv_manager_options opts;
	fixture_options(&opts);
	opts.part_bytes = sizeof(struct okw_plan_head) + 2 * sizeof(struct okw_plan_entry);
	fixture_start(&f, &opts);
	fake_open(&e, &f);
}

static void teardown(void)
{
	fake_close(&e);
	fixture_end(&f, 0);
}

static void take_stretches(uint32_t i, struct okw_stretch_reply *ret_said, uint32_t count)
{
	memcpy(ret_said, (const uint8_t *)reply_of(&e, i) + sizeof(struct okw_transfer_reply),
	       count * sizeof(*ret_said));
}

/* Whatever the order of the stretches: entries go group after group. */
START_TEST(stretches_are_joined_by_group)
{
	static const struct {
		uint32_t group, count, first_key;
	} stretches[] = {{1, 1, 1}, {0, 2, 20}, {1, 2, 30}, {0, 1, 40}, {0, 1, 20}};
	const uint32_t groups[] = {0, 0, 0, 1, 1, 1}, ordinals[] = {0, 1, 2, 0, 1, 2};
	struct okw_plan_head head;
	struct okw_stretch_reply said[5];
	struct request r;
	uint32_t seen = 0;
	setup();
	fake_bind(&e, "two groups", 2);
	request_init(&r, &e, OKW_OP_PUBLISH);
	for (uint32_t i = 0; i < 5; i++)
		request_group(&r, stretches[i].group, 0, stretches[i].count, 8);
	for (uint32_t i = 0; i < 5; i++)
		request_keys(&r, stretches[i].first_key, stretches[i].count);
	submit(&e, 3, &r);
	wait_one(&e, 3, OKW_GRANTED);
	take_stretches(3, said, 5);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_eq(said[i].blocks, i == 4 ? 0 : stretches[i].count);
	ck_assert_uint_eq(said[4].in_progress, 1);
	ck_assert_uint_eq(transfer_reply(&e, 3).in_progress, 1);
	claim(&e, 3);
	for (uint32_t part = 0; part < 3; part++) {
		while (oki_parts_load(rec(&e, 3)).offered <= part)
			sched_yield();
		struct okw_plan_entry *entries = take_part(&e, 3, &head);
		for (uint32_t k = 0; k < head.entry_count; k++, seen++) {
			ck_assert_uint_eq(entries[k].group, groups[seen]);
			ck_assert_uint_eq(entries[k].ordinal, ordinals[seen]);
		}
		/* Two entries a part: group 0 ends in the second one. */
		ck_assert_uint_eq(head.groups_done, part == 0 ? 0 : part == 1 ? 1 : 3);
		free(entries);
	}
	ck_assert_uint_eq(seen, 6);
	drain(&e, 3, 0);
	wait_one(&e, 3, OKW_REAPED);
	ck_assert_uint_eq(rec(&e, 3)->reply_bytes,
			  sizeof(struct okw_transfer_reply) + sizeof(said));
	free_record(&e, 3);
	teardown();
}
END_TEST

static void spoil_restore(int how, struct request *r)
{
	struct okw_restore_part *part = (struct okw_restore_part *)(void *)r->body;
	switch (how) {
	case 0: part[1].flags = 2; break;
	case 1: part[1].lease_slot = OKW_LEASES + 1; break;
	case 2: part[1].lease_slot = UINT32_MAX; break;
	case 3: part[1].count = OKW_MAX_BLOCKS + 1; break;
	case 4: part[1].count = UINT32_MAX; break;
	case 5: r->head.group_count = 1; break;
	case 6: r->head.group_count = 3; break;
	case 7: r->head.group_count = OKW_MAX_STRETCHES + 1; break;
	case 8: r->head.group_count = UINT32_MAX; break;
	case 9: r->capacity = sizeof(struct okw_transfer_reply); break;
	case 10:
		r->capacity = sizeof(struct okw_transfer_reply) + sizeof(struct okw_stretch_reply);
		break;
	case 11: request_add(r, "more", 4); break;
	case 12: r->head.flags = OKW_REQUEST_PEEK; break;
	default: /* more blocks in all than one operation may have */
		for (uint32_t i = 0; i < 8; i++) {
			struct okw_restore_part more = {.count = OKW_MAX_BLOCKS,
							.lease_slot = OKW_LEASES};
			r->head.group_count++;
			request_add(r, &more, sizeof(more));
		}
		r->capacity = 4096;
	}
}
#define RESTORE_SPOILS 14

START_TEST(a_restore_that_does_not_hold_costs_that_session_only)
{
	struct fake bad;
	struct request r;
	struct okw_lookup_reply any = {.lease_slot = OKW_LEASES};
	setup();
	fake_open(&bad, &f);
	fake_bind(&bad, "restores", 1);
	request_init(&r, &bad, OKW_OP_RESTORE);
	request_part(&r, &any, 0, 1, 0);
	request_part(&r, &any, 0, 1, OKW_PART_KEEP);
	spoil_restore(_i, &r);
	submit(&bad, 3, &r);
	expect_hangup(&bad);
	ck_assert_uint_eq(state_of(&bad, 3), OKW_DONE);
	ck_assert_int_eq(rec(&bad, 3)->status, OKV_E_PROTOCOL);
	do_lookup(&e, 1, 1, 0);
	WAIT_STATUS(&f, sessions, 1);
	fake_close(&bad);
	teardown();
}
END_TEST

/* What is well formed and wrong is an answer, and the session goes on. */
START_TEST(a_restore_of_what_no_lease_holds_is_answered)
{
	struct request r;
	struct okw_stretch_reply said[3];
	setup();
	do_publish(&e, 1, 2);
	struct okw_lookup_reply hit = do_lookup(&e, 1, 2, 0), by_id = hit, none = hit;
	by_id.lease_slot = OKW_LEASES;
	none.lease_slot = OKW_LEASES;
	none.lease_id[5] ^= 1;
	request_init(&r, &e, OKW_OP_RESTORE);
	request_part(&r, &by_id, 0, 2, 0);
	request_part(&r, _i == 0 ? &none : &hit, _i == 1 ? UINT32_MAX : 0, _i == 2 ? 3 : 1, 0);
	request_part(&r, &hit, 1, 1, 0);
	if (_i == 3)
		((struct okw_restore_part *)(void *)r.body)[1].group = UINT32_MAX;
	submit(&e, 3, &r);
	wait_one(&e, 3, OKW_DONE);
	ck_assert_int_eq(rec(&e, 3)->status, _i == 0 ? OKV_E_NOENT : OKV_E_INVAL);
	ck_assert_uint_eq(rec(&e, 3)->reply_bytes,
			  sizeof(struct okw_transfer_reply) + sizeof(said));
	take_stretches(3, said, 3);
	ck_assert_int_eq(said[0].status, 0);
	ck_assert_int_eq(said[1].status, rec(&e, 3)->status);
	ck_assert_int_eq(said[2].status, 0);
	free_record(&e, 3);
	ck_assert_uint_eq(fixture_status(&f).leases, 1);
	send_restore(&e, 3, &by_id, 2, 0);
	run_to_end(&e, 3, 0);
	ck_assert_uint_eq(fixture_status(&f).leases, 0);
	teardown();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("manager stretches");
	TCase *t = tcase_create("stretches");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, stretches_are_joined_by_group);
	tcase_add_loop_test(t, a_restore_that_does_not_hold_costs_that_session_only, 0,
			    RESTORE_SPOILS);
	tcase_add_loop_test(t, a_restore_of_what_no_lease_holds_is_answered, 0, 4);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
