/* SPDX-License-Identifier: Apache-2.0 */
/* What orbitkv-manager makes of its surroundings: signals, closed descriptors, a log unread. */
#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "process/child.h"

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

START_TEST(signals_that_stop_nothing_get_a_line_or_none)
{
	struct kv_manager m;
	kv_manager_start(&m, small);
	ck_assert_int_eq(kill(m.pid, SIGPIPE), 0);
	ck_assert_int_eq(kill(m.pid, SIGHUP), 0);
	ck_assert(kv_manager_wait_line(&m, "SIGHUP: there is nothing to reload"));
	ck_assert_int_eq(kill(m.pid, SIGUSR1), 0);
	ck_assert(kv_manager_wait_line(&m, "status: bytes_used 0 of 67108864,"));
	ck_assert_int_eq(kill(m.pid, SIGUSR2), 0);
	ck_assert(kv_manager_wait_line(&m, "status: bytes_used 0 of 67108864,"));
	ck_assert_uint_eq(kv_manager_status(&m).arenas, 1);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(a_log_that_nobody_reads_ends_nothing)
{
	struct kv_manager m;
	kv_manager_start(&m, small);
	close(m.out);
	m.out = -1;
	/* Each session is a line or two. */
	for (int i = 0; i < 3; i++)
		okv_engine_close(kv_engine_connect(m.socket_path, 0));
	ck_assert_uint_eq(kv_manager_status(&m).arenas, 1);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* What it prints goes to out; -1: its standard files are closed. */
static pid_t start(const char *socket_path, int out)
{
	const char *binary = getenv("ORBITKV_MANAGER");
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int fd = 0; fd <= 2; fd++)
			close(fd);
		if (out >= 0) {
			dup2(out, STDOUT_FILENO);
			dup2(out, STDERR_FILENO);
		}
		execl(binary, binary, "--socket", socket_path, "--memory", "64M", "--numa", "off",
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* It says nothing, so that it is asked until it answers. */
static void await_answer(pid_t pid, const char *socket_path)
{
	struct okv_manager_status st;
	struct timespec start, now;
	int status;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		if (!okv_manager_status_query(socket_path, 10000, &st, NULL))
			return;
		ck_assert_int_eq(waitpid(pid, &status, WNOHANG), 0);
		sched_yield();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < 20);
	ck_abort_msg("no Manager at %s", socket_path);
}

START_TEST(a_log_that_is_full_stalls_nothing)
{
	static const char byte[4096];
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], proc[64];
	struct kv_manager m = {0};
	const struct kv_shape shape = {.pages = 16};
	int fds[2];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	m.out = fds[0];
	m.pid = start(path, fds[1]);
	ck_assert(kv_manager_wait_line(&m, "ready: socket"));
	/* A description of its own, as the Manager's must go on to block. */
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fds[1]);
	int full = open(proc, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	ck_assert_int_ge(full, 0);
	while (write(full, byte, sizeof(byte)) > 0)
		;
	/* Each session is a line or two. */
	for (uint64_t i = 0; i < 3; i++) {
		struct okv_engine *e = kv_engine_connect(path, 0);
		struct okv_namespace *ns = kv_namespace(e, &shape);
		struct kv_rank rank;
		kv_rank_open(&rank, ns, &shape, 0);
		ck_assert_int_eq(kv_publish(&rank, i, 0, 4, NULL, NULL), 0);
		kv_rank_close(&rank);
		okv_namespace_close(ns);
		okv_engine_close(e);
	}
	ck_assert_int_eq(kill(m.pid, SIGUSR1), 0);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	close(full);
	close(fds[1]);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(closed_standard_files_become_dev_null)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], proc[64], file[64];
	int status;
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	pid_t pid = start(path, -1);
	await_answer(pid, path);
	for (int fd = 0; fd <= 2; fd++) {
		snprintf(proc, sizeof(proc), "/proc/%d/fd/%d", (int)pid, fd);
		ssize_t n = readlink(proc, file, sizeof(file) - 1);
		ck_assert_int_gt(n, 0);
		file[n] = 0;
		ck_assert_str_eq(file, "/dev/null");
	}
	ck_assert_int_eq(kill(pid, SIGTERM), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* Read until both texts came. The log and the standard output are written by different threads, so
 * either may be first. */
static bool both_come(int fd, const char *one, const char *other)
{
	char said[4096] = "";
	size_t length = 0;

	while (!strstr(said, one) || !strstr(said, other)) {
		ssize_t n = read(fd, said + length, sizeof(said) - 1 - length);
		if (n <= 0)
			return false;
		length += (size_t)n;
		said[length] = 0;
	}
	return true;
}

START_TEST(one_of_a_thing_is_said_in_the_singular)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64];
	struct kv_manager m = {0};
	int fds[2];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	m.out = fds[0];
	m.pid = start(path, fds[1]);
	close(fds[1]);
	ck_assert(both_come(m.out, "bytes ready in 1 shard of up to 67108864 on 0 NUMA nodes",
			    ", 1 arena, 67108864 bytes, "));
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon");
	TCase *t = tcase_create("daemon");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, signals_that_stop_nothing_get_a_line_or_none);
	tcase_add_test(t, a_log_that_nobody_reads_ends_nothing);
	tcase_add_test(t, a_log_that_is_full_stalls_nothing);
	tcase_add_test(t, one_of_a_thing_is_said_in_the_singular);
	tcase_add_test(t, closed_standard_files_become_dev_null);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
