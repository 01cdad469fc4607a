/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Publish and the end of holds: who stores what, when it is seen, what becomes of the rest. */
#include "index_fixture.h"
#include "support/suite.h"

START_TEST(missing_keys_get_slots_in_order_side_by_side)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	uint64_t count;
	bed_init(&bed, 16);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 8, &hold, &counts), 0);
	ck_assert(oki_hold_is_publish(hold));
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	ck_assert_uint_eq(count, 8);
	uint64_t base = oki_allocation_offset(blocks[0].allocation);
	for (uint32_t i = 0; i < 8; i++) {
		ck_assert_uint_eq(blocks[i].ordinal, i);
		ck_assert_uint_eq(blocks[i].group, 0);
		ck_assert_uint_eq(oki_allocation_offset(blocks[i].allocation),
				  base + i * BLOCK_BYTES);
		ck_assert_uint_eq(oki_allocation_bytes(blocks[i].allocation), BLOCK_BYTES);
	}
	ck_assert_uint_eq(counts.present + counts.in_progress + counts.not_stored, 0);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(nothing_is_seen_before_it_is_sealed)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 8);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
	ck_assert_uint_eq(peek(&bed, 1, 4), 0);
	ck_assert_uint_eq(stats(&bed).blocks_partial, 4);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	ck_assert_uint_eq(stats(&bed).blocks_partial, 0);
	ck_assert_uint_eq(stats(&bed).published_blocks, 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(every_rank_must_seal)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	struct okw_lookup_reply reply;
	bed_make(&bed, 64 * BLOCK_BYTES, 3, 100, 100, one_full);
	ck_assert_uint_eq(put_in(&bed, 2, 0, 1, 0, 4), 4);
	ck_assert_uint_eq(put_in(&bed, 0, 0, 1, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 4), 0);
	ck_assert_uint_eq(put_in(&bed, 1, 0, 1, 0, 3), 3); /* one short: all get the minimum */
	ck_assert_uint_eq(peek(&bed, 1, 4), 3);
	reply = lease(&bed, 0, 1, 3);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 3 * 3 * BLOCK_BYTES);

	/* each rank restores its own bytes */
	const struct oki_allocation *seen[3];
	for (uint32_t rank = 0; rank < 3; rank++) {
		struct oki_index_range range = {0, 1, 1, true, reply.lease_slot, reply.lease_id};
		struct oki_index_restore ask = {.namespace_id = bed.ns,
						.rank_slot = rank,
						.range_count = 1,
						.ranges = &range,
						.now_ns = bed.now};
		struct okw_stretch_reply result;
		uint64_t count;
		uint32_t spent;
		ck_assert_int_eq(
			oki_index_restore_begin(bed.index, &ask, &hold, &result, &spent, NULL), 0);
		seen[rank] = oki_hold_blocks(hold, &count)[0].allocation;
		for (uint32_t other = 0; other < rank; other++)
			ck_assert_ptr_ne(seen[rank], seen[other]);
		seal(&bed, hold);
	}
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
	ck_assert_uint_eq(counts.present, 4);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(what_is_present_is_skipped)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	uint64_t count;
	bed_init(&bed, 8);
	put(&bed, 1, 1, 2);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	ck_assert_uint_eq(count, 2);
	ck_assert_uint_eq(blocks[0].ordinal, 0);
	ck_assert_uint_eq(blocks[1].ordinal, 3);
	ck_assert_uint_eq(counts.present, 2);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);

	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
	ck_assert_uint_eq(hold_count(hold), 0);
	ck_assert_uint_eq(counts.present, 4);
	struct oki_proof proof = proof_ungranted();
	oki_hold_release(bed.index, hold, &proof);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_second_publisher_is_told)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *first, *second;
	bed_init(&bed, 8);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 3, &first, &counts), 0);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &second, &counts), 0);
	ck_assert_uint_eq(counts.in_progress, 3);
	ck_assert_uint_eq(counts.present, 0);
	ck_assert_uint_eq(hold_count(second), 1);
	seal(&bed, second);
	ck_assert_uint_eq(peek(&bed, 1, 4), 0);
	seal(&bed, first);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_failed_publish_is_never_seen_and_can_be_repeated)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	const struct oki_proof failures[] = {proof_ungranted(), proof_drained(OKV_E_COPY),
					     proof_drained(OKV_E_CANCELLED)};
	bed_init(&bed, 8);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
		ck_assert_uint_eq(hold_count(hold), 4);
		oki_hold_release(bed.index, hold, &failures[i]);
		ck_assert_uint_eq(peek(&bed, 1, 4), 0);
		ck_assert_uint_eq(stats(&bed).blocks, 0);
		ck_assert_uint_eq(stats(&bed).bytes_used, 0);
	}
	ck_assert_uint_eq(put(&bed, 1, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_failed_rank_leaves_the_others_slots)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	struct oki_proof proof = proof_drained(OKV_E_COPY);
	bed_make(&bed, 8 * BLOCK_BYTES, 2, 100, 100, one_full);
	put_in(&bed, 0, 0, 1, 0, 2);
	ck_assert_int_eq(begin(&bed, 1, 0, 1, 0, 2, &hold, &counts), 0);
	oki_hold_release(bed.index, hold, &proof);
	ck_assert_uint_eq(stats(&bed).blocks_partial, 2);
	ck_assert_uint_eq(stats(&bed).bytes_used, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(put_in(&bed, 1, 0, 1, 0, 2), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	bed_fini(&bed);
}
END_TEST

START_TEST(the_longest_head_that_fits_is_stored)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 5);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 8, &hold, &counts), 0);
	ck_assert_uint_eq(hold_count(hold), 5);
	ck_assert_uint_eq(counts.not_stored, 3);
	ck_assert_uint_eq(stats(&bed).blocks, 5);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 8), 5);
	bed_fini(&bed);
}
END_TEST

START_TEST(groups_are_stored_in_order_until_space_ends)
{
	static const struct bed_group three[] = {{OKV_GROUP_FULL, 16, 0, 0},
						 {OKV_GROUP_FULL, 16, 0, 0},
						 {OKV_GROUP_FULL, 16, 0, 0},
						 {0, 0, 0, 0}};
	struct bed bed;
	struct okw_stretch_reply counts[3];
	struct oki_hold *hold;
	uint64_t count;
	bed_make(&bed, 5 * BLOCK_BYTES, 1, 100, 100, three);
	struct oki_index_publish_keys keys[3];
	memset(keys, 0, sizeof(keys));
	for (uint32_t i = 0; i < 3; i++) {
		keys[i].keys = (struct oki_index_keys){2 - i, 3, KEY_BYTES, keys_of(1, 0, 3)};
	}
	struct oki_index_publish ask = {
		.namespace_id = bed.ns, .node = -1, .group_count = 3, .groups = keys};
	ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, counts, NULL), 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	ck_assert_uint_eq(count, 5);
	ck_assert_uint_eq(counts[0].not_stored, 3);
	ck_assert_uint_eq(counts[1].not_stored, 1);
	ck_assert_uint_eq(counts[2].not_stored, 0);
	for (uint32_t i = 0; i < 5; i++) {
		ck_assert_uint_eq(blocks[i].group, i / 3);
		ck_assert_uint_eq(blocks[i].ordinal, i % 3);
	}
	seal(&bed, hold);
	ck_assert_uint_eq(stats(&bed).blocks, 5);
	bed_fini(&bed);
}
END_TEST

/* A later group would still fit, but a head with a gap is no head. */
START_TEST(nothing_is_stored_behind_the_first_gap)
{
	static const struct bed_group two[] = {
		{OKV_GROUP_FULL, 16, 0, 4}, {OKV_GROUP_FULL, 16, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	struct okw_stretch_reply counts[2];
	struct oki_hold *hold;
	bed_make(&bed, 6 * BLOCK_BYTES, 1, 100, 100, two);
	struct oki_index_publish_keys keys[2];
	memset(keys, 0, sizeof(keys));
	for (uint32_t i = 0; i < 2; i++)
		keys[i].keys = (struct oki_index_keys){i, 2, KEY_BYTES, keys_of(1, 0, 2)};
	struct oki_index_publish ask = {
		.namespace_id = bed.ns, .node = -1, .group_count = 2, .groups = keys};
	ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, counts, NULL), 0);
	ck_assert_uint_eq(hold_count(hold), 1);
	ck_assert_uint_eq(counts[0].not_stored, 1);
	ck_assert_uint_eq(counts[1].not_stored, 2);
	seal(&bed, hold);
	ck_assert_uint_eq(stats(&bed).blocks, 1);
	bed_fini(&bed);
}
END_TEST

START_TEST(no_space_is_said_only_when_nothing_fits)
{
	struct bed bed;
	struct okw_stretch_reply counts = {.present = 7};
	struct oki_hold *holds[2];
	struct oki_hold *hold = NULL;
	struct okv_error err = {0};
	bed_init(&bed, 4);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &holds[0], &counts), 0);
	struct oki_index_publish_keys keys = {.keys = {0, 2, KEY_BYTES, keys_of(2, 0, 2)}};
	struct oki_index_publish ask = {
		.namespace_id = bed.ns, .node = -1, .group_count = 1, .groups = &keys};
	ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, &counts, &err),
			 OKV_E_NOSPACE);
	ck_assert_ptr_null(hold);
	ck_assert_uint_gt(strlen(err.text), 0);
	ck_assert_uint_eq(stats(&bed).blocks, 4); /* no empty block is left behind */
	/* all in progress: nothing is missing */
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &holds[1], &counts), 0);
	ck_assert_uint_eq(counts.in_progress, 4);
	seal(&bed, holds[1]);
	seal(&bed, holds[0]);
	bed_fini(&bed);
}
END_TEST

START_TEST(the_request_keeps_what_it_names)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 6);
	put(&bed, 1, 0, 3); /* least recent, but named below */
	put(&bed, 2, 0, 3);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 8, &hold, &counts), 0);
	ck_assert_uint_eq(counts.present, 3);
	ck_assert_uint_eq(hold_count(hold), 3);
	ck_assert_uint_eq(counts.not_stored, 2);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 8), 6);
	bed_fini(&bed);
}
END_TEST

START_TEST(bad_publishes_are_refused_and_leave_nothing)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold = NULL;
	uint8_t twice[3 * KEY_BYTES];
	bed_init(&bed, 4);
	put(&bed, 1, 0, 1);
	memcpy(twice, keys_of(2, 0, 3), sizeof(twice));
	memcpy(twice + 2 * KEY_BYTES, twice, KEY_BYTES);
	const struct oki_index_keys good = {0, 1, KEY_BYTES, keys_of(3, 0, 1)};
	const struct {
		uint32_t ns, rank, groups;
		struct oki_index_keys keys;
	} bad[] = {
		{0, 0, 1, good},
		{9, 0, 1, good},
		{1, 1, 1, good},
		{1, 0, 0, good},
		{1, 0, OKW_MAX_STRETCHES + 1, good},
		{1, 0, 1, {1, 1, KEY_BYTES, good.keys}},
		{1, 0, 1, {0, 0, KEY_BYTES, good.keys}},
		{1, 0, 1, {0, OKW_MAX_BLOCKS + 1, KEY_BYTES, good.keys}},
		{1, 0, 1, {0, 1, 0, good.keys}},
		{1, 0, 1, {0, 1, OKW_MAX_KEY_BYTES + 1, good.keys}},
		{1, 0, 1, {0, 3, KEY_BYTES, twice}},
	};
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct oki_index_publish_keys keys[2] = {{.keys = bad[i].keys},
							 {.keys = bad[i].keys}};
		struct oki_index_publish ask = {.namespace_id = bad[i].ns,
						.rank_slot = bad[i].rank,
						.node = -1,
						.group_count = bad[i].groups,
						.groups = keys};
		struct okv_error err = {0};
		ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, &counts, &err),
				 OKV_E_INVAL);
		ck_assert_uint_gt(strlen(err.text), 0);
		ck_assert_ptr_null(hold);
		ck_assert_uint_eq(stats(&bed).blocks, 1);
	}
	ck_assert_uint_eq(put(&bed, 4, 0, 4), 4); /* nothing stays kept */
	bed_fini(&bed);
}
END_TEST

/* However far apart, and whether the key is stored or new. */
START_TEST(a_key_named_twice_is_refused_wherever)
{
	enum { KEYS = 200 };
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold = NULL;
	uint8_t bytes[KEYS * KEY_BYTES];
	bed_init(&bed, KEYS);
	put(&bed, 1, 0, KEYS / 2);
	for (uint32_t first = 0; first < KEYS; first += 13) {
		for (uint32_t second = first + 1; second < KEYS; second += 7) {
			memcpy(bytes, keys_of(1, 0, KEYS), sizeof(bytes));
			memcpy(bytes + (size_t)second * KEY_BYTES, keys_of(1, first, 1), KEY_BYTES);
			struct oki_index_publish_keys keys = {.keys = {0, KEYS, KEY_BYTES, bytes}};
			struct oki_index_publish ask = {.namespace_id = bed.ns,
							.node = -1,
							.group_count = 1,
							.groups = &keys};
			ck_assert_int_eq(
				oki_index_publish_begin(bed.index, &ask, &hold, &counts, NULL),
				OKV_E_INVAL);
			ck_assert_uint_eq(stats(&bed).blocks, KEYS / 2);
		}
	}
	ck_assert_uint_eq(put(&bed, 1, 0, KEYS), KEYS / 2);
	ck_assert_uint_eq(peek(&bed, 1, KEYS), KEYS);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_quarantined_destination_frees_its_key_not_its_bytes)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	struct oki_hold *again;
	bed_init(&bed, 4);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 2, &hold, &counts), 0);
	uint64_t count;
	const struct oki_allocation *lost = oki_hold_blocks(hold, &count)[0].allocation;
	oki_hold_quarantine(bed.index, hold);
	ck_assert_uint_eq(stats(&bed).bytes_quarantined, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(stats(&bed).bytes_used, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(stats(&bed).blocks, 0);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 2, &again, &counts), 0);
	ck_assert_uint_eq(counts.in_progress, 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(again, &count);
	ck_assert_uint_eq(count, 2);
	ck_assert_ptr_ne(blocks[0].allocation, lost);
	seal(&bed, again);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(put(&bed, 10 + i, 0, 4), 2);
	ck_assert_uint_eq(stats(&bed).bytes_quarantined, 2 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_quarantined_source_stays_and_serves)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	for (uint32_t i = 0; i < 2; i++) {
		struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
		ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, false, &hold), 0);
		oki_hold_quarantine(bed.index, hold);
		ck_assert_uint_eq(stats(&bed).bytes_quarantined, 2 * BLOCK_BYTES);
	}
	ck_assert_uint_eq(put(&bed, 2, 0, 4), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, false, &hold), 0);
	seal(&bed, hold);
	ck_assert_uint_eq(put(&bed, 3, 0, 4), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	bed_fini(&bed);
}
END_TEST

START_TEST(without_a_proof_nothing_is_freed)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	const struct oki_proof none = {0};
	bed_init(&bed, 4);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 2, &hold, &counts), 0);
	oki_hold_release(bed.index, hold, &none);
	ck_assert_uint_eq(stats(&bed).bytes_quarantined, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(stats(&bed).bytes_used, 2 * BLOCK_BYTES);
	ck_assert_uint_eq(peek(&bed, 1, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_quarantined_rank_leaves_the_others_slots)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_make(&bed, 8 * BLOCK_BYTES, 2, 100, 100, one_full);
	put_in(&bed, 0, 0, 1, 0, 2);
	ck_assert_int_eq(begin(&bed, 1, 0, 1, 0, 2, &hold, &counts), 0);
	oki_hold_quarantine(bed.index, hold);
	ck_assert_uint_eq(stats(&bed).blocks_partial, 2);
	ck_assert_uint_eq(put_in(&bed, 1, 0, 1, 0, 2), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	ck_assert_uint_eq(stats(&bed).bytes_used, 6 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(bad_configurations_are_refused)
{
	struct bed bed;
	bed_init(&bed, 4);
	const struct oki_index_config bad[] = {
		{.pool = bed.pool, .session_percent = 1, .lease_ttl_ns = 1},
		{.pool = bed.pool, .reserve_percent = 1, .lease_ttl_ns = 1},
		{.pool = bed.pool, .reserve_percent = 101, .session_percent = 1, .lease_ttl_ns = 1},
		{.pool = bed.pool, .reserve_percent = 1, .session_percent = 101, .lease_ttl_ns = 1},
		{.pool = bed.pool, .reserve_percent = 1, .session_percent = 1},
	};
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct oki_index *index = NULL;
		ck_assert_int_eq(oki_index_create(&bad[i], &index, NULL), OKV_E_INVAL);
		ck_assert_ptr_null(index);
	}
	oki_index_destroy(NULL);
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("publish_index");
	TCase *stored = tcase_create("store");
	tcase_add_test(stored, missing_keys_get_slots_in_order_side_by_side);
	tcase_add_test(stored, nothing_is_seen_before_it_is_sealed);
	tcase_add_test(stored, every_rank_must_seal);
	tcase_add_test(stored, what_is_present_is_skipped);
	tcase_add_test(stored, a_second_publisher_is_told);
	tcase_add_test(stored, the_longest_head_that_fits_is_stored);
	tcase_add_test(stored, groups_are_stored_in_order_until_space_ends);
	tcase_add_test(stored, nothing_is_stored_behind_the_first_gap);
	tcase_add_test(stored, no_space_is_said_only_when_nothing_fits);
	tcase_add_test(stored, the_request_keeps_what_it_names);
	tcase_add_test(stored, bad_publishes_are_refused_and_leave_nothing);
	tcase_add_test(stored, a_key_named_twice_is_refused_wherever);
	tcase_add_test(stored, bad_configurations_are_refused);
	suite_add_tcase(suite, stored);
	TCase *ends = tcase_create("ends");
	tcase_add_test(ends, a_failed_publish_is_never_seen_and_can_be_repeated);
	tcase_add_test(ends, a_failed_rank_leaves_the_others_slots);
	tcase_add_test(ends, a_quarantined_destination_frees_its_key_not_its_bytes);
	tcase_add_test(ends, a_quarantined_source_stays_and_serves);
	tcase_add_test(ends, without_a_proof_nothing_is_freed);
	tcase_add_test(ends, a_quarantined_rank_leaves_the_others_slots);
	suite_add_tcase(suite, ends);
	return kv_suite_run(suite);
}
