/* SPDX-License-Identifier: Apache-2.0 */
/* Many engines, one Manager: shared blocks and leases, limits, and peers that never get in. */
#include <check.h>
#include <dirent.h>
#include <poll.h>
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
#include "wire/wire.h"

#define NOBODY 65534

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};
static const struct kv_shape plain = {.pages = 64};
static const struct kv_shape halves = {.pages = 64, .rank_slots = 2};

struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_rank rank;
};

static void side_open(struct side *s, const char *socket_path, const struct kv_shape *shape,
		      uint32_t slot)
{
	s->engine = kv_engine_connect(socket_path, 0);
	s->ns = kv_namespace(s->engine, shape);
	kv_rank_open(&s->rank, s->ns, shape, slot);
}

static void side_close(struct side *s)
{
	kv_rank_close(&s->rank);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
}

/* Restore count blocks of seq through a lease; every byte is checked. */
static int restore_exact(struct side *s, struct okv_lease *lease, uint64_t seq, uint32_t count)
{
	uint32_t *pages = kv_pages(&s->rank, count, 7, 3);
	kv_poison(&s->rank);
	int rc = kv_restore(&s->rank, lease, 0, count, pages, 0, NULL);
	for (uint32_t i = 0; i < count && !rc; i++)
		ck_assert_uint_eq(kv_wrong(&s->rank, seq, i, pages + i), 0);
	ck_assert_uint_eq(kv_canaries_broken(&s->rank), 0);
	free(pages);
	return rc;
}

static void id_to_text(const struct okv_lease_id *id, char text[33])
{
	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", id->bytes[i]);
}

static void text_to_id(const char *text, struct okv_lease_id *ret_id)
{
	for (int i = 0; i < 16; i++) {
		unsigned byte;
		ck_assert_int_eq(sscanf(text + 2 * i, "%2x", &byte), 1);
		ret_id->bytes[i] = (uint8_t)byte;
	}
}

/* ---- roles ---- */

/* Look 8 blocks of the sequence it is told up and restore them, again and again. */
START_TEST(role_reader)
{
	struct side s;
	char line[64];
	side_open(&s, child_socket, &plain, 0);
	child_say("here");
	while (child_hear(line, sizeof(line))) {
		uint64_t seq = strtoull(line, NULL, 10);
		struct okv_lease *lease;
		ck_assert_uint_eq(kv_lookup(s.ns, seq, 8, 1, &lease), 8);
		ck_assert_int_eq(restore_exact(&s, lease, seq, 8), 0);
		okv_lease_release(lease);
		child_say("exact");
	}
	side_close(&s);
}
END_TEST

/* One of two ranks: publishes its half of sequence 4, then restores by the lease it is told. */
START_TEST(role_rank)
{
	struct side s;
	char line[64];
	struct okv_lease_id id;
	side_open(&s, child_socket, &halves, (uint32_t)atoi(child_arg));
	ck_assert_int_eq(kv_publish(&s.rank, 4, 0, 8, NULL, NULL), 0);
	child_say("published");
	while (child_hear(line, sizeof(line))) {
		struct okv_lease *lease;
		text_to_id(line, &id);
		int rc = okv_lease_open(s.ns, &id, &lease, NULL);
		if (rc) {
			child_say(okv_status_name(rc));
			continue;
		}
		ck_assert_int_eq(restore_exact(&s, lease, 4, 8), 0);
		okv_lease_release(lease);
		child_say("exact");
	}
	side_close(&s);
}
END_TEST

/* Connects, registers, says so and stays. */
START_TEST(role_guest)
{
	struct side s;
	side_open(&s, child_socket, &plain, 0);
	child_say("here");
	child_stay();
	side_close(&s);
}
END_TEST

/* What of its parent's engine does a program started by it hold? */
START_TEST(role_inherits)
{
	DIR *dir = opendir("/proc/self/fd");
	for (struct dirent *e; (e = readdir(dir));) {
		char path[300], target[128] = "";
		snprintf(path, sizeof(path), "/proc/self/fd/%s", e->d_name);
		if (readlink(path, target, sizeof(target) - 1) < 0)
			continue;
		ck_assert_msg(!strstr(target, "orbitkv") && !strstr(target, "eventfd") &&
				      !strstr(target, "eventpoll") && !strstr(target, "socket:"),
			      "holds %s", target);
	}
	closedir(dir);
	child_say("nothing");
}
END_TEST

/* Becomes another user and says how far it came. */
START_TEST(role_nobody)
{
	char said[64];
	struct okv_engine_options o;
	struct side s = {.engine = NULL};
	struct okv_error err = {.status = 0};
	struct okv_lease *lease;
	ck_assert_int_eq(setgid(NOBODY), 0);
	ck_assert_int_eq(setuid(NOBODY), 0);
	okv_engine_options_init(&o);
	o.socket_path = child_socket;
	int rc = okv_engine_open(&o, &s.engine, &err);
	if (rc) {
		snprintf(said, sizeof(said), "%s%s", okv_status_name(rc),
			 strstr(err.text, "uid 65534") ? " uid 65534" : "");
		child_say(said);
		return;
	}
	s.ns = kv_namespace(s.engine, &plain);
	kv_rank_open(&s.rank, s.ns, &plain, 0);
	ck_assert_uint_eq(kv_lookup(s.ns, 6, 8, 1, &lease), 8);
	ck_assert_int_eq(restore_exact(&s, lease, 6, 8), 0);
	okv_lease_release(lease);
	side_close(&s);
	child_say("exact");
}
END_TEST

/* ---- sharing ---- */

START_TEST(one_publishes_and_others_restore)
{
	struct kv_manager m;
	struct side a;
	struct child readers[2];
	kv_manager_start(&m, args);
	side_open(&a, m.socket_path, &plain, 0);
	for (int i = 0; i < 2; i++)
		child_start(&readers[i], "reader", m.socket_path, NULL);
	for (uint64_t seq = 1; seq <= 5; seq++) {
		char line[32];
		struct okv_op_result r;
		ck_assert_int_eq(kv_publish(&a.rank, seq, 0, 8, NULL, &r), 0);
		ck_assert_uint_eq(r.blocks, 8);
		snprintf(line, sizeof(line), "%d", (int)seq);
		/* A publish that returned is visible to anyone. */
		for (int i = 0; i < 2; i++)
			child_tell(&readers[i], line);
		for (int i = 0; i < 2; i++)
			child_wait(&readers[i], "exact");
		ck_assert_int_eq(kv_publish(&a.rank, seq, 0, 8, NULL, &r), 0);
		ck_assert_uint_eq(r.present, 8);
	}
	for (int i = 0; i < 2; i++)
		child_end(&readers[i]);
	side_close(&a);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static bool no_lease(const struct okv_manager_status *s)
{
	return s->leases == 0 && s->bytes_pinned == 0;
}

START_TEST(scheduler_leases_to_two_ranks)
{
	struct kv_manager m;
	struct child ranks[2];
	kv_manager_start(&m, args);
	/* The scheduler has no tensors. */
	struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
	struct okv_namespace *ns = kv_namespace(e, &halves);
	child_start(&ranks[0], "rank", m.socket_path, "0");
	child_wait(&ranks[0], "published");
	ck_assert_uint_eq(kv_lookup(ns, 4, 8, 1, NULL), 0);
	child_start(&ranks[1], "rank", m.socket_path, "1");
	child_wait(&ranks[1], "published");
	struct okv_lease *lease;
	struct okv_lease_id id;
	char text[33];
	ck_assert_uint_eq(kv_lookup(ns, 4, 8, 2, &lease), 8);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	ck_assert_uint_gt(kv_manager_status(&m).bytes_pinned, 0);
	id_to_text(&id, text);
	for (int i = 0; i < 2; i++)
		child_tell(&ranks[i], text);
	for (int i = 0; i < 2; i++)
		child_wait(&ranks[i], "exact");
	/* Both shares are spent: the lease ended though the scheduler still knows it. */
	kv_manager_wait(&m, no_lease, "the lease ended with its last consumer");
	child_tell(&ranks[0], text);
	child_wait(&ranks[0], "OKV_E_NOENT");
	okv_lease_release(lease);
	for (int i = 0; i < 2; i++)
		child_end(&ranks[i]);
	okv_namespace_close(ns);
	okv_engine_close(e);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(lease_ends_with_the_last_session_that_knows_it)
{
	struct kv_manager m;
	struct side a, b;
	struct okv_lease *lease, *again, *third;
	struct okv_lease_id id;
	kv_manager_start(&m, args);
	side_open(&a, m.socket_path, &plain, 0);
	side_open(&b, m.socket_path, &plain, 0);
	ck_assert_int_eq(kv_publish(&a.rank, 4, 0, 8, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(a.ns, 4, 8, 4, &lease), 8);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	kv_ok(okv_lease_open(b.ns, &id, &again, kv_err));
	okv_lease_release(lease);
	side_close(&a);
	ck_assert_int_eq(restore_exact(&b, again, 4, 8), 0);
	okv_lease_release(again);
	kv_manager_wait(&m, no_lease, "the lease gone");
	ck_assert_int_eq(okv_lease_open(b.ns, &id, &third, NULL), OKV_E_NOENT);
	side_close(&b);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* ---- limits ---- */

#define LIMIT 64u

static const char *const few[] = {"--memory", "64M", "--numa", "off", "--max-sessions", "64", NULL};

static bool below_limit(const struct okv_manager_status *s)
{
	return s->sessions == LIMIT - 1;
}

START_TEST(r10_session_limit_is_a_named_refusal)
{
	struct kv_manager m;
	struct okv_engine *e[LIMIT], *one_more = NULL;
	struct okv_error err;
	kv_manager_start(&m, few);
	manager_drain(&m);
	for (uint32_t i = 0; i < LIMIT; i++)
		e[i] = kv_engine_connect(m.socket_path, 0);
	uint32_t fds = kv_fd_count(), theirs = process_fds(m.pid);
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = m.socket_path;
	for (int i = 0; i < 20; i++) {
		ck_assert_int_eq(okv_engine_open(&o, &one_more, &err), OKV_E_AGAIN);
		ck_assert_msg(strstr(err.text, "64 sessions") != NULL, "%s", err.text);
	}
	ck_assert_uint_eq(kv_fd_count(), fds);
	process_await_fds(m.pid, theirs);
	okv_engine_close(e[17]);
	kv_manager_wait(&m, below_limit, "a session gone");
	e[17] = kv_engine_connect(m.socket_path, 0);
	ck_assert_uint_eq(kv_manager_status(&m).sessions, LIMIT);
	/* The newcomer's session works, and so does one that was there all the time. */
	for (int i = 17; i < 19; i++)
		okv_namespace_close(kv_namespace(e[i], &plain));
	for (uint32_t i = 0; i < LIMIT; i++)
		okv_engine_close(e[i]);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static int dial(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(sock, 0);
	strcpy(addr.sun_path, path);
	ck_assert_int_eq(connect(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return sock;
}

/* A hello that is right but for one thing. */
static size_t bad_hello(int kind, uint8_t *bytes)
{
	struct okw_msg head = {
		.magic = OKW_MAGIC,
		.kind = OKW_MSG_HELLO,
		.bytes = sizeof(struct okw_msg) + sizeof(struct okw_hello),
	};
	struct okw_hello hello = {
		.bootstrap_version = OKW_BOOTSTRAP_VERSION,
		.protocol_version = OKW_PROTOCOL_VERSION,
		.schema_version = OKW_SCHEMA_VERSION,
		.hello_bytes = sizeof(hello),
		.record_bytes = sizeof(struct okw_record),
		.control_bytes = OKW_CONTROL_BYTES,
		.request_area_bytes = OKW_REQUEST_AREA_BYTES,
		.name = "failed",
	};
	size_t n = head.bytes;
	switch (kind) {
	case 0: hello.protocol_version++; break;
	case 1: head.magic ^= 1; break;
	case 2: n -= 8; break;
	case 3: n = 5; break;
	case 4: hello.record_bytes--; break;
	case 5: head.fd_count = 4; break;
	case 6: hello.flags = 0x80; break;
	case 7: memset(hello.name, 'x', sizeof(hello.name)); break;
	default: head.kind = 77; break;
	}
	memcpy(bytes, &head, sizeof(head));
	memcpy(bytes + sizeof(head), &hello, sizeof(hello));
	return n;
}

START_TEST(s28_failed_connects_leave_no_descriptor)
{
	struct kv_manager m;
	kv_manager_start(&m, args);
	manager_drain(&m);
	struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
	struct okv_namespace *ns = kv_namespace(e, &plain);
	uint32_t fds = process_fds(m.pid);
	for (int i = 0; i < 1000; i++) {
		uint8_t bytes[256];
		char reply[1024];
		int sock = dial(m.socket_path);
		if (i % 10 < 9) {
			size_t n = bad_hello(i % 10, bytes);
			ck_assert_int_eq(send(sock, bytes, n, MSG_NOSIGNAL), (int)n);
			/* Every second one waits until it is thrown out, the others just go. */
			while (i % 2 && recv(sock, reply, sizeof(reply), 0) > 0)
				;
		}
		close(sock);
	}
	ck_assert_uint_eq(kv_manager_status(&m).sessions, 1);
	process_await_fds(m.pid, fds);
	ck_assert_uint_eq(kv_lookup(ns, 1, 4, 1, NULL), 0);
	okv_namespace_close(ns);
	okv_engine_close(e);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(s28_refused_opens_leave_no_descriptor_here)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/none", dir);
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = path;
	uint32_t fds = kv_fd_count();
	for (int i = 0; i < 200; i++) {
		struct okv_engine *e;
		struct okv_error err;
		ck_assert_int_eq(okv_engine_open(&o, &e, &err), OKV_E_CONNECT);
		ck_assert_msg(strstr(err.text, path) != NULL, "%s", err.text);
	}
	ck_assert_uint_eq(kv_fd_count(), fds);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

START_TEST(s28_program_started_by_an_engine_inherits_nothing)
{
	struct kv_manager m;
	struct side s;
	struct child c;
	kv_manager_start(&m, args);
	side_open(&s, m.socket_path, &plain, 0);
	child_start(&c, "inherits", NULL, NULL);
	child_wait(&c, "nothing");
	child_end(&c);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static bool survivors_left(const struct okv_manager_status *s)
{
	return s->sessions == 24 && s->bindings == 24;
}

START_TEST(s29_survivors_register_while_others_are_killed)
{
	enum { ALL = 32, KILLED = 8 };
	struct kv_manager m;
	struct child c[ALL];
	kv_manager_start(&m, args);
	manager_drain(&m);
	for (int i = 0; i < ALL; i++)
		child_start(&c[i], "guest", m.socket_path, NULL);
	/* Wherever they are by now. */
	for (int i = 0; i < ALL; i += ALL / KILLED)
		child_kill(&c[i], SIGKILL);
	for (int i = 0; i < ALL; i++)
		if (i % (ALL / KILLED))
			child_wait(&c[i], "here");
	kv_manager_wait(&m, survivors_left, "24 registered survivors");
	ck_assert_uint_eq(kv_manager_status(&m).sessions_retained, 0);
	for (int i = 0; i < ALL; i++)
		if (i % (ALL / KILLED))
			child_end(&c[i]);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* ---- other users ---- */

static void expect_as_nobody(const char *socket_path, const char *line)
{
	struct child c;
	child_start(&c, "nobody", socket_path, NULL);
	child_wait(&c, line);
	child_end(&c);
}

START_TEST(other_users_are_refused_unless_named)
{
	static const char *const allowing[] = {"--memory",    "64M",   "--numa", "off",
					       "--allow-uid", "65534", NULL};
	struct kv_manager m;
	struct side a;
	kv_manager_start(&m, args);
	ck_assert_int_eq(chmod(m.dir, 0711), 0);
	/* The mode of the socket alone keeps others out. */
	expect_as_nobody(m.socket_path, "OKV_E_CONNECT");
	ck_assert_int_eq(chmod(m.socket_path, 0666), 0);
	expect_as_nobody(m.socket_path, "OKV_E_PERM uid 65534");
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);

	kv_manager_restart(&m, allowing);
	side_open(&a, m.socket_path, &plain, 0);
	ck_assert_int_eq(kv_publish(&a.rank, 6, 0, 8, NULL, NULL), 0);
	expect_as_nobody(m.socket_path, "OKV_E_CONNECT");
	ck_assert_int_eq(chmod(m.socket_path, 0666), 0);
	expect_as_nobody(m.socket_path, "exact");
	side_close(&a);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* Open an engine that believes a Manager of trusted, when flags say so. */
static int open_trusting(const struct kv_manager *m, uint32_t flags, uint32_t trusted,
			 struct okv_engine **ret_engine, struct okv_error *err)
{
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = m->socket_path;
	o.flags = flags;
	o.trust_uid = trusted;
	return okv_engine_open(&o, ret_engine, err);
}

START_TEST(manager_of_another_user_is_believed_only_when_named)
{
	static const char *const for_root[] = {"--memory",    "64M", "--numa", "off",
					       "--allow-uid", "0",   NULL};
	struct kv_manager m;
	struct side s = {.engine = NULL};
	struct okv_manager_status st;
	struct okv_error err;
	struct okv_lease *lease;
	kv_manager_start_as(&m, for_root, NOBODY);
	manager_drain(&m);
	uint32_t fds = kv_fd_count();
	/* Not named, or another one named: the Manager's word is not heard. */
	ck_assert_int_eq(open_trusting(&m, 0, 0, &s.engine, &err), OKV_E_PERM);
	ck_assert_msg(strstr(err.text, m.socket_path) && strstr(err.text, "runs as uid 65534"),
		      "%s", err.text);
	ck_assert_int_eq(open_trusting(&m, OKV_ENGINE_TRUST_UID, NOBODY - 1, &s.engine, &err),
			 OKV_E_PERM);
	ck_assert_int_eq(okv_manager_status_query(m.socket_path, 5000, &st, &err), OKV_E_PERM);
	ck_assert_ptr_null(s.engine);
	ck_assert_uint_eq(kv_fd_count(), fds);

	kv_ok(open_trusting(&m, OKV_ENGINE_TRUST_UID, NOBODY, &s.engine, kv_err));
	s.ns = kv_namespace(s.engine, &plain);
	kv_rank_open(&s.rank, s.ns, &plain, 0);
	ck_assert_int_eq(kv_publish(&s.rank, 5, 0, 8, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(s.ns, 5, 8, 1, &lease), 8);
	ck_assert_int_eq(restore_exact(&s, lease, 5, 8), 0);
	okv_lease_release(lease);
	side_close(&s);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);

	/* The other direction is the Manager's to decide: it does not serve root unasked. */
	kv_manager_restart(&m, args);
	ck_assert_int_eq(open_trusting(&m, OKV_ENGINE_TRUST_UID, NOBODY, &s.engine, &err),
			 OKV_E_PERM);
	ck_assert_msg(strstr(err.text, "uid 0 may not use"), "%s", err.text);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* Why the tests with other users are left out; NULL: they can run. */
static const char *no_other_users(void)
{
	const char *binary = getenv("ORBITKV_MANAGER");
	int status = 0;
	if (geteuid() != 0)
		return "only root can become someone else";
	pid_t pid = fork();
	if (pid == 0) {
		if (!binary || setgid(NOBODY) || setuid(NOBODY) ||
		    !freopen("/dev/null", "w", stdout))
			_exit(126);
		execl(binary, binary, "--version", (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		return "uid 65534 cannot run this Manager";
	return NULL;
}

int main(int argc, char **argv)
{
	const struct child_role roles[] = {
		{"reader", role_reader},     {"rank", role_rank},     {"guest", role_guest},
		{"inherits", role_inherits}, {"nobody", role_nobody},
	};
	int rc = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("many");
	TCase *t = tcase_create("many");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, one_publishes_and_others_restore);
	tcase_add_test(t, scheduler_leases_to_two_ranks);
	tcase_add_test(t, lease_ends_with_the_last_session_that_knows_it);
	tcase_add_test(t, r10_session_limit_is_a_named_refusal);
	tcase_add_test(t, s28_failed_connects_leave_no_descriptor);
	tcase_add_test(t, s28_refused_opens_leave_no_descriptor_here);
	tcase_add_test(t, s28_program_started_by_an_engine_inherits_nothing);
	tcase_add_test(t, s29_survivors_register_while_others_are_killed);
	const char *left_out = no_other_users();
	const TTest *const others[] = {other_users_are_refused_unless_named,
				       manager_of_another_user_is_believed_only_when_named};
	for (int i = 0; i < 2; i++)
		if (left_out)
			kv_left_out(others[i], left_out);
		else
			tcase_add_test(t, others[i]);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
