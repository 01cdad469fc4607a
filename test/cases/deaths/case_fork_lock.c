/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() opens an engine of its own, as the documents allow, while another thread of the
 * parent maps and unmaps arenas. Does it hang on a lock that was held at the fork?
 */
#include "cases/case.h"

#include <pthread.h>
#include <stdatomic.h>

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};
static struct case_manager m;
static _Atomic bool is_over;

static void *open_and_close(void *arg)
{
	struct case_rank r;
	while (!is_over)
		if (!case_rank_open(&r, m.socket, &group, 1, 16))
			case_rank_close(&r);
	return arg;
}

int main(void)
{
	pthread_t thread;
	int n = 0, hung = 0;
	case_manager_start(&m, "512M", NULL);
	pthread_create(&thread, NULL, open_and_close, NULL);
	for (; n < 200 && !hung; n++) {
		int status = 0;
		case_pause(n % 7 * 1e-4);
		pid_t pid = fork();
		if (pid == 0) {
			struct okv_engine *engine = NULL;
			alarm(8);
			if (!case_engine(m.socket, 0, &engine))
				okv_engine_close(engine);
			_exit(0);
		}
		waitpid(pid, &status, 0);
		hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
	}
	if (hung)
		printf("child %d of fork() hung for 8 s\n", n);
	else
		printf("no hang in %d forks\n", n);
	is_over = true;
	pthread_join(thread, NULL);
	case_manager_end(&m, SIGTERM);
	return hung;
}
