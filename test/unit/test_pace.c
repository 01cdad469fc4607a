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

/* One of `bytes` that took us. */
static void learn(uint64_t bytes, uint64_t us)
{
	struct oki_transfer past = {.bytes = bytes};
	oki_pace_started(&past, 5000 * US);
	oki_pace_ended(&w, &past, (5000 + us) * US);
}

static void submit(uint64_t started_us)
{
	t.started_ns = t.expected_ns = 0;
	oki_pace_started(&t, started_us * US);
	oki_pace_started(&t, (started_us + 40) * US); /* a later part */
	oki_pace_submitted(&w, &t);
}

START_TEST(an_end_is_awaited_when_it_is_due)
{
	learn(2 * MIB, 50);
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
	learn(2 * MIB, 50);
	learn(2 * MIB, 400);
	learn(MIB / 2, 1); /* says nothing */
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1100 * US);
	learn(10 * MIB, 200);
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 1080 * US);
}
END_TEST

START_TEST(nothing_is_expected_without_reason)
{
	submit(1000);
	ck_assert_uint_eq(t.expected_ns, 0); /* no past */
	learn(2 * MIB, 50);
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
	tcase_add_test(tc, nothing_is_expected_without_reason);
	tcase_add_test(tc, a_claim_is_awaited_longer);
	tcase_add_test(tc, a_seal_is_awaited_longer);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
