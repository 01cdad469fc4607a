/* SPDX-License-Identifier: Apache-2.0 */
/* Ends nobody planned: unregister, close, cancel and full pools while copies are in flight. */
#include <check.h>
#include <stdlib.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

/* Blocks of 64 KiB: a segment has whole memory pages, so a gate fits into any of them. */
static const struct kv_shape wide = {.layers = 2, .segment_bytes = 16384, .pages = 72};
#define WIDE_BLOCK (2u * 2u * 16384u)

static struct kv_local l;

static void start(uint64_t memory)
{
	struct okv_manager_options o = kv_local_options(memory);
	o.reserve_percent = o.session_percent = 100;
	kv_local_start(&l, &o, 0, &wide);
}

static uint64_t wrong(const struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		      const uint32_t *pages)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < count; i++)
		n += kv_wrong(rank, seq, first + i, pages + i);
	return n;
}

/* ---- S16 ---- */

#define QUEUED 50u /* per binding */

struct leaving {
	struct kv_gate *gates; /* that keep it from returning */
	uint32_t gate_count;
	struct okv_binding *binding;
	struct okv_engine *engine;
	struct kv_owned *owned;
	bool early;
	uint32_t released; /* owners, as seen when the call returned */
};

static void *leave(void *arg)
{
	struct leaving *e = arg;
	if (e->binding)
		okv_binding_unregister(e->binding);
	else
		okv_engine_close(e->engine);
	for (uint32_t i = 0; i < e->gate_count; i++)
		e->early |= !kv_gate_is_open(&e->gates[i]);
	if (e->binding)
		e->released = e->owned->released;
	return NULL;
}

static int start_owned(struct kv_rank *rank, struct okv_lease *lease, uint32_t page,
		       struct kv_owned *owned, struct okv_op **ret_op)
{
	struct okv_restore_group g = {.first = page % 8, .count = 1, .pages = &page};
	struct okv_restore_options o;
	struct okv_error err;
	okv_restore_options_init(&o);
	o.flags = OKV_RESTORE_KEEP;
	o.group_count = 1;
	o.groups = &g;
	o.owner = kv_owner(owned);
	return okv_restore_start(rank->binding, lease, &o, ret_op, &err);
}

/* patient: the gates open in time and all complete. Else what is unclaimed ends cancelled. */
static void leave_three_ways(bool patient)
{
	struct kv_rank rank[2];
	struct kv_owned tensors[2] = {{0}}, owned[2][QUEUED] = {{{0}}};
	struct okv_op *ops[2][QUEUED], *none = NULL;
	struct kv_gate gates[2];
	struct okv_lease *lease;
	struct okv_op_result r;
	struct okv_engine_options eo;
	pthread_t threads[3];
	start(8u << 20);
	okv_engine_options_init(&eo);
	eo.socket_path = l.socket_path;
	eo.connect_timeout_ms = patient ? 60000 : 200;
	struct okv_engine *engine;
	kv_ok(okv_engine_open(&eo, &engine, kv_err));
	struct okv_namespace *ns = kv_namespace(engine, &wide);
	for (uint32_t b = 0; b < 2; b++) {
		kv_rank_init(&rank[b], &wide, 0);
		for (uint32_t i = 0; i < 2; i++)
			rank[b].layers[i].owner = kv_owner(&tensors[b]);
		kv_ok(kv_rank_register(&rank[b], ns, kv_err));
	}
	ck_assert_int_eq(kv_publish(&rank[0], 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, 8, 1, &lease), 8);
	for (uint32_t b = 0; b < 2; b++) {
		kv_poison(&rank[b]);
		/* A single block is copied by the worker itself: all that come after it stay
		 * queued. */
		kv_gate_close_page(&gates[b], &rank[b], 0, 0, 0);
		for (uint32_t i = 0; i < QUEUED; i++) {
			ck_assert_int_eq(start_owned(&rank[b], lease, i, &owned[b][i], &ops[b][i]),
					 0);
			if (i == 0)
				kv_gate_wait(&gates[b]);
		}
	}
	struct leaving ways[3] = {{.gates = &gates[0],
				   .gate_count = 1,
				   .binding = rank[0].binding,
				   .owned = &tensors[0]},
				  {.gates = &gates[1],
				   .gate_count = 1,
				   .binding = rank[1].binding,
				   .owned = &tensors[1]},
				  {.gates = gates, .gate_count = 2, .engine = engine}};
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, leave, &ways[i]), 0);

	/* No new admission, on neither binding. */
	for (uint32_t b = 0; b < 2; b++) {
		struct kv_owned unused = {0};
		int rc;
		while ((rc = start_owned(&rank[b], lease, 0, &unused, &none)) == OKV_E_BUSY)
			sched_yield();
		ck_assert_int_eq(rc, OKV_E_CLOSED);
		ck_assert_uint_eq(unused.retained, unused.released);
		ck_assert_uint_eq(tensors[b].released, 0);
		ck_assert_uint_eq(owned[b][0].released, 0);
	}
	if (!patient)
		for (uint32_t b = 0; b < 2; b++)
			ck_assert_int_eq(okv_op_wait_enqueued(ops[b][QUEUED - 1], 0, -1),
					 OKV_E_CANCELLED);
	for (uint32_t b = 0; b < 2; b++) {
		ck_assert_int_eq(okv_op_poll(ops[b][0], &r), OKV_E_RUNNING);
		kv_gate_open(&gates[b]);
	}
	uint32_t ended[2] = {0, 0};
	for (uint32_t b = 0; b < 2; b++)
		for (uint32_t i = 0; i < QUEUED; i++) {
			int rc = okv_op_wait(ops[b][i], 60000, &r);
			ck_assert_int_eq(okv_op_poll(ops[b][i], NULL), rc);
			ck_assert_int_eq(r.status, rc);
			ck_assert(rc == 0 || (!patient && rc == OKV_E_CANCELLED));
			if (!rc)
				ck_assert_uint_eq(kv_wrong(&rank[b], 1, i % 8, &i), 0);
			else
				ck_assert_uint_eq(kv_touched(&rank[b], i), 0);
			ck_assert_uint_eq(owned[b][i].retained, 1);
			ck_assert_uint_eq(owned[b][i].released, 1);
			ended[b] += rc == 0;
			okv_op_release(ops[b][i]);
		}
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
	for (uint32_t b = 0; b < 2; b++) {
		ck_assert_uint_ge(ended[b], patient ? QUEUED : 1);
		ck_assert_uint_eq(tensors[b].retained, 2);
		ck_assert_uint_eq(tensors[b].released, 2);
		ck_assert_uint_eq(ways[b].released, 2);
		rank[b].binding = NULL;
	}
	for (uint32_t i = 0; i < 3; i++)
		ck_assert(!ways[i].early);
	okv_lease_release(lease);
	okv_namespace_close(ns);
	for (uint32_t b = 0; b < 2; b++)
		kv_rank_close(&rank[b]);
	kv_until(kv_local_status(&l).sessions == 1);
	struct okv_manager_status s = kv_local_status(&l);
	ck_assert_uint_eq(s.sessions_retained + s.ops_quarantined + s.leases + s.bytes_pinned, 0);
	kv_local_stop(&l);
}

START_TEST(s16_hundred_queued_restores_then_unregister_and_close)
{
	leave_three_ways(true);
}
END_TEST

START_TEST(s16_unclaimed_restores_are_abandoned_not_waited_for)
{
	leave_three_ways(false);
}
END_TEST

/* ---- S17 ---- */

#define CANCELS 1000u
#define WAVE 20u

struct reaper {
	struct okv_engine *engine;
	uint32_t *seen; /* by user_data */
	int32_t *status;
	_Atomic uint32_t total;
};

static void take_completions(struct reaper *p)
{
	struct okv_completion c[7];
	uint32_t n;
	do {
		ck_assert_int_eq(okv_engine_poll(p->engine, c, 7, &n), 0);
		for (uint32_t i = 0; i < n; i++) {
			ck_assert_uint_lt(c[i].user_data, CANCELS);
			p->seen[c[i].user_data]++;
			p->status[c[i].user_data] = c[i].status;
			p->total++;
		}
	} while (n);
}

/* Six blocks of a sequence, in full and exact, by way of pages that nothing else uses. */
static void check_published(struct kv_rank *rank, uint64_t seq)
{
	static const uint32_t pages[6] = {1, 3, 5, 7, 9, 11};
	struct okv_lease *lease;
	struct okv_op_result r;
	ck_assert_uint_eq(kv_lookup(l.ns, seq, 6, 1, &lease), 6);
	ck_assert_int_eq(kv_restore(rank, lease, 0, 6, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(rank, seq, 0, 6, pages), 0);
	okv_lease_release(lease);
}

START_TEST(s17_thousand_cancels_one_result_each)
{
	const struct kv_shape shape = {.layers = 3, .segment_bytes = 3000, .pages = 256};
	struct okv_manager_options o = kv_local_options(16u << 20);
	o.part_bytes = 48 + 2 * 32;
	kv_local_start(&l, &o, 0, &shape);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op_result r;
	struct kv_owned owned = {0};
	static uint32_t seen[CANCELS];
	static int32_t status[CANCELS];
	struct reaper reaper = {.engine = l.engine, .seen = seen, .status = status};
	unsigned seed = 3;
	uint32_t outcomes[2] = {0}, checked = 0;
	kv_rank_open(&a, l.ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 16, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 16, 1, &lease), 16);
	for (uint32_t wave = 0; wave < CANCELS / WAVE; wave++) {
		struct okv_op *ops[WAVE];
		uint32_t pages[WAVE][6];
		kv_poison(&a);
		for (uint32_t k = 0; k < WAVE; k++)
			for (uint32_t i = 0; i < 6; i++) {
				pages[k][i] = k * 12 + i * 2;
				if (k % 2)
					kv_fill(&a, 1000 + wave * WAVE + k, i, &pages[k][i]);
			}
		for (uint32_t k = 0; k < WAVE; k++) {
			uint32_t id = wave * WAVE + k;
			if (k % 2) {
				uint8_t *keys = kv_keys(1000 + id, 0, 6);
				struct okv_publish_group g = {.keys = {.count = 6,
								       .key_bytes = KV_KEY_BYTES,
								       .keys = keys},
							      .tokens = 96,
							      .pages = pages[k]};
				struct okv_publish_options po;
				okv_publish_options_init(&po);
				po.flags = OKV_OP_NOTIFY;
				po.group_count = 1;
				po.groups = &g;
				po.user_data = id;
				po.owner = kv_owner(&owned);
				kv_ok(okv_publish_start(a.binding, &po, &ops[k], kv_err));
				free(keys);
			} else {
				struct okv_restore_group g = {
					.first = k % 8, .count = 6, .pages = pages[k]};
				struct okv_restore_options ro;
				okv_restore_options_init(&ro);
				ro.flags = OKV_OP_NOTIFY | OKV_RESTORE_KEEP;
				ro.group_count = 1;
				ro.groups = &g;
				ro.user_data = id;
				ro.owner = kv_owner(&owned);
				kv_ok(okv_restore_start(a.binding, lease, &ro, &ops[k], kv_err));
			}
			/* At once, a little later, or after some of the following ones. */
			if (rand_r(&seed) % 3 == 0)
				for (int y = rand_r(&seed) % 8; y > 0; y--)
					sched_yield();
			if (rand_r(&seed) % 3)
				ck_assert_int_eq(okv_op_cancel(ops[k]), 0);
			else if (k)
				ck_assert_int_eq(okv_op_cancel(ops[(uint32_t)rand_r(&seed) % k]),
						 0);
		}
		for (uint32_t k = 0; k < WAVE; k++) {
			uint32_t id = wave * WAVE + k;
			ck_assert_int_eq(okv_op_cancel(ops[k]), 0);
			int rc = okv_op_wait(ops[k], 60000, &r);
			ck_assert(rc == 0 || rc == OKV_E_CANCELLED);
			ck_assert_int_eq(okv_op_cancel(ops[k]), 0);
			ck_assert_int_eq(okv_op_poll(ops[k], NULL), rc);
			if (rc == 0 && k % 2 == 0)
				ck_assert_uint_eq(wrong(&a, 1, k % 8, 6, pages[k]), 0);
			if (rc == 0 && k % 2) {
				check_published(&a, 1000 + id);
				checked++;
			} else if (k % 2) {
				ck_assert_uint_eq(kv_lookup(l.ns, 1000 + id, 6, 1, NULL), 0);
			}
			outcomes[rc == 0]++;
			while (!seen[id])
				take_completions(&reaper);
			ck_assert_int_eq(status[id], rc);
			okv_op_release(ops[k]);
		}
	}
	take_completions(&reaper);
	for (uint32_t i = 0; i < CANCELS; i++)
		ck_assert_uint_eq(seen[i], 1);
	ck_assert_uint_gt(outcomes[0], 0);
	ck_assert_uint_gt(outcomes[1], 0);
	ck_assert_uint_gt(checked, 0);
	ck_assert_uint_eq(owned.retained, CANCELS);
	ck_assert_uint_eq(owned.released, CANCELS);

	struct okv_engine_stats e = kv_stats(l.engine);
	ck_assert_uint_eq(e.ops_running, 0);
	ck_assert_uint_eq(e.restores_started, e.restores_ok + e.restores_failed);
	ck_assert_uint_eq(e.publishes_started, e.publishes_ok + e.publishes_failed);
	ck_assert_uint_eq(e.restores_started + e.publishes_started, CANCELS + 1 + checked);
	struct okv_manager_status s;
	kv_until((s = kv_local_status(&l), s.ops_preparing + s.ops_granted + s.ops_active == 0));
	ck_assert_uint_eq(s.ops_quarantined, 0);
	ck_assert_uint_eq(s.blocks_partial, 0);
	ck_assert_uint_eq(s.bytes_used, s.blocks * 18048); /* 18,000 in grains of 64 */
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- S18, S19, S22 ---- */

START_TEST(s18_restore_into_a_page_being_published_is_busy)
{
	start(8u << 20);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *publish, *twice, *none = NULL;
	struct okv_op_result r;
	struct okv_error err = {0};
	struct kv_gate gate;
	uint32_t count = _i ? 1 : 4;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 4, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 4, 9, &lease), 4);
	uint32_t *pages = kv_pages(&a, count, 10, 1), *apart = kv_pages(&a, 4, 40, 1);
	for (uint32_t i = 0; i < count; i++)
		kv_fill(&a, 2, i, &pages[i]);
	kv_gate_close_page(&gate, &a, 1, 0, pages[0]);
	kv_ok(kv_publish_start(&a, 2, 0, count, pages, 0, &publish, kv_err));
	kv_gate_wait(&gate);
	for (uint32_t i = 0; i < count; i++)
		ck_assert_int_eq(kv_restore_start(&a, lease, 0, 1, &pages[i], 0, &none, &err),
				 OKV_E_BUSY);
	ck_assert_int_ne(err.text[0], 0);
	/* Reading twice is no conflict, and other pages are free. */
	kv_ok(kv_publish_start(&a, 3, 0, count, pages, 0, &twice, kv_err));
	ck_assert_int_eq(kv_restore_start(&a, lease, 0, 1, &pages[0], 0, &none, &err), OKV_E_BUSY);
	struct okv_op *free_pages;
	kv_ok(kv_restore_start(&a, lease, 0, 4, apart, 0, &free_pages, kv_err));
	ck_assert_ptr_null(none);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(publish, -1, NULL), 0);
	ck_assert_int_eq(okv_op_wait(twice, -1, NULL), 0);
	ck_assert_int_eq(okv_op_wait(free_pages, -1, NULL), 0);
	okv_op_release(publish);
	okv_op_release(twice);
	okv_op_release(free_pages);
	ck_assert_uint_eq(wrong(&a, 1, 0, 4, apart), 0);
	ck_assert_int_eq(kv_restore(&a, lease, 0, count, pages, 0, &r), 0);
	ck_assert_uint_eq(wrong(&a, 1, 0, count, pages), 0);
	okv_lease_release(lease);
	/* What both published is what the pages held before the restore: blocks of sequence 2. */
	for (uint64_t seq = 2; seq < 4; seq++) {
		kv_poison(&a);
		ck_assert_uint_eq(kv_lookup(l.ns, seq, count, 1, &lease), count);
		ck_assert_int_eq(kv_restore(&a, lease, 0, count, apart, 0, &r), 0);
		ck_assert_uint_eq(wrong(&a, 2, 0, count, apart), 0);
		okv_lease_release(lease);
	}
	free(pages);
	free(apart);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(s19_a_restore_of_nothing_completes_and_every_layer_is_ready)
{
	start(8u << 20);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *gated;
	struct okv_op_result r;
	struct kv_gate gate;
	uint32_t nowhere = 0;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 3, &lease), 8);
	/* Not even a copy that does not end keeps it waiting. */
	uint32_t *pages = kv_pages(&a, 8, 20, 1);
	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, 8, pages, 0, &gated, kv_err));
	kv_gate_wait(&gate);
	for (uint32_t k = 0; k < 4; k++) {
		struct okv_restore_group g = {.first = 8, .pages = k & 1 ? &nowhere : NULL};
		struct okv_restore_options o;
		struct okv_op *op;
		okv_restore_options_init(&o);
		o.group_count = k < 2;
		o.groups = k < 2 ? &g : NULL;
		o.flags = OKV_RESTORE_KEEP;
		kv_ok(okv_restore_start(a.binding, lease, &o, &op, kv_err));
		for (uint32_t i = 0; i < 2; i++) {
			ck_assert_int_eq(okv_op_wait_enqueued(op, i, 60000), 0);
			ck_assert_int_eq(okv_op_wait_layer(op, i, 60000), 0);
		}
		ck_assert_int_eq(okv_op_wait_layer(op, 2, 0), OKV_E_INVAL);
		ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
		ck_assert_uint_eq(r.blocks + r.bytes + r.lease_spent, 0);
		okv_op_release(op);
	}
	ck_assert_int_eq(kv_restore(&a, lease, 3, 0, NULL, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	for (uint32_t p = 0; p < 20; p++)
		ck_assert_uint_eq(kv_touched(&a, p), 0);
	ck_assert_int_eq(okv_op_poll(gated, NULL), OKV_E_RUNNING);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(gated, -1, NULL), 0);
	okv_op_release(gated);
	ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(s22_full_of_holders_a_publish_is_refused_and_restores_go_on)
{
	start(16 * WIDE_BLOCK);
	struct kv_rank a;
	struct okv_lease *leases[2];
	struct okv_op *gated[2];
	struct okv_op_result r;
	struct kv_gate gate;
	kv_rank_open(&a, l.ns, &wide, 0);
	for (uint64_t seq = 1; seq <= 2; seq++) {
		ck_assert_int_eq(kv_publish(&a, seq, 0, 8, NULL, &r), 0);
		ck_assert_uint_eq(kv_lookup(l.ns, seq, 8, 2, &leases[seq - 1]), 8);
	}
	ck_assert_uint_eq(kv_local_status(&l).bytes_free, 0);
	kv_poison(&a);
	uint32_t *pages[2] = {kv_pages(&a, 8, 30, 1), kv_pages(&a, 8, 50, 1)};
	/* Held by leases. */
	ck_assert_int_eq(kv_publish(&a, 3, 0, 2, NULL, &r), OKV_E_NOSPACE);
	ck_assert_uint_eq(r.blocks, 0);
	ck_assert_int_ne(r.text[0], 0);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(kv_restore(&a, leases[i], 0, 8, pages[i], 0, &r), 0);
		ck_assert_uint_eq(wrong(&a, i + 1, 0, 8, pages[i]), 0);
	}
	/* Held by grants alone: the second share was the last. */
	kv_gate_close_page(&gate, &a, 0, 0, pages[0][0]);
	for (uint32_t i = 0; i < 2; i++)
		kv_ok(kv_restore_start(&a, leases[i], 0, 8, pages[i], 0, &gated[i], kv_err));
	kv_gate_wait(&gate);
	ck_assert_int_eq(okv_op_wait(gated[1], 60000, NULL), 0);
	okv_op_release(gated[1]);
	kv_until(kv_local_status(&l).leases == 0);
	kv_until(kv_local_status(&l).ops_active == 1);
	ck_assert_int_eq(kv_publish(&a, 4, 0, 8, NULL, &r), 0); /* at the cost of seq 2 */
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, NULL), 8);
	ck_assert_uint_eq(kv_lookup(l.ns, 2, 8, 1, NULL), 0);
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_lookup(l.ns, 4, 8, 1, &lease), 8);
	ck_assert_int_eq(kv_publish(&a, 5, 0, 1, NULL, &r), OKV_E_NOSPACE);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 8, pages[1], 0, &r), 0);
	ck_assert_uint_eq(wrong(&a, 4, 0, 8, pages[1]), 0);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(gated[0], -1, NULL), 0);
	okv_op_release(gated[0]);
	ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages[0]), 0);
	kv_until(kv_local_status(&l).ops_active == 0);
	ck_assert_int_eq(kv_publish(&a, 5, 0, 16, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 16);
	okv_lease_release(lease);
	for (uint32_t i = 0; i < 2; i++) {
		okv_lease_release(leases[i]);
		free(pages[i]);
	}
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("abort");
	TCase *t = tcase_create("abort");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, s17_thousand_cancels_one_result_each);
	tcase_add_test(t, s16_hundred_queued_restores_then_unregister_and_close);
	tcase_add_test(t, s16_unclaimed_restores_are_abandoned_not_waited_for);
	tcase_add_loop_test(t, s18_restore_into_a_page_being_published_is_busy, 0, 2);
	tcase_add_test(t, s19_a_restore_of_nothing_completes_and_every_layer_is_ready);
	tcase_add_test(t, s22_full_of_holders_a_publish_is_refused_and_restores_go_on);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
