/* SPDX-License-Identifier: Apache-2.0 */
/* The pace of the copy kernel's groups on made-up clocks, which may go back. */
#include <check.h>

#include "kernels/gather_pace.h"
#include "support/suite.h"

#define TAKES (2000ull * OKI_GATHER_PACE) /* of a piece: 2 us */
#define PIECES 100u
#define NAP_NS 100u

/* As the kernel does it. skew_ns: by how much the clocks of two SMs differ, on which it goes on in
 * turns. Returns how often it slept. */
static uint32_t pieces(struct oki_gather_schedule *s, uint64_t *now_ns, uint64_t skew_ns)
{
	uint32_t looks = 0;
	for (uint32_t p = 0; p < PIECES; p++) {
		const uint64_t skew = p % 2 ? 0 : skew_ns;
		uint32_t n = 0;
		oki_gather_catch_up(s, *now_ns - skew, TAKES);
		for (; n < OKI_GATHER_LOOKS && oki_gather_is_early(s, *now_ns - skew); n++)
			*now_ns += NAP_NS;
		looks += n;
		oki_gather_take(s, *now_ns - skew, TAKES);
	}
	return looks;
}

START_TEST(a_group_keeps_its_pace)
{
	uint64_t now = 5000000;
	struct oki_gather_schedule s = oki_gather_begin(now, now + 10000, TAKES / 2);
	pieces(&s, &now, 0);
	/* 10 us until the launch before is through, half a piece, and all pieces but the last one.
	 */
	ck_assert_uint_ge(now - 5000000, 10000 + 1000 + (PIECES - 1) * 2000);
	ck_assert_uint_le(now - 5000000, 10000 + 1000 + PIECES * 2000);
}
END_TEST

/* A launch before that is through already holds up nobody, whatever it says. */
START_TEST(the_past_holds_up_nobody)
{
	static const uint64_t untils[] = {0, 4999999, 5000000};
	struct oki_gather_schedule s = oki_gather_begin(5000000, untils[_i], 0);
	ck_assert(!oki_gather_is_early(&s, 5000000));
}
END_TEST

/* Held up for long, it is behind by two pieces and no more. */
START_TEST(who_was_held_up_hurries_for_a_moment)
{
	struct oki_gather_schedule s = oki_gather_begin(5000000, 5000000, 0);
	uint64_t now = 9000000;
	pieces(&s, &now, 0);
	ck_assert_uint_ge(now - 9000000, (PIECES - 3) * 2000);
	ck_assert_uint_le(now - 9000000, (PIECES - 2) * 2000);
}
END_TEST

/* Right after it began, and ever again: it waits as much longer, and not for ever. */
START_TEST(a_clock_that_goes_back_keeps_nobody)
{
	static const uint64_t skews[] = {1, 32, 1000, 100000};
	uint64_t now = 5000000;
	struct oki_gather_schedule s = oki_gather_begin(now, now, 0);
	pieces(&s, &now, skews[_i]);
	ck_assert_uint_le(now - 5000000, PIECES * (2000 + 2 * skews[_i]));
}
END_TEST

/* Years: one piece waits as long as any may, and then it is as if nothing had been. */
START_TEST(a_clock_that_leaps_keeps_nobody_for_ever)
{
	uint64_t now = 5000000;
	struct oki_gather_schedule s = oki_gather_begin(now, now + (1ull << 52), 0);
	ck_assert_uint_le(pieces(&s, &now, 0), OKI_GATHER_LOOKS + PIECES * 2000 / NAP_NS);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("gather pace");
	TCase *tc = tcase_create("gather pace");
	tcase_add_test(tc, a_group_keeps_its_pace);
	tcase_add_loop_test(tc, the_past_holds_up_nobody, 0, 3);
	tcase_add_test(tc, who_was_held_up_hurries_for_a_moment);
	tcase_add_loop_test(tc, a_clock_that_goes_back_keeps_nobody, 0, 4);
	tcase_add_test(tc, a_clock_that_leaps_keeps_nobody_for_ever);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
