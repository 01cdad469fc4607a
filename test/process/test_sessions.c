/* SPDX-License-Identifier: Apache-2.0 */
/* A thousand sessions at once: each publishes and restores, and the Manager answers meanwhile. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "process/child.h"

#define PROCESSES 10u
#define ENGINES 100u /* of each process */
#define BLOCKS 4u

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};
static const struct kv_shape shape = {.pages = 2 * BLOCKS, .layers = 2};

struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_rank rank;
};

/* ---- a process with many engines ---- */

static void open_side(struct side *s)
{
	s->engine = kv_engine_connect(child_socket, 0);
	s->ns = kv_namespace(s->engine, &shape);
	kv_rank_open(&s->rank, s->ns, &shape, 0);
}

static void close_side(struct side *s)
{
	kv_rank_close(&s->rank);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
}

/* Into other pages than it came from; every byte, and every byte around them, is checked. */
static void publish_and_restore(struct side *s, uint64_t seq)
{
	uint32_t *pages = kv_pages(&s->rank, BLOCKS, BLOCKS, 1);
	struct okv_lease *lease;
	ck_assert_int_eq(kv_publish(&s->rank, seq, 0, BLOCKS, NULL, NULL), 0);
	kv_poison(&s->rank);
	ck_assert_uint_eq(kv_lookup(s->ns, seq, BLOCKS, 1, &lease), BLOCKS);
	ck_assert_int_eq(kv_restore(&s->rank, lease, 0, BLOCKS, pages, 0, NULL), 0);
	okv_lease_release(lease);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		ck_assert_uint_eq(kv_wrong(&s->rank, seq, i, pages + i), 0);
		ck_assert_uint_eq(kv_touched(&s->rank, i), 0);
	}
	ck_assert_uint_eq(kv_canaries_broken(&s->rank), 0);
	free(pages);
}

START_TEST(many_engines)
{
	struct side *sides = calloc(ENGINES, sizeof(*sides));
	uint64_t first = strtoull(child_arg, NULL, 10);
	char line[16];
	for (uint32_t i = 0; i < ENGINES; i++)
		open_side(&sides[i]);
	child_say("connected");
	if (child_hear(line, sizeof(line))) {
		for (uint32_t i = 0; i < ENGINES; i++)
			publish_and_restore(&sides[i], first + i);
		child_say("restored");
		child_stay();
	}
	for (uint32_t i = 0; i < ENGINES; i++)
		close_side(&sides[i]);
	free(sides);
}
END_TEST

/* ---- the test ---- */

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static bool nobody(const struct okv_manager_status *s)
{
	return s->sessions + s->sessions_retained == 0;
}

/* The status is asked for from each process's start until all have restored. */
static void ask_until(const struct kv_manager *m, uint64_t reaped, double *longest)
{
	struct okv_manager_status st;
	do {
		double start = now_ms();
		st = kv_manager_status(m);
		double ms = now_ms() - start;
		*longest = ms > *longest ? ms : *longest;
		ck_assert_uint_eq(st.sessions, PROCESSES * ENGINES);
		ck_assert_uint_eq(st.bindings, PROCESSES * ENGINES);
	} while (st.ops_reaped < reaped);
}

START_TEST(a_thousand_sessions_publish_and_restore)
{
	struct child children[PROCESSES];
	struct kv_manager m;
	char first[16];
	double longest = 0;
	kv_manager_start(&m, args);
	manager_drain(&m);
	for (uint32_t p = 0; p < PROCESSES; p++) {
		snprintf(first, sizeof(first), "%u", p * ENGINES);
		child_start(&children[p], "many_engines", m.socket_path, first);
	}
	for (uint32_t p = 0; p < PROCESSES; p++)
		child_wait(&children[p], "connected");
	ck_assert_uint_eq(kv_manager_status(&m).sessions, PROCESSES * ENGINES);
	for (uint32_t p = 0; p < PROCESSES; p++)
		child_tell(&children[p], "go");
	/* A publish and a restore of each. */
	ask_until(&m, 2ull * PROCESSES * ENGINES, &longest);
	for (uint32_t p = 0; p < PROCESSES; p++)
		child_wait(&children[p], "restored");
	printf("the longest answer to status took %.1f ms\n", longest);
	for (uint32_t p = 0; p < PROCESSES; p++)
		child_end(&children[p]);
	kv_manager_wait(&m, nobody, "all sessions gone");
	struct okv_manager_status st = kv_manager_status(&m);
	ck_assert_uint_eq(st.leases, 0);
	ck_assert_uint_eq(st.bytes_pinned, 0);
	ck_assert_uint_eq(st.ops_quarantined, 0);
	ck_assert_uint_eq(st.blocks, PROCESSES * ENGINES * BLOCKS);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {{"many_engines", many_engines}};
	int played = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (played >= 0)
		return played;
	Suite *s = suite_create("sessions");
	TCase *t = tcase_create("sessions");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, a_thousand_sessions_publish_and_restore);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
