/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Leases that name many blocks: how many, and that their end keeps nobody waiting. */
#include <pthread.h>
#include <stdatomic.h>
#include "index_fixture.h"
#include "support/suite.h"

#define REFERENCES (1u << 20) /* that the leases of one session may have */

START_TEST(references_of_a_session_are_bounded)
{
	struct bed bed;
	struct okw_lookup_reply reply, whole = {0};
	bed_init(&bed, MAX_KEYS);
	put(&bed, 1, 0, MAX_KEYS);
	lease(&bed, 0, 1, 1);
	for (uint32_t i = 1; i < REFERENCES / MAX_KEYS; i++)
		whole = lease(&bed, 0, 1, MAX_KEYS);
	ck_assert_int_eq(find(&bed, 0, 1, MAX_KEYS, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, MAX_KEYS - 1);
	ck_assert_uint_eq(reply.shortened, 1);
	ck_assert_int_eq(find(&bed, 0, 1, 1, &reply), OKV_E_AGAIN);
	/* Others are not refused, and what was released is to be had again. */
	lease(&bed, 1, 1, MAX_KEYS);
	oki_index_lease_release(bed.index, 0, whole.lease_slot);
	lease(&bed, 0, 1, MAX_KEYS);
	ck_assert_int_eq(find(&bed, 0, 1, 1, &reply), OKV_E_AGAIN);
	oki_index_session_end(bed.index, 0);
	lease(&bed, 0, 1, MAX_KEYS);
	bed_fini(&bed);
}
END_TEST

#define WATCHED_LEASES 64u

struct watch {
	struct bed *bed;
	_Atomic bool ready;
	bool between; /* seen: leases ended, and blocks are still pinned */
};

static void *watch_main(void *arg)
{
	struct watch *watch = arg;
	struct oki_index_stats now;
	do {
		now = stats(watch->bed);
		atomic_store(&watch->ready, true);
		watch->between |= now.leases < WATCHED_LEASES && now.bytes_pinned > 0;
	} while (now.leases > 0 || now.bytes_pinned > 0);
	return NULL;
}

static void end_session(struct bed *bed)
{
	oki_index_session_end(bed->index, 0);
}

static void expire_all(struct bed *bed)
{
	bed->now += TTL_NS;
	oki_index_expire(bed->index, bed->now);
}

/* Is a thread answered while many leases end? Chance may keep it off the processor all the while,
 * so it gets several tries. */
static void check_answered(void (*end)(struct bed *bed))
{
	struct bed bed;
	struct watch watch;
	bed_init(&bed, MAX_KEYS);
	put(&bed, 1, 0, MAX_KEYS);
	for (uint32_t try = 0; try < 50; try++) {
		pthread_t thread;
		watch = (struct watch){.bed = &bed};
		for (uint32_t i = 0; i < WATCHED_LEASES; i++)
			lease(&bed, 0, 1, MAX_KEYS);
		ck_assert_int_eq(pthread_create(&thread, NULL, watch_main, &watch), 0);
		while (!atomic_load(&watch.ready))
			;
		end(&bed);
		ck_assert_int_eq(pthread_join(thread, NULL), 0);
		if (watch.between)
			break;
	}
	ck_assert(watch.between);
	bed_fini(&bed);
}

START_TEST(the_end_of_a_session_lets_others_pass)
{
	check_answered(end_session);
}
END_TEST

START_TEST(time_lets_others_pass)
{
	check_answered(expire_all);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("lease_turns");
	TCase *turns = tcase_create("turns");
	tcase_set_timeout(turns, 60);
	tcase_add_test(turns, references_of_a_session_are_bounded);
	tcase_add_test(turns, the_end_of_a_session_lets_others_pass);
	tcase_add_test(turns, time_lets_others_pass);
	suite_add_tcase(suite, turns);
	return kv_suite_run(suite);
}
