/* SPDX-License-Identifier: Apache-2.0 */
/* What a Manager keeps in its own memory for each cached block. */
#include <check.h>
#include <malloc.h>
#include <stdlib.h>

#include "support/local.h"
#include "support/suite.h"

#define PER_OP 4000u
#define MEASURED 20000u
#define MOST_BYTES 256u /* of bookkeeping per block of one rank */

static uint64_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
}

/* Does the allocator behind malloc() tell? */
static bool heap_is_seen(void)
{
	uint64_t before = heap_bytes();
	void *volatile probe = malloc(1u << 20);
	bool is_seen = heap_bytes() >= before + (1u << 20);
	free(probe);
	return is_seen;
}

START_TEST(bookkeeping_of_a_block_is_below_256_bytes)
{
	const struct kv_shape shape = {
		.layers = 1, .segments = 1, .segment_bytes = 64, .pages = PER_OP};
	const struct okv_manager_options o = kv_local_options(64u << 20);
	struct kv_local l;
	struct kv_rank rank;
	struct okv_op_result r;
	kv_local_start(&l, &o, 0, &shape);
	kv_rank_open(&rank, l.ns, &shape, 0);
	/* What is allocated once, and buffers that only grow, are there after the first. */
	ck_assert_int_eq(kv_publish(&rank, 1, 0, PER_OP, NULL, &r), 0);
	kv_until(kv_local_status(&l).ops_active == 0);
	uint64_t before = heap_bytes();
	for (uint64_t n = 0; n < MEASURED / PER_OP; n++) {
		ck_assert_int_eq(kv_publish(&rank, 2 + n, 0, PER_OP, NULL, &r), 0);
		ck_assert_uint_eq(r.blocks, PER_OP);
	}
	kv_until(kv_local_status(&l).ops_active == 0);
	uint64_t grown = heap_bytes() - before;
	ck_assert_uint_eq(kv_local_status(&l).blocks, PER_OP + MEASURED);
	ck_assert_uint_eq(kv_local_status(&l).evictions, 0);
	ck_assert_msg(grown <= MEASURED * MOST_BYTES, "%.1f bytes per block",
		      (double)grown / MEASURED);
	/* Less than a key and an address cannot be: then it was not measured. */
	ck_assert_uint_ge(grown, MEASURED * (KV_KEY_BYTES + 8u));
	kv_rank_close(&rank);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("metadata");
	TCase *t = tcase_create("metadata");
	tcase_set_timeout(t, 120);
	if (heap_is_seen())
		tcase_add_test(t, bookkeeping_of_a_block_is_below_256_bytes);
	else
		kv_left_out(bookkeeping_of_a_block_is_below_256_bytes,
			    "mallinfo2() does not see this allocator");
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
