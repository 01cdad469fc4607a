/* SPDX-License-Identifier: Apache-2.0 */
/* What decides which way copies go: their rows and operations, what else goes on, and what of a
 * call is counted. No GPU: the driver's calls copy at once and count. */
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

START_TEST(by_rows_and_operations)
{
	/* One range; its two halves; one row, however short. */
	ck_assert(suits_engines(MIB(64), MIB(64), 1, &idle));
	ck_assert(suits_engines(MIB(64), MIB(32), 1, &idle));
	ck_assert(suits_engines(64, 64, 1, &idle));
	/* Many long rows anywhere, and one tidy layer of short ones. */
	ck_assert(suits_engines(MIB(512), MIB(1), 1, &idle));
	ck_assert(suits_engines(MIB(16), KIB(4), 4096, &idle));
	/* Many rows of no great length, in long 2-D copies and anywhere. */
	ck_assert(suits_engines(MIB(512), KIB(64), 256, &idle));
	ck_assert(!suits_engines(MIB(512), KIB(64), 1, &idle));
	/* Thousands of short ones, anywhere and tidy. */
	ck_assert(!suits_engines(MIB(8), KIB(2), 1, &idle));
	ck_assert(!suits_engines(MIB(512), KIB(2), 1024, &idle));
}
END_TEST

/* Where each row is a call of its own it must be a long one. */
START_TEST(by_the_driver)
{
	struct oki_cuda_beside old = idle;
	old.batch = false;
	ck_assert(suits_engines(MIB(512), KIB(256), 1, &idle));
	ck_assert(!suits_engines(MIB(512), KIB(256), 1, &old));
	ck_assert(suits_engines(MIB(512), MIB(8), 1, &old));
	ck_assert(suits_engines(MIB(64), MIB(64), 1, &old));
}
END_TEST

/* Copy engines wait for no SM. */
START_TEST(while_sms_are_held)
{
	static const uint64_t rows[] = {KIB(4), KIB(16), KIB(64), MIB(1)};
	for (uint32_t i = 0; i < 4; i++)
		ck_assert(suits_engines(MIB(1), rows[i], 1, &held));
	ck_assert(suits_engines(MIB(512), KIB(64), 1, &held));
	ck_assert(suits_engines(MIB(64), MIB(64), 1, &held));
	/* For so many entries the kernel may wait a while, and for any but a few if that is short.
	 */
	ck_assert(!suits_engines(MIB(64), KIB(2), 1, &held));
	struct oki_cuda_beside briefly = held;
	briefly.wait_ns = 50000;
	ck_assert(!suits_engines(MIB(1), KIB(2), 1, &briefly));
	ck_assert(suits_engines(KIB(2), KIB(2), 1, &briefly));
	/* That they are busy as well changes nothing: an SM may come much later. */
	for (uint32_t i = 0; i < 4; i++)
		ck_assert(suits_engines(MIB(1), rows[i], 1, &both));
}
END_TEST

/* A short copy does not queue behind somebody's long ones; a long one has to share the link. */
START_TEST(while_engines_are_busy)
{
	ck_assert(suits_engines(MIB(1), MIB(1), 1, &idle));
	ck_assert(!suits_engines(MIB(1), MIB(1), 1, &busy));
	ck_assert(!suits_engines(KIB(2), KIB(2), 1, &busy));
	ck_assert(suits_engines(MIB(64), MIB(64), 1, &busy));
	ck_assert(!suits_engines(MIB(64), KIB(2), 1, &busy));
}
END_TEST

/* Whatever there is to copy, more of the same, or longer rows, never speak against copy engines on
 * an idle GPU, nor do SMs that are held. */
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
				if (b == 0 && suits_engines(bytes, row, 1, &idle) && row >= KIB(64))
					ck_assert(suits_engines(bytes, row, 1, &held));
			}
		}
	}
}
END_TEST

/* ---- what is counted ---- */

/* A new operation, whose first call chooses. */
static bool kernel_has(struct stage *s, const struct oki_layer_copy *layers, uint32_t count)
{
	oki_cuda_plans_forget(&s->stream);
	copy_layers(s, layers, count);
	return s->stream.by_kernel;
}

/* Layers of one group in one allocation: a copy that spans them makes few operations, also where
 * layers of another group stand between. */
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

/* Pages for layers with rows of their own lengths, one after the other in blocks and pages. */
struct stacked {
	uint32_t layers;
	uint8_t *host, *pages;
	struct oki_layer_map maps[OKI_JOIN_MAX];
	struct oki_layer_copy copies[OKI_JOIN_MAX];
};

static void stacked_init(struct stacked *k, uint32_t layers, const uint64_t *rows, uint32_t pages,
			 const struct oki_run *runs, uint32_t run_count)
{
	uint64_t block = 0, at = 0;
	for (uint32_t l = 0; l < layers; l++)
		block += rows[l];
	k->layers = layers;
	k->host = calloc(pages, block);
	k->pages = calloc(pages, block);
	for (uint32_t l = 0; l < layers; l++) {
		k->maps[l] = (struct oki_layer_map){.base = k->pages + at * pages,
						    .page_stride = rows[l],
						    .page_count = pages,
						    .segment_count = 1,
						    .segments = {{0, at, rows[l]}}};
		k->copies[l] = (struct oki_layer_copy){&k->maps[l], runs, run_count, NULL};
		at += rows[l];
	}
}

static void stacked_fini(struct stacked *k)
{
	free(k->host);
	free(k->pages);
}

/* Every layer has an event, or none has. */
static void stacked_events(struct stacked *k, bool some)
{
	for (uint32_t l = 0; l < k->layers; l++)
		k->copies[l].event = some ? (CUevent)(uintptr_t)(l + 1) : NULL;
}

/* A copy spans no more layers than become ready together: of a few rows in many layers that is all
 * of them where nobody waits, and else an operation for each row of each stretch. */
START_TEST(copies_span_a_stretch)
{
	enum { ALL = 64 };
	uint64_t rows[ALL];
	struct oki_run runs[2] = {{.blocks = 1, .inner = 1}, {.blocks = 1, .inner = 1, .page = 1}};
	struct stacked k;
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	for (uint32_t l = 0; l < ALL; l++)
		rows[l] = 100000;
	stacked_init(&k, ALL, rows, 2, runs, 2);
	runs[0].host = k.host + ALL * rows[0];
	runs[1].host = k.host;
	ck_assert(!kernel_has(&s, k.copies, ALL));
	stacked_events(&k, true);
	ck_assert(kernel_has(&s, k.copies, ALL));
	stacked_fini(&k);
	stage_fini(&s);
}
END_TEST

/* As many as become ready together, of the group's own bytes: those of the layer before are no
 * measure. */
START_TEST(each_group_has_its_own_stretch)
{
	enum { FEW = 16, MANY = 256 };
	const uint64_t row = 16384;
	uint64_t rows[1 + FEW];
	struct oki_run tidy = {.blocks = MANY, .page_pitch = 1, .inner = 1};
	struct oki_run one = {.blocks = 1, .inner = 1};
	struct stacked k;
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	for (uint32_t l = 0; l <= FEW; l++)
		rows[l] = row;
	stacked_init(&k, 1 + FEW, rows, MANY, &one, 1);
	tidy.host = one.host = k.host;
	tidy.host_pitch = (1 + FEW) * row;
	k.copies[0].runs = &tidy;
	stacked_events(&k, true);
	ck_assert(!kernel_has(&s, k.copies, 1 + FEW));
	/* Its layers apart are operations each. */
	s.device.tensor_count = 0;
	ck_assert(kernel_has(&s, k.copies, 1 + FEW));
	stacked_fini(&k);
	stage_fini(&s);
}
END_TEST

/* Two layers with other rows, the first ones, say nothing of thirty others. */
START_TEST(odd_layers_first_are_no_measure)
{
	static const struct {
		uint64_t odd, others;
		bool kernel;
	} cases[] = {{64, 2048, true}, {KIB(256), KIB(4), true}, {KIB(1), KIB(512), false}};
	enum { ODD = 2, ALL = 32, PAGES = 16 };
	uint64_t rows[ALL];
	struct oki_run *runs;
	struct stacked k;
	struct stage s;
	stage_init(&s, OKV_COPY_AUTO, true);
	calls.blind = true;
	stage_counters(&s);
	one_tensor(&s.device, 0, UINTPTR_MAX);
	for (uint32_t l = 0; l < ALL; l++)
		rows[l] = l < ODD ? cases[_i].odd : cases[_i].others;
	stacked_init(&k, ALL, rows, PAGES, NULL, PAGES);
	runs = scattered(k.host, ODD * cases[_i].odd + (ALL - ODD) * cases[_i].others, PAGES);
	for (uint32_t l = 0; l < ALL; l++)
		k.copies[l].runs = runs;
	ck_assert_int_eq(kernel_has(&s, k.copies, ALL), cases[_i].kernel);
	free(runs);
	stacked_fini(&k);
	stage_fini(&s);
}
END_TEST

/* ---- what else goes on ---- */

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
	tcase_add_test(tcase, by_rows_and_operations);
	tcase_add_test(tcase, by_the_driver);
	tcase_add_test(tcase, while_sms_are_held);
	tcase_add_test(tcase, while_engines_are_busy);
	tcase_add_test(tcase, longer_rows_suit_engines_more);
	tcase_add_test(tcase, neighbours_of_a_group_are_one_copy);
	tcase_add_test(tcase, copies_span_a_stretch);
	tcase_add_test(tcase, each_group_has_its_own_stretch);
	tcase_add_loop_test(tcase, odd_layers_first_are_no_measure, 0, 3);
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
