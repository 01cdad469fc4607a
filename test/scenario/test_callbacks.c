/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks that wait: owners and log functions run under no lock, and hold nobody up but those who
 * wait for them. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/local.h"
#include "support/suite.h"

static const struct kv_shape shape = {.pages = 64};
static struct kv_local l;

static void start(void)
{
	struct okv_manager_options o = kv_local_options(16u << 20);
	kv_local_start(&l, &o, 0, &shape);
}

static void stop(void)
{
	kv_local_stop(&l);
}

/* ---- owners ---- */

enum { NEVER, RETAIN, RELEASE };

/* An owner whose retain() or release() goes on when another thread has used the library, as one
 * does that takes a lock which this other thread holds meanwhile. */
struct waiting {
	int at;
	_Atomic bool inside, go_on;
	_Atomic int calls;
};

static void wait_inside(struct waiting *w, int at)
{
	w->calls++;
	if (w->at != at)
		return;
	w->inside = true;
	kv_until(w->go_on);
}

static void retain(void *object)
{
	wait_inside(object, RETAIN);
}

static void release(void *object)
{
	wait_inside(object, RELEASE);
}

static struct okv_owner owner_of(struct waiting *w)
{
	return (struct okv_owner){w, retain, release};
}

static int publish_owned(struct kv_rank *rank, uint64_t seq, struct waiting *w,
			 struct okv_op **ret_op)
{
	uint8_t key[KV_KEY_BYTES];
	const uint32_t page = (uint32_t)seq % shape.pages;
	kv_key(seq, 0, key);
	const struct okv_publish_group group = {
		.keys = {.group = 0, .count = 1, .key_bytes = sizeof(key), .keys = key},
		.tokens = 16,
		.pages = &page,
	};
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &group;
	if (w)
		o.owner = owner_of(w);
	return okv_publish_start(rank->binding, &o, ret_op, NULL);
}

static struct kv_rank main_rank;

/* Calls of every kind that wait for no operation. */
static void use_the_library(bool starts)
{
	struct okv_completion completion;
	struct okv_lease *lease = NULL;
	struct kv_rank other;
	struct okv_op *op;
	uint32_t n;
	kv_rank_open(&other, l.ns, &shape, 0);
	ck_assert_int_eq(publish_owned(&other, 100, NULL, &op), 0);
	okv_op_cancel(op);
	okv_op_poll(op, NULL);
	okv_op_release(op);
	kv_rank_close(&other);
	if (starts) {
		ck_assert_int_eq(publish_owned(&main_rank, 33, NULL, &op), 0);
		okv_op_poll(op, NULL);
		okv_op_release(op);
	}
	struct okv_namespace *ns = kv_namespace(l.engine, &(struct kv_shape){.salt = "x"});
	okv_namespace_close(ns);
	kv_lookup(l.ns, 7, 1, 1, &lease);
	okv_lease_release(lease);
	kv_stats(l.engine);
	ck_assert_int_eq(okv_engine_poll(l.engine, &completion, 1, &n), 0);
	ck_assert_int_eq(okv_engine_state(l.engine), 0);
	struct okv_engine *second = kv_engine_connect(l.socket_path, 0);
	okv_engine_close(second);
}

static struct waiting *layer_owner;

static void *register_rank(void *arg)
{
	struct okv_error err;
	main_rank.layers[1].owner = owner_of(layer_owner);
	return (void *)(intptr_t)kv_rank_register(arg, l.ns, &err);
}

/* Do it in a thread, and use the library while it is inside a callback. */
static int meet(void *(*action)(void *), void *arg, struct waiting *w, bool starts)
{
	pthread_t thread;
	void *rc;
	ck_assert_int_eq(pthread_create(&thread, NULL, action, arg), 0);
	kv_until(w->inside);
	use_the_library(starts);
	w->go_on = true;
	pthread_join(thread, &rc);
	return (int)(intptr_t)rc;
}

static void *unregister_rank(void *arg)
{
	struct kv_rank *rank = arg;
	okv_binding_unregister(rank->binding);
	rank->binding = NULL;
	return NULL;
}

START_TEST(registration_calls_owners_under_no_lock)
{
	struct waiting w = {.at = RETAIN};
	layer_owner = &w;
	kv_rank_init(&main_rank, &shape, 0);
	ck_assert_int_eq(meet(register_rank, &main_rank, &w, false), 0);
	ck_assert_int_eq(w.calls, 1);
	w.at = RELEASE;
	w.inside = w.go_on = false;
	meet(unregister_rank, &main_rank, &w, false);
	ck_assert_int_eq(w.calls, 2);
	kv_rank_close(&main_rank);
}
END_TEST

START_TEST(a_refused_registration_releases_under_no_lock)
{
	struct waiting w = {.at = RELEASE};
	kv_rank_open(&main_rank, l.ns, &shape, 0);
	struct okv_binding *first = main_rank.binding;
	layer_owner = &w;
	ck_assert_int_eq(meet(register_rank, &main_rank, &w, true), OKV_E_EXISTS);
	ck_assert_int_eq(w.calls, 2);
	main_rank.binding = first;
	kv_rank_close(&main_rank);
}
END_TEST

/* Closing the engine waits for registrations, but not for their retain(). */
START_TEST(an_engine_closes_while_a_registration_retains)
{
	struct waiting w = {.at = RETAIN};
	pthread_t thread;
	void *rc;
	layer_owner = &w;
	kv_rank_init(&main_rank, &shape, 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, register_rank, &main_rank), 0);
	kv_until(w.inside);
	okv_engine_close(l.engine);
	l.engine = NULL;
	w.go_on = true;
	pthread_join(thread, &rc);
	ck_assert_int_eq((int)(intptr_t)rc, OKV_E_CLOSED);
	ck_assert_int_eq(w.calls, 2);
	kv_rank_close(&main_rank);
}
END_TEST

static struct waiting op_owner;

static void *publish_and_wait(void *arg)
{
	struct okv_op *op;
	int rc = publish_owned(arg, 7, &op_owner, &op);
	if (!rc)
		rc = okv_op_wait(op, -1, NULL);
	okv_op_release(op);
	return (void *)(intptr_t)rc;
}

START_TEST(operations_call_owners_under_no_lock)
{
	for (int at = RETAIN; at <= RELEASE; at++) {
		memset(&op_owner, 0, sizeof(op_owner));
		op_owner.at = at;
		kv_rank_open(&main_rank, l.ns, &shape, 0);
		ck_assert_int_eq(meet(publish_and_wait, &main_rank, &op_owner, true), 0);
		ck_assert_int_eq(op_owner.calls, 2);
		kv_rank_close(&main_rank);
	}
}
END_TEST

static void call_back(void *object)
{
	atomic_int *calls = object;
	struct okv_op *op;
	ck_assert_int_eq(publish_owned(&main_rank, 34, NULL, &op), 0);
	okv_op_poll(op, NULL);
	okv_op_release(op);
	use_the_library(true);
	(*calls)++;
}

static void count(void *object)
{
	(*(atomic_int *)object)++;
}

/* From a thread of the library that copies. */
START_TEST(release_may_call_the_library)
{
	atomic_int calls = 0;
	const uint32_t page = 3;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	kv_rank_open(&main_rank, l.ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&main_rank, 7, 0, 1, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 7, 1, 1, &lease), 1);
	const struct okv_restore_group group = {.count = 1, .pages = &page};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &group;
	o.owner = (struct okv_owner){&calls, count, call_back};
	kv_ok(okv_restore_start(main_rank.binding, lease, &o, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, -1, NULL), 0);
	ck_assert_int_eq(calls, 2);
	ck_assert_uint_eq(kv_wrong(&main_rank, 7, 0, &page), 0);
	okv_op_release(op);
	okv_lease_release(lease);
	kv_rank_close(&main_rank);
}
END_TEST

/* ---- log functions ---- */

struct blocked {
	sem_t go;
	_Atomic bool is_open; /* it blocks no more */
	_Atomic int calls;
	char all[4096];
};

static void block(void *arg, enum okv_log_level level, const char *line)
{
	struct blocked *b = arg;
	(void)level;
	b->calls++;
	while (!b->is_open)
		if (!sem_wait(&b->go))
			break;
	strncat(b->all, line, sizeof(b->all) - strlen(b->all) - 2);
	strcat(b->all, "\n");
}

static void unblock(struct blocked *b)
{
	b->is_open = true;
	sem_post(&b->go);
}

static void copy_both_ways(struct okv_engine *e, uint64_t seq)
{
	struct okv_namespace *ns = kv_namespace(e, &shape);
	struct okv_lease *lease = NULL;
	const uint32_t to[] = {40, 41, 42};
	struct kv_rank rank;
	kv_rank_open(&rank, ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&rank, seq, 0, 3, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(ns, seq, 3, 1, &lease), 3);
	ck_assert_int_eq(kv_restore(&rank, lease, 0, 3, to, 0, NULL), 0);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(kv_wrong(&rank, seq, i, &to[i]), 0);
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
}

START_TEST(a_blocked_log_function_stalls_no_embedded_manager)
{
	struct blocked of_manager = {0}, of_engine = {0};
	struct okv_manager_options m = kv_local_options(16u << 20);
	struct okv_engine_options o;
	struct okv_engine *e;
	sem_init(&of_manager.go, 0, 0);
	sem_init(&of_engine.go, 0, 0);
	m.log = block;
	m.arg = &of_manager;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &m;
	o.log = block;
	o.log_arg = &of_engine;
	kv_ok(okv_engine_open(&o, &e, kv_err));
	kv_until(of_manager.calls == 1 && of_engine.calls == 1);
	copy_both_ways(e, 5);
	ck_assert_int_eq(of_manager.calls + of_engine.calls, 2);
	unblock(&of_manager);
	unblock(&of_engine);
	okv_engine_close(e);
	ck_assert_msg(strstr(of_engine.all, "open, epoch") != NULL, "%s", of_engine.all);
	ck_assert_msg(strstr(of_manager.all, "connected") != NULL, "%s", of_manager.all);
	ck_assert_msg(strstr(of_manager.all, "draining") != NULL, "%s", of_manager.all);
}
END_TEST

/* The Manager tells of sessions that come, go and are lost, and the engine of its loss. */
START_TEST(a_blocked_log_function_stalls_no_session)
{
	struct blocked of_manager = {0}, of_engine = {0};
	struct okv_manager_options m = kv_local_options(16u << 20);
	struct okv_engine_options o;
	struct okv_engine *e;
	sem_init(&of_manager.go, 0, 0);
	sem_init(&of_engine.go, 0, 0);
	m.log = block;
	m.arg = &of_manager;
	kv_local_start(&l, &m, 0, &shape);
	kv_until(of_manager.calls == 1);
	okv_engine_options_init(&o);
	o.socket_path = l.socket_path;
	o.log = block;
	o.log_arg = &of_engine;
	for (uint64_t i = 0; i < 3; i++) {
		struct okv_engine *guest = kv_engine_connect(l.socket_path, 0);
		copy_both_ways(guest, i);
		okv_engine_close(guest);
	}
	kv_ok(okv_engine_open(&o, &e, kv_err));
	kv_until(of_engine.calls == 1);
	copy_both_ways(e, 9);
	okv_manager_stop(l.manager);
	kv_until(okv_engine_state(e) == OKV_E_SESSION);
	void *rc;
	ck_assert_int_eq(pthread_join(l.thread, &rc), 0);
	ck_assert_ptr_null(rc);
	ck_assert_int_eq(of_manager.calls + of_engine.calls, 2);
	unblock(&of_engine);
	okv_engine_close(e);
	ck_assert_msg(strstr(of_engine.all, "session lost") != NULL, "%s", of_engine.all);
	okv_namespace_close(l.ns);
	okv_engine_close(l.engine);
	unblock(&of_manager);
	okv_manager_destroy(l.manager);
	ck_assert_int_eq(rmdir(l.dir), 0);
	ck_assert_msg(strstr(of_manager.all, "disconnected") != NULL, "%s", of_manager.all);
	ck_assert_msg(strstr(of_manager.all, "draining") != NULL, "%s", of_manager.all);
}
END_TEST

static void use_it(void *arg, enum okv_log_level level, const char *line)
{
	(void)level;
	(void)line;
	use_the_library(true);
	atomic_fetch_add((atomic_int *)arg, 1);
}

START_TEST(a_log_function_may_call_the_library)
{
	atomic_int calls = 0;
	struct okv_engine_options o;
	struct okv_engine *logging;
	kv_rank_open(&main_rank, l.ns, &shape, 0);
	okv_engine_options_init(&o);
	o.socket_path = l.socket_path;
	o.log = use_it;
	o.log_arg = &calls;
	kv_ok(okv_engine_open(&o, &logging, kv_err));
	okv_engine_close(logging);
	ck_assert_int_eq(calls, 1);
	kv_rank_close(&main_rank);
}
END_TEST

/* ---- rings ---- */

static uint32_t count_lines(struct okv_log_ring *ring, const char *text)
{
	struct okv_log_line line;
	uint32_t n, found = 0;
	for (;;) {
		ck_assert_int_eq(okv_log_ring_read(ring, &line, 1, &n), 0);
		if (!n)
			return found;
		ck_assert_uint_eq(line.lost, 0);
		found += strstr(line.text, text) != NULL;
	}
}

/* The Manager writes it behind its answer, so that it may come a moment later. */
static void await_line(struct okv_log_ring *ring, const char *text)
{
	struct pollfd one = {.fd = okv_log_ring_fd(ring), .events = POLLIN};
	do
		ck_assert_int_eq(poll(&one, 1, 60000), 1);
	while (!count_lines(ring, text));
}

START_TEST(a_ring_takes_the_lines_of_engines_and_managers)
{
	struct okv_log_ring *ring, *of_manager;
	struct okv_manager_options m = kv_local_options(16u << 20);
	struct okv_engine_options o;
	struct okv_engine *a, *b;
	kv_ok(okv_log_ring_create(64, &ring, kv_err));
	kv_ok(okv_log_ring_create(64, &of_manager, kv_err));
	m.log_ring = of_manager;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &m;
	o.log_ring = ring;
	kv_ok(okv_engine_open(&o, &a, kv_err));
	ck_assert_uint_eq(count_lines(ring, "open, epoch"), 1);
	m.log_ring = ring;
	kv_ok(okv_engine_open(&o, &b, kv_err));
	okv_engine_close(a);
	ck_assert_uint_eq(count_lines(of_manager, "draining"), 1);
	await_line(ring, "connected");
	okv_engine_close(b);
	ck_assert_uint_eq(count_lines(ring, "draining"), 1);
	okv_log_ring_close(of_manager);
	/* Closed while it is written. */
	kv_ok(okv_engine_open(&o, &b, kv_err));
	okv_log_ring_close(ring);
	copy_both_ways(b, 3);
	okv_engine_close(b);
}
END_TEST

START_TEST(a_function_and_a_ring_are_one_too_many)
{
	struct okv_log_ring *ring;
	struct okv_manager_options m = kv_local_options(16u << 20);
	struct okv_engine_options o;
	struct okv_engine *e = NULL;
	struct okv_manager *manager = NULL;
	struct okv_error err;
	uint32_t fds = kv_fd_count();
	kv_ok(okv_log_ring_create(2, &ring, kv_err));
	okv_engine_options_init(&o);
	o.socket_path = l.socket_path;
	o.log = block;
	o.log_ring = ring;
	ck_assert_int_eq(okv_engine_open(&o, &e, &err), OKV_E_INVAL);
	ck_assert_msg(strstr(err.text, "log_ring") != NULL, "%s", err.text);
	m.log = block;
	m.log_ring = ring;
	ck_assert_int_eq(okv_manager_create(&m, &manager, &err), OKV_E_INVAL);
	ck_assert_msg(strstr(err.text, "log_ring") != NULL, "%s", err.text);
	ck_assert(!e && !manager);
	okv_log_ring_close(ring);
	ck_assert_uint_eq(kv_fd_count(), fds);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("callbacks");
	TCase *t = tcase_create("owners");
	tcase_set_timeout(t, 30);
	tcase_add_checked_fixture(t, start, stop);
	tcase_add_test(t, registration_calls_owners_under_no_lock);
	tcase_add_test(t, a_refused_registration_releases_under_no_lock);
	tcase_add_test(t, an_engine_closes_while_a_registration_retains);
	tcase_add_test(t, operations_call_owners_under_no_lock);
	tcase_add_test(t, release_may_call_the_library);
	tcase_add_test(t, a_log_function_may_call_the_library);
	tcase_add_test(t, a_function_and_a_ring_are_one_too_many);
	suite_add_tcase(s, t);
	t = tcase_create("logs");
	tcase_set_timeout(t, 30);
	tcase_add_test(t, a_blocked_log_function_stalls_no_embedded_manager);
	tcase_add_test(t, a_blocked_log_function_stalls_no_session);
	tcase_add_test(t, a_ring_takes_the_lines_of_engines_and_managers);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
