/* What is worked out once for the runs of an operation: counts, prices and tables. No GPU: the
 * driver's calls are replaced by ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/rect.h"
#include "test/device/copy_case.h"
#include "test/unit/fake_cuda.h"
#include "support/suite.h"

#define LAYERS 3u
#define RUNS 60u
#define FIRST_HOST ((uint8_t *)(uintptr_t)0x100000000)

static uint64_t seed;

static uint32_t below(uint32_t limit)
{
	return case_below(&seed, limit);
}

/* Runs as plans have them, of whole blocks or of parts of some, too; addresses only, nothing is
 * touched. */
static uint32_t draw_runs(struct oki_run *runs, uint64_t block, uint32_t pages)
{
	uint32_t count = 1 + below(RUNS), longest = below(3) ? 3 : 30;
	uint32_t odd = below(3) ? 0 : 1 + below(8), page = below(1000);
	uint8_t *host = FIRST_HOST;
	for (uint32_t i = 0; i < count; i++) {
		bool part = odd && below(odd + 1) == 0;
		struct oki_run run = {.host = host, .page = page, .blocks = 1 + below(longest)};
		run.inner = part ? 1 + below(pages) : pages;
		run.inner_first = below(pages - run.inner + 1);
		if (run.inner > 1)
			run.inner_step = part ? 1 + below(2) : 1;
		if (run.blocks > 1) {
			run.host_pitch = block * (1 + below(3));
			run.page_pitch = below(2) ? run.inner : 8 * (1 + below(3));
		}
		runs[i] = run;
		host += block * (100 + below(100));
		page += 1000;
	}
	return count;
}

/* ---- rows ---- */

static uint64_t plain_rows(const struct oki_device *device, const struct oki_run *runs,
			   uint32_t count, struct oki_gather_row *rows)
{
	uint64_t made = 0;
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t o = 0; o < runs[i].blocks; o++)
			for (uint32_t j = 0; j < runs[i].inner; j++) {
				const uint8_t *host = runs[i].host + o * runs[i].host_pitch;
				uint64_t shift = 0;
				for (uint32_t r = 0; r < device->reach_count; r++)
					if (host >= device->reach[r].base &&
					    host < device->reach[r].base + device->reach[r].bytes)
						shift = device->reach[r].shift;
				rows[made++] = (struct oki_gather_row){
					.host = (uintptr_t)host + shift,
					.page = runs[i].page + o * runs[i].page_pitch +
						j * runs[i].inner_step,
					.inner = runs[i].inner_first + j,
				};
			}
	return made;
}

/* Arenas, which runs lie in as a whole, or their pieces, which blocks do; and not a row too many.
 */
START_TEST(a_table_has_the_rows_of_its_runs)
{
	static struct oki_gather_row want[RUNS * 30 * 4];
	seed = 17;
	for (int n = 0; n < 3000; n++) {
		struct oki_run runs[RUNS];
		struct oki_cuda_reach reach[100];
		struct oki_device device = {.reach = reach, .in_pieces = n % 3 == 0};
		uint32_t count = draw_runs(runs, 4096, 1 + below(4));
		uint64_t bytes = device.in_pieces ? 4096 * 7 : 4096 * 100;
		device.reach_count = n % 5 ? 100 : 0;
		for (uint32_t r = 0; r < device.reach_count; r++) {
			reach[r].base = FIRST_HOST + r * bytes;
			reach[r].bytes = bytes;
			reach[r].shift = below(1000) * 65536;
		}
		/* Whole arenas are given one shift: no run leaves its own. */
		for (uint32_t r = 0; r < device.reach_count && !device.in_pieces; r++)
			reach[r].shift = reach[0].shift;
		uint64_t rows = plain_rows(&device, runs, count, want);
		ck_assert_uint_eq(rows, oki_cuda_table_rows(runs, count));
		struct oki_gather_row *got = malloc((rows + 1) * sizeof(*got));
		memset(got, 0xa5, (rows + 1) * sizeof(*got));
		struct oki_gather_row behind = got[rows];
		oki_cuda_table_fill(&device, runs, count, rows, got);
		ck_assert_int_eq(memcmp(got, want, rows * sizeof(*got)), 0);
		ck_assert_int_eq(memcmp(&got[rows], &behind, sizeof(behind)), 0);
		free(got);
	}
}
END_TEST

/* ---- prices ---- */

struct stage {
	struct oki_cuda_api api;
	struct oki_device device;
	struct oki_stream stream;
	struct oki_layer_map layers[LAYERS];
	const struct oki_layer_map *maps[LAYERS];
};

/* Layers of one or two segments that may fill their block, for one page, and may lie in one tensor.
 */
static void stage_init(struct stage *s, uint64_t bytes, uint32_t pages)
{
	memset(s, 0, sizeof(*s));
	s->api = fake(below(2));
	s->device.api = &s->api;
	s->device.path = OKV_COPY_AUTO;
	s->device.sms = 4;
	s->device.rates[0] = s->device.rates[1] = oki_cuda_default_rates;
	s->stream.device = &s->device;
	s->stream.counters = below(2) ? 1 : 0;
	if (below(2))
		one_tensor(&s->device, 0, UINTPTR_MAX);
	for (uint32_t i = 0; i < LAYERS; i++) {
		struct oki_layer_map *map = &s->layers[i];
		map->base = (uint8_t *)(uintptr_t)(0x7000000000 + i * 0x10000000ull);
		map->page_stride = bytes << below(2);
		map->segment_count = 1 + below(2);
		for (uint32_t g = 0; g < map->segment_count; g++)
			map->segments[g] = (struct oki_segment_map){
				.page_offset = g * bytes / map->segment_count,
				.block_offset = (i * map->segment_count + g) * pages * bytes /
						map->segment_count,
				.bytes = bytes / map->segment_count,
			};
		s->maps[i] = map;
	}
}

/* Every run at its own price, for every layer. Returns how many suit copy engines in the first. */
static uint32_t plain_load(const struct stage *s, const struct oki_run *runs, uint32_t count,
			   uint32_t layers, struct oki_cuda_load *ret_load)
{
	const struct oki_cuda_rates *r = &s->device.rates[0];
	bool batch = oki_cuda_has_batch(&s->api);
	struct oki_cuda_load load = {0};
	uint32_t long_count = 0;
	uint32_t span = oki_cuda_stackable(&s->device, s->maps, layers);
	double stack = 0, span_ns = 0;
	for (uint32_t i = 0; i < count; i++) {
		for (uint32_t m = 0; m < layers; m++) {
			struct oki_layer_map map = *s->maps[m];
			if (oki_run_is_joinable(&runs[i]))
				oki_join_segments(s->maps[m], &map);
			double dma = oki_cuda_copy_ns(r, batch, &map, &runs[i]), kernel = 0;
			for (uint32_t g = 0; g < map.segment_count; g++)
				kernel += oki_cuda_kernel_ns(r, oki_run_rows(&runs[i]),
							     map.segments[g].bytes);
			load.bytes += oki_run_rows(&runs[i]) * oki_layer_row_bytes(&map);
			load.dma_ns += dma;
			span_ns += m < span ? dma : 0;
			load.kernel_ns += kernel;
			load.long_dma_ns += dma <= kernel ? dma : 0;
			load.short_kernel_ns += dma <= kernel ? 0 : kernel;
			long_count += m == 0 && dma <= kernel;
		}
		stack += oki_cuda_stack_ns(r, batch, s->maps, span, &runs[i]);
	}
	if (span > 1 && stack < span_ns)
		load.dma_ns *= stack / span_ns;
	load.shared = s->stream.counters && long_count && long_count < count;
	*ret_load = load;
	return long_count;
}

static bool is_among(const struct oki_run *run, const struct oki_run *runs, uint32_t count)
{
	uint32_t i = 0;
	while (i < count && memcmp(run, &runs[i], sizeof(*run)) != 0)
		i++;
	return i < count;
}

/* All rows but those that go by copy engines, and whether segments may be joined. */
static void check_table(struct stage *s, struct oki_cuda_plan *plan, const struct oki_run *runs,
			uint32_t count)
{
	const struct oki_cuda_table *table;
	const struct oki_run *long_runs = NULL;
	uint64_t long_rows = 0;
	bool joinable = true;
	uint32_t long_count = oki_cuda_plan_long(plan, &long_runs, &long_rows);
	ck_assert_int_eq(oki_cuda_plan_table(&s->stream, plan, OKI_GATHER_INLINE_ROWS, &table),
			 CUDA_SUCCESS);
	for (uint32_t i = 0; i < count; i++)
		joinable = joinable && (oki_run_is_joinable(&runs[i]) ||
					is_among(&runs[i], long_runs, long_count));
	ck_assert_int_eq(table->joinable, joinable);
	ck_assert_uint_eq(oki_cuda_plan_kernel_rows(plan), table->count);
	ck_assert_uint_eq(table->count, oki_cuda_table_rows(runs, count) - long_rows);
}

/* Whatever is counted instead of looked at: the choice is that of every run's own price. */
START_TEST(counted_runs_cost_what_each_does)
{
	uint32_t ways[3] = {0};
	seed = 23;
	for (int n = 0; n < 5000; n++) {
		const uint64_t bytes = 256ull << below(11);
		struct oki_run runs[RUNS];
		struct stage s;
		struct oki_cuda_load load;
		const struct oki_run *long_runs;
		uint64_t long_rows, rows = 0;
		uint32_t layers = 1 + below(LAYERS), pages = below(4) + 1;
		/* Rows of two blocks touch, or do not. */
		uint64_t block = bytes * pages * layers + below(2) * 256;
		uint32_t count = draw_runs(runs, block, pages);
		stage_init(&s, bytes, pages);
		uint32_t want = plain_load(&s, runs, count, layers, &load);
		struct oki_cuda_plan *plan = oki_cuda_plan_get(&s.stream, runs, count);
		struct oki_cuda_plan *plans[LAYERS];
		for (uint32_t i = 0; i < layers; i++)
			plans[i] = plan;
		oki_cuda_plan_choose(&s.stream, 0, plans, s.maps, layers, &layers);
		enum oki_cuda_way way = oki_cuda_plan_way(plan);
		ck_assert_int_eq(way, oki_cuda_choose(&s.device.rates[0], &load));
		ck_assert_uint_eq(oki_cuda_plan_rows(plan), oki_cuda_table_rows(runs, count));
		ways[way]++;
		if (way == OKI_CUDA_WAY_BOTH) {
			ck_assert_uint_eq(oki_cuda_plan_long(plan, &long_runs, &long_rows), want);
			for (uint32_t i = 0; i < want; i++)
				rows += oki_run_rows(&long_runs[i]);
			ck_assert_uint_eq(long_rows, rows);
		}
		check_table(&s, plan, runs, count);
		oki_cuda_plans_forget(&s.stream);
		s.stream.counters = 0; /* nothing of ours */
		oki_cuda_chunks_free(&s.stream);
	}
	for (uint32_t w = 0; w < 3; w++)
		ck_assert_uint_gt(ways[w], 20);
}
END_TEST

/* A kernel counts its pieces in 32 bits, so of more rows it takes none. */
START_TEST(too_many_rows_have_no_choice)
{
	struct stage s;
	seed = 5;
	stage_init(&s, 4096, 1);
	s.device.path = OKV_COPY_KERNEL;
	for (uint32_t more = 0; more < 2; more++) {
		struct oki_run run = {.host = FIRST_HOST,
				      .host_pitch = 4096,
				      .blocks = OKI_CUDA_ROWS_MAX + more,
				      .page_pitch = 1,
				      .inner = 1};
		struct oki_cuda_plan *plan = oki_cuda_plan_get(&s.stream, &run, 1);
		oki_cuda_plan_choose(&s.stream, 0, &plan, s.maps, 1, (uint32_t[]){1});
		ck_assert_int_eq(oki_cuda_plan_way(plan),
				 more ? OKI_CUDA_WAY_DMA : OKI_CUDA_WAY_KERNEL);
		oki_cuda_plans_forget(&s.stream);
	}
}
END_TEST

/* Beside another plan's short ones, its long runs all go by copy engines: no row is left for the
 * kernel, and nothing keeps segments apart there. */
START_TEST(long_runs_leave_an_empty_table)
{
	const struct oki_layer_map map = {.base = (uint8_t *)(uintptr_t)0x7000000000,
					  .page_stride = 4096,
					  .segment_count = 1,
					  .segments = {{0, 0, 4096}}};
	const struct oki_layer_map *maps[] = {&map, &map};
	const struct oki_cuda_table *table;
	const struct oki_run *long_runs;
	uint64_t rows = 0;
	struct oki_run runs[2][RUNS];
	struct oki_cuda_plan *plans[2];
	struct stage s;
	stage_init(&s, 4096, 1);
	s.stream.counters = 1;
	for (uint32_t i = 0; i < RUNS; i++)
		runs[0][i] = (struct oki_run){.host = FIRST_HOST + i * 7 % RUNS * 4096,
					      .blocks = 1,
					      .page = i,
					      .inner = 1};
	runs[1][0] = (struct oki_run){.host = FIRST_HOST + RUNS * 4096ull,
				      .host_pitch = 4096,
				      .blocks = 2048,
				      .page_pitch = 1,
				      .inner = 1};
	plans[0] = oki_cuda_plan_get(&s.stream, runs[0], RUNS);
	plans[1] = oki_cuda_plan_get(&s.stream, runs[1], 1);
	oki_cuda_plan_choose(&s.stream, 0, plans, maps, 2, (uint32_t[]){1, 1});
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(oki_cuda_plan_way(plans[i]), OKI_CUDA_WAY_BOTH);
		ck_assert_int_eq(oki_cuda_plan_table(&s.stream, plans[i], RUNS, &table),
				 CUDA_SUCCESS);
		ck_assert_uint_eq(table->count, i ? 0 : RUNS);
		ck_assert(table->host && !table->device && table->joinable);
		ck_assert_uint_eq(oki_cuda_plan_long(plans[i], &long_runs, &rows), i);
	}
	ck_assert_ptr_eq(long_runs, runs[1]);
	ck_assert_uint_eq(rows, 2048);
	oki_cuda_plans_forget(&s.stream);
}
END_TEST

static struct oki_cuda_load even(uint64_t bytes, double dma_ns, double kernel_ns)
{
	return (struct oki_cuda_load){.bytes = bytes,
				      .dma_ns = dma_ns,
				      .kernel_ns = kernel_ns,
				      .short_kernel_ns = kernel_ns};
}

START_TEST(the_faster_way_is_chosen)
{
	/* One long run: nothing beats one copy. */
	struct oki_cuda_load load = even(64 << 20, 1.21e6, 1.32e6);
	load.long_dma_ns = load.dma_ns;
	load.short_kernel_ns = 0;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* 2,048 rows of 2 KiB: each would be a copy of its own. */
	load = even(4 << 20, 2048 * 740., 84e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	/* Nearly even: no SM is taken for so little. */
	load = even(4 << 20, 88e3, 82e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* Copy engines busy for someone else: a short copy does not queue behind that. */
	load = even(64 << 10, 4.2e3, 1.3e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load.ahead = 128 << 20;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load = even(1 << 30, 19.4e6, 21e6);
	load.ahead = 128 << 20;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* A kernel that waits for its SMs must be the faster by that, but for one that has them
	 * from the one before. */
	load = even(4 << 20, 2048 * 740., 84e3);
	load.wait_ns = 1.3e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.wait_ns = 1.5e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load.follows = true;
	load.last = OKI_CUDA_WAY_KERNEL;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.last = OKI_CUDA_WAY_DMA;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	/* Within an operation a small gain is not worth changing sides. */
	load = even(512 << 10, 22e3, 10.3e3);
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.follows = true;
	load.last = OKI_CUDA_WAY_DMA;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load = even(512 << 10, 12.5e3, 10.3e3);
	load.follows = true;
	load.last = OKI_CUDA_WAY_KERNEL;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	/* What an earlier operation did says nothing. */
	load = even(512 << 10, 14e3, 10.3e3);
	load.last = OKI_CUDA_WAY_KERNEL;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load.follows = true;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
}
END_TEST

START_TEST(both_ways_where_that_is_faster)
{
	/* Half in long runs, half in pieces: each by what suits it. */
	struct oki_cuda_load load = {.bytes = 64 << 20,
				     .dma_ns = 12e6,
				     .kernel_ns = 2.4e6,
				     .long_dma_ns = 0.61e6,
				     .short_kernel_ns = 1.2e6,
				     .shared = true};
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_BOTH);
	/* Its kernel waits for SMs like any other one. */
	load.wait_ns = 13e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
	load.wait_ns = 0;
	/* The slower half must be the faster by a fork, whichever that is. */
	load.long_dma_ns = 2.3985e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.long_dma_ns = 0.61e6;
	load.short_kernel_ns = 2.3985e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.short_kernel_ns = 1.2e6;
	/* It may be the only one that beats copy engines, or the kernel alone. */
	load.dma_ns = 2.3e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_BOTH);
	load.short_kernel_ns = 2.25e6;
	load.kernel_ns = 2.2e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.kernel_ns = 2.4e6;
	load.short_kernel_ns = 1.2e6;
	load.dma_ns = 12e6;
	/* Where that cannot be, the better one of the two. */
	load.shared = false;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_KERNEL);
	load.dma_ns = 2.3e6;
	ck_assert_int_eq(oki_cuda_choose(rates, &load), OKI_CUDA_WAY_DMA);
}
END_TEST

/* Calibration has the GPU's pages in its cache. */
START_TEST(a_publish_leaves_part_of_the_link)
{
	struct oki_cuda_rates measured = {.link = 56, .kernel = {40, 52, 49, 51}};
	oki_cuda_rates_of_publish(&measured);
	ck_assert(measured.kernel[0] == 40);
	for (uint32_t i = 1; i < OKI_CUDA_SIZES; i++)
		ck_assert(measured.kernel[i] == 49);
	ck_assert(measured.link == 56);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda plans");
	TCase *tc = tcase_create("plans");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_table_has_the_rows_of_its_runs);
	tcase_add_test(tc, counted_runs_cost_what_each_does);
	suite_add_tcase(suite, tc);
	tcase_add_test(tc, too_many_rows_have_no_choice);
	tcase_add_test(tc, long_runs_leave_an_empty_table);
	tcase_add_test(tc, the_faster_way_is_chosen);
	tcase_add_test(tc, both_ways_where_that_is_faster);
	tcase_add_test(tc, a_publish_leaves_part_of_the_link);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
