/* SPDX-License-Identifier: Apache-2.0 */
/* Do the Manager's counters of looked-up keys and hits tell the hit ratio? */
#include "cases/case.h"

#define N 100u
static struct okv_manager_status before;
static const char *socket_path;

static void begin(void)
{
	before = case_status(socket_path);
}

static void end(const char *what)
{
	struct okv_manager_status now = case_status(socket_path);
	uint64_t keys = now.lookup_keys - before.lookup_keys;
	uint64_t hits = now.lookup_hits - before.lookup_hits;
	printf("%-60s keys %5" PRIu64 ", hits %5" PRIu64 ": %3.0f %%\n", what, keys, hits,
	       100.0 * (double)hits / (double)keys);
}

int main(void)
{
	const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 1, 4096, NULL},
					    {OKV_GROUP_STATE, 16, 0, 1, 4096, "state"},
					    {OKV_GROUP_WINDOW, 16, 64, 1, 4096, "window"}};
	struct case_manager m;
	struct case_rank full, hybrid;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(1, 0, N), *absent = case_keys(2, 0, N), *gap = case_keys(3, 0, N);
	const struct case_ask three[] = {{0, N, keys}, {1, N, keys}, {2, N, keys}};
	case_manager_start(&m, "64M", NULL);
	socket_path = m.socket;
	case_must(case_rank_open(&full, m.socket, groups, 1, N));
	case_must(case_rank_open(&hybrid, m.socket, groups, 3, N));
	case_must(case_publish(&full, 0, keys, 0, N, NULL));
	for (uint32_t g = 0; g < 3; g++)
		case_must(case_publish(&hybrid, g, keys, 0, N, NULL));

	begin();
	case_must(case_find(full.ns, keys, N, &found, &lease));
	okv_lease_release(lease);
	end("full attention, all is there");
	begin();
	case_must(case_lookup(hybrid.ns, three, 3, 0, 1, &found, &lease));
	okv_lease_release(lease);
	end("with state and window, all is there, all tokens hit");
	begin();
	for (int i = 0; i < 99; i++)
		case_hit(full.ns, 0, absent, N);
	case_must(case_find(full.ns, keys, N, &found, &lease));
	okv_lease_release(lease);
	end("99 peeks of a router in vain, one request hits in full");
	begin();
	for (int i = 0; i < 50; i++)
		case_hit(full.ns, 0, keys, N);
	case_must(case_find(full.ns, absent, N, &found, &lease));
	end("50 peeks of a waiting request, another one misses");
	case_must(case_publish(&full, 0, gap + CASE_KEY, 1, N - 1, NULL));
	begin();
	case_must(case_find(full.ns, gap, N, &found, &lease));
	end("99 of 100 are there, but not the first: none is usable");
	case_rank_close(&full);
	case_rank_close(&hybrid);
	case_manager_end(&m, SIGTERM);
	return 0;
}
