/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call for memory, descriptors, threads and messages that the Manager and the library make
 * fails, one after the other, once and from then on. Whatever it was, they go on or end with a
 * reason: right bytes or an error, no signal, no wait without end, and one failure is not
 * remembered. Not among them: write() to an eventfd, which fails for no descriptor that is good.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/child.h"

#define BLOCKS 8u
#define WAIT_MS 20000
#define MOST_POINTS 1000u

static const char *const manager_calls[] = {
	"memfd_create", "mmap64", "ftruncate64",    "madvise",	 "fstat64",    "fstatat64",
	"socket",	"bind",	  "listen",	    "accept4",	 "sendmsg",    "recvmsg",
	"poll",		"flock",  "epoll_create1",  "epoll_ctl", "epoll_wait", "eventfd",
	"getsockopt",	"open64", "getrandom",	    "fchmodat",	 "renameat",   "unlinkat",
	"fcntl64",	"malloc", "pthread_create", "calloc",	 "realloc",
};
static const char *const library_calls[] = {
	"mmap64",     "madvise",	"eventfd", "socket",  "connect",
	"sendmsg",    "recvmsg",	"poll",	   "fstat64", "fcntl64",
	"getsockopt", "pthread_create", "malloc",  "calloc",  "realloc",
};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
static const char *const modes[] = {"once", "on"};

/* What one engine met: 0, or a status and where. */
struct outcome {
	int status;
	const char *step;
	char text[sizeof(((struct okv_error *)0)->text)];
};

static int met(struct outcome *o, const char *step, int status, const char *text)
{
	if (status) {
		o->status = status;
		o->step = step;
		snprintf(o->text, sizeof(o->text), "%s", text);
	}
	return status;
}

static int open_namespace(struct okv_engine *engine, struct okv_namespace **ret_ns,
			  struct okv_error *err)
{
	struct okv_layer_schema layers[4];
	for (uint32_t i = 0; i < COUNT(layers); i++)
		layers[i] = (struct okv_layer_schema){i, 2, {256, 256}};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = 16,
					 .layer_count = COUNT(layers),
					 .layout_tag = "NHD",
					 .layers = layers};
	struct okv_namespace_options o;
	okv_namespace_options_init(&o);
	o.model = "test";
	o.rank_slots = 1;
	o.group_count = 1;
	o.groups = &group;
	return okv_namespace_open(engine, &o, ret_ns, err);
}

static int finish(struct outcome *o, const char *step, struct okv_op *op)
{
	struct okv_op_result r = {0};
	int status = okv_op_wait(op, WAIT_MS, &r);
	ck_assert_msg(status != OKV_E_TIMEOUT, "%s does not end", step);
	okv_op_release(op);
	return met(o, step, status, r.text);
}

static int publish(struct kv_rank *a, uint64_t seq, const uint32_t *pages, struct outcome *o)
{
	struct okv_op *op;
	struct okv_error err = {0};
	for (uint32_t i = 0; i < BLOCKS; i++)
		kv_fill(a, seq, i, &pages[i]);
	int status = kv_publish_start(a, seq, 0, BLOCKS, pages, 0, &op, &err);
	return status ? met(o, "start of a publish", status, err.text) : finish(o, "a publish", op);
}

static int look_up(struct okv_namespace *ns, uint64_t seq, struct okv_lease **ret_lease,
		   uint32_t *ret_count, struct outcome *o)
{
	struct okv_error err = {0};
	struct okv_lookup_result result;
	uint8_t *keys = kv_keys(seq, 0, BLOCKS);
	struct okv_keys k = {.count = BLOCKS, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options options;
	okv_lookup_options_init(&options);
	options.consumers = 1;
	options.group_count = 1;
	options.groups = &k;
	options.timeout_ms = WAIT_MS;
	int status = okv_lookup(ns, &options, &result, ret_lease, &err);
	free(keys);
	*ret_count = status ? 0 : result.groups[0].count;
	return met(o, "a lookup", status, err.text);
}

static int restore(struct kv_rank *a, uint64_t seq, struct okv_lease *lease, uint32_t count,
		   const uint32_t *pages, struct outcome *o)
{
	struct okv_op *op;
	struct okv_error err = {0};
	kv_poison(a);
	int status = kv_restore_start(a, lease, 0, count, pages, 0, &op, &err);
	status = status ? met(o, "start of a restore", status, err.text)
			: finish(o, "a restore", op);
	for (uint32_t i = 0; i < count && !status; i++)
		ck_assert_uint_eq(kv_wrong(a, seq, i, &pages[i]), 0);
	ck_assert_uint_eq(kv_canaries_broken(a), 0);
	return status;
}

static int with_rank(struct okv_namespace *ns, struct kv_rank *a, uint64_t seq, struct outcome *o)
{
	struct okv_error err = {0};
	struct okv_lease *lease = NULL;
	uint32_t count;
	int status = met(o, "registration", kv_rank_register(a, ns, &err), err.text);
	if (status)
		return status;
	uint32_t *from = kv_pages(a, BLOCKS, 0, 1), *to = kv_pages(a, BLOCKS, 20, 3);
	status = publish(a, seq, from, o);
	if (!status)
		status = look_up(ns, seq, &lease, &count, o);
	if (!status && lease)
		status = restore(a, seq, lease, count, to, o);
	okv_lease_release(lease);
	free(from);
	free(to);
	return status;
}

/* Open, register, publish, look up, restore, close. */
static struct outcome round_trip(const char *socket_path, uint64_t seq)
{
	const struct kv_shape shape = {.pages = 64};
	struct outcome o = {0};
	struct okv_error err = {0};
	struct okv_engine_options options;
	struct okv_engine *engine = NULL;
	struct okv_namespace *ns = NULL;
	struct kv_rank a;
	okv_engine_options_init(&options);
	options.socket_path = socket_path;
	options.connect_timeout_ms = 1000;
	if (met(&o, "open", okv_engine_open(&options, &engine, &err), err.text))
		return o;
	if (!met(&o, "a namespace", open_namespace(engine, &ns, &err), err.text)) {
		kv_rank_init(&a, &shape, 0);
		with_rank(ns, &a, seq, &o);
		kv_rank_close(&a);
		okv_namespace_close(ns);
	}
	okv_engine_close(engine);
	ck_assert_msg(!o.status || o.text[0], "%s: %s without a reason", o.step,
		      okv_status_name(o.status));
	return o;
}

static void goes_well(const char *socket_path, uint64_t seq)
{
	struct outcome o = round_trip(socket_path, seq);
	ck_assert_msg(o.status == 0, "%s after a failure that is over: %s, %s", o.step,
		      okv_status_name(o.status), o.text);
}

/* ---- what fails ---- */

static char mark[128];

static void order(const char *call, uint32_t nth, const char *mode, const char *whose)
{
	char text[256];
	unlink(mark);
	snprintf(text, sizeof(text), "%s:%u:%s:%s%s", call, nth, mode, mark, whose);
	setenv("FAILING_CALL", text, 1);
	setenv("LD_PRELOAD", getenv("FAILING_CALLS"), 1);
}

static void order_nothing(void)
{
	unsetenv("LD_PRELOAD");
	unsetenv("FAILING_CALL");
}

static bool has_failed(void)
{
	return access(mark, F_OK) == 0;
}

/* The wait status. */
static int end_of(pid_t pid)
{
	int status, fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	ck_assert_int_ge(fd, 0);
	int ended = poll(&p, 1, WAIT_MS);
	close(fd);
	if (ended != 1)
		kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_msg(ended == 1, "it does not end");
	return status;
}

/* ---- the Manager ---- */

struct manager {
	pid_t pid;
	char dir[64], socket_path[96];
	FILE *said;
};

/* False: it ended before it was ready. */
static bool start(struct manager *m)
{
	char line[1024];
	int fds[2];
	strcpy(m->dir, "/tmp/orbitkv-test-XXXXXX");
	ck_assert(mkdtemp(m->dir) != NULL);
	snprintf(m->socket_path, sizeof(m->socket_path), "%s/m.sock", m->dir);
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	m->pid = fork();
	if (m->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		execl(getenv("ORBITKV_MANAGER"), "orbitkv-manager", "serve", "--socket",
		      m->socket_path, "--memory", "4M", "--numa", "off", NULL);
		_exit(127);
	}
	close(fds[1]);
	m->said = fdopen(fds[0], "r");
	bool spoke = false;
	while (fgets(line, sizeof(line), m->said)) {
		if (strstr(line, "ready: socket"))
			return true;
		spoke = true;
	}
	ck_assert_msg(spoke, "it ended without a word");
	return false;
}

static void remove_all(struct manager *m)
{
	char command[128];
	fclose(m->said);
	snprintf(command, sizeof(command), "rm -r %s", m->dir);
	ck_assert_int_eq(system(command), 0);
}

/* Whether the call failed at all. */
static bool manager_point(const char *call, uint32_t nth, const char *mode)
{
	struct manager m;
	order(call, nth, mode, "");
	bool ready = start(&m);
	order_nothing();
	if (ready) {
		round_trip(m.socket_path, 1);
		bool over = has_failed() && strcmp(mode, "once") == 0;
		/* Where a thread cannot start it ends. */
		if (over && waitpid(m.pid, NULL, WNOHANG | WNOWAIT) == 0 &&
		    strcmp(call, "pthread_create") != 0)
			goes_well(m.socket_path, 2);
		kill(m.pid, SIGTERM);
	}
	int status = end_of(m.pid);
	ck_assert_msg(WIFEXITED(status), "signal %d ends it", WTERMSIG(status));
	ck_assert_msg(ready || WEXITSTATUS(status) != 0, "it ends well and was never ready");
	remove_all(&m);
	return has_failed();
}

/* ---- the library ---- */

/* A role: one round with failing calls. */
START_TEST(role_round)
{
	struct outcome o = round_trip(child_socket, strtoull(child_arg, NULL, 10));
	child_say(o.status ? o.text : "good");
}
END_TEST

static bool library_point(struct kv_manager *m, const char *call, uint32_t nth, const char *mode)
{
	static uint64_t seq;
	char number[24];
	struct child c;
	snprintf(number, sizeof(number), "%llu", (unsigned long long)++seq);
	order(call, nth, mode, ":lib");
	child_start(&c, "round", m->socket_path, number);
	order_nothing();
	close(c.to);
	int status = end_of(c.pid);
	close(c.from);
	ck_assert_msg(status == 0, "an engine ends with wait status %x", status);
	goes_well(m->socket_path, ++seq);
	return has_failed();
}

/* ---- all points ---- */

static const char *point_call;
static uint32_t point_nth;
static int point_mode;

/* A failed check says nothing of the point it was at. */
static void say_where(void)
{
	if (point_call)
		fprintf(stderr, "at call %u of %s (%s)\n", point_nth, point_call,
			modes[point_mode]);
}

static void until_none_fails(struct kv_manager *m, const char *call, int mode)
{
	point_call = call;
	point_mode = mode;
	for (point_nth = 1; point_nth < MOST_POINTS; point_nth++)
		if (!(m ? library_point(m, call, point_nth, modes[mode])
			: manager_point(call, point_nth, modes[mode])))
			break;
	/* A name that nothing calls would be no test. */
	ck_assert_msg(point_nth > 1 && point_nth < MOST_POINTS, "%u calls of %s", point_nth - 1,
		      call);
	point_call = NULL;
}

static void new_mark(void)
{
	signal(SIGPIPE, SIG_IGN);
	atexit(say_where);
	snprintf(mark, sizeof(mark), "/tmp/orbitkv-test-mark.%d", (int)getpid());
}

START_TEST(a_manager_whose_calls_fail)
{
	new_mark();
	until_none_fails(NULL, manager_calls[_i / 2], _i % 2);
	unlink(mark);
}
END_TEST

START_TEST(a_library_whose_calls_fail)
{
	static const char *const small[] = {"--memory", "16M", "--numa", "off", NULL};
	struct kv_manager m;
	new_mark();
	kv_manager_start(&m, small);
	until_none_fails(&m, library_calls[_i / 2], _i % 2);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
	unlink(mark);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {{"round", role_round}};
	int rc = child_main(argc, argv, roles, COUNT(roles));
	if (rc >= 0)
		return rc;
	Suite *suite = suite_create("failing calls");
	TCase *tc = tcase_create("failing calls");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, a_manager_whose_calls_fail, 0, 2 * COUNT(manager_calls));
	tcase_add_loop_test(tc, a_library_whose_calls_fail, 0, 2 * COUNT(library_calls));
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
