/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connector passes the keys of a window's tail alone, since it never hashed the rest. The library
 * takes them for the window's first blocks; what does it find and restore?
 */
#include "cases/case.h"

#define N 100u

int main(void)
{
	const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 1, 4096, NULL},
					    {OKV_GROUP_WINDOW, 16, 64, 1, 4096, "window"}};
	struct case_rank r;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(1, 0, N), *tail = keys + 96 * CASE_KEY;
	case_must(case_rank_open(&r, NULL, groups, 2, 128));
	case_must(case_publish(&r, 0, keys, 0, N, NULL));
	case_must(case_publish(&r, 1, tail, 96, 4, NULL));
	const struct case_ask asks[] = {{0, N, keys}, {1, 4, tail}};
	case_must(case_lookup(r.ns, asks, 2, 0, 1, &found, &lease));
	case_show("100 keys, and 4 of the window: blocks 96 to 99", &found);
	if (!lease)
		return 0;
	case_wipe(&r);
	case_must(case_restore(&r, lease, &found, 0, NULL));
	bool is_tail = !case_wrong(&r, 1, tail, 0);
	printf("as the window of a prefix of %" PRIu64
	       " tokens blocks 96 to 99 were restored: %s\n",
	       found.tokens, is_tail ? "yes" : "no");
	okv_lease_release(lease);
	case_rank_close(&r);
	return is_tail;
}
