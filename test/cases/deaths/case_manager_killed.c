/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager is killed and restarted again and again; engines reopen. Is a loss known soon, are
 * sequences of an earlier Manager misses, is every restored byte right, and do descriptors or
 * mappings pile up? Usage: case_manager_killed [ROUNDS [ENGINES [MEMORY]]]
 */
#include "cases/case.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define N 16u
#define MOST 32

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 4, 16384, NULL};
static struct shared {
	_Atomic bool is_over;
	_Atomic uint64_t reopened[MOST];
	_Atomic uint64_t rounds, wrong, stale, errors, descriptors;
	_Atomic uint64_t longest_us;
} * all;
static struct case_manager m;

static bool is_lost(int rc)
{
	return okv_status_group(rc) == OKV_STATUS_GROUP_SESSION;
}

static int turn(struct case_rank *r, uint64_t sequence)
{
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	uint8_t *keys = case_keys(sequence, 0, N);
	double start = case_now();
	int rc = case_publish(r, 0, keys, 0, N, NULL);
	if (!rc)
		rc = case_find(r->ns, keys, N, &found, &lease);
	if (!rc && lease) {
		rc = case_restore(r, lease, &found, 0, NULL);
		for (uint32_t i = 0; i < found.groups[0].count && !rc; i++)
			all->wrong += case_wrong(r, 0, keys + i * CASE_KEY, i);
	}
	okv_lease_release(lease);
	uint64_t us = (uint64_t)((case_now() - start) * 1e6);
	if (us > all->longest_us)
		all->longest_us = us;
	free(keys);
	return rc;
}

static void engine(int id)
{
	uint64_t first = (uint64_t)(id + 1) << 32, next = first;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!all->is_over) {
		struct case_rank r;
		int rc = case_rank_open(&r, m.socket, &group, 1, N);
		if (rc) {
			if (!is_lost(rc) && rc != OKV_E_TIMEOUT && rc != OKV_E_CLOSED)
				all->errors++;
			if (r.engine)
				case_rank_close(&r);
			case_pause(0.01);
			continue;
		}
		/* Of an earlier Manager. */
		if (next > first)
			all->stale += case_hit(r.ns, 0, case_keys(next - 1, 0, N), N) > 0;
		all->reopened[id]++;
		all->descriptors = (uint64_t)case_descriptors(getpid());
		while (!all->is_over && !is_lost(rc)) {
			rc = turn(&r, next++);
			all->rounds++;
			all->errors += rc && !is_lost(rc) && rc != OKV_E_AGAIN && rc != OKV_E_SPENT;
		}
		case_rank_close(&r);
	}
	_exit(0);
}

static bool are_back(int engines, uint64_t round)
{
	for (int i = 0; i < engines; i++)
		if (all->reopened[i] < round)
			return false;
	return true;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 10, engines = argc > 2 ? atoi(argv[2]) : 6;
	const char *memory = argc > 3 ? argv[3] : "256M";
	pid_t pids[MOST];
	int hangs = 0;
	if (engines > MOST)
		case_die("at most %d engines", MOST);
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	case_manager_start(&m, memory, NULL);
	for (int i = 0; i < engines; i++) {
		fflush(stdout);
		pids[i] = fork();
		if (pids[i] == 0)
			engine(i);
	}
	for (int round = 1; round <= rounds; round++) {
		case_until(are_back(engines, (uint64_t)round), 15);
		case_pause(0.3 + 0.1 * (round % 7));
		case_manager_kill(&m, SIGKILL);
		double start = case_now();
		if (!case_manager_again(&m, memory, NULL))
			case_die("the Manager did not start again");
		double ready = case_now() - start;
		bool is_back = case_until(are_back(engines, (uint64_t)round + 1), 15);
		hangs += !is_back;
		printf("round %d: ready after %.2f s, %s after %.2f s; an engine has %" PRIu64
		       " descriptors\n",
		       round, ready, is_back ? "all engines back" : "some engines NOT back",
		       case_now() - start, all->descriptors);
		fflush(stdout);
	}
	all->is_over = true;
	for (int i = 0; i < engines; i++)
		if (!case_until(waitpid(pids[i], NULL, WNOHANG) == pids[i], 20)) {
			printf("engine %d hangs\n", i);
			hangs++;
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
	printf("rounds %" PRIu64 ", wrong bytes %" PRIu64 ", stale hits %" PRIu64
	       ", errors %" PRIu64 ", longest round %.2f s, hangs %d\n",
	       all->rounds, all->wrong, all->stale, all->errors, (double)all->longest_us / 1e6,
	       hangs);
	case_show_status("the last Manager", m.socket);
	case_manager_end(&m, SIGTERM);
	return hangs || all->wrong || all->stale || all->errors;
}
