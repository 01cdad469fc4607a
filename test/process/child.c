/* SPDX-License-Identifier: Apache-2.0 */
/* The test program again as another process, in a given role. */
#include "process/child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The lines of parent and child; standard output stays for what a failing role prints. */
#define FD_IN 198
#define FD_OUT 199

const char *child_socket;
const char *child_arg;

static int play(const struct child_role *role)
{
	Suite *s = suite_create(role->name);
	TCase *t = tcase_create(role->name);
	tcase_add_test(t, role->test);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_set_fork_status(r, CK_NOFORK);
	srunner_run_all(r, CK_SILENT);
	int failed = srunner_ntests_failed(r);
	if (failed)
		srunner_print(r, CK_NORMAL);
	srunner_free(r);
	return failed ? 1 : 0;
}

int child_main(int argc, char **argv, const struct child_role *roles, uint32_t count)
{
	if (argc != 5 || strcmp(argv[1], "--role"))
		return -1;
	child_socket = argv[3];
	child_arg = argv[4];
	/* What a role starts has no business with these. */
	fcntl(FD_IN, F_SETFD, FD_CLOEXEC);
	fcntl(FD_OUT, F_SETFD, FD_CLOEXEC);
	for (uint32_t i = 0; i < count; i++)
		if (!strcmp(argv[2], roles[i].name))
			return play(&roles[i]);
	fprintf(stderr, "no role %s\n", argv[2]);
	return 2;
}

static void write_line(int fd, const char *line)
{
	char buf[128];
	int n = snprintf(buf, sizeof(buf), "%s\n", line);
	ck_assert_int_lt(n, (int)sizeof(buf));
	ck_assert_int_eq(write(fd, buf, (size_t)n), n);
}

static bool read_line(int fd, char *line, size_t size)
{
	size_t n = 0;
	for (;;) {
		char c;
		ssize_t got = read(fd, &c, 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		if (c == '\n')
			break;
		if (n < size - 1)
			line[n++] = c;
	}
	line[n] = 0;
	return true;
}

void child_say(const char *line)
{
	write_line(FD_OUT, line);
}

bool child_hear(char *line, size_t size)
{
	return read_line(FD_IN, line, size);
}

bool child_asked(void)
{
	struct pollfd p = {.fd = FD_IN, .events = POLLIN};
	return poll(&p, 1, 0) != 0;
}

void child_stay(void)
{
	char line[128];
	while (child_hear(line, sizeof(line)))
		;
}

void child_start(struct child *c, const char *role, const char *socket_path, const char *arg)
{
	const char *argv[] = {"/proc/self/exe", "--role", role, socket_path ? socket_path : "",
			      arg ? arg : "",	NULL};
	int in[2], out[2];
	ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	c->pid = fork();
	ck_assert_int_ge(c->pid, 0);
	if (c->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(in[0], FD_IN);
		dup2(out[1], FD_OUT);
		execv(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	c->to = in[1];
	c->from = out[0];
}

void child_wait(struct child *c, const char *line)
{
	char got[128];
	do
		ck_assert_msg(read_line(c->from, got, sizeof(got)),
			      "process %d ended before it said \"%s\"", (int)c->pid, line);
	while (strcmp(got, line));
}

void child_tell(struct child *c, const char *line)
{
	write_line(c->to, line);
}

static int join(struct child *c)
{
	int status = 0;
	ck_assert_int_eq(waitpid(c->pid, &status, 0), c->pid);
	if (c->to >= 0)
		close(c->to);
	close(c->from);
	*c = (struct child){.to = -1, .from = -1};
	return status;
}

int child_kill(struct child *c, int signal)
{
	ck_assert_int_eq(kill(c->pid, signal), 0);
	return join(c);
}

void child_end(struct child *c)
{
	close(c->to);
	c->to = -1;
	ck_assert_int_eq(join(c), 0);
}

uint32_t process_fds(pid_t pid)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *dir = opendir(path);
	ck_assert(dir != NULL);
	uint32_t n = 0;
	for (struct dirent *e; (e = readdir(dir));)
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

void process_await_fds(pid_t pid, uint32_t most)
{
	struct timespec start, now;
	uint32_t n;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		n = process_fds(pid);
		if (n <= most)
			return;
		sched_yield();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < 20);
	ck_abort_msg("process %d has %u descriptors where %u were", (int)pid, n, most);
}

uint32_t process_maps(pid_t pid, const char *text)
{
	char line[1024];
	snprintf(line, sizeof(line), "/proc/%d/maps", (int)pid);
	FILE *f = fopen(line, "re");
	ck_assert(f != NULL);
	uint32_t n = 0;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

static void *drain(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char buf[4096];
	ssize_t n;
	do
		n = read(fd, buf, sizeof(buf));
	while (n > 0 || (n < 0 && errno == EINTR));
	close(fd);
	return NULL;
}

void manager_drain(struct kv_manager *m)
{
	pthread_t thread;
	int fd = fcntl(m->out, F_DUPFD_CLOEXEC, 3);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, drain, (void *)(intptr_t)fd), 0);
	pthread_detach(thread);
}

static void set_env(const char *const *env)
{
	for (; env && *env; env++)
		if (strchr(*env, '='))
			putenv((char *)(uintptr_t)*env);
		else
			unsetenv(*env);
}

int process_run(const char *const *argv, const char *const *env, char *output, size_t size)
{
	int fds[2], status = 0;
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		set_env(env);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		execv(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(fds[1]);
	size_t n = 0;
	char c;
	while (read(fds[0], &c, 1) == 1)
		if (n < size - 1)
			output[n++] = c;
	output[n] = 0;
	close(fds[0]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

int manager_run(const char *const *args, const char *const *env, char *said, size_t size)
{
	const char *argv[16] = {getenv("ORBITKV_MANAGER")};
	for (int n = 1; *args && n < 15; args++)
		argv[n++] = *args;
	int status = process_run(argv, env, said, size);
	ck_assert_msg(WIFEXITED(status), "ended by signal %d: %s", WTERMSIG(status), said);
	return WEXITSTATUS(status);
}

uint64_t number_of(const char *text, const char *format, const char *name)
{
	char what[64];
	snprintf(what, sizeof(what), format, name);
	const char *at = strstr(text, what);
	ck_assert_msg(at != NULL, "no %s in %s", what, text);
	unsigned long long value = 0;
	at += strlen(what);
	at += strspn(at, " \"");
	ck_assert_int_eq(sscanf(at, "%llu", &value), 1);
	return value;
}
