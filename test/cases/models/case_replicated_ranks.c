/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four tensor-parallel ranks that hold the same bytes of attention, and each a part of a state.
 * What is stored with a slot per rank, with one slot, and with two namespaces?
 */
#include "cases/case.h"

#define N 32u
#define RANKS 4u
static const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 4, 4096, NULL},
					   {OKV_GROUP_STATE, 16, 0, 4, 4096, "state"}};

struct way {
	const char *name;
	uint32_t slots;	      /* of the namespace with the attention */
	uint32_t group_count; /* in it */
	bool has_second;      /* the state has a namespace of its own, with a slot per rank */
};

static void open_rank(struct case_rank *r, const char *socket, const char *model,
		      const struct case_group *of, uint32_t count, uint32_t slots, uint32_t slot)
{
	const struct case_identity id = {.model = model, .rank_slots = slots};
	struct okv_namespace *ns;
	case_must(case_engine(socket, 0, &r->engine));
	case_must(case_namespace(r->engine, &id, of, count, &ns));
	case_must(case_bind(r, ns, of, count, slots > 1 ? slot : 0, N, NULL));
}

static void run(const struct way *way)
{
	struct case_manager m;
	struct case_rank ranks[RANKS] = {0}, states[RANKS] = {0};
	uint8_t *keys = case_keys(1, 0, N), *last = keys + (N - 1) * CASE_KEY;
	case_manager_start(&m, "64M", NULL);
	for (uint32_t i = 0; i < RANKS; i++) {
		open_rank(&ranks[i], m.socket, "attention", groups, way->group_count, way->slots,
			  i);
		case_must(case_publish(&ranks[i], 0, keys, 0, N, NULL));
		if (way->group_count == 2)
			case_must(case_publish(&ranks[i], 1, last, N - 1, 1, NULL));
		if (!way->has_second)
			continue;
		open_rank(&states[i], m.socket, "state", groups + 1, 1, RANKS, i);
		case_must(case_publish(&states[i], 0, last, N - 1, 1, NULL));
	}
	struct okv_manager_status s = case_status(m.socket);
	uint64_t once = (uint64_t)N * 4 * 4096, state = RANKS * 4 * 4096;
	printf("%-50s stored %5" PRIu64 " KiB, needed %5" PRIu64 "; usable blocks %" PRIu64
	       ", partial %" PRIu64 "\n",
	       way->name, s.bytes_used >> 10,
	       (way->group_count == 2 || way->has_second ? once + state : once) >> 10, s.blocks,
	       s.blocks_partial);
	for (uint32_t i = 0; i < RANKS; i++) {
		case_rank_close(&ranks[i]);
		if (way->has_second)
			case_rank_close(&states[i]);
	}
	case_manager_end(&m, SIGTERM);
}

int main(void)
{
	static const struct way ways[] = {
		{"attention, a slot per rank", RANKS, 1, false},
		{"attention, one slot, all four publish", 1, 1, false},
		{"attention and state, a slot per rank", RANKS, 2, false},
		{"a namespace each, with one slot and with four", 1, 1, true},
	};
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		run(&ways[i]);
	return 0;
}
