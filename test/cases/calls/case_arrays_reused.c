/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller overwrites its page table and its keys as soon as a start call returned. Do publish
 * and restore keep what they need of them?
 */
#include "cases/case.h"

#define N 64u

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 8, 65536, NULL};
	struct case_rank r;
	uint64_t wrong = 0, touched = 0;
	case_must(case_rank_open(&r, NULL, &group, 1, 2 * N));
	for (uint64_t sequence = 1; sequence <= 3; sequence++) {
		uint32_t pages[N];
		struct okv_op *op = NULL;
		struct okv_lookup_result found;
		struct okv_lease *lease;
		uint8_t *keys = case_keys(sequence, 0, N), *passed = case_keys(sequence, 0, N);
		for (uint32_t i = 0; i < N; i++) {
			pages[i] = i;
			case_fill(&r, 0, keys + i * CASE_KEY, i);
		}
		/* The pool holds two such sequences: an earlier one goes. */
		case_must(case_publish_start(&r, 0, passed, 0, N, pages, 0, &op));
		memset(pages, 0xff, sizeof(pages));
		memset(passed, 0, N * CASE_KEY);
		case_must(case_end(op, NULL));
		case_must(case_find(r.ns, keys, N, &found, &lease));
		case_wipe(&r);
		for (uint32_t i = 0; i < N; i++)
			pages[i] = 2 * N - 1 - i;
		const struct okv_restore_group g = {.count = N, .pages = pages};
		struct okv_restore_options o;
		okv_restore_options_init(&o);
		o.group_count = 1;
		o.groups = &g;
		case_must(okv_restore_start(r.binding, lease, &o, &op, &case_err));
		for (uint32_t i = 0; i < N; i++)
			pages[i] = i;
		case_must(case_end(op, NULL));
		okv_lease_release(lease);
		for (uint32_t i = 0; i < N; i++) {
			wrong += case_wrong(&r, 0, keys + i * CASE_KEY, 2 * N - 1 - i);
			touched += *case_page(&r, 0, 0, i) != 0xee;
		}
		free(keys);
		free(passed);
	}
	printf("3 rounds: %" PRIu64 " wrong bytes, %" PRIu64
	       " pages of the overwritten table touched\n",
	       wrong, touched);
	case_rank_close(&r);
	return wrong || touched;
}
