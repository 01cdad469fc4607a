/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager that is stopped, and a peer that never reads: every call ends within its timeout. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "process/child.h"
#include "support/local.h"

#define TIMEOUT_MS 400
/* Far more than the timeout, as the machine may be busy; far less than for ever. */
#define SOON_NS 5000000000ull

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};
static struct kv_manager m;

static void start(void)
{
	kv_manager_start(&m, small);
}

static void stop_manager(void)
{
	int status;
	ck_assert_int_eq(kill(m.pid, SIGSTOP), 0);
	ck_assert_int_eq(waitpid(m.pid, &status, WUNTRACED), m.pid);
	ck_assert(WIFSTOPPED(status));
}

static void end(void)
{
	const struct itimerval never = {0};
	setitimer(ITIMER_REAL, &never, NULL);
	kill(m.pid, SIGCONT);
	kv_manager_kill(&m, SIGKILL);
	unlink(m.socket_path);
	kv_manager_clean(&m);
}

static int open_with(int timeout_ms, struct okv_engine **ret_engine, struct okv_error *err)
{
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = m.socket_path;
	o.connect_timeout_ms = timeout_ms;
	return okv_engine_open(&o, ret_engine, err);
}

/* Connect until the queue of connections takes no more. */
static void fill_queue(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	strcpy(to.sun_path, m.socket_path);
	for (;;) {
		int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		ck_assert_int_ge(s, 0);
		if (!connect(s, (const struct sockaddr *)&to, sizeof(to)))
			continue; /* it stays open, in its place of the queue */
		ck_assert_int_eq(errno, EAGAIN);
		close(s);
		return;
	}
}

static void on_alarm(int signal_number)
{
	(void)signal_number;
}

/* Signals that interrupt calls, more often than the timeout. */
static void interrupt_calls(void)
{
	const struct sigaction action = {.sa_handler = on_alarm};
	const struct itimerval often = {{.tv_usec = 20000}, {.tv_usec = 20000}};
	ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
	ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
}

START_TEST(open_and_status_keep_their_timeout_when_the_queue_is_full)
{
	struct okv_engine *e = NULL;
	struct okv_manager_status status;
	struct okv_error err = {0};
	stop_manager();
	fill_queue();
	for (int signals = 0; signals < 2; signals++) {
		if (signals)
			interrupt_calls();
		uint64_t began = oki_now_ns();
		ck_assert_int_eq(open_with(TIMEOUT_MS, &e, &err), OKV_E_TIMEOUT);
		ck_assert_msg(strstr(err.text, m.socket_path) != NULL, "%s", err.text);
		ck_assert_int_eq(okv_manager_status_query(m.socket_path, TIMEOUT_MS, &status, &err),
				 OKV_E_TIMEOUT);
		uint64_t took = oki_now_ns() - began;
		ck_assert_uint_ge(took, 2 * TIMEOUT_MS * 900000ull);
		ck_assert_uint_lt(took, SOON_NS);
		ck_assert_int_eq(open_with(1, &e, &err), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_manager_status_query(m.socket_path, 0, &status, &err),
				 OKV_E_TIMEOUT);
	}
}
END_TEST

START_TEST(open_and_status_keep_their_timeout_when_nobody_answers)
{
	struct okv_engine *e = NULL;
	struct okv_manager_status status;
	struct okv_error err = {0};
	stop_manager();
	interrupt_calls();
	uint64_t began = oki_now_ns();
	ck_assert_int_eq(open_with(TIMEOUT_MS, &e, &err), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_manager_status_query(m.socket_path, TIMEOUT_MS, &status, &err),
			 OKV_E_TIMEOUT);
	ck_assert_uint_lt(oki_now_ns() - began, SOON_NS);
}
END_TEST

/* The largest schema: three of its messages fill a socket of the usual 208 KiB. */
static int open_namespace(struct okv_engine *e, struct okv_error *err)
{
	const uint32_t segments = OKV_MAX_SCHEMA_SEGMENTS / OKV_MAX_LAYERS;
	struct okv_layer_schema *layers = calloc(OKV_MAX_LAYERS, sizeof(*layers));
	for (uint32_t i = 0; i < OKV_MAX_LAYERS; i++) {
		layers[i] = (struct okv_layer_schema){.order = i, .segment_count = segments};
		for (uint32_t k = 0; k < segments; k++)
			layers[i].segment_bytes[k] = 4096;
	}
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = OKV_MAX_LAYERS,
					       .layout_tag = "NHD",
					       .layers = layers};
	struct okv_namespace_options o;
	struct okv_namespace *ns = NULL;
	okv_namespace_options_init(&o);
	o.model = "silent";
	o.group_count = 1;
	o.groups = &group;
	int rc = okv_namespace_open(e, &o, &ns, err);
	okv_namespace_close(ns);
	free(layers);
	return rc;
}

/* What is sent to a stopped Manager stays in the socket, until a send has to wait. */
START_TEST(a_full_socket_does_not_hold_a_control_call)
{
	struct okv_engine *e;
	struct okv_error err = {0};
	kv_ok(open_with(TIMEOUT_MS, &e, kv_err));
	kv_ok(open_namespace(e, kv_err));
	stop_manager();
	for (int i = 0; i < 8; i++) {
		uint64_t began = oki_now_ns();
		ck_assert_int_eq(open_namespace(e, &err), OKV_E_TIMEOUT);
		ck_assert_msg(strstr(err.text, "within 400 ms") != NULL, "%s", err.text);
		ck_assert_uint_lt(oki_now_ns() - began, SOON_NS);
	}
	/* It answers again: late answers are not taken for later ones. */
	kill(m.pid, SIGCONT);
	int rc = OKV_E_TIMEOUT;
	for (int i = 0; i < 50 && rc == OKV_E_TIMEOUT; i++)
		rc = open_namespace(e, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	okv_engine_close(e);
}
END_TEST

static struct okv_engine *shared;
static _Atomic int timed_out;

static void *open_one(void *arg)
{
	struct okv_error err;
	if (open_namespace(shared, &err) == OKV_E_TIMEOUT)
		timed_out++;
	return arg;
}

#define CALLERS 24

START_TEST(calls_of_many_threads_do_not_wait_one_after_another)
{
	pthread_t threads[CALLERS];
	kv_ok(open_with(TIMEOUT_MS, &shared, kv_err));
	stop_manager();
	uint64_t began = oki_now_ns();
	for (int i = 0; i < CALLERS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, open_one, NULL), 0);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_lt(oki_now_ns() - began, SOON_NS);
	ck_assert_int_eq(timed_out, CALLERS);
	kill(m.pid, SIGCONT);
	okv_engine_close(shared);
}
END_TEST

START_TEST(registration_keeps_its_timeout)
{
	const struct kv_shape shape = {.pages = 16};
	struct okv_engine *e;
	struct kv_rank rank;
	struct okv_error err = {0};
	kv_ok(open_with(TIMEOUT_MS, &e, kv_err));
	struct okv_namespace *ns = kv_namespace(e, &shape);
	kv_rank_init(&rank, &shape, 0);
	stop_manager();
	uint64_t began = oki_now_ns();
	ck_assert_int_eq(kv_rank_register(&rank, ns, &err), OKV_E_TIMEOUT);
	ck_assert_uint_lt(oki_now_ns() - began, SOON_NS);
	kill(m.pid, SIGCONT);
	kv_ok(kv_rank_register(&rank, ns, kv_err));
	/* The Manager is asked to forget the binding, which takes as long. */
	stop_manager();
	began = oki_now_ns();
	okv_binding_unregister(rank.binding);
	ck_assert_uint_lt(oki_now_ns() - began, SOON_NS);
	rank.binding = NULL;
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	kill(m.pid, SIGCONT);
	okv_engine_close(e);
}
END_TEST

START_TEST(unregister_ends_where_calls_have_no_timeout)
{
	const struct kv_shape shape = {.pages = 16};
	struct okv_engine *e;
	struct kv_rank rank;
	kv_ok(open_with(-1, &e, kv_err));
	struct okv_namespace *ns = kv_namespace(e, &shape);
	kv_rank_open(&rank, ns, &shape, 0);
	stop_manager();
	uint64_t began = oki_now_ns();
	okv_binding_unregister(rank.binding);
	ck_assert_uint_lt(oki_now_ns() - began, 5000000000ull + SOON_NS);
	rank.binding = NULL;
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("silent_manager");
	TCase *t = tcase_create("silent_manager");
	tcase_set_timeout(t, 30);
	tcase_add_checked_fixture(t, start, end);
	tcase_add_test(t, open_and_status_keep_their_timeout_when_the_queue_is_full);
	tcase_add_test(t, open_and_status_keep_their_timeout_when_nobody_answers);
	tcase_add_test(t, a_full_socket_does_not_hold_a_control_call);
	tcase_add_test(t, calls_of_many_threads_do_not_wait_one_after_another);
	tcase_add_test(t, registration_keeps_its_timeout);
	tcase_add_test(t, unregister_ends_where_calls_have_no_timeout);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
