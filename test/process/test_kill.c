/* SPDX-License-Identifier: Apache-2.0 */
/* SIGKILL at any moment: the survivor works, bytes stay exact, nothing is left but the counted. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"
#include "support/gate.h"

#define SHARED_SEQ 1u
#define SHARED_BLOCKS 16u
#define KEPT_FDS 3u /* a retained session keeps its doorbells and the pidfd */

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};
static const struct kv_shape shape = {.pages = 128, .segment_bytes = 4096};

/* ---- roles: engines that die ---- */

struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_rank rank;
};

static void side_open(struct side *s, const char *socket_path, const struct kv_shape *of)
{
	s->engine = kv_engine_connect(socket_path, 0);
	s->ns = kv_namespace(s->engine, of);
	kv_rank_open(&s->rank, s->ns, of, 0);
}

static void side_close(struct side *s)
{
	kv_rank_close(&s->rank);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
}

START_TEST(role_open)
{
	struct okv_engine *e = kv_engine_connect(child_socket, 0);
	child_say("here");
	child_stay();
	okv_engine_close(e);
}
END_TEST

START_TEST(role_registered)
{
	struct side s;
	side_open(&s, child_socket, &shape);
	child_say("here");
	child_stay();
	side_close(&s);
}
END_TEST

/* Endless publishes, many in flight. */
START_TEST(role_publishing)
{
	enum { OPS = 8 };
	struct side s;
	struct okv_op *ops[OPS] = {NULL};
	side_open(&s, child_socket, &shape);
	for (uint64_t n = 0;; n++) {
		struct okv_op **op = &ops[n % OPS];
		uint32_t *pages = kv_pages(&s.rank, 16, (uint32_t)(n % OPS) * 16, 1);
		if (*op)
			okv_op_wait(*op, -1, NULL);
		okv_op_release(*op);
		uint64_t seq = ((uint64_t)getpid() << 20) + n;
		int rc = kv_publish_start(&s.rank, seq, 0, 16, pages, 0, op, NULL);
		free(pages);
		if (rc) {
			/* The Manager died first; this process is next. */
			ck_assert_int_eq(rc, OKV_E_SESSION);
			child_stay();
			return;
		}
		if (n == 2 * OPS)
			child_say("here");
	}
}
END_TEST

static void restore_shared(struct side *s, struct okv_lease *lease, uint32_t first_page)
{
	uint32_t *pages = kv_pages(&s->rank, SHARED_BLOCKS, first_page, 3);
	kv_poison(&s->rank);
	ck_assert_int_eq(
		kv_restore(&s->rank, lease, 0, SHARED_BLOCKS, pages, OKV_RESTORE_KEEP, NULL), 0);
	for (uint32_t i = 0; i < SHARED_BLOCKS; i++)
		ck_assert_uint_eq(kv_wrong(&s->rank, SHARED_SEQ, i, pages + i), 0);
	free(pages);
}

START_TEST(role_restoring)
{
	struct side s;
	struct okv_lease *lease;
	side_open(&s, child_socket, &shape);
	ck_assert_uint_eq(kv_lookup(s.ns, SHARED_SEQ, SHARED_BLOCKS, 1, &lease), SHARED_BLOCKS);
	for (uint32_t n = 0;; n++) {
		restore_shared(&s, lease, n);
		if (n == 3)
			child_say("here");
	}
}
END_TEST

START_TEST(role_leasing)
{
	struct side s;
	struct okv_lease *lease;
	side_open(&s, child_socket, &shape);
	for (uint32_t n = 0; n < 100; n++)
		kv_lookup(s.ns, SHARED_SEQ, 1 + n % SHARED_BLOCKS, 1, &lease);
	child_say("here");
	child_stay();
}
END_TEST

/* Hang up as a Manager sees it, while the process and its copies live on. */
static void hang_up(void)
{
	for (int fd = 3; fd < 198; fd++) {
		int type = 0;
		socklen_t len = sizeof(type);
		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_SEQPACKET)
			shutdown(fd, SHUT_RDWR);
	}
}

/* Stop inside the copy of a publish or restore of 8 blocks; then as told. */
static void gated(bool publish)
{
	struct side s;
	struct kv_gate gate;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	char line[32];
	side_open(&s, child_socket, &(struct kv_shape){.pages = 16, .segment_bytes = 16384});
	uint32_t *pages = kv_pages(&s.rank, 8, 0, 2);
	if (publish)
		for (uint32_t i = 0; i < 8; i++)
			kv_fill(&s.rank, 5, i, pages + i);
	else
		ck_assert_uint_eq(kv_lookup(s.ns, 5, 8, 1, &lease), 8);
	kv_gate_close_page(&gate, &s.rank, 2, 1, pages[6]);
	if (publish)
		kv_ok(kv_publish_start(&s.rank, 5, 0, 8, pages, 0, &op, kv_err));
	else
		kv_ok(kv_restore_start(&s.rank, lease, 0, 8, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	child_say("gated");
	while (child_hear(line, sizeof(line))) {
		if (!strcmp(line, "hang up"))
			hang_up();
		if (!strcmp(line, "open"))
			break;
	}
	kv_gate_open(&gate);
	int rc = okv_op_wait(op, 20000, NULL);
	ck_assert_msg(rc == 0 || rc == OKV_E_SESSION, "%s", okv_status_name(rc));
	if (!publish && !rc)
		for (uint32_t i = 0; i < 8; i++)
			ck_assert_uint_eq(kv_wrong(&s.rank, 5, i, pages + i), 0);
	ck_assert_uint_eq(kv_canaries_broken(&s.rank), 0);
	child_say(rc ? "lost" : "exact");
	okv_op_release(op);
	okv_lease_release(lease);
	side_close(&s);
	free(pages);
	child_stay();
}

START_TEST(role_gated_publish)
{
	gated(true);
}
END_TEST

START_TEST(role_gated_restore)
{
	gated(false);
}
END_TEST

/* ---- the tests ---- */

static bool alone(const struct okv_manager_status *s)
{
	return s->sessions == 1 && !s->ops_preparing && !s->ops_granted && !s->ops_active;
}

static void check_shared(struct side *s)
{
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(s->ns, SHARED_SEQ, SHARED_BLOCKS, 1, &lease), SHARED_BLOCKS);
	restore_shared(s, lease, 5);
	ck_assert_uint_eq(kv_canaries_broken(&s->rank), 0);
	okv_lease_release(lease);
}

START_TEST(r11_engine_killed_anywhere_leaves_a_working_manager)
{
	static const char *const roles[] = {"open", "registered", "publishing", "restoring",
					    "leasing"};
	struct kv_manager m;
	struct side survivor;
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&survivor, m.socket_path, &shape);
	ck_assert_int_eq(kv_publish(&survivor.rank, SHARED_SEQ, 0, SHARED_BLOCKS, NULL, NULL), 0);
	kv_manager_wait(&m, alone, "the survivor idle");
	uint32_t fds = process_fds(m.pid);
	uint64_t block = okv_namespace_block_bytes(survivor.ns, 0);
	for (int round = 0; round < 20; round++) {
		struct child c;
		child_start(&c, roles[round % 5], m.socket_path, NULL);
		child_wait(&c, "here");
		/* An unpredictable distance into its loop, measured in our own work. */
		for (int k = 0; k < round / 5; k++)
			check_shared(&survivor);
		int status = child_kill(&c, SIGKILL);
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		kv_manager_wait(&m, alone, "the dead engine gone");
		check_shared(&survivor);
		struct okv_manager_status s = kv_manager_status(&m);
		/* What stays is counted: of each death at most what it had in flight. */
		uint32_t kept = (uint32_t)s.sessions_retained;
		ck_assert_uint_le(kept, s.ops_quarantined);
		ck_assert_uint_le(s.ops_quarantined, 8 * (uint64_t)kept);
		ck_assert_uint_le(s.bytes_quarantined, s.ops_quarantined * 16 * block);
		process_await_fds(m.pid, fds + kept * KEPT_FDS);
		ck_assert_uint_eq(process_maps(m.pid, "orbitkv-control"), 1 + kept);
		ck_assert_uint_eq(s.bindings, 1);
		/* The survivor's own lease was released; the retire loop may still be at it. */
		ck_assert_uint_le(s.leases, 1);
	}
	side_close(&survivor);
	int status = kv_manager_kill(&m, SIGTERM);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	kv_manager_clean(&m);
}
END_TEST

static bool one_quarantined(const struct okv_manager_status *s)
{
	return s->ops_quarantined == 1 && s->sessions_retained == 1;
}

static const struct kv_shape big = {.pages = 16, .segment_bytes = 16384};

/* 8 blocks of seq, exact from the pool. */
static void check_big(struct side *s, uint64_t seq)
{
	struct okv_lease *lease;
	uint32_t *pages = kv_pages(&s->rank, 8, 3, 1);
	kv_poison(&s->rank);
	ck_assert_uint_eq(kv_lookup(s->ns, seq, 8, 1, &lease), 8);
	ck_assert_int_eq(kv_restore(&s->rank, lease, 0, 8, pages, 0, NULL), 0);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(kv_wrong(&s->rank, seq, i, pages + i), 0);
	okv_lease_release(lease);
	free(pages);
}

/* Publish until everything that can be evicted was, twice over; returns the last seq. */
static uint64_t overfill(struct side *s, uint64_t bytes_total)
{
	uint64_t per_seq = 8 * okv_namespace_block_bytes(s->ns, 0);
	uint64_t n = 2 * (bytes_total / per_seq + 1);
	for (uint64_t k = 0; k < n; k++)
		ck_assert_int_eq(kv_publish(&s->rank, 1000 + k, 0, 8, NULL, NULL), 0);
	return 1000 + n - 1;
}

START_TEST(r3_killed_inside_a_publish_is_quarantined)
{
	struct kv_manager m;
	struct side s;
	struct child c;
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&s, m.socket_path, &big);
	child_start(&c, "gated_publish", m.socket_path, NULL);
	child_wait(&c, "gated");
	ck_assert_uint_eq(kv_manager_status(&m).ops_active, 1);
	child_kill(&c, SIGKILL);
	kv_manager_wait(&m, one_quarantined, "the grant quarantined");
	uint64_t bytes = 8 * okv_namespace_block_bytes(s.ns, 0);
	ck_assert_uint_eq(kv_manager_status(&m).bytes_quarantined, bytes);
	/* Not visible, and the key is anyone's. */
	ck_assert_uint_eq(kv_lookup(s.ns, 5, 8, 1, NULL), 0);
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&s.rank, 5, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	check_big(&s, 5);
	uint64_t last = overfill(&s, kv_manager_status(&m).bytes_total);
	check_big(&s, last);
	struct okv_manager_status st = kv_manager_status(&m);
	ck_assert_uint_gt(st.evictions, 0);
	ck_assert_uint_eq(st.bytes_quarantined, bytes);
	ck_assert_uint_eq(st.sessions_retained, 1);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(r3_killed_inside_a_restore_leaves_its_source_readable)
{
	struct kv_manager m;
	struct side s;
	struct child c;
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&s, m.socket_path, &big);
	ck_assert_int_eq(kv_publish(&s.rank, 5, 0, 8, NULL, NULL), 0);
	child_start(&c, "gated_restore", m.socket_path, NULL);
	child_wait(&c, "gated");
	child_kill(&c, SIGKILL);
	kv_manager_wait(&m, one_quarantined, "the grant quarantined");
	ck_assert_uint_eq(kv_manager_status(&m).bytes_quarantined,
			  8 * okv_namespace_block_bytes(s.ns, 0));
	check_big(&s, 5);
	/* The source is neither evicted nor overwritten by what comes later. */
	check_big(&s, overfill(&s, kv_manager_status(&m).bytes_total));
	check_big(&s, 5);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static bool one_retained(const struct okv_manager_status *s)
{
	return s->sessions_retained == 1 && s->sessions == 1;
}

static bool none_retained(const struct okv_manager_status *s)
{
	return s->sessions_retained == 0 && s->sessions == 1 && s->ops_active == 0;
}

/*
 * The session is lost but the process copies on. Whatever the Manager gave others meanwhile must
 * not be where that late copy reads or writes.
 */
static void late_copy(const char *role, const char *expect)
{
	struct kv_manager m;
	struct side s;
	struct child c;
	kv_manager_start(&m, args);
	manager_drain(&m);
	side_open(&s, m.socket_path, &big);
	if (!strcmp(role, "gated_restore"))
		ck_assert_int_eq(kv_publish(&s.rank, 5, 0, 8, NULL, NULL), 0);
	child_start(&c, role, m.socket_path, NULL);
	child_wait(&c, "gated");
	child_tell(&c, "hang up");
	kv_manager_wait(&m, one_retained, "the session lost and retained");
	uint64_t last = overfill(&s, kv_manager_status(&m).bytes_total);
	child_tell(&c, "open");
	child_wait(&c, expect);
	kv_manager_wait(&m, none_retained, "the late copy drained and released");
	uint32_t found = 0;
	for (uint64_t seq = 1000; seq <= last; seq++) {
		if (kv_lookup(s.ns, seq, 8, 1, NULL) != 8)
			continue;
		check_big(&s, seq);
		found++;
	}
	ck_assert_uint_gt(found, 10);
	struct okv_manager_status st = kv_manager_status(&m);
	ck_assert_uint_eq(st.bytes_quarantined, 0);
	ck_assert_uint_eq(st.ops_quarantined, 0);
	child_end(&c);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}

START_TEST(r3_late_publish_of_a_lost_session_hits_nobody)
{
	late_copy("gated_publish", "lost");
}
END_TEST

START_TEST(r3_late_restore_of_a_lost_session_is_exact)
{
	late_copy("gated_restore", "exact");
}
END_TEST

/* ---- the Manager dies ---- */

struct worker {
	struct side side;
	_Atomic uint32_t rounds;
	int status;
};

/* Publish and restore until an error. */
static void *work(void *arg)
{
	struct worker *w = arg;
	struct okv_lease *lease = NULL;
	struct okv_error err;
	uint8_t *keys = kv_keys(SHARED_SEQ, 0, 8);
	struct okv_keys k = {.count = 8, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &k;
	o.timeout_ms = 20000;
	do {
		uint32_t *pages = kv_pages(&w->side.rank, 8, atomic_load(&w->rounds), 5);
		struct okv_lookup_result found;
		w->status = kv_publish(&w->side.rank, SHARED_SEQ, 0, 8, NULL, NULL);
		if (!w->status)
			w->status = okv_lookup(w->side.ns, &o, &found, &lease, &err);
		if (!w->status) {
			kv_poison(&w->side.rank);
			w->status = kv_restore(&w->side.rank, lease, 0, 8, pages, 0, NULL);
			okv_lease_release(lease);
		}
		for (uint32_t i = 0; i < 8 && !w->status; i++)
			if (kv_wrong(&w->side.rank, SHARED_SEQ, i, pages + i))
				w->status = 1;
		free(pages);
		atomic_fetch_add(&w->rounds, 1);
	} while (!w->status);
	free(keys);
	return NULL;
}

START_TEST(r11_manager_killed_anywhere_leaves_working_engines)
{
	struct kv_manager m;
	uint32_t fds = 0;
	for (uint32_t round = 0; round < 12; round++) {
		if (round)
			kv_manager_restart(&m, args);
		else
			kv_manager_start(&m, args);
		if (!fds)
			fds = kv_fd_count();
		struct worker w = {.status = 0};
		pthread_t thread;
		side_open(&w.side, m.socket_path, &shape);
		ck_assert_uint_eq(kv_lookup(w.side.ns, SHARED_SEQ, 8, 1, NULL), 0);
		ck_assert_int_eq(pthread_create(&thread, NULL, work, &w), 0);
		while (atomic_load(&w.rounds) < round)
			sched_yield();
		kv_manager_kill(&m, SIGKILL);
		pthread_join(thread, NULL);
		ck_assert_msg(w.status == OKV_E_SESSION, "%s", okv_status_name(w.status));
		ck_assert_uint_eq(kv_canaries_broken(&w.side.rank), 0);
		ck_assert_int_eq(okv_engine_state(w.side.engine), OKV_E_SESSION);
		side_close(&w.side);
		/* The pipe to the Manager is closed as well. */
		ck_assert_uint_eq(kv_fd_count() + 1, fds);
	}
	kv_manager_clean(&m);
}
END_TEST

START_TEST(s26_both_sides_killed_many_times)
{
	static const char *const roles[] = {"publishing", "leasing", "registered"};
	struct kv_manager m;
	for (int round = 0; round < 21; round++) {
		struct child c;
		if (round)
			kv_manager_restart(&m, args);
		else
			kv_manager_start(&m, args);
		child_start(&c, roles[round % 3], m.socket_path, NULL);
		if (round % 7)
			child_wait(&c, "here");
		if (round % 2 && round % 7) {
			kv_manager_kill(&m, SIGKILL);
			child_kill(&c, SIGKILL);
		} else {
			child_kill(&c, SIGKILL);
			kv_manager_kill(&m, SIGKILL);
		}
	}
	/* Memory is back where it was: a new one has all of it. */
	kv_manager_restart(&m, args);
	struct okv_manager_status s = kv_manager_status(&m);
	ck_assert_uint_eq(s.bytes_free, s.bytes_total);
	ck_assert_uint_eq(s.sessions + s.sessions_retained, 0);
	kv_manager_kill(&m, SIGKILL);
	kv_manager_clean(&m);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {
		{"open", role_open},
		{"registered", role_registered},
		{"publishing", role_publishing},
		{"restoring", role_restoring},
		{"leasing", role_leasing},
		{"gated_publish", role_gated_publish},
		{"gated_restore", role_gated_restore},
	};
	int rc = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("kill");
	TCase *t = tcase_create("kill");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, r11_engine_killed_anywhere_leaves_a_working_manager);
	tcase_add_test(t, r3_killed_inside_a_publish_is_quarantined);
	tcase_add_test(t, r3_killed_inside_a_restore_leaves_its_source_readable);
	tcase_add_test(t, r3_late_publish_of_a_lost_session_hits_nobody);
	tcase_add_test(t, r3_late_restore_of_a_lost_session_is_exact);
	tcase_add_test(t, r11_manager_killed_anywhere_leaves_working_engines);
	tcase_add_test(t, s26_both_sides_killed_many_times);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
