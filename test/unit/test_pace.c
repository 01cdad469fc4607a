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
	oki_pace_started(&past, 5000 * US);
	past.looked_ns = (5000 + us) * US;
	oki_pace_ended(&w, &past, (5001 + us) * US);
}

/* What the thread does about one that takes us. Returns us until it has seen the end. */
static uint64_t transfer(uint64_t bytes, uint64_t us, uint64_t spin_us)
{
	const uint64_t start = 1000000 * US, wake = 20 * US;
	uint64_t now = start + 10 * US;
	t = (struct oki_transfer){.phase = OKI_PHASE_DRAIN, .bytes = bytes};
	oki_pace_started(&t, start);
	oki_pace_submitted(&w, &t);
	while (now < start + us * US) {
		t.looked_ns = now;
		if (oki_pace_spins(&w, now, start, spin_us * US))
			now += US;
		else
			now = oki_pace_next(&w, now) + wake;
	}
	oki_pace_ended(&w, &t, now);
	return (now - start) / US;
}

static void submit(uint64_t started_us)
{
	t.started_ns = t.expected_ns = t.looked_ns = 0;
	oki_pace_started(&t, started_us * US);
	oki_pace_started(&t, (started_us + 40) * US); /* a later part */
	oki_pace_submitted(&w, &t);
}

START_TEST(an_end_is_awaited_when_it_is_due)
{
	learn(4 * MIB, 100);
	submit(1000); /* due at 1,100 us */
	/* Asleep until just before. */
	ck_assert(!oki_pace_spins(&w, 1055 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_pace_next(&w, 1055 * US), 1070 * US);
	ck_assert(oki_pace_spins(&w, 1070 * US, 1000 * US, 50 * US));
	ck_assert(oki_pace_spins(&w, 1149 * US, 1000 * US, 50 * US));
	/* Later than ever: now and then. */
	ck_assert(!oki_pace_spins(&w, 1150 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_pace_next(&w, 1150 * US), 1200 * US);
	/* Who must not spin does not. */
	ck_assert(!oki_pace_spins(&w, 1090 * US, 1000 * US, 0));
}
END_TEST

/* The fastest past one counts: a slow one shared the link, or waited. */
START_TEST(nothing_is_expected_too_late)
{
	learn(4 * MIB, 100);
	learn(4 * MIB, 800);
	learn(MIB / 2, 1); /* says nothing */
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1100 * US);
	learn(6 * MIB, 120);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1080 * US);
	/* What had ended before anybody looked says nothing. */
	struct oki_transfer unseen = {.bytes = 4 * MIB};
	oki_pace_started(&unseen, 5000 * US);
	oki_pace_ended(&w, &unseen, 5001 * US);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1080 * US);
	setup();
	oki_pace_ended(&w, &unseen, 5001 * US);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
}
END_TEST

/* Small ones take longer for each byte, and the link may be slower one way. */
START_TEST(each_size_and_direction_has_its_own)
{
	learn(4 * MIB, 100);
	for (uint64_t mib = 1; mib <= 1024; mib++) {
		t.bytes = mib * MIB;
		submit(1000);
		ck_assert_uint_eq(t.expected_ns, mib >= 4 && mib < 8 ? (1000 + mib * 25) * US : 0);
	}
	t.bytes = 4 * MIB;
	t.direction = OKI_TO_BLOCKS;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
	learn(1024ull * MIB, 20480);
	t.direction = OKI_TO_PAGES;
	t.bytes = 300ull * MIB;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 7000 * US);
}
END_TEST

/* A thread that sleeps too long must not take that for the time that copies take: one slow
 * transfer would make all later ones as slow. */
START_TEST(a_slow_past_is_soon_forgotten)
{
	static const struct {
		uint64_t mib, us;
	} sizes[] = {{4, 100}, {64, 1300}};
	const uint64_t mib = sizes[_i].mib, us = sizes[_i].us;
	for (uint64_t slow = us + us / 8; slow < 100 * us; slow *= 2) {
		setup();
		for (int n = 0; n < 3; n++)
			transfer(mib * MIB, slow, 50);
		/* At once no more than twice as long and a sleep, */
		ck_assert_uint_le(transfer(mib * MIB, us, 50), 2 * us + 70);
		/* soon no more than a sleep, and then exactly. */
		for (int n = 0; n < 16; n++)
			transfer(mib * MIB, us, 50);
		for (int n = 0; n < 10; n++)
			ck_assert_uint_le(transfer(mib * MIB, us, 50), us + 2);
		/* A slow one changes nothing. */
		transfer(mib * MIB, slow, 50);
		ck_assert_uint_le(transfer(mib * MIB, us, 50), us + 2);
	}
}
END_TEST

/* Who must not spin is late by a sleep, and no more. */
START_TEST(without_spinning_it_looks_now_and_then)
{
	for (int n = 0; n < 3; n++)
		transfer(64 * MIB, 5000, 0);
	for (int n = 0; n < 10; n++)
		transfer(64 * MIB, 1300, 0);
	for (int n = 0; n < 10; n++)
		ck_assert_uint_le(transfer(64 * MIB, 1300, 0), 1300 + 70);
}
END_TEST

/* A few looks for a transfer, not one every 50 us. */
START_TEST(a_long_one_is_looked_at_a_few_times)
{
	for (int n = 0; n < 5; n++)
		transfer(64 * MIB, 1300, 50);
	submit(1000);
	uint64_t now = 1010 * US;
	uint32_t looks = 0;
	while (!oki_pace_spins(&w, now, 900 * US, 50 * US)) {
		uint64_t next = oki_pace_next(&w, now);
		ck_assert_uint_gt(next, now);
		now = next;
		looks++;
	}
	ck_assert_uint_le(looks, 7);
	ck_assert_uint_le(now, t.expected_ns);
	ck_assert_uint_ge(now + 30 * US, t.expected_ns);
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
	ck_assert_uint_eq(oki_pace_next(&w, 2000 * US), 2050 * US);
	t.pieces.marks[0] = NULL;
	ops.has_callbacks = true;
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0);
	ck_assert_uint_eq(oki_pace_next(&w, 2000 * US), UINT64_MAX);
}
END_TEST

/* Who waits for the Manager looks by himself for longer, and then only after a kick. */
START_TEST(a_claim_is_awaited_longer)
{
	t.phase = OKI_PHASE_CLAIM;
	ck_assert(oki_pace_spins(&w, 1199 * US, 1000 * US, 50 * US));
	ck_assert(!oki_pace_spins(&w, 1200 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_pace_next(&w, 1200 * US), UINT64_MAX);
	w.active = NULL;
	ck_assert(!oki_pace_spins(&w, 1100 * US, 1000 * US, 50 * US));
	ck_assert_uint_eq(oki_pace_next(&w, 1100 * US), UINT64_MAX);
}
END_TEST

/* So is the Manager that seals a publish; a restore has ended by then. */
START_TEST(a_seal_is_awaited_longer)
{
	w.active = NULL;
	w.settling = &t;
	t.direction = OKI_TO_BLOCKS;
	ck_assert(oki_pace_spins(&w, 1199 * US, 1000 * US, 50 * US));
	ck_assert(!oki_pace_spins(&w, 1200 * US, 1000 * US, 50 * US));
	ck_assert(!oki_pace_spins(&w, 1100 * US, 1000 * US, 0));
	t.direction = OKI_TO_PAGES;
	ck_assert(!oki_pace_spins(&w, 1050 * US, 1000 * US, 50 * US));
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
	tcase_add_loop_test(tc, a_slow_past_is_soon_forgotten, 0, 2);
	tcase_add_test(tc, without_spinning_it_looks_now_and_then);
	tcase_add_test(tc, a_long_one_is_looked_at_a_few_times);
	tcase_add_test(tc, nothing_is_expected_without_reason);
	tcase_add_test(tc, a_claim_is_awaited_longer);
	tcase_add_test(tc, a_seal_is_awaited_longer);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
