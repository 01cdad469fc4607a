/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Blocks at made-up addresses, and the same random numbers every time. */
#ifndef TEST_COMPILE_FIXTURE_H
#define TEST_COMPILE_FIXTURE_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/compile.h"

#define BLOCK 4096u
#define STRIDE 65536u
#define PITCH_MAX 0x7fffffffull

static uint64_t random_state;
static struct oki_compile_scratch scratch;

static uint32_t random_below(uint32_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state % limit);
}

/* Where block `index` of a region lies; addresses only, nothing is touched. */
static uint8_t *host_at(uint32_t region, uint64_t index)
{
	return (uint8_t *)(uintptr_t)((region + 1ull) * 0x1000000000ull + index * BLOCK);
}

static void shuffle(uint32_t *values, uint32_t count)
{
	for (uint32_t i = count; i > 1; i--) {
		uint32_t other = random_below(i);
		uint32_t kept = values[i - 1];
		values[i - 1] = values[other];
		values[other] = kept;
	}
}

#endif
