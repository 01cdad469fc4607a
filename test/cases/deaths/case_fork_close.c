/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that forked helpers meanwhile closes its engine in order. Does its session end, or do
 * the helpers' copies of the socket keep it until no engine can open?
 */
#include "cases/case.h"

int main(void)
{
	struct case_manager m;
	pid_t helpers[70];
	int n = 0, rc = 0;
	case_manager_start(&m, "64M", NULL);
	for (; n < 70; n++) {
		struct okv_engine *engine = NULL;
		rc = case_engine(m.socket, 0, &engine);
		if (rc)
			break;
		fflush(stdout);
		helpers[n] = fork();
		if (helpers[n] == 0)
			for (;;)
				pause();
		okv_engine_close(engine);
		if (n % 20 == 0) {
			case_until(case_status(m.socket).sessions == 0, 1);
			printf("%2d opened and closed: ", n + 1);
			case_show_status("", m.socket);
		}
	}
	if (rc)
		printf("engine %d could not open: %s\n", n + 1, case_err.text);
	for (int i = 0; i < n; i++) {
		kill(helpers[i], SIGKILL);
		waitpid(helpers[i], NULL, 0);
	}
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
