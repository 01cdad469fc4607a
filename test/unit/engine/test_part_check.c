/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A plan part against request, schema and mappings: what is taken, what is refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine_private.h"
#include "support/suite.h"

#define BLOCKS 6u /* of each group */
#define ARENA_BYTES 65536u

/* An operation over two groups and two arenas; nothing but addresses is ever used. */
static struct okv_engine engine;
static struct okv_namespace ns;
static struct okv_binding binding;
static struct okv_op op;
static uint8_t *memory;

static const uint32_t block_bytes[2] = {1024, 512};

static uint8_t *arena_base(uint32_t arena)
{
	return (uint8_t *)(uintptr_t)((arena + 1ull) << 32);
}

static void setup(void)
{
	memset(&engine, 0, sizeof(engine));
	memset(&ns, 0, sizeof(ns));
	memset(&binding, 0, sizeof(binding));
	memset(&op, 0, sizeof(op));
	engine.welcome.epoch = 11;
	engine.welcome.token = 12;
	engine.arena_count = 2;
	for (uint32_t i = 0; i < 2; i++) {
		engine.arenas[i].shm.base = arena_base(i);
		engine.arenas[i].shm.bytes = ARENA_BYTES;
		ns.schema.groups[i].block_bytes = block_bytes[i];
		ns.schema.groups[i].payload_bytes = block_bytes[i] - 16;
	}
	ns.schema.group_count = 2;
	binding.ns = &ns;
	op.engine = &engine;
	op.binding = &binding;
	op.kind = OKW_OP_RESTORE;
	op.record = 7;
	op.tag = OKI_TAG(3, OKW_ACTIVE);
	op.part_total = 1;
	op.transfer.group_count = 2;
	/* Request group 0 is group 1 of the schema and the other way round. */
	for (uint32_t i = 0; i < 2; i++)
		op.transfer.groups[i] =
			(struct oki_transfer_group){.group = 1 - i, .count = BLOCKS};
	memory = malloc(OKW_PART_MAX_BYTES);
}

static void teardown(void)
{
	free(memory);
}

static struct okw_plan_entry entry(uint32_t group, uint32_t ordinal)
{
	return (struct okw_plan_entry){
		.arena = ordinal / 2 % 2,
		.group = group,
		.offset = (ordinal * 2 + group) * 1024ull,
		.ordinal = ordinal,
		.bytes = block_bytes[1 - group] - 16,
	};
}

static int check_part(const struct okw_plan_entry *entries, uint32_t count, uint32_t part,
		      struct oki_part *ret_part)
{
	struct okw_plan_head head = {
		.magic = OKW_MAGIC,
		.version = OKW_PROTOCOL_VERSION,
		.epoch = 11,
		.token = 12,
		.tag = OKI_TAG(3, OKW_GRANTED),
		.record = 7,
		.part = part,
		.entry_count = count,
		.groups_done = part + 1 == op.part_total ? 3 : 0,
	};
	uint32_t bytes = (uint32_t)(sizeof(head) + count * sizeof(entries[0]));
	memcpy(memory, &head, sizeof(head));
	memcpy(memory + sizeof(head), entries, count * sizeof(entries[0]));
	return oki_part_check(&op, memory, bytes, part, ret_part, NULL);
}

/* Both groups whole, one after the other. */
static void right_plan(struct okw_plan_entry *entries)
{
	for (uint32_t i = 0; i < 2 * BLOCKS; i++)
		entries[i] = entry(i / BLOCKS, i % BLOCKS);
}

static void check_pairs(const struct oki_part_group *got, uint32_t group, uint32_t first,
			uint32_t count)
{
	ck_assert_uint_eq(got->count, count);
	for (uint32_t i = 0; i < count; i++) {
		struct okw_plan_entry e = entry(group, first + i);
		ck_assert_ptr_eq(got->pairs[i].host, arena_base(e.arena) + e.offset);
		ck_assert_uint_eq(got->pairs[i].region, e.arena);
		ck_assert_uint_eq(got->pairs[i].ordinal, e.ordinal);
	}
}

START_TEST(entries_become_pairs_of_their_group)
{
	struct okw_plan_entry entries[2 * BLOCKS];
	struct oki_part part;
	setup();
	right_plan(entries);
	ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), 0);
	ck_assert_uint_eq(part.groups_done, 3);
	check_pairs(&part.groups[0], 0, 0, BLOCKS);
	check_pairs(&part.groups[1], 1, 0, BLOCKS);
	teardown();
}
END_TEST

START_TEST(a_group_goes_on_in_the_next_part)
{
	struct okw_plan_entry entries[2 * BLOCKS];
	struct oki_part part;
	right_plan(entries);
	for (uint32_t cut = 0; cut <= 2 * BLOCKS; cut++) {
		uint32_t of_first = cut < BLOCKS ? cut : BLOCKS;
		setup();
		op.part_total = 2;
		ck_assert_int_eq(check_part(entries, cut, 0, &part), 0);
		check_pairs(&part.groups[0], 0, 0, of_first);
		check_pairs(&part.groups[1], 1, 0, cut - of_first);
		ck_assert_int_eq(check_part(entries + cut, 2 * BLOCKS - cut, 1, &part), 0);
		check_pairs(&part.groups[0], 0, of_first, BLOCKS - of_first);
		check_pairs(&part.groups[1], 1, cut - of_first, BLOCKS - (cut - of_first));
		teardown();
	}
}
END_TEST

START_TEST(the_longest_part_is_taken)
{
	enum { MOST = (OKW_PART_MAX_BYTES - sizeof(struct okw_plan_head)) / 32 };
	struct okw_plan_entry *entries = calloc(MOST, sizeof(entries[0]));
	struct oki_part part;
	setup();
	op.transfer.groups[0].count = MOST;
	op.transfer.group_count = 1;
	for (uint32_t i = 0; i < MOST; i++) {
		entries[i] = entry(0, i);
		entries[i].offset %= ARENA_BYTES;
	}
	ck_assert_int_eq(check_part(entries, MOST, 0, &part), 0);
	ck_assert_uint_eq(part.groups[0].count, MOST);
	for (uint32_t i = 0; i < MOST; i++)
		if (part.groups[0].pairs[i].ordinal != i ||
		    part.groups[0].pairs[i].host !=
			    arena_base(entries[i].arena) + entries[i].offset)
			ck_abort_msg("pair %u", i);
	teardown();
	free(entries);
}
END_TEST

/* A publish leaves out what is there; nothing else may skip a block. */
START_TEST(only_a_publish_skips_blocks)
{
	struct okw_plan_entry entries[3] = {entry(0, 1), entry(0, 4), entry(1, 3)};
	struct oki_part part;
	setup();
	ck_assert_int_eq(check_part(entries, 3, 0, &part), OKV_E_PLAN);
	teardown();
	setup();
	op.kind = OKW_OP_PUBLISH;
	ck_assert_int_eq(check_part(entries, 3, 0, &part), 0);
	ck_assert_uint_eq(part.groups[0].count, 2);
	ck_assert_uint_eq(part.groups[0].pairs[1].ordinal, 4);
	ck_assert_uint_eq(part.groups[1].pairs[0].ordinal, 3);
	teardown();
	setup();
	op.kind = OKW_OP_PUBLISH;
	entries[1].ordinal = 1;
	ck_assert_int_eq(check_part(entries, 3, 0, &part), OKV_E_PLAN);
	teardown();
}
END_TEST

static void spoil(struct okw_plan_entry *e, int what)
{
	switch (what) {
	case 0: e->arena = 2; return;
	case 1: e->arena = UINT32_MAX; return;
	case 2: e->group = 2; return;
	case 3: e->group = UINT32_MAX; return;
	case 4: e->group ^= 1; return;
	case 5: e->offset += 8; return;
	case 6: e->offset = ARENA_BYTES - 496; return;
	case 7: e->offset = ARENA_BYTES; return;
	case 8: e->offset = UINT64_MAX - 15; return;
	case 9: e->ordinal++; return;
	case 10: e->ordinal--; return;
	case 11: e->ordinal = BLOCKS; return;
	case 12: e->bytes++; return;
	default: e->bytes = 0; return;
	}
}

/* Wherever it stands: first, last, where the group or the arena changes. */
START_TEST(one_wrong_entry_spoils_a_plan)
{
	struct okw_plan_entry entries[2 * BLOCKS];
	for (uint32_t at = 0; at < 2 * BLOCKS; at++) {
		struct oki_part part = {.groups_done = 77};
		setup();
		right_plan(entries);
		spoil(&entries[at], _i);
		ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), OKV_E_PLAN);
		ck_assert_uint_eq(part.groups_done, 77);
		teardown();
	}
}
END_TEST

START_TEST(a_block_may_end_with_its_arena)
{
	struct okw_plan_entry entries[2 * BLOCKS];
	struct oki_part part;
	setup();
	right_plan(entries);
	entries[0].offset = ARENA_BYTES - 512;
	ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), 0);
	ck_assert_ptr_eq(part.groups[0].pairs[0].host, arena_base(0) + ARENA_BYTES - 512);
	teardown();
	/* and an arena that is shorter than a block has none */
	setup();
	engine.arenas[1].shm.bytes = 256;
	ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), OKV_E_PLAN);
	teardown();
}
END_TEST

/* Each in its own order, but mixed: what the Manager never writes is not guessed at. */
START_TEST(groups_stand_one_after_the_other)
{
	struct okw_plan_entry entries[2 * BLOCKS];
	struct oki_part part;
	for (uint32_t i = 0; i < 2 * BLOCKS; i++)
		entries[i] = entry(i % 2, i / 2);
	setup();
	ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), OKV_E_PLAN);
	teardown();
	for (uint32_t i = 0; i < 2 * BLOCKS; i++)
		entries[i] = entry(1 - i / BLOCKS, i % BLOCKS);
	setup();
	ck_assert_int_eq(check_part(entries, 2 * BLOCKS, 0, &part), OKV_E_PLAN);
	teardown();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("part_check");
	TCase *tc = tcase_create("part_check");
	tcase_add_test(tc, entries_become_pairs_of_their_group);
	tcase_add_test(tc, a_group_goes_on_in_the_next_part);
	tcase_add_test(tc, the_longest_part_is_taken);
	tcase_add_test(tc, only_a_publish_skips_blocks);
	tcase_add_loop_test(tc, one_wrong_entry_spoils_a_plan, 0, 14);
	tcase_add_test(tc, a_block_may_end_with_its_arena);
	tcase_add_test(tc, groups_stand_one_after_the_other);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
