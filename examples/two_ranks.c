/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [E] Tensor parallelism over processes: a scheduler that only looks up, and two ranks that each
 * store and restore their half of the KV heads.
 *
 *   two_ranks [--socket PATH]      without a path it starts the orbitkv-manager of its build
 *
 * A block is found once both halves are stored. The scheduler pins what it found with one lease
 * for two consumers; each rank opens it by its id. Exit 0: every step did as it should.
 */
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "two_ranks.h"

extern char **environ;

struct child {
	pid_t pid;
	int to;
	int from;
};

struct scheduler {
	struct side side;
	struct child manager;
	struct child ranks[RANKS];
	uint8_t keys[BLOCKS * KEY_BYTES];
	char directory[64]; /* of a Manager of our own; else empty */
	char socket[128];
	char log[128];
};

static int expect(bool holds, const char *what)
{
	printf("%s  %s\n", holds ? "ok   " : "WRONG", what);
	fflush(stdout);
	return holds ? 0 : 1;
}

/* Processes are started by exec, and before this one opens an engine: never a bare fork after. */
static int start_rank(struct child *child, const char *socket, const char *slot, const char *salt)
{
	const char *argv[] = {"two_ranks", "--rank", slot, socket, salt, NULL};
	posix_spawn_file_actions_t actions;
	int to[2], from[2];
	int r;

	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		return 1;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
	r = posix_spawn(&child->pid, "/proc/self/exe", &actions, NULL, (char *const *)argv,
			environ);
	posix_spawn_file_actions_destroy(&actions);
	close(to[0]);
	close(from[1]);
	child->to = to[1];
	child->from = from[0];
	return r;
}

static void show_log(const struct scheduler *s)
{
	FILE *log = fopen(s->log, "r");
	char line[400];

	while (log && fgets(line, sizeof(line), log))
		fputs(line, stderr);
	if (log)
		fclose(log);
}

static int start_manager(struct scheduler *s, const char *near)
{
	static const char *const places[] = {"", "../", "../lib/", "../bin/"};
	const char *argv[] = {"orbitkv-manager", "--socket", s->socket, "--memory", "64M", NULL};
	posix_spawn_file_actions_t actions;
	char program[4200] = "orbitkv-manager"; /* of the PATH, when there is none near */
	int r;

	snprintf(s->directory, sizeof(s->directory), "/tmp/two_ranks-XXXXXX");
	if (!mkdtemp(s->directory)) {
		s->directory[0] = '\0';
		return 1;
	}
	snprintf(s->socket, sizeof(s->socket), "%s/manager.sock", s->directory);
	snprintf(s->log, sizeof(s->log), "%s/manager.log", s->directory);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char guess[4200];

		snprintf(guess, sizeof(guess), "%s/%sorbitkv-manager", near, places[i]);
		if (!access(guess, X_OK)) {
			memcpy(program, guess, sizeof(program));
			break;
		}
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, s->log, O_WRONLY | O_CREAT, 0600);
	posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	r = posix_spawnp(&s->manager.pid, program, &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return r;
}

static int await_manager(struct scheduler *s)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	struct okv_manager_status status;

	for (int i = 0; i < 500; i++) {
		if (!okv_manager_status_query(s->socket, 1000, &status, NULL))
			return 0;
		if (waitpid(s->manager.pid, NULL, WNOHANG) == s->manager.pid) {
			s->manager.pid = 0;
			return 1;
		}
		nanosleep(&pause, NULL);
	}
	return 1;
}

static struct reply ask(struct scheduler *s, uint32_t rank, const struct command *cmd)
{
	struct reply reply = {.status = OKV_E_SESSION};

	if (write(s->ranks[rank].to, cmd, sizeof(*cmd)) != (ssize_t)sizeof(*cmd) ||
	    read(s->ranks[rank].from, &reply, sizeof(reply)) != (ssize_t)sizeof(reply))
		reply.status = OKV_E_SESSION;
	if (reply.status)
		fprintf(stderr, "rank %u: %s: %s\n", rank, okv_status_name(reply.status),
			reply.text);
	return reply;
}

static int publish(struct scheduler *s, uint32_t rank, uint32_t first, uint32_t count)
{
	const struct command cmd = {.verb = PUBLISH, .first = first, .count = count};
	struct reply reply = ask(s, rank, &cmd);
	char what[100];

	snprintf(what, sizeof(what), "rank %u publishes blocks %u to %u", rank, first,
		 first + count - 1);
	return expect(!reply.status && reply.blocks == count, what);
}

static int look_up(struct scheduler *s, uint32_t flags, struct okv_lookup_result *ret_found,
		   struct okv_lease **ret_lease)
{
	struct okv_keys keys = {.count = BLOCKS, .key_bytes = KEY_BYTES, .keys = s->keys};
	struct okv_lookup_options opts;
	int r;

	okv_lookup_options_init(&opts);
	opts.flags = flags;
	opts.consumers = RANKS;
	opts.group_count = 1;
	opts.groups = &keys;
	r = okv_lookup(s->side.ns, &opts, ret_found, ret_lease, &s->side.err);
	if (r)
		fprintf(stderr, "lookup: %s: %s\n", okv_status_name(r), s->side.err.text);
	return r;
}

static int peek(struct scheduler *s, uint32_t blocks, const char *what)
{
	struct okv_lookup_result found;

	return expect(!look_up(s, OKV_LOOKUP_PEEK, &found, NULL) &&
			      found.tokens == blocks * BLOCK_TOKENS,
		      what);
}

static int restore(struct scheduler *s, uint32_t blocks)
{
	struct command cmd = {.verb = RESTORE, .count = blocks};
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	int failed = 0;

	if (look_up(s, 0, &found, &lease) || !lease || okv_lease_id(lease, &cmd.lease))
		return expect(false, "the scheduler pins the prefix for two consumers");
	failed |= expect(found.groups[0].count == blocks,
			 "the scheduler pins the prefix for two consumers");
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		struct reply reply = ask(s, rank, &cmd);
		char what[100];

		snprintf(what, sizeof(what), "rank %u restores %u blocks, %llu bytes are wrong",
			 rank, reply.blocks, (unsigned long long)reply.wrong_bytes);
		failed |=
			expect(!reply.status && reply.blocks == blocks && !reply.wrong_bytes, what);
	}
	okv_lease_release(lease);
	return failed;
}

static int story(struct scheduler *s)
{
	int failed = peek(s, 0, "nothing is cached");

	failed |= publish(s, 0, 0, BLOCKS);
	failed |= peek(s, 0, "half of each block is no block: still nothing");
	failed |= publish(s, 1, 0, BLOCKS - 1);
	failed |= peek(s, BLOCKS - 1, "rank 1 is one block short: both get the minimum");
	failed |= restore(s, BLOCKS - 1);
	failed |= publish(s, 1, BLOCKS - 1, 1);
	failed |= peek(s, BLOCKS, "now the last block is whole, too");
	failed |= restore(s, BLOCKS);
	return failed;
}

static int end_child(struct child *child, int sig)
{
	int status = 0;

	if (child->to > 0)
		close(child->to);
	if (child->from > 0)
		close(child->from);
	if (child->pid <= 0)
		return 0;
	if (sig)
		kill(child->pid, sig);
	return waitpid(child->pid, &status, 0) == child->pid && status ? 1 : 0;
}

static int schedule(const char *socket, const char *near)
{
	static const char *const slots[RANKS] = {"0", "1"};
	struct scheduler s = {0};
	char salt[64];
	int failed;

	signal(SIGPIPE, SIG_IGN);
	make_keys(s.keys);
	snprintf(salt, sizeof(salt), "run-%ld-%ld", (long)time(NULL), (long)getpid());
	snprintf(s.socket, sizeof(s.socket), "%s", socket ? socket : "");
	failed = !socket && (start_manager(&s, near) || await_manager(&s));
	if (failed) {
		fprintf(stderr, "two_ranks: cannot start orbitkv-manager\n");
		show_log(&s);
	}
	for (uint32_t rank = 0; rank < RANKS && !failed; rank++)
		failed = start_rank(&s.ranks[rank], s.socket, slots[rank], salt);
	if (!failed) {
		failed = open_side(&s.side, s.socket, salt);
		if (failed)
			fprintf(stderr, "two_ranks: %s: %s\n", okv_status_name(failed),
				s.side.err.text);
		else
			failed = story(&s);
	}
	for (uint32_t rank = 0; rank < RANKS; rank++)
		failed |= end_child(&s.ranks[rank], 0);
	close_side(&s.side);
	end_child(&s.manager, SIGTERM);
	if (s.directory[0]) {
		unlink(s.socket);
		unlink(s.log);
		rmdir(s.directory);
	}
	return failed ? 1 : 0;
}

static const char usage[] = "usage: two_ranks [--socket PATH]\n";

int main(int argc, char **argv)
{
	char self[4096] = {0};

	if (argc == 5 && !strcmp(argv[1], "--rank"))
		return rank_main((uint32_t)atoi(argv[2]), argv[3], argv[4]);
	if (argc == 3 && !strcmp(argv[1], "--socket"))
		return schedule(argv[2], NULL);
	if (argc == 2 && !strcmp(argv[1], "--help")) {
		printf("%sA scheduler looks up once, and two rank processes restore from its "
		       "lease;\nwithout a socket it starts a Manager of its own.\n",
		       usage);
		return 0;
	}
	if (argc != 1 || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
		fputs(usage, stderr);
		return 2;
	}
	return schedule(NULL, dirname(self));
}
