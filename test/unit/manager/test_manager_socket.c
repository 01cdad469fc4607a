/* SPDX-License-Identifier: Apache-2.0 */
/* The Manager's socket, peers that die, and stopping. */
#include "fake_engine.h"
#include "support/suite.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct fixture f;
static struct fake e;

static void setup(void)
{
	struct okv_manager_options opts;
	fixture_options(&opts);
	fixture_start(&f, &opts);
	fake_open(&e, &f);
}

/* ---- sockets ---- */

static char directory[] = "/tmp/test_manager_XXXXXX";
static char path[96];

static void make_directory(void)
{
	strcpy(directory, "/tmp/test_manager_XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/run/manager.sock", directory);
}

static void remove_directory(void)
{
	char run[64];
	snprintf(run, sizeof(run), "%s/run", directory);
	/* Nothing is left in it. */
	ck_assert_int_eq(rmdir(run), 0);
	ck_assert_int_eq(rmdir(directory), 0);
}

static struct okv_manager *listening(int expected)
{
	struct okv_manager_options opts;
	struct okv_manager *m;
	struct okv_error err = {0};
	fixture_options(&opts);
	opts.memory_bytes = 1u << 20;
	ck_assert_int_eq(okv_manager_create(&opts, &m, &err), 0);
	int rc = okv_manager_listen(m, path, &err);
	ck_assert_msg(rc == expected, "%d: %s", rc, err.text);
	return m;
}

static int connect_raw(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	strcpy(addr.sun_path, path);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return sock;
}

START_TEST(the_socket_is_private_and_goes_with_its_manager)
{
	struct stat st;
	make_directory();
	struct okv_manager *m = listening(0);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert(S_ISSOCK(st.st_mode));
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	okv_manager_destroy(m);
	ck_assert_int_eq(access(path, F_OK), -1);
	remove_directory();
}
END_TEST

START_TEST(a_live_socket_and_a_file_are_left_alone)
{
	make_directory();
	struct okv_manager *m = listening(0);
	okv_manager_destroy(listening(OKV_E_EXISTS));
	ck_assert_int_eq(access(path, F_OK), 0);
	okv_manager_destroy(m);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	close(fd);
	okv_manager_destroy(listening(OKV_E_EXISTS));
	ck_assert_int_eq(unlink(path), 0);
	remove_directory();
}
END_TEST

START_TEST(to_check_a_path_takes_nothing)
{
	struct stat before, after;
	struct okv_error err;
	make_directory();
	ck_assert_int_eq(okv_manager_check_socket(path, NULL), 0);
	ck_assert_int_eq(access(path, F_OK), -1);
	struct okv_manager *m = listening(0);
	ck_assert_int_eq(stat(path, &before), 0);
	ck_assert_int_eq(okv_manager_check_socket(path, &err), OKV_E_EXISTS);
	ck_assert_msg(strstr(err.text, path) != NULL, "%s", err.text);
	ck_assert_int_eq(stat(path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	close(connect_raw());
	okv_manager_destroy(m);
	ck_assert_int_eq(okv_manager_check_socket("", NULL), OKV_E_LIMIT);
	ck_assert_int_eq(okv_manager_check_socket("/proc/at/all/m.sock", NULL), OKV_E_CONNECT);
	remove_directory();
}
END_TEST

/* S26 */
START_TEST(missing_directories_are_made_below_our_own)
{
	static const char *const below[] = {"/run", "/run/a", "/run/a//b"};
	char part[96];
	struct stat st;
	struct okv_error err = {0};
	make_directory();
	snprintf(path, sizeof(path), "%s/run/a//b/manager.sock", directory);
	int rc = okv_manager_check_socket(path, &err);
	ck_assert_msg(rc == 0, "%d: %s", rc, err.text);
	for (int i = 2; i >= 0; i--) {
		snprintf(part, sizeof(part), "%s%s", directory, below[i]);
		ck_assert_int_eq(stat(part, &st), 0);
		ck_assert_uint_eq(st.st_mode & 0777, 0700);
		if (i)
			ck_assert_int_eq(rmdir(part), 0);
	}
	remove_directory();
}
END_TEST

/* Nobody else may come between the directories: what is missing is named. */
START_TEST(missing_directories_are_named_in_anothers)
{
	char expected[160];
	struct okv_error err = {0};
	struct stat st;
	bool root = geteuid() == 0;
	if (root)
		ck_assert_int_eq(seteuid(65534), 0);
	ck_assert_int_eq(stat("/tmp", &st), 0);
	ck_assert_uint_ne(st.st_uid, geteuid());
	snprintf(directory, sizeof(directory), "/tmp/tm_%d", (int)getpid());
	snprintf(path, sizeof(path), "%s/a/manager.sock", directory);
	ck_assert_int_eq(okv_manager_check_socket(path, &err), OKV_E_CONNECT);
	snprintf(expected, sizeof(expected),
		 "cannot create %s/a: %s is missing, and the directory above it belongs to uid %u",
		 directory, directory, (unsigned)st.st_uid);
	ck_assert_str_eq(err.text, expected);
	ck_assert_int_eq(access(directory, F_OK), -1);
	/* One alone is made anywhere, as the default path of a user needs it. */
	snprintf(path, sizeof(path), "%s/manager.sock", directory);
	ck_assert_int_eq(okv_manager_check_socket(path, &err), 0);
	ck_assert_int_eq(rmdir(directory), 0);
	if (root)
		ck_assert_int_eq(seteuid(0), 0);
	/* Or the leak check may not look into this process any more. */
	prctl(PR_SET_DUMPABLE, 1);
}
END_TEST

START_TEST(a_stale_socket_is_replaced)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	make_directory();
	okv_manager_destroy(listening(0));
	strcpy(addr.sun_path, path);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(sock);
	struct okv_manager *m = listening(0);
	close(connect_raw());
	okv_manager_destroy(m);
	remove_directory();
}
END_TEST

/* S27 */
START_TEST(an_old_manager_leaves_its_successors_socket)
{
	make_directory();
	struct okv_manager *old = listening(0);
	ck_assert_int_eq(unlink(path), 0);
	struct okv_manager *young = listening(0);
	okv_manager_destroy(old);
	close(connect_raw());
	okv_manager_destroy(young);
	remove_directory();
}
END_TEST

START_TEST(status_needs_no_session)
{
	struct okv_manager_status st;
	struct okv_error err;
	struct okv_manager_options opts;
	make_directory();
	ck_assert_int_eq(okv_manager_status_query(path, PATIENCE_MS, &st, &err), OKV_E_CONNECT);
	fixture_options(&opts);
	fixture_start(&f, &opts);
	ck_assert_int_eq(okv_manager_listen(f.manager, path, &err), 0);
	int rc = okv_manager_status_query(path, PATIENCE_MS, &st, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	ck_assert_uint_eq(st.bytes_total, opts.memory_bytes);
	ck_assert_uint_eq(st.arenas, 1);
	ck_assert_uint_eq(st.sessions, 0);
	ck_assert_uint_eq(st.control_bytes, OKW_SESSION_BYTES);
	fixture_end(&f, 0);
	remove_directory();
}
END_TEST

/* S28 */
START_TEST(failed_connects_leave_nothing)
{
	struct okv_manager_options opts;
	struct okv_manager_status st;
	make_directory();
	fixture_options(&opts);
	fixture_start(&f, &opts);
	ck_assert_int_eq(okv_manager_listen(f.manager, path, NULL), 0);
	ck_assert_int_eq(okv_manager_status_query(path, PATIENCE_MS, &st, NULL), 0);
	uint32_t before = count_fds();
	for (int i = 0; i < 500; i++) {
		int sock = connect_raw();
		if (i % 2)
			ck_assert_int_eq(send(sock, "x", 1, MSG_NOSIGNAL), 1);
		close(sock);
	}
	/* The answer to the last one comes after all others were taken and seen to be gone. */
	ck_assert_int_eq(okv_manager_status_query(path, PATIENCE_MS, &st, NULL), 0);
	wait_fds(before);
	fixture_end(&f, 0);
	remove_directory();
}
END_TEST

START_TEST(silent_peers_make_room_for_others)
{
	struct okv_manager_options opts;
	struct okv_manager_status st;
	int socks[200];
	make_directory();
	fixture_options(&opts);
	fixture_start(&f, &opts);
	ck_assert_int_eq(okv_manager_listen(f.manager, path, NULL), 0);
	for (int i = 0; i < 200; i++)
		socks[i] = connect_raw();
	ck_assert_int_eq(okv_manager_status_query(path, PATIENCE_MS, &st, NULL), 0);
	for (int i = 0; i < 200; i++)
		close(socks[i]);
	fixture_end(&f, 0);
	remove_directory();
}
END_TEST

/* ---- death: a process of its own, with the listening socket between ---- */

/* In the child: publish, claim, and end without a word. Exit code 0: it got that far. */
static void die_while_active(int go)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char byte;
	if (read(go, &byte, 1) != 1)
		_exit(1);
	strcpy(addr.sun_path, path);
	fake_init(&e, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	if (connect(e.sock, (struct sockaddr *)&addr, sizeof(addr)))
		_exit(2);
	if (fake_hello(&e, 0))
		_exit(3);
	fake_bind(&e, "model", 1);
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	_exit(0);
}

/* R3, S23 */
START_TEST(death_while_active_is_quarantined)
{
	struct okv_manager_options opts;
	int go[2], status;
	make_directory();
	ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
	/* Before the Manager's threads: a forked child has none of them. */
	pid_t child = fork();
	if (!child)
		die_while_active(go[0]);
	fixture_options(&opts);
	fixture_start(&f, &opts);
	ck_assert_int_eq(okv_manager_listen(f.manager, path, NULL), 0);
	ck_assert_int_eq(write(go[1], "x", 1), 1);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	WAIT_STATUS(&f, ops_quarantined, 1);
	struct okv_manager_status st = fixture_status(&f);
	ck_assert_uint_eq(st.sessions, 0);
	ck_assert_uint_eq(st.sessions_retained, 1);
	ck_assert_uint_gt(st.bytes_quarantined, 0);
	close(go[0]);
	close(go[1]);
	fixture_end(&f, 0);
	remove_directory();
}
END_TEST

/* ---- stopping ---- */

START_TEST(stop_refuses_new_work_and_waits_for_grants)
{
	struct fake other;
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	okv_manager_stop(f.manager);
	fake_attach(&other, &f);
	ck_assert_int_eq(fake_hello(&other, 0), OKV_E_CLOSED);
	send_lookup(&e, 4, 1, 1, 0, 1);
	wait_one(&e, 4, OKW_DONE);
	ck_assert_int_eq(rec(&e, 4)->status, OKV_E_CLOSED);
	free_record(&e, 4);
	run_to_end(&e, 3, 0);
	fixture_join(&f);
	ck_assert_int_eq(f.result, 0);
	expect_hangup(&e);
	fake_close(&e);
	fake_close(&other);
	okv_manager_destroy(f.manager);
}
END_TEST

START_TEST(a_second_stop_cuts_the_drain_short)
{
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	send_publish(&e, 4, 100, 4);
	wait_one(&e, 4, OKW_GRANTED);
	okv_manager_stop(f.manager);
	okv_manager_stop(f.manager);
	fixture_join(&f);
	ck_assert_int_eq(f.result, OKV_E_BUSY);
	ck_assert_uint_eq(state_of(&e, 3), OKW_ACTIVE);
	ck_assert_uint_eq(state_of(&e, 4), OKW_REVOKED);
	ck_assert_int_eq(okv_manager_attach(f.manager, e.sock, NULL), OKV_E_CLOSED);
	fake_close(&e);
	okv_manager_destroy(f.manager);
}
END_TEST

START_TEST(a_manager_stopped_before_it_runs_ends_at_once)
{
	struct okv_manager_options opts;
	fixture_options(&opts);
	opts.size = (uint32_t)offsetof(struct okv_manager_options, shard_bytes);
	ck_assert_int_eq(okv_manager_create(&opts, &f.manager, NULL), 0);
	okv_manager_stop(f.manager);
	ck_assert_int_eq(okv_manager_run(f.manager, NULL), 0);
	ck_assert_int_eq(okv_manager_run(f.manager, NULL), OKV_E_CLOSED);
	okv_manager_destroy(f.manager);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("manager socket");
	TCase *t = tcase_create("socket");
	tcase_set_timeout(t, 120);
	ADD(t, the_socket_is_private_and_goes_with_its_manager);
	ADD(t, a_live_socket_and_a_file_are_left_alone);
	ADD(t, to_check_a_path_takes_nothing);
	ADD(t, missing_directories_are_made_below_our_own);
	ADD(t, missing_directories_are_named_in_anothers);
	ADD(t, a_stale_socket_is_replaced);
	ADD(t, an_old_manager_leaves_its_successors_socket);
	ADD(t, status_needs_no_session);
	ADD(t, failed_connects_leave_nothing);
	ADD(t, silent_peers_make_room_for_others);
	ADD(t, death_while_active_is_quarantined);
	ADD(t, stop_refuses_new_work_and_waits_for_grants);
	ADD(t, a_second_stop_cuts_the_drain_short);
	ADD(t, a_manager_stopped_before_it_runs_ends_at_once);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kv_suite_run(suite());
}
