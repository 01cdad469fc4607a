/* [M] A private Manager in a child process of orbitkv-replay. */
#include "replay.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Up to this much one shard holds all blocks, so that no shard's tail is wasted. */
#define ONE_SHARD_BYTES (16ull << 30)
#define SHARDS 32u
#define PAGE 4096u

struct greeting {
	int32_t status; /* TOOL_OK once it listens */
	char text[TOOL_TEXT];
};

/* Only in the child. */
static struct okv_manager *volatile serving;

static void stop_serving(int number)
{
	(void)number;
	if (serving != NULL)
		okv_manager_stop(serving);
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

void replay_manager_options(const struct replay_config *config, struct okv_manager_options *opts)
{
	uint64_t block = config->model.block_bytes;
	uint64_t unit = block / greatest_divisor(block, PAGE) * PAGE;

	okv_manager_options_init(opts);
	if (config->blocks == 0) {
		opts->memory_bytes = config->memory_bytes;
		return;
	}
	opts->memory_bytes = (config->blocks * block + PAGE - 1) / PAGE * PAGE;
	opts->shard_bytes = opts->memory_bytes;
	if (opts->memory_bytes > ONE_SHARD_BYTES) {
		uint64_t share = opts->memory_bytes / SHARDS;

		opts->shard_bytes = (share + unit - 1) / unit * unit;
	}
}

static int serve(const struct replay_config *config, const char *socket, int ready_fd)
{
	struct greeting greeting = {.status = TOOL_FAILED};
	struct sigaction action = {.sa_handler = stop_serving};
	struct okv_manager_options opts;
	struct okv_manager *manager;
	struct okv_error err = {.text = ""};
	int rc;

	replay_manager_options(config, &opts);
	rc = okv_manager_create(&opts, &manager, &err);
	if (rc != 0) {
		tool_explain(greeting.text, "okv_manager_create", rc, &err);
		tool_send(ready_fd, &greeting, sizeof(greeting));
		return TOOL_FAILED;
	}
	rc = okv_manager_listen(manager, socket, &err);
	if (rc != 0) {
		tool_explain(greeting.text, "okv_manager_listen", rc, &err);
		goto out;
	}
	serving = manager;
	sigaction(SIGTERM, &action, NULL);
	greeting.status = TOOL_OK;
	tool_send(ready_fd, &greeting, sizeof(greeting));
	rc = okv_manager_run(manager, &err);
	if (rc != 0) {
		tool_explain(greeting.text, "okv_manager_run", rc, &err);
		fprintf(stderr, "orbitkv-replay: %s\n", greeting.text);
	}
	signal(SIGTERM, SIG_IGN);
	serving = NULL;
out:
	if (greeting.status != TOOL_OK)
		tool_send(ready_fd, &greeting, sizeof(greeting));
	okv_manager_destroy(manager);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

static int make_directory(struct replay_manager *manager, char *text)
{
	strcpy(manager->directory, "/tmp/orbitkv-replay-XXXXXX");
	if (mkdtemp(manager->directory) == NULL) {
		snprintf(text, TOOL_TEXT, "mkdtemp: %s", strerror(errno));
		return -1;
	}
	snprintf(manager->socket, sizeof(manager->socket), "%s/manager.sock", manager->directory);
	return 0;
}

int replay_manager_start(const struct replay_config *config, struct replay_manager *ret_manager,
			 char *text)
{
	struct replay_manager manager = {.pid = -1};
	struct greeting greeting;
	pid_t parent = getpid();
	int ready[2];

	if (make_directory(&manager, text) != 0)
		return -1;
	if (pipe(ready) != 0) {
		snprintf(text, TOOL_TEXT, "pipe: %s", strerror(errno));
		goto undo_directory;
	}
	fflush(NULL);
	manager.pid = fork();
	if (manager.pid < 0) {
		snprintf(text, TOOL_TEXT, "fork: %s", strerror(errno));
		close(ready[0]);
		close(ready[1]);
		goto undo_directory;
	}
	if (manager.pid == 0) {
		signal(SIGTERM, SIG_DFL);
		signal(SIGINT, SIG_IGN); /* the parent stops us after the engines */
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		if (getppid() != parent)
			_exit(TOOL_FAILED);
		close(ready[0]);
		int status = serve(config, manager.socket, ready[1]);
		rmdir(manager.directory); /* a parent that was killed cannot */
		exit(status);
	}
	close(ready[1]);
	greeting.status = TOOL_FAILED;
	if (!tool_receive(ready[0], &greeting, sizeof(greeting)))
		snprintf(greeting.text, sizeof(greeting.text), "the Manager did not start");
	close(ready[0]);
	if (greeting.status != TOOL_OK) {
		memcpy(text, greeting.text, TOOL_TEXT);
		replay_manager_stop(&manager);
		return -1;
	}
	*ret_manager = manager;
	return 0;
undo_directory:
	rmdir(manager.directory);
	return -1;
}

int replay_manager_stop(struct replay_manager *manager)
{
	int status = 0;
	int rc = 0;

	kill(manager->pid, SIGTERM);
	while (waitpid(manager->pid, &status, 0) < 0) {
		if (errno != EINTR)
			return -1;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		rc = -1;
	/* A Manager that was killed leaves its socket behind. */
	if (rc != 0)
		unlink(manager->socket);
	if (rmdir(manager->directory) != 0 && errno != ENOENT)
		rc = -1;
	manager->pid = -1;
	return rc;
}
