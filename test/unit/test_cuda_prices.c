/* What decides by which way layers go, of several groups and of one, beside other operations. No
 * GPU: the driver's calls copy at once and count. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/unit/mixed_groups.h"
#include "support/suite.h"

/* Layers of so many pages, one after the other in one allocation and in blocks. */
static void in_one_tensor(struct oki_layer_map *maps, uint32_t count, uint8_t *pages,
			  uint32_t page_count, uint64_t row)
{
	for (uint64_t l = 0; l < count; l++)
		maps[l] = (struct oki_layer_map){.base = pages + l * page_count * row,
						 .page_stride = row,
						 .page_count = page_count,
						 .segment_count = 1,
						 .segments = {{0, l * row, row}}};
}

/* Neighbours of one group in one allocation: a copy that spans them is cheaper than the kernel,
 * also where layers of another group stand between. */
START_TEST(neighbours_of_a_group_are_one_copy)
{
	enum { ROWS = 64, EACH = 4, ALL = 10 };
	const uint64_t row = 32768, block = ALL * row;
	uint8_t *host = calloc(ROWS, block), *pages = calloc(ALL * ROWS, row);
	struct oki_run *runs[] = {scattered(host, block, ROWS), scattered(host, block, ROWS)};
	struct oki_layer_map maps[ALL];
	struct oki_layer_copy layers[ALL];
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.rates[0].copy_ns = 100;
	in_one_tensor(maps, ALL, pages, ROWS, row);
	for (uint32_t l = 0; l < ALL; l++)
		layers[l] =
			(struct oki_layer_copy){&maps[l], runs[l % (EACH + 1) == EACH], ROWS, NULL};
	ck_assert_int_eq(copy_layers(&s, layers, ALL), 1);
	oki_cuda_plans_forget(&s.stream);
	one_tensor(&s.device, (uintptr_t)pages, (uintptr_t)pages + ALL * ROWS * row);
	ck_assert_int_eq(copy_layers(&s, layers, ALL), 0);
	/* Twice four layers of one group, and the two of the other one. */
	ck_assert_int_eq(calls.two, 3 * ROWS);
	stage_fini(&s);
	free(runs[0]);
	free(runs[1]);
	free(host);
	free(pages);
}
END_TEST

/* As many as become ready together, of the group's own bytes: those of the layer before are no
 * measure. */
START_TEST(each_group_has_its_own_stretch)
{
	enum { MANY = 64, FEW = 8, ALL = 5 };
	const uint64_t row = 32768, block = ALL * row;
	uint8_t *host = calloc(MANY, block), *pages = calloc(ALL * MANY, row);
	struct oki_run *few = scattered(host, block, FEW);
	struct oki_run tidy = {
		.host = host, .host_pitch = block, .blocks = MANY, .page_pitch = 1, .inner = 1};
	struct oki_layer_map maps[ALL];
	struct oki_layer_copy layers[ALL];
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	s.device.rates[0].copy_ns = 100;
	s.device.rates[0].entry_least_ns = 3000;
	in_one_tensor(maps, ALL, pages, MANY, row);
	for (uint32_t l = 0; l < ALL; l++)
		layers[l] = (struct oki_layer_copy){&maps[l], l ? few : &tidy, l ? FEW : 1,
						    (CUevent)(uintptr_t)(l + 1)};
	/* By copy engines, if a copy may span the four layers of the second group. */
	ck_assert_int_eq(copy_layers(&s, layers, ALL), 0);
	stage_fini(&s);
	free(few);
	free(host);
	free(pages);
}
END_TEST

/* Of one tidy run: blocks so far apart, in one layer of two segments. */
static enum oki_cuda_way way_of(struct stage *s, enum oki_direction direction, uint64_t row,
				uint64_t pitch, double *ret_copy_ns)
{
	const struct oki_layer_map map = {.page_stride = row,
					  .segment_count = 2,
					  .segments = {{0, 0, row}, {1ull << 30, row, row}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {.host = (uint8_t *)(uintptr_t)(1ull << 40),
			      .host_pitch = pitch,
			      .blocks = 512,
			      .page_pitch = 1,
			      .inner = 1};
	struct oki_cuda_plan *plan = oki_cuda_plan_get(&s->stream, &run, 1);
	oki_cuda_plan_choose(&s->stream, direction, &plan, maps, 1, (uint32_t[]){1});
	enum oki_cuda_way way = oki_cuda_plan_way(plan);
	*ret_copy_ns = oki_cuda_copy_ns(&s->device.rates[direction], true, &map, &run);
	oki_cuda_plans_forget(&s->stream);
	return way;
}

/* Short rows from all over the host, as a tidy prompt of a small model has, are slow by copy
 * engines; rows that are neighbours, or long, are not. */
START_TEST(far_rows_cost_copy_engines_more)
{
	struct stage s;
	double near[2], far[2];
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.rates[0] = s.device.rates[1] = oki_cuda_default_rates;
	oki_cuda_rates_of_publish(&s.device.rates[OKI_TO_BLOCKS]);
	for (int d = 0; d < 2; d++) {
		enum oki_direction direction = (enum oki_direction)d;
		ck_assert_int_eq(way_of(&s, direction, 4096, 8192, &near[d]), OKI_CUDA_WAY_DMA);
		ck_assert_int_eq(way_of(&s, direction, 4096, 196608, &far[d]), OKI_CUDA_WAY_KERNEL);
		ck_assert(far[d] > 1.3 * near[d]);
		ck_assert_int_eq(way_of(&s, direction, 32768, 65536, &near[d]), OKI_CUDA_WAY_DMA);
		ck_assert_int_eq(way_of(&s, direction, 32768, 1 << 20, &far[d]), OKI_CUDA_WAY_DMA);
		ck_assert(far[d] == near[d]);
	}
	/* Rows of 16 tokens of 576 bytes. */
	way_of(&s, OKI_TO_PAGES, 9216, 562176, &far[0]);
	way_of(&s, OKI_TO_BLOCKS, 9216, 562176, &far[1]);
	ck_assert(far[1] > 1.4 * far[0]);
	/* Few of them cost the same wherever they lie: nobody looks at each such run. */
	const struct oki_layer_map map = {
		.page_stride = 8192, .segment_count = 1, .segments = {{0, 0, 4096}}};
	for (uint32_t blocks = 1; blocks <= 2 * OKI_CUDA_FEW_BLOCKS; blocks++) {
		struct oki_run run = {.blocks = blocks, .page_pitch = 1, .inner = 1};
		run.host_pitch = 8192;
		near[0] = oki_cuda_copy_ns(rates, true, &map, &run);
		run.host_pitch = 1 << 20;
		far[0] = oki_cuda_copy_ns(rates, true, &map, &run);
		ck_assert_int_eq(far[0] > near[0], blocks > OKI_CUDA_FEW_BLOCKS);
	}
	stage_fini(&s);
}
END_TEST

/* Two layers of short rows, which copies may span for little, say nothing of thirty others. */
START_TEST(odd_layers_first_are_no_measure)
{
	enum { ODD = 2, ALL = 32 };
	struct oki_layer_map maps[ALL];
	const struct oki_layer_map *pointers[ALL];
	struct oki_cuda_plan *plans[ALL];
	struct oki_run run = {.host = (uint8_t *)(uintptr_t)(1ull << 40),
			      .host_pitch = 1 << 20,
			      .blocks = 200,
			      .page_pitch = 1,
			      .inner = 1};
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.rates[0] = oki_cuda_default_rates;
	one_tensor(&s.device, 0, UINTPTR_MAX);
	for (uint64_t l = 0; l < ALL; l++) {
		uint64_t row = l < ODD ? 64 : 4096;
		maps[l] = (struct oki_layer_map){.base = (uint8_t *)(uintptr_t)((1 + l) << 24),
						 .page_stride = row,
						 .segment_count = 1,
						 .segments = {{0, l * 4096, row}}};
		pointers[l] = &maps[l];
		plans[l] = oki_cuda_plan_get(&s.stream, &run, 1);
	}
	oki_cuda_plan_choose(&s.stream, OKI_TO_PAGES, plans, pointers, ALL, (uint32_t[]){ALL});
	ck_assert_int_eq(oki_cuda_plan_way(plans[0]), OKI_CUDA_WAY_KERNEL);
	stage_fini(&s);
}
END_TEST

/* A group that was chosen before says nothing about another one. */
START_TEST(a_late_group_is_priced_alone)
{
	static const uint32_t rows[] = {600, 1024};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 2);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_KERNEL);
	/* Together both would go by both ways. */
	ck_assert_int_eq(
		oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + 1, LAYERS - 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_DMA);
	mixed_close(&m, &s);
}
END_TEST

/* What goes one way goes on so, if the other one gains little: the kernel has its SMs. */
START_TEST(a_small_gain_changes_no_way)
{
	static const uint32_t rows[] = {600, 64};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 2);
	for (int n = 0; n < 2; n++) {
		oki_cuda_plans_forget(&s.stream);
		if (n)
			ck_assert_int_eq(
				oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
		ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + 1, 1, NULL),
				 1);
		ck_assert_int_eq(s.stream.way, n ? OKI_CUDA_WAY_KERNEL : OKI_CUDA_WAY_DMA);
	}
	mixed_close(&m, &s);
}
END_TEST

/* A copy that spans layers spans no more than become ready together: with 256 KiB in each layer
 * four, whatever the first stretches have, and all of them where nobody waits. */
START_TEST(copies_span_a_stretch)
{
	static const uint32_t rows[] = {64};
	static const struct {
		double kernel; /* bytes in a nanosecond */
		bool waits;
		enum oki_cuda_way way;
	} cases[] = {
		{1, true, OKI_CUDA_WAY_KERNEL},
		{1, false, OKI_CUDA_WAY_DMA},
		{0.25, true, OKI_CUDA_WAY_DMA},
	};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 1, rows, 0);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	s.device.rates[OKI_TO_PAGES].copy_ns = 30e3;
	s.device.rates[OKI_TO_PAGES].entry_ns = 200e3;
	for (uint32_t i = 0; i < OKI_CUDA_SIZES; i++)
		s.device.rates[OKI_TO_PAGES].kernel[i] = cases[_i].kernel;
	if (!cases[_i].waits)
		mixed_without_events(&m);
	copy_all(&s, &m);
	ck_assert_int_eq(s.stream.way, cases[_i].way);
	mixed_close(&m, &s);
}
END_TEST

/* One copy may span layers of a tensor, but none has rows of two groups. */
START_TEST(groups_in_one_tensor)
{
	static const uint32_t rows[] = {64, 600};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 2, rows, 1);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	/* Nobody waits: all layers make a stretch. */
	mixed_without_events(&m);
	copy_all(&s, &m);
	ck_assert_int_ne(s.stream.way, OKI_CUDA_WAY_DMA);
	mixed_close(&m, &s);
}
END_TEST

/* Nor do an operation's own copies keep it waiting. */
START_TEST(own_copies_are_not_ahead)
{
	static const uint32_t rows[] = {1024};
	struct stage s;
	struct mixed m;
	mixed_open(&m, &s, OKV_COPY_AUTO, 1, rows, 1);
	copy_all(&s, &m);
	/* The next part, which chooses anew. */
	struct oki_run next = m.runs[0][0];
	m.layers[0].runs = &next;
	for (int other = 0; other < 2; other++) {
		if (other) {
			oki_cuda_plans_forget(&s.stream);
			atomic_store(&s.device.copying[OKI_TO_PAGES], LAYERS * 1024 * ROW);
		}
		ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
		ck_assert_int_eq(s.stream.way, other ? OKI_CUDA_WAY_KERNEL : OKI_CUDA_WAY_DMA);
	}
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
	atomic_store(&s.device.copying[OKI_TO_BLOCKS], 256u << 20);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_DMA);
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_PAGES]), 64 * ROW);
	oki_cuda_plans_forget(&s.stream);
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_PAGES]), 0);
	ck_assert_uint_eq(atomic_load(&s.device.copying[OKI_TO_BLOCKS]), 256u << 20);
	atomic_store(&s.device.copying[OKI_TO_PAGES], 256u << 20);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_KERNEL);
	mixed_close(&m, &s);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda prices");
	TCase *tcase = tcase_create("prices");
	tcase_add_test(tcase, neighbours_of_a_group_are_one_copy);
	tcase_add_test(tcase, each_group_has_its_own_stretch);
	tcase_add_test(tcase, far_rows_cost_copy_engines_more);
	tcase_add_test(tcase, odd_layers_first_are_no_measure);
	tcase_add_test(tcase, a_late_group_is_priced_alone);
	tcase_add_test(tcase, a_small_gain_changes_no_way);
	tcase_add_loop_test(tcase, copies_span_a_stretch, 0, 3);
	tcase_add_test(tcase, groups_in_one_tensor);
	tcase_add_test(tcase, own_copies_are_not_ahead);
	tcase_add_test(tcase, busy_engines_count_by_direction);
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
