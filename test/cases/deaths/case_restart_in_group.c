/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager in a control group with limited memory dies; engines live on and still map its
 * arenas, which count for the group. Can its successor start? Needs a writable memory controller of
 * control groups v1. Usage: case_restart_in_group [poll | unbind | close]
 */
#include "cases/case.h"

#include <errno.h>
#include <sys/stat.h>

#define CONTROLLER "/sys/fs/cgroup/memory"
#define GROUP CONTROLLER "/okv_case"

static void put(const char *file, const char *text)
{
	FILE *f = fopen(file, "w");
	if (!f || fputs(text, f) < 0 || fclose(f))
		case_die("%s: %s", file, strerror(errno));
}

static uint64_t used_mib(void)
{
	uint64_t bytes = 0;
	FILE *f = fopen(GROUP "/memory.usage_in_bytes", "r");
	if (f && fscanf(f, "%" SCNu64, &bytes) != 1)
		bytes = 0;
	if (f)
		fclose(f);
	return bytes >> 20;
}

/* Where this process belongs. */
static void own_group(char *ret_file, size_t size)
{
	char line[512];
	FILE *f = fopen("/proc/self/cgroup", "r");
	snprintf(ret_file, size, CONTROLLER "/cgroup.procs");
	while (f && fgets(line, sizeof(line), f)) {
		char *path = strstr(line, ":memory:");
		if (!path)
			continue;
		line[strcspn(line, "\n")] = 0;
		snprintf(ret_file, size, CONTROLLER "%s/cgroup.procs", path + 8);
	}
	if (f)
		fclose(f);
}

/* Go in, start it, go out. */
static bool start_inside(struct case_manager *m)
{
	char home[600], self[32];
	own_group(home, sizeof(home));
	snprintf(self, sizeof(self), "%d", (int)getpid());
	put(GROUP "/cgroup.procs", self);
	bool is_ready = case_manager_again(m, "600M", NULL);
	put(home, self);
	return is_ready;
}

int main(int argc, char **argv)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};
	const char *mode = argc > 1 ? argv[1] : "idle";
	struct case_manager m = {.dir = "/tmp/okv-case-XXXXXX"};
	struct case_rank r;
	struct okv_engine_stats stats;
	if (!mkdtemp(m.dir))
		case_die("%s: %s", m.dir, strerror(errno));
	snprintf(m.socket, sizeof(m.socket), "%s/m.sock", m.dir);
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		case_die("%s: %s", GROUP, strerror(errno));
	put(GROUP "/memory.limit_in_bytes", "1073741824");
	bool is_ready = start_inside(&m);
	printf("a Manager of 600 MiB in a group of 1 GiB: %s, the group uses %" PRIu64 " MiB\n",
	       is_ready ? "ready" : "did not start", used_mib());
	case_must(case_rank_open(&r, m.socket, &group, 1, 64));
	case_must(case_publish(&r, 0, case_keys(1, 0, 64), 0, 64, NULL));
	case_manager_kill(&m, SIGKILL);
	case_must(okv_stats_get(r.engine, &stats));
	printf("it was killed; the engine maps %" PRIu64 " MiB, the group uses %" PRIu64 "\n",
	       stats.arena_bytes >> 20, used_mib());
	if (!strcmp(mode, "poll")) {
		struct okv_completion ended[4];
		uint32_t n;
		okv_engine_poll(r.engine, ended, 4, &n);
	} else if (!strcmp(mode, "unbind")) {
		okv_binding_unregister(r.binding);
		r.binding = NULL;
	} else if (!strcmp(mode, "close")) {
		case_rank_close(&r);
	}
	printf("after \"%s\" the group uses %" PRIu64 " MiB\n", mode, used_mib());
	is_ready = start_inside(&m);
	printf("the successor: %s\n", is_ready ? "ready" : "did not start");
	if (r.engine)
		case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	case_until(rmdir(GROUP) == 0, 5);
	return !is_ready;
}
