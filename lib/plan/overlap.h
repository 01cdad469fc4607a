/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Do two sequences of equally spaced byte ranges share a byte? */
#ifndef OKI_PLAN_OVERLAP_H
#define OKI_PLAN_OVERLAP_H

#include <stdbool.h>
#include <stdint.h>

/* The ranges [start + i * stride, + bytes) for i < count: one segment of one layer in all pages. */
struct oki_comb {
	uint64_t start;
	uint64_t bytes; /* > 0 */
	uint64_t stride;
	uint32_t count; /* > 0 */
};

/* Do two ranges of the same comb share a byte? */
bool oki_comb_folds(const struct oki_comb *comb);
/* Do a range of a and one of b share a byte? Exact; time is logarithmic in the strides. */
bool oki_combs_meet(const struct oki_comb *a, const struct oki_comb *b);

#endif
