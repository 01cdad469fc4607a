/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight engines are stopped in the middle of their work. Does another one go on, without a wrong
 * byte and without long waits, and what is left when the eight are killed?
 */
#include "cases/case.h"

#define N 32u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};

/* Publish a sequence and restore it; -1: a miss, else the number of wrong bytes. */
static int64_t round_trip(struct case_rank *r, uint64_t sequence)
{
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(sequence, 0, N);
	int64_t wrong = -1;
	int rc = case_publish(r, 0, keys, 0, N, NULL);
	if (!rc && !case_find(r->ns, keys, N, &found, &lease) && lease) {
		wrong = 0;
		if (!case_restore(r, lease, &found, N, NULL))
			for (uint32_t i = 0; i < found.groups[0].count; i++)
				wrong += (int64_t)case_wrong(r, 0, keys + i * CASE_KEY, N + i);
		okv_lease_release(lease);
	}
	free(keys);
	return wrong;
}

static void work(const char *socket, uint64_t first)
{
	struct case_rank r;
	case_must(case_rank_open(&r, socket, &group, 1, 2 * N));
	for (uint64_t q = first;; q++)
		round_trip(&r, q);
}

int main(void)
{
	struct case_manager m;
	struct case_rank r;
	pid_t pids[8];
	uint64_t rounds = 0, misses = 0;
	int64_t wrong = 0;
	double worst = 0;
	case_manager_start(&m, "16M", NULL);
	for (uint64_t i = 0; i < 8; i++) {
		fflush(stdout);
		pids[i] = fork();
		if (pids[i] == 0)
			work(m.socket, (i + 1) << 20);
	}
	case_must(case_rank_open(&r, m.socket, &group, 1, 2 * N));
	case_until(case_status(m.socket).published_blocks > 2000, 5);
	for (int i = 0; i < 8; i++)
		kill(pids[i], SIGSTOP);
	case_show_status("eight engines stopped", m.socket);
	for (double end = case_now() + 5; case_now() < end; rounds++) {
		double start = case_now();
		int64_t bad = round_trip(&r, rounds);
		misses += bad < 0;
		wrong += bad > 0 ? bad : 0;
		if (case_now() - start > worst)
			worst = case_now() - start;
	}
	printf("healthy engine: %" PRIu64 " rounds, longest %.0f ms, %" PRIu64 " misses, %" PRId64
	       " wrong bytes\n",
	       rounds, worst * 1e3, misses, wrong);
	for (int i = 0; i < 8; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	case_until(case_status(m.socket).sessions == 1 && !case_status(m.socket).ops_active, 10);
	case_show_status("all eight killed", m.socket);
	case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	return wrong || misses;
}
