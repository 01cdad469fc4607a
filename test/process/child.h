/* SPDX-License-Identifier: Apache-2.0 */
/* What the process tests share: the test program again as another process, in a given role. */
#ifndef TEST_PROCESS_CHILD_H
#define TEST_PROCESS_CHILD_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "support/kv.h"
#include "support/suite.h"

struct child {
	pid_t pid;
	int to;	  /* lines to it; end of file asks it to end */
	int from; /* lines from it */
};

/* A role is a test of its own, so that its assertions are reported. */
struct child_role {
	const char *name;
	const TTest *test;
};

/* In main(), first: play the role this program was started with. -1: none, go on with the tests. */
int child_main(int argc, char **argv, const struct child_role *roles, uint32_t count);

/* What a role may use. */
extern const char *child_socket;
extern const char *child_arg;
void child_say(const char *line);
/* Wait for one line; false at end of file. */
bool child_hear(char *line, size_t size);
/* Is there a line, or end of file, to hear? */
bool child_asked(void);
/* Wait for end of file. */
void child_stay(void);

/* What its parent may use. */
void child_start(struct child *c, const char *role, const char *socket_path, const char *arg);
/* Read lines until this one; fails the test when it ends before. */
void child_wait(struct child *c, const char *line);
void child_tell(struct child *c, const char *line);
/* Returns the wait status. */
int child_kill(struct child *c, int signal);
/* Ask it to end; it must do so with 0. */
void child_end(struct child *c);

/* Open descriptors of a process. */
uint32_t process_fds(pid_t pid);
/* Wait until it has no more than these; fails the test after 20 s. */
void process_await_fds(pid_t pid, uint32_t most);
/* Mappings of a process whose file name contains text. */
uint32_t process_maps(pid_t pid, const char *text);

/* Read what a Manager prints until its end, so that it never waits for a reader. */
void manager_drain(struct kv_manager *m);

/*
 * Run a program and wait for its end; everything it prints, cut at size. argv ends with NULL. env:
 * NULL-ended "NAME=value" entries to set, or "NAME" to unset; NULL: none. Returns the wait status.
 */
int process_run(const char *const *argv, const char *const *env, char *output, size_t size);
/* The same with the binary named by $ORBITKV_MANAGER before args; returns its exit code. */
int manager_run(const char *const *args, const char *const *env, char *said, size_t size);
#define RUN(said, ...) \
	manager_run((const char *const[]){__VA_ARGS__, NULL}, NULL, said, sizeof(said))

/*
 * The number behind a name, which stands in text as format has it; quotes before it are passed
 * over. Fails the test when it is not there.
 */
uint64_t number_of(const char *text, const char *format, const char *name);

#endif
