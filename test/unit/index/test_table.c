/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Namespaces, keys, and which prefix of what is there is usable. */
#include "index_fixture.h"
#include "support/suite.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- namespaces ---- */

START_TEST(equal_identities_share_an_id)
{
	struct bed bed;
	bed_init(&bed, 4);
	ck_assert_uint_eq(bed.ns, 1);
	ck_assert_uint_eq(bed_namespace(&bed, "model", NULL, NULL, 0, one_full, BLOCK_BYTES), 1);
	ck_assert_uint_eq(bed_namespace(&bed, "model2", NULL, NULL, 0, one_full, BLOCK_BYTES), 2);
	ck_assert_uint_eq(stats(&bed).namespaces, 2);
	const struct oki_schema *schema = oki_index_schema(bed.index, 2);
	ck_assert_uint_eq(schema->group_count, 1);
	ck_assert_uint_eq(schema->groups[0].block_tokens, 16);
	ck_assert_ptr_null(oki_index_schema(bed.index, 0));
	ck_assert_ptr_null(oki_index_schema(bed.index, 3));
	ck_assert_ptr_null(oki_index_schema(bed.index, UINT32_MAX));
	bed_fini(&bed);
}
END_TEST

/* Whatever differs in identity or schema, the same keys are a clean miss. */
START_TEST(different_identities_share_no_block)
{
	static const struct bed_group wide[] = {{OKV_GROUP_FULL, 32, 0, 0}, {0, 0, 0, 0}};
	static const struct bed_group more[] = {
		{OKV_GROUP_FULL, 16, 0, 0}, {OKV_GROUP_STATE, 16, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	bed_init(&bed, 16);
	ck_assert_uint_eq(put(&bed, 1, 0, 2), 2);
	uint32_t others[] = {
		bed_namespace(&bed, "other", NULL, NULL, 0, one_full, BLOCK_BYTES),
		bed_namespace(&bed, "model", "X", NULL, 0, one_full, BLOCK_BYTES),
		bed_namespace(&bed, "model", NULL, "X", 0, one_full, BLOCK_BYTES),
		bed_namespace(&bed, "model", "", NULL, 0, one_full, BLOCK_BYTES),
		bed_namespace(&bed, "model", NULL, NULL, 1, one_full, BLOCK_BYTES),
		bed_namespace(&bed, "model", NULL, NULL, 0, one_full, BLOCK_BYTES / 2),
		bed_namespace(&bed, "model", NULL, NULL, 0, wide, BLOCK_BYTES),
		bed_namespace(&bed, "model", NULL, NULL, 0, more, BLOCK_BYTES),
	};
	const uint32_t count = sizeof(others) / sizeof(others[0]);
	for (uint32_t i = 0; i < count; i++) {
		ck_assert_uint_eq(others[i], i + 2);
		ck_assert_uint_eq(peek_in(&bed, others[i], 1, 2), 0);
	}
	uint32_t mine = bed.ns;
	bed.ns = others[1];
	ck_assert_uint_eq(put(&bed, 1, 0, 1), 1);
	ck_assert_uint_eq(peek_in(&bed, others[1], 1, 2), 1);
	ck_assert_uint_eq(peek_in(&bed, others[2], 1, 2), 0);
	ck_assert_uint_eq(peek_in(&bed, mine, 1, 2), 2);
	ck_assert_uint_eq(stats(&bed).blocks, 3);
	bed_fini(&bed);
}
END_TEST

START_TEST(bad_identities_are_refused)
{
	struct bed bed;
	struct okv_error err = {0};
	uint32_t id = 77;
	bed_init(&bed, 4);
	ck_assert_int_lt(oki_index_namespace(bed.index, (const uint8_t *)"nonsense", 8, &id, &err),
			 0);
	ck_assert_uint_gt(strlen(err.text), 0);
	ck_assert_int_eq(oki_index_namespace(bed.index, NULL, 0, &id, &err), OKV_E_INVAL);
	ck_assert_uint_eq(id, 77);
	ck_assert_uint_eq(stats(&bed).namespaces, 1);
	bed_fini(&bed);
}
END_TEST

START_TEST(namespaces_run_out)
{
	struct bed bed;
	char model[16];
	uint32_t id = 0;
	bed_init(&bed, 4);
	for (uint32_t i = 2; i <= 1024; i++) {
		snprintf(model, sizeof(model), "m%u", i);
		ck_assert_int_eq(
			bed_try_namespace(&bed, model, NULL, NULL, 0, one_full, BLOCK_BYTES, &id),
			0);
		ck_assert_uint_eq(id, i);
	}
	ck_assert_int_eq(bed_try_namespace(&bed, "more", NULL, NULL, 0, one_full, BLOCK_BYTES, &id),
			 OKV_E_LIMIT);
	ck_assert_uint_eq(bed_namespace(&bed, "m3", NULL, NULL, 0, one_full, BLOCK_BYTES), 3);
	bed_fini(&bed);
}
END_TEST

/* ---- keys ---- */

static uint32_t peek_keys(struct bed *bed, uint32_t group, const void *keys, uint32_t key_bytes)
{
	struct oki_index_keys ask_keys = {group, 1, key_bytes, keys};
	struct oki_index_lookup ask = {
		.namespace_id = bed->ns, .peek = true, .group_count = 1, .groups = &ask_keys};
	struct okw_lookup_reply reply;
	ck_assert_int_eq(oki_index_lookup(bed->index, &ask, &reply, NULL), 0);
	return reply.groups[0].count;
}

static void put_key(struct bed *bed, uint32_t group, const void *keys, uint32_t key_bytes)
{
	struct oki_index_publish_keys publish = {.keys = {group, 1, key_bytes, keys}};
	struct oki_index_publish ask = {
		.namespace_id = bed->ns, .node = -1, .group_count = 1, .groups = &publish};
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	ck_assert_int_eq(oki_index_publish_begin(bed->index, &ask, &hold, &counts, NULL), 0);
	seal(bed, hold);
}

START_TEST(keys_are_compared_whole)
{
	static const struct bed_group two[] = {
		{OKV_GROUP_FULL, 16, 0, 0}, {OKV_GROUP_FULL, 16, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	uint8_t key[32];
	bed_make(&bed, 8 * BLOCK_BYTES, 1, 100, 100, two);
	memset(key, 0x5a, sizeof(key));
	put_key(&bed, 0, key, 32);
	ck_assert_uint_eq(peek_keys(&bed, 0, key, 32), 1);
	ck_assert_uint_eq(peek_keys(&bed, 1, key, 32), 0);
	for (uint32_t bytes = 1; bytes < 32; bytes++)
		ck_assert_uint_eq(peek_keys(&bed, 0, key, bytes), 0);
	for (uint32_t i = 0; i < 32; i++) {
		key[i] ^= 0x80;
		ck_assert_uint_eq(peek_keys(&bed, 0, key, 32), 0);
		key[i] ^= 0x80;
	}
	put_key(&bed, 0, key, 1);
	ck_assert_uint_eq(peek_keys(&bed, 0, key, 1), 1);
	ck_assert_uint_eq(peek_keys(&bed, 0, key, 2), 0);
	bed_fini(&bed);
}
END_TEST

START_TEST(many_blocks_are_found_again)
{
	enum { SEQUENCES = 5000 };
	struct bed bed;
	bed_init(&bed, SEQUENCES * 4);
	for (uint32_t i = 0; i < SEQUENCES; i++)
		ck_assert_uint_eq(put(&bed, i, 0, 4), 4);
	for (uint32_t i = 0; i < SEQUENCES; i++)
		ck_assert_uint_eq(peek(&bed, i, 5), 4);
	ck_assert_uint_eq(peek(&bed, SEQUENCES, 1), 0);
	struct oki_index_stats now = stats(&bed);
	ck_assert_uint_eq(now.blocks, SEQUENCES * 4);
	ck_assert_uint_eq(now.blocks_partial, 0);
	ck_assert_uint_eq(now.published_blocks, SEQUENCES * 4);
	ck_assert_uint_eq(now.bytes_used, now.bytes_total);
	ck_assert_uint_le(now.metadata_per_block, 256);
	ck_assert_uint_eq(now.lookups, SEQUENCES + 1);
	ck_assert_uint_eq(now.lookup_keys, SEQUENCES * 5 + 1);
	ck_assert_uint_eq(now.lookup_hits, SEQUENCES * 4);
	bed_fini(&bed);
}
END_TEST

START_TEST(bad_lookups_are_refused)
{
	static const struct bed_group two[] = {
		{OKV_GROUP_FULL, 16, 0, 0}, {OKV_GROUP_FULL, 16, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	struct okw_lookup_reply reply;
	struct okv_error err;
	bed_make(&bed, 8 * BLOCK_BYTES, 1, 100, 100, two);
	const struct oki_index_keys good = {0, 1, KEY_BYTES, keys_of(1, 0, 1)};
	const struct {
		uint32_t ns, session, consumers, groups;
		struct oki_index_keys keys[2];
	} bad[] = {
		{0, 0, 1, 1, {good, good}},
		{2, 0, 1, 1, {good, good}},
		{1, OKW_MAX_SESSIONS, 1, 1, {good, good}},
		{1, 0, 0, 1, {good, good}},
		{1, 0, 1, 0, {good, good}},
		{1, 0, 1, OKW_MAX_GROUPS + 1, {good, good}},
		{1, 0, 1, 2, {good, good}},
		{1, 0, 1, 1, {{2, 1, KEY_BYTES, good.keys}, good}},
		{1, 0, 1, 1, {{UINT32_MAX, 1, KEY_BYTES, good.keys}, good}},
		{1, 0, 1, 1, {{0, 0, KEY_BYTES, good.keys}, good}},
		{1, 0, 1, 1, {{0, OKW_MAX_BLOCKS + 1, KEY_BYTES, good.keys}, good}},
		{1, 0, 1, 1, {{0, 1, 0, good.keys}, good}},
		{1, 0, 1, 1, {{0, 1, OKW_MAX_KEY_BYTES + 1, good.keys}, good}},
		{1, 0, 1, 1, {{0, 1, KEY_BYTES, NULL}, good}},
		{1, 0, 1, 2, {good, {1, 0, KEY_BYTES, good.keys}}},
	};
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct oki_index_lookup ask = {.namespace_id = bad[i].ns,
					       .session = bad[i].session,
					       .consumers = bad[i].consumers,
					       .group_count = bad[i].groups,
					       .groups = bad[i].keys,
					       .now_ns = bed.now};
		memset(&err, 0, sizeof(err));
		ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, &err), OKV_E_INVAL);
		ck_assert_uint_gt(strlen(err.text), 0);
	}
	ck_assert_uint_eq(stats(&bed).lookups, 0);
	bed_fini(&bed);
}
END_TEST

/* ---- usable prefixes, against a plain reading of the rule ---- */

#define RULE_GROUPS 4
#define RULE_BLOCKS 24

struct rule {
	struct bed_group groups[RULE_GROUPS + 1];
	uint32_t counts[RULE_GROUPS];
	bool there[RULE_GROUPS][RULE_BLOCKS];
};

static bool rule_holds(const struct rule *rule, uint32_t tokens)
{
	for (uint32_t g = 0; g < RULE_GROUPS; g++) {
		const struct bed_group *group = &rule->groups[g];
		uint32_t blocks = tokens / group->block_tokens;
		if (tokens % group->block_tokens || blocks > rule->counts[g])
			return false;
		uint32_t from = 0;
		if (group->kind == OKV_GROUP_STATE)
			from = blocks - 1;
		if (group->kind == OKV_GROUP_WINDOW && tokens > group->window_tokens)
			from = (tokens - group->window_tokens) / group->block_tokens;
		for (uint32_t b = from; b < blocks; b++) {
			if (!rule->there[g][b])
				return false;
		}
	}
	return true;
}

static void check_rule(struct bed *bed, const struct rule *rule, uint32_t sequence, bool peeking)
{
	struct oki_index_keys keys[RULE_GROUPS];
	struct okw_lookup_reply reply;
	uint32_t expected = 0;

	for (uint32_t g = 0; g < RULE_GROUPS; g++) {
		keys[g] = (struct oki_index_keys){g, rule->counts[g], KEY_BYTES,
						  keys_of(sequence, 0, rule->counts[g])};
	}
	for (uint32_t tokens = 1; tokens <= 16 * RULE_BLOCKS; tokens++) {
		if (rule_holds(rule, tokens))
			expected = tokens;
	}
	struct oki_index_lookup ask = {.namespace_id = bed->ns,
				       .peek = peeking,
				       .consumers = 1,
				       .group_count = RULE_GROUPS,
				       .groups = keys,
				       .now_ns = bed->now};
	ck_assert_int_eq(oki_index_lookup(bed->index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, expected);
	for (uint32_t g = 0; g < RULE_GROUPS; g++) {
		uint32_t end = reply.groups[g].first + reply.groups[g].count;
		ck_assert_uint_eq(end, expected / rule->groups[g].block_tokens);
		for (uint32_t b = reply.groups[g].first; b < end; b++)
			ck_assert(rule->there[g][b]);
		if (expected == 0)
			continue;
		if (rule->groups[g].kind == OKV_GROUP_FULL)
			ck_assert_uint_eq(reply.groups[g].first, 0);
		if (rule->groups[g].kind == OKV_GROUP_STATE)
			ck_assert_uint_eq(reply.groups[g].count, 1);
	}
	if (reply.lease_slot != OKW_LEASES)
		oki_index_lease_release(bed->index, 0, reply.lease_slot);
	else
		ck_assert(peeking || expected == 0);
}

START_TEST(usable_prefix_follows_the_rule)
{
	const struct bed_group groups[] = {{OKV_GROUP_WINDOW, 8, 20, 0},
					   {OKV_GROUP_FULL, 16, 0, 0},
					   {OKV_GROUP_STATE, 32, 0, 0},
					   {OKV_GROUP_WINDOW, 16, 48, 0},
					   {0, 0, 0, 0}};
	struct bed bed;
	uint32_t random = 99;
	bool some = false;
	bed_make(&bed, 4 * RULE_BLOCKS * BLOCK_BYTES, 1, 100, 100, groups);
	for (uint32_t sequence = 0; sequence < 300; sequence++) {
		struct rule rule;
		memcpy(rule.groups, groups, sizeof(rule.groups));
		for (uint32_t g = 0; g < RULE_GROUPS; g++) {
			random = random * 1664525u + 1013904223u;
			rule.counts[g] = 1 + (random >> 20) % RULE_BLOCKS;
			for (uint32_t b = 0; b < RULE_BLOCKS; b++) {
				random = random * 1664525u + 1013904223u;
				rule.there[g][b] = (random >> 16) % 64 != 0;
				if (rule.there[g][b])
					put_in(&bed, 0, g, sequence, b, 1);
			}
		}
		some = some || rule_holds(&rule, 64);
		check_rule(&bed, &rule, sequence, true);
		check_rule(&bed, &rule, sequence, false);
	}
	ck_assert(some);
	bed_fini(&bed);
}
END_TEST

START_TEST(block_sizes_without_a_common_prefix_are_a_miss)
{
	static const struct bed_group odd[] = {
		{OKV_GROUP_FULL, 65537, 0, 0}, {OKV_GROUP_FULL, 65539, 0, 0},
		{OKV_GROUP_FULL, 65543, 0, 0}, {OKV_GROUP_FULL, 65551, 0, 0},
		{OKV_GROUP_FULL, 65557, 0, 0}, {0, 0, 0, 0}};
	struct bed bed;
	struct oki_index_keys keys[5];
	bed_make(&bed, 16 * BLOCK_BYTES, 1, 100, 100, odd);
	for (uint32_t g = 0; g < 5; g++) {
		ck_assert_uint_eq(put_in(&bed, 0, g, 1, 0, 2), 2);
		keys[g] = (struct oki_index_keys){g, 2, KEY_BYTES, keys_of(1, 0, 2)};
	}
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 1,
				       .group_count = 5,
				       .groups = keys,
				       .now_ns = bed.now};
	struct okw_lookup_reply reply;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, 0);
	ask.group_count = 1;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, 2 * 65537);
	bed_fini(&bed);
}
END_TEST

START_TEST(the_largest_request_is_answered)
{
	const struct bed_group all[] = {{OKV_GROUP_FULL, 16, 0, 0},
					{OKV_GROUP_FULL, 16, 0, 0},
					{OKV_GROUP_WINDOW, 16, 1u << 20, 0},
					{OKV_GROUP_WINDOW, 16, 1u << 15, 0},
					{OKV_GROUP_WINDOW, 16, 1, 0},
					{OKV_GROUP_STATE, 16, 0, 0},
					{OKV_GROUP_STATE, 16, 0, 0},
					{OKV_GROUP_STATE, 16, 0, 0},
					{0, 0, 0, 0}};
	const uint32_t expected[] = {4096, 4096, 4096, 2048, 1, 1, 1, 1};
	struct bed bed;
	struct oki_index_keys keys[OKW_MAX_GROUPS];
	bed_make(&bed, 8 * 4096 * BLOCK_BYTES, 1, 100, 100, all);
	for (uint32_t g = 0; g < OKW_MAX_GROUPS; g++) {
		ck_assert_uint_eq(put_in(&bed, 0, g, 1, 0, 4096), 4096);
		keys[g] = (struct oki_index_keys){g, 4096, KEY_BYTES, keys_of(1, 0, 4096)};
	}
	struct oki_index_lookup ask = {.namespace_id = bed.ns,
				       .consumers = 1,
				       .group_count = OKW_MAX_GROUPS,
				       .groups = keys,
				       .now_ns = bed.now};
	struct okw_lookup_reply reply;
	ck_assert_int_eq(oki_index_lookup(bed.index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.tokens, 4096 * 16);
	for (uint32_t g = 0; g < OKW_MAX_GROUPS; g++)
		ck_assert_uint_eq(reply.groups[g].count, expected[g]);
	oki_index_lease_release(bed.index, 0, reply.lease_slot);
	bed_fini(&bed);
}
END_TEST

/* ---- threads ---- */

enum { THREADS = 4, ROUNDS = 400, THREAD_SEQUENCES = 12, THREAD_BLOCKS = 6 };

struct crew {
	struct bed *bed;
	uint32_t number;
	uint64_t published;
};

static void crew_publish(struct crew *crew, const uint8_t *keys, uint32_t count, uint64_t now)
{
	struct oki_index_publish_keys group = {.keys = {0, count, KEY_BYTES, keys}};
	struct oki_index_publish ask = {.namespace_id = crew->bed->ns,
					.session = crew->number,
					.node = -1,
					.group_count = 1,
					.groups = &group,
					.now_ns = now};
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	struct oki_index *index = crew->bed->index;
	int rc = oki_index_publish_begin(index, &ask, &hold, &counts, NULL);
	if (rc == OKV_E_NOSPACE)
		return;
	ck_assert_int_eq(rc, 0);
	struct oki_proof proof = now % 7 ? proof_drained(0) : proof_ungranted();
	crew->published += now % 7 ? hold_count(hold) : 0;
	oki_hold_release(index, hold, &proof);
}

static void crew_restore(struct crew *crew, const struct oki_index_lookup *look)
{
	struct oki_index *index = crew->bed->index;
	struct okw_lookup_reply reply;
	int rc = oki_index_lookup(index, look, &reply, NULL);
	if (rc == OKV_E_AGAIN)
		return;
	ck_assert_int_eq(rc, 0);
	if (reply.lease_slot == OKW_LEASES)
		return;
	struct oki_index_range range = {.count = reply.groups[0].count,
					.lease_slot = reply.lease_slot,
					.lease_id = reply.lease_id};
	struct oki_index_restore ask = {.namespace_id = look->namespace_id,
					.session = look->session,
					.range_count = 1,
					.ranges = &range,
					.now_ns = look->now_ns};
	struct okw_stretch_reply result;
	struct oki_hold *hold;
	uint32_t spent;
	rc = oki_index_restore_begin(index, &ask, &hold, &result, &spent, NULL);
	oki_index_lease_release(index, look->session, reply.lease_slot);
	if (rc == OKV_E_NOENT)
		return;
	ck_assert_int_eq(rc, 0);
	struct oki_proof proof = proof_drained(0);
	oki_hold_release(index, hold, &proof);
}

static void *crew_main(void *arg)
{
	struct crew *crew = arg;
	uint32_t random = crew->number * 77777u + 1;
	uint8_t keys[THREAD_BLOCKS * KEY_BYTES];

	oki_index_thread_enter();
	for (uint32_t round = 0; round < ROUNDS; round++) {
		random = random * 1664525u + 1013904223u;
		for (uint32_t i = 0; i < THREAD_BLOCKS; i++) {
			uint32_t words[4] = {(random >> 16) % THREAD_SEQUENCES, i, 0, 0};
			memcpy(keys + i * KEY_BYTES, words, KEY_BYTES);
		}
		struct oki_index_keys group = {0, THREAD_BLOCKS, KEY_BYTES, keys};
		struct oki_index_lookup look = {.namespace_id = crew->bed->ns,
						.session = crew->number,
						.peek = true,
						.consumers = 1,
						.group_count = 1,
						.groups = &group,
						.now_ns = round};
		struct okw_lookup_reply reply;
		ck_assert_int_eq(oki_index_lookup(crew->bed->index, &look, &reply, NULL), 0);
		look.peek = false;
		if (random & 0x100)
			crew_restore(crew, &look);
		else
			crew_publish(crew, keys, THREAD_BLOCKS, round);
		if (round % 64 == 0)
			oki_index_session_end(crew->bed->index, crew->number);
	}
	oki_index_thread_leave();
	return NULL;
}

START_TEST(threads_agree)
{
	struct bed bed;
	struct crew crew[THREADS];
	pthread_t threads[THREADS];
	uint64_t published = 0;
	bed_init(&bed, THREAD_BLOCKS * THREAD_SEQUENCES / 2);
	for (uint32_t i = 0; i < THREADS; i++) {
		crew[i] = (struct crew){.bed = &bed, .number = i};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, crew_main, &crew[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
		published += crew[i].published;
	}
	struct oki_index_stats now = stats(&bed);
	ck_assert_uint_eq(now.leases, 0);
	ck_assert_uint_eq(now.bytes_pinned, 0);
	ck_assert_uint_eq(now.blocks_partial, 0);
	ck_assert_uint_eq(now.published_blocks, published);
	ck_assert_uint_eq(now.blocks + now.evictions, published);
	ck_assert_uint_eq(now.bytes_used, now.blocks * BLOCK_BYTES);
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("table");
	TCase *names = tcase_create("namespaces");
	tcase_add_test(names, equal_identities_share_an_id);
	tcase_add_test(names, different_identities_share_no_block);
	tcase_add_test(names, bad_identities_are_refused);
	tcase_add_test(names, namespaces_run_out);
	suite_add_tcase(suite, names);
	TCase *keys = tcase_create("keys");
	tcase_set_timeout(keys, 120);
	tcase_add_test(keys, keys_are_compared_whole);
	tcase_add_test(keys, many_blocks_are_found_again);
	tcase_add_test(keys, bad_lookups_are_refused);
	tcase_add_test(keys, usable_prefix_follows_the_rule);
	tcase_add_test(keys, block_sizes_without_a_common_prefix_are_a_miss);
	tcase_add_test(keys, the_largest_request_is_answered);
	tcase_add_test(keys, threads_agree);
	suite_add_tcase(suite, keys);
	return kv_suite_run(suite);
}
