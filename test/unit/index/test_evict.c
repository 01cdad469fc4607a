/* SPDX-License-Identifier: Apache-2.0 */
/* [M] What goes first when space runs out, and what never goes. */
#include "index_fixture.h"
#include "support/suite.h"

#include <urcu.h>

START_TEST(least_recent_sequence_goes_first)
{
	struct bed bed;
	bed_init(&bed, 8);
	ck_assert_uint_eq(put(&bed, 1, 0, 2), 2);
	ck_assert_uint_eq(put(&bed, 2, 0, 2), 2);
	ck_assert_uint_eq(put(&bed, 3, 0, 2), 2);
	ck_assert_uint_eq(put(&bed, 4, 0, 2), 2);
	touch(&bed, 1, 2);
	ck_assert_uint_eq(put(&bed, 5, 0, 2), 2);
	ck_assert_uint_eq(peek(&bed, 2, 2), 0);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	ck_assert_uint_eq(put(&bed, 6, 0, 2), 2);
	ck_assert_uint_eq(peek(&bed, 3, 2), 0);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	ck_assert_uint_eq(peek(&bed, 4, 2), 2);
	ck_assert_uint_eq(stats(&bed).evictions, 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(peek_does_not_touch)
{
	struct bed bed;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	put(&bed, 2, 0, 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	put(&bed, 3, 0, 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 0);
	ck_assert_uint_eq(peek(&bed, 2, 2), 2);
	bed_fini(&bed);
}
END_TEST

/* Whatever way a prefix came in, each eviction shortens it by its last block. */
static void tail_goes_before_head(struct bed *bed, uint32_t sequence, uint32_t length)
{
	for (uint32_t left = length; left > 0; left--) {
		ck_assert_uint_eq(peek(bed, sequence, length), left);
		ck_assert_uint_eq(put(bed, 1000 + left, 0, 1), 1);
	}
	ck_assert_uint_eq(peek(bed, sequence, length), 0);
}

START_TEST(tails_go_before_heads_of_one_publish)
{
	struct bed bed;
	bed_init(&bed, 6);
	put(&bed, 1, 0, 6);
	tail_goes_before_head(&bed, 1, 6);
	bed_fini(&bed);
}
END_TEST

START_TEST(tails_go_before_heads_of_several_publishes)
{
	struct bed bed;
	bed_init(&bed, 9);
	for (uint32_t first = 0; first < 9; first += 3)
		put(&bed, 1, first, 3);
	tail_goes_before_head(&bed, 1, 9);
	bed_fini(&bed);
}
END_TEST

START_TEST(tails_go_before_heads_when_sealed_in_any_order)
{
	struct bed bed;
	struct oki_hold *holds[3];
	struct okw_stretch_reply counts;
	bed_init(&bed, 6);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(begin(&bed, 0, 0, 1, 2 * i, 2, &holds[i], &counts), 0);
	seal(&bed, holds[1]);
	seal(&bed, holds[0]);
	seal(&bed, holds[2]);
	tail_goes_before_head(&bed, 1, 6);
	bed_fini(&bed);
}
END_TEST

START_TEST(tails_go_before_heads_after_a_hole_was_filled)
{
	struct bed bed;
	bed_init(&bed, 5);
	put(&bed, 1, 0, 1);
	put(&bed, 1, 2, 1);
	put(&bed, 1, 0, 5);
	tail_goes_before_head(&bed, 1, 5);
	bed_fini(&bed);
}
END_TEST

START_TEST(tails_go_before_heads_after_a_lookup)
{
	struct bed bed;
	bed_init(&bed, 6);
	put(&bed, 1, 0, 6);
	touch(&bed, 1, 6);
	tail_goes_before_head(&bed, 1, 6);
	bed_fini(&bed);
}
END_TEST

START_TEST(tails_go_before_heads_after_a_restore)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 6);
	put(&bed, 1, 0, 6);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 6);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 6, false, &hold), 0);
	seal(&bed, hold);
	tail_goes_before_head(&bed, 1, 6);
	bed_fini(&bed);
}
END_TEST

START_TEST(present_keys_are_touched)
{
	struct bed bed;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	put(&bed, 2, 0, 2);
	ck_assert_uint_eq(put(&bed, 1, 0, 2), 0);
	put(&bed, 3, 0, 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	ck_assert_uint_eq(peek(&bed, 2, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(ancestors_are_touched)
{
	struct bed bed;
	bed_init(&bed, 5);
	put(&bed, 1, 0, 2);
	put(&bed, 2, 0, 2);
	put(&bed, 1, 2, 1); /* names the parent only */
	put(&bed, 3, 0, 2);
	ck_assert_uint_eq(peek(&bed, 1, 3), 3);
	ck_assert_uint_eq(peek(&bed, 2, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(ancestors_are_not_evicted_for_their_tail)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 4);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 4, 1, &hold, &counts), OKV_E_NOSPACE);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(parents_in_a_circle_end)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	for (uint32_t i = 0; i < 2; i++) {
		struct oki_index_publish_keys keys = {
			.keys = {0, 1, KEY_BYTES, keys_of(1, i, 1)},
			.parent = keys_of(1, 1 - i, 1),
		};
		struct oki_index_publish ask = {
			.namespace_id = bed.ns, .node = -1, .group_count = 1, .groups = &keys};
		ck_assert_int_eq(oki_index_publish_begin(bed.index, &ask, &hold, &counts, NULL), 0);
		seal(&bed, hold);
	}
	ck_assert_uint_eq(put(&bed, 2, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(leased_blocks_never_go)
{
	struct bed bed;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	struct okw_lookup_reply first = lease(&bed, 0, 1, 2);
	struct okw_lookup_reply second = lease(&bed, 1, 1, 2);
	put(&bed, 2, 0, 2);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_uint_eq(put(&bed, 10 + i, 0, 4), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	oki_index_lease_release(bed.index, 0, first.lease_slot);
	ck_assert_uint_eq(put(&bed, 20, 0, 4), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	oki_index_lease_release(bed.index, 1, second.lease_slot);
	ck_assert_uint_eq(put(&bed, 21, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(held_sources_never_go)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 2);
	put(&bed, 2, 0, 2);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 2);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 2, false, &hold), 0);
	ck_assert_uint_eq(stats(&bed).leases, 0);
	ck_assert_uint_eq(put(&bed, 3, 0, 4), 2);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	seal(&bed, hold);
	ck_assert_uint_eq(put(&bed, 4, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(destinations_being_written_never_go)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 3, &hold, &counts), 0);
	ck_assert_uint_eq(put(&bed, 2, 0, 2), 1);
	ck_assert_uint_eq(put(&bed, 3, 0, 2), 1);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 3), 3);
	bed_fini(&bed);
}
END_TEST

START_TEST(pool_full_of_holds_refuses_and_restores_go_on)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *restores[2];
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 4);
	struct okw_lookup_reply first = lease(&bed, 0, 1, 4);
	struct okw_lookup_reply second = lease(&bed, 0, 1, 4);
	ck_assert_int_eq(restore(&bed, 0, &first, 0, 4, false, &restores[0]), 0);
	ck_assert_int_eq(begin(&bed, 0, 0, 2, 0, 1, &hold, &counts), OKV_E_NOSPACE);
	ck_assert_int_eq(restore(&bed, 0, &second, 0, 4, false, &restores[1]), 0);
	ck_assert_uint_eq(stats(&bed).evictions, 0);
	ck_assert_uint_eq(stats(&bed).blocks, 4);
	seal(&bed, restores[0]);
	ck_assert_int_eq(begin(&bed, 0, 0, 2, 0, 1, &hold, &counts), OKV_E_NOSPACE);
	seal(&bed, restores[1]);
	ck_assert_uint_eq(put(&bed, 2, 0, 1), 1);
	bed_fini(&bed);
}
END_TEST

START_TEST(orphaned_slots_are_reclaimed)
{
	struct bed bed;
	bed_make(&bed, 4 * BLOCK_BYTES, 2, 100, 100, one_full);
	ck_assert_uint_eq(put_in(&bed, 0, 0, 1, 0, 4), 4); /* rank 1 never comes */
	ck_assert_uint_eq(stats(&bed).blocks_partial, 4);
	ck_assert_uint_eq(put_in(&bed, 0, 0, 2, 0, 2), 2);
	ck_assert_uint_eq(put_in(&bed, 1, 0, 2, 0, 2), 2);
	ck_assert_uint_eq(peek(&bed, 2, 2), 2);
	ck_assert_uint_eq(stats(&bed).blocks, 2);
	ck_assert_uint_eq(stats(&bed).blocks_partial, 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_partial_block_with_a_writer_stays)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_make(&bed, 4 * BLOCK_BYTES, 2, 100, 100, one_full);
	ck_assert_uint_eq(put_in(&bed, 0, 0, 1, 0, 2), 2);
	ck_assert_int_eq(begin(&bed, 1, 0, 1, 0, 2, &hold, &counts), 0);
	struct oki_hold *other;
	ck_assert_int_eq(begin(&bed, 0, 0, 2, 0, 1, &other, &counts), OKV_E_NOSPACE);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 2), 2);
	bed_fini(&bed);
}
END_TEST

START_TEST(what_can_never_fit_evicts_nothing)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	bed_init(&bed, 4);
	put(&bed, 1, 0, 4);
	uint32_t small = bed.ns;
	bed.ns = bed_namespace(&bed, "large", NULL, NULL, 0, one_full, 5 * BLOCK_BYTES);
	ck_assert_int_eq(begin(&bed, 0, 0, 2, 0, 1, &hold, &counts), OKV_E_NOSPACE);
	ck_assert_uint_eq(peek_in(&bed, small, 1, 4), 4);
	ck_assert_uint_eq(stats(&bed).evictions, 0);
	bed_fini(&bed);
}
END_TEST

/* Two groups of one prefix: their last blocks go before either head. */
START_TEST(groups_shrink_together)
{
	static const struct bed_group two[] = {
		{OKV_GROUP_FULL, 16, 0, 0}, {OKV_GROUP_FULL, 32, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	bed_make(&bed, 6 * BLOCK_BYTES, 1, 100, 100, two);
	put_in(&bed, 0, 0, 1, 0, 4);
	put_in(&bed, 0, 1, 1, 0, 2);
	struct oki_index_keys keys[2] = {{0, 4, KEY_BYTES, keys_of(1, 0, 4)},
					 {1, 2, KEY_BYTES, keys_of(1, 0, 2)}};
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 1,
				       .group_count = 2,
				       .groups = keys,
				       .now_ns = bed.now};
	struct okw_lookup_reply reply;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, 64);
	oki_index_lease_release(bed.index, 0, reply.lease_slot);
	ck_assert_uint_eq(put_in(&bed, 0, 0, 2, 0, 3), 3);
	ask.peek = true;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, 32);
	bed_fini(&bed);
}
END_TEST

/* Against a plain model of the order, over a few thousand random publishes and lookups. */
START_TEST(order_matches_a_model)
{
	enum { BLOCKS = 32, SEQUENCES = 40, STEPS = 4000 };
	struct bed bed;
	uint32_t recent[BLOCKS + 1]; /* single-block sequences, most recent last */
	uint32_t count = 0;
	uint32_t random = 12345;
	bed_init(&bed, BLOCKS);
	for (uint32_t step = 0; step < STEPS; step++) {
		random = random * 1664525u + 1013904223u;
		uint32_t sequence = (random >> 16) % SEQUENCES;
		uint32_t at = 0;
		while (at < count && recent[at] != sequence)
			at++;
		bool cached = at < count;
		ck_assert_uint_eq(peek(&bed, sequence, 1), cached);
		if (cached && random & 0x8000)
			touch(&bed, sequence, 1);
		else
			put(&bed, sequence, 0, 1);
		if (!cached && count == BLOCKS)
			at = 0;
		else if (!cached)
			count++;
		memmove(&recent[at], &recent[at + 1], (count - 1 - at) * sizeof(recent[0]));
		recent[count - 1] = sequence;
	}
	for (uint32_t at = 0; at < count; at++)
		ck_assert_uint_eq(peek(&bed, recent[at], 1), 1);
	bed_fini(&bed);
}
END_TEST

/* Their memory is used again for blocks of this and of another number of ranks. */
START_TEST(evicted_blocks_make_room_for_any_kind)
{
	enum { ROUNDS = 8, BLOCKS = 200 };
	struct bed bed;
	bed_init(&bed, BLOCKS);
	uint32_t single = bed.ns;
	bed.rank_slots = 4;
	uint32_t quad = bed_namespace(&bed, "quad", NULL, NULL, 0, one_full, BLOCK_BYTES);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		bed.ns = round % 3 == 2 ? quad : single;
		uint32_t ranks = bed.ns == quad ? 4 : 1;
		for (uint32_t rank = 0; rank < ranks; rank++)
			ck_assert_uint_eq(put_in(&bed, rank, 0, round, 0, BLOCKS / ranks),
					  BLOCKS / ranks);
		ck_assert_uint_eq(peek(&bed, round, BLOCKS), BLOCKS / ranks);
		ck_assert_uint_eq(stats(&bed).blocks, BLOCKS / ranks);
		ck_assert_uint_eq(stats(&bed).blocks_partial, 0);
		rcu_barrier();
	}
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("evict");
	TCase *order = tcase_create("order");
	tcase_add_test(order, least_recent_sequence_goes_first);
	tcase_add_test(order, peek_does_not_touch);
	tcase_add_test(order, tails_go_before_heads_of_one_publish);
	tcase_add_test(order, tails_go_before_heads_of_several_publishes);
	tcase_add_test(order, tails_go_before_heads_when_sealed_in_any_order);
	tcase_add_test(order, tails_go_before_heads_after_a_hole_was_filled);
	tcase_add_test(order, tails_go_before_heads_after_a_lookup);
	tcase_add_test(order, tails_go_before_heads_after_a_restore);
	tcase_add_test(order, present_keys_are_touched);
	tcase_add_test(order, ancestors_are_touched);
	tcase_add_test(order, parents_in_a_circle_end);
	tcase_add_test(order, groups_shrink_together);
	tcase_add_test(order, order_matches_a_model);
	tcase_add_test(order, evicted_blocks_make_room_for_any_kind);
	suite_add_tcase(suite, order);
	TCase *never = tcase_create("never");
	tcase_add_test(never, ancestors_are_not_evicted_for_their_tail);
	tcase_add_test(never, leased_blocks_never_go);
	tcase_add_test(never, held_sources_never_go);
	tcase_add_test(never, destinations_being_written_never_go);
	tcase_add_test(never, pool_full_of_holds_refuses_and_restores_go_on);
	tcase_add_test(never, orphaned_slots_are_reclaimed);
	tcase_add_test(never, a_partial_block_with_a_writer_stays);
	tcase_add_test(never, what_can_never_fit_evicts_nothing);
	suite_add_tcase(suite, never);
	return kv_suite_run(suite);
}
