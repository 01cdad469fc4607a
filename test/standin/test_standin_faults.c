/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S20: each call of the driver fails in turn, once or from then on, while a binding is registered,
 * while it restores and while it publishes. The operation ends, no layer counts as ready that is
 * not, no byte changes that is nobody's, everything is given back. An error of a query about copies
 * that were accepted is unknown completion: the engine, opened with OKV_ENGINE_POISON, is poisoned.
 */
#include "standin/standin_case.h"

#include <stdio.h>
#include <string.h>
#include "device/cuda/cuda_api.h"
#include "support/suite.h"

static const struct sim_geometry geometries[] = {
	{"a table", KV_PLACE_HALVES, 1, {{4, 2, 1, 90, {512, 512}}}, 0, 0, 40},
	{"in parts",
	 KV_PLACE_PAGES,
	 2,
	 {{3, 1, 1, 12, {1024}}, {2, 2, 2, 12, {512, 96}}},
	 8,
	 48 + 8 * 32,
	 0},
	{"one row", KV_PLACE_PAGES, 1, {{1, 1, 1, 1, {700}}}, 0, 0, 0},
	{"several kernels", KV_PLACE_HALVES, 1, {{29, 3, 1, 6, {512, 128, 64}}}, 0, 0, 0},
	{"long runs and short ones",
	 KV_PLACE_HALVES,
	 1,
	 {{2, 1, 8, 2 * 84, {64}}},
	 0,
	 48 + 84 * 32,
	 75},
};
static const struct config {
	uint32_t path;
	uint32_t geometry;
} configs[] = {
	{OKV_COPY_DMA, 2},    {OKV_COPY_DMA, 1},    {OKV_COPY_AUTO, 1},
	{OKV_COPY_DMA, 0},    {OKV_COPY_AUTO, 0},   {OKV_COPY_KERNEL, 1},
	{OKV_COPY_KERNEL, 0}, {OKV_COPY_KERNEL, 3}, {OKV_COPY_AUTO, 4},
};
#define CONFIGS (SIM_HAS_KERNEL ? 9 : 5)
/* Those with few layers: a registration has five calls for each. */
#define SHORT (CONFIGS < 7 ? CONFIGS : 7)
#define FAULTS_MAX 2000u /* more would be no end */

/* Each entry point that failed in some test. */
#define NAME(field, symbol) SIM_NAME(symbol),
static const char *const names[] = {
	OKI_CUDA_CALLS(NAME) OKI_CUDA_OPTIONAL_CALLS(NAME)
#if OKI_CUDA_HAS_BATCH
		OKI_CUDA_BATCH_NAME,
#endif
};
#undef NAME
#define NAMES (sizeof(names) / sizeof(names[0]))
static bool failed_once[NAMES];

/* What failed since the last sim.standin_fail(), or NULL; nothing fails from here on. */
static const char *stop_failing(void)
{
	const char *name = sim.standin_failed();
	sim.standin_fail(NULL, 0, CUDA_SUCCESS, false);
	for (size_t i = 0; name && i < NAMES; i++)
		failed_once[i] |= strcmp(names[i], name) == 0;
	return name;
}

static struct sim_case *registered(const struct config *config, struct standin_counts *ret_before)
{
	sim_held(ret_before);
	struct sim_case *c = sim_case_new(&geometries[config->geometry], 0, OKV_ENGINE_POISON);
	kv_ok(sim_case_register(c, config->path, kv_err));
	return c;
}

static bool is_query(const char *name)
{
	return strcmp(name, SIM_NAME(cuEventQuery)) == 0;
}

/* What a poisoned engine holds stays until the process exits, threads that use it among them: from
 * then on the leak checker has nothing to say. It asks this. */
int __lsan_is_turned_off(void);
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
static bool has_hostages;

int __lsan_is_turned_off(void)
{
	return has_hostages;
}

/* ---- one fault ---- */

static struct sim_case *stored(const struct config *config, struct standin_counts *ret_before)
{
	struct sim_case *c = registered(config, ret_before);
	ck_assert_int_eq(sim_publish(c, 1), 0);
	return c;
}

static void restore_well(struct sim_case *c)
{
	uint32_t seen;
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	ck_assert_uint_eq(seen, c->image.layer_count);
}

/* Its status; *ret_name: what failed, or NULL. */
static int restore_with(struct sim_case *c, uint32_t nth, CUresult result, bool for_ever,
			const char **ret_name)
{
	uint32_t seen;
	sim.standin_fail(NULL, nth, result, for_ever);
	/* Where the producer is busy, other calls are made. Each N has its turn both ways. */
	c->gated = (nth + (result == CUDA_ERROR_OUT_OF_MEMORY)) % 2;
	int rc = sim_restore(c, 1, &seen);
	const char *name = stop_failing();
	if (!name)
		ck_assert_int_eq(rc, 0);
	if (rc == OKV_E_POISONED)
		ck_assert_msg(for_ever || is_query(name), "poisoned by %s", name);
	else if (!for_ever && name && is_query(name))
		ck_assert_msg(rc == OKV_E_INVAL, "%s failed: %d", name, rc);
	*ret_name = name;
	return rc;
}

/* One after another in the same binding, as long as it lives. Returns how many failed. */
static uint32_t restore_with_each(const struct config *config, CUresult result)
{
	struct standin_counts before;
	struct sim_case *c = stored(config, &before);
	const char *name;
	uint32_t nth = 1;
	for (;; nth++) {
		int rc = restore_with(c, nth, result, false, &name);
		ck_assert_uint_lt(nth, FAULTS_MAX);
		if (!name)
			break;
		if (rc == OKV_E_POISONED) {
			sim_case_close(c, &before);
			c = stored(config, &before);
		}
		restore_well(c);
	}
	sim_case_close(c, &before);
	return nth - 1;
}

/* Returns false when nothing failed. */
static bool publish_with(const struct config *config, uint32_t nth)
{
	struct standin_counts before;
	struct sim_case *c = registered(config, &before);
	sim.standin_fail(NULL, nth, CUDA_ERROR_LAUNCH_FAILED, false);
	int rc = sim_publish(c, 1);
	const char *name = stop_failing();
	if (rc == OKV_E_POISONED) {
		ck_assert_msg(is_query(name), "poisoned by %s", name);
		sim_case_close(c, &before);
		return true;
	}
	ck_assert_int_eq(sim_is_stored(c, 1), rc == 0);
	if (rc)
		ck_assert_int_eq(sim_publish(c, 1), 0);
	restore_well(c);
	sim_case_close(c, &before);
	return name;
}

static bool register_with(const struct config *config, uint32_t nth, CUresult result, bool for_ever)
{
	struct standin_counts before, held;
	struct okv_error err = {0};
	sim_held(&before);
	struct sim_case *c = sim_case_new(&geometries[config->geometry], 0, OKV_ENGINE_POISON);
	sim_held(&held);
	sim.standin_fail(NULL, nth, result, for_ever);
	int rc = sim_case_register(c, config->path, &err);
	const char *name = stop_failing();
	if (rc) {
		ck_assert(err.text[0] != 0);
		ck_assert_ptr_null(c->image.binding);
		ck_assert_int_eq(atomic_load(&c->retained), atomic_load(&c->released));
		if (!for_ever)
			sim_nothing_held(&held);
		kv_ok(sim_case_register(c, config->path, kv_err));
	}
	ck_assert_int_eq(sim_publish(c, 1), 0);
	restore_well(c);
	sim_case_close(c, &before);
	return name;
}

/* ---- all of them ---- */

START_TEST(s20_each_call_of_a_restore_fails)
{
	ck_assert_uint_gt(restore_with_each(&configs[_i], CUDA_ERROR_LAUNCH_FAILED), 10);
}
END_TEST

/* Out of memory is what an allocation says, and has ways around it. */
START_TEST(s20_each_call_of_a_restore_finds_no_memory)
{
	ck_assert_uint_gt(restore_with_each(&configs[_i], CUDA_ERROR_OUT_OF_MEMORY), 10);
}
END_TEST

/* An error that stays in the context: most cases leave their engine behind, so not each N. */
START_TEST(s20_a_restore_fails_for_good)
{
	const char *name;
	uint32_t nth = 1;
	do {
		struct standin_counts before;
		struct sim_case *c = stored(&configs[_i], &before);
		int rc = restore_with(c, nth, CUDA_ERROR_LAUNCH_FAILED, true, &name);
		if (name)
			ck_assert_int_ne(rc, 0);
		if (rc != OKV_E_POISONED)
			restore_well(c);
		sim_case_close(c, &before);
		nth += 7;
		ck_assert_uint_lt(nth, FAULTS_MAX);
	} while (name);
}
END_TEST

START_TEST(s20_each_call_of_a_publish_fails)
{
	uint32_t nth = 1;
	while (publish_with(&configs[_i], nth))
		ck_assert_uint_lt(nth++, FAULTS_MAX);
}
END_TEST

START_TEST(s20_each_call_of_a_registration_fails)
{
	uint32_t nth = 1;
	while (register_with(&configs[_i], nth, CUDA_ERROR_UNKNOWN, false))
		ck_assert_uint_lt(nth++, FAULTS_MAX);
}
END_TEST

/* Copies that a query fails on while they run; the query before the end is not counted above. */
START_TEST(s20_an_unknown_end_poisons)
{
	struct standin_counts before;
	struct sim_case *c = stored(&configs[_i], &before);
	uint32_t seen;
	/* The first ones are about the events of layers, by the start call. */
	sim.standin_fail(SIM_NAME(cuEventQuery), c->image.layer_count + 1, CUDA_ERROR_LAUNCH_FAILED,
			 false);
	ck_assert_int_eq(sim_restore(c, 1, &seen), OKV_E_POISONED);
	ck_assert_ptr_nonnull(stop_failing());
	ck_assert_int_eq(okv_engine_state(c->engine), OKV_E_POISONED);
	sim_case_close(c, &before);
	ck_assert_int_gt(atomic_load(&c->retained), atomic_load(&c->released));
	c = stored(&configs[_i], &before);
	restore_well(c);
	sim_case_close(c, &before);
}
END_TEST

/* A publish that has nothing to copy records read_done_event all the same, or does not succeed:
 * here the event went between two operations, the second of which took it on trust. */
START_TEST(s20_an_event_that_cannot_be_recorded)
{
	struct standin_counts before;
	struct sim_case *c = stored(&configs[_i], &before);
	struct okv_publish_options o;
	struct okv_op *op;
	uint8_t *keys = kv_group_keys(1, 0, 0, 1);
	const struct okv_publish_group stored_one = {
		.keys = {.count = 1, .key_bytes = KV_KEY_BYTES, .keys = keys},
		.tokens = 16,
		.pages = c->from[0]};
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &stored_one;
	o.read_done_event = c->events[0];
	for (int fails = 0; fails < 2; fails++) {
		if (fails)
			sim.standin_fail(SIM_NAME(cuEventRecord), 1, CUDA_ERROR_INVALID_HANDLE,
					 false);
		kv_ok(okv_publish_start(c->image.binding, &o, &op, kv_err));
		ck_assert_int_eq(okv_op_wait(op, SIM_WAIT_MS, NULL), fails ? OKV_E_COPY : 0);
		ck_assert_int_eq(okv_op_wait_enqueued(op, 0, SIM_WAIT_MS), fails ? OKV_E_COPY : 0);
		okv_op_release(op);
	}
	ck_assert_ptr_nonnull(stop_failing());
	free(keys);
	restore_well(c);
	sim_case_close(c, &before);
}
END_TEST

/* What gives something back does so, whatever it returns. */
START_TEST(s20_each_call_of_the_end_fails)
{
	static const char *const ends[] = {
		SIM_NAME(cuStreamDestroy), SIM_NAME(cuEventDestroy),
		SIM_NAME(cuMemFree),	   SIM_NAME(cuMemFreeHost),
		SIM_NAME(cuModuleUnload),  SIM_NAME(cuMemHostUnregister),
		SIM_NAME(cuCtxPopCurrent), SIM_NAME(cuDevicePrimaryCtxRelease),
	};
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct standin_counts before;
		struct sim_case *c = stored(&configs[_i], &before);
		sim.standin_fail(ends[i], 1, CUDA_ERROR_LAUNCH_FAILED, true);
		okv_binding_unregister(c->image.binding);
		c->image.binding = NULL;
		stop_failing();
		sim_case_close(c, &before);
	}
}
END_TEST

/* Before the first engine is poisoned. */
START_TEST(s20_nothing_leaks)
{
	if (__lsan_do_recoverable_leak_check)
		ck_assert_int_eq(__lsan_do_recoverable_leak_check(), 0);
	has_hostages = true;
}
END_TEST

static bool needs_a_case(const char *name)
{
	/* Once per process: test_standin_calls.c has it. The others name an error. */
	static const char *const left_out[] = {SIM_NAME(cuInit), SIM_NAME(cuGetErrorName),
					       SIM_NAME(cuGetErrorString)};
	for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++)
		if (strcmp(name, left_out[i]) == 0)
			return false;
	return sim_symbol(name); /* else it is optional, and this driver an old one */
}

/* Which call is the Nth one depends a little on time: what no N met is aimed at by its name. */
static bool aim_at(const char *name)
{
	bool met = false;
	for (uint32_t i = 0; i < 2 * CONFIGS && !met; i++) {
		const struct config *config = &configs[i / 2];
		struct standin_counts before;
		struct okv_error err = {0};
		uint32_t seen;
		sim_held(&before);
		struct sim_case *c =
			sim_case_new(&geometries[config->geometry], 0, OKV_ENGINE_POISON);
		c->gated = i % 2;
		sim.standin_fail(name, 1, CUDA_ERROR_LAUNCH_FAILED, false);
		int rc = sim_case_register(c, config->path, &err);
		if (!rc)
			rc = sim_publish(c, 1);
		if (!rc)
			sim_restore(c, 1, &seen);
		okv_binding_unregister(c->image.binding);
		c->image.binding = NULL;
		met = stop_failing();
		sim_case_close(c, &before);
	}
	return met;
}

START_TEST(s20_no_call_is_left_out)
{
	for (size_t i = 0; i < NAMES; i++)
		ck_assert_msg(failed_once[i] || !needs_a_case(names[i]) || aim_at(names[i]),
			      "%s never failed", names[i]);
}
END_TEST

int main(void)
{
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in faults");
	TCase *tc = tcase_create("faults");
	tcase_set_timeout(tc, 300);
	suite_add_tcase(suite, tc);
	tcase_add_loop_test(tc, s20_each_call_of_a_registration_fails, 0, SHORT);
	tcase_add_loop_test(tc, s20_each_call_of_the_end_fails, 0, CONFIGS);
	tcase_add_test(tc, s20_nothing_leaks);
	tcase_add_loop_test(tc, s20_each_call_of_a_restore_fails, 0, CONFIGS);
	tcase_add_loop_test(tc, s20_each_call_of_a_restore_finds_no_memory, 0, CONFIGS);
	tcase_add_loop_test(tc, s20_each_call_of_a_publish_fails, 0, CONFIGS);
	tcase_add_loop_test(tc, s20_an_event_that_cannot_be_recorded, 0, CONFIGS);
	tcase_add_loop_test(tc, s20_an_unknown_end_poisons, 0, CONFIGS);
	tcase_add_loop_test(tc, s20_a_restore_fails_for_good, 0, CONFIGS);
	if (SIM_HAS_KERNEL)
		tcase_add_test(tc, s20_no_call_is_left_out);
	else
		kv_left_out(s20_no_call_is_left_out, "built without nvcc");
	return kv_suite_run(suite);
}
