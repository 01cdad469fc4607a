/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing to do means no wakeup: of no thread, on no side, however long. */
#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/local.h"
#include "support/suite.h"

#define IDLE_MS 300  /* one measured interval */
#define QUIET 3	     /* so many of them in a row without any wakeup */
#define INTERVALS 12 /* in so many at most */
#define TASKS_MAX 64

/* Threads that are not the library's: this one, and a sanitizer's own. */
static int others[TASKS_MAX];
static uint32_t other_count;

static uint32_t list_tasks(int tasks[TASKS_MAX])
{
	uint32_t n = 0;
	DIR *dir = opendir("/proc/self/task");
	ck_assert_ptr_nonnull(dir);
	for (struct dirent *d; (d = readdir(dir));)
		if (d->d_name[0] != '.' && n < TASKS_MAX)
			tasks[n++] = atoi(d->d_name);
	closedir(dir);
	return n;
}

static void *nothing(void *arg)
{
	return arg;
}

static void remember_others(void)
{
	pthread_t thread;
	/* A sanitizer starts its own with the first thread of the process. */
	ck_assert_int_eq(pthread_create(&thread, NULL, nothing, NULL), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	other_count = list_tasks(others);
}

static bool is_other(int task)
{
	for (uint32_t i = 0; i < other_count; i++)
		if (others[i] == task)
			return true;
	return false;
}

static uint64_t switches_of(int task)
{
	char path[64], line[256];
	unsigned long long n = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/status", task);
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1)
			break;
	fclose(f);
	return n;
}

/* How often the library's threads went to sleep so far: each wakeup ends in that. */
static uint64_t switches(uint32_t *ret_threads)
{
	int tasks[TASKS_MAX];
	uint64_t sum = 0;
	uint32_t n = list_tasks(tasks);
	*ret_threads = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (is_other(tasks[i]))
			continue;
		sum += switches_of(tasks[i]);
		++*ret_threads;
	}
	return sum;
}

struct activity {
	uint64_t engine, manager, switches;
	uint32_t threads;
};

/* local NULL: the Manager is inside the engine and has no counters of its own to see. */
static struct activity look(struct okv_engine *engine, const struct kv_local *local)
{
	struct activity a = {.engine = kv_stats(engine).wakeups};
	if (local)
		a.manager = kv_local_status(local).wakeups;
	a.switches = switches(&a.threads);
	return a;
}

/* The interval is a wait for a completion that does not come. */
static struct activity idle(struct okv_engine *engine, const struct kv_local *local)
{
	struct pollfd fd = {.fd = okv_engine_fd(engine), .events = POLLIN};
	struct activity before = look(engine, local);
	ck_assert_int_eq(poll(&fd, 1, IDLE_MS), 0);
	struct activity after = look(engine, local);
	ck_assert_uint_eq(before.threads, after.threads);
	return (struct activity){.engine = after.engine - before.engine,
				 .manager = after.manager - before.manager,
				 .switches = after.switches - before.switches,
				 .threads = after.threads};
}

static void check_idle(struct okv_engine *engine, const struct kv_local *local)
{
	struct activity a = {0};
	int quiet = 0;
	/* What the last operation left behind may still be looked at once or twice; whatever comes
	 * back by itself never lets QUIET intervals in a row pass. */
	for (int i = 0; i < INTERVALS && quiet < QUIET; i++) {
		a = idle(engine, local);
		quiet = a.engine + a.manager + a.switches ? 0 : quiet + 1;
	}
	ck_assert_uint_ge(a.threads, 3);
	ck_assert_msg(
		quiet == QUIET,
		"at last %llu wakeups of the engine, %llu of the Manager, %llu of all threads",
		(unsigned long long)a.engine, (unsigned long long)a.manager,
		(unsigned long long)a.switches);
}

static void work(struct kv_rank *a, struct okv_namespace *ns, uint64_t seq)
{
	struct okv_lease *lease;
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(a, seq, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, seq, 8, 1, &lease), 8);
	ck_assert_int_eq(
		kv_restore(a, lease, 0, 8, (uint32_t[]){8, 9, 10, 11, 12, 13, 14, 15}, 0, &r), 0);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(kv_wrong(a, seq, i, (uint32_t[]){8 + i}), 0);
	okv_lease_release(lease);
}

START_TEST(an_idle_engine_and_its_manager_sleep)
{
	const struct kv_shape shape = {.pages = 64};
	struct okv_manager_options o = kv_local_options(4u << 20);
	struct kv_local l;
	struct kv_rank a;
	remember_others();
	kv_local_start(&l, &o, 0, &shape);
	check_idle(l.engine, &l);
	kv_rank_open(&a, l.ns, &shape, 0);
	check_idle(l.engine, &l);
	/* The counters do count: work is seen. */
	struct activity before = look(l.engine, &l);
	work(&a, l.ns, 1);
	kv_until(kv_local_status(&l).wakeups > before.manager);
	kv_until(kv_stats(l.engine).wakeups > before.engine);
	check_idle(l.engine, &l);
	/* A lease that is held is nothing to do either: its end is far. */
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	check_idle(l.engine, &l);
	okv_lease_release(lease);
	/* A second engine that came and went. */
	struct okv_engine *second = kv_engine_connect(l.socket_path, 0);
	check_idle(l.engine, &l);
	okv_engine_close(second);
	check_idle(l.engine, &l);
	kv_rank_close(&a);
	check_idle(l.engine, &l);
	kv_local_stop(&l);
}
END_TEST

START_TEST(an_embedded_manager_sleeps_as_well)
{
	const struct kv_shape shape = {.pages = 64};
	struct kv_rank a;
	remember_others();
	struct okv_engine *engine = kv_engine_embedded(4u << 20, 0);
	struct okv_namespace *ns = kv_namespace(engine, &shape);
	kv_rank_open(&a, ns, &shape, 0);
	for (uint64_t seq = 1; seq <= 3; seq++)
		work(&a, ns, seq);
	check_idle(engine, NULL);
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(engine);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("idle");
	TCase *t = tcase_create("idle");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, an_idle_engine_and_its_manager_sleep);
	tcase_add_test(t, an_embedded_manager_sleeps_as_well);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
