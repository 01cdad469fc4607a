/* SPDX-License-Identifier: Apache-2.0 */
/* Every table, bank, permit and budget runs full once: a named refusal or a wait, never a hang. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

/* Blocks of 64 KiB: a segment has whole memory pages, so a gate fits into any of them. */
static const struct kv_shape wide = {.layers = 2, .segment_bytes = 16384, .pages = 32};
#define WIDE_BLOCK (2u * 2u * 16384u)

static struct kv_local l;

static uint64_t wrong(const struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		      const uint32_t *pages)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < count; i++)
		n += kv_wrong(rank, seq, first + i, pages + i);
	return n;
}

/* A binding whose worker stands at the gate, inside the restore of one block. */
struct stuck {
	struct kv_rank rank;
	struct kv_gate gate;
	struct okv_lease *lease; /* of the blocks of seq 1 */
	struct okv_op *op;
};

static void stick(struct stuck *s, const struct kv_shape *shape, uint32_t blocks)
{
	struct okv_op_result r;
	kv_rank_open(&s->rank, l.ns, shape, 0);
	ck_assert_int_eq(kv_publish(&s->rank, 1, 0, blocks, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, blocks);
	kv_poison(&s->rank);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, blocks, 2, &s->lease), blocks);
	/* The first page that begins behind the gate's start; the worker copies one block itself.
	 */
	struct okv_layer *layer = &s->rank.layers[0];
	kv_gate_close(&s->gate, layer->base, layer->page_stride + 8192);
	uint32_t first = 0;
	while ((uint8_t *)layer->base + first * layer->page_stride < s->gate.at)
		first++;
	kv_ok(kv_restore_start(&s->rank, s->lease, 0, 1, &first, OKV_RESTORE_KEEP, &s->op, kv_err));
	kv_gate_wait(&s->gate);
}

static void let_go(struct stuck *s)
{
	kv_gate_open(&s->gate);
	ck_assert_int_eq(okv_op_wait(s->op, -1, NULL), 0);
	okv_op_release(s->op);
}

static void unstick(struct stuck *s)
{
	okv_lease_release(s->lease);
	kv_rank_close(&s->rank);
}

START_TEST(r10_a_full_record_table_refuses_and_recovers)
{
	const struct kv_shape shape = {
		.layers = 1, .segments = 1, .segment_bytes = 64, .pages = 2048};
	struct okv_manager_options o = kv_local_options(4u << 20);
	o.restore_permits = 100000;
	kv_local_start(&l, &o, 0, &shape);
	struct stuck s;
	static struct okv_op *ops[2048];
	struct okv_op *none = NULL;
	struct okv_error err = {0};
	uint32_t started = 0;
	int rc;
	stick(&s, &shape, 8);
	for (;; started++) {
		uint32_t page = 1024 + started;
		ck_assert_uint_lt(started, 1024);
		rc = kv_restore_start(&s.rank, s.lease, started % 8, 1, &page, OKV_RESTORE_KEEP,
				      &ops[started], &err);
		if (rc)
			break;
	}
	ck_assert_int_eq(rc, OKV_E_AGAIN);
	ck_assert_int_ne(err.text[0], 0);
	ck_assert_uint_eq(started, 1023); /* and the one at the gate */
	/* Lookups need a record as well; cancel and release never do. */
	uint8_t *keys = kv_keys(1, 0, 8);
	struct okv_keys k = {.count = 8, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options q;
	struct okv_lookup_result found;
	okv_lookup_options_init(&q);
	q.group_count = 1;
	q.groups = &k;
	q.flags = OKV_LOOKUP_PEEK;
	ck_assert_int_eq(okv_lookup(l.ns, &q, &found, NULL, &err), OKV_E_AGAIN);
	ck_assert_int_eq(okv_op_cancel(ops[7]), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(ops[7], 0, -1), OKV_E_CANCELLED);
	/* That one's record is free again. */
	kv_until(okv_lookup(l.ns, &q, &found, NULL, &err) == 0);
	ck_assert_uint_eq(found.groups[0].count, 8);
	uint32_t page = 700;
	kv_until((rc = kv_restore_start(&s.rank, s.lease, 0, 1, &page, OKV_RESTORE_KEEP,
					&ops[started], &err)) == 0);
	started++;
	ck_assert_int_eq(
		kv_restore_start(&s.rank, s.lease, 0, 1, (uint32_t[]){701}, 0, &none, &err),
		OKV_E_AGAIN);
	ck_assert_ptr_null(none);
	let_go(&s);
	for (uint32_t i = 0; i < started; i++) {
		ck_assert_int_eq(okv_op_wait(ops[i], 60000, NULL), i == 7 ? OKV_E_CANCELLED : 0);
		uint32_t at = i == 1023 ? 700 : 1024 + i;
		if (i == 7)
			ck_assert_uint_eq(kv_touched(&s.rank, at), 0);
		else
			ck_assert_uint_eq(kv_wrong(&s.rank, 1, i == 1023 ? 0 : i % 8, &at), 0);
		okv_op_release(ops[i]);
	}
	free(keys);
	unstick(&s);
	kv_local_stop(&l);
}
END_TEST

#define BANK_OPS 16u
#define BANK_BLOCKS 4096u

START_TEST(r10_with_the_plan_bank_full_grants_wait_and_all_finish)
{
	const struct kv_shape shape = {.layers = 1,
				       .segments = 1,
				       .segment_bytes = 64,
				       .pages = (BANK_OPS + 1) * BANK_BLOCKS};
	struct okv_manager_options o = kv_local_options(2u << 20);
	o.reserve_percent = o.session_percent = 100;
	kv_local_start(&l, &o, 0, &shape);
	struct stuck s;
	struct okv_op *ops[BANK_OPS];
	struct okv_op_result r;
	stick(&s, &shape, BANK_BLOCKS);
	uint32_t *pages = kv_pages(&s.rank, (BANK_OPS + 1) * BANK_BLOCKS, 0, 1);
	for (uint32_t i = 0; i < BANK_OPS; i++)
		kv_ok(kv_restore_start(&s.rank, s.lease, 0, BANK_BLOCKS,
				       pages + (i + 1) * BANK_BLOCKS, OKV_RESTORE_KEEP, &ops[i],
				       kv_err));
	struct okv_manager_status st;
	kv_until((st = kv_local_status(&l),
		  st.ops_preparing + st.ops_granted + st.ops_active == BANK_OPS + 1));
	/* 128 KiB each: seven or eight fit into a bank of 1 MiB. */
	ck_assert_uint_ge(st.ops_preparing, BANK_OPS - 8);
	ck_assert_uint_ge(st.ops_granted, 7);
	/* One that waits can be cancelled, and one that is granted. */
	ck_assert_int_eq(okv_op_cancel(ops[BANK_OPS - 1]), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(ops[BANK_OPS - 1], 0, -1), OKV_E_CANCELLED);
	ck_assert_int_eq(okv_op_cancel(ops[1]), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(ops[1], 0, -1), OKV_E_CANCELLED);
	/* Lookups pass those who wait. */
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, NULL), 8);
	let_go(&s);
	for (uint32_t i = 0; i < BANK_OPS; i++) {
		bool cancelled = i == 1 || i == BANK_OPS - 1;
		ck_assert_int_eq(okv_op_wait(ops[i], 60000, &r), cancelled ? OKV_E_CANCELLED : 0);
		ck_assert_uint_eq(r.blocks, cancelled ? 0 : BANK_BLOCKS);
		if (!cancelled)
			ck_assert_uint_eq(
				wrong(&s.rank, 1, 0, BANK_BLOCKS, pages + (i + 1) * BANK_BLOCKS),
				0);
		okv_op_release(ops[i]);
	}
	ck_assert_uint_eq(kv_canaries_broken(&s.rank), 0);
	free(pages);
	unstick(&s);
	kv_local_stop(&l);
}
END_TEST

START_TEST(many_small_parts_are_one_exact_operation)
{
	const struct kv_shape shape = {.segment_bytes = 200, .pages = 512};
	struct okv_manager_options o = kv_local_options(4u << 20);
	o.part_bytes = 48 + 32 * (uint32_t)_i;
	kv_local_start(&l, &o, 0, &shape);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	kv_rank_open(&a, l.ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 101, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 101);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 101, 1, &lease), 101);
	uint32_t *pages = kv_pages(&a, 101, 500, 3);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 101, pages, 0, &r), 0);
	ck_assert_uint_eq(r.blocks, 101);
	ck_assert_uint_eq(r.bytes, 101 * 1600);
	ck_assert_uint_eq(wrong(&a, 1, 0, 101, pages), 0);
	ck_assert_uint_eq(kv_canaries_broken(&a), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r10_without_a_permit_a_restore_may_come_again)
{
	struct okv_manager_options o = kv_local_options(4u << 20);
	o.restore_permits = 2;
	kv_local_start(&l, &o, 0, &wide);
	struct stuck s;
	struct okv_op *second;
	struct okv_op_result r;
	uint32_t page = 9, other = 11;
	stick(&s, &wide, 8);
	kv_ok(kv_restore_start(&s.rank, s.lease, 1, 1, &page, OKV_RESTORE_KEEP, &second, kv_err));
	struct okv_op *third;
	kv_ok(kv_restore_start(&s.rank, s.lease, 2, 1, &other, 0, &third, kv_err));
	ck_assert_int_eq(okv_op_wait_enqueued(third, 0, -1), OKV_E_AGAIN);
	/* Publishes take no permit. */
	struct okv_op *publish;
	kv_ok(kv_publish_start(&s.rank, 2, 0, 1, (uint32_t[]){20}, 0, &publish, kv_err));
	kv_until(kv_local_status(&l).ops_granted == 2);
	let_go(&s);
	ck_assert_int_eq(okv_op_wait(third, -1, &r), OKV_E_AGAIN);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_int_ne(r.text[0], 0);
	ck_assert_int_eq(okv_op_wait(second, -1, NULL), 0);
	ck_assert_int_eq(okv_op_wait(publish, -1, NULL), 0);
	okv_op_release(second);
	okv_op_release(third);
	okv_op_release(publish);
	ck_assert_uint_eq(kv_touched(&s.rank, other), 0);
	/* Permits come back with the retirement, which may follow the drain. */
	kv_until(kv_local_status(&l).ops_active == 0);
	ck_assert_int_eq(kv_restore(&s.rank, s.lease, 2, 1, &other, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	ck_assert_uint_eq(kv_wrong(&s.rank, 1, 2, &other), 0);
	unstick(&s);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r10_an_operation_above_its_plan_limit_spends_nothing)
{
	struct okv_manager_options o = kv_local_options(4u << 20);
	o.operation_plan_bytes = 48 + 4 * 32;
	kv_local_start(&l, &o, 0, &wide);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 2, 0, 5, NULL, &r), OKV_E_LIMIT);
	ck_assert_uint_eq(kv_lookup(l.ns, 2, 5, 1, NULL), 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 4, NULL, &r), 0);
	ck_assert_int_eq(kv_publish(&a, 1, 4, 2, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 6, 1, &lease), 6);
	kv_poison(&a);
	uint32_t *pages = kv_pages(&a, 5, 9, 2);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 5, pages, 0, &r), OKV_E_LIMIT);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_int_ne(r.text[0], 0);
	for (uint32_t p = 0; p < 32; p++)
		ck_assert_uint_eq(kv_touched(&a, p), 0);
	ck_assert_int_eq(kv_restore(&a, lease, 2, 4, pages, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	ck_assert_uint_eq(wrong(&a, 1, 2, 4, pages), 0);
	free(pages);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r10_above_the_session_plan_budget_the_answer_says_what_was_spent)
{
	struct okv_manager_options o = kv_local_options(4u << 20);
	o.session_plan_bytes = 48 + 10 * 32;
	kv_local_start(&l, &o, 0, &wide);
	struct stuck s;
	struct okv_op *ops[3];
	struct okv_lease *lease;
	struct okv_op_result r;
	stick(&s, &wide, 8); /* 80 bytes of 368 */
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	uint32_t *pages = kv_pages(&s.rank, 24, 8, 1);
	/* 304 more do not fit: with KEEP the share stays, without it is gone. */
	const uint32_t flags[2] = {OKV_RESTORE_KEEP, 0};
	for (uint32_t i = 0; i < 2; i++) {
		kv_ok(kv_restore_start(&s.rank, lease, 0, 8, pages + 8 * i, flags[i], &ops[i],
				       kv_err));
		ck_assert_int_eq(okv_op_wait_enqueued(ops[i], 0, -1),
				 i ? OKV_E_SPENT : OKV_E_AGAIN);
	}
	kv_ok(kv_publish_start(&s.rank, 2, 0, 8, pages + 16, 0, &ops[2], kv_err));
	kv_until(kv_local_status(&l).ops_refused == 3);
	/* The sources of the refused ones are released, only the stuck lease pins. */
	ck_assert_uint_eq(kv_local_status(&l).leases, 1);
	let_go(&s);
	for (uint32_t i = 0; i < 3; i++) {
		const int expect[3] = {OKV_E_AGAIN, OKV_E_SPENT, OKV_E_AGAIN};
		ck_assert_int_eq(okv_op_wait(ops[i], -1, &r), expect[i]);
		ck_assert_uint_eq(r.lease_spent, i == 1);
		ck_assert_uint_eq(r.blocks + r.bytes, 0);
		ck_assert_int_ne(r.text[0], 0);
		okv_op_release(ops[i]);
	}
	for (uint32_t i = 0; i < 16; i++)
		ck_assert_uint_eq(kv_touched(&s.rank, pages[i]), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 2, 8, 1, NULL), 0);
	ck_assert_int_eq(kv_restore(&s.rank, lease, 0, 1, pages, 0, &r), OKV_E_NOENT);
	kv_until(kv_local_status(&l).ops_active == 0);
	ck_assert_int_eq(kv_restore(&s.rank, s.lease, 0, 8, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&s.rank, 1, 0, 8, pages), 0);
	okv_lease_release(lease);
	free(pages);
	unstick(&s);
	kv_local_stop(&l);
}
END_TEST

START_TEST(stage_times_are_plausible_and_only_when_asked_for)
{
	struct okv_manager_options o = kv_local_options(4u << 20);
	kv_local_start(&l, &o, _i ? OKV_ENGINE_STAGE_TIMES : 0, &wide);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r[2];
	kv_rank_open(&a, l.ns, &wide, 0);
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r[0]), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	ck_assert_int_eq(
		kv_restore(&a, lease, 0, 8, (uint32_t[]){8, 9, 10, 11, 12, 13, 14, 15}, 0, &r[1]),
		0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	uint64_t all = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)to.tv_nsec -
		       (uint64_t)from.tv_nsec;
	for (uint32_t i = 0; i < 2; i++) {
		const struct okv_stage_times *t = &r[i].times;
		const uint64_t stages[] = {t->ready,   t->dispatched, t->dequeued,
					   t->claimed, t->enqueued,   t->drained};
		for (uint32_t k = 0; k < 6; k++) {
			if (!_i)
				ck_assert_uint_eq(stages[k], 0);
			else
				ck_assert_uint_gt(stages[k], k ? stages[k - 1] - 1 : 0);
			ck_assert_uint_le(stages[k], all);
		}
	}
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(a_second_publisher_is_told_and_copies_nothing)
{
	struct okv_manager_options o = kv_local_options(4u << 20);
	kv_local_start(&l, &o, 0, &wide);
	struct kv_rank a, b;
	struct okv_op *op;
	struct okv_lease *lease;
	struct okv_op_result r;
	struct kv_gate gate;
	kv_rank_open(&a, l.ns, &wide, 0);
	kv_rank_open(&b, l.ns, &wide, 0);
	uint32_t *pages = kv_pages(&a, 8, 0, 1);
	for (uint32_t i = 0; i < 8; i++)
		kv_fill(&a, 1, i, &pages[i]);
	kv_gate_close_page(&gate, &a, 1, 1, pages[5]);
	kv_ok(kv_publish_start(&a, 1, 0, 6, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	uint64_t used = kv_local_status(&l).bytes_used;
	kv_poison(&b);
	ck_assert_int_eq(kv_publish(&b, 1, 0, 6, NULL, &r), 0);
	ck_assert_uint_eq(r.in_progress, 6);
	ck_assert_uint_eq(r.blocks + r.present + r.not_stored + r.bytes, 0);
	ck_assert_uint_eq(kv_local_status(&l).bytes_used, used);
	/* Its own part of a longer sequence is stored, the rest is not waited for. */
	ck_assert_int_eq(kv_publish(&b, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(r.in_progress, 6);
	ck_assert_uint_eq(r.blocks, 2);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, NULL), 0);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	ck_assert_uint_eq(r.blocks, 6);
	okv_op_release(op);
	ck_assert_int_eq(kv_publish(&b, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(r.present, 8);
	ck_assert_uint_eq(r.blocks + r.in_progress, 0);
	kv_poison(&b);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	ck_assert_int_eq(kv_restore(&b, lease, 0, 8, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&b, 1, 0, 8, pages), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r10_a_publish_stores_the_longest_head_that_fits)
{
	struct okv_manager_options o = kv_local_options(16 * WIDE_BLOCK);
	o.reserve_percent = o.session_percent = 100;
	kv_local_start(&l, &o, 0, &wide);
	struct kv_rank a;
	struct okv_lease *held, *lease;
	struct okv_op_result r;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 11, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 11, 1, &held), 11);
	ck_assert_int_eq(kv_publish(&a, 2, 0, 12, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 5);
	ck_assert_uint_eq(r.not_stored, 7);
	ck_assert_uint_eq(r.bytes, 5 * WIDE_BLOCK);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 2, 12, 1, &lease), 5);
	uint32_t *pages = kv_pages(&a, 11, 3, 2);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 5, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&a, 2, 0, 5, pages), 0);
	ck_assert_int_eq(kv_restore(&a, held, 0, 11, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, 11, pages), 0);
	ck_assert_uint_eq(kv_local_status(&l).blocks_partial, 0);
	okv_lease_release(lease);
	okv_lease_release(held);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r10_nobody_pins_the_whole_pool)
{
	struct okv_manager_options o = kv_local_options(40 * WIDE_BLOCK);
	o.reserve_percent = 50;
	o.session_percent = 25;
	kv_local_start(&l, &o, 0, &wide);
	struct okv_engine *other = kv_engine_connect(l.socket_path, 0);
	struct okv_namespace *other_ns = kv_namespace(other, &wide);
	struct kv_rank a, b;
	struct okv_lease *lease, *theirs, *none = NULL;
	struct okv_op_result r;
	kv_rank_open(&a, l.ns, &wide, 0);
	kv_rank_open(&b, other_ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 16, NULL, &r), 0);
	ck_assert_int_eq(kv_publish(&a, 2, 0, 16, NULL, &r), 0);

	/* A quarter of 40 for this session: a shorter prefix, then try again. */
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 16, 1, &lease), 10);
	uint8_t *keys = kv_keys(2, 0, 16);
	struct okv_keys k = {.count = 16, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options q;
	struct okv_lookup_result found;
	struct okv_error err = {0};
	okv_lookup_options_init(&q);
	q.group_count = 1;
	q.groups = &k;
	ck_assert_int_eq(okv_lookup(l.ns, &q, &found, &none, &err), OKV_E_AGAIN);
	ck_assert_int_ne(err.text[0], 0);
	ck_assert_int_eq(okv_lookup(other_ns, &q, &found, &theirs, &err), 0);
	ck_assert_uint_eq(found.groups[0].count, 10);
	ck_assert_uint_eq(found.shortened, 1);
	ck_assert_uint_le(kv_local_status(&l).bytes_pinned, 20 * WIDE_BLOCK);

	/* Publishes still find room, restores go on, and a released lease makes way. */
	for (uint64_t seq = 100; seq < 106; seq++) {
		ck_assert_int_eq(kv_publish(&a, seq, 0, 12, NULL, &r), 0);
		ck_assert_uint_eq(r.blocks, 12);
	}
	ck_assert_int_eq(
		kv_restore(&b, theirs, 0, 10, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 0, &r),
		0);
	ck_assert_uint_eq(wrong(&b, 2, 0, 10, (uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), 0);
	okv_lease_release(lease);
	kv_until(kv_local_status(&l).leases == 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 2, 16, 1, &lease), 10);
	okv_lease_release(lease);
	okv_lease_release(theirs);
	free(keys);
	kv_rank_close(&a);
	kv_rank_close(&b);
	okv_namespace_close(other_ns);
	okv_engine_close(other);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("limits");
	TCase *t = tcase_create("limits");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, many_small_parts_are_one_exact_operation, 1, 4);
	tcase_add_loop_test(t, stage_times_are_plausible_and_only_when_asked_for, 0, 2);
	tcase_add_test(t, r10_an_operation_above_its_plan_limit_spends_nothing);
	tcase_add_test(t, r10_nobody_pins_the_whole_pool);
	tcase_add_test(t, r10_a_publish_stores_the_longest_head_that_fits);
	tcase_add_test(t, r10_a_full_record_table_refuses_and_recovers);
	tcase_add_test(t, r10_with_the_plan_bank_full_grants_wait_and_all_finish);
	tcase_add_test(t, r10_without_a_permit_a_restore_may_come_again);
	tcase_add_test(t, r10_above_the_session_plan_budget_the_answer_says_what_was_spent);
	tcase_add_test(t, a_second_publisher_is_told_and_copies_nothing);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
