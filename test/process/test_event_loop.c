/* SPDX-License-Identifier: Apache-2.0 */
/* examples/event_loop with a Manager inside, with one that dies under it, and without any. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

/* Prompts of 4 blocks of 16 tokens; the first two blocks of the second are those of the first. */
#define FIRST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define SECOND "0123456789abcdef0123456789abcdefghijklmnopqrstuvghijklmnopqrstuv"

struct program {
	pid_t pid;
	int to;
	FILE *from;
	unsigned answered; /* of the lines read so far */
};

static void start(struct program *p, const char *option, const char *value)
{
	const char *binary = getenv("EVENT_LOOP");
	int in[2], out[2];
	ck_assert_msg(binary != NULL, "EVENT_LOOP is not set");
	ck_assert_int_eq(pipe2(in, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
	p->pid = fork();
	ck_assert_int_ge(p->pid, 0);
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(in[0], 0);
		dup2(out[1], 1);
		execl(binary, binary, option, value, (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	p->to = in[1];
	p->from = fdopen(out[0], "r");
	p->answered = 0;
	ck_assert(p->from != NULL);
}

static void ask(const struct program *p, const char *prompt)
{
	ck_assert_int_eq(write(p->to, prompt, strlen(prompt)), (ssize_t)strlen(prompt));
	ck_assert_int_eq(write(p->to, "\n", 1), 1);
}

/* Its next line that begins with text. */
static void await(struct program *p, const char *text)
{
	char line[256];
	do {
		ck_assert_msg(fgets(line, sizeof(line), p->from), "it ended before it said \"%s\"",
			      text);
		p->answered += !strncmp(line, "request ", 8);
	} while (strncmp(line, text, strlen(text)) != 0);
}

static void await_answers(struct program *p, unsigned count)
{
	while (p->answered < count)
		await(p, "request ");
}

static void end(struct program *p, const char *last)
{
	int status;
	close(p->to);
	await(p, last);
	ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
	ck_assert_int_eq(status, 0);
	ck_assert(fgetc(p->from) == EOF);
	ck_assert_int_eq(fclose(p->from), 0);
}

START_TEST(prompts_hit_what_earlier_ones_stored)
{
	struct program p;
	start(&p, "--embedded", NULL);
	await(&p, "connected\n");
	ask(&p, FIRST);
	await(&p, "request 1: 0 of 4 blocks restored\n");
	ask(&p, FIRST);
	await(&p, "request 2: 4 of 4 blocks restored\n");
	ask(&p, SECOND);
	await(&p, "request 3: 2 of 4 blocks restored\n");
	ask(&p, SECOND);
	await(&p, "request 4: 4 of 4 blocks restored\n");
	ask(&p, "short");
	await(&p, "request 5: 0 of 0 blocks restored\n");
	end(&p, "5 requests, 0 wrong pages\n");
}
END_TEST

/* Also a line of three buffers, which counts as three, and a last one without an end. */
START_TEST(more_prompts_than_places_are_all_answered)
{
	struct program p;
	char longest[3 * 4096];
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	start(&p, "--embedded", NULL);
	for (int i = 0; i < 50; i++)
		ask(&p, i % 2 ? FIRST : SECOND);
	ask(&p, longest);
	ck_assert_int_eq(write(p.to, FIRST, 64), 64);
	end(&p, "54 requests, 0 wrong pages\n");
	ck_assert_uint_eq(p.answered, 54);
}
END_TEST

static bool one_session(const struct okv_manager_status *s)
{
	return s->sessions == 1;
}

static bool no_session(const struct okv_manager_status *s)
{
	return s->sessions == 0;
}

START_TEST(a_killed_manager_costs_hits_and_nothing_else)
{
	struct kv_manager m;
	struct program p;
	kv_manager_start(&m, small);
	start(&p, "--socket", m.socket_path);
	await(&p, "connected\n");
	ask(&p, FIRST);
	await(&p, "request 1: 0 of 4 blocks restored\n");
	ask(&p, FIRST);
	await(&p, "request 2: 4 of 4 blocks restored\n");

	kv_manager_kill(&m, SIGKILL);
	await(&p, "session lost");
	ask(&p, FIRST);
	await(&p, "request 3: 0 of 4 blocks restored\n");

	kv_manager_restart(&m, small);
	await(&p, "connected\n");
	ask(&p, FIRST);
	await(&p, "request 4: 0 of 4 blocks restored\n");
	ask(&p, FIRST);
	await(&p, "request 5: 4 of 4 blocks restored\n");
	kv_manager_wait(&m, one_session, "one session");
	ck_assert_uint_eq(kv_manager_status(&m).blocks, 4);

	/* A drain ends the session just so, and the next one is found as well. */
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	await(&p, "session lost");
	kv_manager_restart(&m, small);
	await(&p, "connected\n");
	ask(&p, SECOND);
	await(&p, "request 6: 0 of 4 blocks restored\n");
	end(&p, "6 requests, 0 wrong pages\n");
	kv_manager_wait(&m, no_session, "its session gone");
	ck_assert_uint_eq(kv_manager_status(&m).sessions_retained, 0);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* Killed at another place each time, with requests in every state. */
START_TEST(a_kill_in_the_middle_leaves_no_request_behind)
{
	enum { ROUNDS = 6, PROMPTS = 24 };
	struct kv_manager m;
	struct program p;
	char prompt[128];
	kv_manager_start(&m, small);
	start(&p, "--socket", m.socket_path);
	for (unsigned round = 0; round < ROUNDS; round++) {
		await(&p, "connected\n");
		for (unsigned i = 0; i < PROMPTS; i++) {
			snprintf(prompt, sizeof(prompt), "%s%016u%s", "the same start..", i / 2,
				 FIRST);
			ask(&p, prompt);
		}
		await_answers(&p, round * (PROMPTS + 1) + round * 4);
		kv_manager_kill(&m, SIGKILL);
		await(&p, "session lost");
		await_answers(&p, round * (PROMPTS + 1) + PROMPTS);
		ask(&p, FIRST);
		await_answers(&p, (round + 1) * (PROMPTS + 1));
		kv_manager_restart(&m, small);
	}
	await(&p, "connected\n");
	ask(&p, SECOND);
	await(&p, "request 151: 0 of 4 blocks restored\n");
	ask(&p, SECOND);
	await(&p, "request 152: 4 of 4 blocks restored\n");
	end(&p, "152 requests, 0 wrong pages\n");
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(without_a_manager_everything_is_computed)
{
	struct program p;
	start(&p, "--socket", "/tmp/orbitkv-nobody-listens-here");
	ask(&p, FIRST);
	ask(&p, FIRST);
	await(&p, "request 2: 0 of 4 blocks restored\n");
	end(&p, "2 requests, 0 wrong pages\n");
}
END_TEST

/* What no retry mends is said once. */
START_TEST(a_cache_that_cannot_be_there_stops_nobody)
{
	struct program p;
	char path[200];
	memset(path, 'p', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	start(&p, "--socket", path);
	await(&p, "no cache: OKV_E_LIMIT: ");
	ask(&p, FIRST);
	await(&p, "request 1: 0 of 4 blocks restored\n");
	end(&p, "1 requests, 0 wrong pages\n");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("event loop");
	TCase *t = tcase_create("event loop");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, prompts_hit_what_earlier_ones_stored);
	tcase_add_test(t, more_prompts_than_places_are_all_answered);
	tcase_add_test(t, a_killed_manager_costs_hits_and_nothing_else);
	tcase_add_test(t, a_kill_in_the_middle_leaves_no_request_behind);
	tcase_add_test(t, without_a_manager_everything_is_computed);
	tcase_add_test(t, a_cache_that_cannot_be_there_stops_nobody);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
