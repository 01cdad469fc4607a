/* [M] This program again in another process: a Manager, or a client that looks keys up. */
#include "bench.h"
#include "bench_lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARD_BYTES (16ull << 30)
#define SHARD_GRAIN (2ull << 20) /* a huge page */

extern char **environ;

struct greeting {
	int32_t status;
	uint32_t reserved;
	uint64_t create_ns;
	char text[TOOL_TEXT];
};

/* The child talks over its standard input and output. */
pid_t bench_spawn(const char *const argv[], int *ret_to, int *ret_from, char *text)
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

static int make_directory(struct bench_manager *manager, char *text)
{
	strcpy(manager->directory, "/tmp/orbitkv-bench-XXXXXX");
	if (mkdtemp(manager->directory) == NULL) {
		snprintf(text, TOOL_TEXT, "mkdtemp: %s", strerror(errno));
		return TOOL_FAILED;
	}
	snprintf(manager->socket, sizeof(manager->socket), "%s/manager.sock", manager->directory);
	return TOOL_OK;
}

int bench_manager_start(uint64_t memory_bytes, uint32_t flags, struct bench_manager *ret_manager,
			char *text)
{
	struct bench_manager manager = {.pid = -1};
	struct greeting greeting = {.status = TOOL_FAILED};
	char memory[24];
	char flag_text[24];
	int to;
	int from;
	int rc = make_directory(&manager, text);

	if (rc != TOOL_OK)
		return rc;
	snprintf(memory, sizeof(memory), "%llu", (unsigned long long)memory_bytes);
	snprintf(flag_text, sizeof(flag_text), "%u", flags);
	const char *argv[] = {"orbitkv-bench", "@manager", memory, flag_text, manager.socket, NULL};
	manager.pid = bench_spawn(argv, &to, &from, text);
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
		bench_manager_stop(&manager);
		return TOOL_FAILED;
	}
	manager.create_ns = greeting.create_ns;
	*ret_manager = manager;
	return TOOL_OK;
}

int bench_manager_stop(struct bench_manager *manager)
{
	int status = 0;

	kill(manager->pid, SIGTERM);
	while (waitpid(manager->pid, &status, 0) < 0) {
		if (errno != EINTR)
			return TOOL_FAILED;
	}
	manager->pid = -1;
	/* One that was killed leaves its socket behind. */
	unlink(manager->socket);
	rmdir(manager->directory);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? TOOL_OK : TOOL_FAILED;
}

uint64_t bench_anonymous_bytes(pid_t pid)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
	f = fopen(line, "re");
	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "RssAnon: %llu", &kib) == 1)
			break;
	}
	fclose(f);
	return kib << 10;
}

/* Only in the child. */
static struct okv_manager *volatile serving;

static void stop_serving(int number)
{
	(void)number;
	if (serving != NULL)
		okv_manager_stop(serving);
}

/* Few shards, so that no shard's tail is wasted and long runs stay whole. */
static void choose_memory(uint64_t memory_bytes, struct okv_manager_options *opts)
{
	uint64_t shards = (memory_bytes + SHARD_BYTES - 1) / SHARD_BYTES;
	uint64_t shard = (memory_bytes + shards - 1) / shards;

	opts->shard_bytes = (shard + SHARD_GRAIN - 1) / SHARD_GRAIN * SHARD_GRAIN;
	opts->memory_bytes = opts->shard_bytes * shards;
}

static int create(uint64_t memory_bytes, uint32_t flags, const char *socket,
		  struct okv_manager **ret_manager, struct greeting *greeting)
{
	struct okv_manager_options opts;
	struct okv_manager *manager;
	struct okv_error err = {.text = ""};
	uint64_t start = tool_now_ns();
	int rc;

	okv_manager_options_init(&opts);
	opts.flags = flags;
	opts.reserve_percent = 100;
	opts.session_percent = 100;
	choose_memory(memory_bytes, &opts);
	rc = okv_manager_create(&opts, &manager, &err);
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

static int serve(uint64_t memory_bytes, uint32_t flags, const char *socket)
{
	struct greeting greeting = {.status = TOOL_FAILED};
	struct sigaction action = {.sa_handler = stop_serving};
	struct okv_manager *manager;
	struct okv_error err = {.text = ""};
	int rc = create(memory_bytes, flags, socket, &manager, &greeting);

	if (rc != 0) {
		tool_send(STDOUT_FILENO, &greeting, sizeof(greeting));
		return TOOL_FAILED;
	}
	serving = manager;
	sigaction(SIGTERM, &action, NULL);
	greeting.status = TOOL_OK;
	tool_send(STDOUT_FILENO, &greeting, sizeof(greeting));
	rc = okv_manager_run(manager, &err);
	if (rc != 0)
		fprintf(stderr, "orbitkv-bench: okv_manager_run: %s\n", err.text);
	signal(SIGTERM, SIG_IGN);
	serving = NULL;
	okv_manager_destroy(manager);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_child_main(int argc, char **argv)
{
	signal(SIGINT, SIG_IGN); /* the parent stops us */
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (strcmp(argv[1], "@manager") == 0 && argc == 5)
		return serve(strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10),
			     argv[4]);
	if (strcmp(argv[1], "@client") == 0 && argc == 5)
		return bench_client_main(argv[2], (uint32_t)strtoul(argv[3], NULL, 10),
					 (uint32_t)strtoul(argv[4], NULL, 10));
	return TOOL_USAGE;
}
