/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher is stopped, or killed, in the middle of its copy. Can others store and find those
 * keys? Usage: case_hung_publisher [kill]
 *
 * With the Manager in a PID namespace of its own, as in a container, it cannot see the death:
 * ORBITKV_MANAGER=test/cases/deaths/in_pid_namespace.sh MANAGER=build/orbitkv-manager.
 */
#include "cases/case.h"

#define N 32u
#define ALL 40u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 8, 1u << 16, NULL};

static void publish(const char *socket, int tell)
{
	struct case_rank r;
	struct okv_op *op = NULL;
	uint32_t pages[N];
	uint8_t *keys = case_keys(1, 0, N);
	case_must(case_rank_open(&r, socket, &group, 1, N));
	for (uint32_t i = 0; i < N; i++) {
		pages[i] = i;
		case_fill(&r, 0, keys + i * CASE_KEY, i);
	}
	case_gate_close(case_page(&r, 0, 7, 20), 65536);
	case_must(case_publish_start(&r, 0, keys, 0, N, pages, 0, &op));
	case_until(case_gate_met(), 10);
	if (write(tell, "x", 1) != 1)
		case_die("pipe");
	for (;;)
		pause();
}

static void store(struct case_rank *r, const uint8_t *keys, const char *when)
{
	struct okv_op_result result = {0};
	int rc = case_publish(r, 0, keys, 0, ALL, &result);
	printf("%s: another engine publishes 40: %s, stored %" PRIu64 ", in progress %" PRIu64
	       "; usable %u of 40\n",
	       when, okv_status_name(rc), result.blocks, result.in_progress,
	       case_hit(r->ns, 0, keys, ALL));
}

int main(int argc, char **argv)
{
	int sig = argc > 1 && !strcmp(argv[1], "kill") ? SIGKILL : SIGSTOP, ends[2];
	struct case_manager m;
	struct case_rank r;
	uint8_t *keys = case_keys(1, 0, ALL);
	char c;
	if (pipe(ends))
		case_die("pipe");
	case_manager_start(&m, "256M", NULL);
	pid_t pid = fork();
	if (pid == 0)
		publish(m.socket, ends[1]);
	close(ends[1]);
	if (read(ends[0], &c, 1) != 1)
		case_die("the publisher did not get so far");
	kill(pid, sig);
	if (sig == SIGKILL)
		waitpid(pid, NULL, 0);
	case_show_status(sig == SIGKILL ? "killed in its copy" : "stopped in its copy", m.socket);
	case_must(case_rank_open(&r, m.socket, &group, 1, ALL));
	store(&r, keys, "at once");
	case_pause(3);
	case_show_status("3 s later", m.socket);
	store(&r, keys, "3 s later");
	uint32_t usable = case_hit(r.ns, 0, keys, ALL);
	if (sig == SIGSTOP) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		case_until(case_status(m.socket).ops_active == 0, 10);
		store(&r, keys, "after it was killed");
	}
	case_rank_close(&r);
	/* unshare passes no other signal on. */
	case_manager_end(&m, SIGKILL);
	return usable < ALL;
}
