/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 128 Ki and a million tokens in blocks of 16: more keys than one call takes. Can they be asked for
 * in pieces, with full attention and with a window?
 */
#include "cases/case.h"

#define HALF 4096u

static struct okv_lookup_result found;

static void peek(struct case_rank *r, const char *what, struct case_ask attention,
		 struct case_ask window)
{
	const struct case_ask asks[] = {attention, window};
	case_must(case_lookup(r->ns, asks, 2, OKV_LOOKUP_PEEK, 1, &found, NULL));
	case_show(what, &found);
}

int main(void)
{
	const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 1, 1024, NULL},
					    {OKV_GROUP_WINDOW, 16, 1024, 1, 1024, "window"}};
	struct case_rank r, w;
	struct okv_lease *lease;
	uint64_t wrong = 0;
	uint8_t *keys = case_keys(1, 0, 16 * HALF), *second = keys + HALF * CASE_KEY;
	uint8_t *tail = keys + (2 * HALF - 64) * CASE_KEY;
	case_must(case_rank_open(&r, NULL, groups, 1, 2 * HALF));
	int rc = case_find(r.ns, keys, 2 * HALF, &found, &lease);
	printf("one lookup of 8,192 blocks: %s %s\n", okv_status_name(rc), rc ? case_err.text : "");
	rc = case_publish(&r, 0, keys, 0, 2 * HALF, NULL);
	printf("one publish of them: %s %s\n", okv_status_name(rc), rc ? case_err.text : "");
	case_must(case_publish(&r, 0, keys, 0, HALF, NULL));
	case_must(case_publish(&r, 0, second, HALF, HALF, NULL));
	case_must(case_find(r.ns, second, HALF, &found, &lease));
	case_show("the second half, as a sequence of its own", &found);
	case_wipe(&r);
	case_must(case_restore(&r, lease, &found, 0, NULL));
	for (uint32_t i = 0; i < HALF; i++)
		wrong += case_wrong(&r, 0, second + i * CASE_KEY, i);
	printf("  restored: %" PRIu64 " wrong bytes\n", wrong);
	okv_lease_release(lease);
	int calls = 0;
	double start = case_now();
	while (calls < 16 &&
	       case_hit(r.ns, 0, keys + (size_t)calls++ * HALF * CASE_KEY, HALF) == HALF)
		;
	printf("a million tokens: %d of 16 calls until the miss, %.2f ms\n", calls,
	       (case_now() - start) * 1e3);
	case_rank_close(&r);

	case_must(case_rank_open(&w, NULL, groups, 2, 2 * HALF));
	case_must(case_publish(&w, 0, keys, 0, HALF, NULL));
	case_must(case_publish(&w, 0, second, HALF, HALF, NULL));
	case_must(case_publish(&w, 1, tail, 2 * HALF - 64, 64, NULL));
	puts("with a window whose last 64 blocks are stored");
	peek(&w, "first halves of both", (struct case_ask){0, HALF, keys},
	     (struct case_ask){1, HALF, keys});
	peek(&w, "second halves of both", (struct case_ask){0, HALF, second},
	     (struct case_ask){1, HALF, second});
	peek(&w, "first half, and the window's tail", (struct case_ask){0, HALF, keys},
	     (struct case_ask){1, 64, tail});
	case_rank_close(&w);
	return wrong != 0;
}
