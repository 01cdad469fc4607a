/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Runs are exactly those of the rules, whatever way the compiler takes to them. */
#include "compile_fixture.h"
#include "support/suite.h"

/* ---- the same by the rules alone, without any of the short cuts ---- */

struct part {
	uint64_t region, first, inner, step, page, host; /* compared in this order */
};

static int compare_parts(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	for (size_t i = 0; i < sizeof(struct part) / sizeof(*x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

struct step {
	uint64_t host, page; /* page 0: none */
};

static bool same_step(struct step a, struct step b)
{
	return a.page && a.page == b.page && a.host == b.host;
}

/* How many of the `count` things with these steps between them belong together. */
static uint32_t together(const struct step *steps, uint32_t count)
{
	uint32_t length = 1;
	if (count < 2 || !steps[0].page)
		return 1;
	if (count >= 4 && !same_step(steps[0], steps[1]) && same_step(steps[1], steps[2]))
		return 1;
	while (length < count && same_step(steps[0], steps[length - 1]))
		length++;
	return length;
}

static uint32_t expect_parts(const struct oki_pair *pair, const uint32_t *pages, uint32_t ppb,
			     uint64_t max_page_pitch, struct part *parts)
{
	struct step steps[64] = {0};
	uint32_t made = 0;
	for (uint32_t j = 0; j + 1 < ppb; j++)
		if (pages[j + 1] > pages[j] && pages[j + 1] - pages[j] <= max_page_pitch)
			steps[j].page = pages[j + 1] - pages[j];
	for (uint32_t j = 0; j < ppb; j += (uint32_t)parts[made++].inner) {
		uint32_t inner = together(&steps[j], ppb - j);
		parts[made] = (struct part){.region = pair->region,
					    .first = j,
					    .inner = inner,
					    .step = inner > 1 ? steps[j].page : 0,
					    .page = pages[j],
					    .host = (uintptr_t)pair->host};
	}
	return made;
}

static struct oki_runs expect(const struct oki_pair *pairs, uint32_t count, const uint32_t *pages,
			      uint32_t ppb, uint64_t stride, uint64_t max_pitch)
{
	uint64_t total = (uint64_t)count * ppb, max_page_pitch = max_pitch / stride;
	struct part *parts = calloc(total, sizeof(parts[0]));
	struct step *steps = calloc(total, sizeof(steps[0]));
	struct oki_runs runs = {.runs = calloc(total, sizeof(runs.runs[0]))};
	uint32_t made = 0;
	for (uint32_t i = 0; i < count; i++)
		made += expect_parts(&pairs[i], &pages[pairs[i].ordinal * ppb], ppb, max_page_pitch,
				     &parts[made]);
	qsort(parts, made, sizeof(parts[0]), compare_parts);
	for (uint32_t i = 0; i + 1 < made; i++) {
		const struct part *a = &parts[i], *b = a + 1;
		if (a->region == b->region && a->first == b->first && a->inner == b->inner &&
		    a->step == b->step && b->page - a->page <= max_page_pitch &&
		    b->host >= a->host + BLOCK && b->host - a->host <= max_pitch)
			steps[i] = (struct step){b->host - a->host, b->page - a->page};
	}
	for (uint32_t i = 0; i < made; i += runs.runs[runs.count++].blocks) {
		uint32_t blocks = together(&steps[i], made - i);
		runs.runs[runs.count] = (struct oki_run){
			.host = (uint8_t *)(uintptr_t)parts[i].host,
			.host_pitch = blocks > 1 ? steps[i].host : 0,
			.blocks = blocks,
			.page_pitch = blocks > 1 ? (uint32_t)steps[i].page : 0,
			.page = (uint32_t)parts[i].page,
			.inner = (uint32_t)parts[i].inner,
			.inner_first = (uint32_t)parts[i].first,
			.inner_step = (uint32_t)parts[i].step,
		};
	}
	free(steps);
	free(parts);
	return runs;
}

static void compare_with_rules(const struct oki_pair *pairs, uint32_t count, const uint32_t *pages,
			       uint32_t ppb, uint64_t stride, uint64_t max_pitch)
{
	struct oki_runs want = expect(pairs, count, pages, ppb, stride, max_pitch), got;
	ck_assert_int_eq(oki_compile(&scratch, pairs, count, pages, ppb, BLOCK, stride, max_pitch,
				     &got, NULL),
			 0);
	ck_assert_uint_eq(got.count, want.count);
	ck_assert_uint_ge(got.room, got.count);
	ck_assert_int_eq(memcmp(got.runs, want.runs, want.count * sizeof(want.runs[0])), 0);
	oki_runs_give(&scratch, &got);
	ck_assert_ptr_null(got.runs);
	oki_runs_fini(&want);
}

enum { ASCENDING, DESCENDING, SHUFFLED, PARTLY, ORDERS };

/* 0 to count - 1, in this order. */
static void ordered(uint32_t *values, uint32_t count, uint32_t order)
{
	for (uint32_t i = 0; i < count; i++)
		values[i] = order == DESCENDING ? count - 1 - i : i;
	if (order == SHUFFLED)
		shuffle(values, count);
	for (uint32_t i = 0; order == PARTLY && i < 1 + count / 16; i++) {
		uint32_t a = random_below(count), b = random_below(count), kept = values[a];
		values[a] = values[b];
		values[b] = kept;
	}
}

/* Blocks whose pages follow each other, themselves in this order; or all pages in this order. */
static void some_pages(uint32_t *pages, uint32_t count, uint32_t ppb, uint32_t order, bool whole)
{
	static uint32_t units[700 * 16];
	uint32_t step = 1 + random_below(2), base = random_below(1000);
	ordered(units, whole ? count : count * ppb, order);
	for (uint32_t i = 0; i < count * ppb; i++)
		pages[i] = base + step * (whole ? units[i / ppb] * ppb + i % ppb : units[i]);
}

START_TEST(runs_are_those_of_the_rules)
{
	static const uint32_t counts[] = {1, 2, 3, 4, 5, 63, 64, 257, 700}, ppbs[] = {1, 2, 16};
	static struct oki_pair pairs[700];
	static uint32_t pages[700 * 16], slots[700];
	random_state = 2024;
	for (uint32_t round = 0; round < 9 * 3 * ORDERS * ORDERS * 2 * 3; round++) {
		uint32_t at = round, count = counts[at % 9], ppb = ppbs[(at /= 9) % 3];
		uint32_t page_order = (at /= 3) % ORDERS, slot_order = (at /= ORDERS) % ORDERS;
		bool whole = (at /= ORDERS) % 2;
		uint32_t regions = 1 + (at / 2) * 3;
		some_pages(pages, count, ppb, page_order, whole);
		ordered(slots, count, slot_order);
		for (uint32_t i = 0; i < count; i++) {
			uint32_t region = slots[i] * regions / count * 0x01010101u;
			pairs[i] = (struct oki_pair){host_at(region % 255, slots[i]), region, i};
		}
		/* the list itself in any order, too */
		for (uint32_t i = 0; i < count && random_below(2); i++) {
			uint32_t other = random_below(count);
			struct oki_pair kept = pairs[i];
			pairs[i] = pairs[other];
			pairs[other] = kept;
		}
		compare_with_rules(pairs, count, pages, ppb, STRIDE,
				   random_below(2) ? PITCH_MAX : 20 * STRIDE);
	}
}
END_TEST

/* The keys of a piece together are longer than a sorted word: one round of sorting is not enough.
 */
START_TEST(keys_of_any_size_are_sorted)
{
	enum { N = 600 };
	static struct oki_pair pairs[N];
	static uint32_t pages[N * 3];
	random_state = 99;
	for (uint32_t bits = 8; bits <= 32; bits += 4) {
		for (uint32_t i = 0; i < N; i++) {
			uint32_t region = random_below(4) * (UINT32_MAX / 3);
			pairs[i] = (struct oki_pair){host_at(region & 3, random_below(100000)),
						     region >> (32 - bits), i};
			for (uint32_t j = 0; j < 3; j++)
				pages[i * 3 + j] =
					(uint32_t)(((uint64_t)random_below(UINT32_MAX) << bits) >>
						   32) &
					~2047u;
			for (uint32_t j = 0; j < 3; j++) /* distinct, whatever was drawn */
				pages[i * 3 + j] |= i * 3 + j;
		}
		compare_with_rules(pairs, N, pages, 3, 1, UINT64_MAX);
		compare_with_rules(pairs, N, pages, 1, 1, UINT64_MAX);
	}
}
END_TEST

/* Runs of any length behind each other: long ones are walked faster, to their exact ends. */
START_TEST(runs_end_where_the_pitch_does)
{
	enum { N = 1000 };
	struct oki_pair pairs[N];
	uint32_t pages[N], order[N];
	random_state = 64;
	for (uint32_t round = 0; round < 300; round++) {
		uint32_t longest = 1 + random_below(round % 3 ? 200 : 4);
		uint32_t slot = 0, page = 0, region = 0, count = 1 + random_below(N);
		ordered(order, count, round % 2 ? SHUFFLED : ASCENDING);
		for (uint32_t i = 0, left = 0, pitch = 1, step = 1; i < count; i++, left--) {
			if (left == 0) {
				left = 1 + random_below(longest);
				pitch = round % 4 ? 1 + random_below(2) : 1;
				step = round % 4 ? 1 + random_below(2) : 1;
				region += round % 5 == 0 && random_below(4) == 0;
			}
			pages[order[i]] = page;
			/* arenas may touch, too */
			uint8_t *host = host_at(round % 2 ? region % 255 : 0, slot);
			pairs[order[i]] = (struct oki_pair){host, region, order[i]};
			slot += pitch;
			page += step;
		}
		compare_with_rules(pairs, count, pages, 1, STRIDE, PITCH_MAX);
		compare_with_rules(pairs, count, pages, 1, 1, BLOCK);
		compare_with_rules(pairs, count, pages, 1, 1, BLOCK / 2);
	}
}
END_TEST

/* Arenas side by side in memory, whose pages go on from one to the next or fall. */
START_TEST(arenas_that_touch_are_not_joined)
{
	enum { EACH = 100, ARENAS = 4, N = EACH * ARENAS };
	struct oki_pair pairs[N];
	uint32_t pages[N], order[N];
	random_state = 4;
	for (uint32_t round = 0; round < 3 * 2; round++) {
		ordered(order, N, round % 2 ? SHUFFLED : ASCENDING);
		for (uint32_t i = 0; i < N; i++) {
			uint32_t region = i / EACH, at = order[i], page = i;
			if (round / 2 == 1)
				page = (ARENAS - 1 - region) * EACH + i % EACH;
			if (round / 2 == 2) /* past the last one there is to the first */
				page = i - 2 * EACH;
			pages[at] = page;
			pairs[at] = (struct oki_pair){host_at(0, i), region, at};
		}
		compare_with_rules(pairs, N, pages, 1, STRIDE, PITCH_MAX);
		compare_with_rules(pairs, N, pages, 1, 1, UINT64_MAX);
	}
	/* one block of each */
	pairs[0] = (struct oki_pair){host_at(0, 0), 0, 0};
	pairs[1] = (struct oki_pair){host_at(0, 1), 1, 1};
	pages[0] = UINT32_MAX;
	pages[1] = 0;
	compare_with_rules(pairs, 2, pages, 1, 1, UINT64_MAX);
}
END_TEST

/* The same where blocks differ in shape, so that they are sorted as spans. */
START_TEST(spans_of_arenas_that_touch_are_not_joined)
{
	enum { EACH = 4, ARENAS = 3, N = EACH * ARENAS };
	struct oki_pair pairs[N];
	uint32_t pages[N * 2];
	for (uint32_t odd = 0; odd < N; odd++)
		for (int shape = -1; shape <= 3; shape += 2) {
			for (uint32_t i = 0; i < N; i++) {
				pairs[i] = (struct oki_pair){host_at(0, i), i / EACH, i};
				pages[i * 2] = 1000 + 2 * i;
				pages[i * 2 + 1] = 1001 + 2 * i;
			}
			pages[odd * 2] = 2000;
			pages[odd * 2 + 1] = (uint32_t)(2000 + shape);
			compare_with_rules(pairs, N, pages, 2, STRIDE, PITCH_MAX);
		}
}
END_TEST

/* Few blocks among any number of pages, and the two ends of what a page can be. */
START_TEST(blocks_lie_anywhere_in_a_pool)
{
	enum { N = 300 };
	struct oki_pair pairs[N];
	uint32_t pages[N], slots[N];
	random_state = 300;
	for (uint32_t bits = 0; bits <= 22; bits++)
		for (uint32_t ends = 0; ends < 3; ends++) {
			ordered(slots, N, SHUFFLED);
			for (uint32_t i = 0; i < N; i++) {
				pages[i] = slots[N - 1 - i] << bits | random_below(1u << bits);
				if (ends == 1)
					pages[i] = UINT32_MAX - pages[i];
				if (ends == 2 && i < 2)
					pages[i] = i ? UINT32_MAX : 0;
				else if (ends == 2)
					pages[i] += 1;
				pairs[i] = (struct oki_pair){host_at(0, slots[i]), 0, i};
			}
			/* in memory of its own, whose end the sanitizers watch */
			oki_compile_scratch_fini(&scratch);
			compare_with_rules(pairs, N, pages, 1, 1, UINT64_MAX);
		}
}
END_TEST

/* No plan names a page twice. If one did, both blocks would still be copied. */
START_TEST(a_page_named_twice_loses_no_block)
{
	enum { N = 200 };
	struct oki_pair pairs[N];
	uint32_t pages[N];
	random_state = 11;
	for (uint32_t round = 0; round < 100; round++) {
		ordered(pages, N, SHUFFLED);
		for (uint32_t i = 0; i < N; i++)
			pairs[i] = (struct oki_pair){host_at(0, i), 0, i};
		for (uint32_t twice = 0; twice < round % 4 + 1; twice++)
			pages[random_below(N)] = pages[random_below(N)];
		compare_with_rules(pairs, N, pages, 1, STRIDE, PITCH_MAX);
	}
}
END_TEST

/* One block that is cut, or of another shape, among whole ones: first, last, anywhere. */
START_TEST(one_odd_block_among_whole_ones)
{
	enum { N = 50, PPB = 4 };
	struct oki_pair pairs[N];
	uint32_t pages[N * PPB];
	for (uint32_t odd = 0; odd < N; odd++)
		for (uint32_t kind = 0; kind < 3; kind++) {
			for (uint32_t i = 0; i < N * PPB; i++)
				pages[i] = 2 * i;
			for (uint32_t i = 0; i < N; i++)
				pairs[i] = (struct oki_pair){host_at(0, i), 0, i};
			uint32_t *p = &pages[odd * PPB];
			p[PPB - 1] += kind == 0; /* cut at its end */
			for (uint32_t j = 0; j < PPB && kind == 1; j++)
				p[j] = 1000 + j; /* whole with another step */
			for (uint32_t j = 0; j < PPB && kind == 2; j++)
				p[j] = 1000 - j;
			compare_with_rules(pairs, N, pages, PPB, STRIDE, PITCH_MAX);
		}
}
END_TEST

/* More pages than room is kept for, cut to pieces: the pieces are counted first. */
START_TEST(a_plan_of_any_size_is_cut)
{
	enum { PPB = 4, N = 65536 };
	struct oki_pair *pairs = calloc(N, sizeof(pairs[0]));
	uint32_t *pages = calloc((size_t)N * PPB, sizeof(pages[0]));
	random_state = 5;
	ordered(pages, N * PPB, SHUFFLED);
	for (uint32_t i = 0; i < N; i++)
		pairs[i] = (struct oki_pair){host_at(0, i), 0, i};
	compare_with_rules(pairs, N, pages, PPB, STRIDE, PITCH_MAX);
	ck_assert_uint_lt(scratch.bytes, (uint64_t)N * PPB * sizeof(struct oki_run));
	/* and a small one after it */
	compare_with_rules(pairs, 100, pages, PPB, STRIDE, PITCH_MAX);
	free(pages);
	free(pairs);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("compile_rules");
	TCase *tc = tcase_create("compile_rules");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, runs_are_those_of_the_rules);
	tcase_add_test(tc, keys_of_any_size_are_sorted);
	tcase_add_test(tc, runs_end_where_the_pitch_does);
	tcase_add_test(tc, arenas_that_touch_are_not_joined);
	tcase_add_test(tc, spans_of_arenas_that_touch_are_not_joined);
	tcase_add_test(tc, blocks_lie_anywhere_in_a_pool);
	tcase_add_test(tc, a_page_named_twice_loses_no_block);
	tcase_add_test(tc, one_odd_block_among_whole_ones);
	tcase_add_test(tc, a_plan_of_any_size_is_cut);
	suite_add_tcase(suite, tc);
	int rc = kv_suite_run(suite);
	oki_compile_scratch_fini(&scratch);
	return rc;
}
