/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The set of events in use: what was added is there, what was removed is not. */
#include "engine/event_set.h"
#include "support/suite.h"

#include <check.h>
#include <stdint.h>

#define EVENTS 500u

/* Addresses that lie side by side, far apart, and a multiple of the table apart. */
static const void *event_at(uint32_t i, uint32_t step)
{
	return (const void *)(uintptr_t)(0x10000 + (uintptr_t)i * step);
}

START_TEST(the_set_agrees_with_a_list)
{
	static const uint32_t steps[] = {8, 4096, 1u << 20, 1};
	uint32_t step = steps[_i];
	struct oki_event_set set = {.slots = NULL};
	bool in[EVENTS] = {false};
	uint32_t count = 0, random = 12345;
	for (uint32_t turn = 0; turn < 20000; turn++) {
		random = random * 1664525u + 1013904223u;
		uint32_t i = (random >> 8) % EVENTS;
		/* It grows and shrinks by turns. */
		bool add = (random >> 28) < (turn / 2000 % 2 ? 4 : 12);
		if (add && !in[i]) {
			ck_assert(oki_event_set_reserve(&set, 1));
			oki_event_set_add(&set, event_at(i, step));
		} else if (!add) {
			oki_event_set_remove(&set, event_at(i, step));
		}
		count = count + (add && !in[i]) - (!add && in[i]);
		in[i] = add;
		ck_assert_uint_eq(set.count, count);
		ck_assert_uint_ge(set.capacity, 2 * set.count);
		if (turn % 50 == 0)
			for (uint32_t k = 0; k < EVENTS; k++)
				ck_assert_int_eq(oki_event_set_has(&set, event_at(k, step)), in[k]);
	}
	oki_event_set_fini(&set);
}
END_TEST

START_TEST(an_empty_set_has_nothing)
{
	struct oki_event_set set = {.slots = NULL};
	int event = 0;
	ck_assert(!oki_event_set_has(&set, &event));
	oki_event_set_remove(&set, &event);
	ck_assert(oki_event_set_reserve(&set, 0));
	ck_assert(oki_event_set_reserve(&set, 1));
	ck_assert(!oki_event_set_has(&set, &event));
	ck_assert(!oki_event_set_reserve(&set, UINT32_MAX));
	oki_event_set_add(&set, &event);
	ck_assert(oki_event_set_has(&set, &event));
	oki_event_set_fini(&set);
	ck_assert(!oki_event_set_has(&set, &event));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("event_set");
	TCase *t = tcase_create("event_set");
	tcase_add_loop_test(t, the_set_agrees_with_a_list, 0, 4);
	tcase_add_test(t, an_empty_set_has_nothing);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
