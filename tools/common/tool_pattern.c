/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Bytes that say where they belong, so that a misplaced one betrays its origin. */
#include "tool_pattern.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * A word is its own address, scrambled one-to-one:
 *   lower 26 bits of the block's id | layer 10 | segment 3 | word in the segment 25
 * and XORed with the upper bits of the id, scrambled likewise, which are 0 for TOOL_MAX_ID and
 * below.
 */
#define ID_SHIFT 38
#define LAYER_SHIFT 28
#define SEGMENT_SHIFT 25
#define WORD_MASK (((uint64_t)1 << SEGMENT_SHIFT) - 1)

#define SCRAMBLE 0xbf58476d1ce4e5b9ull

_Static_assert(OKV_MAX_LAYERS <= 1u << (ID_SHIFT - LAYER_SHIFT), "layer fits its field");
_Static_assert(TOOL_MAX_SEGMENTS <= 1u << (LAYER_SHIFT - SEGMENT_SHIFT), "segment fits its field");
_Static_assert(TOOL_MAX_SEGMENT_BYTES / 8 <= WORD_MASK + 1, "word fits its field");
_Static_assert(((uint64_t)TOOL_MAX_ID << ID_SHIFT) >> ID_SHIFT == TOOL_MAX_ID, "id fits");

static inline uint64_t scramble(uint64_t x)
{
	x ^= x >> 32;
	x *= SCRAMBLE;
	return x ^ x >> 29;
}

static uint64_t unscramble(uint64_t x)
{
	uint64_t inverse = SCRAMBLE; /* Newton's iteration doubles the correct bits: 3 to 96 */

	for (int i = 0; i < 5; i++)
		inverse *= 2 - SCRAMBLE * inverse;
	x ^= x >> 29 ^ x >> 58;
	x *= inverse;
	return x ^ x >> 32;
}

static uint64_t address_of(const struct tool_place *place)
{
	return (place->id & TOOL_MAX_ID) << ID_SHIFT | (uint64_t)place->layer << LAYER_SHIFT |
	       (uint64_t)place->segment << SEGMENT_SHIFT;
}

/* 0 becomes 0. */
static uint64_t upper_of(const struct tool_place *place)
{
	return scramble(place->id / (TOOL_MAX_ID + 1ull));
}

void tool_key(uint64_t id, uint8_t key[TOOL_KEY_BYTES])
{
	uint64_t words[2] = {scramble(id + 1), scramble(~id)};

	memcpy(key, words, sizeof(words));
}

void tool_fill(const struct tool_place *place, void *bytes, uint64_t size)
{
	uint64_t address = address_of(place);
	uint64_t upper = upper_of(place);
	uint64_t words = size / 8;
	uint8_t *out = bytes;

	for (uint64_t i = 0; i < words; i++) {
		uint64_t word = scramble(address + i) ^ upper;

		memcpy(out + i * 8, &word, 8);
	}
	if (size % 8 > 0) {
		uint64_t word = scramble(address + words) ^ upper;

		memcpy(out + words * 8, &word, size % 8);
	}
}

/* The word that found was once written as; false when nobody can tell. */
static bool origin_of(const struct tool_place *place, uint64_t found, uint64_t *ret_word)
{
	*ret_word = unscramble(found ^ upper_of(place));
	/* The upper bits of another block's id are not known, unless there are none. */
	return place->id <= TOOL_MAX_ID || *ret_word >> ID_SHIFT == (place->id & TOOL_MAX_ID);
}

static void describe(const struct tool_place *place, uint64_t offset, uint64_t found,
		     uint64_t width, char *text)
{
	uint64_t origin;
	uint64_t poison;

	memset(&poison, TOOL_POISON, sizeof(poison));
	int n = snprintf(text, TOOL_TEXT,
			 "block %" PRIu64 " layer %u segment %u offset %" PRIu64 " holds ",
			 place->id, place->layer, place->segment, offset);
	if (n < 0 || n >= TOOL_TEXT)
		return;
	size_t room = TOOL_TEXT - (size_t)n;
	if (found == poison)
		snprintf(text + n, room, "poison: it was never written");
	else if (found == 0)
		snprintf(text + n, room, "zeros");
	else if (width < 8 || !origin_of(place, found, &origin))
		snprintf(text + n, room, "other bytes");
	else
		snprintf(text + n, room,
			 "%016" PRIx64 ", as in block %" PRIu64
			 " layer %u segment %u offset %" PRIu64,
			 found, (place->id & ~(uint64_t)TOOL_MAX_ID) | origin >> ID_SHIFT,
			 (uint32_t)(origin >> LAYER_SHIFT) & 0x3ff,
			 (uint32_t)(origin >> SEGMENT_SHIFT) & 7,
			 (uint64_t)(origin & WORD_MASK) * 8);
}

/* The slow path: something differs. */
static uint64_t count_mismatches(const struct tool_place *place, const uint8_t *in, uint64_t size,
				 char *text)
{
	uint64_t address = address_of(place);
	uint64_t upper = upper_of(place);
	uint64_t bad = 0;

	for (uint64_t i = 0; i < size; i += 8) {
		uint64_t want = scramble(address + i / 8) ^ upper;
		uint64_t found = 0;
		uint64_t width = size - i < 8 ? size - i : 8;
		uint64_t before = bad;

		memcpy(&found, in + i, width);
		for (uint64_t b = 0; b < width; b++)
			bad += in[i + b] != (uint8_t)(want >> 8 * b);
		if (before == 0 && bad > 0)
			describe(place, i, found, width, text);
	}
	return bad;
}

uint64_t tool_check(const struct tool_place *place, const void *bytes, uint64_t size, char *text)
{
	uint64_t address = address_of(place);
	uint64_t upper = upper_of(place);
	uint64_t words = size / 8;
	uint64_t differ = 0;
	const uint8_t *in = bytes;

	for (uint64_t i = 0; i < words; i++) {
		uint64_t word;

		memcpy(&word, in + i * 8, 8);
		differ |= word ^ scramble(address + i) ^ upper;
	}
	if (size % 8 > 0) {
		uint64_t word = scramble(address + words) ^ upper;

		differ |= (uint64_t)(memcmp(in + words * 8, &word, size % 8) != 0);
	}
	if (differ == 0)
		return 0;
	return count_mismatches(place, in, size, text);
}
