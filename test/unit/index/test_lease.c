/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Leases: shares, time, holders, slots, and how much they may pin. */
#include "index_fixture.h"
#include "support/suite.h"

static int open_lease(struct bed *bed, uint32_t session, const struct okw_lookup_reply *from,
		      struct okw_lookup_reply *ret_reply)
{
	return oki_index_lease_open(bed->index, bed->ns, session, from->lease_id, bed->now,
				    ret_reply, NULL);
}

START_TEST(a_lookup_gives_a_lease_with_all_it_found)
{
	struct bed bed;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 3);
	struct okw_lookup_reply reply;
	ck_assert_int_eq(find(&bed, 0, 1, 5, &reply), 0);
	ck_assert_uint_eq(reply.tokens, 48);
	ck_assert_uint_eq(reply.group_count, 1);
	ck_assert_uint_eq(reply.groups[0].first, 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	ck_assert_uint_eq(reply.shortened, 0);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 3 * BLOCK_BYTES);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	oki_index_lease_release(bed.index, 0, reply.lease_slot);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 0);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_miss_has_no_lease)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_init(&bed, 8);
	put(&bed, 1, 1, 3); /* the first block is missing */
	ck_assert_int_eq(find(&bed, 0, 1, 4, &reply), 0);
	ck_assert_uint_eq(reply.tokens, 0);
	ck_assert_uint_eq(reply.lease_slot, OKW_LEASES);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(ids_differ)
{
	struct bed bed;
	struct okw_lookup_reply replies[200];
	bed_init(&bed, 4);
	put(&bed, 1, 0, 1);
	for (uint32_t i = 0; i < 200; i++) {
		replies[i] = lease(&bed, 0, 1, 1);
		for (uint32_t k = 0; k < i; k++)
			ck_assert_mem_ne(replies[i].lease_id, replies[k].lease_id, 16);
	}
	ck_assert_uint_eq(stats(&bed).bytes_pinned, BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(each_consumer_spends_one_share)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	struct oki_index_keys keys = {0, 2, KEY_BYTES, keys_of(1, 0, 2)};
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 2,
				       .group_count = 1,
				       .groups = &keys,
				       .now_ns = bed.now};
	struct okw_lookup_reply from;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &from, NULL), 0);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, true, &hold), 0);
		seal(&bed, hold);
		ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, false, &hold), 0);
		seal(&bed, hold);
	}
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, false, &hold), OKV_E_NOENT);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, true, &hold), OKV_E_NOENT);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	ck_assert_uint_eq(stats(&bed).restored_blocks, 8);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_refused_restore_changes_nothing)
{
	struct bed bed;
	struct oki_hold *hold = NULL;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 4);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 4);
	struct okw_lookup_reply bad = from;

	ck_assert_int_eq(restore(&bed, 0, &from, 4, 1, false, &hold), OKV_E_INVAL);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 5, false, &hold), OKV_E_INVAL);
	ck_assert_int_eq(restore(&bed, 0, &from, UINT32_MAX, 2, false, &hold), OKV_E_INVAL);
	ck_assert_int_eq(restore(&bed, 0, &from, 2, UINT32_MAX, false, &hold), OKV_E_INVAL);
	ck_assert_int_eq(restore(&bed, 1, &from, 0, 4, false, &hold), OKV_E_NOENT);
	bad.lease_slot = from.lease_slot + 1;
	ck_assert_int_eq(restore(&bed, 0, &bad, 0, 4, false, &hold), OKV_E_NOENT);
	bad.lease_slot = UINT32_MAX;
	ck_assert_int_eq(restore(&bed, 0, &bad, 0, 4, false, &hold), OKV_E_NOENT);
	bad = from;
	bad.lease_id[3] ^= 1;
	ck_assert_int_eq(restore(&bed, 0, &bad, 0, 4, false, &hold), OKV_E_NOENT);

	struct oki_index_range ranges[2] = {{0, 0, 4, false, from.lease_slot, from.lease_id},
					    {1, 0, 1, false, from.lease_slot, from.lease_id}};
	struct oki_index_restore ask = {
		.namespace_id = bed.ns, .range_count = 2, .ranges = ranges, .now_ns = bed.now};
	struct okw_stretch_reply replies[2];
	uint32_t spent;
	ck_assert_int_eq(oki_index_restore_begin(bed.index, &ask, &hold, replies, &spent, NULL),
			 OKV_E_INVAL);
	ask.range_count = OKW_MAX_STRETCHES + 1;
	ck_assert_int_eq(oki_index_restore_begin(bed.index, &ask, &hold, replies, &spent, NULL),
			 OKV_E_INVAL);
	ask.range_count = 1;
	ask.rank_slot = 1;
	ck_assert_int_eq(oki_index_restore_begin(bed.index, &ask, &hold, replies, &spent, NULL),
			 OKV_E_INVAL);
	ask.rank_slot = 0;
	ask.namespace_id = bed_namespace(&bed, "other", NULL, NULL, 0, one_full, BLOCK_BYTES);
	ck_assert_int_eq(oki_index_restore_begin(bed.index, &ask, &hold, replies, &spent, NULL),
			 OKV_E_NOENT);

	ck_assert_ptr_null(hold);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 4, false, &hold), 0);
	ck_assert_uint_eq(hold_count(hold), 4);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_restore_names_what_was_published)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	const struct oki_allocation *stored[6];
	uint64_t count;
	bed_init(&bed, 8);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 6, &hold, &counts), 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	for (uint32_t i = 0; i < 6; i++)
		stored[i] = blocks[i].allocation;
	seal(&bed, hold);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 6);
	ck_assert_int_eq(restore(&bed, 0, &from, 2, 3, false, &hold), 0);
	ck_assert(!oki_hold_is_publish(hold));
	blocks = oki_hold_blocks(hold, &count);
	ck_assert_uint_eq(count, 3);
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_ptr_eq(blocks[i].allocation, stored[2 + i]);
		ck_assert_uint_eq(blocks[i].group, 0);
		ck_assert_uint_eq(blocks[i].ordinal, i);
	}
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_restore_of_nothing_is_legal)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(restore(&bed, 0, &from, 2, 0, true, &hold), 0);
	ck_assert_uint_eq(hold_count(hold), 0);
	seal(&bed, hold);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 0, false, &hold), 0);
	ck_assert_uint_eq(hold_count(hold), 0);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	seal(&bed, hold);
	bed_fini(&bed);
}
END_TEST

START_TEST(time_ends_a_lease_and_use_renews_it)
{
	struct bed bed;
	struct oki_hold *hold;
	struct okw_lookup_reply other;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	ck_assert_uint_eq(oki_index_expire(bed.index, bed.now), UINT64_MAX);
	struct okw_lookup_reply first = lease(&bed, 0, 1, 2);
	uint64_t start = bed.now;
	ck_assert_uint_eq(oki_index_expire(bed.index, bed.now), start + TTL_NS);

	bed.now = start + TTL_NS / 2;
	struct okw_lookup_reply second = lease(&bed, 0, 1, 2);
	struct okw_lookup_reply third = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(restore(&bed, 0, &first, 0, 2, true, &hold), 0);
	seal(&bed, hold);
	bed.now = start + TTL_NS;
	ck_assert_int_eq(open_lease(&bed, 1, &second, &other), 0);
	ck_assert_uint_eq(oki_index_expire(bed.index, bed.now), start + TTL_NS / 2 + TTL_NS);
	ck_assert_uint_eq(stats(&bed).leases, 3);

	/* first and third are due; second was renewed later */
	bed.now = start + TTL_NS / 2 + TTL_NS;
	ck_assert_uint_eq(oki_index_expire(bed.index, bed.now), start + 2 * TTL_NS);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	ck_assert_int_eq(restore(&bed, 0, &first, 0, 2, false, &hold), OKV_E_NOENT);
	ck_assert_int_eq(restore(&bed, 0, &third, 0, 2, false, &hold), OKV_E_NOENT);
	ck_assert_int_eq(open_lease(&bed, 1, &first, &other), OKV_E_NOENT);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 2 * BLOCK_BYTES);

	bed.now = start + 2 * TTL_NS;
	ck_assert_int_eq(restore(&bed, 0, &second, 0, 2, false, &hold), OKV_E_NOENT);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_hold_outlives_its_lease)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 2);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, true, &hold), 0);
	bed.now += TTL_NS;
	oki_index_expire(bed.index, bed.now);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	ck_assert_uint_eq(put(&bed, 2, 0, 1), 0);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	seal(&bed, hold);
	ck_assert_uint_eq(put(&bed, 2, 0, 1), 1);
	bed_fini(&bed);
}
END_TEST

START_TEST(the_last_knower_ends_it)
{
	struct bed bed;
	struct okw_lookup_reply opened[3];
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(open_lease(&bed, 0, &from, &opened[0]), 0);
	ck_assert_uint_ne(opened[0].lease_slot, from.lease_slot);
	ck_assert_int_eq(open_lease(&bed, 1, &from, &opened[1]), 0);
	ck_assert_int_eq(open_lease(&bed, 2, &from, &opened[2]), 0);
	ck_assert_uint_eq(opened[2].tokens, 32);
	ck_assert_uint_eq(opened[2].groups[0].count, 2);
	ck_assert_mem_eq(opened[2].lease_id, from.lease_id, 16);

	oki_index_lease_release(bed.index, 0, from.lease_slot);
	oki_index_lease_release(bed.index, 0, from.lease_slot); /* unknown by now: ignored */
	oki_index_lease_release(bed.index, 1, opened[1].lease_slot);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	oki_index_session_end(bed.index, 0);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	oki_index_session_end(bed.index, 2);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(another_namespace_cannot_open_it)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	bed.ns = bed_namespace(&bed, "other", NULL, NULL, 0, one_full, BLOCK_BYTES);
	ck_assert_int_eq(open_lease(&bed, 1, &from, &reply), OKV_E_NOENT);
	bed_fini(&bed);
}
END_TEST

/* A slot comes back with its release, not with the lease's end: a late release hits no one. */
START_TEST(a_late_release_hits_no_other_lease)
{
	struct bed bed;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply dead = lease(&bed, 0, 1, 2);
	bed.now += TTL_NS;
	oki_index_expire(bed.index, bed.now);
	struct okw_lookup_reply live = lease(&bed, 0, 1, 2);
	ck_assert_uint_ne(live.lease_slot, dead.lease_slot);
	oki_index_lease_release(bed.index, 0, dead.lease_slot);
	ck_assert_uint_eq(stats(&bed).leases, 1);
	ck_assert_uint_eq(lease(&bed, 0, 1, 2).lease_slot, dead.lease_slot);
	oki_index_lease_release(bed.index, 0, OKW_LEASES);
	oki_index_lease_release(bed.index, OKW_MAX_SESSIONS, 0);
	oki_index_lease_release(bed.index, 5, 0);
	ck_assert_uint_eq(stats(&bed).leases, 2);
	bed_fini(&bed);
}
END_TEST

START_TEST(slots_run_out_and_come_back)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_init(&bed, 8);
	put(&bed, 1, 0, 2);
	for (uint32_t i = 0; i < OKW_LEASES; i++)
		ck_assert_uint_eq(lease(&bed, 0, 1, 2).lease_slot, i);
	ck_assert_int_eq(find(&bed, 0, 1, 2, &reply), OKV_E_AGAIN);
	ck_assert_int_eq(find(&bed, 0, 9, 2, &reply), 0); /* a miss needs no slot */
	struct okw_lookup_reply other = lease(&bed, 1, 1, 2);
	ck_assert_int_eq(open_lease(&bed, 0, &other, &reply), OKV_E_AGAIN);
	oki_index_lease_release(bed.index, 0, 77);
	ck_assert_uint_eq(lease(&bed, 0, 1, 2).lease_slot, 77);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 2 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(reservation_shortens_then_refuses)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_make(&bed, 10 * BLOCK_BYTES, 1, 50, 50, one_full);
	put(&bed, 1, 0, 4);
	put(&bed, 2, 0, 4);
	struct okw_lookup_reply whole = lease(&bed, 0, 1, 3);
	ck_assert_uint_eq(whole.shortened, 0);
	ck_assert_int_eq(find(&bed, 1, 2, 4, &reply), 0);
	ck_assert_uint_eq(reply.shortened, 1);
	ck_assert_uint_eq(reply.tokens, 32);
	ck_assert_uint_eq(reply.groups[0].count, 2);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 5 * BLOCK_BYTES);

	struct okw_lookup_reply kept;
	memset(&kept, 0xee, sizeof(kept));
	struct okw_lookup_reply before = kept;
	put(&bed, 3, 0, 2);
	ck_assert_int_eq(find(&bed, 2, 3, 2, &kept), OKV_E_AGAIN);
	ck_assert_mem_eq(&kept, &before, sizeof(kept));
	ck_assert_uint_eq(peek(&bed, 3, 2), 2); /* asking stays possible */

	/* What is pinned already costs nothing more. */
	ck_assert_uint_eq(lease(&bed, 2, 1, 3).shortened, 0);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 5 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(one_session_cannot_take_everything)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_make(&bed, 10 * BLOCK_BYTES, 1, 80, 30, one_full);
	put(&bed, 1, 0, 5);
	put(&bed, 2, 0, 5);
	ck_assert_int_eq(find(&bed, 0, 1, 5, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	ck_assert_uint_eq(reply.shortened, 1);
	uint32_t slot = reply.lease_slot;
	ck_assert_int_eq(find(&bed, 0, 2, 5, &reply), OKV_E_AGAIN);
	/* The same blocks again are no more bytes for the same session. */
	ck_assert_int_eq(find(&bed, 0, 1, 5, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	/* They are for another one, though the pool pins them once. */
	ck_assert_int_eq(find(&bed, 1, 1, 3, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	ck_assert_int_eq(find(&bed, 1, 2, 5, &reply), OKV_E_AGAIN);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 3 * BLOCK_BYTES);
	oki_index_lease_release(bed.index, 0, slot);
	ck_assert_int_eq(find(&bed, 0, 2, 5, &reply), OKV_E_AGAIN); /* one more lease */
	oki_index_session_end(bed.index, 0);
	ck_assert_int_eq(find(&bed, 0, 2, 5, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_new_session_does_not_pay_for_the_last_one)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_make(&bed, 10 * BLOCK_BYTES, 1, 80, 30, one_full);
	put(&bed, 1, 0, 3);
	put(&bed, 2, 0, 3);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 3);
	ck_assert_int_eq(open_lease(&bed, 1, &from, &reply), 0);
	oki_index_session_end(bed.index, 0);
	ck_assert_uint_eq(lease(&bed, 0, 2, 3).shortened, 0);
	ck_assert_uint_eq(lease(&bed, 1, 2, 3).shortened, 0);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 6 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(what_a_short_lease_leaves_out_was_still_used)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_make(&bed, 8 * BLOCK_BYTES, 1, 50, 50, one_full);
	put(&bed, 1, 0, 6);
	put(&bed, 2, 0, 2);
	ck_assert_int_eq(find(&bed, 0, 1, 6, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, 4);
	put(&bed, 3, 0, 2);
	ck_assert_uint_eq(peek(&bed, 1, 6), 6);
	ck_assert_uint_eq(peek(&bed, 2, 2), 0);
	bed_fini(&bed);
}
END_TEST

/* A window is cut by going to a shorter prefix with a window of its own. */
START_TEST(a_window_is_shortened_as_a_whole)
{
	static const struct bed_group window[] = {
		{OKV_GROUP_FULL, 16, 0, 0}, {OKV_GROUP_WINDOW, 16, 32, 0}, {0, 0, 0, 0}};
	struct bed bed;
	struct okw_lookup_reply reply;
	bed_make(&bed, 20 * BLOCK_BYTES, 1, 25, 25, window);
	put_in(&bed, 0, 0, 1, 0, 6);
	put_in(&bed, 0, 1, 1, 0, 6);
	struct oki_index_keys keys[2] = {{0, 6, KEY_BYTES, keys_of(1, 0, 6)},
					 {1, 6, KEY_BYTES, keys_of(1, 0, 6)}};
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 1,
				       .group_count = 2,
				       .groups = keys,
				       .now_ns = bed.now};
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	/* five blocks may be pinned: three full ones and the two of the window before them */
	ck_assert_uint_eq(reply.tokens, 48);
	ck_assert_uint_eq(reply.shortened, 1);
	ck_assert_uint_eq(reply.groups[0].first, 0);
	ck_assert_uint_eq(reply.groups[0].count, 3);
	ck_assert_uint_eq(reply.groups[1].first, 1);
	ck_assert_uint_eq(reply.groups[1].count, 2);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 5 * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_repeated_key_is_pinned_and_let_go)
{
	struct bed bed;
	struct okw_lookup_reply reply;
	uint8_t twice[2 * KEY_BYTES];
	bed_init(&bed, 4);
	put(&bed, 1, 0, 1);
	memcpy(twice, keys_of(1, 0, 1), KEY_BYTES);
	memcpy(twice + KEY_BYTES, twice, KEY_BYTES);
	struct oki_index_keys keys = {0, 2, KEY_BYTES, twice};
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 1,
				       .group_count = 1,
				       .groups = &keys,
				       .now_ns = bed.now};
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, BLOCK_BYTES);
	oki_index_lease_release(bed.index, 0, reply.lease_slot);
	ck_assert_uint_eq(stats(&bed).bytes_pinned, 0);
	bed_fini(&bed);
}
END_TEST

enum { MIXED_SEQUENCES = 6, MIXED_BLOCKS = 150 };

static void put_noting_ids(struct bed *bed, uint32_t sequence, uint32_t first, uint32_t count,
			   uint64_t ids[MIXED_BLOCKS])
{
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	uint64_t stored;
	if (begin(bed, 0, 0, sequence, first, count, &hold, &counts) < 0)
		return;
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &stored);
	for (uint64_t i = 0; i < stored; i++)
		ids[first + blocks[i].ordinal] = oki_allocation_id(blocks[i].allocation);
	seal(bed, hold);
}

static void check_ids(struct bed *bed, const struct okw_lookup_reply *reply, const uint64_t *ids)
{
	struct oki_hold *hold;
	uint64_t count;
	ck_assert_int_eq(restore(bed, 0, reply, 0, reply->groups[0].count, true, &hold), 0);
	const struct oki_hold_block *blocks = oki_hold_blocks(hold, &count);
	for (uint64_t i = 0; i < count; i++)
		ck_assert_uint_eq(oki_allocation_id(blocks[i].allocation), ids[i]);
	seal(bed, hold);
}

/* Whatever order the blocks were used in, a lease has those that a search finds. */
START_TEST(a_lease_holds_what_peeking_finds)
{
	static uint64_t ids[MIXED_SEQUENCES][MIXED_BLOCKS];
	struct okw_lookup_reply reply, kept = {.lease_slot = OKW_LEASES};
	struct bed bed;
	uint32_t random = 1;
	bed_init(&bed, MIXED_SEQUENCES * MIXED_BLOCKS / 2);
	for (uint32_t round = 0; round < 3000; round++) {
		random = random * 1664525u + 1013904223u;
		uint32_t sequence = (random >> 8) % MIXED_SEQUENCES;
		uint32_t first = (random >> 12) % MIXED_BLOCKS, left = MIXED_BLOCKS - first;
		if (random & 0x80000000u)
			put_noting_ids(&bed, sequence, first % 3 ? first / 8 : 0, 1 + left / 2,
				       ids[sequence]);
		uint32_t found = peek(&bed, sequence, 1 + first);
		ck_assert_int_eq(find(&bed, 1, sequence, 1 + first, &reply), 0);
		ck_assert_uint_eq(reply.groups[0].count, found);
		oki_index_lease_release(bed.index, 1, reply.lease_slot);
		/* Some stay pinned for a while. */
		oki_index_lease_release(bed.index, 0, kept.lease_slot);
		ck_assert_int_eq(find(&bed, 0, sequence, 1 + first / 2, &kept), 0);
		if (kept.lease_slot != OKW_LEASES)
			check_ids(&bed, &kept, ids[sequence]);
	}
	oki_index_lease_release(bed.index, 0, kept.lease_slot);
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("lease");
	TCase *life = tcase_create("life");
	tcase_add_test(life, a_lookup_gives_a_lease_with_all_it_found);
	tcase_add_test(life, a_lease_holds_what_peeking_finds);
	tcase_add_test(life, a_miss_has_no_lease);
	tcase_add_test(life, ids_differ);
	tcase_add_test(life, time_ends_a_lease_and_use_renews_it);
	tcase_add_test(life, a_hold_outlives_its_lease);
	tcase_add_test(life, the_last_knower_ends_it);
	tcase_add_test(life, another_namespace_cannot_open_it);
	tcase_add_test(life, a_late_release_hits_no_other_lease);
	tcase_add_test(life, slots_run_out_and_come_back);
	tcase_add_test(life, a_repeated_key_is_pinned_and_let_go);
	suite_add_tcase(suite, life);
	TCase *shares = tcase_create("restore");
	tcase_add_test(shares, each_consumer_spends_one_share);
	tcase_add_test(shares, a_refused_restore_changes_nothing);
	tcase_add_test(shares, a_restore_names_what_was_published);
	tcase_add_test(shares, a_restore_of_nothing_is_legal);
	suite_add_tcase(suite, shares);
	TCase *limits = tcase_create("reservation");
	tcase_add_test(limits, reservation_shortens_then_refuses);
	tcase_add_test(limits, one_session_cannot_take_everything);
	tcase_add_test(limits, a_new_session_does_not_pay_for_the_last_one);
	tcase_add_test(limits, what_a_short_lease_leaves_out_was_still_used);
	tcase_add_test(limits, a_window_is_shortened_as_a_whole);
	suite_add_tcase(suite, limits);
	return kv_suite_run(suite);
}
