/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What the tools have in common: texts, clocks, pipes, and being told to stop. */
#include "tool_base.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signal;

void tool_explain(char *text, const char *what, int status, const struct okv_error *err)
{
	bool detail = err != NULL && err->text[0] != '\0';
	bool staged = err != NULL && err->stage != OKV_STAGE_NONE;

	snprintf(text, TOOL_TEXT, "%s: %s %s%s%s%.160s", what, okv_status_name(status),
		 staged ? "(" : "", staged ? okv_stage_name(err->stage) : "", staged ? ") " : "",
		 detail ? err->text : okv_status_text(status));
}

uint64_t tool_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void tool_pause_1ms(void)
{
	struct timespec pause = {.tv_nsec = 1000000};

	nanosleep(&pause, NULL);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

double tool_percentile_us(uint64_t *ns, uint32_t count, unsigned permille)
{
	uint64_t rank;

	if (count == 0)
		return 0;
	qsort(ns, count, sizeof(*ns), compare);
	rank = (uint64_t)(count - 1) * permille / 1000;
	return (double)ns[rank] / 1e3;
}

static void stop(int number)
{
	stop_signal = number;
}

void tool_catch_stop(void)
{
	struct sigaction action = {.sa_handler = stop, .sa_flags = (int)SA_RESETHAND};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

int tool_stopped(void)
{
	return stop_signal;
}

bool tool_send(int fd, const void *bytes, size_t size)
{
	const char *at = bytes;

	while (size > 0) {
		ssize_t n = write(fd, at, size);

		if (n < 0 && errno == EINTR && stop_signal == 0)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

bool tool_receive(int fd, void *bytes, size_t size)
{
	char *at = bytes;

	while (size > 0) {
		ssize_t n = read(fd, at, size);

		if (n < 0 && errno == EINTR && stop_signal == 0)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}
