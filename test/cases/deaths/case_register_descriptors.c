/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process has few descriptors left when it registers a binding. Does the call fail in time, with
 * a reason, and can the engine still be used when there is room again?
 */
#include "cases/case.h"

#include <sys/resource.h>

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};

/* Register with so many descriptors more than are in use. */
static int engine(const char *socket, rlim_t extra)
{
	struct case_rank r = {0};
	struct okv_namespace *ns = NULL;
	struct rlimit limit;
	int taken[64], n = 0, highest = 0;
	case_must(case_engine(socket, 0, &r.engine));
	case_must(
		case_namespace(r.engine, &(struct case_identity){.model = "case"}, &group, 1, &ns));
	getrlimit(RLIMIT_NOFILE, &limit);
	rlim_t before = limit.rlim_cur;
	while (n < 64 && (taken[n] = dup(0)) >= 0)
		highest = taken[n] > highest ? taken[n] : highest, n++;
	limit.rlim_cur = (rlim_t)highest + 1 + extra;
	setrlimit(RLIMIT_NOFILE, &limit);
	double start = case_now();
	int rc = case_bind(&r, ns, &group, 1, 0, 16, NULL);
	printf("%ld descriptors left: %s after %.2f s, %s; engine: %s\n", (long)extra,
	       okv_status_name(rc), case_now() - start, rc ? case_err.text : "",
	       okv_status_name(okv_engine_state(r.engine)));
	limit.rlim_cur = before;
	setrlimit(RLIMIT_NOFILE, &limit);
	while (n-- > 0)
		close(taken[n]);
	if (rc)
		rc = case_bind(&r, ns, &group, 1, 0, 16, NULL);
	printf("  with room again: %s\n", okv_status_name(rc));
	fflush(stdout);
	return rc != 0;
}

int main(void)
{
	struct case_manager m;
	int failed = 0;
	case_manager_start(&m, "192M", CASE_OPTIONS("--shard", "64M"));
	for (rlim_t extra = 0; extra <= 4; extra++) {
		int status = 0;
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0)
			_exit(engine(m.socket, extra));
		waitpid(pid, &status, 0);
		failed += status != 0;
	}
	case_manager_end(&m, SIGTERM);
	return failed != 0;
}
