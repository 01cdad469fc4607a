/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that forked a helper is killed; the helper inherited its socket and never calls the
 * library. Does the Manager notice the death, or does the session pin its blocks while the helper
 * lives?
 */
#include "cases/case.h"

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};

static void engine(const char *socket, int tell)
{
	struct case_rank r;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint8_t *keys = case_keys(1, 0, 64);
	case_must(case_rank_open(&r, socket, &group, 1, 64));
	case_must(case_publish(&r, 0, keys, 0, 64, NULL));
	case_must(case_find(r.ns, keys, 64, &found, &lease));
	pid_t helper = fork();
	if (helper == 0)
		for (;;)
			pause();
	if (write(tell, &helper, sizeof(helper)) != sizeof(helper))
		case_die("pipe");
	kill(getpid(), SIGKILL);
}

int main(void)
{
	struct case_manager m;
	int ends[2];
	pid_t helper;
	case_manager_start(&m, "64M", NULL);
	if (pipe(ends))
		case_die("pipe");
	pid_t pid = fork();
	if (pid == 0)
		engine(m.socket, ends[1]);
	if (read(ends[0], &helper, sizeof(helper)) != sizeof(helper))
		case_die("the engine did not get so far");
	waitpid(pid, NULL, 0);
	bool is_gone = case_until(case_status(m.socket).sessions == 0, 8);
	case_show_status(is_gone ? "the death was noticed" : "8 s after the death, helper alive",
			 m.socket);
	kill(helper, SIGKILL);
	case_until(case_status(m.socket).sessions == 0, 8);
	case_show_status("after the helper ended too", m.socket);
	case_manager_end(&m, SIGTERM);
	return !is_gone;
}
