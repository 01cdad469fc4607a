/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that publish, look up and restore the same sequences: some are killed at random times,
 * others check every byte. Does anything go wrong for those, and what does the Manager keep?
 * Usage: case_random_kills [VICTIMS [HEALTHY [SECONDS [MEMORY]]]]
 */
#include "cases/case.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define MOST 64
#define N 32u

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 4, 8192, NULL};
static struct shared {
	_Atomic bool is_over;
	_Atomic uint64_t rounds, refused, misses, wrong, errors;
	_Atomic uint64_t longest_us;
} * healthy, *victims;
static struct case_manager m;

static uint64_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static bool is_fault(int rc)
{
	return rc && rc != OKV_E_AGAIN && rc != OKV_E_NOSPACE && rc != OKV_E_SPENT;
}

static void turn(struct case_rank *r, struct shared *s, uint64_t *state)
{
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	uint32_t n = 4 + (uint32_t)(draw(state) % (N - 4));
	uint8_t *keys = case_keys(draw(state) % 600, 0, N);
	double start = case_now();
	int rc = case_find(r->ns, keys, n, &found, &lease);
	uint32_t have = rc || !lease ? 0 : found.groups[0].count;
	s->errors += is_fault(rc);
	if (have) {
		rc = case_restore(r, lease, &found, 0, NULL);
		s->errors += is_fault(rc);
		for (uint32_t i = 0; i < have && !rc; i++)
			s->wrong += case_wrong(r, 0, keys + i * CASE_KEY, i);
	} else {
		s->misses++;
	}
	/* A victim forgets leases now and then. */
	if (s == healthy || draw(state) % 4)
		okv_lease_release(lease);
	if (have < n)
		s->errors +=
			is_fault(case_publish(r, 0, keys + have * CASE_KEY, have, n - have, NULL));
	uint64_t us = (uint64_t)((case_now() - start) * 1e6);
	if (us > s->longest_us)
		s->longest_us = us;
	s->rounds++;
	free(keys);
}

static void engine(struct shared *s, uint64_t state)
{
	struct case_rank r;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (case_rank_open(&r, m.socket, &group, 1, N)) {
		s->refused++;
		_exit(0);
	}
	while (!healthy->is_over)
		turn(&r, s, &state);
	case_rank_close(&r);
	_exit(0);
}

static pid_t start(struct shared *s, uint64_t state)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		engine(s, state);
	return pid;
}

static void report(const char *who, struct shared *s)
{
	printf("%s: rounds %" PRIu64 ", misses %" PRIu64 ", refused opens %" PRIu64
	       ", wrong bytes %" PRIu64 ", errors %" PRIu64 ", longest round %.1f ms\n",
	       who, s->rounds, s->misses, s->refused, s->wrong, s->errors,
	       (double)s->longest_us / 1e3);
}

int main(int argc, char **argv)
{
	int victim_count = argc > 1 ? atoi(argv[1]) : 6, count = argc > 2 ? atoi(argv[2]) : 2;
	double end = case_now() + (argc > 3 ? atof(argv[3]) : 20);
	uint64_t state = 1, killed = 0;
	pid_t pids[2 * MOST] = {0};
	double due[2 * MOST] = {0};
	if (victim_count > MOST || count > MOST)
		case_die("at most %d of each", MOST);
	healthy = mmap(NULL, 2 * sizeof(*healthy), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	victims = healthy + 1;
	case_manager_start(&m, argc > 4 ? argv[4] : "64M", NULL);
	count += victim_count;
	while (case_now() < end) {
		for (int i = 0; i < count; i++) {
			bool is_victim = i < victim_count;
			if (pids[i] && is_victim && case_now() >= due[i]) {
				kill(pids[i], SIGKILL);
				killed++;
			}
			if (pids[i] && waitpid(pids[i], NULL, WNOHANG) == pids[i])
				pids[i] = 0;
			if (pids[i])
				continue;
			pids[i] = start(is_victim ? victims : healthy, draw(&state));
			due[i] = case_now() + 0.05 + (double)(draw(&state) % 4000) / 1000;
		}
		case_pause(0.005);
	}
	healthy->is_over = true;
	for (int i = 0; i < count; i++) {
		if (!pids[i])
			continue;
		if (!case_until(waitpid(pids[i], NULL, WNOHANG) == pids[i], 30)) {
			printf("engine %d hangs\n", i);
			healthy->errors++;
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
	}
	printf("killed %" PRIu64 "\n", killed);
	report("victims", victims);
	report("healthy", healthy);
	case_until(case_status(m.socket).ops_active == 0, 10);
	case_show_status("afterwards", m.socket);
	printf("the Manager has %d descriptors and %ld kB of its own\n", case_descriptors(m.pid),
	       case_proc_kb(m.pid, "RssAnon"));
	case_manager_end(&m, SIGTERM);
	return healthy->wrong || victims->wrong || healthy->errors || healthy->refused;
}
