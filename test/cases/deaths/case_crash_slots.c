/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines die one after another in the middle of a copy. Each keeps its place of a session; can an
 * engine still open after as many as there are places?
 */
#include "cases/case.h"

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};

static void engine(const char *socket, uint64_t sequence)
{
	struct case_rank r;
	const uint32_t pages[] = {0, 1, 2, 3};
	struct okv_op *op = NULL;
	if (case_rank_open(&r, socket, &group, 1, 16)) {
		printf("engine %" PRIu64 ": %s\n", sequence, case_err.text);
		exit(1);
	}
	case_gate_close(case_page(&r, 0, 0, 0), 4096);
	case_must(case_publish_start(&r, 0, case_keys(sequence, 0, 4), 0, 4, pages, 0, &op));
	case_until(case_gate_met(), 5);
	kill(getpid(), SIGKILL);
}

int main(void)
{
	struct case_manager m;
	struct okv_engine *last = NULL;
	case_manager_start(&m, "64M", CASE_OPTIONS("--max-sessions", "64"));
	for (uint64_t k = 0; k < 66; k++) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0)
			engine(m.socket, k);
		waitpid(pid, NULL, 0);
		case_until(case_status(m.socket).sessions == 0, 5);
	}
	case_until(case_status(m.socket).ops_active == 0, 10);
	case_show_status("after 66 crashes", m.socket);
	int rc = case_engine(m.socket, 0, &last);
	printf("one more engine: %s %s\n", okv_status_name(rc), rc ? case_err.text : "");
	if (!rc)
		okv_engine_close(last);
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
