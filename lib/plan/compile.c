/* [B] From pairs (block, pages) to runs. */
#include "plan/compile.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* Keys in rising significance: pieces of one region and shape stand together, by page. */
enum {
	KEY_PAGE,
	KEY_STEP,
	KEY_INNER,
	KEY_FIRST,
	KEY_REGION,
	KEY_COUNT,
};

/* Part of one block whose pages have a constant step: what a run repeats. */
struct piece {
	uint8_t *host;
	uint32_t key[KEY_COUNT];
};

struct limits {
	uint64_t block_bytes;
	uint64_t max_host_pitch;
	uint64_t max_page_pitch;
};

/* ---- cutting blocks ---- */

/* Distance to the next page, 0 where it cannot be stepped. */
static uint32_t step_at(const uint32_t *pages, const struct limits *limits)
{
	if (pages[1] <= pages[0] || pages[1] - pages[0] > limits->max_page_pitch)
		return 0;
	return pages[1] - pages[0];
}

/*
 * Length of the piece that pages start with. The longest one makes the fewest pieces; but a lone
 * page before a longer piece stays alone: as many pieces, and the longer one is whole.
 */
static uint32_t piece_length(const uint32_t *pages, uint32_t count, const struct limits *limits,
			     uint32_t *ret_step)
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

/* Pieces of one block; counts only when pieces is NULL. */
static uint32_t cut_block(const struct oki_pair *pair, const uint32_t *pages, uint32_t count,
			  const struct limits *limits, struct piece *pieces)
{
	uint32_t cut = 0, first = 0;
	while (first < count) {
		uint32_t step;
		uint32_t inner = piece_length(pages + first, count - first, limits, &step);
		if (pieces)
			pieces[cut] = (struct piece){
				.host = pair->host,
				.key = {[KEY_PAGE] = pages[first],
					[KEY_STEP] = step,
					[KEY_INNER] = inner,
					[KEY_FIRST] = first,
					[KEY_REGION] = pair->region},
			};
		cut++;
		first += inner;
	}
	return cut;
}

static uint64_t cut_blocks(const struct oki_pair *pairs, uint32_t pair_count, const uint32_t *pages,
			   uint32_t pages_per_block, const struct limits *limits,
			   struct piece *pieces)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < pair_count; i++)
		total += cut_block(&pairs[i], pages + (uint64_t)pairs[i].ordinal * pages_per_block,
				   pages_per_block, limits, pieces ? pieces + total : NULL);
	return total;
}

/* ---- sorting ---- */

static void sort_by_byte(const struct piece *from, struct piece *to, size_t count, uint32_t key,
			 uint32_t shift)
{
	size_t start[256] = {0};
	size_t sum = 0;
	for (size_t i = 0; i < count; i++)
		start[from[i].key[key] >> shift & 255]++;
	for (size_t b = 0; b < 256; b++) {
		size_t in_byte = start[b];
		start[b] = sum;
		sum += in_byte;
	}
	for (size_t i = 0; i < count; i++)
		to[start[from[i].key[key] >> shift & 255]++] = from[i];
}

/* Radix sort over the bytes that differ at all; usually two of the page and none of the rest.
 * Returns which of the two arrays holds the result. */
static struct piece *sort_pieces(struct piece *pieces, struct piece *spare, size_t count)
{
	uint32_t differ[KEY_COUNT] = {0};
	for (size_t i = 1; i < count; i++)
		for (uint32_t k = 0; k < KEY_COUNT; k++)
			differ[k] |= pieces[i].key[k] ^ pieces[0].key[k];
	for (uint32_t k = 0; k < KEY_COUNT; k++)
		for (uint32_t shift = 0; shift < 32; shift += 8) {
			if (!(differ[k] >> shift & 255))
				continue;
			sort_by_byte(pieces, spare, count, k, shift);
			struct piece *sorted = spare;
			spare = pieces;
			pieces = sorted;
		}
	return pieces;
}

/* ---- joining ---- */

struct pitch {
	uint64_t host;
	uint32_t page; /* 0: the two cannot be rows of one run */
};

static struct pitch pitch_at(const struct piece *pieces, const struct limits *limits)
{
	const struct piece *a = &pieces[0];
	const struct piece *b = &pieces[1];
	struct pitch none = {0};
	uint64_t host = (uintptr_t)b->host - (uintptr_t)a->host;
	if (memcmp(&a->key[KEY_STEP], &b->key[KEY_STEP], sizeof(uint32_t) * (KEY_COUNT - 1)) != 0)
		return none;
	if (b->host <= a->host || host < limits->block_bytes || host > limits->max_host_pitch)
		return none;
	if (b->key[KEY_PAGE] <= a->key[KEY_PAGE] ||
	    b->key[KEY_PAGE] - a->key[KEY_PAGE] > limits->max_page_pitch)
		return none;
	return (struct pitch){.host = host, .page = b->key[KEY_PAGE] - a->key[KEY_PAGE]};
}

static bool same_pitch(struct pitch a, struct pitch b)
{
	return a.page == b.page && a.host == b.host;
}

/* How many pieces the run that starts here takes; as piece_length(). */
static uint32_t run_length(const struct piece *pieces, size_t count, const struct limits *limits,
			   struct pitch *ret_pitch)
{
	uint32_t length = 2;
	*ret_pitch = (struct pitch){0};
	if (count < 2)
		return 1;
	struct pitch pitch = pitch_at(pieces, limits);
	if (pitch.page == 0)
		return 1;
	if (count >= 4) {
		struct pitch next = pitch_at(pieces + 1, limits);
		if (next.page && !same_pitch(next, pitch) &&
		    same_pitch(next, pitch_at(pieces + 2, limits)))
			return 1;
	}
	while (length < count && same_pitch(pitch, pitch_at(pieces + length - 1, limits)))
		length++;
	*ret_pitch = pitch;
	return length;
}

static uint32_t join(const struct piece *pieces, size_t count, const struct limits *limits,
		     struct oki_run *runs)
{
	uint32_t joined = 0;
	size_t i = 0;
	while (i < count) {
		struct pitch pitch;
		uint32_t blocks = run_length(pieces + i, count - i, limits, &pitch);
		runs[joined++] = (struct oki_run){
			.host = pieces[i].host,
			.host_pitch = pitch.host,
			.blocks = blocks,
			.page_pitch = pitch.page,
			.page = pieces[i].key[KEY_PAGE],
			.inner = pieces[i].key[KEY_INNER],
			.inner_first = pieces[i].key[KEY_FIRST],
			.inner_step = pieces[i].key[KEY_STEP],
		};
		i += blocks;
	}
	return joined;
}

int oki_compile(struct oki_pair *pairs, uint32_t pair_count, const uint32_t *pages,
		uint32_t pages_per_block, uint64_t block_bytes, uint64_t max_page_stride,
		uint64_t max_pitch_bytes, struct oki_runs *ret_runs, struct okv_error *err)
{
	struct limits limits = {
		.block_bytes = block_bytes ? block_bytes : 1,
		.max_host_pitch = max_pitch_bytes,
		.max_page_pitch = max_page_stride ? max_pitch_bytes / max_page_stride : UINT32_MAX,
	};
	struct oki_runs made = {0};
	if (pair_count == 0) {
		*ret_runs = made;
		return 0;
	}
	if (!pairs || !pages || pages_per_block == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_SUBMIT, "%u blocks without pages",
				pair_count);
	uint64_t count = cut_blocks(pairs, pair_count, pages, pages_per_block, &limits, NULL);
	if (count > UINT32_MAX)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_SUBMIT, "%llu pieces in one plan",
				(unsigned long long)count);
	struct piece *pieces = calloc(count, 2 * sizeof(pieces[0]));
	made.runs = calloc(count, sizeof(made.runs[0]));
	if (!pieces || !made.runs) {
		free(made.runs);
		free(pieces);
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_SUBMIT, "no memory for %llu runs",
				(unsigned long long)count);
	}
	cut_blocks(pairs, pair_count, pages, pages_per_block, &limits, pieces);
	made.count = join(sort_pieces(pieces, pieces + count, count), count, &limits, made.runs);
	free(pieces);
	struct oki_run *shrunk = realloc(made.runs, made.count * sizeof(made.runs[0]));
	if (shrunk)
		made.runs = shrunk;
	*ret_runs = made;
	return 0;
}

void oki_runs_fini(struct oki_runs *runs)
{
	if (!runs)
		return;
	free(runs->runs);
	memset(runs, 0, sizeof(*runs));
}

uint64_t oki_runs_rows(const struct oki_runs *runs)
{
	uint64_t rows = 0;
	for (uint32_t i = 0; i < runs->count; i++)
		rows += (uint64_t)runs->runs[i].blocks * runs->runs[i].inner;
	return rows;
}

int oki_pages_check(const uint32_t *pages, uint64_t count, uint32_t page_count,
		    struct okv_error *err)
{
	int rc = 0;
	if (count == 0)
		return 0;
	if (!pages)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%llu pages at NULL",
				(unsigned long long)count);
	uint64_t *seen = calloc(page_count / 64u + 1u, sizeof(seen[0]));
	if (!seen)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS,
				"no memory to check %u pages", page_count);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t bit = 1ull << (pages[i] & 63);
		if (pages[i] >= page_count) {
			rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				      "page %u at index %llu is not below %u", pages[i],
				      (unsigned long long)i, page_count);
			break;
		}
		if (seen[pages[i] / 64] & bit) {
			rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				      "page %u at index %llu is named twice", pages[i],
				      (unsigned long long)i);
			break;
		}
		seen[pages[i] / 64] |= bit;
	}
	free(seen);
	return rc;
}
