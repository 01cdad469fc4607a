/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model with attention and a recurrent state, which is kept at some blocks only, and a prompt
 * that ends inside a block. How much of the attention is usable, and can the state at the end be
 * stored?
 */
#include "cases/case.h"

static struct okv_lookup_result found;

static void peek(struct case_rank *r, const char *what, const struct case_ask *asks, uint32_t count)
{
	int rc = case_lookup(r->ns, asks, count, OKV_LOOKUP_PEEK, 1, &found, NULL);
	if (rc)
		printf("%-52s %s %s\n", what, okv_status_name(rc), case_err.text);
	else
		case_show(what, &found);
}

int main(void)
{
	const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 2, 4096, NULL},
					    {OKV_GROUP_STATE, 16, 0, 2, 65536, "state"}};
	const struct case_group fine[] = {{OKV_GROUP_FULL, 16, 0, 2, 4096, NULL},
					  {OKV_GROUP_STATE, 1, 0, 2, 65536, "state"}};
	struct case_rank r, tokenwise;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(1, 0, 64), *tokens = case_keys(2, 0, 5000);
	uint32_t page = 0;
	struct okv_op *op = NULL;
	case_must(case_rank_open(&r, NULL, groups, 2, 64));
	case_must(case_publish(&r, 0, keys, 0, 40, NULL));
	case_must(case_publish(&r, 1, keys + 9 * CASE_KEY, 9, 1, NULL));
	case_must(case_publish(&r, 1, keys + 39 * CASE_KEY, 39, 1, NULL));
	puts("attention of 40 blocks; state after blocks 9 and 39");
	case_must(case_lookup(r.ns, (struct case_ask[]){{0, 40, keys}, {1, 40, keys}}, 2, 0, 1,
			      &found, &lease));
	case_show("the same 40 blocks", &found);
	case_wipe(&r);
	case_must(case_restore(&r, lease, &found, 0, NULL));
	printf("  restored: %" PRIu64 " wrong bytes of attention, %" PRIu64 " of state\n",
	       case_wrong(&r, 0, keys + 39 * CASE_KEY, 39),
	       case_wrong(&r, 1, keys + 39 * CASE_KEY, 0));
	okv_lease_release(lease);
	peek(&r, "63 blocks", (struct case_ask[]){{0, 63, keys}, {1, 63, keys}}, 2);
	peek(&r, "39 blocks: shorter than the last state",
	     (struct case_ask[]){{0, 39, keys}, {1, 39, keys}}, 2);
	peek(&r, "attention alone", (struct case_ask[]){{0, 40, keys}}, 1);

	struct okv_publish_options o;
	struct okv_publish_group g = {
		.keys = {.group = 1,
			 .count = 1,
			 .key_bytes = CASE_KEY,
			 .keys = keys + 40 * CASE_KEY},
		.first_position = 40,
		.tokens = 7,
		.parent = keys + 39 * CASE_KEY,
		.pages = &page,
	};
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	int rc = okv_publish_start(r.binding, &o, &op, &case_err);
	if (!rc)
		rc = case_end(op, NULL);
	printf("state after 7 tokens of block 40: %s %s\n", okv_status_name(rc),
	       rc ? case_err.text : "");
	case_rank_close(&r);

	puts("the state in blocks of one token instead, stored after tokens 639 and 646");
	case_must(case_rank_open(&tokenwise, NULL, fine, 2, 64));
	case_must(case_publish(&tokenwise, 0, keys, 0, 40, NULL));
	case_must(case_publish(&tokenwise, 1, tokens + 639 * CASE_KEY, 639, 1, NULL));
	case_must(case_publish(&tokenwise, 1, tokens + 646 * CASE_KEY, 646, 1, NULL));
	peek(&tokenwise, "647 tokens", (struct case_ask[]){{0, 40, keys}, {1, 647, tokens}}, 2);
	peek(&tokenwise, "5,000 tokens", (struct case_ask[]){{0, 40, keys}, {1, 5000, tokens}}, 2);
	case_rank_close(&tokenwise);
	return 0;
}
