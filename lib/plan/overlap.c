/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Do two sequences of equally spaced byte ranges share a byte? */
#include "plan/overlap.h"

/* Addresses have 64 bits and distances a sign; products with a count need more than that. */
#define WIDE __int128
#define UWIDE unsigned __int128

static WIDE floor_div(WIDE a, WIDE b)
{
	return a / b - (a % b < 0);
}

/* Sum of floor((a * i + b) / m) for i < n, as Euclid's algorithm runs: each round swaps a and m. */
static UWIDE floor_sum(UWIDE n, UWIDE m, UWIDE a, UWIDE b)
{
	UWIDE sum = 0;
	while (n > 0 && m > 0) {
		if (a >= m) {
			sum += n * (n - 1) / 2 * (a / m);
			a %= m;
		}
		if (b >= m) {
			sum += n * (b / m);
			b %= m;
		}
		UWIDE top = a * n + b;
		n = top / m;
		b = top % m;
		UWIDE swap = m;
		m = a;
		a = swap;
	}
	return sum;
}

/* Is (first + i * step) mod m below limit for some i < n? limit < m. */
static bool residue_below(uint64_t n, uint64_t step, uint64_t first, uint64_t m, UWIDE limit)
{
	step %= m;
	first %= m;
	/* Adding m - limit raises the quotient by one exactly if the residue is not below limit. */
	UWIDE carried = floor_sum(n, m, step, first + (m - limit)) - floor_sum(n, m, step, first);
	return carried < n;
}

bool oki_comb_folds(const struct oki_comb *comb)
{
	return comb->count > 1 && comb->stride < comb->bytes;
}

/*
 * Range i of a and j of b meet exactly when y(i) = i * a.stride + shift lies in
 * [j * b.stride, j * b.stride + reach), where shift = a.start - b.start + a.bytes - 1 and
 * reach = a.bytes + b.bytes - 1. First keep the i whose y is between the first and the last of
 * these windows, then ask whether one of them is inside a window rather than in a gap.
 */
bool oki_combs_meet(const struct oki_comb *a, const struct oki_comb *b)
{
	WIDE stride = a->count > 1 && a->stride ? (WIDE)a->stride : 1;
	WIDE last = a->stride ? (WIDE)a->count - 1 : 0;
	WIDE reach = (WIDE)a->bytes + b->bytes - 1;
	WIDE shift = (WIDE)a->start - (WIDE)b->start + (WIDE)a->bytes - 1;
	WIDE end = (WIDE)(b->count - 1) * (WIDE)b->stride + reach;
	WIDE low = -floor_div(shift, stride);
	WIDE high = floor_div(end - 1 - shift, stride);
	if (low < 0)
		low = 0;
	if (high > last)
		high = last;
	if (low > high)
		return false;
	if (b->count == 1 || reach >= (WIDE)b->stride)
		return true;
	UWIDE first = (UWIDE)(low * stride + shift);
	return residue_below((uint64_t)(high - low + 1), (uint64_t)stride,
			     (uint64_t)(first % b->stride), b->stride, (UWIDE)reach);
}
