/* SPDX-License-Identifier: Apache-2.0 */
/* Two engine processes on one GPU share a Manager's cache; one of them is killed. */
#include "device/gpu_support.h"
#include "support/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 12
#define PAGES 30
#define LAYERS 12
#define PUBLISHED 0x3cu
#define POISON 0xe1u
#define SEQ_STORED 1   /* by the process that dies */
#define SEQ_HALFWAY 2  /* it dies before that is stored */
#define SEQ_SURVIVOR 3 /* stored by the other one */

static struct okv_layer_schema layers[LAYERS];
static const struct okv_group_schema group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layer_count = LAYERS,
	.layout_tag = "NHD",
	.layers = layers,
};
static uint32_t from[COUNT], to[COUNT];
static const struct kv_blocks source = {.count = COUNT, .pages = from};
static const struct kv_blocks target = {.count = COUNT, .pages = to};

struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct gpu_kv kv;
};

static void side_open(struct side *s, const char *socket_path, enum kv_place place)
{
	const uint32_t per_block = 1, pages = PAGES;
	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = (struct okv_layer_schema){i, 2, {32768, 32768}};
	for (uint32_t i = 0; i < COUNT; i++) {
		from[i] = i;
		to[i] = PAGES - 1 - i;
	}
	s->engine = kv_engine_connect(socket_path, 0);
	s->ns = kv_groups_open(s->engine, &group, 1, 1);
	gpu_kv_place(&s->kv, &group, 1, place, &pages, &per_block, 0);
	kv_ok(gpu_kv_register(&s->kv, s->ns, kv_err));
}

static void side_close(struct side *s)
{
	gpu_kv_close(&s->kv);
	okv_namespace_close(s->ns);
	okv_engine_close(s->engine);
}

static void publish(struct side *s, uint64_t seq)
{
	struct okv_op *op;
	struct okv_op_result r;
	gpu_kv_image(&s->kv, PUBLISHED, seq, &source, 1);
	gpu_kv_upload(&s->kv);
	kv_ok(gpu_publish_start(&s->kv, seq, &source, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, &r), 0);
	ck_assert_uint_eq(r.blocks, COUNT);
}

/* Bytes that a restore got wrong. */
static uint64_t restored_wrong(struct side *s, uint64_t seq)
{
	const uint32_t n = COUNT;
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	ck_assert_uint_eq(kv_groups_lookup(s->ns, seq, &n, 1, 1, NULL, &lease), 16u * COUNT);
	gpu_kv_image(&s->kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&s->kv);
	kv_ok(gpu_restore_start(&s->kv, lease, &target, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	okv_lease_release(lease);
	gpu_kv_image(&s->kv, POISON, seq, &target, 1);
	return gpu_kv_differs(&s->kv);
}

/* ---- the process that dies ---- */

/* Stores one sequence, has a publish and a restore held by a gate, says so, and stays. */
static void child(const char *socket_path)
{
	const uint32_t n = COUNT;
	struct side s;
	struct okv_lease *lease = NULL;
	struct okv_op *ops[2];
	cudaStream_t stream;
	side_open(&s, socket_path, KV_PLACE_PAGES);
	publish(&s, SEQ_STORED);
	gpu_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	kv_groups_lookup(s.ns, SEQ_STORED, &n, 1, 1, NULL, &lease);
	gpu_gate_close(stream);
	struct gpu_with with = {.streams = &stream, .stream_count = 1};
	kv_ok(gpu_restore_start(&s.kv, lease, &target, 1, &with, &ops[0], kv_err));
	kv_ok(gpu_publish_start(&s.kv, SEQ_HALFWAY, &source, 1, &with, &ops[1], kv_err));
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_int_eq(okv_op_wait_enqueued(ops[0], i, GPU_WAIT_MS), 0);
	puts("copies are queued");
	fflush(stdout);
	for (;;)
		pause();
}

START_TEST(in_the_child)
{
	child(getenv("GPU_CHILD_SOCKET"));
}
END_TEST

/* This program again, told to be the child. */
static pid_t spawn_child(const char *socket_path, FILE **ret_out)
{
	int fds[2];
	ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		setenv("GPU_CHILD_SOCKET", socket_path, 1);
		execl("/proc/self/exe", "test_gpu_process", (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	*ret_out = fdopen(fds[0], "r");
	return pid;
}

static bool says(FILE *out, const char *text)
{
	char line[512];
	while (fgets(line, sizeof(line), out))
		if (strstr(line, text))
			return true;
	return false;
}

/* ---- the process that lives ---- */

static bool child_is_gone(const struct okv_manager_status *s)
{
	return s->sessions == 1;
}

START_TEST(r11_a_killed_engine_leaves_what_it_stored)
{
	const char *args[] = {"--memory", "512M", NULL};
	const uint32_t n = COUNT;
	struct kv_manager m;
	struct side s;
	FILE *out;
	int status;
	kv_manager_start(&m, args);
	pid_t pid = spawn_child(m.socket_path, &out);
	side_open(&s, m.socket_path, KV_PLACE_CROSS);
	ck_assert(says(out, "copies are queued"));
	/* While both live: the other's blocks, and its own. */
	ck_assert_uint_eq(restored_wrong(&s, SEQ_STORED), 0);
	ck_assert_uint_eq(kv_groups_lookup(s.ns, SEQ_HALFWAY, &n, 1, 1, NULL, NULL), 0);
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	fclose(out);
	kv_manager_wait(&m, child_is_gone, "the dead engine's session gone");
	ck_assert_uint_eq(restored_wrong(&s, SEQ_STORED), 0);
	/* What it had not finished is invisible, and stays it. */
	ck_assert_uint_eq(kv_groups_lookup(s.ns, SEQ_HALFWAY, &n, 1, 1, NULL, NULL), 0);
	publish(&s, SEQ_SURVIVOR);
	ck_assert_uint_eq(restored_wrong(&s, SEQ_SURVIVOR), 0);
	ck_assert_uint_eq(restored_wrong(&s, SEQ_STORED), 0);
	struct okv_manager_status after = kv_manager_status(&m);
	ck_assert_uint_eq(after.sessions, 1);
	ck_assert_uint_le(after.bytes_quarantined, after.bytes_used);
	side_close(&s);
	kv_manager_kill(&m, SIGTERM);
	kv_manager_clean(&m);
}
END_TEST

int main(void)
{
	int rc = gpu_find();
	if (rc)
		return rc;
	Suite *suite = suite_create("gpu processes");
	TCase *t = tcase_create("processes");
	if (getenv("GPU_CHILD_SOCKET"))
		tcase_add_test(t, in_the_child);
	else
		tcase_add_loop_test(t, r11_a_killed_engine_leaves_what_it_stored, 0, 3);
	suite_add_tcase(suite, t);
	return kv_suite_run_here(suite);
}
