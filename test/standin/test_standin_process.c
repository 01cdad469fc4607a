/* SPDX-License-Identifier: Apache-2.0 */
/* Processes and their CUDA driver: one that it shut down for exit(), and a parent's of a fork. */
#include "standin/standin_case.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/local.h"
#include "support/suite.h"

static const struct sim_geometry small = {"small", KV_PLACE_PAGES, 1, {{1, 1, 1, 1, {64}}}, 0, 0,
					  0};

/* The driver is shut down while a restore runs, as in exit(): it ends, and so does the process. */
static void exit_with_a_restore(void)
{
	uint32_t seen;
	struct standin_counts before;
	alarm(30);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&small, 0, 0);
	kv_ok(sim_case_register(c, OKV_COPY_AUTO, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	/* The first ones are about the events of layers, by the start call. */
	sim.standin_fail(SIM_NAME(cuEventQuery), c->image.layer_count + 1, CUDA_ERROR_DEINITIALIZED,
			 false);
	int rc = sim_restore(c, 1, &seen);
	sim.standin_fail(NULL, 1, CUDA_ERROR_DEINITIALIZED, true);
	okv_engine_close(c->engine);
	exit(rc == OKV_E_POISONED ? 0 : 3);
}

/* Before anything else here: a child has a driver when its parent loaded none. */
START_TEST(exit_with_operations_in_flight_is_quiet)
{
	int status;
	pid_t pid = fork();
	if (pid == 0)
		exit_with_a_restore();
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}
END_TEST

/* In a child, which has an engine of its own: 0 when the binding is refused as it should. */
static int register_in_child(struct sim_case *c, const char *socket_path)
{
	struct okv_error err = {0};
	alarm(30);
	c->engine = kv_engine_connect(socket_path, 0);
	c->ns = kv_groups_open(c->engine, c->groups, small.group_count, 1);
	if (sim_case_register(c, OKV_COPY_AUTO, &err) != OKV_E_UNSUPPORTED)
		return 1;
	return strstr(err.text, "before a fork") ? 0 : 2;
}

START_TEST(a_child_of_fork_is_told_that_the_driver_is_its_parents)
{
	static const struct kv_shape any = {.segment_bytes = 64};
	struct okv_manager_options o = kv_local_options(16 << 20);
	struct standin_counts before;
	struct kv_local l;
	int status;
	kv_local_start(&l, &o, 0, &any);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&small, 0, 0);
	kv_ok(sim_case_register(c, OKV_COPY_AUTO, kv_err));
	pid_t pid = fork();
	if (pid == 0)
		_exit(register_in_child(c, l.socket_path));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	sim_case_close(c, &before);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in process");
	TCase *tc = tcase_create("process");
	suite_add_tcase(suite, tc);
	tcase_add_test(tc, exit_with_operations_in_flight_is_quiet);
	tcase_add_test(tc, a_child_of_fork_is_told_that_the_driver_is_its_parents);
	return kv_suite_run(suite);
}
