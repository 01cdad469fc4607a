/* SPDX-License-Identifier: Apache-2.0 */
/* The promises R1 to R6, with copies held in flight by a gate in the engine's own pages. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

#define ALL_PARTS 0u
#define ONE_BLOCK_PARTS 80u /* plan parts that hold one block each */

/* Blocks of 64 KiB: a segment has whole memory pages, so a gate fits into any of them. */
static const struct kv_shape wide = {.layers = 2, .segment_bytes = 16384, .pages = 32};
#define WIDE_BLOCK (2u * 2u * 16384u)

static struct kv_local l;

static void start(uint64_t memory, uint32_t part_bytes, const struct kv_shape *shape)
{
	struct okv_manager_options o = kv_local_options(memory);
	o.reserve_percent = o.session_percent = 100;
	if (part_bytes)
		o.part_bytes = part_bytes;
	kv_local_start(&l, &o, 0, shape);
}

static void wait_idle(void)
{
	kv_until(kv_stats(l.engine).ops_running == 0);
	kv_until(kv_local_status(&l).ops_active == 0 && kv_local_status(&l).ops_granted == 0);
}

static uint64_t wrong(const struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		      const uint32_t *pages)
{
	uint32_t ppb = rank->shape.pages_per_block;
	uint64_t n = 0;
	for (uint32_t i = 0; i < count; i++)
		n += kv_wrong(rank, seq, first + i, pages + (size_t)i * ppb);
	return n;
}

/* Everything of seq that can be found has exact bytes; returns how many blocks that is. */
static uint32_t check_visible(struct kv_rank *rank, uint64_t seq, uint32_t count)
{
	struct okv_lease *lease;
	struct okv_op_result r;
	uint32_t found = kv_lookup(l.ns, seq, count, 1, &lease);
	if (!found)
		return 0;
	uint32_t *pages = kv_pages(rank, found, 0, 1);
	kv_poison(rank);
	ck_assert_int_eq(kv_restore(rank, lease, 0, found, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(rank, seq, 0, found, pages), 0);
	okv_lease_release(lease);
	free(pages);
	return found;
}

/* Push new blocks through the pool until all of it was used several times over. */
static uint64_t press(struct kv_rank *rank, uint64_t seq, uint32_t rounds, uint32_t blocks)
{
	uint64_t before = kv_local_status(&l).evictions;
	for (uint32_t i = 0; i < rounds; i++) {
		struct okv_op_result r;
		ck_assert_int_eq(kv_publish(rank, seq + i, 0, blocks, NULL, &r), 0);
		ck_assert_uint_eq(check_visible(rank, seq + i, blocks), r.blocks);
	}
	return kv_local_status(&l).evictions - before;
}

/* ---- R1 ---- */

START_TEST(r1_a_restore_cancelled_between_parts_is_no_success)
{
	start(8u << 20, ONE_BLOCK_PARTS, &wide);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op;
	struct okv_op_result r;
	struct kv_gate gate;
	const uint32_t pages[8] = {1, 3, 5, 7, 9, 11, 13, 15};
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);

	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, 8, pages, OKV_RESTORE_KEEP, &op, kv_err));
	kv_gate_wait(&gate);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	ck_assert_int_eq(okv_op_poll(op, &r), OKV_E_RUNNING);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), OKV_E_CANCELLED);
	ck_assert_int_eq(r.status, OKV_E_CANCELLED);
	ck_assert_uint_eq(r.blocks, 0);
	ck_assert_uint_eq(r.bytes, 0);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_int_ne(r.text[0], 0);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(okv_op_wait_enqueued(op, i, -1), OKV_E_CANCELLED);
		ck_assert_int_eq(okv_op_wait_layer(op, i, -1), OKV_E_CANCELLED);
	}
	okv_op_release(op);
	ck_assert_uint_ne(wrong(&a, 1, 0, 8, pages), 0);
	for (uint32_t p = 0; p < 32; p += 2)
		ck_assert_uint_eq(kv_touched(&a, p), 0);

	/* The pages are ours again, and the lease still has its share. */
	ck_assert_int_eq(kv_restore(&a, lease, 0, 8, pages, 0, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r1_every_end_is_exact_or_says_why)
{
	const struct kv_shape shape = {.layers = 3, .segment_bytes = 1000, .pages = 64};
	start(4u << 20, ONE_BLOCK_PARTS + 3 * 32, &shape);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	uint32_t ok = 0, rounds = 300;
	unsigned seed = 7;
	kv_rank_open(&a, l.ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 32, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 32, 1, &lease), 32);
	for (uint32_t k = 0; k < rounds; k++) {
		uint32_t first = (uint32_t)rand_r(&seed) % 32;
		uint32_t count = (uint32_t)rand_r(&seed) % (32 - first) + 1;
		uint32_t *pages = kv_pages(&a, count, (uint32_t)rand_r(&seed) % 64, 13);
		struct okv_op *op;
		kv_poison(&a);
		kv_ok(kv_restore_start(&a, lease, first, count, pages, OKV_RESTORE_KEEP, &op,
				       kv_err));
		if (rand_r(&seed) % 4)
			for (int y = rand_r(&seed) % 30; y > 0; y--)
				sched_yield();
		if (rand_r(&seed) % 4)
			okv_op_cancel(op);
		int rc = okv_op_wait(op, 60000, &r);
		ck_assert_int_eq(okv_op_poll(op, NULL), rc);
		if (rc == 0) {
			ck_assert_uint_eq(r.blocks, count);
			ck_assert_uint_eq(r.bytes, count * 6000ull);
			ck_assert_uint_eq(wrong(&a, 1, first, count, pages), 0);
			ok++;
		} else {
			ck_assert_int_eq(rc, OKV_E_CANCELLED);
			ck_assert_uint_eq(r.blocks + r.bytes, 0);
			ck_assert_int_ne(r.text[0], 0);
			ck_assert_int_eq(okv_op_wait_enqueued(op, 2, 0), OKV_E_CANCELLED);
		}
		okv_op_release(op);
		free(pages);
	}
	ck_assert_uint_ge(ok, rounds / 8);
	ck_assert_uint_eq(kv_canaries_broken(&a), 0);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- R2 ---- */

/* What every page of b must hold: a block of a sequence, or nothing yet. */
struct expected {
	uint64_t seq; /* 0: poison */
	uint32_t block;
};

static void check_all_pages(const struct kv_rank *b, const struct expected *expected)
{
	uint32_t ppb = b->shape.pages_per_block;
	for (uint32_t k = 0; k < b->shape.pages / ppb; k++) {
		uint32_t pages[4];
		for (uint32_t j = 0; j < ppb; j++) {
			pages[j] = k * ppb + j;
			if (!expected[k].seq)
				ck_assert_uint_eq(kv_touched(b, pages[j]), 0);
		}
		if (expected[k].seq)
			ck_assert_uint_eq(kv_wrong(b, expected[k].seq, expected[k].block, pages),
					  0);
	}
	ck_assert_uint_eq(kv_canaries_broken(b), 0);
}

static void nothing_else_changes(const struct kv_shape *shape)
{
	start(4u << 20, ONE_BLOCK_PARTS + 2 * 32, shape);
	struct kv_rank a, b;
	struct okv_op_result r;
	struct expected expected[64] = {{0}};
	unsigned seed = 11;
	kv_rank_open(&a, l.ns, shape, 0);
	kv_rank_open(&b, l.ns, shape, 0);
	uint32_t ppb = a.shape.pages_per_block, places = b.shape.pages / ppb;
	uint8_t *before = malloc(a.memory_bytes);
	for (uint64_t seq = 1; seq <= 20; seq++) {
		struct okv_lease *lease;
		uint32_t count = (uint32_t)rand_r(&seed) % 8 + 1;
		for (uint32_t i = 0; i < count; i++) {
			uint32_t pages[4];
			for (uint32_t j = 0; j < ppb; j++)
				pages[j] = i * ppb + j;
			kv_fill(&a, seq, i, pages);
		}
		memcpy(before, a.memory, a.memory_bytes);
		ck_assert_int_eq(kv_publish(&a, seq, 0, count, NULL, &r), 0);
		ck_assert_int_eq(memcmp(before, a.memory, a.memory_bytes), 0);

		ck_assert_uint_eq(kv_lookup(l.ns, seq, count, 1, &lease), count);
		uint32_t first = (uint32_t)rand_r(&seed) % count, n = count - first;
		uint32_t at = (uint32_t)rand_r(&seed) % places, pages[32];
		for (uint32_t i = 0; i < n; i++) {
			uint32_t place = (at + i * 5) % places;
			for (uint32_t j = 0; j < ppb; j++)
				pages[i * ppb + j] = place * ppb + j;
			expected[place] = (struct expected){seq, first + i};
		}
		ck_assert_int_eq(kv_restore(&b, lease, first, n, pages, 0, &r), 0);
		check_all_pages(&b, expected);
		okv_lease_release(lease);
	}
	free(before);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}

START_TEST(r2_bytes_outside_the_listed_payloads_never_change)
{
	const struct kv_shape shapes[] = {
		{.segments = 1, .segment_bytes = 1, .page_pad = 1, .pages = 48},
		{.segments = 3,
		 .segment_bytes = 7,
		 .page_pad = 9,
		 .pages = 64,
		 .pages_per_block = 2},
		{.segments = 2, .segment_bytes = 584, .page_pad = 56, .pages = 64},
		{.segments = 2,
		 .segment_bytes = 20011, /* odd rows across the chunks of the copy threads */
		 .page_pad = 31,
		 .pages = 32,
		 .pages_per_block = 4,
		 .layers = 2},
	};
	nothing_else_changes(&shapes[_i]);
}
END_TEST

/* ---- R3 ---- */

START_TEST(r3_sources_of_a_running_restore_are_not_reused)
{
	start(40 * WIDE_BLOCK, ALL_PARTS, &wide);
	struct kv_rank a, b;
	struct okv_lease *lease;
	struct okv_op *op;
	struct okv_op_result r;
	struct kv_gate gate;
	uint32_t count = _i ? 1 : 8; /* copied by a pool thread, or by the worker itself */
	kv_rank_open(&a, l.ns, &wide, 0);
	kv_rank_open(&b, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);

	uint32_t *pages = kv_pages(&a, count, 10, 2);
	kv_gate_close_page(&gate, &a, 0, 1, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, count, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	/* The share is spent, the handle gone, the operation cancelled: the copies still read. */
	okv_lease_release(lease);
	kv_until(kv_local_status(&l).leases == 0);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	ck_assert_uint_gt(press(&b, 100, 12, 16), 80);
	kv_until(kv_local_status(&l).ops_active == 1);
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, count, pages), 0);
	okv_op_release(op);
	/* Now nothing holds them: pressure makes them go. */
	wait_idle();
	press(&b, 200, 12, 16);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, NULL), 0);
	free(pages);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r3_destinations_of_a_running_publish_are_nobody_elses)
{
	start(40 * WIDE_BLOCK, ALL_PARTS, &wide);
	struct kv_rank a, b;
	struct okv_op *op;
	struct kv_gate gate;
	uint32_t count = _i ? 1 : 8;
	kv_rank_open(&a, l.ns, &wide, 0);
	kv_rank_open(&b, l.ns, &wide, 0);
	uint32_t *pages = kv_pages(&a, count, 0, 3);
	for (uint32_t i = 0; i < count; i++)
		kv_fill(&a, 1, i, pages + i);
	kv_gate_close_page(&gate, &a, 1, 0, pages[count - 1]);
	kv_ok(kv_publish_start(&a, 1, 0, count, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	okv_op_release(op);
	ck_assert_uint_gt(press(&b, 100, 12, 16), 80);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, count, 1, NULL), 0);
	uint64_t stored = kv_local_status(&l).blocks;
	kv_gate_open(&gate);
	wait_idle();
	/* The late writes hit no block of anyone else, and what became visible is exact. */
	uint32_t seen = 0;
	for (uint64_t seq = 100; seq < 112; seq++)
		seen += check_visible(&b, seq, 16);
	ck_assert_uint_eq(seen, stored);
	ck_assert_uint_gt(seen, 16);
	uint32_t own = check_visible(&b, 1, count);
	ck_assert(own == 0 || own == count);
	free(pages);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}
END_TEST

/* ---- R4 ---- */

START_TEST(r4_timeout_cancel_and_drop_free_no_page)
{
	start(8u << 20, ALL_PARTS, &wide);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op, *none = NULL;
	struct okv_op_result r = {.status = 1};
	struct okv_error err = {0};
	struct kv_gate gate;
	uint32_t count = _i ? 1 : 8;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 9, &lease), 8);
	uint32_t *pages = kv_pages(&a, count, 16, 1);
	const uint32_t last = pages[count - 1];
	kv_gate_close_page(&gate, &a, 0, 0, last);
	kv_ok(kv_restore_start(&a, lease, 0, count, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);

	for (uint32_t step = 0; step < 4; step++) {
		if (step == 1)
			ck_assert_int_eq(okv_op_wait(op, 1, &r), OKV_E_TIMEOUT);
		if (step == 2)
			ck_assert_int_eq(okv_op_cancel(op), 0);
		if (step == 3)
			okv_op_release(op);
		ck_assert_int_eq(kv_restore_start(&a, lease, 0, 1, &last, 0, &none, &err),
				 OKV_E_BUSY);
		ck_assert_int_eq(kv_publish_start(&a, 2, 0, 1, &last, 0, &none, &err), OKV_E_BUSY);
		ck_assert_int_eq(okv_binding_quiesce(a.binding, 0), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_binding_resume(a.binding), 0);
		ck_assert_uint_eq(kv_stats(l.engine).ops_running, 1);
	}
	ck_assert_ptr_null(none);
	ck_assert_int_ne(err.text[0], 0);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_binding_quiesce(a.binding, -1), 0);
	ck_assert_int_eq(okv_binding_resume(a.binding), 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, count, pages), 0);
	ck_assert_int_eq(kv_restore(&a, lease, 3, 1, &last, 0, &r), 0);
	ck_assert_uint_eq(kv_wrong(&a, 1, 3, &last), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- R5 ---- */

struct ending {
	struct kv_gate *gate;
	struct okv_binding *binding; /* unregister this, or else */
	struct okv_engine *engine;   /* close this */
	bool early;
};

static void *end_it(void *arg)
{
	struct ending *e = arg;
	if (e->binding)
		okv_binding_unregister(e->binding);
	else
		okv_engine_close(e->engine);
	e->early = !kv_gate_is_open(e->gate);
	return NULL;
}

START_TEST(r5_unregister_and_close_wait_for_the_copies)
{
	bool close_engine = _i & 1;
	uint32_t count = _i & 2 ? 1 : 8;
	start(8u << 20, ALL_PARTS, &wide);
	struct kv_rank a;
	struct kv_owned owned = {0};
	struct okv_lease *lease;
	struct okv_op *op, *none = NULL;
	struct okv_op_result r;
	struct okv_error err;
	struct kv_gate gate;
	pthread_t thread;
	/* A second engine goes on meanwhile. */
	struct okv_engine *other = kv_engine_connect(l.socket_path, 0);
	struct okv_namespace *other_ns = kv_namespace(other, &wide);
	kv_rank_init(&a, &wide, 0);
	for (uint32_t i = 0; i < 2; i++)
		a.layers[i].owner = kv_owner(&owned);
	kv_ok(kv_rank_register(&a, l.ns, kv_err));
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	uint32_t *pages = kv_pages(&a, count, 16, 1);
	kv_gate_close_page(&gate, &a, 1, 1, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, count, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);

	struct ending ending = {
		.gate = &gate, .binding = close_engine ? NULL : a.binding, .engine = l.engine};
	ck_assert_int_eq(pthread_create(&thread, NULL, end_it, &ending), 0);
	/* Refused: the other thread is inside. */
	int rc;
	while ((rc = kv_restore_start(&a, lease, 0, 1, pages, 0, &none, &err)) == OKV_E_BUSY)
		sched_yield();
	ck_assert_int_eq(rc, OKV_E_CLOSED);
	for (int i = 0; i < 50; i++)
		ck_assert_uint_eq(kv_lookup(other_ns, 1, 8, 1, NULL), 8);
	ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
	ck_assert_uint_eq(owned.released, 0);
	kv_until(kv_local_status(&l).ops_active == 1);
	kv_gate_open(&gate);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
	ck_assert(!ending.early);
	ck_assert_int_eq(okv_op_wait(op, 0, &r) == OKV_E_TIMEOUT, 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, count, pages), 0);
	ck_assert_uint_eq(owned.retained, 2);
	ck_assert_uint_eq(owned.released, 2);
	okv_op_release(op);
	okv_lease_release(lease);
	if (!close_engine)
		a.binding = NULL;
	free(pages);
	kv_rank_close(&a);
	okv_namespace_close(l.ns);
	l.ns = NULL;
	if (close_engine)
		l.engine = NULL;
	okv_namespace_close(other_ns);
	okv_engine_close(other);
	kv_local_stop(&l);
}
END_TEST

/* ---- R6 ---- */

START_TEST(r6_a_block_is_visible_when_every_slot_is_in_place)
{
	struct kv_shape shape = wide;
	shape.rank_slots = 2;
	start(8u << 20, ALL_PARTS, &shape);
	struct kv_rank a, b;
	struct okv_lease *lease;
	struct okv_op *op;
	struct okv_op_result r;
	struct kv_gate gate;
	uint32_t count = _i ? 1 : 8;
	kv_rank_open(&a, l.ns, &shape, 0);
	kv_rank_open(&b, l.ns, &shape, 1);
	ck_assert_int_eq(kv_publish(&a, 1, 0, count, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, count, 1, NULL), 0);
	uint32_t *pages = kv_pages(&b, count, 0, 1);
	for (uint32_t i = 0; i < count; i++)
		kv_fill(&b, 1, i, pages + i);
	kv_gate_close_page(&gate, &b, 1, 1, pages[count - 1]);
	kv_ok(kv_publish_start(&b, 1, 0, count, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, count, 1, NULL), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, count, 2, &lease), 0);
	ck_assert_ptr_null(lease);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	okv_op_release(op);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, count, 2, &lease), count);
	kv_poison(&a);
	kv_poison(&b);
	ck_assert_int_eq(kv_restore(&a, lease, 0, count, pages, 0, &r), 0);
	ck_assert_int_eq(kv_restore(&b, lease, 0, count, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, count, pages) + wrong(&b, 1, 0, count, pages), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}
END_TEST

START_TEST(r6_a_publish_that_failed_midway_leaves_nothing)
{
	start(8u << 20, ONE_BLOCK_PARTS, &wide);
	struct kv_rank a, b;
	struct okv_op *op;
	struct okv_op_result r;
	struct kv_gate gate;
	kv_rank_open(&a, l.ns, &wide, 0);
	kv_rank_open(&b, l.ns, &wide, 0);
	uint32_t *pages = kv_pages(&a, 8, 0, 1);
	for (uint32_t i = 0; i < 8; i++)
		kv_fill(&a, 1, i, pages + i);
	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_publish_start(&a, 1, 0, 8, pages, 0, &op, kv_err));
	kv_gate_wait(&gate);
	ck_assert_int_eq(okv_op_cancel(op), 0);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), OKV_E_CANCELLED);
	ck_assert_uint_eq(r.blocks + r.bytes, 0);
	okv_op_release(op);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, NULL), 0);
	struct okv_manager_status s = kv_local_status(&l);
	ck_assert_uint_eq(s.blocks + s.blocks_partial, 0);
	ck_assert_uint_eq(s.bytes_used, 0);
	/* The same keys, stored by someone else, are theirs alone. */
	ck_assert_int_eq(kv_publish(&b, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	ck_assert_uint_eq(check_visible(&a, 1, 8), 8);
	free(pages);
	kv_rank_close(&a);
	kv_rank_close(&b);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("promises");
	TCase *t = tcase_create("promises");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, r1_every_end_is_exact_or_says_why);
	tcase_add_loop_test(t, r2_bytes_outside_the_listed_payloads_never_change, 0, 4);
	tcase_add_test(t, r1_a_restore_cancelled_between_parts_is_no_success);
	tcase_add_loop_test(t, r3_sources_of_a_running_restore_are_not_reused, 0, 2);
	tcase_add_loop_test(t, r3_destinations_of_a_running_publish_are_nobody_elses, 0, 2);
	tcase_add_loop_test(t, r4_timeout_cancel_and_drop_free_no_page, 0, 2);
	tcase_add_loop_test(t, r5_unregister_and_close_wait_for_the_copies, 0, 4);
	tcase_add_loop_test(t, r6_a_block_is_visible_when_every_slot_is_in_place, 0, 2);
	tcase_add_test(t, r6_a_publish_that_failed_midway_leaves_nothing);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
