/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Engine processes that take turns: one request at a time, round robin. */
#include "replay.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct member {
	pid_t pid;
	int requests; /* we write request numbers; closing it ends the process */
	int outcomes;
};

struct replay_fleet {
	const struct replay_config *config; /* borrowed */
	uint32_t count;			    /* started so far */
	struct replay_engine *inside;	    /* embedded mode: no processes at all */
	struct member members[];
};

/* The engine process: a first outcome says whether it opened, then one for each request. */
static int serve(const struct replay_config *config, const char *socket, int requests, int outcomes)
{
	struct replay_outcome outcome = {.status = TOOL_FAILED};
	struct replay_engine *engine = NULL;
	uint32_t index;

	outcome.status = replay_engine_open(config, socket, &engine, outcome.text);
	if (!tool_send(outcomes, &outcome, sizeof(outcome)) || engine == NULL)
		goto out;
	while (tool_receive(requests, &index, sizeof(index))) {
		replay_engine_run(engine, index, &outcome);
		if (!tool_send(outcomes, &outcome, sizeof(outcome)))
			break;
	}
out:
	replay_engine_close(engine);
	return engine != NULL ? TOOL_OK : TOOL_FAILED;
}

/* Only our own ends stay open in the child, or a sibling would never see the end of its pipe. */
static void close_others(const struct replay_fleet *fleet)
{
	for (uint32_t i = 0; i < fleet->count; i++) {
		close(fleet->members[i].requests);
		close(fleet->members[i].outcomes);
	}
}

static int start_member(struct replay_fleet *fleet, const char *socket, char *text)
{
	struct member *member = &fleet->members[fleet->count];
	int requests[2];
	int outcomes[2];

	if (pipe(requests) != 0)
		goto failed;
	if (pipe(outcomes) != 0)
		goto undo_requests;
	fflush(NULL);
	member->pid = fork();
	if (member->pid < 0)
		goto undo_outcomes;
	if (member->pid == 0) {
		/* A signal for all of us is the parent's to obey; the end of its pipe is ours. */
		signal(SIGTERM, SIG_IGN);
		signal(SIGINT, SIG_IGN);
		signal(SIGPIPE, SIG_IGN);
		close(requests[1]);
		close(outcomes[0]);
		close_others(fleet);
		exit(serve(fleet->config, socket, requests[0], outcomes[1]));
	}
	close(requests[0]);
	close(outcomes[1]);
	member->requests = requests[1];
	member->outcomes = outcomes[0];
	fleet->count++;
	return TOOL_OK;
undo_outcomes:
	close(outcomes[0]);
	close(outcomes[1]);
undo_requests:
	close(requests[0]);
	close(requests[1]);
failed:
	snprintf(text, TOOL_TEXT, "an engine process: %s", strerror(errno));
	return TOOL_FAILED;
}

static int await_members(struct replay_fleet *fleet, char *text)
{
	struct replay_outcome outcome;

	for (uint32_t i = 0; i < fleet->count; i++) {
		if (!tool_receive(fleet->members[i].outcomes, &outcome, sizeof(outcome))) {
			snprintf(text, TOOL_TEXT, "engine %u died while it started", i);
			return TOOL_FAILED;
		}
		if (outcome.status != TOOL_OK) {
			memcpy(text, outcome.text, TOOL_TEXT);
			return outcome.status;
		}
	}
	return TOOL_OK;
}

int replay_fleet_start(const struct replay_config *config, const char *socket,
		       struct replay_fleet **ret_fleet, char *text)
{
	size_t members = config->engines * sizeof(struct member);
	struct replay_fleet *fleet = calloc(1, sizeof(*fleet) + members);
	int rc = TOOL_OK;

	if (fleet == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	fleet->config = config;
	if (config->embedded)
		rc = replay_engine_open(config, NULL, &fleet->inside, text);
	for (uint32_t i = 0; i < config->engines && !config->embedded && rc == TOOL_OK; i++)
		rc = start_member(fleet, socket, text);
	if (rc == TOOL_OK)
		rc = await_members(fleet, text);
	if (rc != TOOL_OK) {
		replay_fleet_stop(fleet);
		return rc;
	}
	*ret_fleet = fleet;
	return TOOL_OK;
}

static bool run_one(struct replay_fleet *fleet, uint32_t index, struct replay_outcome *ret_outcome)
{
	if (fleet->inside != NULL) {
		replay_engine_run(fleet->inside, index, ret_outcome);
		return true;
	}
	struct member *member = &fleet->members[index % fleet->count];

	return tool_send(member->requests, &index, sizeof(index)) &&
	       tool_receive(member->outcomes, ret_outcome, sizeof(*ret_outcome));
}

int replay_fleet_run(struct replay_fleet *fleet, replay_each_fn *each, void *arg, char *text)
{
	uint32_t count = fleet->config->trace.request_count;
	struct replay_outcome outcome;

	for (uint32_t i = 0; i < count; i++) {
		if (tool_stopped() != 0)
			return TOOL_FAILED;
		if (!run_one(fleet, i, &outcome)) {
			snprintf(text, TOOL_TEXT, "request %u: its engine process is gone", i);
			return TOOL_FAILED;
		}
		if (!each(arg, &outcome))
			break;
	}
	return TOOL_OK;
}

int replay_fleet_stop(struct replay_fleet *fleet)
{
	int rc = 0;

	for (uint32_t i = 0; i < fleet->count; i++) {
		close(fleet->members[i].requests);
		close(fleet->members[i].outcomes);
	}
	for (uint32_t i = 0; i < fleet->count; i++) {
		int status = 0;

		while (waitpid(fleet->members[i].pid, &status, 0) < 0 && errno == EINTR)
			continue;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			rc = -1;
	}
	replay_engine_close(fleet->inside);
	free(fleet);
	return rc;
}
