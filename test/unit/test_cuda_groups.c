/* Layers of several groups in one copy call: what one launch has room for, the way they go, and
 * that each follows its own rows. No GPU: the driver's calls copy at once and count. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/device/copy_case.h"
#include "test/unit/fake_stage.h"
#include "support/suite.h"

#define ROW 4096u
#define LAYERS 24u

/* Groups in turn, layer by layer. A block of a group has a row of each of its layers. */
struct mixed {
	uint32_t groups;
	uint32_t rows[OKV_MAX_GROUPS];
	uint8_t *host[OKV_MAX_GROUPS];
	struct oki_run *runs[OKV_MAX_GROUPS];
	uint32_t run_count[OKV_MAX_GROUPS];
	uint8_t *tensor;
	uint8_t *pages[LAYERS]; /* in it, at one distance */
	struct oki_layer_map maps[LAYERS];
	struct oki_layer_copy layers[LAYERS];
};

/* tidy has a bit for each group whose rows are one run. */
static void mixed_init(struct mixed *m, uint32_t groups, const uint32_t *rows, uint32_t tidy)
{
	uint64_t seed = groups;
	*m = (struct mixed){.groups = groups};
	for (uint32_t g = 0; g < groups; g++) {
		const uint64_t block = (uint64_t)LAYERS * ROW;
		m->rows[g] = rows[g];
		m->host[g] = malloc(rows[g] * block);
		case_noise(&seed, m->host[g], rows[g] * block);
		m->runs[g] = scattered(m->host[g], block, rows[g]);
		m->run_count[g] = rows[g];
		if (!(tidy >> g & 1))
			continue;
		m->runs[g][0] = (struct oki_run){.host = m->host[g],
						 .host_pitch = block,
						 .blocks = rows[g],
						 .page_pitch = 1,
						 .inner = 1};
		m->run_count[g] = 1;
	}
	uint32_t most = 0;
	for (uint32_t g = 0; g < groups; g++)
		most = rows[g] > most ? rows[g] : most;
	m->tensor = calloc((size_t)LAYERS * most, ROW);
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint32_t g = l % groups;
		m->pages[l] = m->tensor + (size_t)l * most * ROW;
		m->maps[l] = (struct oki_layer_map){.base = m->pages[l],
						    .page_stride = ROW,
						    .page_count = m->rows[g],
						    .segment_count = 1,
						    .segments = {{0, (uint64_t)l * ROW, ROW}}};
		m->layers[l] = (struct oki_layer_copy){.map = &m->maps[l],
						       .runs = m->runs[g],
						       .run_count = m->run_count[g],
						       .event = (CUevent)(uintptr_t)(l + 1)};
	}
}

static void mixed_fini(struct mixed *m)
{
	for (uint32_t g = 0; g < m->groups; g++) {
		free(m->host[g]);
		free(m->runs[g]);
	}
	free(m->tensor);
}

static void check_bytes(const struct mixed *m)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t i = 0; i < m->layers[l].run_count; i++) {
			const struct oki_run *run = &m->layers[l].runs[i];
			for (uint32_t o = 0; o < run->blocks; o++)
				ck_assert(
					memcmp(m->pages[l] +
						       (run->page + o * run->page_pitch) * ROW,
					       run->host + o * run->host_pitch + (uint64_t)l * ROW,
					       ROW) == 0);
		}
}

/* Until every layer is taken. Returns the launches. */
static int copy_layers(struct stage *s, const struct oki_layer_copy *layers, uint32_t count)
{
	int launches = calls.launches;
	for (uint32_t done = 0; done < count;) {
		int taken = oki_cuda_ways_copy(&s->stream, OKI_TO_PAGES, layers + done,
					       count - done, NULL);
		ck_assert_int_ge(taken, 1);
		done += (uint32_t)taken;
		ck_assert_uint_le(done, count);
	}
	return calls.launches - launches;
}

static int copy_all(struct stage *s, const struct mixed *m)
{
	int launches = copy_layers(s, m->layers, LAYERS);
	check_bytes(m);
	return launches;
}

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
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	mixed_init(&m, sets[_i].groups, sets[_i].rows, 0);
	calls.columns_of_event = 1;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert_uint_eq(calls.events, LAYERS);
	stage_fini(&s);
	mixed_fini(&m);
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
	for (uint32_t l = 0; l < LAYERS; l++)
		m.layers[l].event = NULL;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	stage_fini(&s);
	mixed_fini(&m);
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
		int taken = oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + done,
					       LAYERS - done, NULL);
		ck_assert_int_eq(taken, stretches[set].takes[n]);
		done += (uint32_t)taken;
	}
	check_bytes(&m);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* Nobody waits for a part of a copy without events: it is one stretch. */
START_TEST(one_stretch_without_events)
{
	static const uint32_t rows[] = {600};
	struct stage s;
	struct mixed m;
	stage_init(&s, _i ? OKV_COPY_KERNEL : OKV_COPY_DMA, true);
	stage_counters(&s);
	mixed_init(&m, 1, rows, 0);
	for (uint32_t l = 0; l < LAYERS; l++)
		m.layers[l].event = NULL;
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, LAYERS, NULL),
			 LAYERS);
	check_bytes(&m);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* Groups that were alone in a call may have taken all the room that rows have in a launch: then
 * each gets launches of its own, with the right rows. */
START_TEST(no_room_for_a_second_table)
{
	static const uint32_t rows[] = {OKI_GATHER_INLINE_ROWS, OKI_GATHER_INLINE_ROWS - 1};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	mixed_init(&m, 2, rows, 0);
	for (uint32_t g = 0; g < 2; g++)
		ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + g, 1, NULL),
				 1);
	ck_assert_int_eq(copy_all(&s, &m), LAYERS);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* A group of long runs goes by copy engines beside the kernel that has the other one. */
START_TEST(each_group_by_its_own_way)
{
	static const uint32_t rows[] = {1024, 600};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	/* The long one first, or the other; layer by layer, or all at once as nobody waits. */
	mixed_init(&m, 2, rows, _i % 2 ? 2 : 1);
	for (uint32_t l = 0; l < LAYERS && _i >= 2; l++)
		m.layers[l].event = NULL;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_BOTH);
	ck_assert_int_eq(calls.two, LAYERS / 2);
	ck_assert_int_eq(calls.batches + calls.entries, 0);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* Layers of the long one alone, in a later call of the part: nothing is left for a kernel. */
START_TEST(a_group_of_long_runs_alone)
{
	static const uint32_t rows[] = {1024, 600};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 2, rows, 1);
	calls.columns_of_event = 1;
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_BOTH);
	calls.columns_of_event = 0;
	memset(m.pages[0], 0, rows[0] * ROW);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_DMA);
	ck_assert_int_eq(calls.launches, 1);
	check_bytes(&m);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* A launch that has no room for more leaves layers of long runs alone to the next one, which has
 * no row to copy and is there all the same: their events follow it. */
START_TEST(a_launch_without_rows)
{
	enum { SEGMENTS = 8, LONG = 600, ALL = 1 + OKI_GATHER_COLUMNS / SEGMENTS };
	const uint64_t block = (uint64_t)(ALL + 1) * ROW;
	uint8_t *host = malloc(LONG * block), *pages = calloc((ALL + 1) * LONG, ROW);
	struct oki_layer_map maps[ALL + 1];
	struct oki_layer_copy layers[ALL + 1];
	struct oki_run *few = scattered(host, block, 600);
	struct oki_run run = {
		.host = host, .host_pitch = block, .blocks = LONG, .page_pitch = 1, .inner = 1};
	struct stage s;
	uint64_t seed = 4;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.rates[0].copy_ns = 100;
	case_noise(&seed, host, LONG * block);
	for (uint32_t l = 0; l <= ALL; l++) {
		maps[l] = (struct oki_layer_map){.base = pages + (uint64_t)l * LONG * ROW,
						 .page_stride = ROW,
						 .page_count = LONG,
						 .segment_count = SEGMENTS};
		/* In the other order, or they would be joined. */
		for (uint32_t k = 0; k < SEGMENTS; k++)
			maps[l].segments[k] = (struct oki_segment_map){
				k * (ROW / SEGMENTS),
				l * ROW + (SEGMENTS - 1 - k) * (ROW / SEGMENTS), ROW / SEGMENTS};
		layers[l] = (struct oki_layer_copy){&maps[l], l ? &run : few, l ? 1 : 600,
						    (CUevent)(uintptr_t)(l + 1)};
	}
	calls.columns_of_event = SEGMENTS;
	ck_assert_int_eq(copy_layers(&s, layers, ALL + 1), 2);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_BOTH);
	ck_assert_uint_eq(calls.events, ALL + 1);
	for (uint32_t l = 1; l <= ALL; l++)
		for (uint32_t k = 0; k < SEGMENTS; k++)
			for (uint64_t r = 0; r < LONG; r++)
				ck_assert(
					memcmp(maps[l].base + r * ROW +
						       maps[l].segments[k].page_offset,
					       host + r * block + maps[l].segments[k].block_offset,
					       ROW / SEGMENTS) == 0);
	stage_fini(&s);
	free(host);
	free(pages);
	free(few);
}
END_TEST

/* One that was chosen to go by the kernel goes along with those of both kinds. */
START_TEST(chosen_apart_copied_together)
{
	static const uint32_t rows[] = {300, 1024, 600};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 3, rows, 2);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_KERNEL);
	ck_assert_int_eq(copy_layers(&s, m.layers + 1, 2), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_BOTH);
	ck_assert_int_eq(copy_all(&s, &m), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_BOTH);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* What was chosen for a group holds: a call ends where another way begins. */
START_TEST(ways_stay_as_they_were_chosen)
{
	static const uint32_t rows[] = {1024, 600};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 2, rows, 1);
	/* Each alone: copy engines, the kernel. */
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_DMA);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + 1, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_KERNEL);
	ck_assert_int_eq(copy_all(&s, &m), LAYERS / 2);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

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
	for (uint64_t l = 0; l < ALL; l++) {
		maps[l] = (struct oki_layer_map){.base = pages + l * ROWS * row,
						 .page_stride = row,
						 .page_count = ROWS,
						 .segment_count = 1,
						 .segments = {{0, l * row, row}}};
		layers[l] =
			(struct oki_layer_copy){&maps[l], runs[l % (EACH + 1) == EACH], ROWS, NULL};
	}
	ck_assert_int_eq(copy_layers(&s, layers, ALL), 1);
	oki_cuda_plans_forget(&s.stream);
	s.device.tensors[0] =
		(struct oki_cuda_tensor){(uintptr_t)pages, (uintptr_t)pages + ALL * ROWS * row};
	s.device.tensor_count = 1;
	ck_assert_int_eq(copy_layers(&s, layers, ALL), 0);
	ck_assert_int_eq(calls.two, 2 * ROWS);
	stage_fini(&s);
	free(runs[0]);
	free(runs[1]);
	free(host);
	free(pages);
}
END_TEST

/* A group that was chosen before says nothing about another one. */
START_TEST(a_late_group_is_priced_alone)
{
	static const uint32_t rows[] = {600, 1024};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 2, rows, 2);
	ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_KERNEL);
	/* Together both would go by both ways. */
	ck_assert_int_eq(
		oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + 1, LAYERS - 1, NULL), 1);
	ck_assert_int_eq(s.stream.way, OKI_CUDA_WAY_DMA);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* What goes one way goes on so, if the other one gains little: the kernel has its SMs. */
START_TEST(a_small_gain_changes_no_way)
{
	static const uint32_t rows[] = {600, 64};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 2, rows, 2);
	for (int n = 0; n < 2; n++) {
		oki_cuda_plans_forget(&s.stream);
		if (n)
			ck_assert_int_eq(
				oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers, 1, NULL), 1);
		ck_assert_int_eq(oki_cuda_ways_copy(&s.stream, OKI_TO_PAGES, m.layers + 1, 1, NULL),
				 1);
		ck_assert_int_eq(s.stream.way, n ? OKI_CUDA_WAY_KERNEL : OKI_CUDA_WAY_DMA);
	}
	stage_fini(&s);
	mixed_fini(&m);
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
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.tensors[0] = (struct oki_cuda_tensor){0, UINT64_MAX};
	s.device.tensor_count = 1;
	s.device.rates[OKI_TO_PAGES].copy_ns = 30e3;
	s.device.rates[OKI_TO_PAGES].entry_ns = 200e3;
	for (uint32_t i = 0; i < OKI_CUDA_SIZES; i++)
		s.device.rates[OKI_TO_PAGES].kernel[i] = cases[_i].kernel;
	mixed_init(&m, 1, rows, 0);
	for (uint32_t l = 0; l < LAYERS && !cases[_i].waits; l++)
		m.layers[l].event = NULL;
	copy_all(&s, &m);
	ck_assert_int_eq(s.stream.way, cases[_i].way);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* One copy may span layers of a tensor, but none has rows of two groups. */
START_TEST(groups_in_one_tensor)
{
	static const uint32_t rows[] = {64, 600};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	s.device.tensors[0] = (struct oki_cuda_tensor){0, UINT64_MAX};
	s.device.tensor_count = 1;
	mixed_init(&m, 2, rows, 1);
	/* Nobody waits: all layers make a stretch. */
	for (uint32_t l = 0; l < LAYERS; l++)
		m.layers[l].event = NULL;
	copy_all(&s, &m);
	ck_assert_int_ne(s.stream.way, OKI_CUDA_WAY_DMA);
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* Nor do an operation's own copies keep it waiting. */
START_TEST(own_copies_are_not_ahead)
{
	static const uint32_t rows[] = {1024};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 1, rows, 1);
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
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

/* Copy engines busy in the other direction keep nobody waiting. */
START_TEST(busy_engines_count_by_direction)
{
	static const uint32_t rows[] = {64};
	struct stage s;
	struct mixed m;
	stage_init(&s, OKV_COPY_AUTO, true);
	stage_counters(&s);
	mixed_init(&m, 1, rows, 1);
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
	stage_fini(&s);
	mixed_fini(&m);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda groups");
	TCase *tcase = tcase_create("groups");
	const int all = sizeof(sets) / sizeof(sets[0]);
	tcase_add_loop_test(tcase, groups_share_a_launch, 0, all);
	tcase_add_loop_test(tcase, groups_without_counters, 0, all);
	/* Copy engines take one group at a time. */
	tcase_add_loop_test(tcase, stretches_by_bytes, 0, 5);
	tcase_add_loop_test(tcase, one_stretch_without_events, 0, 2);
	tcase_add_test(tcase, no_room_for_a_second_table);
	tcase_add_loop_test(tcase, each_group_by_its_own_way, 0, 4);
	tcase_add_test(tcase, a_group_of_long_runs_alone);
	tcase_add_test(tcase, a_launch_without_rows);
	tcase_add_test(tcase, chosen_apart_copied_together);
	tcase_add_test(tcase, ways_stay_as_they_were_chosen);
	tcase_add_test(tcase, neighbours_of_a_group_are_one_copy);
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
