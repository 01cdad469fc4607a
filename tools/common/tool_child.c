/* SPDX-License-Identifier: Apache-2.0 */
/* [M] A tool again in another process: a private Manager, or whatever else it is asked to be. */
#include "tool_child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct greeting {
	int32_t status; /* TOOL_OK once it listens */
	uint32_t reserved;
	uint64_t create_ns;
	char text[TOOL_TEXT];
};

/* What its argv says of a Manager. */
enum { ARG_PARENT = 2, ARG_MEMORY, ARG_SHARD, ARG_FLAGS, ARG_RESERVE, ARG_SESSION, ARG_SOCKET };
#define ARGS (ARG_SOCKET + 1)
#define NUMBER 24

pid_t tool_spawn(const char *const argv[], int *ret_to, int *ret_from, char *text)
{
	posix_spawn_file_actions_t actions;
	pid_t pid = -1;
	int to[2];
	int from[2];
	int rc;

	if (pipe2(to, O_CLOEXEC) != 0) {
		snprintf(text, TOOL_TEXT, "pipe: %s", strerror(errno));
		return -1;
	}
	if (pipe2(from, O_CLOEXEC) != 0) {
		snprintf(text, TOOL_TEXT, "pipe: %s", strerror(errno));
		close(to[0]);
		close(to[1]);
		return -1;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
	rc = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, (char *const *)(uintptr_t)argv,
			 environ);
	posix_spawn_file_actions_destroy(&actions);
	close(to[0]);
	close(from[1]);
	if (rc != 0) {
		snprintf(text, TOOL_TEXT, "posix_spawn: %s", strerror(rc));
		close(to[1]);
		close(from[0]);
		return -1;
	}
	*ret_to = to[1];
	*ret_from = from[0];
	return pid;
}

static int make_directory(const char *program, struct tool_manager *manager, char *text)
{
	snprintf(manager->directory, sizeof(manager->directory), "/tmp/%.32s-XXXXXX", program);
	if (mkdtemp(manager->directory) == NULL) {
		snprintf(text, TOOL_TEXT, "mkdtemp: %s", strerror(errno));
		return TOOL_FAILED;
	}
	snprintf(manager->socket, sizeof(manager->socket), "%s/manager.sock", manager->directory);
	return TOOL_OK;
}

int tool_manager_start(const char *program, const struct okv_manager_options *opts,
		       struct tool_manager *ret_manager, char *text)
{
	const uint64_t numbers[] = {(uint64_t)getpid(),	   opts->memory_bytes,
				    opts->shard_bytes,	   opts->flags,
				    opts->reserve_percent, opts->session_percent};
	char words[ARG_SOCKET - ARG_PARENT][NUMBER];
	const char *argv[ARGS + 1] = {program, TOOL_CHILD_MANAGER};
	struct tool_manager manager = {.pid = -1};
	struct greeting greeting = {.status = TOOL_FAILED};
	int to;
	int from;
	int rc = make_directory(program, &manager, text);

	if (rc != TOOL_OK)
		return rc;
	for (int i = 0; i < ARG_SOCKET - ARG_PARENT; i++) {
		snprintf(words[i], NUMBER, "%" PRIu64, numbers[i]);
		argv[ARG_PARENT + i] = words[i];
	}
	argv[ARG_SOCKET] = manager.socket;
	manager.pid = tool_spawn(argv, &to, &from, text);
	if (manager.pid < 0) {
		rmdir(manager.directory);
		return TOOL_FAILED;
	}
	close(to);
	if (!tool_receive(from, &greeting, sizeof(greeting)))
		snprintf(greeting.text, sizeof(greeting.text), "the Manager did not start");
	close(from);
	if (greeting.status != TOOL_OK) {
		memcpy(text, greeting.text, TOOL_TEXT);
		tool_manager_stop(&manager);
		return TOOL_FAILED;
	}
	manager.create_ns = greeting.create_ns;
	*ret_manager = manager;
	return TOOL_OK;
}

int tool_manager_stop(struct tool_manager *manager)
{
	int status = 0;

	kill(manager->pid, SIGTERM);
	while (waitpid(manager->pid, &status, 0) < 0) {
		if (errno != EINTR)
			return TOOL_FAILED;
	}
	manager->pid = -1;
	/* One that was killed leaves its socket and directory behind. */
	unlink(manager->socket);
	if (rmdir(manager->directory) != 0 && errno != ENOENT)
		return TOOL_FAILED;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? TOOL_OK : TOOL_FAILED;
}

/* ---- in the child ---- */

static struct okv_manager *volatile serving;

static void stop_serving(int number)
{
	(void)number;
	if (serving != NULL)
		okv_manager_stop(serving);
}

void tool_child_signals(void)
{
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
}

static int create(const struct okv_manager_options *opts, const char *socket,
		  struct okv_manager **ret_manager, struct greeting *greeting)
{
	struct okv_manager *manager;
	struct okv_error err = {.text = ""};
	uint64_t start = tool_now_ns();
	int rc = okv_manager_create(opts, &manager, &err);

	if (rc != 0) {
		tool_explain(greeting->text, "okv_manager_create", rc, &err);
		return rc;
	}
	greeting->create_ns = tool_now_ns() - start;
	rc = okv_manager_listen(manager, socket, &err);
	if (rc != 0) {
		tool_explain(greeting->text, "okv_manager_listen", rc, &err);
		okv_manager_destroy(manager);
		return rc;
	}
	*ret_manager = manager;
	return 0;
}

static int serve(const char *program, const struct okv_manager_options *opts, const char *socket)
{
	struct sigaction action = {.sa_handler = stop_serving};
	struct greeting greeting = {.status = TOOL_FAILED};
	struct okv_manager *manager;
	struct okv_error err = {.text = ""};
	int rc = create(opts, socket, &manager, &greeting);

	if (rc != 0) {
		tool_send(STDOUT_FILENO, &greeting, sizeof(greeting));
		return TOOL_FAILED;
	}
	serving = manager;
	sigaction(SIGTERM, &action, NULL);
	greeting.status = TOOL_OK;
	tool_send(STDOUT_FILENO, &greeting, sizeof(greeting));
	rc = okv_manager_run(manager, &err);
	if (rc != 0) {
		tool_explain(greeting.text, "okv_manager_run", rc, &err);
		fprintf(stderr, "%s: %s\n", program, greeting.text);
	}
	signal(SIGTERM, SIG_IGN);
	serving = NULL;
	okv_manager_destroy(manager);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int tool_manager_main(int argc, char **argv)
{
	struct okv_manager_options opts;
	int status;

	tool_child_signals();
	if (argc != ARGS || strtoull(argv[ARG_PARENT], NULL, 10) != (uint64_t)getppid())
		return TOOL_FAILED;
	okv_manager_options_init(&opts);
	opts.memory_bytes = strtoull(argv[ARG_MEMORY], NULL, 10);
	opts.shard_bytes = strtoull(argv[ARG_SHARD], NULL, 10);
	opts.flags = (uint32_t)strtoul(argv[ARG_FLAGS], NULL, 10);
	opts.reserve_percent = (uint32_t)strtoul(argv[ARG_RESERVE], NULL, 10);
	opts.session_percent = (uint32_t)strtoul(argv[ARG_SESSION], NULL, 10);
	status = serve(argv[0], &opts, argv[ARG_SOCKET]);
	/* A parent that was killed cannot. */
	*strrchr(argv[ARG_SOCKET], '/') = '\0';
	rmdir(argv[ARG_SOCKET]);
	return status;
}
