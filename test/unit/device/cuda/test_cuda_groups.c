/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of several groups in one copy call: what one launch has room for, the way they go, and
 * that each follows its own rows. No GPU: the driver's calls copy at once and count. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/unit/device/cuda/mixed_groups.h"
#include "support/suite.h"

static const struct {
	uint32_t groups, rows[OKV_MAX_GROUPS];
} sets[] = {
	{2, {5, 20}},			  /* all rows travel with the launch */
	{2, {300, 17}},			  /* one table in memory, one with the launch */
	{3, {300, 500, 100}},		  /* all in memory */
	{8, {9, 9, 9, 9, 9, 9, 9, 9}},	  /* as many as have room */
	{8, {20, 9, 9, 40, 9, 9, 71, 9}}, /* some have none */
};

/* One kernel for all groups, and every event behind its own layer's bytes. */
START_TEST(groups_share_a_launch)
{
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_KERNEL, sets[_i].groups, sets[_i].rows, 0);
	calls.columns_of_event = 1;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert_uint_eq(calls.events, LAYERS);
	mixed_close(&m, &s);
}
END_TEST

/* Without counters an event follows a kernel of its own stretch, whatever groups that has. */
START_TEST(groups_without_counters)
{
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_KERNEL, true);
	mixed_init(&m, sets[_i].groups, sets[_i].rows, 0);
	calls.columns_of_event = 1;
	ck_assert_int_gt(copy_all(&s, &m), 1);
	ck_assert_uint_eq(calls.events, LAYERS);
	/* Where nobody waits for a layer one is enough. */
	mixed_without_events(&m);
	ck_assert_int_eq(copy_all(&s, &m), 1);
	mixed_close(&m, &s);
}
END_TEST

static const struct {
	uint32_t groups, rows[OKV_MAX_GROUPS];
	int takes[LAYERS];
} stretches[] = {
	/* 128 KiB each: 256 KiB, 512 KiB, then 1 MiB at a time */
	{1, {32}, {2, 4, 8, 8, 2}},
	/* 4 KiB and 896 KiB in turn */
	{2, {1, 224}, {1, 1, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1}},
};

/* The caller hears of layers that become ready together: up to 1 MiB, by the rows of each, and the
 * first two times of less. */
START_TEST(stretches_by_bytes)
{
	static const uint32_t paths[] = {OKV_COPY_KERNEL, OKV_COPY_KERNEL, OKV_COPY_DMA};
	uint32_t set = (uint32_t)_i % 2, done = 0;
	struct stage s;
	struct mixed m;
	stage_init(&s, paths[_i / 2], true);
	if (_i / 2 == 0)
		stage_counters(&s);
	mixed_init(&m, stretches[set].groups, stretches[set].rows, 0);
	for (uint32_t n = 0; done < LAYERS; n++) {
		int taken = oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers + done, LAYERS - done,
					    NULL);
		ck_assert_int_eq(taken, stretches[set].takes[n]);
		done += (uint32_t)taken;
	}
	check_bytes(&m);
	mixed_close(&m, &s);
}
END_TEST

/* Nobody waits for a part of a copy without events: it is one stretch. */
START_TEST(one_stretch_without_events)
{
	static const uint32_t rows[] = {600};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, _i ? OKV_COPY_KERNEL : OKV_COPY_DMA, 1, rows, 0);
	mixed_without_events(&m);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers, LAYERS, NULL), LAYERS);
	check_bytes(&m);
	mixed_close(&m, &s);
}
END_TEST

/* Groups that were alone in a call may have taken all the room that rows have in a launch: then
 * each gets launches of its own; with the right rows however many there are. */
START_TEST(no_room_for_a_second_table)
{
	static const uint32_t counts[] = {10, 20, 40, 60, 72, 90, 130};
	bool apart = false;
	for (uint32_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		const uint32_t rows[] = {counts[i], counts[i] - 1};
		struct stage s;
		struct mixed m;
		mixed_open(&m, &s, OKV_COPY_KERNEL, 2, rows, 0);
		stage_copy_layers(&s, OKI_TO_PAGES, m.layers, 1);
		stage_copy_layers(&s, OKI_TO_PAGES, m.layers + 1, 1);
		apart |= copy_all(&s, &m) == LAYERS;
		mixed_close(&m, &s);
	}
	ck_assert(apart);
}
END_TEST

/* Layers of a hybrid model's groups alternate. Copy engines get those of one group together: a call
 * for each layer would take the CPU longer than the bytes take. */
START_TEST(groups_by_copy_engines_take_few_calls)
{
	static const uint32_t rows[] = {1, 1};
	const bool waits = _i & 1, together = _i & 2;
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_DMA, 2, rows, 0);
	if (together)
		one_tensor(&s.device, 0, UINTPTR_MAX);
	if (!waits)
		mixed_without_events(&m);
	copy_all(&s, &m);
	ck_assert_int_eq(calls.records, waits ? (int)LAYERS : 0);
	/* All of a group in one operation; 96 KiB are one stretch. */
	if (OKI_CUDA_HAS_BATCH || together)
		ck_assert_int_eq(calls.two + calls.batches, 2);
	ck_assert_int_eq(calls.two, together ? 2 : 0);
	mixed_close(&m, &s);
}
END_TEST

/* Many layers of one group and one of another in turn, all in one tensor: an operation spans no
 * layer of the other group. */
START_TEST(stacks_end_where_layers_are_missing)
{
	enum { EACH = LAYERS / 2 - 1 };
	static const uint32_t rows[] = {3, 3};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_DMA, 2, rows, 0);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	mixed_without_events(&m);
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint32_t g = l % (EACH + 1) == EACH;
		m.layers[l].runs = m.runs[g];
		m.layers[l].run_count = m.run_count[g];
	}
	copy_all(&s, &m);
	/* A row of its neighbours is a copy; of the other group's two, which are one stack, entries
	 * of one call are as cheap. */
	const int turns = LAYERS / (EACH + 1), few = 3;
	ck_assert_int_eq(calls.two, few * turns + (OKI_CUDA_HAS_BATCH ? 0 : few));
	ck_assert_int_eq(calls.batches, OKI_CUDA_HAS_BATCH);
	ck_assert_int_eq(calls.entries, OKI_CUDA_HAS_BATCH ? few * turns : 0);
	ck_assert_int_eq(calls.one, 0);
	mixed_close(&m, &s);
}
END_TEST

/* At one distance, but in two allocations: no copy may span both. */
START_TEST(stacks_end_with_their_tensor)
{
	enum { ROWS = 3 };
	static const uint32_t rows[] = {ROWS};
	const uint32_t left = 7 + (uint32_t)_i;
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_DMA, 1, rows, 0);
	const uintptr_t from = (uintptr_t)m.tensor, cut = from + left * ROWS * ROW;
	s.device.tensors[0] = (struct oki_cuda_tensor){from, cut};
	s.device.tensors[1] = (struct oki_cuda_tensor){cut, from + LAYERS * ROWS * ROW};
	s.device.tensor_count = 2;
	calls.cut = cut;
	mixed_without_events(&m);
	copy_all(&s, &m);
	ck_assert_int_eq(calls.two, 2 * ROWS);
	ck_assert_int_eq(calls.batches + calls.one, 0);
	mixed_close(&m, &s);
}
END_TEST

/* A call for each few layers would cost more than all their rows: what no copy spans shares a few.
 */
START_TEST(uneven_layers_share_a_batch)
{
	enum { ROWS = 3 };
	static const uint32_t rows[] = {ROWS};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_DMA, 1, rows, 0);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	mixed_without_events(&m);
	/* Two by two, with a gap in front of each pair. */
	struct oki_layer_copy layers[LAYERS];
	uint32_t count = 0;
	for (uint32_t l = 0; l < LAYERS; l++)
		if (l % 3)
			layers[count++] = m.layers[l];
	copy_layers(&s, layers, count);
	ck_assert_int_le(calls.batches, 3);
	ck_assert_int_eq(calls.entries, OKI_CUDA_HAS_BATCH ? (int)count * ROWS : 0);
	mixed_close(&m, &s);
}
END_TEST

/* One way for all, by what all of them have: a tidy group that would suit copy engines alone, and
 * one of scattered rows; whichever comes first, and whether somebody waits or not. */
START_TEST(groups_share_one_way)
{
	static const uint32_t rows[] = {200, 600};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, _i % 2 ? 2 : 1);
	for (uint32_t l = 0; l < LAYERS && _i >= 2; l++)
		m.layers[l].event = NULL;
	calls.columns_of_event = _i < 2 ? 1 : 0;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert(s.stream.by_kernel);
	ck_assert_uint_eq(calls.events, _i < 2 ? LAYERS : 0);
	/* Of pages nothing went by copy engines. */
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_PAGES]), 0);
	/* And all of it does where the kernel would wait. */
	oki_cuda_plans_forget(&s.stream);
	calls.columns_of_event = 0;
	memset(m.tensor, 0, (size_t)LAYERS * rows[1] * ROW);
	stage_wait(&s, 1e9);
	ck_assert_int_eq(copy_all(&s, &m), 0);
	ck_assert(!s.stream.by_kernel);
	mixed_close(&m, &s);
}
END_TEST

/* Layers of the tidy group alone, in a later call of the piece, go as the others did. */
START_TEST(a_group_alone_goes_along)
{
	static const uint32_t rows[] = {200, 600};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 1);
	ck_assert_int_eq(copy_all(&s, &m), 1);
	memset(m.pages[0], 0, (size_t)rows[0] * ROW);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert(s.stream.by_kernel);
	check_bytes(&m);
	/* In the next piece as suits it. */
	stage_mark(&s);
	memset(m.pages[0], 0, (size_t)rows[0] * ROW);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert(!s.stream.by_kernel);
	check_bytes(&m);
	mixed_close(&m, &s);
}
END_TEST

/* A group that was chosen for alone says nothing about the other one. */
START_TEST(a_late_group_is_chosen_for)
{
	static const uint32_t rows[] = {200, 600};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 1);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert(!s.stream.by_kernel);
	ck_assert_int_eq(oki_cuda_submit(&s.stream, OKI_TO_PAGES, m.layers + 1, 1, NULL), 1);
	ck_assert(s.stream.by_kernel);
	copy_all(&s, &m);
	ck_assert(s.stream.by_kernel);
	mixed_close(&m, &s);
}
END_TEST

/* Layers of a tensor, one after the other: no copy has rows of two groups. */
START_TEST(groups_in_one_tensor)
{
	static const uint32_t rows[] = {5, 60};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_DMA, 2, rows, (uint32_t)_i % 4);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	if (_i / 4)
		mixed_without_events(&m);
	ck_assert_int_eq(copy_all(&s, &m), 0);
	mixed_close(&m, &s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda groups");
	TCase *tcase = tcase_create("groups");
	const int all = sizeof(sets) / sizeof(sets[0]);
	tcase_add_loop_test(tcase, groups_share_a_launch, 0, all);
	tcase_add_loop_test(tcase, groups_without_counters, 0, all);
	tcase_add_loop_test(tcase, stretches_by_bytes, 0, 6);
	tcase_add_loop_test(tcase, one_stretch_without_events, 0, 2);
	tcase_add_loop_test(tcase, groups_by_copy_engines_take_few_calls, 0, 4);
	tcase_add_test(tcase, stacks_end_where_layers_are_missing);
	tcase_add_loop_test(tcase, stacks_end_with_their_tensor, 0, 3);
	tcase_add_test(tcase, uneven_layers_share_a_batch);
	tcase_add_test(tcase, no_room_for_a_second_table);
	tcase_add_loop_test(tcase, groups_share_one_way, 0, 4);
	tcase_add_test(tcase, a_group_alone_goes_along);
	tcase_add_test(tcase, a_late_group_is_chosen_for);
	tcase_add_loop_test(tcase, groups_in_one_tensor, 0, 8);
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
