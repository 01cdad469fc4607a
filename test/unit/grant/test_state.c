/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Tests of lib/grant: the transition table, the parts word, what counts as a proof. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <orbitkv/status.h>
#include "grant/parts.h"
#include "grant/proof.h"
#include "grant/state.h"
#include "support/suite.h"

#define E OKI_MOVER_ENGINE
#define M OKI_MOVER_MANAGER

/* The graph of lib/wire/wire.h, written a second time on purpose. */
static const struct {
	uint32_t from;
	uint32_t to;
	enum oki_mover mover;
} graph[] = {
	{OKW_FREE, OKW_RESERVED, E},	  {OKW_RESERVED, OKW_FREE, E},
	{OKW_RESERVED, OKW_SUBMITTED, E}, {OKW_SUBMITTED, OKW_PREPARING, M},
	{OKW_PREPARING, OKW_DONE, M},	  {OKW_PREPARING, OKW_MANAGED, M},
	{OKW_MANAGED, OKW_DONE, M},	  {OKW_PREPARING, OKW_GRANTED, M},
	{OKW_GRANTED, OKW_REVOKED, M},	  {OKW_GRANTED, OKW_ACTIVE, E},
	{OKW_ACTIVE, OKW_DRAINED, E},	  {OKW_DRAINED, OKW_REAPED, M},
	{OKW_ACTIVE, OKW_UNKNOWN, E},	  {OKW_DONE, OKW_FREE, E},
	{OKW_REVOKED, OKW_FREE, E},	  {OKW_REAPED, OKW_FREE, E},
};
#define EDGES (sizeof(graph) / sizeof(graph[0]))

static enum oki_mover expected_mover(uint32_t from, uint32_t to)
{
	for (size_t i = 0; i < EDGES; i++)
		if (graph[i].from == from && graph[i].to == to)
			return graph[i].mover;
	return OKI_MOVER_NONE;
}

static void put(struct okw_record *record, uint64_t tag)
{
	memset(record, 0, sizeof(*record));
	atomic_store(&record->tag, tag);
}

START_TEST(edges_are_the_graph)
{
	for (uint32_t from = 0; from < OKW_STATES + 2; from++)
		for (uint32_t to = 0; to < OKW_STATES + 2; to++)
			ck_assert_msg(oki_edge(from, to) == expected_mover(from, to), "%u -> %u",
				      from, to);
	ck_assert_int_eq(oki_edge(UINT32_MAX, OKW_FREE), OKI_MOVER_NONE);
	ck_assert_int_eq(oki_edge(OKW_FREE, UINT32_MAX), OKI_MOVER_NONE);
}
END_TEST

START_TEST(every_move_by_every_mover)
{
	static const enum oki_mover movers[] = {OKI_MOVER_NONE, E, M};
	struct okw_record record;

	for (uint32_t from = 0; from < OKW_STATES; from++) {
		for (uint32_t to = 0; to < OKW_STATES; to++) {
			for (size_t m = 0; m < 3; m++) {
				uint64_t before = OKI_TAG(7, from);
				uint64_t after = OKI_TAG(to == OKW_FREE ? 8 : 7, to);
				uint64_t tag = before;
				bool allowed = movers[m] != OKI_MOVER_NONE &&
					       expected_mover(from, to) == movers[m];

				put(&record, before);
				ck_assert(oki_move(&record, &tag, to, movers[m]) == allowed);
				ck_assert_uint_eq(tag, allowed ? after : before);
				ck_assert_uint_eq(oki_tag_load(&record), allowed ? after : before);
			}
		}
	}
}
END_TEST

START_TEST(a_stale_tag_moves_nothing)
{
	struct okw_record record;
	uint64_t stale = OKI_TAG(3, OKW_GRANTED);

	/* The same state of the next generation: what a late claim or revoke would hit. */
	put(&record, OKI_TAG(4, OKW_GRANTED));
	ck_assert(!oki_move(&record, &stale, OKW_ACTIVE, E));
	ck_assert(!oki_move(&record, &stale, OKW_REVOKED, M));
	ck_assert_uint_eq(stale, OKI_TAG(3, OKW_GRANTED));
	ck_assert_uint_eq(oki_tag_load(&record), OKI_TAG(4, OKW_GRANTED));
}
END_TEST

START_TEST(a_tag_of_no_state_moves_nothing)
{
	struct okw_record record;
	uint64_t tag = OKI_TAG(1, 200);

	put(&record, tag);
	for (uint32_t to = 0; to < OKW_STATES; to++) {
		ck_assert(!oki_move(&record, &tag, to, E));
		ck_assert(!oki_move(&record, &tag, to, M));
	}
	ck_assert_uint_eq(oki_tag_load(&record), OKI_TAG(1, 200));
}
END_TEST

START_TEST(the_generation_survives_its_top)
{
	struct okw_record record;
	uint64_t tag = OKI_TAG(UINT64_MAX >> 8, OKW_DONE);

	put(&record, tag);
	ck_assert(oki_move(&record, &tag, OKW_FREE, E));
	ck_assert_uint_eq(tag, OKI_TAG(0, OKW_FREE));
}
END_TEST

START_TEST(states_have_names)
{
	ck_assert_str_eq(oki_state_name(OKW_FREE), "Free");
	ck_assert_str_eq(oki_state_name(OKW_UNKNOWN), "Unknown");
	for (uint32_t a = 0; a < OKW_STATES; a++)
		for (uint32_t b = 0; b < a; b++)
			ck_assert_str_ne(oki_state_name(a), oki_state_name(b));
	ck_assert_str_eq(oki_state_name(OKW_STATES), "?");
}
END_TEST

START_TEST(parts_are_claimed_in_order)
{
	struct okw_record record;
	uint32_t part = 99;

	put(&record, OKI_TAG(1, OKW_ACTIVE));
	ck_assert(!oki_parts_claim(&record, &part));
	ck_assert_uint_eq(part, 99);
	ck_assert(oki_parts_offer(&record));
	ck_assert(oki_parts_offer(&record));
	ck_assert(oki_parts_claim(&record, &part));
	ck_assert_uint_eq(part, 0);
	ck_assert(oki_parts_claim(&record, &part));
	ck_assert_uint_eq(part, 1);
	ck_assert(!oki_parts_claim(&record, &part));
	ck_assert_uint_eq(oki_parts_load(&record).offered, 2);
	ck_assert_uint_eq(oki_parts_load(&record).claimed, 2);
	ck_assert(!oki_parts_load(&record).closed);
}
END_TEST

START_TEST(closed_parts_stay_as_they_are)
{
	struct okw_record record;
	struct oki_parts parts;
	uint32_t part;

	put(&record, OKI_TAG(1, OKW_ACTIVE));
	ck_assert(oki_parts_offer(&record));
	ck_assert(oki_parts_offer(&record));
	ck_assert(oki_parts_claim(&record, &part));
	parts = oki_parts_close(&record);
	ck_assert(parts.closed && parts.offered == 2 && parts.claimed == 1);
	ck_assert(!oki_parts_claim(&record, &part));
	ck_assert(!oki_parts_offer(&record));
	parts = oki_parts_close(&record);
	ck_assert(parts.closed && parts.offered == 2 && parts.claimed == 1);
	oki_parts_reset(&record);
	parts = oki_parts_load(&record);
	ck_assert(!parts.closed && parts.offered == 0 && parts.claimed == 0);
}
END_TEST

START_TEST(the_count_of_offers_never_spills)
{
	struct okw_record record;
	struct oki_parts parts;

	put(&record, OKI_TAG(1, OKW_ACTIVE));
	for (uint32_t i = 0; i < OKW_PARTS_COUNT_MASK; i++)
		ck_assert(oki_parts_offer(&record));
	ck_assert(!oki_parts_offer(&record));
	parts = oki_parts_load(&record);
	ck_assert_uint_eq(parts.offered, OKW_PARTS_COUNT_MASK);
	ck_assert_uint_eq(parts.claimed, 0);
	ck_assert(parts.closed);
}
END_TEST

START_TEST(only_preparing_proves_ungranted)
{
	for (uint32_t state = 0; state < OKW_STATES; state++) {
		struct okw_record record;
		struct oki_proof proof;
		uint64_t tag = OKI_TAG(2, state);

		memset(&proof, 0, sizeof(proof));
		put(&record, tag);
		ck_assert(oki_proof_ungranted(&record, tag, &proof) == (state == OKW_PREPARING));
		ck_assert_int_eq(oki_proof_kind(&proof),
				 state == OKW_PREPARING ? OKI_PROOF_UNGRANTED : OKI_PROOF_NONE);
		ck_assert(!oki_proof_ungranted(&record, OKI_TAG(3, OKW_PREPARING), &proof));
	}
}
END_TEST

START_TEST(only_a_won_revoke_is_a_proof)
{
	for (uint32_t state = 0; state < OKW_STATES; state++) {
		struct okw_record record;
		struct oki_proof proof;
		uint64_t tag = OKI_TAG(2, OKW_GRANTED);

		memset(&proof, 0, sizeof(proof));
		put(&record, OKI_TAG(2, state));
		ck_assert(oki_proof_revoke(&record, &tag, &proof) == (state == OKW_GRANTED));
		if (state == OKW_GRANTED) {
			ck_assert_int_eq(oki_proof_kind(&proof), OKI_PROOF_REVOKED);
			ck_assert_uint_eq(tag, OKI_TAG(2, OKW_REVOKED));
			ck_assert_uint_eq(oki_tag_load(&record), tag);
		} else {
			ck_assert_int_eq(oki_proof_kind(&proof), OKI_PROOF_NONE);
			ck_assert_uint_eq(tag, OKI_TAG(2, OKW_GRANTED));
			ck_assert_uint_eq(oki_tag_load(&record), OKI_TAG(2, state));
		}
	}
}
END_TEST

/* What an engine says at Drained, and whether it may be believed. */
static const struct {
	const char *name;
	uint32_t offered, claimed, drained, consumed;
	int32_t status;
	bool believed;
} sayings[] = {
	{"all copied", 2, 2, 2, 2, 0, true},
	{"nothing to copy", 0, 0, 0, 0, 0, true},
	{"cancelled before the first part", 2, 0, 0, 0, OKV_E_CANCELLED, true},
	{"failed in the first of two", 2, 1, 1, 1, OKV_E_COPY, true},
	{"refused before it was copied", 2, 1, 1, 0, OKV_E_PLAN, true},
	{"a claimed part not drained", 2, 2, 1, 2, OKV_E_COPY, false},
	{"success with a part not drained", 2, 2, 1, 2, 0, false},
	{"more drained than claimed", 2, 1, 2, 1, OKV_E_COPY, false},
	{"more claimed than offered", 1, 2, 2, 2, 0, false},
	{"more consumed than claimed", 2, 1, 1, 2, OKV_E_COPY, false},
	{"success with a part not claimed", 2, 1, 1, 1, 0, false},
	{"a positive status", 2, 2, 2, 2, 1, false},
	{"an unknown status", 2, 2, 2, 2, -1000, false},
	{"the smallest status", 2, 2, 2, 2, INT32_MIN, false},
	{"wild counts", 2, 2, UINT32_MAX, UINT32_MAX, OKV_E_COPY, false},
};

static void say(struct okw_record *record, size_t i)
{
	atomic_store(&record->parts,
		     (uint64_t)sayings[i].offered << OKW_PARTS_OFFERED_SHIFT |
			     (uint64_t)sayings[i].claimed << OKW_PARTS_CLAIMED_SHIFT);
	atomic_store(&record->drained, sayings[i].drained);
	atomic_store(&record->consumed, sayings[i].consumed);
	record->engine_status = sayings[i].status;
}

START_TEST(a_lying_drained_proves_nothing)
{
	struct okw_record record;
	struct oki_proof proof;
	uint64_t tag = OKI_TAG(5, OKW_DRAINED);
	uint32_t part;
	bool made;

	memset(&proof, 0, sizeof(proof));
	put(&record, tag);
	say(&record, (size_t)_i);
	made = oki_proof_drained(&record, tag, &proof);
	ck_assert_msg(made == sayings[_i].believed, "%s", sayings[_i].name);
	ck_assert_uint_eq(oki_tag_load(&record), tag);
	ck_assert(!oki_parts_claim(&record, &part));
	if (!made) {
		ck_assert_int_eq(oki_proof_kind(&proof), OKI_PROOF_NONE);
		return;
	}
	ck_assert_int_eq(oki_proof_kind(&proof), OKI_PROOF_DRAINED);
	ck_assert_int_eq(oki_proof_engine_status(&proof), sayings[_i].status);
	ck_assert_uint_eq(oki_proof_claimed(&proof), sayings[_i].claimed);
}
END_TEST

START_TEST(only_this_drained_is_a_proof)
{
	for (uint32_t state = 0; state < OKW_STATES; state++) {
		struct okw_record record;
		struct oki_proof proof;
		uint64_t tag = OKI_TAG(5, state);

		memset(&proof, 0, sizeof(proof));
		put(&record, tag);
		say(&record, 0);
		if (state != OKW_DRAINED)
			ck_assert(!oki_proof_drained(&record, tag, &proof));
		ck_assert(!oki_proof_drained(&record, OKI_TAG(4, OKW_DRAINED), &proof));
		ck_assert(!oki_proof_drained(&record, OKI_TAG(6, OKW_DRAINED), &proof));
		ck_assert_int_eq(oki_proof_kind(&proof), OKI_PROOF_NONE);
		/* Nor did the look at a record of another state or generation close its parts. */
		ck_assert(!oki_parts_load(&record).closed);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("state");
	TCase *edges = tcase_create("edges");
	TCase *parts = tcase_create("parts");
	TCase *proofs = tcase_create("proofs");

	tcase_add_test(edges, edges_are_the_graph);
	tcase_add_test(edges, every_move_by_every_mover);
	tcase_add_test(edges, a_stale_tag_moves_nothing);
	tcase_add_test(edges, a_tag_of_no_state_moves_nothing);
	tcase_add_test(edges, the_generation_survives_its_top);
	tcase_add_test(edges, states_have_names);
	tcase_add_test(parts, parts_are_claimed_in_order);
	tcase_add_test(parts, closed_parts_stay_as_they_are);
	tcase_add_test(parts, the_count_of_offers_never_spills);
	tcase_add_test(proofs, only_preparing_proves_ungranted);
	tcase_add_test(proofs, only_a_won_revoke_is_a_proof);
	tcase_add_loop_test(proofs, a_lying_drained_proves_nothing, 0,
			    (int)(sizeof(sayings) / sizeof(sayings[0])));
	tcase_add_test(proofs, only_this_drained_is_a_proof);
	suite_add_tcase(suite, edges);
	suite_add_tcase(suite, parts);
	suite_add_tcase(suite, proofs);

	return kv_suite_run(suite);
}
