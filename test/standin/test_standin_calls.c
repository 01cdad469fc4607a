/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in has every entry point that the library loads; the old one lacks the optional ones,
 * and OKV_STANDIN_OLD says that it is meant. A driver that does not start is a named refusal.
 */
#include "standin/standin_case.h"

#include <stdlib.h>
#include <string.h>
#include "device/cuda/cuda_api.h"
#include "support/suite.h"

#define NAME(field, symbol) SIM_NAME(symbol),
static const char *const required[] = {OKI_CUDA_CALLS(NAME)};
static const char *const optional[] = {
	OKI_CUDA_OPTIONAL_CALLS(NAME)
#if OKI_CUDA_HAS_BATCH
		OKI_CUDA_BATCH_NAME,
	OKI_CUDA_BATCH_12_NAME,
#endif
};
#undef NAME

START_TEST(every_entry_point_is_there)
{
	for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++)
		ck_assert_msg(sim_symbol(required[i]), "the stand-in lacks %s", required[i]);
}
END_TEST

START_TEST(optional_ones_are_there_or_not)
{
	bool old = getenv("OKV_STANDIN_OLD");
	for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
		ck_assert_msg(!sim_symbol(optional[i]) == old, "%s", optional[i]);
}
END_TEST

/* The last one: the library asks once per process. */
START_TEST(a_driver_that_does_not_start)
{
	static const struct sim_geometry small = {
		"small", KV_PLACE_PAGES, 1, {{1, 1, 1, 1, {64}}}, 0, 0, 0};
	struct standin_counts before, held;
	struct okv_error err = {0};
	sim_held(&before);
	struct sim_case *c = sim_case_new(&small, 0, 0);
	sim_held(&held);
	sim.standin_fail(SIM_NAME(cuInit), 1, CUDA_ERROR_NO_DEVICE, false);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(sim_case_register(c, OKV_COPY_AUTO, &err), OKV_E_UNSUPPORTED);
		ck_assert_int_eq(err.device_error, CUDA_ERROR_NO_DEVICE);
		ck_assert_ptr_nonnull(strstr(err.text, "does not start"));
		sim_nothing_held(&held);
	}
	sim_case_close(c, &before);
}
END_TEST

int main(void)
{
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in calls");
	TCase *tc = tcase_create("calls");
	suite_add_tcase(suite, tc);
	tcase_add_test(tc, every_entry_point_is_there);
	tcase_add_test(tc, optional_ones_are_there_or_not);
	tcase_add_test(tc, a_driver_that_does_not_start);
	return kv_suite_run(suite);
}
