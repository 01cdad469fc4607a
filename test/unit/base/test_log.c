/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: rings that keep the newest and count the lost, and functions that may block. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "support/suite.h"

static struct okv_log_ring *ring;
static struct oki_log ring_log;

static void open_ring(uint32_t max_lines)
{
	struct okv_error err;
	ck_assert_int_eq(okv_log_ring_create(max_lines, &ring, &err), 0);
	ck_assert_int_eq(oki_log_open(&ring_log, NULL, NULL, ring, &err), 0);
}

static void close_log(void)
{
	oki_log_stop(&ring_log);
	oki_log_fini(&ring_log);
}

static bool is_readable(void)
{
	struct pollfd p = {.fd = okv_log_ring_fd(ring), .events = POLLIN};
	return poll(&p, 1, 0) == 1;
}

static uint32_t take(struct okv_log_line *lines, uint32_t max)
{
	uint32_t n = 77;
	ck_assert_int_eq(okv_log_ring_read(ring, lines, max, &n), 0);
	ck_assert_uint_le(n, max);
	return n;
}

/* ---- rings ---- */

START_TEST(the_descriptor_is_readable_while_lines_wait)
{
	struct okv_log_line lines[4];
	open_ring(8);
	ck_assert(!is_readable());
	ck_assert_uint_eq(take(lines, 4), 0);
	oki_log(&ring_log, OKV_LOG_WARN, "a %d", 1);
	oki_log(&ring_log, OKV_LOG_DEBUG, "b");
	ck_assert(is_readable());
	ck_assert_uint_eq(take(lines, 1), 1);
	ck_assert_str_eq(lines[0].text, "a 1");
	ck_assert_uint_eq(lines[0].level, OKV_LOG_WARN);
	ck_assert_uint_gt(lines[0].time_ns, 1700000000ull * 1000000000ull);
	ck_assert(is_readable());
	ck_assert_uint_eq(take(lines, 4), 1);
	ck_assert_str_eq(lines[0].text, "b");
	ck_assert_uint_eq(lines[0].level, OKV_LOG_DEBUG);
	ck_assert_uint_eq(lines[0].lost + lines[0].reserved, 0);
	ck_assert(!is_readable());
	okv_log_ring_close(ring);
	close_log();
}
END_TEST

START_TEST(the_newest_lines_are_kept_and_the_lost_are_counted)
{
	for (uint32_t max = 1; max <= 5; max++) {
		struct okv_log_line lines[8];
		char text[16];
		open_ring(max);
		for (int round = 0; round < 3; round++) {
			for (int i = 0; i < 12; i++)
				oki_log(&ring_log, OKV_LOG_INFO, "%d", i);
			ck_assert_uint_eq(take(lines, 8), max);
			ck_assert_uint_eq(lines[0].lost, 12 - max);
			for (uint32_t i = 0; i < max; i++) {
				snprintf(text, sizeof(text), "%u", 12 - max + i);
				ck_assert_str_eq(lines[i].text, text);
				ck_assert(!i || !lines[i].lost);
			}
			oki_log(&ring_log, OKV_LOG_INFO, "between");
			ck_assert_uint_eq(take(lines, 8), 1);
			ck_assert_uint_eq(lines[0].lost, 0);
		}
		okv_log_ring_close(ring);
		close_log();
	}
}
END_TEST

START_TEST(long_lines_are_cut)
{
	struct okv_log_line line;
	char text[2000];
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	open_ring(2);
	oki_log(&ring_log, OKV_LOG_INFO, "%s", text);
	oki_log(&ring_log, OKV_LOG_INFO, "%s", "");
	ck_assert_uint_eq(take(&line, 1), 1);
	ck_assert_uint_eq(strlen(line.text), OKV_LOG_TEXT_BYTES - 1);
	ck_assert_int_eq(strncmp(line.text, text, OKV_LOG_TEXT_BYTES - 1), 0);
	ck_assert_uint_eq(take(&line, 1), 1);
	ck_assert_str_eq(line.text, "");
	okv_log_ring_close(ring);
	close_log();
}
END_TEST

START_TEST(a_closed_ring_may_still_be_written)
{
	open_ring(2);
	oki_log(&ring_log, OKV_LOG_INFO, "unread");
	okv_log_ring_close(ring);
	for (int i = 0; i < 5; i++)
		oki_log(&ring_log, OKV_LOG_INFO, "late");
	close_log();
}
END_TEST

START_TEST(wrong_arguments_are_refused)
{
	struct okv_log_line line;
	struct okv_error err;
	struct oki_log log;
	uint32_t n = 5;
	ck_assert_int_eq(okv_log_ring_create(0, &ring, &err), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_create(OKV_MAX_LOG_LINES + 1, &ring, &err), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_create(UINT32_MAX, &ring, &err), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_create(1, NULL, &err), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_fd(NULL), -1);
	okv_log_ring_close(NULL);
	open_ring(2);
	ck_assert_int_eq(okv_log_ring_read(NULL, &line, 1, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_read(ring, NULL, 1, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_read(ring, &line, 0, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_log_ring_read(ring, &line, 1, NULL), OKV_E_INVAL);
	ck_assert_uint_eq(n, 5);
	ck_assert_int_eq(oki_log_open(&log, (okv_log_fn *)(void *)abort, NULL, ring, &err),
			 OKV_E_INVAL);
	oki_log(&log, OKV_LOG_INFO, "nowhere");
	oki_log_stop(&log);
	oki_log_fini(&log);
	okv_log_ring_close(ring);
	close_log();
}
END_TEST

START_TEST(a_forked_child_leaves_the_ring_to_its_parent)
{
	struct okv_log_line line;
	open_ring(4);
	oki_log(&ring_log, OKV_LOG_INFO, "of the parent");
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		struct oki_log log;
		uint32_t n;
		int bad = okv_log_ring_fd(ring) != -1;
		bad |= okv_log_ring_read(ring, &line, 1, &n) != OKV_E_FORKED;
		bad |= oki_log_open(&log, NULL, NULL, ring, NULL) != OKV_E_FORKED;
		oki_log(&ring_log, OKV_LOG_INFO, "of the child");
		okv_log_ring_close(ring);
		_exit(bad);
	}
	int status;
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert(is_readable());
	ck_assert_uint_eq(take(&line, 1), 1);
	ck_assert_str_eq(line.text, "of the parent");
	okv_log_ring_close(ring);
	close_log();
}
END_TEST

#define WRITERS 3
#define EACH 4000

static void *write_many(void *arg)
{
	for (int i = 0; i < EACH; i++)
		oki_log(arg, OKV_LOG_INFO, "%d", i);
	return NULL;
}

START_TEST(lines_read_and_lost_are_all_there_were)
{
	pthread_t writers[WRITERS];
	struct okv_log_line lines[7];
	uint64_t total = 0;
	open_ring(16);
	for (int i = 0; i < WRITERS; i++)
		pthread_create(&writers[i], NULL, write_many, &ring_log);
	while (total < WRITERS * EACH) {
		struct pollfd p = {.fd = okv_log_ring_fd(ring), .events = POLLIN};
		ck_assert_int_eq(poll(&p, 1, 10000), 1);
		uint32_t n = take(lines, 7);
		for (uint32_t i = 0; i < n; i++)
			total += 1 + lines[i].lost;
	}
	for (int i = 0; i < WRITERS; i++)
		pthread_join(writers[i], NULL);
	ck_assert_uint_eq(total, WRITERS * EACH);
	ck_assert(!is_readable());
	okv_log_ring_close(ring);
	close_log();
}
END_TEST

/* ---- functions ---- */

struct sink {
	sem_t go; /* each call waits for one */
	_Atomic uint32_t calls, lost;
	pthread_t thread;
	int last; /* the number in the last line */
	bool is_wrong;
};

static void sink(void *arg, enum okv_log_level level, const char *text)
{
	struct sink *s = arg;
	uint32_t lost;
	if (!s->calls++)
		s->thread = pthread_self();
	s->is_wrong |= !pthread_equal(s->thread, pthread_self());
	while (sem_wait(&s->go))
		;
	if (sscanf(text, "%u log lines were lost", &lost) == 1 && level == OKV_LOG_WARN) {
		s->lost += lost;
		s->last += (int)lost;
		return;
	}
	s->is_wrong |= atoi(text) != s->last + 1;
	s->last++;
}

START_TEST(a_function_that_blocks_holds_nobody)
{
	struct sink s = {.last = -1};
	struct oki_log log;
	sem_init(&s.go, 0, 0);
	ck_assert_int_eq(oki_log_open(&log, sink, &s, NULL, NULL), 0);
	oki_log(&log, OKV_LOG_INFO, "0");
	while (!s.calls)
		sched_yield();
	for (int i = 1; i < 1000; i++)
		oki_log(&log, OKV_LOG_INFO, "%d", i);
	ck_assert_uint_eq(s.calls, 1);
	for (int i = 0; i < 1000; i++)
		sem_post(&s.go);
	oki_log_stop(&log);
	/* Every line was given or counted, in order, by one thread that is not this one. */
	ck_assert_int_eq(s.last, 999);
	ck_assert_uint_eq(s.lost, 999 - 256);
	ck_assert_uint_eq(s.calls, 1 + 1 + 256);
	ck_assert(!s.is_wrong && !pthread_equal(s.thread, pthread_self()));
	oki_log(&log, OKV_LOG_INFO, "dropped");
	oki_log_fini(&log);
	sem_destroy(&s.go);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log");
	TCase *t = tcase_create("log");
	tcase_set_timeout(t, 30);
	tcase_add_test(t, the_descriptor_is_readable_while_lines_wait);
	tcase_add_test(t, the_newest_lines_are_kept_and_the_lost_are_counted);
	tcase_add_test(t, long_lines_are_cut);
	tcase_add_test(t, a_closed_ring_may_still_be_written);
	tcase_add_test(t, wrong_arguments_are_refused);
	tcase_add_test(t, a_forked_child_leaves_the_ring_to_its_parent);
	tcase_add_test(t, lines_read_and_lost_are_all_there_were);
	tcase_add_test(t, a_function_that_blocks_holds_nobody);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
