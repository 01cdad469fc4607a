/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The looks at how long kernels wait for SMs, through a whole binding: they are launched while
 * operations go on, decide which way those go, and where they fail nothing else does.
 */
#include "standin/standin_case.h"

#include <stdio.h>
#include "support/suite.h"

/* Rows anywhere: the kernel is faster unless it waits. */
static const struct sim_geometry scattered = {
	"scattered", KV_PLACE_PAGES, 1, {{4, 1, 1, 200, {4096}}}, 0, 0, 0};

static struct sim_case *c;
static struct standin_counts held;
static uint64_t sequence;

static void open_case(void)
{
	sim.standin_seed(0);
	sim.standin_elapsed(0);
	sim_held(&held);
	c = sim_case_new(&scattered, 64u << 20, 0);
	kv_ok(sim_case_register(c, OKV_COPY_AUTO, kv_err));
}

static void close_case(void)
{
	sim_case_close(c, &held);
}

/* What one restore launched. */
static struct standin_counts restore_once(void)
{
	struct standin_counts before, after;
	uint32_t seen;
	sequence++;
	ck_assert_int_eq(sim_publish(c, sequence), 0);
	sim.standin_counts(&before);
	ck_assert_int_eq(sim_restore(c, sequence, &seen), 0);
	ck_assert_uint_eq(seen, c->image.layer_count);
	sim.standin_counts(&after);
	after.launches -= before.launches;
	after.empty -= before.empty;
	return after;
}

/* Until a restore goes by the kernel, or does not. */
static void until_kernel(bool wanted)
{
	while ((restore_once().launches > 0) != wanted)
		;
}

START_TEST(a_binding_looks_and_heeds_what_it_sees)
{
	open_case();
	while (restore_once().empty == 0)
		;
	until_kernel(true);
	sim.standin_elapsed(5000);
	until_kernel(false);
	sim.standin_elapsed(0);
	until_kernel(true);
	close_case();
}
END_TEST

START_TEST(a_look_that_fails_is_the_last)
{
	open_case();
	sim.standin_fail(SIM_NAME(cuEventElapsedTime), 1, CUDA_ERROR_INVALID_HANDLE, true);
	while (!sim.standin_failed())
		restore_once();
	sim.standin_fail(NULL, 0, CUDA_SUCCESS, false);
	for (int n = 0; n < 20; n++) {
		struct standin_counts now = restore_once();
		ck_assert_uint_eq(now.empty, 0);
		ck_assert_uint_gt(now.launches, 0);
	}
	close_case();
}
END_TEST

int main(void)
{
	if (!SIM_HAS_KERNEL) {
		puts("skipped: built without nvcc");
		return 77;
	}
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in probe");
	TCase *tc = tcase_create("probe");
	tcase_set_timeout(tc, 100);
	tcase_add_test(tc, a_binding_looks_and_heeds_what_it_sees);
	tcase_add_test(tc, a_look_that_fails_is_the_last);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
