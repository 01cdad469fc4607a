/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session looks up thousands of keys from many threads. What do another one's lookups of one
 * key and publishes of one block take, alone and beside it?
 * Usage: case_large_requests [THREADS [KEYS]]
 */
#include "cases/case.h"

#include <pthread.h>

#define N 4096u
#define TIMES 3000
static const struct case_group small = {OKV_GROUP_FULL, 16, 0, 1, 64, NULL};
static const struct case_group groups[CASE_GROUPS] = {
	{OKV_GROUP_FULL, 16, 0, 1, 64, NULL},
	{OKV_GROUP_FULL, 16, 0, 1, 64, NULL},
	{OKV_GROUP_FULL, 16, 0, 1, 64, NULL},
	{OKV_GROUP_FULL, 16, 0, 1, 64, NULL},
};
static struct case_rank large;
static uint32_t key_count = N, flags;

static void *ask_on(void *arg)
{
	struct case_ask asks[CASE_GROUPS];
	struct okv_lookup_result found;
	uint8_t *keys = case_keys(1, 0, N);
	for (uint32_t g = 0; g < CASE_GROUPS; g++)
		asks[g] = (struct case_ask){g, key_count, keys};
	for (;;) {
		struct okv_lease *lease = NULL;
		if (case_lookup(large.ns, asks, CASE_GROUPS, flags, 1, &found, &lease))
			case_pause(0.001);
		okv_lease_release(lease);
	}
	return arg;
}

static void ask_for_much(const char *socket, int threads, int ready)
{
	pthread_t thread;
	uint8_t *keys = case_keys(1, 0, N);
	case_must(case_rank_open(&large, socket, groups, CASE_GROUPS, N));
	for (uint32_t g = 0; g < CASE_GROUPS; g++)
		case_must(case_publish(&large, g, keys, 0, N, NULL));
	for (int i = 0; i < threads; i++)
		pthread_create(&thread, NULL, ask_on, NULL);
	if (write(ready, "x", 1) != 1)
		case_die("pipe");
	for (;;)
		pause();
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void print(const char *what, double *times, int n)
{
	qsort(times, (size_t)n, sizeof(*times), by_value);
	printf("  %-22s median %8.3f ms, 99 %% below %8.3f ms, worst %8.3f ms of %d\n", what,
	       times[n / 2] * 1e3, times[n * 99 / 100] * 1e3, times[n - 1] * 1e3, n);
}

static void measure(struct case_rank *r, const char *what)
{
	static double lookups[TIMES], publishes[TIMES];
	static uint64_t sequence = 1000;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	int n = 0;
	for (double end = case_now() + 6; case_now() < end && n < TIMES; n++) {
		uint8_t *key = case_keys(sequence++, 0, 1);
		double start = case_now();
		case_must(case_find(r->ns, key, 1, &found, &lease));
		okv_lease_release(lease);
		lookups[n] = case_now() - start;
		start = case_now();
		case_must(case_publish(r, 0, key, 0, 1, NULL));
		publishes[n] = case_now() - start;
		free(key);
	}
	printf("%s\n", what);
	print("lookup of 1 key", lookups, n);
	print("publish of 1 block", publishes, n);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 8;
	struct case_manager m;
	struct case_rank r;
	key_count = argc > 2 ? (uint32_t)atoi(argv[2]) : N;
	case_manager_start(&m, "256M", NULL);
	case_must(case_rank_open(&r, m.socket, &small, 1, 16));
	measure(&r, "alone");
	for (int mode = 0; mode < 2; mode++) {
		int ready[2];
		char c;
		if (pipe(ready))
			case_die("pipe");
		flags = mode ? OKV_LOOKUP_PEEK : 0;
		pid_t pid = fork();
		if (pid == 0)
			ask_for_much(m.socket, threads, ready[1]);
		close(ready[1]);
		if (read(ready[0], &c, 1) != 1)
			case_die("the other session did not get so far");
		measure(&r, mode ? "beside a session that peeks" : "beside a session that leases");
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		close(ready[0]);
	}
	case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	return 0;
}
