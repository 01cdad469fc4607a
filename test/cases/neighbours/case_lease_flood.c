/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session takes leases and never releases them. How much memory do they cost the Manager, and
 * how long does the session's end hold up another one's lookups?
 * Usage: case_lease_flood [GROUPS [LEASES]]
 */
#include "cases/case.h"

#define N 4096u
static struct case_group groups[CASE_GROUPS];
static const struct case_group small = {OKV_GROUP_FULL, 16, 0, 1, 64, NULL};

static void flood(const char *socket, uint32_t count, int leases, int done, int go)
{
	struct case_rank r;
	struct case_ask asks[CASE_GROUPS];
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(1, 0, N);
	double start = case_now();
	char c;
	case_must(case_rank_open(&r, socket, groups, count, N));
	for (uint32_t g = 0; g < count; g++) {
		asks[g] = (struct case_ask){g, N, keys};
		case_must(case_publish(&r, g, keys, 0, N, NULL));
	}
	for (int i = 0; i < leases; i++)
		if (case_lookup(r.ns, asks, count, 0, 1, &found, &lease)) {
			printf("stopped at lease %d: %s\n", i, case_err.text);
			break;
		}
	printf("leases of %u blocks, in %.2f s\n", count * N, case_now() - start);
	fflush(stdout);
	if (write(done, "x", 1) != 1 || read(go, &c, 1) < 0)
		case_die("pipe");
	_exit(0);
}

static double worst_lookup(struct case_rank *r, const uint8_t *keys, double seconds)
{
	struct okv_lookup_result found;
	struct okv_lease *lease;
	double worst = 0;
	for (double end = case_now() + seconds; case_now() < end;) {
		double start = case_now();
		case_must(case_find(r->ns, keys, 8, &found, &lease));
		okv_lease_release(lease);
		if (case_now() - start > worst)
			worst = case_now() - start;
	}
	return worst;
}

int main(int argc, char **argv)
{
	uint32_t count = argc > 1 ? (uint32_t)atoi(argv[1]) : CASE_GROUPS;
	int leases = argc > 2 ? atoi(argv[2]) : 1500, done[2], go[2];
	struct case_manager m;
	struct case_rank r;
	char c;
	if (count < 1 || count > CASE_GROUPS || pipe(done) || pipe(go))
		case_die("1 to %u groups", CASE_GROUPS);
	for (uint32_t g = 0; g < count; g++)
		groups[g] = small;
	case_manager_start(&m, "256M", CASE_OPTIONS("--lease-ttl", "600"));
	long before = case_proc_kb(m.pid, "RssAnon");
	pid_t pid = fork();
	if (pid == 0)
		flood(m.socket, count, leases, done[1], go[0]);
	close(done[1]);
	if (read(done[0], &c, 1) != 1)
		case_die("the flood ended early");
	printf("the Manager's own memory: %ld, then %ld MiB\n", before / 1024,
	       case_proc_kb(m.pid, "RssAnon") / 1024);
	case_show_status("with the leases", m.socket);
	case_must(case_rank_open(&r, m.socket, &small, 1, 16));
	uint8_t *keys = case_keys(2, 0, 8);
	case_must(case_publish(&r, 0, keys, 0, 8, NULL));
	printf("worst lookup of 8 keys beside it: %.3f ms\n", worst_lookup(&r, keys, 1) * 1e3);
	if (write(go[1], "x", 1) != 1)
		case_die("pipe");
	double worst = worst_lookup(&r, keys, 3);
	printf("while the session ends: %.1f ms\n", worst * 1e3);
	waitpid(pid, NULL, 0);
	case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	return worst > 0.1;
}
