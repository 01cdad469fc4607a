/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Arithmetic that detects overflow: false means that the result does not fit. */
#ifndef OKI_BASE_CHECKED_H
#define OKI_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool oki_add(uint64_t a, uint64_t b, uint64_t *ret_sum)
{
	return !__builtin_add_overflow(a, b, ret_sum);
}

static inline bool oki_mul(uint64_t a, uint64_t b, uint64_t *ret_product)
{
	return !__builtin_mul_overflow(a, b, ret_product);
}

/* offset + length <= limit, correct also where the sum would overflow. */
static inline bool oki_within(uint64_t offset, uint64_t length, uint64_t limit)
{
	return length <= limit && offset <= limit - length;
}

#endif
