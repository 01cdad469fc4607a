/* SPDX-License-Identifier: Apache-2.0 */
/* When a worker looks at its marks again: how late it sees ends, how often it looks, and who spins,
 * on made-up times. */
#include <check.h>
#include <stdlib.h>

#include "exec/exec_private.h"
#include "support/suite.h"

#define MIB (1u << 20)
#define US 1000u
#define SPIN (50 * US)

static struct oki_device_ops ops;
static struct oki_worker w;
static struct oki_transfer t;
static uint64_t wake;	  /* sleeps are too long by so much */
static uint64_t prepared; /* from the start until all is submitted */
static uint64_t spin;
static uint32_t sleeps; /* of the last transfer */
static uint64_t piece_end, now_ns;

/* Of the piece before the last. */
static int query(struct oki_mark *mark, struct okv_error *err)
{
	(void)mark, (void)err;
	return now_ns >= piece_end;
}

static void setup(void)
{
	ops = (struct oki_device_ops){.name = "polled", .query = query};
	w = (struct oki_worker){.ops = &ops, .active = &t};
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = 4 * MIB};
	wake = 30 * US;
	prepared = 10 * US;
	spin = SPIN;
}

/* What the thread does until it has seen the end of t, which takes so long. Returns how late. */
static uint64_t run(uint64_t takes)
{
	const uint64_t start = 1000000 * US;
	now_ns = start + prepared;
	sleeps = 0;
	oki_poll_started(&t, start);
	oki_poll_submitted(&w, &t, now_ns);
	while (now_ns < start + takes) {
		oki_poll_looked(&w, &t, now_ns);
		if (oki_poll_spins(&w, now_ns, start, spin)) {
			ck_assert_uint_gt(spin, 0);
			now_ns += US;
			continue;
		}
		uint64_t next = oki_poll_next(&w, now_ns);
		ck_assert_uint_gt(next, now_ns);
		ck_assert_uint_le(next, start + 100 * takes);
		now_ns = next + wake;
		sleeps++;
	}
	oki_poll_ended(&w, &t, now_ns);
	return now_ns - start - takes;
}

static uint64_t late_of(uint64_t bytes, uint64_t us, bool fenced)
{
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = bytes, .fenced = fenced};
	return run(us * US);
}

/* With and without leave to spin, where sleeps are as long as they should be, and where they are
 * not. */
static void set_kind(int i)
{
	spin = i & 1 ? SPIN : 0;
	wake = i & 2 ? 60 * US : 30 * US;
}

/* Within three wakings, whatever its size and whatever is known; one like those before it, by who
 * may spin and is woken in time, within one. */
START_TEST(an_end_is_seen_soon)
{
	static const uint64_t kib[] = {0, 512, 1024, 1946, 3994, 16384, 65433, 65536};
	set_kind(_i);
	for (size_t i = 0; i < sizeof(kib) / sizeof(kib[0]); i++)
		for (uint64_t us = 100; us < 30000; us *= 3) {
			w = (struct oki_worker){.ops = &ops, .active = &t};
			for (int n = 0; n < 20; n++) {
				uint64_t late = late_of(kib[i] << 10, us, false);
				ck_assert_uint_le(late, 3 * wake);
				if (_i == 1 && n >= 10 && kib[i] >= 1024)
					ck_assert_uint_le(late, wake);
			}
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
	const uint64_t bytes = sizes[_i / 4].mib * MIB, us = sizes[_i / 4].us;
	set_kind(_i);
	for (uint64_t slow = us + us / 8; slow < 100 * us; slow *= 2) {
		w = (struct oki_worker){.ops = &ops, .active = &t};
		for (int n = 0; n < 3; n++)
			late_of(bytes, slow, false);
		/* By no more than a part of its own time, */
		for (int n = 0; n < 16; n++)
			ck_assert_uint_le(late_of(bytes, us, false), us * US / 4 + 3 * wake);
		/* and soon not even that, */
		for (int n = 0; n < 10; n++)
			ck_assert_uint_le(late_of(bytes, us, false), 3 * wake);
		/* nor after one more. */
		late_of(bytes, slow, false);
		ck_assert_uint_le(late_of(bytes, us, false), 3 * wake);
	}
	/* The time until it was submitted is none of its own. */
	for (int n = 0; n < 3; n++)
		late_of(32 * MIB, 1000000, false);
	prepared = 500000 * US;
	ck_assert_uint_le(late_of(32 * MIB, 500200, false), 50 * US + 3 * wake);
}
END_TEST

/* Some by the kernel, some by copy engines, and to blocks as well: the slow ones do not hold up the
 * fast ones. */
START_TEST(fast_and_slow_in_turn)
{
	set_kind(_i);
	for (int n = 0; n < 40; n++) {
		uint64_t us = (n & 1) == !!(_i & 4) ? 2200 : 1400;
		ck_assert_uint_le(late_of(64 * MIB, us, false),
				  3 * wake + (n < 6 ? us * US / 4 : 0));
		t = (struct oki_transfer){
			.phase = OKI_PHASE_DRAIN, .bytes = 64 * MIB, .direction = OKI_TO_BLOCKS};
		ck_assert_uint_le(run(20000 * US), 3 * wake);
	}
}
END_TEST

/* One that a caller's stream holds up says nothing, and nobody knows when it ends. */
START_TEST(fences_tell_nothing)
{
	set_kind(_i);
	for (int n = 0; n < 3; n++)
		ck_assert_uint_le(late_of(16 * MIB, 30000, true), 3 * wake);
	ck_assert_uint_le(late_of(16 * MIB, 9000, true), 3 * wake);
	for (int n = 0; n < 3; n++)
		ck_assert_uint_le(late_of(16 * MIB, 9000, false), 3 * wake);
	ck_assert_uint_le(late_of(16 * MIB, 2000, true), 3 * wake);
}
END_TEST

/* Nor does a large one, submitted as its pieces end: whether its first pieces take their share of
 * the time, waited, or had ended before anybody looked. */
START_TEST(the_last_piece_is_seen_soon)
{
	static const struct {
		uint64_t us; /* of all but the last one */
		bool fenced;
	} first[] = {{1200, false}, {1200, true}, {1450, true}, {5, false}, {5, true}};
	set_kind(_i);
	for (uint32_t i = 0; i < 5; i++) {
		piece_end = (1000000 + first[i].us) * US;
		t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = 80 * MIB};
		t.pieces = (struct oki_pieces){.marks = {(struct oki_mark *)&t, NULL},
					       .busy = {true, false},
					       .filling = 1,
					       .bytes = 16 * MIB};
		t.fenced = first[i].fenced;
		ck_assert_uint_le(run(1500 * US), 3 * wake);
	}
}
END_TEST

/* A first piece may be a tiny layer alone, as the next one fills a piece: it tells nothing of the
 * link. */
START_TEST(a_tiny_piece_predicts_nothing)
{
	static const uint64_t tiny[] = {1, 512, 1024};
	set_kind(_i % 4);
	piece_end = (1000000 + 100) * US;
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = 64 * MIB + tiny[_i / 4]};
	t.pieces = (struct oki_pieces){.marks = {(struct oki_mark *)&t, NULL},
				       .busy = {true, false},
				       .filling = 1,
				       .bytes = 64 * MIB};
	ck_assert_uint_le(run(1500 * US), 3 * wake);
	ck_assert_uint_eq(t.expected_ns, 0);
}
END_TEST

/* A few looks for one like those before it, however long that is. */
START_TEST(a_long_one_is_looked_at_a_few_times)
{
	set_kind(_i);
	for (uint64_t us = 100; us < 1000000; us *= 10) {
		w = (struct oki_worker){.ops = &ops, .active = &t};
		for (int n = 0; n < 10; n++) {
			late_of(64 * MIB, us, false);
			ck_assert(n < 5 || sleeps <= 40);
		}
	}
}
END_TEST

/* For the time it may, and whoever must not does not, whatever it waits for: copies that end later
 * than ever, the Manager that prepares, the Manager that seals. */
START_TEST(nobody_spins_for_ever)
{
	const uint64_t end = 1500 * US, start = 1000000 * US;
	for (int n = 0; n < 5; n++)
		late_of(4 * MIB, 1500, false);
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = 4 * MIB};
	oki_poll_started(&t, start);
	oki_poll_submitted(&w, &t, start);
	if (_i == 1)
		t.phase = OKI_PHASE_CLAIM;
	if (_i == 2) {
		t.direction = OKI_TO_BLOCKS;
		w.active = NULL;
		w.unreaped = &t;
	}
	uint64_t spun = 0;
	for (uint64_t at = start; at < start + 100 * end; at += US) {
		ck_assert(!oki_poll_spins(&w, at, start, 0));
		bool spins = oki_poll_spins(&w, at, start, SPIN);
		ck_assert(spins || at - start >= SPIN);
		spun += spins;
	}
	ck_assert_uint_le(spun * US, 5 * SPIN);
}
END_TEST

/* Who is called looks when he is, and who waits for the Manager, or for nothing, as well. */
START_TEST(who_is_woken_does_not_look)
{
	t.phase = OKI_PHASE_CLAIM;
	ck_assert_uint_eq(oki_poll_next(&w, 1200 * US), UINT64_MAX);
	ops.has_callbacks = true;
	t.phase = OKI_PHASE_DRAIN;
	ck_assert_uint_eq(oki_poll_next(&w, 1200 * US), UINT64_MAX);
	w.active = NULL;
	ck_assert_uint_eq(oki_poll_next(&w, 1200 * US), UINT64_MAX);
	ck_assert(!oki_poll_spins(&w, 1100 * US, 1000 * US, SPIN));
	/* A restore has ended when it is drained; nobody waits for its pages. */
	w.unreaped = &t;
	ck_assert(!oki_poll_spins(&w, 1100 * US, 1000 * US, SPIN));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("poll schedule");
	TCase *tc = tcase_create("poll schedule");
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_loop_test(tc, an_end_is_seen_soon, 0, 4);
	tcase_add_loop_test(tc, a_slow_past_is_soon_forgotten, 0, 8);
	tcase_add_loop_test(tc, fast_and_slow_in_turn, 0, 8);
	tcase_add_loop_test(tc, fences_tell_nothing, 0, 4);
	tcase_add_loop_test(tc, the_last_piece_is_seen_soon, 0, 4);
	tcase_add_loop_test(tc, a_tiny_piece_predicts_nothing, 0, 12);
	tcase_add_loop_test(tc, a_long_one_is_looked_at_a_few_times, 0, 4);
	tcase_add_loop_test(tc, nobody_spins_for_ever, 0, 3);
	tcase_add_test(tc, who_is_woken_does_not_look);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
