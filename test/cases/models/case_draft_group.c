/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speculative decoding: the last block of the draft model changes and is not stored, the recurrent
 * state is stored at the end only. What is usable, and do engines with and without a draft share
 * the target's values?
 */
#include "cases/case.h"

static const struct case_group groups[] = {
	{OKV_GROUP_FULL, 16, 0, 2, 4096, NULL},
	{OKV_GROUP_STATE, 16, 0, 1, 16384, "state"},
	{OKV_GROUP_FULL, 16, 0, 1, 4096, "draft"},
};

static uint64_t peek(struct okv_namespace *ns, const char *what, const struct case_ask *asks,
		     uint32_t count)
{
	struct okv_lookup_result found;
	case_must(case_lookup(ns, asks, count, OKV_LOOKUP_PEEK, 1, &found, NULL));
	case_show(what, &found);
	return found.tokens;
}

int main(void)
{
	struct case_rank r;
	struct okv_namespace *plain;
	uint8_t *keys = case_keys(1, 0, 16);
	const struct case_ask all[] = {{0, 8, keys}, {1, 8, keys}, {2, 8, keys}};
	case_must(case_rank_open(&r, NULL, groups, 3, 32));
	case_must(case_publish(&r, 0, keys, 0, 8, NULL));
	case_must(case_publish(&r, 1, keys + 7 * CASE_KEY, 7, 1, NULL));
	case_must(case_publish(&r, 2, keys, 0, 7, NULL));
	uint64_t tokens = peek(r.ns, "target, state and draft, one block short", all, 3);
	peek(r.ns, "target and state, the draft is not asked for", all, 2);
	for (uint32_t i = 0; i < 3; i++) {
		char what[32];
		snprintf(what, sizeof(what), "group %u alone", i);
		peek(r.ns, what, all + i, 1);
	}
	case_must(case_publish(&r, 1, keys + 6 * CASE_KEY, 6, 1, NULL));
	peek(r.ns, "with the state stored a block earlier too", all, 3);
	case_must(case_namespace(r.engine, &(struct case_identity){.model = "case"}, groups, 2,
				 &plain));
	peek(plain, "an engine without a draft, the same target", all, 2);
	okv_namespace_close(plain);
	case_rank_close(&r);
	return tokens == 0;
}
