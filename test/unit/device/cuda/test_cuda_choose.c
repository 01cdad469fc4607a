/* SPDX-License-Identifier: Apache-2.0 */
/* Which way copies go: never one on which they wait for long. No GPU: the driver's calls copy at
 * once and count. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/unit/device/cuda/mixed_groups.h"
#include "support/suite.h"

#define KIB(count) ((uint64_t)(count) << 10)
#define MIB(count) ((uint64_t)(count) << 20)

static const struct oki_cuda_beside idle = {.batch = true};
/* A kernel waits for an SM as long as a model's blocks often take. */
static const struct oki_cuda_beside held = {.batch = true, .wait_ns = 2e6};
static const struct oki_cuda_beside busy = {.batch = true, .engines_busy = true};
static const struct oki_cuda_beside both = {.batch = true, .wait_ns = 2e6, .engines_busy = true};

/* Rows of so many bytes, so many of them in an operation. */
static bool suits_engines(uint64_t bytes, uint64_t row, uint64_t together,
			  const struct oki_cuda_beside *beside)
{
	uint64_t rows = bytes / row;
	struct oki_cuda_work work = {
		.bytes = bytes, .rows = rows, .operations = (rows + together - 1) / together};
	return oki_cuda_suits_engines(&work, beside);
}

/* Copy engines wait for no SM, nor does a short copy queue behind somebody's long ones; and who has
 * only short rows by the thousand waits for a kernel all the same. */
START_TEST(nobody_waits_for_long)
{
	for (uint64_t row = KIB(4); row <= MIB(1); row *= 4)
		ck_assert(suits_engines(MIB(1), row, 1, &held) &&
			  suits_engines(MIB(1), row, 1, &both));
	ck_assert(!suits_engines(MIB(512), 64, 1, &held));
	ck_assert(suits_engines(MIB(1), MIB(1), 1, &idle));
	ck_assert(!suits_engines(MIB(1), MIB(1), 1, &busy));
	ck_assert(suits_engines(MIB(1024), MIB(1024), 1, &busy));
}
END_TEST

/* Whatever there is to copy and whatever else goes on. */
START_TEST(longer_rows_suit_engines_more)
{
	for (uint32_t b = 0; b < 4; b++) {
		const struct oki_cuda_beside *beside[] = {&idle, &held, &busy, &both};
		for (uint64_t bytes = KIB(64); bytes <= MIB(1024); bytes *= 4) {
			bool last = false;
			for (uint64_t row = 64; row <= bytes; row *= 2) {
				bool now = suits_engines(bytes, row, 1, beside[b]);
				ck_assert(now || !last);
				last = now;
			}
		}
	}
}
END_TEST

/* ---- what else goes on ---- */

/* A new operation, whose first call chooses. */
static bool kernel_has(struct stage *s, const struct oki_layer_copy *layers, uint32_t count)
{
	oki_cuda_plans_forget(&s->stream);
	copy_layers(s, layers, count);
	return s->stream.by_kernel;
}

/* Many layers of a few rows are few operations where one may span them all, and nothing else makes
 * them so. */
START_TEST(neighbours_of_a_group_are_one_copy)
{
	static const uint32_t rows[] = {1, 1};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 0);
	ck_assert(kernel_has(&s, m.layers, LAYERS));
	one_tensor(&s.device, 0, UINTPTR_MAX);
	ck_assert(!kernel_has(&s, m.layers, LAYERS));
	check_bytes(&m);
	mixed_close(&m, &s);
}
END_TEST

/* Nor do an operation's own copies keep it waiting. */
START_TEST(own_copies_are_not_ahead)
{
	static const uint32_t rows[] = {64};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 1, rows, 1);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert(!s.stream.by_kernel);
	/* The next piece chooses anew: copy engines have this operation's copies alone. */
	stage_mark(&s);
	ck_assert_uint_gt(atomic_load(&s.device.copying[OKI_TO_PAGES]), 0);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers + 1, 1, NULL), 1);
	ck_assert(!s.stream.by_kernel);
	/* And now somebody's. */
	stage_mark(&s);
	atomic_fetch_add(&s.device.copying[OKI_TO_PAGES], MIB(256));
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers + 2, 1, NULL), 1);
	ck_assert(s.stream.by_kernel);
	mixed_close(&m, &s);
}
END_TEST

/* Copy engines busy in the other direction keep nobody waiting. */
START_TEST(busy_engines_count_by_direction)
{
	static const uint32_t rows[] = {64};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 1, rows, 1);
	atomic_store(&s.device.copying[OKI_TO_BLOCKS], MIB(256));
	ck_assert(!kernel_has(&s, m.layers, 1));
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_PAGES]), 64 * ROW);
	oki_cuda_plans_forget(&s.stream);
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_PAGES]), 0);
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_BLOCKS]), MIB(256));
	/* Nor does a publish wait for restores. */
	for (int d = 0; d < 2; d++) {
		atomic_store(&s.device.copying[d], MIB(256));
		atomic_store(&s.device.copying[!d], 0);
		ck_assert(kernel_has(&s, m.layers, 1) == (d == OKI_TO_PAGES));
		oki_cuda_plans_forget(&s.stream);
		ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_BLOCKS, m.layers, 1, NULL), 1);
		ck_assert(s.stream.by_kernel == (d == OKI_TO_BLOCKS));
	}
	mixed_close(&m, &s);
}
END_TEST

/* On a device with one path alone nothing is chosen. */
START_TEST(a_given_path_is_kept)
{
	static const uint32_t rows[] = {64};
	for (uint32_t path = OKV_COPY_DMA; path <= OKV_COPY_KERNEL; path++)
		for (uint32_t tidy = 0; tidy < 2; tidy++)
			for (uint32_t sms_held = 0; sms_held < 2; sms_held++) {
				struct stage s;
				struct mixed m;
				mixed_open(&m, &s, path, 1, rows, tidy);
				stage_wait(&s, sms_held * 1e7);
				atomic_store(&s.device.copying[OKI_TO_PAGES], MIB(256));
				ck_assert_int_eq(copy_all(&s, &m), path == OKV_COPY_KERNEL);
				ck_assert(calls.bytes == 0 || path == OKV_COPY_DMA);
				mixed_close(&m, &s);
			}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda choice");
	TCase *tcase = tcase_create("choice");
	tcase_add_test(tcase, nobody_waits_for_long);
	tcase_add_test(tcase, longer_rows_suit_engines_more);
	tcase_add_test(tcase, neighbours_of_a_group_are_one_copy);
	tcase_add_test(tcase, own_copies_are_not_ahead);
	tcase_add_test(tcase, busy_engines_count_by_direction);
	tcase_add_test(tcase, a_given_path_is_kept);
	suite_add_tcase(suite, tcase);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
