/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Dropping a namespace: what is found, what is freed, and what still runs. */
#include "index_fixture.h"
#include "support/suite.h"

static void drop(struct bed *bed)
{
	ck_assert_int_eq(oki_index_drop(bed->index, bed->ns, NULL), 0);
}

START_TEST(a_dropped_namespace_is_empty_and_usable)
{
	struct bed bed;
	bed_init(&bed, 1024);
	ck_assert_uint_eq(put(&bed, 1, 0, 1000), 1000);
	drop(&bed);
	ck_assert_uint_eq(peek(&bed, 1, 1000), 0);
	ck_assert_uint_eq(stats(&bed).blocks, 0);
	ck_assert_uint_eq(oki_pool_used(bed.pool), 0);
	ck_assert_uint_eq(stats(&bed).evictions, 0);
	ck_assert_uint_eq(put(&bed, 1, 0, 1000), 1000);
	ck_assert_uint_eq(peek(&bed, 1, 1000), 1000);
	ck_assert_int_eq(oki_index_drop(bed.index, 12345, NULL), OKV_E_INVAL);
	bed_fini(&bed);
}
END_TEST

START_TEST(other_namespaces_keep_theirs)
{
	struct bed bed;
	bed_init(&bed, 64);
	uint32_t other = bed_namespace(&bed, "other", NULL, NULL, 0, one_full, BLOCK_BYTES);
	ck_assert_uint_eq(put(&bed, 1, 0, 8), 8);
	uint32_t mine = bed.ns;
	bed.ns = other;
	ck_assert_uint_eq(put(&bed, 1, 0, 8), 8);
	drop(&bed);
	ck_assert_uint_eq(peek_in(&bed, other, 1, 8), 0);
	ck_assert_uint_eq(peek_in(&bed, mine, 1, 8), 8);
	bed_fini(&bed);
}
END_TEST

/* The lease keeps its blocks, and restores nothing more; then they are evicted like any. */
START_TEST(a_lease_of_before_restores_nothing)
{
	struct bed bed;
	struct oki_hold *hold;
	struct okw_lookup_reply opened;
	bed_init(&bed, 8);
	ck_assert_uint_eq(put(&bed, 1, 0, 8), 8);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 4);
	drop(&bed);
	ck_assert_uint_eq(stats(&bed).blocks, 4);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 4, false, &hold), OKV_E_NOENT);
	ck_assert_int_eq(
		oki_index_lease_open(bed.index, bed.ns, 1, from.lease_id, bed.now, &opened, NULL),
		OKV_E_NOENT);
	ck_assert_uint_eq(put(&bed, 2, 0, 8), 4);
	oki_index_lease_release(bed.index, 0, from.lease_slot);
	ck_assert_uint_eq(put(&bed, 2, 4, 4), 4);
	ck_assert_uint_eq(peek(&bed, 2, 8), 8);
	bed_fini(&bed);
}
END_TEST

START_TEST(a_restore_that_runs_keeps_its_memory)
{
	struct bed bed;
	struct oki_hold *hold;
	bed_init(&bed, 8);
	ck_assert_uint_eq(put(&bed, 1, 0, 8), 8);
	struct okw_lookup_reply from = lease(&bed, 0, 1, 8);
	ck_assert_int_eq(restore(&bed, 0, &from, 0, 8, false, &hold), 0);
	drop(&bed);
	ck_assert_uint_eq(peek(&bed, 1, 8), 0);
	ck_assert_uint_eq(put(&bed, 2, 0, 8), 0);
	seal(&bed, hold);
	ck_assert_uint_eq(put(&bed, 2, 0, 8), 8);
	bed_fini(&bed);
}
END_TEST

/* What was being written belongs to what was dropped, and the same keys can be stored anew. */
START_TEST(a_publish_that_runs_is_never_found)
{
	struct bed bed;
	struct okw_stretch_reply counts;
	struct oki_hold *old, *hold;
	bed_init(&bed, 8);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &old, &counts), 0);
	drop(&bed);
	ck_assert_int_eq(begin(&bed, 0, 0, 1, 0, 4, &hold, &counts), 0);
	ck_assert_uint_eq(counts.in_progress + counts.present + counts.not_stored, 0);
	seal(&bed, old);
	ck_assert_uint_eq(peek(&bed, 1, 4), 0);
	seal(&bed, hold);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	/* And it is evicted as the older of the two. */
	ck_assert_uint_eq(put(&bed, 2, 0, 4), 4);
	ck_assert_uint_eq(peek(&bed, 1, 4), 4);
	bed_fini(&bed);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("drop");
	TCase *tc = tcase_create("drop");
	tcase_add_test(tc, a_dropped_namespace_is_empty_and_usable);
	tcase_add_test(tc, other_namespaces_keep_theirs);
	tcase_add_test(tc, a_lease_of_before_restores_nothing);
	tcase_add_test(tc, a_restore_that_runs_keeps_its_memory);
	tcase_add_test(tc, a_publish_that_runs_is_never_found);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
