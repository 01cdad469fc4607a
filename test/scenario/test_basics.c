/* SPDX-License-Identifier: Apache-2.0 */
/* Publish, look up, restore: exact bytes, nothing else touched. */
#include <check.h>
#include <stdlib.h>

#include "support/kv.h"
#include "support/suite.h"

static void round_trip(const struct kv_shape *shape)
{
	struct okv_engine *e = kv_engine_embedded(0, 0);
	struct okv_namespace *ns = kv_namespace(e, shape);
	struct kv_rank a;
	kv_rank_open(&a, ns, shape, 0);
	uint32_t ppb = a.shape.pages_per_block, n = 8;
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&a, 7, 0, n, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, n);
	ck_assert_uint_eq(r.present, 0);
	ck_assert_uint_eq(r.bytes, (uint64_t)n * ppb * a.shape.layers * a.shape.segments *
					   a.shape.segment_bytes);
	kv_poison(&a);
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(ns, 7, n + 2, 1, &lease), n);
	uint32_t *pages = kv_pages(&a, n * ppb, 40, 5);
	ck_assert_int_eq(kv_restore(&a, lease, 0, n, pages, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	ck_assert_uint_eq(r.blocks, n);
	for (uint32_t i = 0; i < n; i++)
		ck_assert_uint_eq(kv_wrong(&a, 7, i, pages + i * ppb), 0);
	uint32_t touched = 0;
	for (uint32_t p = 0; p < a.shape.pages; p++)
		touched += kv_touched(&a, p) != 0;
	ck_assert_uint_eq(touched, n * ppb);
	ck_assert_uint_eq(kv_canaries_broken(&a), 0);
	free(pages);
	okv_lease_release(lease);
	kv_rank_close(&a);
	okv_namespace_close(ns);
	okv_engine_close(e);
}

START_TEST(split_kv)
{
	round_trip(&(struct kv_shape){.pages = 64});
}
END_TEST

START_TEST(one_token_pages)
{
	round_trip(&(struct kv_shape){.segment_bytes = 72, .pages_per_block = 4, .pages = 128});
}
END_TEST

START_TEST(padded_odd_sizes)
{
	const uint32_t sizes[] = {1, 7, 9, 584};
	for (int i = 0; i < 4; i++)
		round_trip(&(struct kv_shape){
			.segment_bytes = sizes[i], .page_pad = 3, .segments = 3, .pages = 64});
}
END_TEST

int main(void)
{
	Suite *s = suite_create("basics");
	TCase *t = tcase_create("round trip");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, split_kv);
	tcase_add_test(t, one_token_pages);
	tcase_add_test(t, padded_odd_sizes);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
