/* SPDX-License-Identifier: Apache-2.0 */
/* When a worker looks at its marks again: arithmetic on made-up times. */
#include <check.h>
#include <stdlib.h>

#include "exec/exec_private.h"
#include "support/suite.h"

#define MIB (1u << 20)
#define US 1000u

static struct oki_device_ops ops;
static struct oki_worker w;
static struct oki_transfer t;

static void setup(void)
{
	ops = (struct oki_device_ops){.name = "polled"};
	w = (struct oki_worker){.ops = &ops, .active = &t};
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = 4 * MIB};
}

/* One of `bytes` that took us, seen on its way until then. */
static void learn(uint64_t bytes, uint64_t us)
{
	struct oki_transfer past = {.bytes = bytes};
	oki_poll_started(&past, 5000 * US);
	past.looked_ns = (5000 + us) * US;
	oki_poll_ended(&w, &past, (5001 + us) * US);
}

/* What the thread does about one that takes us, its sleeps `wake` us too long. Returns us until it
 * has seen the end. */
static uint64_t transfer(uint64_t bytes, uint64_t us, uint64_t spin_us, uint64_t wake)
{
	const uint64_t start = 1000000 * US;
	uint64_t now = start + 10 * US;
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = bytes, .fenced = t.fenced};
	oki_poll_started(&t, start);
	oki_poll_submitted(&w, &t, now);
	while (now < start + us * US) {
		t.looked_ns = now;
		if (oki_poll_spins(&w, now, start, spin_us * US)) {
			now += US;
		} else {
			uint64_t next = oki_poll_next(&w, now);
			ck_assert_uint_gt(next, now);
			now = next + wake * US;
		}
	}
	oki_poll_ended(&w, &t, now);
	return (now - start) / US;
}

static void submit(uint64_t started_us)
{
	t.started_ns = t.expected_ns = t.looked_ns = 0;
	oki_poll_started(&t, started_us * US);
	oki_poll_started(&t, (started_us + 40) * US); /* a later part */
	oki_poll_submitted(&w, &t, (started_us + 40) * US);
}

START_TEST(an_end_is_awaited_when_it_is_due)
{
	learn(4 * MIB, 100);
	submit(1000); /* due at 1,100 us */
	/* Asleep until just before. */
	ck_assert(!oki_poll_spins(&w, 1055 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_poll_next(&w, 1055 * US), 1070 * US);
	ck_assert(oki_poll_spins(&w, 1070 * US, 1000 * US, 50 * US));
	ck_assert(oki_poll_spins(&w, 1149 * US, 1000 * US, 50 * US));
	/* Later than ever: now and then. */
	ck_assert(!oki_poll_spins(&w, 1150 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_poll_next(&w, 1150 * US), 1200 * US);
	/* Who must not spin does not. */
	ck_assert(!oki_poll_spins(&w, 1090 * US, 1000 * US, 0));
}
END_TEST

/* The fastest past one counts: a slow one shared the link, or waited. */
START_TEST(nothing_is_expected_too_late)
{
	learn(4 * MIB, 100);
	learn(4 * MIB, 800);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1100 * US);
	/* Short ones say nothing. */
	learn(MIB / 2, 1);
	learn(0, 1);
	t.bytes = MIB;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
	t.bytes = 4 * MIB;
	learn(6 * MIB, 120);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1080 * US);
	/* What had ended before anybody looked says nothing. */
	struct oki_transfer unseen = {.bytes = 4 * MIB};
	oki_poll_started(&unseen, 5000 * US);
	oki_poll_ended(&w, &unseen, 5001 * US);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1080 * US);
	setup();
	oki_poll_ended(&w, &unseen, 5001 * US);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
}
END_TEST

/* Small ones take longer for each byte, and the link may be slower one way. */
START_TEST(each_size_and_direction_has_its_own)
{
	for (uint64_t mib = 1; mib <= 64; mib *= 2)
		learn(mib * MIB, 1000 + mib);
	for (uint64_t mib = 1; mib <= 64; mib++) {
		uint64_t size = 1;
		while (2 * size <= mib)
			size *= 2;
		t.bytes = mib * MIB;
		submit(1000);
		uint64_t due_us = 1000 + (1000 + size) * mib / size;
		ck_assert_uint_ge(t.expected_ns, (due_us - 1) * US);
		ck_assert_uint_le(t.expected_ns, (due_us + 1) * US);
	}
	t.direction = OKI_TO_BLOCKS;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
}
END_TEST

/* Also of sizes that are no whole MiB: what is learned of one holds for the next. */
START_TEST(what_is_learned_holds)
{
	static const uint64_t kib[] = {1024, 1946, 2047, 3994, 8090, 65433};
	for (size_t i = 0; i < sizeof(kib) / sizeof(kib[0]); i++) {
		setup();
		learn(kib[i] * 1024, 900);
		t.bytes = kib[i] * 1024;
		submit(1000);
		ck_assert_uint_le(t.expected_ns, 1900 * US);
		ck_assert_uint_ge(t.expected_ns, 1898 * US);
	}
}
END_TEST

/* A thread that sleeps too long must not take that for the time that copies take: one slow
 * transfer would make all later ones as slow. */
START_TEST(a_slow_past_is_soon_forgotten)
{
	static const struct {
		uint64_t mib, us;
	} sizes[] = {{4, 100}, {64, 1300}};
	const uint64_t mib = sizes[_i / 2].mib, us = sizes[_i / 2].us, wake = _i % 2 ? 60 : 20;
	for (uint64_t slow = us + us / 8; slow < 100 * us; slow *= 2) {
		setup();
		for (int n = 0; n < 3; n++)
			transfer(mib * MIB, slow, 50, wake);
		/* Never more than a quarter longer and a sleep, */
		for (int n = 0; n < 16; n++)
			ck_assert_uint_le(transfer(mib * MIB, us, 50, wake),
					  us + us / 4 + 50 + wake);
		/* and soon, if its sleeps are not too long, exactly. */
		for (int n = 0; n < 10; n++)
			ck_assert_uint_le(transfer(mib * MIB, us, 50, wake),
					  us + (wake == 20 ? 2 : 50 + wake));
		/* A slow one changes nothing. */
		transfer(mib * MIB, slow, 50, wake);
		ck_assert_uint_le(transfer(mib * MIB, us, 50, wake),
				  us + (wake == 20 ? 2 : 50 + wake));
	}
}
END_TEST

/* Some by the kernel, some by copy engines: the slow ones do not hold up the fast ones. */
START_TEST(fast_and_slow_in_turn)
{
	const uint64_t spin = _i & 1 ? 50 : 0, wake = _i & 2 ? 60 : 40, late = 50 + wake;
	for (int n = 0; n < 40; n++) {
		bool slow = (n & 1) == !!(_i & 4);
		uint64_t us = slow ? 2200 : 1400;
		ck_assert_uint_le(transfer(64 * MIB, us, spin, wake),
				  us + late + (n < 6 ? us / 4 : 0));
	}
}
END_TEST

/* One that a caller's stream holds up says nothing, and nobody knows when it ends. */
START_TEST(fences_tell_nothing)
{
	t.fenced = true;
	for (int n = 0; n < 3; n++)
		ck_assert_uint_le(transfer(16 * MIB, 30000, 50, 20), 30000 + 70);
	ck_assert_uint_le(transfer(16 * MIB, 9000, 50, 20), 9000 + 70);
	t.fenced = false;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
	learn(4 * MIB, 100);
	t.fenced = true;
	t.bytes = 4 * MIB;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
}
END_TEST

/* Who must not spin is late by a sleep, and no more. */
START_TEST(without_spinning_it_looks_now_and_then)
{
	for (int n = 0; n < 3; n++)
		transfer(64 * MIB, 5000, 0, 20);
	for (int n = 0; n < 10; n++)
		transfer(64 * MIB, 1300, 0, 20);
	for (int n = 0; n < 10; n++)
		ck_assert_uint_le(transfer(64 * MIB, 1300, 0, 20), 1300 + 70);
}
END_TEST

/* A few looks for a transfer, not one every 50 us; from its last copy on, as parts may be long in
 * coming. */
START_TEST(a_long_one_is_looked_at_a_few_times)
{
	for (int n = 0; n < 5; n++)
		transfer(64 * MIB, 1300, 50, 20);
	submit(1000);
	uint64_t now = 1050 * US;
	uint32_t looks = 0;
	while (!oki_poll_spins(&w, now, 900 * US, 50 * US)) {
		now = oki_poll_next(&w, now);
		looks++;
	}
	ck_assert_uint_le(looks, 14);
	ck_assert_uint_le(now, t.expected_ns);
	ck_assert_uint_ge(now + 30 * US, t.expected_ns);
	learn(4 * MIB, 2000000);
	t.bytes = 4 * MIB;
	submit(1000);
	oki_poll_submitted(&w, &t, 1000000 * US);
	ck_assert_uint_eq(oki_poll_next(&w, 1000010 * US), 1000060 * US);
}
END_TEST

START_TEST(nothing_is_expected_without_reason)
{
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0); /* no past */
	learn(4 * MIB, 100);
	t.pieces.marks[0] = (struct oki_mark *)&t;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0); /* goes on as its pieces end */
	/* Soon: these are its last pieces. */
	ck_assert_uint_gt(oki_poll_next(&w, 2000 * US), 2000 * US);
	ck_assert_uint_lt(oki_poll_next(&w, 2000 * US), 2050 * US);
	t.pieces.marks[0] = NULL;
	ops.has_callbacks = true;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
	ck_assert_uint_eq(oki_poll_next(&w, 2000 * US), UINT64_MAX);
}
END_TEST

static int mark_state;

static int query(struct oki_mark *mark, struct okv_error *err)
{
	(void)err;
	ck_assert_ptr_eq(mark, (struct oki_mark *)&t.pieces);
	return mark_state;
}

/* 64 MiB by the end of one piece, and 16 in the last one: that one takes a quarter of the time. */
START_TEST(a_piece_tells_when_the_last_one_ends)
{
	ops.query = query;
	mark_state = 0;
	t.bytes = 80 * MIB;
	t.pieces = (struct oki_pieces){.marks = {(struct oki_mark *)&t.pieces, NULL},
				       .busy = {true, false},
				       .filling = 1,
				       .bytes = 16 * MIB};
	submit(1000);
	oki_poll_looked(&w, &t, 1100 * US);
	oki_poll_looked(&w, &t, 2200 * US);
	ck_assert_uint_eq(t.expected_ns, 0);
	ck_assert(!oki_poll_is_soon(&t, 2200 * US));
	/* By the last look that found it on its way: no later than it will. */
	mark_state = 1;
	oki_poll_looked(&w, &t, 2220 * US);
	ck_assert_uint_eq(t.expected_ns, 2500 * US);
	ck_assert(!oki_poll_is_soon(&t, 2439 * US));
	ck_assert(oki_poll_is_soon(&t, 2440 * US));
	ck_assert(!oki_poll_spins(&w, 2440 * US, 2220 * US, 50 * US));
	ck_assert_uint_eq(oki_poll_next(&w, 2440 * US), 2470 * US);
	ck_assert(oki_poll_spins(&w, 2470 * US, 2220 * US, 50 * US));
	/* Once. */
	oki_poll_looked(&w, &t, 2480 * US);
	ck_assert_uint_eq(t.expected_ns, 2500 * US);
}
END_TEST

/* Had it ended before anybody looked, or was it held up by a caller's stream, it tells nothing. */
START_TEST(a_piece_may_tell_nothing)
{
	ops.query = query;
	mark_state = 1;
	t.bytes = 80 * MIB;
	for (int fenced = 0; fenced < 2; fenced++) {
		t.pieces = (struct oki_pieces){.marks = {(struct oki_mark *)&t.pieces, NULL},
					       .busy = {true, false},
					       .filling = 1,
					       .bytes = 16 * MIB};
		t.fenced = fenced;
		submit(1000);
		t.looked_ns = fenced ? 2000 * US : 0;
		oki_poll_looked(&w, &t, 2220 * US);
		ck_assert_uint_eq(t.expected_ns, 0);
	}
}
END_TEST

/* Who waits for the Manager looks by himself for longer, and then only after a kick. */
START_TEST(a_claim_is_awaited_longer)
{
	t.phase = OKI_PHASE_CLAIM;
	ck_assert(oki_poll_spins(&w, 1199 * US, 1000 * US, 50 * US));
	ck_assert(!oki_poll_spins(&w, 1200 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_poll_next(&w, 1200 * US), UINT64_MAX);
	w.active = NULL;
	ck_assert(!oki_poll_spins(&w, 1100 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_poll_next(&w, 1100 * US), UINT64_MAX);
}
END_TEST

/* So is the Manager that seals a publish; a restore has ended by then. */
START_TEST(a_seal_is_awaited_longer)
{
	w.active = NULL;
	w.unreaped = &t;
	t.direction = OKI_TO_BLOCKS;
	ck_assert(oki_poll_spins(&w, 1199 * US, 1000 * US, 50 * US));
	ck_assert(!oki_poll_spins(&w, 1200 * US, 1000 * US, 50 * US));
	ck_assert(!oki_poll_spins(&w, 1100 * US, 1000 * US, 0));
	t.direction = OKI_TO_PAGES;
	ck_assert(!oki_poll_spins(&w, 1050 * US, 1000 * US, 50 * US));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("pace");
	TCase *tc = tcase_create("pace");
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, an_end_is_awaited_when_it_is_due);
	tcase_add_test(tc, nothing_is_expected_too_late);
	tcase_add_test(tc, each_size_and_direction_has_its_own);
	tcase_add_test(tc, what_is_learned_holds);
	tcase_add_loop_test(tc, a_slow_past_is_soon_forgotten, 0, 4);
	tcase_add_loop_test(tc, fast_and_slow_in_turn, 0, 8);
	tcase_add_test(tc, fences_tell_nothing);
	tcase_add_test(tc, without_spinning_it_looks_now_and_then);
	tcase_add_test(tc, a_long_one_is_looked_at_a_few_times);
	tcase_add_test(tc, nothing_is_expected_without_reason);
	tcase_add_test(tc, a_piece_tells_when_the_last_one_ends);
	tcase_add_test(tc, a_piece_may_tell_nothing);
	tcase_add_test(tc, a_claim_is_awaited_longer);
	tcase_add_test(tc, a_seal_is_awaited_longer);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
