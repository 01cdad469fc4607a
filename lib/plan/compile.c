/* SPDX-License-Identifier: Apache-2.0 */
/* [B] From pairs (block, pages) to runs. */
#include "plan/compile.h"

#include <string.h>

#include "base/error.h"
#include "plan/join.h"

/* Sort keys, the least significant first: spans of one region and shape are together, by page. */
enum {
	KEY_PAGE,
	KEY_STEP,
	KEY_INNER,
	KEY_FIRST,
	KEY_REGION,
	KEY_COUNT,
};

/* A span: part of one block whose pages have a constant step. A run repeats it. */
struct span {
	uint8_t *host;
	uint32_t page;
	uint32_t step;
	uint32_t inner;
	uint32_t first;
	uint32_t region;
};

/*
 * The spans of a plan. In most plans each block is one span, all of one shape: a whole view. Then
 * the spans are computed from the pairs, and never stored.
 */
struct view {
	const struct oki_pair *pairs;
	const uint32_t *pages;
	uint32_t pages_per_block;
	uint32_t step;		  /* of every block, in a whole view */
	const struct span *spans; /* NULL: a whole view */
	uint32_t count;
	uint32_t differ[KEY_COUNT]; /* by key: the bits in which spans differ */
	const uint64_t *order;	    /* sorted words; NULL: the spans are sorted already */
	uint64_t index_mask;	    /* the bits of such a word that index a span */
};

#define INLINE static inline __attribute__((always_inline))

INLINE struct span span_at(const struct view *view, uint32_t i, bool whole)
{
	if (!whole)
		return view->spans[i];
	const struct oki_pair *pair = &view->pairs[i];
	return (struct span){
		.host = pair->host,
		.page = view->pages[(uint64_t)pair->ordinal * view->pages_per_block],
		.step = view->step,
		.inner = view->pages_per_block,
		.region = pair->region,
	};
}

/* ---- cutting blocks ---- */

/* Distance to the next page; 0 if no run can have it. */
static uint32_t step_at(const uint32_t *pages, const struct oki_join_limits *limits)
{
	if (pages[1] <= pages[0] || pages[1] - pages[0] > limits->max_page_pitch)
		return 0;
	return pages[1] - pages[0];
}

/*
 * Length of the first span of pages: as long as possible, so that there are few spans. But a page
 * before three or more of another step is a span of its own: that makes no more spans, and the
 * longer one keeps its first page.
 */
static uint32_t span_length(const uint32_t *pages, uint32_t count,
			    const struct oki_join_limits *limits, uint32_t *ret_step)
{
	uint32_t length = 2;
	*ret_step = 0;
	if (count < 2)
		return 1;
	uint32_t step = step_at(pages, limits);
	if (step == 0)
		return 1;
	if (count >= 4) {
		uint32_t next = step_at(pages + 1, limits);
		if (next && next != step && next == step_at(pages + 2, limits))
			return 1;
	}
	while (length < count && step_at(pages + length - 1, limits) == step)
		length++;
	*ret_step = step;
	return length;
}

/* Cut one block into spans. If spans is NULL only count them. */
static uint32_t cut_block(const struct oki_pair *pair, const uint32_t *pages, uint32_t count,
			  const struct oki_join_limits *limits, struct span *spans)
{
	uint32_t cut = 0, first = 0;
	while (first < count) {
		uint32_t step;
		uint32_t inner = span_length(pages + first, count - first, limits, &step);
		if (spans)
			spans[cut] = (struct span){
				.host = pair->host,
				.page = pages[first],
				.step = step,
				.inner = inner,
				.first = first,
				.region = pair->region,
			};
		cut++;
		first += inner;
	}
	return cut;
}

static uint64_t cut_blocks(const struct view *view, uint32_t pair_count,
			   const struct oki_join_limits *limits, struct span *spans)
{
	uint32_t n = view->pages_per_block;
	uint64_t total = 0;
	for (uint32_t i = 0; i < pair_count; i++)
		total += cut_block(&view->pairs[i],
				   view->pages + (uint64_t)view->pairs[i].ordinal * n, n, limits,
				   spans ? spans + total : NULL);
	return total;
}

/* Is every block one span with the step of the first? */
static bool all_whole(struct view *view, uint32_t pair_count, const struct oki_join_limits *limits)
{
	uint32_t n = view->pages_per_block;
	const uint32_t *first = view->pages + (uint64_t)view->pairs[0].ordinal * n;
	if (span_length(first, n, limits, &view->step) != n)
		return false;
	for (uint32_t i = 1; i < pair_count && n > 1; i++) {
		const uint32_t *pages = view->pages + (uint64_t)view->pairs[i].ordinal * n;
		for (uint32_t j = 0; j + 1 < n; j++)
			if (step_at(pages + j, limits) != view->step)
				return false;
	}
	return true;
}

/* ---- sorting ---- */

/* Is a before b, or equal? Compares the most significant key first. */
INLINE bool in_order(struct span a, struct span b)
{
	if (a.region != b.region)
		return a.region < b.region;
	if (a.first != b.first)
		return a.first < b.first;
	if (a.inner != b.inner)
		return a.inner < b.inner;
	if (a.step != b.step)
		return a.step < b.step;
	return a.page <= b.page;
}

/* Set differ. True if the spans are sorted already. */
INLINE bool compare_all(struct view *view, bool whole)
{
	struct span first = span_at(view, 0, whole), before = first;
	uint32_t page = 0, step = 0, inner = 0, within = 0, region = 0;
	bool sorted = true;
	for (uint32_t i = 1; i < view->count; i++) {
		struct span at = span_at(view, i, whole);
		page |= at.page ^ first.page;
		step |= at.step ^ first.step;
		inner |= at.inner ^ first.inner;
		within |= at.first ^ first.first;
		region |= at.region ^ first.region;
		sorted = sorted && in_order(before, at);
		before = at;
	}
	view->differ[KEY_PAGE] = page;
	view->differ[KEY_STEP] = step;
	view->differ[KEY_INNER] = inner;
	view->differ[KEY_FIRST] = within;
	view->differ[KEY_REGION] = region;
	return sorted;
}

static uint32_t width(uint32_t mask)
{
	return mask ? 32u - (uint32_t)__builtin_clz(mask) : 0;
}

#define MAX_DIGIT 11u
#define AHEAD 16u

static void sort_by_digit(const uint64_t *from, uint64_t *to, uint32_t count, uint32_t shift,
			  uint32_t bits)
{
	uint32_t start[1u << MAX_DIGIT];
	uint32_t mask = (1u << bits) - 1, sum = 0;
	memset(start, 0, sizeof(start[0]) << bits);
	for (uint32_t i = 0; i < count; i++)
		start[from[i] >> shift & mask]++;
	for (uint32_t d = 0; d <= mask; d++) {
		uint32_t in_digit = start[d];
		start[d] = sum;
		sum += in_digit;
	}
	for (uint32_t i = 0; i < count; i++)
		to[start[from[i] >> shift & mask]++] = from[i];
}

/* Radix sort by `bits` bits from `low` on, with digits of about the same width. A digit has hardly
 * more values than there are keys, since each pass clears a counter for each value. */
static uint64_t *sort_keys(uint64_t *keys, uint64_t *spare, uint32_t count, uint32_t low,
			   uint32_t bits)
{
	uint32_t most = width(count);
	most = most > MAX_DIGIT ? MAX_DIGIT : most;
	uint32_t digits = (bits + most - 1) / most;
	for (uint32_t d = 0, at = 0; d < digits; d++) {
		uint32_t take = (bits - at + digits - d - 1) / (digits - d);
		sort_by_digit(keys, spare, count, low + at, take);
		uint64_t *sorted = spare;
		spare = keys;
		keys = sorted;
		at += take;
	}
	return keys;
}

/* Where the bits of each key are in a sorted word. Mask 0: the key is not part of this round. */
struct round {
	uint64_t mask[KEY_COUNT];
	uint32_t shift[KEY_COUNT];
};

INLINE void fill_keys(const struct view *view, const struct round *r, uint64_t *keys, bool whole)
{
	for (uint32_t i = 0; i < view->count; i++) {
		uint64_t index = keys[i] & view->index_mask;
		struct span span = span_at(view, (uint32_t)index, whole);
		uint64_t key = (span.page & r->mask[KEY_PAGE]) << r->shift[KEY_PAGE] |
			       (span.region & r->mask[KEY_REGION]) << r->shift[KEY_REGION];
		if (!whole)
			key |= (span.step & r->mask[KEY_STEP]) << r->shift[KEY_STEP] |
			       (span.inner & r->mask[KEY_INNER]) << r->shift[KEY_INNER] |
			       (span.first & r->mask[KEY_FIRST]) << r->shift[KEY_FIRST];
		keys[i] = key | index;
	}
}

/*
 * Sort by the bits that differ. Each round takes as many keys as fit above the index; usually one
 * round takes all.
 */
INLINE void sort_view(struct view *view, uint64_t *keys, uint64_t *spare, bool whole)
{
	uint32_t low = width(view->count);
	view->index_mask = (1ull << low) - 1;
	for (uint32_t i = 0; i < view->count; i++)
		keys[i] = i;
	for (uint32_t k = 0; k < KEY_COUNT;) {
		struct round r = {0};
		uint32_t at = low;
		for (; k < KEY_COUNT && at + width(view->differ[k]) <= 64; k++) {
			r.mask[k] = (1ull << width(view->differ[k])) - 1;
			r.shift[k] = r.mask[k] ? at : 0;
			at += width(view->differ[k]);
		}
		fill_keys(view, &r, keys, whole);
		uint64_t *sorted = sort_keys(keys, spare, view->count, low, at - low);
		spare = sorted == keys ? spare : keys;
		keys = sorted;
	}
	view->order = keys;
}

/* The index of the i-th span in sorted order. */
INLINE uint32_t nth_index(const struct view *view, uint32_t i, bool whole)
{
	if (!view->order)
		return i;
	/* Sorted spans are scattered in memory, so prefetch them. */
	uint64_t soon = view->order[i + AHEAD < view->count ? i + AHEAD : i] & view->index_mask;
	if (whole)
		__builtin_prefetch(&view->pairs[soon]);
	else
		__builtin_prefetch(&view->spans[soon]);
	return (uint32_t)(view->order[i] & view->index_mask);
}

INLINE bool same_kind(struct span a, struct span b)
{
	return (a.step == b.step) & (a.inner == b.inner) & (a.first == b.first) &
	       (a.region == b.region);
}

/* Write the spans in sorted order as places. Kinds are regions in a whole view; otherwise a kind is
 * the index of its first span. */
INLINE void write_places(const struct view *view, struct oki_place *places, bool whole)
{
	uint32_t kind = nth_index(view, 0, whole);
	for (uint32_t i = 0; i < view->count; i++) {
		uint32_t at = nth_index(view, i, whole);
		struct span span = span_at(view, at, whole);
		if (whole)
			kind = span.region;
		else if (!same_kind(view->spans[kind], span))
			kind = at;
		places[i] = (struct oki_place){span.host, (uint64_t)kind << 32 | span.page};
	}
}

/* ---- whole blocks without sorting ---- */

/* Write the blocks as places, unsorted, and find out how their keys lie. */
static void write_unsorted_places(const struct view *view, struct oki_place *places,
				  struct oki_extent *ret_extent)
{
	uint64_t least = UINT64_MAX, most = 0, before = 0, falls = 0;
	for (uint32_t i = 0; i < view->count; i++) {
		struct span span = span_at(view, i, true);
		uint64_t key = (uint64_t)span.region << 32 | span.page;
		places[i] = (struct oki_place){span.host, key};
		least = key < least ? key : least;
		most = key > most ? key : most;
		falls |= key < before;
		before = key;
	}
	*ret_extent = (struct oki_extent){least, most, !falls};
}

/* ---- joining ---- */

INLINE void make_runs(const struct view *view, const struct oki_place *places,
		      const uint32_t *starts, struct oki_runs *runs, bool whole)
{
	struct span shape = span_at(view, 0, whole);
	for (uint32_t r = 0; r < runs->count; r++) {
		const struct oki_place *at = &places[starts[r]];
		uint32_t blocks = starts[r + 1] - starts[r];
		/* A run of one block has no pitches; a mask avoids a branch. */
		uint64_t several = 0ull - (blocks > 1);
		if (!whole)
			shape = view->spans[at->key >> 32];
		runs->runs[r] = (struct oki_run){
			.host = at->host,
			.host_pitch = ((uintptr_t)at[1].host - (uintptr_t)at[0].host) & several,
			.blocks = blocks,
			.page_pitch = (uint32_t)((at[1].key - at[0].key) & several),
			.page = (uint32_t)at->key,
			.inner = shape.inner,
			.inner_first = shape.first,
			.inner_step = shape.step,
		};
	}
}

/* ---- all of it ---- */

/* Working memory of one plan. */
struct sort_scratch {
	struct span *spans;
	struct oki_place *places;
	void *work; /* first sort keys, then the starts of runs */
	uint64_t work_bytes;
};

/* For each span of a plan that is not whole, with two sort keys. */
#define CUT_BYTES (sizeof(struct span) + sizeof(struct oki_place) + 2 * sizeof(uint64_t))

/* oki_order_by_key() gets memory for so many pages per whole block, within the memory that is kept.
 * If pages are spread more widely, sorting is faster. */
#define PAGES_PER_BLOCK 32u

static bool take_sort_scratch(struct oki_compile_scratch *scratch, uint64_t count, bool whole,
			      struct sort_scratch *ret_sort_scratch)
{
	uint64_t places = (count + OKI_PLACES_BEHIND) * sizeof(struct oki_place);
	uint64_t spans = whole ? 0 : count * sizeof(struct span);
	uint64_t work = 2 * count * sizeof(uint64_t) + sizeof(uint32_t);
	uint64_t by_page = whole ? PAGES_PER_BLOCK * count * sizeof(uint8_t *) : 0;
	uint64_t kept = places < OKI_SCRATCH_KEEP_BYTES ? OKI_SCRATCH_KEEP_BYTES - places : 0;
	by_page = by_page < kept ? by_page : kept;
	work = work > by_page ? work : by_page;
	uint8_t *memory = oki_scratch_space(scratch, places + spans + work);
	if (!memory)
		return false;
	*ret_sort_scratch = (struct sort_scratch){
		.spans = whole ? NULL : (void *)(memory + places),
		.places = (void *)memory,
		.work = memory + places + spans,
		.work_bytes = work,
	};
	return true;
}

static void order_whole(struct view *view, const struct sort_scratch *sort_scratch)
{
	struct oki_extent extent;
	write_unsorted_places(view, sort_scratch->places, &extent);
	if (extent.sorted || oki_order_by_key(sort_scratch->places, view->count, &extent,
					      sort_scratch->work, sort_scratch->work_bytes))
		return;
	compare_all(view, true);
	sort_view(view, sort_scratch->work, (uint64_t *)sort_scratch->work + view->count, true);
	write_places(view, sort_scratch->places, true);
}

static void order_spans(struct view *view, const struct sort_scratch *sort_scratch)
{
	if (!compare_all(view, false))
		sort_view(view, sort_scratch->work, (uint64_t *)sort_scratch->work + view->count,
			  false);
	write_places(view, sort_scratch->places, false);
}

static int no_memory(uint64_t runs, struct okv_error *err)
{
	return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_SUBMIT, "no memory for %llu runs",
			(unsigned long long)runs);
}

static int join(struct oki_compile_scratch *scratch, const struct view *view,
		const struct sort_scratch *sort_scratch, const struct oki_join_limits *limits,
		struct oki_runs *ret_runs, struct okv_error *err)
{
	struct oki_runs made;
	for (uint32_t i = 0; i < OKI_PLACES_BEHIND; i++)
		sort_scratch->places[view->count + i] = sort_scratch->places[view->count - 1];
	uint32_t count =
		oki_find_starts(sort_scratch->places, view->count, limits, sort_scratch->work);
	if (!oki_runs_take(scratch, count, &made))
		return no_memory(count, err);
	made.count = count;
	if (view->spans)
		make_runs(view, sort_scratch->places, sort_scratch->work, &made, false);
	else
		make_runs(view, sort_scratch->places, sort_scratch->work, &made, true);
	*ret_runs = made;
	return 0;
}

static int compile_view(struct oki_compile_scratch *scratch, struct view *view, uint32_t pair_count,
			const struct oki_join_limits *limits, struct oki_runs *ret_runs,
			struct okv_error *err)
{
	bool whole = all_whole(view, pair_count, limits);
	/* Memory for the most spans there can be costs less than an additional pass to count them.
	 */
	uint64_t most = (uint64_t)pair_count * (whole ? 1 : view->pages_per_block);
	if (!whole && most * CUT_BYTES > OKI_SCRATCH_KEEP_BYTES)
		most = cut_blocks(view, pair_count, limits, NULL);
	if (most > UINT32_MAX)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_SUBMIT, "%llu spans in one plan",
				(unsigned long long)most);
	struct sort_scratch sort_scratch;
	if (!take_sort_scratch(scratch, most, whole, &sort_scratch))
		return no_memory(most, err);
	view->spans = sort_scratch.spans;
	view->count = whole ? pair_count
			    : (uint32_t)cut_blocks(view, pair_count, limits, sort_scratch.spans);
	if (whole)
		order_whole(view, &sort_scratch);
	else
		order_spans(view, &sort_scratch);
	return join(scratch, view, &sort_scratch, limits, ret_runs, err);
}

int oki_compile(struct oki_compile_scratch *scratch, const struct oki_pair *pairs,
		uint32_t pair_count, const uint32_t *pages, uint32_t pages_per_block,
		uint64_t block_bytes, uint64_t max_page_stride, uint64_t max_pitch_bytes,
		struct oki_runs *ret_runs, struct okv_error *err)
{
	struct oki_join_limits limits =
		oki_join_limits(block_bytes, max_page_stride, max_pitch_bytes);
	if (pair_count == 0) {
		*ret_runs = (struct oki_runs){0};
		return 0;
	}
	if (!pairs || !pages || pages_per_block == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_SUBMIT, "%u block%s without pages",
				pair_count, oki_plural(pair_count));
	struct view view = {.pairs = pairs, .pages = pages, .pages_per_block = pages_per_block};
	int rc = compile_view(scratch, &view, pair_count, &limits, ret_runs, err);
	oki_scratch_trim(scratch);
	return rc;
}
