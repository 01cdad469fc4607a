/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Many stretches in one publish or restore: counts, order of eviction, shares. */
#include "index_fixture.h"
#include "support/suite.h"

#define STRETCHES 16u

/* A publish of `count` stretches of group 0. */
static struct oki_hold *begin_all(struct bed *bed, const struct oki_index_publish_keys *keys,
				  uint32_t count, struct okw_stretch_reply *ret_replies)
{
	struct oki_hold *hold = NULL;
	const struct oki_index_publish ask = {.namespace_id = bed->ns,
					      .node = -1,
					      .group_count = count,
					      .groups = keys,
					      .now_ns = bed->now};
	ck_assert_int_eq(oki_index_publish_begin(bed->index, &ask, &hold, ret_replies, NULL), 0);
	return hold;
}

static struct oki_index_publish_keys stretch(uint32_t sequence, uint32_t first, uint32_t count)
{
	return (struct oki_index_publish_keys){
		.keys = {0, count, KEY_BYTES, keys_of(sequence, first, count)},
		.first_position = first,
		.parent = first ? keys_of(sequence, first - 1, 1) : NULL,
	};
}

START_TEST(blocks_are_counted_over_all_stretches)
{
	struct bed bed;
	struct okw_stretch_reply replies[3];
	uint64_t count;
	bed_init(&bed, 16);
	put(&bed, 2, 0, 1);
	const struct oki_index_publish_keys keys[3] = {stretch(1, 0, 2), stretch(2, 0, 3),
						       stretch(3, 0, 2)};
	struct oki_hold *hold = begin_all(&bed, keys, 3, replies);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	const uint32_t ordinals[] = {0, 1, 3, 4, 5, 6}; /* 2 is there already */
	ck_assert_uint_eq(count, 6);
	for (uint32_t i = 0; i < 6; i++)
		ck_assert_uint_eq(blocks[i].ordinal, ordinals[i]);
	ck_assert_uint_eq(replies[1].present, 1);
	ck_assert_uint_eq(replies[1].blocks, 2);
	seal(&bed, hold);
	for (uint32_t s = 1; s <= 3; s++)
		ck_assert_uint_eq(peek(&bed, s, 3), s == 2 ? 3 : 2);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_key_of_an_earlier_stretch_is_what_became_of_it)
{
	struct bed bed;
	struct okw_stretch_reply replies[2];
	bed_init(&bed, 2);
	const struct oki_index_publish_keys keys[2] = {stretch(1, 0, 4), stretch(1, 0, 4)};
	struct oki_hold *hold = begin_all(&bed, keys, 2, replies);
	ck_assert_uint_eq(hold_count(hold), 2);
	ck_assert_uint_eq(replies[0].blocks, 2);
	ck_assert_uint_eq(replies[0].not_stored, 2);
	ck_assert_uint_eq(replies[1].blocks, 0);
	ck_assert_uint_eq(replies[1].in_progress, 2);
	ck_assert_uint_eq(replies[1].not_stored, 2);
	seal(&bed, hold);
	ck_assert_uint_eq(stats(&bed).blocks, 2);
	const struct oki_index_publish_keys there[2] = {stretch(1, 0, 2), stretch(1, 0, 2)};
	hold = begin_all(&bed, there, 2, replies);
	ck_assert_uint_eq(replies[1].present, 2);
	ck_assert_uint_eq(replies[1].in_progress, 0);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

/* Twice in one stretch is an error; nothing of the other stretches is left behind. */
START_TEST(twice_in_one_stretch_fails_all)
{
	struct bed bed;
	struct okw_stretch_reply replies[3];
	struct oki_hold *hold = NULL;
	uint8_t twice[2 * KEY_BYTES];
	bed_init(&bed, 8);
	memcpy(twice, keys_of(2, 0, 1), KEY_BYTES);
	memcpy(twice + KEY_BYTES, twice, KEY_BYTES);
	struct oki_index_publish_keys keys[3] = {
		stretch(1, 0, 2), stretch(1, 0, 2), {.keys = {0, 2, KEY_BYTES, twice}}};
	const struct oki_index_publish ask = {
		.namespace_id = bed.ns, .node = -1, .group_count = 3, .groups = keys};
	ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, replies, NULL),
			 OKV_E_INVAL);
	ck_assert_ptr_null(hold);
	ck_assert_uint_eq(stats(&bed).blocks, 0);
	ck_assert_uint_eq(put(&bed, 1, 0, 8), 8);
	bed_fini(&bed);
}
END_TEST

/*
 * All of them continue one prefix. While a sequence has a block, all blocks before it must be
 * there: the blocks that are left are exactly the usable prefixes. With long histories the end of
 * the publish takes several turns.
 */
START_TEST(tails_go_before_the_heads_that_they_share)
{
	enum { PREFIX = 1000, STEP = 97 };
	const uint32_t own_blocks = _i ? 4000 : 50;
	struct bed bed;
	struct okw_stretch_reply replies[STRETCHES];
	struct oki_index_publish_keys keys[STRETCHES];
	uint8_t own[STRETCHES][2 * KEY_BYTES];
	bed_init(&bed, PREFIX + STRETCHES * (own_blocks + 1));
	put(&bed, 1, 0, PREFIX);
	for (uint32_t s = 0; s < STRETCHES; s++) {
		keys[s] = stretch(10 + s, 0, own_blocks);
		keys[s].first_position = PREFIX;
		keys[s].parent = keys_of(1, PREFIX - 1, 1);
		struct oki_hold *hold = begin_all(&bed, &keys[s], 1, replies);
		seal(&bed, hold);
	}
	/* One block more of each. Without a touch of all ancestors these would be the newest. */
	for (uint32_t s = 0; s < STRETCHES; s++) {
		memcpy(own[s], keys_of(10 + s, own_blocks - 1, 2), sizeof(own[s]));
		keys[s] = (struct oki_index_publish_keys){
			.keys = {0, 1, KEY_BYTES, own[s] + KEY_BYTES},
			.first_position = PREFIX + own_blocks,
			.parent = own[s]};
	}
	seal(&bed, begin_all(&bed, keys, STRETCHES, replies));
	uint64_t all = PREFIX + STRETCHES * (own_blocks + 1);
	ck_assert_uint_eq(stats(&bed).blocks, all);
	const uint32_t times = (uint32_t)(all / STEP / 10);
	for (uint32_t gone = 0; gone <= all; gone += times * STEP) {
		uint64_t left = 0;
		for (uint32_t s = 0; s < STRETCHES; s++)
			left += peek(&bed, 10 + s, own_blocks + 1);
		uint32_t prefix = peek(&bed, 1, PREFIX);
		ck_assert(prefix == PREFIX || left == 0);
		ck_assert_uint_eq(left + prefix + gone, all);
		for (uint32_t n = 0; n < times; n++)
			put(&bed, 1000 + gone + n, 0, STEP);
	}
	bed_fini(&bed);
}
END_TEST

/* ---- restores ---- */

static int restore_all(struct bed *bed, uint32_t session, const struct oki_index_range *ranges,
		       uint32_t count, struct oki_hold **ret_hold,
		       struct okw_stretch_reply *ret_replies, uint32_t *ret_spent)
{
	const struct oki_index_restore ask = {.namespace_id = bed->ns,
					      .session = session,
					      .range_count = count,
					      .ranges = ranges,
					      .now_ns = bed->now};
	*ret_hold = NULL;
	return oki_index_restore_begin(bed->index, &ask, ret_hold, ret_replies, ret_spent, NULL);
}

static struct oki_index_range by_id(const struct okw_lookup_reply *lease, uint32_t first,
				    uint32_t count)
{
	return (struct oki_index_range){0, first, count, false, OKW_LEASES, lease->lease_id};
}

START_TEST(each_lease_is_spent_once)
{
	struct bed bed;
	struct oki_hold *hold;
	struct okw_stretch_reply replies[4];
	uint32_t spent = 77;
	uint64_t count;
	bed_init(&bed, 16);
	put(&bed, 1, 0, 4);
	put(&bed, 2, 0, 4);
	const struct okw_lookup_reply one = lease(&bed, 0, 1, 4), two = lease(&bed, 0, 2, 4);
	/* From a session that never opened either of them; the first one is named three times. */
	const struct oki_index_range ranges[4] = {by_id(&one, 0, 1), by_id(&two, 1, 2),
						  by_id(&one, 2, 2), by_id(&one, 0, 0)};
	ck_assert_int_eq(restore_all(&bed, 5, ranges, 4, &hold, replies, &spent), 0);
	ck_assert_uint_eq(spent, 2);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	ck_assert_uint_eq(count, 5);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_uint_eq(blocks[i].ordinal, i);
	ck_assert_uint_eq(replies[1].blocks, 2);
	/* Held, though no lease pins them. */
	put(&bed, 3, 0, 16);
	ck_assert_uint_eq(peek(&bed, 2, 4), 0);
	seal(&bed, hold);
	ck_assert_int_eq(restore_all(&bed, 5, ranges, 4, &hold, replies, &spent), OKV_E_NOENT);
	bed_fini(&bed);
}
END_TEST

START_TEST(one_bad_stretch_changes_nothing)
{
	struct bed bed;
	struct oki_hold *hold;
	struct okw_stretch_reply replies[4];
	uint32_t spent;
	bed_init(&bed, 16);
	put(&bed, 1, 0, 4);
	const struct okw_lookup_reply one = lease(&bed, 0, 1, 4);
	struct okw_lookup_reply unknown = one;
	unknown.lease_id[0] ^= 1;
	struct oki_index_range ranges[4] = {by_id(&one, 0, 4), by_id(&unknown, 0, 1),
					    by_id(&one, 1, 4), by_id(&one, 0, 1)};
	ck_assert_int_eq(restore_all(&bed, 0, ranges, 4, &hold, replies, &spent), OKV_E_NOENT);
	ck_assert_ptr_null(hold);
	ck_assert_int_eq(replies[0].status, 0);
	ck_assert_int_eq(replies[1].status, OKV_E_NOENT);
	ck_assert_int_eq(replies[2].status, OKV_E_INVAL);
	ck_assert_int_eq(replies[3].status, 0);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	for (int which = 0; which < 4; which++) {
		ranges[1] = by_id(&one, 0, 1);
		switch (which) {
		case 0: ranges[1].group = 1; break;
		case 1: ranges[1].group = UINT32_MAX; break;
		case 2: ranges[1].first = UINT32_MAX; break;
		default: ranges[1].count = UINT32_MAX; break;
		}
		ck_assert_int_eq(restore_all(&bed, 0, ranges, 2, &hold, replies, &spent),
				 OKV_E_INVAL);
		ck_assert_int_eq(replies[0].status, 0);
		ck_assert_int_eq(replies[1].status, OKV_E_INVAL);
	}
	/* The one share is still there. */
	ck_assert_int_eq(restore_all(&bed, 0, ranges, 1, &hold, replies, &spent), 0);
	ck_assert_uint_eq(spent, 1);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_named_lease_is_renewed_and_expires)
{
	struct bed bed;
	struct oki_hold *hold;
	struct okw_stretch_reply reply;
	uint32_t spent;
	bed_init(&bed, 16);
	put(&bed, 1, 0, 4);
	const struct okw_lookup_reply one = lease(&bed, 0, 1, 4);
	struct oki_index_range range = by_id(&one, 0, 4);
	range.keep = true;
	for (int n = 0; n < 5; n++) {
		bed.now += TTL_NS - 1;
		ck_assert_int_eq(restore_all(&bed, 1, &range, 1, &hold, &reply, &spent), 0);
		ck_assert_uint_eq(spent, 0);
		seal(&bed, hold);
	}
	bed.now += TTL_NS;
	ck_assert_int_eq(restore_all(&bed, 1, &range, 1, &hold, &reply, &spent), OKV_E_NOENT);
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("stretches_index");
	TCase *t = tcase_create("stretches");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, blocks_are_counted_over_all_stretches);
	tcase_add_test(t, a_key_of_an_earlier_stretch_is_what_became_of_it);
	tcase_add_test(t, twice_in_one_stretch_fails_all);
	tcase_add_loop_test(t, tails_go_before_the_heads_that_they_share, 0, 2);
	tcase_add_test(t, each_lease_is_spent_once);
	tcase_add_test(t, one_bad_stretch_changes_nothing);
	tcase_add_test(t, a_named_lease_is_renewed_and_expires);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
