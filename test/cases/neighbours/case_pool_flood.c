/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prompt larger than the pool that nobody asks for again, against a prefix that is in use all the
 * time. What is left of the prefix, and what keeps it?
 */
#include "cases/case.h"

#define HOT 64u
#define BIG 2000u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};
static struct case_rank a, b;
static uint8_t *hot, *big;

static void use(void)
{
	struct okv_lookup_result found;
	struct okv_lease *lease;
	case_must(case_find(a.ns, hot, HOT, &found, &lease));
	okv_lease_release(lease);
}

static void open_tenant(struct case_rank *r, const char *salt, uint32_t pages)
{
	const struct case_identity id = {.model = "case", .salt = salt};
	struct okv_namespace *ns;
	case_must(case_namespace(r->engine, &id, &group, 1, &ns));
	case_must(case_bind(r, ns, &group, 1, 0, pages, NULL));
}

int main(void)
{
	struct okv_op_result result = {0};
	struct okv_lookup_result found;
	struct okv_lease *lease;
	int hits = 0, asked = 0;
	case_must(case_engine(NULL, 64u << 20, &a.engine));
	b.engine = a.engine;
	open_tenant(&a, "a", HOT);
	open_tenant(&b, "b", BIG);
	hot = case_keys(1, 0, HOT);
	big = case_keys(2, 0, BIG);
	case_must(case_publish(&a, 0, hot, 0, HOT, NULL));
	for (int i = 0; i < 100; i++)
		use();
	printf("A's prefix of 4 MiB, looked up 100 times: %u of 64 blocks\n",
	       case_hit(a.ns, 0, hot, HOT));
	int rc = case_publish(&b, 0, big, 0, BIG, &result);
	uint32_t left = case_hit(a.ns, 0, hot, HOT);
	printf("B publishes one prompt of 125 MiB: %s, stored %" PRIu64
	       "; of A's prefix: %u of 64\n",
	       okv_status_name(rc), result.blocks, left);
	case_publish(&a, 0, hot, 0, HOT, NULL);
	for (uint32_t i = 0; i < 640; i++) {
		uint8_t *once = case_keys(1000 + i, 0, HOT);
		case_publish(&b, 0, once, 0, HOT, NULL);
		free(once);
		if (i % 16 != 15)
			continue;
		asked++;
		if (case_hit(a.ns, 0, hot, HOT) == HOT) {
			hits++;
			use();
		} else {
			case_publish(&a, 0, hot, 0, HOT, NULL);
		}
	}
	printf("A asks after every 16 prompts of B, 64 MiB: %d of %d hits\n", hits, asked);
	case_publish(&a, 0, hot, 0, HOT, NULL);
	case_must(case_find(a.ns, hot, HOT, &found, &lease));
	case_publish(&b, 0, big, 0, BIG, NULL);
	printf("with a lease held on it during the flood: %u of 64\n", case_hit(a.ns, 0, hot, HOT));
	okv_lease_release(lease);
	okv_engine_close(a.engine);
	return left < HOT;
}
