/*
 * Publish and restore on the stand-in driver, by every path and in many geometries, with delays at
 * random: every byte is right, no other one changes, and each layer is there when its event is.
 */
#include "standin/standin_case.h"

#include <stdlib.h>
#include "support/suite.h"

static const struct sim_geometry geometries[] = {
	{"K and V apart", KV_PLACE_HALVES, 1, {{6, 2, 1, 40, {4096, 4096}}}, 0, 0, 0},
	{"fused, four pages to a block", KV_PLACE_PAGES, 1, {{6, 1, 4, 12, {3000}}}, 24, 0, 0},
	{"odd sizes, a table", KV_PLACE_PAGES, 1, {{5, 3, 2, 51, {1003, 77, 2051}}}, 13, 0, 10},
	{"many columns", KV_PLACE_HALVES, 1, {{70, 3, 1, 9, {640, 640, 256}}}, 0, 0, 0},
	{"many columns in parts",
	 KV_PLACE_HALVES,
	 1,
	 {{96, 3, 1, 9, {640, 96, 256}}},
	 16,
	 48 + 4 * 32,
	 0},
	{"all layers in a page", KV_PLACE_CROSS, 1, {{8, 2, 1, 90, {512, 512}}}, 0, 0, 45},
	{"in parts", KV_PLACE_HALVES, 1, {{5, 2, 1, 64, {2048, 2048}}}, 0, 48 + 5 * 32, 0},
	{"two groups in parts",
	 KV_PLACE_PAGES,
	 2,
	 {{6, 2, 1, 24, {1024, 1024}}, {4, 1, 2, 24, {4608}}},
	 8,
	 48 + 7 * 32,
	 0},
	{"long runs and short ones", KV_PLACE_HALVES, 1, {{4, 1, 1, 460, {4096}}}, 0, 0, 200},
	{"short early kernels", KV_PLACE_HALVES, 1, {{40, 2, 1, 30, {4096, 4096}}}, 0, 0, 0},
};
#define GEOMETRIES (sizeof(geometries) / sizeof(geometries[0]))
#define SEEDS 4u

static void publish_and_restore(uint32_t geometry, uint32_t path)
{
	struct standin_counts before;
	sim.standin_seed(0);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&geometries[geometry], 32u << 20, 0);
	uint32_t seen = 0;
	kv_ok(sim_case_register(c, path, kv_err));
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		sim.standin_seed(seed * 77);
		c->gated = seed % 2;
		ck_assert_int_eq(sim_publish(c, seed + 1), 0);
		ck_assert_int_eq(sim_restore(c, seed + 1, &seen), 0);
		ck_assert_uint_eq(seen, c->image.layer_count);
	}
	sim_case_close(c, &before);
}

START_TEST(by_copy_engines)
{
	struct standin_counts before, after;
	sim.standin_counts(&before);
	publish_and_restore((uint32_t)_i, OKV_COPY_DMA);
	sim.standin_counts(&after);
	ck_assert_uint_eq(after.launches, before.launches);
}
END_TEST

START_TEST(by_the_kernel)
{
	publish_and_restore((uint32_t)_i, OKV_COPY_KERNEL);
}
END_TEST

START_TEST(by_what_is_faster)
{
	publish_and_restore((uint32_t)_i, OKV_COPY_AUTO);
}
END_TEST

/* A restore of more than 64 MiB goes in pieces. */
static const struct sim_geometry large = {
	"above 64 MiB", KV_PLACE_PAGES, 1, {{4, 2, 1, 140, {65536, 65536}}}, 0, 0, 70};

START_TEST(in_pieces)
{
	static const uint32_t paths[] = {OKV_COPY_DMA, OKV_COPY_KERNEL};
	struct standin_counts before;
	uint32_t seen;
	sim.standin_seed(5);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&large, 128u << 20, 0);
	kv_ok(sim_case_register(c, paths[_i], kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	ck_assert_uint_eq(seen, 4);
	sim_case_close(c, &before);
}
END_TEST

/* Prices as measured on the stand-in: whatever they are, every choice is right. Last, as the
 * process keeps them. */
START_TEST(by_measured_prices)
{
	sim.standin_pinned_limit(UINT64_MAX);
	publish_and_restore((uint32_t)_i, OKV_COPY_AUTO);
	publish_and_restore((uint32_t)_i + 1, OKV_COPY_AUTO);
}
END_TEST

int main(void)
{
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in copies");
	TCase *tc = tcase_create("copies");
	tcase_set_timeout(tc, 300);
	suite_add_tcase(suite, tc);
	tcase_add_loop_test(tc, by_copy_engines, 0, (int)GEOMETRIES);
	tcase_add_loop_test(tc, by_what_is_faster, 0, (int)GEOMETRIES);
	if (SIM_HAS_KERNEL)
		tcase_add_loop_test(tc, by_the_kernel, 0, (int)GEOMETRIES);
	else
		kv_left_out(by_the_kernel, "built without nvcc");
	tcase_add_loop_test(tc, in_pieces, 0, SIM_HAS_KERNEL ? 2 : 1);
	tcase_add_loop_test(tc, by_measured_prices, 7, 8);
	return kv_suite_run(suite);
}
