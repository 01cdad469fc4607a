/* SPDX-License-Identifier: Apache-2.0 */
/* fork() without exec: the child is told so by every call, and the parent goes on exactly. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"
#include "support/local.h"

#define BLOCKS 8u

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};
static const struct kv_shape shape = {.segment_bytes = 4096, .pages = 64};

/* Everything that a process can hold when it forks. */
struct held {
	struct kv_manager *manager; /* NULL: embedded */
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_rank rank;
	struct okv_lease *lease; /* of sequence 1, two consumers */
	struct okv_lease_id lease_id;
	struct okv_op *ended, *running; /* restores of all of it, to pages 10 and 20 on */
	struct kv_owned owned;
};

static void start_restore(struct held *h, uint32_t page, struct okv_op **ret_op)
{
	uint32_t *pages = kv_pages(&h->rank, BLOCKS, page, 1);
	kv_ok(kv_restore_start(&h->rank, h->lease, 0, BLOCKS, pages, OKV_RESTORE_KEEP, ret_op,
			       kv_err));
	free(pages);
}

static void hold(struct held *h)
{
	h->engine = h->manager ? kv_engine_connect(h->manager->socket_path, 0)
			       : kv_engine_embedded(0, 0);
	h->ns = kv_namespace(h->engine, &shape);
	kv_rank_init(&h->rank, &shape, 0);
	h->rank.layers[0].owner = kv_owner(&h->owned);
	kv_ok(kv_rank_register(&h->rank, h->ns, kv_err));
	ck_assert_int_eq(kv_publish(&h->rank, 1, 0, BLOCKS, NULL, NULL), 0);
	kv_poison(&h->rank);
	ck_assert_uint_eq(kv_lookup(h->ns, 1, BLOCKS, 2, &h->lease), BLOCKS);
	ck_assert_int_eq(okv_lease_id(h->lease, &h->lease_id), 0);
	start_restore(h, 10, &h->ended);
	ck_assert_int_eq(okv_op_wait(h->ended, 60000, NULL), 0);
	start_restore(h, 20, &h->running);
}

/* The child must not return into the test program: it says what is wrong and exits. */
static void child_must(bool is_right, const char *what)
{
	if (is_right)
		return;
	dprintf(2, "in the forked child: %s\n", what);
	_exit(1);
}

#define FORKED(call) child_must((call) == OKV_E_FORKED, #call)
#define FORKED_TEXT(call)                                                                     \
	do {                                                                                  \
		struct okv_error err = {0};                                                   \
		child_must((call) == OKV_E_FORKED, #call);                                    \
		child_must(err.status == OKV_E_FORKED && err.text[0], "no text from " #call); \
	} while (0)

static void refused_engine_calls(struct held *h)
{
	struct okv_completion completion;
	struct okv_engine_stats stats;
	struct okv_namespace_options o;
	struct okv_namespace *ns;
	uint32_t n;
	const struct okv_layer_schema layer = {.segment_count = 1, .segment_bytes = {64}};
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = 1,
					       .layout_tag = "NHD",
					       .layers = &layer};
	FORKED(okv_engine_state(h->engine));
	FORKED(okv_engine_poll(h->engine, &completion, 1, &n));
	FORKED(okv_stats_get(h->engine, &stats));
	okv_namespace_options_init(&o);
	o.model = "other";
	o.group_count = 1;
	o.groups = &group;
	FORKED_TEXT(okv_namespace_open(h->engine, &o, &ns, &err));
}

static void refused_work(struct held *h)
{
	uint32_t pages[BLOCKS] = {30, 31, 32, 33, 34, 35, 36, 37};
	uint8_t keys[BLOCKS][KV_KEY_BYTES];
	struct okv_keys k = {.count = BLOCKS, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	struct okv_lookup_result result;
	struct okv_lease *lease;
	struct okv_op *op;
	struct kv_rank other = h->rank;
	for (uint32_t i = 0; i < BLOCKS; i++)
		kv_key(1, i, keys[i]);
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &k;
	FORKED_TEXT(okv_lookup(h->ns, &o, &result, &lease, &err));
	o.flags = OKV_LOOKUP_PEEK;
	FORKED_TEXT(okv_lookup(h->ns, &o, &result, NULL, &err));
	FORKED_TEXT(okv_lease_open(h->ns, &h->lease_id, &lease, &err));
	FORKED_TEXT(kv_rank_register(&other, h->ns, &err));
	FORKED(okv_binding_quiesce(h->rank.binding, 0));
	FORKED(okv_binding_resume(h->rank.binding));
	FORKED_TEXT(kv_publish_start(&h->rank, 2, 0, BLOCKS, pages, 0, &op, &err));
	FORKED_TEXT(kv_restore_start(&h->rank, h->lease, 0, BLOCKS, pages, 0, &op, &err));
	struct okv_op *const ops[] = {h->ended, h->running};
	for (int i = 0; i < 2; i++) {
		FORKED(okv_op_poll(ops[i], NULL));
		FORKED(okv_op_wait(ops[i], -1, NULL));
		FORKED(okv_op_wait_layer(ops[i], 0, -1));
		FORKED(okv_op_wait_enqueued(ops[i], 0, -1));
		FORKED(okv_op_stretches(ops[i], 0, 1, &(struct okv_stretch_result){0}));
		FORKED(okv_op_cancel(ops[i]));
	}
}

/* An engine of the child's own works: what the parent published is there. */
static void own_engine(const struct held *h)
{
	struct okv_engine_options o;
	struct okv_engine *engine;
	struct okv_error err = {0};
	okv_engine_options_init(&o);
	o.socket_path = h->manager->socket_path;
	child_must(okv_engine_open(&o, &engine, &err) == 0, err.text);
	struct okv_namespace *ns = kv_namespace(engine, &shape);
	child_must(kv_lookup(ns, 1, BLOCKS, 1, NULL) == BLOCKS, "the parent's blocks");
	okv_namespace_close(ns);
	okv_engine_close(engine);
}

static _Noreturn void be_forked(struct held *h)
{
	refused_engine_calls(h);
	refused_work(h);
	okv_op_release(h->running);
	okv_op_release(h->ended);
	okv_lease_release(h->lease);
	okv_binding_unregister(h->rank.binding);
	okv_namespace_close(h->ns);
	okv_engine_close(h->engine);
	child_must(h->owned.released == 0, "the child released the parent's tensors");
	child_must(process_maps(getpid(), "orbitkv-control") == 0, "the parent's control memory");
	child_must(process_maps(getpid(), "orbitkv-request") == 0, "the parent's request area");
	if (h->manager)
		child_must(process_maps(getpid(), "orbitkv-shard") == 0, "the parent's arenas");
	if (h->manager)
		own_engine(h);
	_exit(0);
}

static void check_exact(struct held *h, uint64_t seq, uint32_t first_page)
{
	uint32_t *pages = kv_pages(&h->rank, BLOCKS, first_page, 1);
	for (uint32_t i = 0; i < BLOCKS; i++)
		ck_assert_uint_eq(kv_wrong(&h->rank, seq, i, pages + i), 0);
	ck_assert_uint_eq(kv_canaries_broken(&h->rank), 0);
	free(pages);
}

/* All that was held works on, and so does what is new. */
static void go_on(struct held *h)
{
	struct okv_lease *lease, *again;
	uint32_t *pages = kv_pages(&h->rank, BLOCKS, 40, 1);
	ck_assert_int_eq(okv_engine_state(h->engine), 0);
	ck_assert_int_eq(okv_op_poll(h->ended, NULL), 0);
	ck_assert_int_eq(okv_op_wait(h->running, 60000, NULL), 0);
	check_exact(h, 1, 10);
	check_exact(h, 1, 20);
	for (uint32_t i = 0; i < BLOCKS; i++)
		ck_assert_uint_eq(kv_touched(&h->rank, 30 + i), 0);
	ck_assert_uint_eq(kv_lookup(h->ns, 2, BLOCKS, 1, NULL), 0);
	kv_ok(okv_lease_open(h->ns, &h->lease_id, &again, kv_err));
	okv_lease_release(again);
	ck_assert_int_eq(kv_restore(&h->rank, h->lease, 0, BLOCKS, pages, 0, NULL), 0);
	check_exact(h, 1, 40);
	ck_assert_int_eq(kv_publish(&h->rank, 2, 0, BLOCKS, NULL, NULL), 0);
	kv_poison(&h->rank);
	ck_assert_uint_eq(kv_lookup(h->ns, 2, BLOCKS, 1, &lease), BLOCKS);
	ck_assert_int_eq(kv_restore(&h->rank, lease, 0, BLOCKS, pages, 0, NULL), 0);
	check_exact(h, 2, 40);
	okv_lease_release(lease);
	free(pages);
}

static void let_go(struct held *h)
{
	okv_op_release(h->ended);
	okv_op_release(h->running);
	okv_lease_release(h->lease);
	ck_assert_uint_eq(h->owned.released, 0);
	okv_binding_unregister(h->rank.binding);
	h->rank.binding = NULL;
	ck_assert_uint_eq(h->owned.retained, 1);
	ck_assert_uint_eq(h->owned.released, 1);
	kv_rank_close(&h->rank);
	okv_namespace_close(h->ns);
	okv_engine_close(h->engine);
}

static void fork_and_go_on(struct kv_manager *manager)
{
	struct held h = {.manager = manager};
	int status;
	hold(&h);
	for (int n = 0; n < 3; n++) {
		pid_t pid = fork();
		ck_assert_int_ge(pid, 0);
		if (pid == 0)
			be_forked(&h);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
			      "the child ended with %#x", (unsigned)status);
	}
	go_on(&h);
	let_go(&h);
}

START_TEST(forked_children_are_refused_and_the_parent_goes_on)
{
	struct kv_manager m;
	kv_manager_start(&m, args);
	manager_drain(&m);
	fork_and_go_on(&m);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(forked_children_of_an_embedded_manager_are_refused)
{
	fork_and_go_on(NULL);
}
END_TEST

/* ---- who has the socket ---- */

static bool no_session(const struct okv_manager_status *s)
{
	return s->sessions == 0 && s->leases == 0 && s->bytes_pinned == 0;
}

/* A process that holds everything and has a child, which answers when the process is dead. */
START_TEST(role_with_a_child)
{
	struct kv_manager m = {0};
	struct held h = {.manager = &m};
	char line[32];
	snprintf(m.socket_path, sizeof(m.socket_path), "%s", child_socket);
	hold(&h);
	ck_assert_int_eq(okv_op_wait(h.running, 60000, NULL), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid)
		kill(getpid(), SIGKILL);
	while (child_hear(line, sizeof(line)))
		child_say("here");
	_exit(0);
}
END_TEST

START_TEST(a_dead_engine_is_noticed_while_its_child_lives)
{
	struct kv_manager m;
	struct child c;
	int status;
	kv_manager_start(&m, args);
	manager_drain(&m);
	uint32_t fds = process_fds(m.pid);
	child_start(&c, "with_a_child", m.socket_path, NULL);
	ck_assert_int_eq(waitpid(c.pid, &status, 0), c.pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	kv_manager_wait(&m, no_session, "the dead engine gone");
	process_await_fds(m.pid, fds);
	child_tell(&c, "?");
	child_wait(&c, "here");
	close(c.to);
	close(c.from);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* Returns in the parent; the child lives until the parent closes the descriptor. */
static pid_t fork_a_helper(int *ret_fd)
{
	int ends[2];
	char c;
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		close(ends[1]);
		_exit(read(ends[0], &c, 1) == 0 ? 0 : 1);
	}
	close(ends[0]);
	*ret_fd = ends[1];
	return pid;
}

START_TEST(a_closed_engine_ends_its_session_while_a_child_lives)
{
	struct kv_manager m;
	struct held h = {.manager = &m};
	int status, fd;
	kv_manager_start(&m, args);
	manager_drain(&m);
	hold(&h);
	pid_t helper = fork_a_helper(&fd);
	ck_assert_int_eq(okv_op_wait(h.running, 60000, NULL), 0);
	let_go(&h);
	kv_manager_wait(&m, no_session, "the closed engine gone");
	ck_assert_int_eq(waitpid(helper, &status, WNOHANG), 0);
	close(fd);
	ck_assert_int_eq(waitpid(helper, &status, 0), helper);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* ---- what the child may do ---- */

static int open_engine(const char *socket_path, struct okv_engine **ret_engine,
		       struct okv_error *err)
{
	struct okv_manager_options memory;
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	okv_manager_options_init(&memory);
	memory.memory_bytes = 16 << 20;
	o.socket_path = socket_path;
	if (!socket_path) {
		o.flags = OKV_ENGINE_EMBEDDED;
		o.embedded = &memory;
	}
	return okv_engine_open(&o, ret_engine, err);
}

static void child_ends_well(pid_t pid)
{
	int status;
	ck_assert_int_ge(pid, 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x",
		      (unsigned)status);
}

struct churn {
	const char *socket_path;
	_Atomic bool is_over;
	_Atomic uint32_t rounds;
};

/* Maps and unmaps arenas all the time. */
static void *open_and_close(void *arg)
{
	struct churn *c = arg;
	while (!c->is_over) {
		struct okv_engine *engine = kv_engine_connect(c->socket_path, 0);
		struct okv_namespace *ns = kv_namespace(engine, &shape);
		struct kv_rank rank;
		kv_rank_open(&rank, ns, &shape, 0);
		kv_rank_close(&rank);
		okv_namespace_close(ns);
		okv_engine_close(engine);
		c->rounds++;
	}
	return NULL;
}

START_TEST(children_open_engines_whatever_other_threads_did_at_the_fork)
{
	struct kv_manager m;
	struct churn churn = {0};
	pthread_t thread;
	kv_manager_start(&m, args);
	manager_drain(&m);
	churn.socket_path = m.socket_path;
	ck_assert_int_eq(pthread_create(&thread, NULL, open_and_close, &churn), 0);
	for (uint32_t n = 0; n < 200; n++) {
		pid_t pid = fork();
		if (pid == 0) {
			struct okv_engine *engine;
			struct okv_error err = {0};
			alarm(30); /* one that hangs fails the test */
			child_must(open_engine(m.socket_path, &engine, &err) == 0, err.text);
			okv_engine_close(engine);
			_exit(0);
		}
		child_ends_well(pid);
	}
	churn.is_over = true;
	pthread_join(thread, NULL);
	ck_assert_uint_gt(churn.rounds, 0);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* The threads of its Manager stay with the parent: the child is told, and connects elsewhere. */
START_TEST(a_child_of_an_embedded_manager_can_have_none)
{
	struct kv_manager m;
	struct okv_engine *engine, *other;
	struct okv_error err = {0};
	kv_manager_start(&m, args);
	manager_drain(&m);
	engine = kv_engine_embedded(0, 0);
	pid_t pid = fork();
	if (pid == 0) {
		alarm(30);
		int rc = open_engine(NULL, &other, &err);
		if (rc == 0)
			okv_engine_close(other);
		child_must(rc == OKV_E_UNSUPPORTED && strstr(err.text, "forked"), err.text);
		child_must(open_engine(m.socket_path, &other, &err) == 0, err.text);
		okv_engine_close(other);
		_exit(0);
	}
	child_ends_well(pid);
	other = kv_engine_embedded(0, 0);
	okv_engine_close(other);
	okv_engine_close(engine);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* What a child does to the parent's Manager leaves it, and its socket, alone. */
START_TEST(a_child_has_nothing_of_the_parents_manager)
{
	struct kv_local l;
	struct okv_manager_status status;
	struct okv_manager_options o = kv_local_options(64 << 20);
	kv_local_start(&l, &o, 0, &shape);
	pid_t pid = fork();
	if (pid == 0) {
		alarm(30);
		FORKED_TEXT(okv_manager_listen(l.manager, NULL, &err));
		FORKED_TEXT(okv_manager_run(l.manager, &err));
		FORKED_TEXT(okv_manager_attach(l.manager, 0, &err));
		FORKED(okv_manager_status_get(l.manager, &status));
		okv_manager_stop(l.manager);
		okv_manager_destroy(l.manager);
		_exit(0);
	}
	child_ends_well(pid);
	ck_assert_int_eq(access(l.socket_path, F_OK), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, BLOCKS, 1, NULL), 0);
	kv_local_stop(&l);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {{"with_a_child", role_with_a_child}};
	int rc = child_main(argc, argv, roles, 1);
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("fork");
	TCase *t = tcase_create("fork");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, forked_children_are_refused_and_the_parent_goes_on);
	tcase_add_test(t, forked_children_of_an_embedded_manager_are_refused);
	tcase_add_test(t, a_dead_engine_is_noticed_while_its_child_lives);
	tcase_add_test(t, a_closed_engine_ends_its_session_while_a_child_lives);
	tcase_add_test(t, children_open_engines_whatever_other_threads_did_at_the_fork);
	tcase_add_test(t, a_child_of_an_embedded_manager_can_have_none);
	tcase_add_test(t, a_child_has_nothing_of_the_parents_manager);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
