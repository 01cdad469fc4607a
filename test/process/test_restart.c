/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager that ends and comes back: a new epoch, a miss, and sockets that are never mixed up. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

static bool is_socket(const char *path)
{
	struct stat st;
	return !lstat(path, &st) && S_ISSOCK(st.st_mode);
}

/* Sleep on the engine's descriptor until it says that the session is lost. */
static void await_loss(struct okv_engine *e)
{
	struct pollfd p = {.fd = okv_engine_fd(e), .events = POLLIN};
	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	struct okv_completion c;
	uint32_t n = 1;
	ck_assert_int_eq(okv_engine_poll(e, &c, 1, &n), OKV_E_SESSION);
	ck_assert_int_eq(okv_engine_state(e), OKV_E_SESSION);
}

static int peek_status(struct okv_namespace *ns)
{
	uint8_t key[KV_KEY_BYTES] = {1};
	struct okv_keys k = {.count = 1, .key_bytes = KV_KEY_BYTES, .keys = key};
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.flags = OKV_LOOKUP_PEEK;
	o.group_count = 1;
	o.groups = &k;
	struct okv_lookup_result r;
	return okv_lookup(ns, &o, &r, NULL, NULL);
}

/* Publish 8 blocks of seq and get them back elsewhere, exact. */
static void round_trip(struct kv_rank *a, struct okv_namespace *ns, uint64_t seq)
{
	struct okv_op_result r;
	struct okv_lease *lease;
	ck_assert_int_eq(kv_publish(a, seq, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	kv_poison(a);
	ck_assert_uint_eq(kv_lookup(ns, seq, 8, 1, &lease), 8);
	uint32_t *pages = kv_pages(a, 8, 20, 3);
	ck_assert_int_eq(kv_restore(a, lease, 0, 8, pages, 0, &r), 0);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(kv_wrong(a, seq, i, pages + i), 0);
	ck_assert_uint_eq(kv_canaries_broken(a), 0);
	okv_lease_release(lease);
	free(pages);
}

START_TEST(s25_restart_refuses_the_old_session_and_misses)
{
	const struct kv_shape shape = {.pages = 64};
	struct kv_manager m;
	kv_manager_start(&m, small);
	uint64_t epoch = kv_manager_status(&m).epoch;
	uint32_t fds = kv_fd_count();
	struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	struct kv_rank a;
	kv_rank_open(&a, ns, &shape, 0);
	round_trip(&a, ns, 1);
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(ns, 1, 8, 2, &lease), 8);

	kv_manager_kill(&m, SIGKILL);
	ck_assert(is_socket(m.socket_path));
	kv_manager_restart(&m, small);
	ck_assert_uint_ne(kv_manager_status(&m).epoch, epoch);

	/* The successor answers at the path, and still nothing of the old session works. */
	await_loss(e);
	ck_assert_int_eq(peek_status(ns), OKV_E_SESSION);
	kv_poison(&a);
	uint32_t pages[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct okv_op_result r;
	ck_assert_int_eq(kv_restore(&a, lease, 0, 8, pages, 0, &r), OKV_E_SESSION);
	for (uint32_t i = 0; i < 8; i++)
		ck_assert_uint_eq(kv_touched(&a, i), 0);
	ck_assert_int_eq(kv_publish(&a, 2, 0, 8, NULL, &r), OKV_E_SESSION);
	struct kv_rank b;
	kv_rank_init(&b, &shape, 0);
	ck_assert_int_eq(kv_rank_register(&b, ns, NULL), OKV_E_SESSION);
	kv_rank_close(&b);
	ck_assert_uint_eq(kv_manager_status(&m).sessions, 0);

	okv_lease_release(lease);
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(e);
	ck_assert_uint_eq(kv_fd_count(), fds);

	/* R7: what it had is a miss, and can be stored and found again. */
	e = kv_engine_connect(m.socket_path, 0);
	ns = kv_namespace(e, &shape);
	kv_rank_open(&a, ns, &shape, 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 8, 1, NULL), 0);
	round_trip(&a, ns, 1);
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(e);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	ck_assert(!is_socket(m.socket_path));
	kv_manager_clean(&m);
}
END_TEST

START_TEST(s25_restart_at_once_is_another_epoch_each_time)
{
	enum { ROUNDS = 8 };
	static const char *const tiny[] = {"--memory", "1M", "--numa", "off", NULL};
	const struct kv_shape shape = {.pages = 16};
	struct kv_manager m;
	uint64_t epochs[ROUNDS + 1];
	kv_manager_start(&m, tiny);
	epochs[0] = kv_manager_status(&m).epoch;
	for (int round = 0; round < ROUNDS; round++) {
		struct okv_engine *old = kv_engine_connect(m.socket_path, 0);
		struct okv_namespace *ns = kv_namespace(old, &shape);
		struct kv_rank a;
		struct okv_lease *lease, *none = NULL;
		struct okv_lease_id id;
		kv_rank_open(&a, ns, &shape, 0);
		ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, NULL), 0);
		ck_assert_uint_eq(kv_lookup(ns, 1, 8, 2, &lease), 8);
		ck_assert_int_eq(okv_lease_id(lease, &id), 0);
		kv_poison(&a);

		/* The next is ready before this process looks at what became of its session. */
		kv_manager_kill(&m, SIGKILL);
		kv_manager_restart(&m, tiny);
		uint32_t pages[8] = {0, 1, 2, 3, 4, 5, 6, 7};
		ck_assert_int_eq(kv_restore(&a, lease, 0, 8, pages, OKV_RESTORE_KEEP, NULL),
				 OKV_E_SESSION);
		for (uint32_t i = 0; i < 8; i++)
			ck_assert_uint_eq(kv_touched(&a, i), 0);
		ck_assert_int_eq(kv_publish(&a, 2, 0, 8, NULL, NULL), OKV_E_SESSION);
		ck_assert_int_eq(peek_status(ns), OKV_E_SESSION);
		ck_assert_int_eq(okv_lease_open(ns, &id, &none, NULL), OKV_E_SESSION);
		epochs[round + 1] = kv_manager_status(&m).epoch;
		for (int i = 0; i <= round; i++)
			ck_assert_uint_ne(epochs[round + 1], epochs[i]);

		/* A new session has neither the blocks nor the lease of the old one. */
		struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
		struct okv_namespace *new_ns = kv_namespace(e, &shape);
		ck_assert_uint_eq(kv_manager_status(&m).sessions, 1);
		ck_assert_uint_eq(kv_manager_status(&m).blocks, 0);
		ck_assert_int_eq(okv_lease_open(new_ns, &id, &none, NULL), OKV_E_NOENT);
		ck_assert_ptr_null(none);
		okv_namespace_close(new_ns);
		okv_engine_close(e);
		okv_lease_release(lease);
		kv_rank_close(&a);
		okv_namespace_close(ns);
		okv_engine_close(old);
	}
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(s25_every_restore_in_flight_ends_exact_or_as_an_error)
{
	enum { OPS = 48 };
	const struct kv_shape shape = {.pages = OPS * 8, .segment_bytes = 4096};
	struct kv_manager m;
	for (int round = 0; round < 4; round++) {
		if (round)
			kv_manager_restart(&m, small);
		else
			kv_manager_start(&m, small);
		struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
		struct okv_namespace *ns = kv_namespace(e, &shape);
		struct kv_rank a;
		kv_rank_open(&a, ns, &shape, 0);
		ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, NULL), 0);
		kv_poison(&a);
		struct okv_lease *lease;
		ck_assert_uint_eq(kv_lookup(ns, 1, 8, 1, &lease), 8);
		struct okv_op *ops[OPS];
		uint32_t started = 0;
		for (; started < OPS; started++) {
			uint32_t *pages = kv_pages(&a, 8, started * 8, 1);
			int rc = kv_restore_start(&a, lease, 0, 8, pages, OKV_RESTORE_KEEP,
						  &ops[started], NULL);
			free(pages);
			if (started == (uint32_t)round * 12)
				kill(m.pid, SIGKILL);
			if (rc) {
				ck_assert_int_eq(rc, OKV_E_SESSION);
				break;
			}
		}
		for (uint32_t k = 0; k < started; k++) {
			uint32_t *pages = kv_pages(&a, 8, k * 8, 1);
			int rc = okv_op_wait(ops[k], 20000, NULL);
			ck_assert_msg(rc == 0 || rc == OKV_E_SESSION, "%s", okv_status_name(rc));
			for (uint32_t i = 0; i < 8 && !rc; i++)
				ck_assert_uint_eq(kv_wrong(&a, 1, i, pages + i), 0);
			okv_op_release(ops[k]);
			free(pages);
		}
		ck_assert_uint_eq(kv_canaries_broken(&a), 0);
		okv_lease_release(lease);
		kv_rank_close(&a);
		okv_namespace_close(ns);
		okv_engine_close(e);
		kv_manager_kill(&m, SIGKILL);
	}
	kv_manager_clean(&m);
}
END_TEST

START_TEST(s27_old_manager_leaves_its_successors_socket)
{
	struct kv_manager old, young;
	kv_manager_start(&old, small);
	young = old;
	/* Someone cleaned the directory, so the successor saw a free path. */
	ck_assert_int_eq(unlink(old.socket_path), 0);
	kv_manager_restart(&young, small);
	uint64_t epoch = kv_manager_status(&young).epoch;
	ck_assert_int_eq(kv_manager_kill(&old, SIGTERM), 0);
	ck_assert(is_socket(young.socket_path));
	ck_assert_uint_eq(kv_manager_status(&young).epoch, epoch);
	struct okv_engine *e = kv_engine_connect(young.socket_path, 0);
	okv_engine_close(e);
	ck_assert_int_eq(kv_manager_kill(&young, SIGTERM), 0);
	kv_manager_clean(&young);
}
END_TEST

static int run_second(const struct kv_manager *m, char *output, size_t size)
{
	const char *argv[] = {
		getenv("ORBITKV_MANAGER"), "--memory", "64M", "--socket", m->socket_path, NULL};
	return process_run(argv, NULL, output, size);
}

START_TEST(live_socket_is_not_taken_over)
{
	struct kv_manager m;
	char said[4096];
	kv_manager_start(&m, small);
	uint64_t epoch = kv_manager_status(&m).epoch;
	int status = run_second(&m, said, sizeof(said));
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	ck_assert_msg(strstr(said, "OKV_E_EXISTS") && strstr(said, m.socket_path), "%s", said);
	ck_assert(!strstr(said, "ready: socket"));
	ck_assert_uint_eq(kv_manager_status(&m).epoch, epoch);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(file_in_the_way_is_left_alone)
{
	struct kv_manager m;
	char said[4096], bytes[8] = "";
	kv_manager_start(&m, small);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	int fd = open(m.socket_path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, "mine", 4), 4);
	int status = run_second(&m, said, sizeof(said));
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	ck_assert_msg(strstr(said, "not a socket"), "%s", said);
	ck_assert_int_eq(pread(fd, bytes, 7, 0), 4);
	ck_assert_str_eq(bytes, "mine");
	close(fd);
	unlink(m.socket_path);
	kv_manager_clean(&m);
}
END_TEST

static void leave_socket(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(addr.sun_path, path);
	ck_assert_int_eq(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(sock);
}

START_TEST(stale_sockets_are_replaced)
{
	struct kv_manager m;
	char fresh[128];
	struct stat st;
	kv_manager_start(&m, small);
	kv_manager_kill(&m, SIGKILL);
	unlink(m.socket_path);
	/* Never listened to, and one of a Manager killed between bind and rename. */
	snprintf(fresh, sizeof(fresh), "%s/.m.sock.new", m.dir);
	leave_socket(m.socket_path);
	leave_socket(fresh);
	kv_manager_restart(&m, small);
	kv_manager_status(&m);
	ck_assert(!is_socket(fresh));
	ck_assert_int_eq(lstat(m.socket_path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static bool no_session(const struct okv_manager_status *s)
{
	return s->sessions == 0;
}

START_TEST(r6_half_published_block_is_invisible_also_after_a_restart)
{
	const struct kv_shape shape = {.pages = 16, .rank_slots = 2};
	struct kv_manager m;
	kv_manager_start(&m, small);
	for (int round = 0; round < 2; round++) {
		struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
		struct okv_namespace *ns = kv_namespace(e, &shape);
		struct kv_rank a, b;
		kv_rank_open(&a, ns, &shape, 0);
		kv_rank_open(&b, ns, &shape, 1);
		ck_assert_uint_eq(kv_lookup(ns, 3, 8, 1, NULL), 0);
		ck_assert_int_eq(kv_publish(&a, 3, 0, 8, NULL, NULL), 0);
		ck_assert_uint_eq(kv_lookup(ns, 3, 8, 1, NULL), 0);
		/* After the restart the second half alone must not complete the first of before. */
		if (round) {
			ck_assert_int_eq(kv_publish(&b, 3, 0, 4, NULL, NULL), 0);
			ck_assert_uint_eq(kv_lookup(ns, 3, 8, 1, NULL), 4);
		}
		kv_rank_close(&a);
		kv_rank_close(&b);
		okv_namespace_close(ns);
		okv_engine_close(e);
		if (round)
			continue;
		kv_manager_wait(&m, no_session, "the engine gone");
		kv_manager_kill(&m, SIGKILL);
		kv_manager_restart(&m, small);
	}
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restart");
	TCase *t = tcase_create("restart");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, s25_restart_refuses_the_old_session_and_misses);
	tcase_add_test(t, s25_restart_at_once_is_another_epoch_each_time);
	tcase_add_test(t, s25_every_restore_in_flight_ends_exact_or_as_an_error);
	tcase_add_test(t, s27_old_manager_leaves_its_successors_socket);
	tcase_add_test(t, live_socket_is_not_taken_over);
	tcase_add_test(t, file_in_the_way_is_left_alone);
	tcase_add_test(t, stale_sockets_are_replaced);
	tcase_add_test(t, r6_half_published_block_is_invisible_also_after_a_restart);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
