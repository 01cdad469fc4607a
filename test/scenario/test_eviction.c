/* SPDX-License-Identifier: Apache-2.0 */
/* What goes when space is short, what never goes, and what ends by itself. */
#include <check.h>
#include <stdlib.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

/* Blocks of 64 KiB: a segment has whole memory pages, so a gate fits into any of them. */
static const struct kv_shape wide = {.layers = 2, .segment_bytes = 16384, .pages = 32};
#define WIDE_BLOCK (2u * 2u * 16384u)
#define ROOM 12u /* blocks of the pool */

static struct kv_local l;
static struct kv_rank a;

static void start(uint32_t ttl_ms)
{
	struct okv_manager_options o = kv_local_options(ROOM * WIDE_BLOCK);
	o.reserve_percent = o.session_percent = 100;
	if (ttl_ms)
		o.lease_ttl_ms = ttl_ms;
	kv_local_start(&l, &o, 0, &wide);
	kv_rank_open(&a, l.ns, &wide, 0);
}

static void stop(void)
{
	kv_rank_close(&a);
	kv_local_stop(&l);
}

static void store(uint64_t seq, uint32_t first, uint32_t count)
{
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&a, seq, first, count, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, count);
}

static uint32_t there(uint64_t seq, uint32_t count)
{
	return kv_lookup(l.ns, seq, count, 1, NULL);
}

/* Look up and let go: it was used just now. */
static void use(uint64_t seq, uint32_t count)
{
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(l.ns, seq, count, 1, &lease), count);
	okv_lease_release(lease);
	kv_until(kv_local_status(&l).bytes_pinned == 0);
}

static uint64_t wrong(uint64_t seq, uint32_t count, const uint32_t *pages)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < count; i++)
		n += kv_wrong(&a, seq, i, pages + i);
	return n;
}

START_TEST(least_recently_used_goes_first)
{
	start(0);
	for (uint64_t seq = 1; seq <= ROOM; seq++)
		store(seq, 0, 1);
	ck_assert_uint_eq(kv_local_status(&l).bytes_free, 0);
	ck_assert_uint_eq(kv_local_status(&l).evictions, 0);
	use(1, 1);
	use(4, 1);
	/* Asking alone, and publishing what is there, differ: only the second is a use. */
	ck_assert_uint_eq(there(2, 1), 1);
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&a, 3, 0, 1, NULL, &r), 0);
	ck_assert_uint_eq(r.present, 1);
	const uint64_t order[ROOM] = {2, 5, 6, 7, 8, 9, 10, 11, 12, 1, 4, 3};
	for (uint32_t k = 0; k < ROOM; k++) {
		for (uint32_t j = 0; j < ROOM; j++)
			ck_assert_uint_eq(there(order[j], 1), j >= k);
		store(100 + k, 0, 1);
		ck_assert_uint_eq(kv_local_status(&l).evictions, k + 1);
	}
	stop();
}
END_TEST

START_TEST(tails_go_before_their_heads)
{
	start(0);
	store(1, 0, 4);
	store(2, 0, 4);
	store(1, 4, 2); /* the head of seq 1 is used with its tail */
	store(3, 0, 2);
	uint32_t left[4] = {0, 6, 4, 2};
	for (uint32_t k = 0; k < ROOM; k++) {
		store(100 + k, 0, 1);
		/* Seq 2 goes from its end, then seq 1 from its, then seq 3. */
		left[k < 4 ? 2 : k < 10 ? 1 : 3]--;
		for (uint64_t seq = 1; seq <= 3; seq++) {
			uint32_t head = there(seq, 6);
			ck_assert_uint_eq(head, left[seq]);
			/* Nothing without its head stays either: used bytes are visible blocks. */
		}
		struct okv_manager_status s = kv_local_status(&l);
		ck_assert_uint_eq(s.blocks, ROOM);
		ck_assert_uint_eq(s.bytes_used, ROOM * WIDE_BLOCK);
	}
	stop();
}
END_TEST

START_TEST(pinned_blocks_never_go)
{
	start(0);
	struct okv_lease *lease;
	struct okv_op_result r;
	const uint32_t pages[4] = {20, 9, 31, 4};
	store(1, 0, 4);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 4, 1, &lease), 4);
	ck_assert_uint_eq(kv_local_status(&l).bytes_pinned, 4 * WIDE_BLOCK);
	for (uint64_t seq = 100; seq < 110; seq++)
		store(seq, 0, ROOM - 4);
	ck_assert_uint_eq(kv_local_status(&l).evictions, 9 * (ROOM - 4));
	kv_poison(&a);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 4, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(1, 4, pages), 0);
	okv_lease_release(lease);
	kv_until(kv_local_status(&l).bytes_pinned == 0);
	/* Used last, so it goes last: but now it goes. */
	store(200, 0, ROOM - 4);
	ck_assert_uint_eq(there(1, 4), 4);
	store(201, 0, ROOM - 4);
	ck_assert_uint_eq(there(1, 4), 0);
	stop();
}
END_TEST

START_TEST(a_lease_ends_by_itself_and_says_so)
{
	start(40);
	struct okv_lease *lease, *none = NULL;
	struct okv_lease_id id;
	struct okv_op_result r;
	struct okv_error err = {0};
	uint32_t page = 8;
	store(1, 0, 4);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 4, 3, &lease), 4);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	kv_until(kv_local_status(&l).leases == 0);
	ck_assert_uint_eq(kv_local_status(&l).bytes_pinned, 0);
	kv_poison(&a);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 1, &page, 0, &r), OKV_E_NOENT);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_uint_eq(kv_touched(&a, page), 0);
	ck_assert_int_eq(okv_lease_open(l.ns, &id, &none, &err), OKV_E_NOENT);
	ck_assert_ptr_null(none);
	/* The blocks are cached as before, and may go. */
	ck_assert_uint_eq(there(1, 4), 4);
	store(2, 0, ROOM);
	ck_assert_uint_eq(there(1, 4), 0);
	okv_lease_release(lease);
	stop();
}
END_TEST

START_TEST(held_blocks_never_go_even_when_their_lease_expired)
{
	start(800);
	struct okv_lease *lease;
	struct okv_op *op, *late;
	struct kv_gate gate;
	struct okv_op_result r;
	const uint32_t pages[4] = {20, 21, 22, 23}, page = 30;
	store(1, 0, 4);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 4, 3, &lease), 4);
	/* One block: the worker itself is at the gate, and claims nothing else. */
	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, 1, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	kv_ok(kv_restore_start(&a, lease, 1, 1, &page, 0, &late, kv_err));
	/* A grant nobody claims in time is taken back; one that is claimed is not. */
	ck_assert_int_eq(okv_op_wait_enqueued(late, 0, -1), OKV_E_CANCELLED);
	kv_until(kv_local_status(&l).leases == 0);
	ck_assert_uint_eq(kv_local_status(&l).ops_revoked, 1);
	kv_until(kv_local_status(&l).ops_active == 1);
	struct kv_rank b;
	kv_rank_open(&b, l.ns, &wide, 0);
	for (uint64_t seq = 100; seq < 104; seq++)
		ck_assert_int_eq(kv_publish(&b, seq, 0, ROOM - 1, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, ROOM - 1);
	ck_assert_uint_eq(there(1, 4), 1);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	ck_assert_uint_eq(wrong(1, 1, pages), 0);
	ck_assert_int_eq(okv_op_wait(late, -1, &r), OKV_E_CANCELLED);
	ck_assert_uint_eq(kv_touched(&a, page), 0);
	okv_op_release(op);
	okv_op_release(late);
	okv_lease_release(lease);
	kv_rank_close(&b);
	stop();
}
END_TEST

START_TEST(blocks_being_written_never_go)
{
	start(0);
	struct okv_op *op;
	struct okv_lease *lease;
	struct kv_gate gate;
	struct okv_op_result r;
	const uint32_t pages[4] = {3, 1, 2, 0}, to[4] = {10, 11, 12, 13};
	struct kv_rank b;
	kv_rank_open(&b, l.ns, &wide, 0);
	for (uint32_t i = 0; i < 4; i++)
		kv_fill(&a, 1, i, pages + i);
	kv_gate_close_page(&gate, &a, 1, 1, pages[0]);
	kv_ok(kv_publish_start(&a, 1, 0, 4, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	for (uint64_t seq = 100; seq < 104; seq++) {
		ck_assert_int_eq(kv_publish(&b, seq, 0, ROOM, NULL, &r), 0);
		ck_assert_uint_eq(r.blocks, ROOM - 4);
		ck_assert_uint_eq(r.not_stored, 4);
	}
	ck_assert_uint_eq(there(1, 4), 0);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	okv_op_release(op);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 4, 1, &lease), 4);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 4, to, 0, &r), 0);
	ck_assert_uint_eq(wrong(1, 4, to), 0);
	okv_lease_release(lease);
	kv_rank_close(&b);
	stop();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("eviction");
	TCase *t = tcase_create("eviction");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, least_recently_used_goes_first);
	tcase_add_test(t, tails_go_before_their_heads);
	tcase_add_test(t, pinned_blocks_never_go);
	tcase_add_test(t, a_lease_ends_by_itself_and_says_so);
	tcase_add_test(t, held_blocks_never_go_even_when_their_lease_expired);
	tcase_add_test(t, blocks_being_written_never_go);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
