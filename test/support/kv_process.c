/* SPDX-License-Identifier: Apache-2.0 */
/* A real Manager process, waited for by what it says. */
#include "support/kv.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void spawn(struct kv_manager *m, const char *const *args)
{
	const char *binary = getenv("ORBITKV_MANAGER");
	ck_assert_msg(binary != NULL, "ORBITKV_MANAGER is not set");
	const char *argv[32] = {binary, "serve", "--socket", m->socket_path};
	int n = 4;
	for (; args && *args && n < 31; args++)
		argv[n++] = *args;
	int fds[2];
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	m->pid = fork();
	ck_assert_int_ge(m->pid, 0);
	if (m->pid == 0) {
		if (m->uid && (setgroups(0, NULL) || setgid(m->uid) || setuid(m->uid)))
			_exit(126);
		/* A test that fails must not leave it running. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		execv(binary, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(fds[1]);
	m->out = fds[0];
	ck_assert_msg(kv_manager_wait_line(m, "ready: socket"),
		      "the Manager ended before it was ready");
}

bool kv_manager_wait_line(struct kv_manager *m, const char *text)
{
	char line[1024];
	size_t n = 0;
	for (;;) {
		char c;
		ssize_t got = read(m->out, &c, 1);
		if (got <= 0)
			return false;
		if (c == '\n') {
			line[n] = 0;
			if (strstr(line, text))
				return true;
			n = 0;
		} else if (n < sizeof(line) - 1) {
			line[n++] = c;
		}
	}
}

void kv_manager_start(struct kv_manager *m, const char *const *args)
{
	kv_manager_start_as(m, args, 0);
}

void kv_manager_start_as(struct kv_manager *m, const char *const *args, uid_t uid)
{
	memset(m, 0, sizeof(*m));
	m->uid = uid;
	strcpy(m->dir, "/tmp/orbitkv-test-XXXXXX");
	ck_assert(mkdtemp(m->dir) != NULL);
	if (uid)
		ck_assert_int_eq(chown(m->dir, uid, uid), 0);
	snprintf(m->socket_path, sizeof(m->socket_path), "%s/m.sock", m->dir);
	spawn(m, args);
}

void kv_manager_restart(struct kv_manager *m, const char *const *args)
{
	spawn(m, args);
}

int kv_manager_kill(struct kv_manager *m, int signal)
{
	int status = 0;
	ck_assert_int_eq(kill(m->pid, signal), 0);
	ck_assert_int_eq(waitpid(m->pid, &status, 0), m->pid);
	close(m->out);
	m->out = -1;
	m->pid = 0;
	return status;
}

void kv_manager_clean(struct kv_manager *m)
{
	DIR *dir = opendir(m->dir);
	ck_assert(dir != NULL);
	for (struct dirent *e; (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		char path[512];
		struct stat st;
		snprintf(path, sizeof(path), "%s/%s", m->dir, e->d_name);
		ck_assert_int_eq(lstat(path, &st), 0);
		ck_assert_msg(S_ISSOCK(st.st_mode), "%s was left behind", path);
		unlink(path);
	}
	closedir(dir);
	ck_assert_int_eq(rmdir(m->dir), 0);
}

struct okv_manager_status kv_manager_status(const struct kv_manager *m)
{
	struct okv_manager_status s;
	kv_ok(okv_manager_status_query(m->socket_path, 10000, &s, kv_err));
	return s;
}

void kv_manager_wait(const struct kv_manager *m, bool (*pred)(const struct okv_manager_status *),
		     const char *what)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		struct okv_manager_status s = kv_manager_status(m);
		if (pred(&s))
			return;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec < 20);
	ck_abort_msg("the Manager's status never showed: %s", what);
}
