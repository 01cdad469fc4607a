/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions ask for arenas and never read the replies, whose descriptors count as in flight for the
 * Manager's user. Can another engine still open? Where the user is root there is no such limit:
 * run it as another one.
 */
#include "cases/case.h"
#include "cases/neighbours/case_raw.h"

#include <sys/resource.h>

static void flood(const char *socket, int ready)
{
	for (int session = 0; session < 12; session++) {
		int asked = 0, s = case_raw_hello(socket, 0);
		if (s < 0)
			break;
		while (asked < 2000 && case_raw_ask_arena(s) == 0)
			asked++;
		printf("session %d: %d requests, nothing read\n", session, asked);
		fflush(stdout);
	}
	if (write(ready, "x", 1) != 1)
		case_die("pipe");
	for (;;)
		pause();
}

static int try_open(const char *when, const char *socket)
{
	struct okv_engine *engine = NULL;
	int rc = case_engine(socket, 0, &engine);
	printf("%s: an engine opens: %s %s\n", when, okv_status_name(rc), rc ? case_err.text : "");
	if (!rc)
		okv_engine_close(engine);
	return rc;
}

int main(void)
{
	struct case_manager m;
	struct rlimit limit;
	int ready[2];
	char c;
	getrlimit(RLIMIT_NOFILE, &limit);
	printf("uid %u, %lu descriptors\n", (unsigned)getuid(), (unsigned long)limit.rlim_cur);
	if (pipe(ready))
		case_die("pipe");
	case_manager_start(&m, "64M", NULL);
	try_open("before", m.socket);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		flood(m.socket, ready[1]);
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		case_die("the flood ended early");
	int rc = try_open("beside unread replies", m.socket);
	case_show_status("then", m.socket);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	try_open("after their reader ended", m.socket);
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
