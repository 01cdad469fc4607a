/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager is stopped and its queue of connections is full. Does okv_engine_open() return after
 * its timeout of a second?
 */
#include "cases/case.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct case_manager m;
static _Atomic bool is_done;

static void *open_one(void *arg)
{
	struct okv_engine_options o;
	struct okv_engine *engine;
	double start = case_now();
	okv_engine_options_init(&o);
	o.socket_path = m.socket;
	o.connect_timeout_ms = 1000;
	int rc = okv_engine_open(&o, &engine, &case_err);
	printf("open: %s after %.1f s\n", okv_status_name(rc), case_now() - start);
	is_done = true;
	return arg;
}

int main(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	pthread_t thread;
	int n = 0;
	case_manager_start(&m, "64M", NULL);
	kill(m.pid, SIGSTOP);
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", m.socket);
	for (; n < 400; n++) {
		int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (connect(s, (const struct sockaddr *)&to, sizeof(to)))
			break;
	}
	printf("the queue is full after %d connections: %s\n", n, strerror(errno));
	pthread_create(&thread, NULL, open_one, NULL);
	bool is_back = case_until(is_done, 10);
	if (!is_back)
		printf("okv_engine_open() with a timeout of 1 s has not returned after 10 s\n");
	fflush(stdout);
	kill(m.pid, SIGCONT);
	case_manager_end(&m, SIGKILL);
	_exit(!is_back);
}
