/* SPDX-License-Identifier: Apache-2.0 */
/* How orbitkv-manager ends, and what its command line says and refuses. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"
#include "support/gate.h"

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

/* ---- ending ---- */

/* An engine of this process with a restore that stands before a gate. */
struct standing {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_rank rank;
	struct okv_lease *lease;
	struct okv_op *op;
	struct kv_gate gate;
	uint32_t *pages;
};

static void stand(struct standing *s, const char *socket_path)
{
	const struct kv_shape shape = {.pages = 16, .segment_bytes = 16384};
	s->engine = kv_engine_connect(socket_path, 0);
	s->ns = kv_namespace(s->engine, &shape);
	kv_rank_open(&s->rank, s->ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&s->rank, 5, 0, 8, NULL, NULL), 0);
	kv_poison(&s->rank);
	ck_assert_uint_eq(kv_lookup(s->ns, 5, 8, 2, &s->lease), 8);
	s->pages = kv_pages(&s->rank, 8, 1, 2);
	kv_gate_close_page(&s->gate, &s->rank, 1, 0, s->pages[4]);
	kv_ok(kv_restore_start(&s->rank, s->lease, 0, 8, s->pages, 0, &s->op, kv_err));
	kv_gate_wait(&s->gate);
}

static uint64_t wrong_bytes(const struct standing *s)
{
	uint64_t wrong = kv_canaries_broken(&s->rank);
	for (uint32_t i = 0; i < 8; i++)
		wrong += kv_wrong(&s->rank, 5, i, s->pages + i);
	return wrong;
}

static void go(struct standing *s)
{
	okv_op_release(s->op);
	okv_lease_release(s->lease);
	kv_rank_close(&s->rank);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
	free(s->pages);
}

static bool one_active(const struct okv_manager_status *s)
{
	return s->ops_active == 1;
}

START_TEST(r5_sigterm_waits_for_a_running_restore)
{
	struct kv_manager m;
	struct standing s;
	int status;
	kv_manager_start(&m, small);
	stand(&s, m.socket_path);
	ck_assert_int_eq(kill(m.pid, SIGTERM), 0);
	ck_assert(kv_manager_wait_line(&m, "draining: 1 operation to end"));

	/* New sessions and new operations are refused with the reason, status still answers. */
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = m.socket_path;
	struct okv_engine *other = NULL;
	struct okv_error err;
	ck_assert_int_eq(okv_engine_open(&o, &other, &err), OKV_E_CLOSED);
	ck_assert_msg(strstr(err.text, "drain") != NULL, "%s", err.text);
	struct okv_op *second;
	uint32_t page = 0;
	int rc = kv_restore_start(&s.rank, s.lease, 0, 1, &page, 0, &second, NULL);
	ck_assert_int_eq(rc, 0);
	ck_assert_int_eq(okv_op_wait(second, 20000, NULL), OKV_E_CLOSED);
	okv_op_release(second);
	ck_assert_uint_eq(kv_touched(&s.rank, 0), 0);
	kv_manager_wait(&m, one_active, "the standing restore alone");
	ck_assert_int_eq(waitpid(m.pid, &status, WNOHANG), 0);

	kv_gate_open(&s.gate);
	ck_assert_int_eq(okv_op_wait(s.op, 20000, NULL), 0);
	ck_assert_uint_eq(wrong_bytes(&s), 0);
	ck_assert(kv_manager_wait_line(&m, "drained"));
	ck_assert_int_eq(waitpid(m.pid, &status, 0), m.pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(access(m.socket_path, F_OK), -1);
	go(&s);
	close(m.out);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(second_sigterm_ends_at_once)
{
	struct kv_manager m;
	struct standing s;
	kv_manager_start(&m, small);
	stand(&s, m.socket_path);
	ck_assert_int_eq(kill(m.pid, SIGTERM), 0);
	ck_assert(kv_manager_wait_line(&m, "draining: 1 operation to end"));
	int status = kv_manager_kill(&m, SIGTERM);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 128 + SIGTERM);
	ck_assert_int_eq(access(m.socket_path, F_OK), -1);
	/* The copy was on its way and its source is still mapped here: exact, or an error. */
	kv_gate_open(&s.gate);
	int rc = okv_op_wait(s.op, 20000, NULL);
	ck_assert_msg(rc == 0 || rc == OKV_E_SESSION, "%s", okv_status_name(rc));
	if (!rc)
		ck_assert_uint_eq(wrong_bytes(&s), 0);
	ck_assert_uint_eq(kv_canaries_broken(&s.rank), 0);
	go(&s);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(idle_engines_do_not_hold_a_drain_up)
{
	struct kv_manager m;
	kv_manager_start(&m, small);
	struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
	int status = kv_manager_kill(&m, SIGINT);
	ck_assert_int_eq(status, 0);
	struct pollfd p = {.fd = okv_engine_fd(e), .events = POLLIN};
	ck_assert_int_eq(poll(&p, 1, 20000), 1);
	ck_assert_int_eq(okv_engine_state(e), OKV_E_SESSION);
	okv_engine_close(e);
	kv_manager_clean(&m);
}
END_TEST

/* ---- the command line ---- */

static void check_status(const char *text, const char *format, const struct okv_manager_status *s)
{
	ck_assert_uint_eq(number_of(text, format, "epoch"), s->epoch);
	ck_assert_uint_eq(number_of(text, format, "sessions"), s->sessions);
	ck_assert_uint_eq(number_of(text, format, "bytes_total"), s->bytes_total);
	ck_assert_uint_eq(number_of(text, format, "bytes_used"), s->bytes_used);
	ck_assert_uint_eq(number_of(text, format, "bytes_quarantined"), 0);
	ck_assert_uint_eq(number_of(text, format, "blocks"), s->blocks);
	ck_assert_uint_eq(number_of(text, format, "published_blocks"), s->published_blocks);
	ck_assert_uint_eq(number_of(text, format, "control_bytes"), s->control_bytes);
}

/* Every value: the epoch is a string, and no number is beyond what a double holds. */
static void check_json_numbers(const char *text, uint64_t epoch)
{
	char expected[64];
	snprintf(expected, sizeof(expected), "{\"epoch\": \"%llu\",", (unsigned long long)epoch);
	ck_assert_msg(!strncmp(text, expected, strlen(expected)), "%s", text);
	for (const char *at = text; (at = strstr(at, "\": ")); at++)
		if (at[3] != '"')
			ck_assert_msg(strtoull(at + 3, NULL, 10) <= 1ull << 53, "%s", at);
}

START_TEST(status_says_what_the_library_says)
{
	const struct kv_shape shape = {.pages = 16};
	struct kv_manager m;
	char said[8192];
	kv_manager_start(&m, small);
	struct okv_engine *e = kv_engine_connect(m.socket_path, 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	struct kv_rank a;
	kv_rank_open(&a, ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 7, NULL, NULL), 0);
	struct okv_manager_status s = kv_manager_status(&m);
	ck_assert_uint_eq(s.blocks, 7);
	ck_assert_uint_eq(s.sessions, 1);
	said[0] = '\n';
	const char *plain[] = {"status", "--socket", m.socket_path, NULL};
	ck_assert_int_eq(manager_run(plain, NULL, said + 1, sizeof(said) - 1), 0);
	check_status(said, "\n%s ", &s);
	ck_assert_int_eq(RUN(said, "status", "--json", "--socket", m.socket_path), 0);
	check_status(said, "\"%s\":", &s);
	check_json_numbers(said, s.epoch);
	size_t n = strlen(said);
	ck_assert(said[0] == '{' && n > 2 && !strcmp(said + n - 2, "}\n"));
	ck_assert(strchr(said, '}') == said + n - 2);
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(e);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	/* Nobody there: which path, and a failure. */
	ck_assert_int_eq(RUN(said, "status", "--socket", m.socket_path), 1);
	ck_assert_msg(strstr(said, "OKV_E_CONNECT") && strstr(said, m.socket_path), "%s", said);
	kv_manager_clean(&m);
}
END_TEST

static void keep_epoch(void *arg, enum okv_log_level level, const char *line)
{
	const char *at = strstr(line, "epoch ");
	(void)level;
	if (at)
		snprintf(arg, 64, "%s", at);
}

START_TEST(an_engines_log_and_status_write_the_epoch_alike)
{
	struct kv_manager m;
	struct okv_engine_options o;
	struct okv_engine *e;
	char logged[64] = "", said[8192];
	kv_manager_start(&m, small);
	okv_engine_options_init(&o);
	o.socket_path = m.socket_path;
	o.log = keep_epoch;
	o.log_arg = logged;
	kv_ok(okv_engine_open(&o, &e, kv_err));
	okv_engine_close(e);
	ck_assert_int_eq(RUN(said, "status", "--json", "--socket", m.socket_path), 0);
	char expected[64];
	snprintf(expected, sizeof(expected), "epoch %llu",
		 (unsigned long long)number_of(said, "\"%s\":", "epoch"));
	ck_assert_str_eq(logged, expected);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(bad_options_are_named_and_exit_with_2)
{
	static const char *const bad[][4] = {
		{"--memory", "lots", "memory", "lots"},
		{"--memory", "0", "memory", "0"},
		{"--memory", "-1G", "memory", "-1G"},
		{"--memory", "1Q", "memory", "1Q"},
		{"--memory", "1GB", "memory", "1GB"},
		{"--shard", "x", "shard", "x"},
		{"--numa", "left", "numa", "left"},
		{"--allow-uid", "bob", "allow-uid", "bob"},
		{"--allow-uid", "-1", "allow-uid", "-1"},
		{"--memory", "99999999999T", "memory", "T"},
		{"--lease-ttl", "", "lease-ttl ''", "seconds"},
		{"--lease-ttl", "0", "lease-ttl", "seconds"},
		{"--lease-ttl", "4000001", "lease-ttl", "seconds"},
		{"--reserve-percent", "0", "reserve-percent", "1 to 100"},
		{"--session-percent", "101", "session-percent", "1 to 100"},
		{"--max-sessions", "1025", "max-sessions", "1 to 1024"},
		{"--spin-us", "1000001", "spin-us", "0 to 1000000"},
		{"--allow-uid", "4294967295", "allow-uid", "0 to 4294967294"},
		{"--numa", "4096", "numa", "up to 4095"},
		{"--what", "now", "what", "no such option"},
	};
	char said[8192];
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int code = RUN(said, bad[i][0], bad[i][1]);
		ck_assert_msg(code == 2, "%s %s: %d: %s", bad[i][0], bad[i][1], code, said);
		ck_assert_msg(strstr(said, bad[i][2]) && strstr(said, bad[i][3]), "%s", said);
	}
	ck_assert_int_eq(RUN(said, "--memory"), 2);
	ck_assert_int_eq(RUN(said, "serve", "extra"), 2);
	ck_assert_msg(strstr(said, "extra") != NULL, "%s", said);
	ck_assert_int_eq(RUN(said, "status", "--socket", ""), 1);
	ck_assert_msg(strstr(said, "1 to 107 bytes") != NULL, "%s", said);
	ck_assert_int_eq(RUN(said, "status", "--memory", "1G"), 2);
	ck_assert_msg(strstr(said, "--help") != NULL, "%s", said);
	ck_assert_int_eq(RUN(said, "--help"), 0);
	ck_assert_msg(strstr(said, "Usage:") && strstr(said, "--memory"), "%s", said);
	ck_assert_int_eq(RUN(said, "--version"), 0);
	char version[128];
	snprintf(version, sizeof(version), "orbitkv-manager %d.%d.%d\ndevices: %s\n",
		 OKV_VERSION_MAJOR, OKV_VERSION_MINOR, OKV_VERSION_PATCH, okv_devices());
	ck_assert_str_eq(said, version);
}
END_TEST

/* Half the memory may be pinned, half of that by one engine: 16 of 64 MiB. */
START_TEST(limits_of_leases_come_from_the_command_line)
{
	static const char *const args[] = {"--memory",
					   "64M",
					   "--numa",
					   "off",
					   "--reserve-percent",
					   "50",
					   "--lease-ttl",
					   "4000000",
					   "--session-percent",
					   "25",
					   "--spin-us",
					   "0",
					   NULL};
	const struct kv_shape shape = {.pages = 32, .segment_bytes = 512 << 10};
	struct kv_manager m;
	struct kv_rank rank;
	struct okv_lease *lease;
	kv_manager_start(&m, args);
	struct okv_engine *engine = kv_engine_connect(m.socket_path, 0);
	struct okv_namespace *ns = kv_namespace(engine, &shape);
	kv_rank_open(&rank, ns, &shape, 0);
	const uint64_t block = (uint64_t)rank.shape.layers * rank.shape.segments *
			       rank.shape.segment_bytes * rank.shape.pages_per_block;
	const uint32_t n = (uint32_t)((40u << 20) / block);
	ck_assert_int_eq(kv_publish(&rank, 5, 0, n, NULL, NULL), 0);
	ck_assert_uint_eq(kv_lookup(ns, 5, n, 1, &lease), (16u << 20) / block);
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

/* A size without a unit; of a Manager that then has no such node. */
START_TEST(a_tiny_memory_is_pointed_at)
{
	char said[8192];
	ck_assert_int_eq(RUN(said, "--memory", "200", "--numa", "4095"), 2);
	ck_assert_msg(strstr(said, "--memory '200': expected a size of at least 1M"), "%s", said);
	ck_assert_int_eq(RUN(said, "--memory", "64M", "--numa", "4095"), 1);
	ck_assert_msg(!strstr(said, "expected"), "%s", said);
}
END_TEST

/* Start it with nothing but an environment and read until it is ready. */
static pid_t start_plain(const char *variable, char *line, size_t size, int *ret_out)
{
	int fds[2];
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	const char *binary = getenv("ORBITKV_MANAGER");
	pid_t pid = fork();
	if (pid == 0) {
		unsetenv("ORBITKV_SOCKET");
		unsetenv("XDG_RUNTIME_DIR");
		putenv((char *)(uintptr_t)variable);
		dup2(fds[1], 1);
		execl(binary, binary, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	size_t n = 0;
	char c = 0;
	while (n < size - 1 && read(fds[0], &c, 1) == 1 && c != '\n')
		line[n++] = c;
	line[n] = 0;
	*ret_out = fds[0];
	return pid;
}

static uint32_t mode_of(const char *path)
{
	struct stat st;
	ck_assert_msg(!stat(path, &st), "%s: %s", path, strerror(errno));
	return st.st_mode & 0777;
}

static void check_plain(const char *variable, const char *path, const char *dir)
{
	char line[512], said[8192];
	int out, status;
	pid_t pid = start_plain(variable, line, sizeof(line), &out);
	ck_assert_msg(strstr(line, path) && strstr(line, " 1073741824 bytes"), "%s", line);
	ck_assert_uint_eq(mode_of(path), 0600);
	ck_assert_uint_eq(mode_of(dir), 0700);
	const char *env[] = {"ORBITKV_SOCKET", "XDG_RUNTIME_DIR", variable, NULL};
	const char *args[] = {"status", "--json", NULL};
	ck_assert_int_eq(manager_run(args, env, said, sizeof(said)), 0);
	ck_assert_uint_eq(number_of(said, "\"%s\":", "bytes_total"), 1u << 30);
	ck_assert_int_eq(kill(pid, SIGTERM), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	ck_assert_int_eq(access(path, F_OK), -1);
	close(out);
	ck_assert_int_eq(rmdir(dir), 0);
}

START_TEST(defaults_need_no_option)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", env[64], path[96], below[64];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(env, sizeof(env), "XDG_RUNTIME_DIR=%s", dir);
	snprintf(below, sizeof(below), "%s/orbitkv", dir);
	snprintf(path, sizeof(path), "%s/manager.sock", below);
	check_plain(env, path, below);
	snprintf(env, sizeof(env), "ORBITKV_SOCKET=%s/kv/s", dir);
	snprintf(below, sizeof(below), "%s/kv", dir);
	snprintf(path, sizeof(path), "%s/s", below);
	check_plain(env, path, below);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("drain");
	TCase *t = tcase_create("drain");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, r5_sigterm_waits_for_a_running_restore);
	tcase_add_test(t, second_sigterm_ends_at_once);
	tcase_add_test(t, idle_engines_do_not_hold_a_drain_up);
	tcase_add_test(t, status_says_what_the_library_says);
	tcase_add_test(t, an_engines_log_and_status_write_the_epoch_alike);
	tcase_add_test(t, bad_options_are_named_and_exit_with_2);
	tcase_add_test(t, limits_of_leases_come_from_the_command_line);
	tcase_add_test(t, a_tiny_memory_is_pointed_at);
	tcase_add_test(t, defaults_need_no_option);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
