/* SPDX-License-Identifier: Apache-2.0 */
/* By which way layers are copied, and what follows what. No GPU: the driver's calls are replaced by
 * ones that copy at once and count. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_stage.h"
#include "support/suite.h"

#define ROW 4096u

/* Every path, both directions, tables that travel with the launch and such that do not. */
START_TEST(every_path_moves_the_same_bytes)
{
	uint64_t seed = 31 + (uint64_t)_i;
	struct stage s;
	stage_init(&s, (uint32_t)_i % 3, _i < 3);
	for (int n = 0; n < 200; n++) {
		struct copy_case c;
		case_generate(&c, &seed, n % 7 == 6 ? 40 : 1);
		enum oki_direction direction = n % 2 ? OKI_TO_PAGES : OKI_TO_BLOCKS;
		uint8_t *host = malloc(c.host_bytes), *want_host = malloc(c.host_bytes);
		uint8_t *pages = malloc(c.pages_bytes), *want_pages = malloc(c.pages_bytes);
		case_noise(&seed, host, c.host_bytes);
		case_noise(&seed, pages, c.pages_bytes);
		memcpy(want_host, host, c.host_bytes);
		memcpy(want_pages, pages, c.pages_bytes);
		case_place(&c, host, pages);
		case_expect(&c, host, direction, want_host, want_pages);
		const struct oki_layer_map *map = &c.map;
		for (int again = 0; again < 2; again++)
			stage_copy(&s, direction, &map, NULL, 1, c.runs, c.run_count);
		ck_assert_msg(memcmp(host, want_host, c.host_bytes) == 0 &&
				      memcmp(pages, want_pages, c.pages_bytes) == 0,
			      "case %d of seed %d", n, _i);
		oki_cuda_plans_forget(&s.stream);
		free(host);
		free(pages);
		free(want_host);
		free(want_pages);
	}
	ck_assert(_i % 3 != OKV_COPY_KERNEL || calls.one + calls.two + calls.batches > 0);
	ck_assert(_i % 3 == OKV_COPY_DMA ? calls.launches == 0 : calls.launches > 0);
	ck_assert_ptr_null(s.stream.chunks ? s.stream.chunks->next : NULL);
	stage_fini(&s);
}
END_TEST

/* Where the GPU sees an arena elsewhere, the kernel gets the GPU's addresses. */
START_TEST(the_kernel_gets_device_addresses)
{
	uint8_t *arena = malloc(4 * ROW), *alias = malloc(4 * ROW), page[ROW];
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	struct oki_cuda_mapping mappings[] = {
		{.base = (uint8_t *)1, .bytes = 64, .device_offset = 12345},
		{.base = arena, .bytes = 4 * ROW, .device_offset = (uint64_t)(alias - arena)},
	};
	s.device.mappings = mappings;
	s.device.mapping_count = 2;
	memset(arena, 1, 4 * ROW);
	memset(alias, 2, 4 * ROW);
	struct oki_layer_map map = {.base = page,
				    .page_stride = ROW,
				    .segment_count = 1,
				    .page_count = 1,
				    .segments = {{0, 0, ROW}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {.host = arena + 2 * ROW, .blocks = 1, .inner = 1};
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &run, 1);
	ck_assert_uint_eq(page[0], 2);
	stage_fini(&s);
	free(arena);
	free(alias);
}
END_TEST

#define MANY 5000u

/* So many scattered rows of 16 bytes. */
struct many {
	uint8_t *host, *pages;
	struct oki_run *runs;
	struct oki_layer_map map;
};

static void many_init(struct many *m)
{
	m->host = calloc(MANY, 64);
	m->pages = calloc(MANY, 64);
	m->runs = scattered(m->host, 64, MANY);
	m->map = (struct oki_layer_map){.base = m->pages,
					.page_stride = 16,
					.segment_count = 1,
					.page_count = MANY,
					.segments = {{0, 0, 16}}};
}

static void many_fini(struct many *m)
{
	free(m->runs);
	free(m->host);
	free(m->pages);
}

#if OKI_CUDA_HAS_BATCH
/* Engines begin with a call's entries once they have all of them: the first call of an operation is
 * short, and each is ready before the one before it is copied. */
START_TEST(copies_begin_soon)
{
	struct stage s;
	stage_init(&s, OKV_COPY_DMA, true);
	struct many m;
	many_init(&m);
	const struct oki_layer_map *maps[] = {&m.map};
	for (int round = 0; round < 2; round++) {
		calls.batches = calls.entries = 0;
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, m.runs, MANY);
		ck_assert_int_eq(calls.entries, MANY);
		ck_assert_int_le(calls.batches, 32);
		ck_assert_int_le(calls.batch[0], 64);
		int longest = calls.batch[calls.batches - 2];
		for (int n = 1; n < calls.batches; n++)
			ck_assert_int_le(calls.batch[n], 2 * calls.batch[n - 1]);
		ck_assert_int_ge(longest, 4 * calls.batch[0]);
		/* Behind that nothing is to begin. */
		calls.batches = 0;
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, m.runs, MANY);
		ck_assert_int_eq(calls.batch[0], longest);
		ck_assert_int_eq(calls.batches, ((int)MANY + longest - 1) / longest);
		/* The next operation. */
		oki_cuda_plans_forget(&s.stream);
	}
	stage_fini(&s);
	many_fini(&m);
}
END_TEST
#endif

/* The table is made with the first layer; the calls of later ones are the same for any rows. */
START_TEST(one_table_for_all_layers)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	struct many m;
	many_init(&m);
	const struct oki_layer_map *maps[] = {&m.map};
	for (uint32_t layer = 0; layer < 4; layer++) {
		m.map.base = m.pages + layer * MANY * 16;
		m.map.segments[0].block_offset = layer * 16;
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, m.runs, MANY);
	}
	ck_assert_int_eq(calls.launches, 4);
	ck_assert_int_eq(calls.one, 1);
	ck_assert_int_eq(calls.two + calls.batches, 0);
	ck_assert_uint_le(calls.blocks, 4);

	/* No room for a table: the copy still happens. */
	oki_cuda_plans_forget(&s.stream);
	oki_cuda_chunks_free(&s.stream);
	calls.no_memory = true;
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, m.runs, MANY);
	ck_assert_int_eq(calls.launches, 4);
	stage_fini(&s);
	many_fini(&m);
}
END_TEST

/* Pages of one layer that lie in a row on both sides. */
struct pages {
	uint8_t *host, *memory;
	struct oki_layer_map map;
	const struct oki_layer_map *maps[1];
	struct oki_run run;
};

static void pages_init(struct pages *p, uint32_t count, uint64_t row)
{
	p->host = calloc(count, row);
	p->memory = calloc(count, row);
	p->map = (struct oki_layer_map){.base = p->memory,
					.page_stride = row,
					.segment_count = 1,
					.page_count = count,
					.segments = {{0, 0, row}}};
	p->maps[0] = &p->map;
	p->run = (struct oki_run){
		.host = p->host, .host_pitch = row, .blocks = count, .page_pitch = 1, .inner = 1};
}

static void pages_fini(struct pages *p)
{
	free(p->host);
	free(p->memory);
}

/* The first kernel follows the stream; each later one starts as the one before it ends. */
START_TEST(kernels_overlap_at_their_ends)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	struct pages p;
	pages_init(&p, 16, 256u << 10);
	for (uint32_t n = 0; n < 5; n++) {
		uint32_t before = s.stream.counts[0];
		stage_copy(&s, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1);
		ck_assert_int_eq(calls.gates, (int)n);
		if (n > 0)
			ck_assert_uint_eq(calls.gate, before);
		if (n > 0)
			ck_assert_ptr_eq(calls.gated, calls.queue);
		ck_assert_uint_eq(s.stream.counts[0] - before, calls.blocks * calls.threads / 32);
	}
	/* The lane follows fork; the stream follows the lane before its mark, and not sooner.
	 */
	ck_assert_int_eq(calls.records, 1);
	ck_assert_int_eq(calls.waits, 1);
	for (int n = 0; n < 2; n++) {
		ck_assert_int_eq(oki_cuda_join(&s.stream), CUDA_SUCCESS);
		ck_assert_int_eq(calls.records, 2);
		ck_assert_int_eq(calls.waits, 2);
		ck_assert_ptr_eq(calls.awaited, POINT);
	}
	/* The next user's first kernel follows that user's fences. */
	oki_cuda_plans_forget(&s.stream);
	stage_copy(&s, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1);
	ck_assert_int_eq(calls.gates, 4);
	ck_assert_int_eq(calls.records, 2 + 1);
	/* After a kernel that is all last pieces no gate is needed. */
	p.run.blocks = 2;
	oki_cuda_plans_forget(&s.stream);
	for (int n = 0; n < 3; n++)
		stage_copy(&s, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1);
	ck_assert_int_eq(calls.gates, 4);
	stage_fini(&s);
	pages_fini(&p);
}
END_TEST

/* Kernels that use the same counters and tickets never overlap, however short they are and whatever
 * the gate lets through: each is in one stream with the one before the last. */
START_TEST(never_three_kernels)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	struct pages p;
	pages_init(&p, 16, 64);
	uint32_t *tickets[4];
	CUstream queues[4];
	for (int n = 0; n < 4; n++) {
		stage_copy(&s, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1);
		tickets[n] = calls.tickets;
		queues[n] = calls.queue;
	}
	ck_assert_ptr_eq(tickets[0], tickets[2]);
	ck_assert_ptr_eq(tickets[1], tickets[3]);
	ck_assert_ptr_ne(tickets[0], tickets[1]);
	ck_assert_ptr_eq(queues[0], s.stream.stream);
	ck_assert_ptr_eq(queues[1], s.stream.lane);
	ck_assert_ptr_eq(queues[2], s.stream.stream);
	ck_assert_ptr_eq(queues[3], s.stream.lane);
	stage_fini(&s);
	pages_fini(&p);
}
END_TEST

/* A mark is behind all kernels, and none waits for it: it is beside them. */
START_TEST(marks_hold_up_no_kernel)
{
	const CUevent mark = (CUevent)(uintptr_t)3000;
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	struct pages p;
	pages_init(&p, 16, 64);
	for (int n = 0; n < 6; n++) {
		stage_copy(&s, OKI_TO_PAGES, p.maps, NULL, 1, &p.run, 1);
		ck_assert_int_eq(oki_cuda_record(&s.stream, mark), CUDA_SUCCESS);
		ck_assert_ptr_eq(calls.recorded, n ? SIDE : STREAM);
		ck_assert_int_eq(calls.stream_waits, 0);
	}
	/* Another one has nothing more to follow. */
	int waits = calls.waits;
	ck_assert_int_eq(oki_cuda_record(&s.stream, mark), CUDA_SUCCESS);
	ck_assert_int_eq(calls.waits, waits);
	/* The stream's next user has nothing beside it. */
	oki_cuda_plans_forget(&s.stream);
	ck_assert_int_eq(oki_cuda_record(&s.stream, mark), CUDA_SUCCESS);
	ck_assert_ptr_eq(calls.recorded, STREAM);
	stage_fini(&s);
	pages_fini(&p);
}
END_TEST

/* Parts of one operation have blocks of the same layers: the first kernel of each part follows all
 * of the part before, or a layer's event could come before that part's bytes. */
START_TEST(parts_follow_each_other)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	const uint64_t row = 256u << 10;
	uint8_t *host = calloc(32, row), *pages = calloc(32, row);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = row,
				    .segment_count = 1,
				    .page_count = 32,
				    .segments = {{0, 0, row}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run parts[3];
	for (uint32_t p = 0; p < 3; p++) {
		parts[p] = (struct oki_run){.host = host,
					    .host_pitch = row,
					    .blocks = 16,
					    .page = p,
					    .page_pitch = 1,
					    .inner = 1};
		int gates = calls.gates;
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &parts[p], 1);
		ck_assert_ptr_eq(calls.queue, s.stream.stream);
		ck_assert_ptr_eq(calls.before_launch, p ? POINT : NULL);
		ck_assert_int_eq(calls.gates, gates);
		/* Within the part they overlap. */
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &parts[p], 1);
		ck_assert_ptr_ne(calls.queue, s.stream.stream);
	}
	stage_fini(&s);
	free(host);
	free(pages);
}
END_TEST

/* A plan that had no room for its table copied by engines; meanwhile another one launched kernels.
 * Its own first kernel still follows the table. */
START_TEST(a_late_table_comes_before_its_kernel)
{
	struct stage s;
	stage_init(&s, OKV_COPY_KERNEL, true);
	stage_counters(&s);
	ck_assert_int_eq(oki_cuda_chunks_init(&s.stream), CUDA_SUCCESS);
	const uint64_t row = 512;
	const uint32_t rows = 8192;
	uint8_t *host = calloc(rows, row), *pages = calloc(rows, row);
	struct oki_layer_map map = {.base = pages,
				    .page_stride = row,
				    .segment_count = 1,
				    .page_count = rows,
				    .segments = {{0, 0, row}}};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run *runs = scattered(host, row, rows);
	struct oki_run other = {.host = host, .blocks = 1, .inner = 1};
	calls.no_memory = true;
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, rows);
	ck_assert_int_eq(calls.launches, 0);
	ck_assert(!s.stream.by_kernel);
	calls.no_memory = false;
	for (int n = 0; n < 2; n++)
		stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, &other, 1);
	ck_assert_ptr_ne(calls.queue, STREAM);
	stage_copy(&s, OKI_TO_PAGES, maps, NULL, 1, runs, rows);
	ck_assert_int_eq(calls.launches, 3);
	ck_assert_ptr_eq(calls.queue, STREAM);
	stage_fini(&s);
	free(runs);
	free(host);
	free(pages);
}
END_TEST

/* ---- which way, and for how long ---- */

/* Blocks of one layer, tidy or anywhere: the first suit copy engines, the others the kernel. */
struct choice {
	struct stage s;
	struct pages p;
	struct oki_run *runs;
};

#define CHOICE_ROWS 256u
#define CHOICE_ROW 8192u

static void choice_init(struct choice *c)
{
	uint64_t seed = 5;
	stage_init(&c->s, OKV_COPY_AUTO, true);
	stage_counters(&c->s);
	pages_init(&c->p, CHOICE_ROWS, CHOICE_ROW);
	case_noise(&seed, c->p.host, CHOICE_ROWS * CHOICE_ROW);
	c->runs = scattered(c->p.host, CHOICE_ROW, CHOICE_ROWS);
}

static void choice_fini(struct choice *c)
{
	stage_fini(&c->s);
	pages_fini(&c->p);
	free(c->runs);
}

static bool is_by_kernel(const struct choice *c)
{
	bool right = true;
	for (uint32_t i = 0; i < CHOICE_ROWS; i++)
		right = right && memcmp(c->p.memory + (uint64_t)c->runs[i].page * CHOICE_ROW,
					c->runs[i].host, CHOICE_ROW) == 0;
	ck_assert(right);
	memset(c->p.memory, 0, CHOICE_ROWS * CHOICE_ROW);
	return c->s.stream.by_kernel;
}

/* Scattered blocks, which wait for no SM or for long. */
static bool copy_scattered(struct choice *c, double wait_ns)
{
	int launches = calls.launches;
	stage_wait(&c->s, wait_ns);
	stage_copy(&c->s, OKI_TO_PAGES, c->p.maps, NULL, 1, c->runs, CHOICE_ROWS);
	ck_assert_int_eq(calls.launches > launches, c->s.stream.by_kernel);
	return is_by_kernel(c);
}

/* From runs to a choice: a tidy tensor, a shuffled one; and one behind the other. */
START_TEST(runs_decide)
{
	struct choice c;
	choice_init(&c);
	stage_copy(&c.s, OKI_TO_PAGES, c.p.maps, NULL, 1, &c.p.run, 1);
	ck_assert_int_eq(calls.launches, 0);
	ck_assert(memcmp(c.p.memory, c.p.host, CHOICE_ROWS * CHOICE_ROW) == 0);
	ck_assert_uint_eq(atomic_load(&c.s.device.copying[OKI_TO_PAGES]), CHOICE_ROWS * CHOICE_ROW);
	uint64_t bytes = calls.bytes;
	ck_assert(copy_scattered(&c, 0));
	/* All but its table, which is a copy too. */
	ck_assert_uint_eq(calls.bytes - bytes, CHOICE_ROWS * sizeof(struct oki_gather_row));
	ck_assert_uint_eq(atomic_load(&c.s.device.copying[OKI_TO_PAGES]), CHOICE_ROWS * CHOICE_ROW);
	choice_fini(&c);
}
END_TEST

#define LONG_WAIT_NS 1e8

/* Whatever is found meanwhile, its layers go one way until the piece ends. */
START_TEST(a_way_holds_for_a_piece)
{
	struct choice c;
	choice_init(&c);
	for (int n = 0; n < 6; n++) {
		bool kernel = n % 2 == 0;
		/* The first call of a piece decides, */
		ck_assert_int_eq(copy_scattered(&c, kernel ? 0 : LONG_WAIT_NS), kernel);
		/* and not what the others find, */
		for (int other = 0; other < 3; other++)
			ck_assert_int_eq(copy_scattered(&c, kernel ? LONG_WAIT_NS : 0), kernel);
		/* nor is a caller's event an end. */
		ck_assert_int_eq(oki_device_cuda.record_event(&c.s.stream, MARK, NULL), 0);
		ck_assert_int_eq(copy_scattered(&c, kernel ? LONG_WAIT_NS : 0), kernel);
		stage_mark(&c.s);
	}
	choice_fini(&c);
}
END_TEST

/* Other runs are another part or another group, and the next operation is another one. */
START_TEST(other_runs_choose_anew)
{
	struct choice c;
	choice_init(&c);
	ck_assert(copy_scattered(&c, 0));
	stage_wait(&c.s, LONG_WAIT_NS);
	stage_copy(&c.s, OKI_TO_PAGES, c.p.maps, NULL, 1, c.runs, CHOICE_ROWS / 2);
	ck_assert(!c.s.stream.by_kernel);
	ck_assert(!copy_scattered(&c, 0));
	oki_cuda_plans_forget(&c.s.stream);
	ck_assert(copy_scattered(&c, 0));
	oki_cuda_plans_forget(&c.s.stream);
	ck_assert(!copy_scattered(&c, LONG_WAIT_NS));
	choice_fini(&c);
}
END_TEST

/* By engines and by the kernel in turns, piece by piece: each follows all of the other one. */
START_TEST(engines_and_kernels_in_turns)
{
	struct choice c;
	choice_init(&c);
	for (int n = 0; n < 4; n++) {
		/* One kernel, or two, the second of which is in the lane. */
		bool two = n % 2;
		for (int k = 0; k <= two; k++)
			ck_assert(copy_scattered(&c, 0));
		ck_assert_ptr_eq(calls.queue, two ? c.s.stream.lane : STREAM);
		/* Then their mark is beside them, and nothing waits for it yet. */
		int waits = calls.stream_waits;
		stage_mark(&c.s);
		ck_assert_ptr_eq(calls.recorded, two ? SIDE : STREAM);
		ck_assert_int_eq(calls.stream_waits, waits);
		/* The stream waits for them before it copies, and then no more. */
		ck_assert(!copy_scattered(&c, LONG_WAIT_NS));
		ck_assert_int_eq(calls.stream_waits > waits, two);
		ck_assert(!c.s.stream.side_open && !c.s.stream.lane_open);
		waits = calls.stream_waits;
		ck_assert(!copy_scattered(&c, LONG_WAIT_NS));
		ck_assert_int_eq(calls.stream_waits, waits);
		stage_mark(&c.s);
		ck_assert_ptr_eq(calls.recorded, STREAM);
		/* The next kernel is behind those copies, and forks what follows. */
		int gates = calls.gates;
		ck_assert(copy_scattered(&c, 0));
		ck_assert_ptr_eq(calls.queue, STREAM);
		ck_assert_ptr_eq(calls.recorded, STREAM);
		ck_assert_int_eq(calls.gates, gates);
		oki_cuda_plans_forget(&c.s.stream);
	}
	choice_fini(&c);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda ways to copy");
	TCase *tc = tcase_create("ways");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, every_path_moves_the_same_bytes, 0, 6);
	tcase_add_test(tc, the_kernel_gets_device_addresses);
#if OKI_CUDA_HAS_BATCH
	tcase_add_test(tc, copies_begin_soon);
#endif
	tcase_add_test(tc, one_table_for_all_layers);
	tcase_add_test(tc, kernels_overlap_at_their_ends);
	tcase_add_test(tc, never_three_kernels);
	tcase_add_test(tc, marks_hold_up_no_kernel);
	tcase_add_test(tc, engines_and_kernels_in_turns);
	tcase_add_test(tc, parts_follow_each_other);
	tcase_add_test(tc, a_late_table_comes_before_its_kernel);
	tcase_add_test(tc, runs_decide);
	tcase_add_test(tc, a_way_holds_for_a_piece);
	tcase_add_test(tc, other_runs_choose_anew);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
