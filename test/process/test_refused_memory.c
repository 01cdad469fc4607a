/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that orbitkv-manager must not take: what it refuses, and what it counts once. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"

#define MOST_SESSIONS 12

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

static uint64_t host_memory(void)
{
	char text[4096];
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	ck_assert_int_gt(n, 0);
	text[n] = 0;
	return number_of(text, "%s:", "MemTotal") * 1024;
}

START_TEST(s34_memory_beyond_the_host_is_refused_with_the_numbers)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], said[4096], memory[32];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	uint64_t total = host_memory(), wanted = total + (1ull << 30);
	snprintf(memory, sizeof(memory), "%llu", (unsigned long long)wanted);
	ck_assert_int_eq(RUN(said, "--memory", memory, "--socket", path), 1);
	ck_assert_msg(strstr(said, "OKV_E_BUDGET") && strstr(said, memory), "%s", said);
	const char *refusal = strstr(said, "OKV_E_BUDGET");
	uint32_t numbers = 0;
	for (const char *c = refusal; *c; c++)
		numbers += *c >= '0' && *c <= '9' && (c[-1] < '0' || c[-1] > '9');
	ck_assert_msg(numbers >= 3, "requested, available and limit: %s", refusal);
	ck_assert_int_eq(access(path, F_OK), -1);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* Memory comes after the socket: of two things that are wrong the path is the one it names. */
START_TEST(a_bad_socket_path_is_refused_before_any_memory)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], said[4096], memory[32];
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/file", dir);
	snprintf(memory, sizeof(memory), "%llu",
		 (unsigned long long)(host_memory() + (1ull << 30)));
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	ck_assert_int_eq(RUN(said, "--memory", memory, "--socket", path), 1);
	ck_assert_msg(strstr(said, "OKV_E_EXISTS") && strstr(said, path), "%s", said);
	ck_assert_msg(!strstr(said, "preparing") && !strstr(said, "OKV_E_BUDGET"), "%s", said);
	strcat(path, "/below/it");
	ck_assert_int_eq(RUN(said, "--memory", memory, "--socket", path), 1);
	ck_assert_msg(strstr(said, "OKV_E_CONNECT") && strstr(said, dir), "%s", said);
	ck_assert_msg(!strstr(said, "preparing") && !strstr(said, "OKV_E_BUDGET"), "%s", said);
	snprintf(path, sizeof(path), "%s/file", dir);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

static bool write_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return done;
}

/* A group for this process's children with this much memory; NULL: it cannot be made here. */
static const char *make_group(const char *bytes)
{
	static char dir[128];
	static const char *const roots[][2] = {
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	};
	for (int i = 0; i < 2; i++) {
		snprintf(dir, sizeof(dir), "%s/orbitkv-test-%d", roots[i][0], (int)getpid());
		if (mkdir(dir, 0700))
			continue;
		if (write_file(dir, roots[i][1], bytes))
			return dir;
		rmdir(dir);
	}
	return NULL;
}

static bool group_is_possible(void)
{
	const char *group = make_group("100663296");
	return group && !rmdir(group);
}

static void run_in_group(const char *group, const char *const *argv, char *said, size_t size,
			 int *ret_code)
{
	char script[512];
	snprintf(script, sizeof(script), "echo $$ > %s/cgroup.procs && exec \"$@\"", group);
	const char *full[16] = {"/bin/sh", "-c", script, "sh", getenv("ORBITKV_MANAGER")};
	for (int n = 5; *argv && n < 15; argv++)
		full[n++] = *argv;
	int status = process_run(full, NULL, said, size);
	ck_assert_msg(WIFEXITED(status), "signal %d: %s", WTERMSIG(status), said);
	*ret_code = WEXITSTATUS(status);
}

START_TEST(s34_memory_beyond_the_cgroup_is_refused_with_the_numbers)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], said[4096];
	const char *group = make_group("100663296");
	ck_assert(group != NULL);
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	const char *argv[] = {"--memory", "128M", "--socket", path, NULL};
	int code;
	/* Were it to allocate before it asks, the kernel would kill it. */
	run_in_group(group, argv, said, sizeof(said), &code);
	ck_assert_int_eq(code, 1);
	ck_assert_msg(strstr(said, "OKV_E_BUDGET") && strstr(said, "requested 128.0 MiB") &&
			      strstr(said, "limit 96.0 MiB"),
		      "%s", said);
	ck_assert_int_eq(rmdir(group), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* A program that is the Manager in the group: what starts Managers takes it for theirs. */
static void become_group_manager(const char *group, const char *script)
{
	FILE *f = fopen(script, "we");
	ck_assert(f != NULL);
	fprintf(f, "#!/bin/sh\necho $$ > %s/cgroup.procs && exec %s \"$@\"\n", group,
		getenv("ORBITKV_MANAGER"));
	ck_assert_int_eq(fclose(f), 0);
	ck_assert_int_eq(chmod(script, 0700), 0);
	ck_assert_int_eq(setenv("ORBITKV_MANAGER", script, 1), 0);
}

/* As many sessions as it takes, each at work; one more is refused and nothing is killed. */
static void fill_with_sessions(struct kv_manager *m, uint64_t most)
{
	const struct kv_shape shape = {.pages = 64, .segment_bytes = 4096};
	struct okv_engine *e[MOST_SESSIONS], *none = NULL;
	struct okv_namespace *ns[MOST_SESSIONS];
	struct kv_rank rank[MOST_SESSIONS];
	struct okv_engine_options o;
	for (uint64_t i = 0; i < most; i++) {
		e[i] = kv_engine_connect(m->socket_path, 0);
		ns[i] = kv_namespace(e[i], &shape);
		kv_rank_open(&rank[i], ns[i], &shape, 0);
		ck_assert_int_eq(kv_publish(&rank[i], i, 0, 64, NULL, NULL), 0);
	}
	okv_engine_options_init(&o);
	o.socket_path = m->socket_path;
	ck_assert_int_eq(okv_engine_open(&o, &none, NULL), OKV_E_AGAIN);
	ck_assert_uint_eq(kv_manager_status(m).sessions, most);
	for (uint64_t i = 0; i < most; i++) {
		kv_rank_close(&rank[i]);
		okv_namespace_close(ns[i]);
		okv_engine_close(e[i]);
	}
}

/* The refusal says how many sessions have room; with so many the Manager lives in its group. */
START_TEST(control_memory_beyond_the_cgroup_is_refused_at_the_start)
{
	char dir[] = "/tmp/orbitkv-test-XXXXXX", path[64], said[4096], sessions[32];
	const char *group = make_group("134217728");
	struct kv_manager m;
	int code;
	ck_assert(group != NULL);
	ck_assert(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%s/s", dir);
	const char *argv[] = {"--memory", "64M", "--socket", path, NULL};
	run_in_group(group, argv, said, sizeof(said), &code);
	ck_assert_int_eq(code, 1);
	ck_assert_msg(strstr(said, "--memory 64M: OKV_E_BUDGET: cgroup: requested 64.0 MiB and ") &&
			      strstr(said, " of control memory for 64 sessions, available ") &&
			      strstr(said, "limit 128.0 MiB; would fit: 0 bytes, or "),
		      "%s", said);
	/* One less: what the kernel keeps in the group differs from run to run. */
	uint64_t most = number_of(said, "%s or", "bytes,") - 1;
	ck_assert_msg(most >= 2 && most < MOST_SESSIONS, "%s", said);
	snprintf(sessions, sizeof(sessions), "%llu", (unsigned long long)most);
	const char *args[] = {"--memory", "64M", "--max-sessions", sessions, NULL};
	/* Other tests may run in this process after it. */
	char *plain = strdup(getenv("ORBITKV_MANAGER"));
	become_group_manager(group, path);
	kv_manager_start(&m, args);
	ck_assert_int_eq(setenv("ORBITKV_MANAGER", plain, 1), 0);
	free(plain);
	fill_with_sessions(&m, most);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
	ck_assert_int_eq(rmdir(group), 0);
	ck_assert_int_eq(unlink(path), 0);
	ck_assert_int_eq(rmdir(dir), 0);
}
END_TEST

/* Bytes of shared memory files this process holds pages of. */
static uint64_t shared_bytes(void)
{
	char text[4096];
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return number_of(text, "%s:", "RssShmem") * 1024;
}

START_TEST(s34_arenas_count_once_however_many_engines_map_them)
{
	const struct kv_shape shape = {.pages = 256, .segment_bytes = 4096};
	struct kv_manager m;
	kv_manager_start(&m, small);
	struct okv_engine *e[3];
	struct okv_namespace *ns[3];
	struct kv_rank rank[3];
	for (uint64_t i = 0; i < 3; i++) {
		e[i] = kv_engine_connect(m.socket_path, 0);
		ns[i] = kv_namespace(e[i], &shape);
		kv_rank_open(&rank[i], ns[i], &shape, 0);
		ck_assert_int_eq(kv_publish(&rank[i], i, 0, 256, NULL, NULL), 0);
		struct okv_engine_stats st;
		ck_assert_int_eq(okv_stats_get(e[i], &st), 0);
		ck_assert_uint_eq(st.arena_bytes, 64u << 20);
		ck_assert_uint_eq(kv_manager_status(&m).bytes_total, 64u << 20);
	}
	/* One mapping of one file in this process: its pages are here once. */
	ck_assert_uint_eq(process_maps(getpid(), "orbitkv-shard"), 1);
	ck_assert_uint_le(shared_bytes(), (64u << 20) + 3 * kv_manager_status(&m).control_bytes);
	for (int i = 0; i < 3; i++) {
		kv_rank_close(&rank[i]);
		okv_namespace_close(ns[i]);
		okv_engine_close(e[i]);
	}
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

static void add_if_possible(TCase *t, const TTest *test)
{
	if (group_is_possible())
		tcase_add_test(t, test);
	else
		kv_left_out(test, "no memory cgroup can be made here");
}

int main(void)
{
	Suite *s = suite_create("refused_memory");
	TCase *t = tcase_create("refused_memory");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, a_bad_socket_path_is_refused_before_any_memory);
	tcase_add_test(t, s34_memory_beyond_the_host_is_refused_with_the_numbers);
	add_if_possible(t, s34_memory_beyond_the_cgroup_is_refused_with_the_numbers);
	add_if_possible(t, control_memory_beyond_the_cgroup_is_refused_at_the_start);
	tcase_add_test(t, s34_arenas_count_once_however_many_engines_map_them);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
