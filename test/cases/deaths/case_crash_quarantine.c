/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines with host bindings are killed while a publish of theirs copies. Their copies were of the
 * process, so its death proves that they stopped; what does the Manager keep of each, and what is
 * left for others after 64? Usage: case_crash_quarantine [ROUNDS]
 */
#include "cases/case.h"

#define BLOCKS 16u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 1u << 20, NULL};

static void engine(const char *socket, uint64_t sequence)
{
	struct case_rank r;
	struct okv_op *op = NULL;
	uint32_t pages[BLOCKS];
	if (case_rank_open(&r, socket, &group, 1, BLOCKS))
		_exit(7);
	for (uint32_t i = 0; i < BLOCKS; i++)
		pages[i] = i;
	case_must(case_publish_start(&r, 0, case_keys(sequence, 0, BLOCKS), 0, BLOCKS, pages, 0,
				     &op));
	okv_op_wait_enqueued(op, 0, -1);
	kill(getpid(), SIGKILL);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 70, refused = 0;
	struct case_manager m;
	case_manager_start(&m, "1536M", NULL);
	for (int i = 1; i <= rounds && !refused; i++) {
		int status = 0;
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0)
			engine(m.socket, (uint64_t)i);
		waitpid(pid, &status, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
			refused = i;
		case_pause(0.1);
		if (i % 16 == 0 || refused) {
			printf("after %2d kills: ", i);
			case_show_status("", m.socket);
		}
	}
	if (refused)
		printf("engine %d could not open\n", refused);
	case_manager_end(&m, SIGTERM);
	return refused != 0;
}
