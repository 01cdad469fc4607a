/* SPDX-License-Identifier: Apache-2.0 */
/* The pattern that the tools fill blocks with: every bit of an id counts, misplaced bytes say
 * whose. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "support/suite.h"
#include "tool_pattern.h"

#define BYTES 100 /* no whole number of words */

static const uint64_t ids[] = {0,	   1,	      TOOL_MAX_ID, TOOL_MAX_ID + 1ull,
			       1ull << 32, INT64_MAX, 1ull << 63,  UINT64_MAX};
#define IDS (sizeof(ids) / sizeof(ids[0]))

START_TEST(what_was_filled_is_right)
{
	struct tool_place place = {ids[_i], 1023, 7};
	uint8_t bytes[BYTES];
	char text[TOOL_TEXT] = "";

	tool_fill(&place, bytes, BYTES);
	ck_assert_uint_eq(tool_check(&place, bytes, BYTES, text), 0);
	ck_assert_str_eq(text, "");
	bytes[BYTES - 1] ^= 1;
	ck_assert_uint_eq(tool_check(&place, bytes, BYTES, text), 1);
	ck_assert_ptr_nonnull(strstr(text, "offset 96 holds other bytes"));
}
END_TEST

START_TEST(each_bit_of_an_id_changes_key_and_bytes)
{
	uint8_t key[TOOL_KEY_BYTES];
	uint8_t other_key[TOOL_KEY_BYTES];
	uint8_t bytes[8];
	char text[TOOL_TEXT];

	tool_key(ids[_i], key);
	for (int bit = 0; bit < 64; bit++) {
		struct tool_place place = {ids[_i], 0, 0};
		struct tool_place other = {ids[_i] ^ 1ull << bit, 0, 0};

		tool_key(other.id, other_key);
		ck_assert_int_ne(memcmp(key, other_key, sizeof(key)), 0);
		tool_fill(&other, bytes, sizeof(bytes));
		ck_assert_uint_gt(tool_check(&place, bytes, sizeof(bytes), text), 0);
	}
}
END_TEST

/* Is it told that bytes of `from` stand where those of `at` belong? */
static void told(const struct tool_place *at, const struct tool_place *from, const char *words)
{
	uint8_t bytes[16];
	char text[TOOL_TEXT];

	tool_fill(from, bytes, sizeof(bytes));
	ck_assert_uint_gt(tool_check(at, bytes, sizeof(bytes), text), 0);
	ck_assert_msg(strstr(text, words) != NULL, "'%s' lacks '%s'", text, words);
}

START_TEST(misplaced_bytes_say_whose_they_are)
{
	told(&(struct tool_place){5, 1, 0}, &(struct tool_place){6, 2, 1},
	     "block 5 layer 1 segment 0 offset 0 holds ");
	told(&(struct tool_place){5, 1, 0}, &(struct tool_place){6, 2, 1},
	     ", as in block 6 layer 2 segment 1 offset 0");
	told(&(struct tool_place){UINT64_MAX, 1, 0}, &(struct tool_place){UINT64_MAX, 3, 1},
	     ", as in block 18446744073709551615 layer 3 segment 1 offset 0");
	/* The upper bits of its id could be any. */
	told(&(struct tool_place){UINT64_MAX, 1, 0}, &(struct tool_place){1ull << 40, 1, 0},
	     "holds other bytes");
}
END_TEST

START_TEST(poison_and_zeros_are_told)
{
	const struct tool_place place = {ids[_i], 1, 0};
	uint8_t bytes[16];
	char text[TOOL_TEXT];

	memset(bytes, TOOL_POISON, sizeof(bytes));
	ck_assert_uint_gt(tool_check(&place, bytes, sizeof(bytes), text), 0);
	ck_assert_ptr_nonnull(strstr(text, "poison: it was never written"));
	memset(bytes, 0, sizeof(bytes));
	ck_assert_uint_gt(tool_check(&place, bytes, sizeof(bytes), text), 0);
	ck_assert_ptr_nonnull(strstr(text, "zeros"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tool_pattern");
	TCase *tc = tcase_create("tool_pattern");

	tcase_add_loop_test(tc, what_was_filled_is_right, 0, IDS);
	tcase_add_loop_test(tc, each_bit_of_an_id_changes_key_and_bytes, 0, IDS);
	tcase_add_test(tc, misplaced_bytes_say_whose_they_are);
	tcase_add_loop_test(tc, poison_and_zeros_are_told, 0, IDS);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
