/* SPDX-License-Identifier: Apache-2.0 */
/* Completions: each is told once, to whichever thread, and says which operation it is of. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "support/local.h"
#include "support/suite.h"

static const struct kv_shape small = {.segment_bytes = 700, .pages = 96};

static struct kv_local l;

static void start(void)
{
	struct okv_manager_options o = kv_local_options(16u << 20);
	kv_local_start(&l, &o, 0, &small);
}

/* A restore of one block that tells of its end. */
static void start_one(const struct kv_rank *rank, struct okv_lease *lease, uint32_t block,
		      uint32_t page, uint64_t user_data, struct okv_op **ret_op)
{
	const struct okv_restore_group g = {.first = block, .count = 1, .pages = &page};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.flags = OKV_OP_NOTIFY | OKV_RESTORE_KEEP;
	o.group_count = 1;
	o.groups = &g;
	o.user_data = user_data;
	kv_ok(okv_restore_start(rank->binding, lease, &o, ret_op, kv_err));
}

#define NOTIFIED 300u

struct poller {
	_Atomic uint32_t *total;
	_Atomic uint32_t *seen; /* by user_data */
	struct okv_op **ops;
	uint32_t bad;
};

static void *poll_completions(void *arg)
{
	struct poller *p = arg;
	struct pollfd fd = {.fd = okv_engine_fd(l.engine), .events = POLLIN};
	while (*p->total < NOTIFIED) {
		struct okv_completion c[4];
		uint32_t n = 0;
		if (poll(&fd, 1, 100) < 0 && errno != EINTR)
			p->bad++;
		p->bad += okv_engine_poll(l.engine, c, 4, &n) != 0;
		for (uint32_t i = 0; i < n; i++) {
			p->seen[c[i].user_data]++;
			p->bad += p->ops[c[i].user_data] != c[i].op;
			p->bad += okv_op_poll(c[i].op, NULL) != c[i].status;
			++*p->total;
		}
	}
	return NULL;
}

START_TEST(every_completion_is_told_exactly_once)
{
	start();
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	struct okv_op *ops[NOTIFIED];
	_Atomic uint32_t total = 0, seen[NOTIFIED] = {0};
	struct poller pollers[2] = {{.total = &total, .seen = seen, .ops = ops},
				    {.total = &total, .seen = seen, .ops = ops}};
	pthread_t threads[2];
	kv_rank_open(&a, l.ns, &small, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	struct pollfd fd = {.fd = okv_engine_fd(l.engine), .events = POLLIN};
	ck_assert_int_eq(poll(&fd, 1, 0), 0);
	for (uint32_t i = 0; i < NOTIFIED; i++) {
		if (i >= 96)
			okv_op_wait(ops[i - 96], -1, NULL);
		start_one(&a, lease, i % 8, i % 96, i, &ops[i]);
		if (i % 5 == 0)
			okv_op_cancel(ops[i]);
		if (i == 0)
			for (uint32_t t = 0; t < 2; t++)
				ck_assert_int_eq(pthread_create(&threads[t], NULL, poll_completions,
								&pollers[t]),
						 0);
	}
	for (uint32_t t = 0; t < 2; t++) {
		ck_assert_int_eq(pthread_join(threads[t], NULL), 0);
		ck_assert_uint_eq(pollers[t].bad, 0);
	}
	for (uint32_t i = 0; i < NOTIFIED; i++) {
		ck_assert_uint_eq(seen[i], 1);
		okv_op_release(ops[i]);
	}
	/* Nothing more is to come, and nobody says so. */
	ck_assert_int_eq(poll(&fd, 1, 0), 0);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(a_completion_outlives_its_handle_and_silent_ones_do_not_appear)
{
	start();
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	struct okv_op *op;
	struct okv_completion c[4];
	uint32_t n, page = 5, other = 6;
	kv_rank_open(&a, l.ns, &small, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 3, &lease), 8);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 1, &other, 0, &r), 0);
	kv_ok(kv_restore_start(&a, lease, 0, 1, &page, OKV_OP_NOTIFY, &op, kv_err));
	okv_op_release(op);
	struct pollfd fd = {.fd = okv_engine_fd(l.engine), .events = POLLIN};
	ck_assert_int_eq(poll(&fd, 1, 60000), 1);
	ck_assert_int_eq(okv_engine_poll(l.engine, c, 4, &n), 0);
	ck_assert_uint_eq(n, 1);
	ck_assert_ptr_eq(c[0].op, op);
	ck_assert_int_eq(c[0].status, 0);
	ck_assert_uint_eq(kv_wrong(&a, 1, 0, &page), 0);
	ck_assert_int_eq(okv_engine_poll(l.engine, c, 4, &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(poll(&fd, 1, 0), 0);
	/* One that nobody takes goes with the engine. */
	kv_ok(kv_restore_start(&a, lease, 0, 1, &page, OKV_OP_NOTIFY, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, -1, NULL), 0);
	okv_op_release(op);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- handles that another thread releases ---- */

#define HANDED_OVER 3000u
#define AHEAD 64u /* so many at a time, each with a page of its own */

struct releaser {
	_Atomic uint32_t released;
	_Atomic bool busy[AHEAD]; /* by page */
	uint32_t failed;
};

static void *release_completed(void *arg)
{
	struct releaser *r = arg;
	struct pollfd fd = {.fd = okv_engine_fd(l.engine), .events = POLLIN};
	while (r->released < HANDED_OVER) {
		struct okv_completion c[8];
		uint32_t n = 0;
		poll(&fd, 1, 100);
		r->failed += okv_engine_poll(l.engine, c, 8, &n) != 0;
		for (uint32_t i = 0; i < n; i++) {
			r->failed += c[i].status != 0;
			r->busy[c[i].user_data] = false;
			okv_op_release(c[i].op);
		}
		r->released += n;
	}
	return NULL;
}

/* The start call of one may not have returned yet when it is told of and released. */
START_TEST(whoever_is_told_may_release)
{
	start();
	struct kv_rank a;
	struct okv_lease *lease;
	struct releaser r = {0};
	pthread_t thread;
	kv_rank_open(&a, l.ns, &small, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	ck_assert_int_eq(pthread_create(&thread, NULL, release_completed, &r), 0);
	for (uint32_t i = 0; i < HANDED_OVER; i++) {
		uint32_t page = i % AHEAD;
		struct okv_op *op;
		kv_until(!r.busy[page]);
		r.busy[page] = true;
		start_one(&a, lease, i % 8, page, page, &op);
	}
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert_uint_eq(r.failed, 0);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("completions");
	TCase *t = tcase_create("completions");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, every_completion_is_told_exactly_once);
	tcase_add_test(t, a_completion_outlives_its_handle_and_silent_ones_do_not_appear);
	tcase_add_test(t, whoever_is_told_may_release);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
