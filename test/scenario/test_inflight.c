/* SPDX-License-Identifier: Apache-2.0 */
/* Many operations at once: layers, parts of leases, owners, quiesce, dropped handles. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

/* Blocks of 128 KiB: a segment has whole memory pages, so a gate fits into any of them. */
static const struct kv_shape wide = {.layers = 4, .segment_bytes = 16384, .pages = 32};

static struct kv_local l;

static void start(const struct kv_shape *shape, uint32_t part_bytes)
{
	struct okv_manager_options o = kv_local_options(16u << 20);
	if (part_bytes)
		o.part_bytes = part_bytes;
	kv_local_start(&l, &o, 0, shape);
}

static uint64_t wrong(const struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		      const uint32_t *pages)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < count; i++)
		n += kv_wrong(rank, seq, first + i, pages + i);
	return n;
}

/* ---- several threads, bindings and operations ---- */

struct mixer {
	uint64_t seq;
	uint32_t rounds;
	pthread_barrier_t *ready;
	uint64_t wrong, failed;
};

static const struct kv_shape small = {.segment_bytes = 700, .pages = 96};

/* Its own binding; publishes, and restores what all the others published. */
static void *mix(void *arg)
{
	struct mixer *m = arg;
	struct kv_rank a;
	struct okv_op_result r;
	kv_rank_open(&a, l.ns, &small, 0);
	m->failed += kv_publish(&a, m->seq, 0, 8, NULL, &r) != 0;
	pthread_barrier_wait(m->ready);
	for (uint32_t k = 0; k < m->rounds; k++) {
		struct okv_op *ops[5];
		struct okv_lease *leases[4];
		uint32_t pages[4][8], stored[4];
		for (uint32_t i = 0; i < 4; i++) {
			for (uint32_t j = 0; j < 8; j++)
				pages[i][j] = (i * 8 + j) * 3 % 64;
			m->failed += kv_lookup(l.ns, 1 + i, 8, 1, &leases[i]) != 8;
			m->failed += kv_restore_start(&a, leases[i], k % 4, 4, pages[i], 0, &ops[i],
						      NULL) != 0;
			okv_lease_release(leases[i]);
		}
		for (uint32_t j = 0; j < 4; j++) {
			stored[j] = 64 + (k * 4 + j) % 32;
			kv_fill(&a, m->seq * 1000 + k, j, &stored[j]);
		}
		m->failed += kv_publish_start(&a, m->seq * 1000 + k, 0, 4, stored, 0, &ops[4],
					      NULL) != 0;
		for (uint32_t i = 5; i-- > 0;) {
			m->failed += okv_op_wait(ops[i], 60000, &r) != 0;
			m->failed += r.blocks != 4;
			okv_op_release(ops[i]);
			if (i < 4)
				m->wrong += wrong(&a, 1 + i, k % 4, 4, pages[i]);
		}
		struct okv_lease *own;
		m->failed += kv_lookup(l.ns, m->seq * 1000 + k, 4, 1, &own) != 4;
		m->failed += kv_restore(&a, own, 0, 4, pages[0], 0, &r) != 0;
		m->wrong += wrong(&a, m->seq * 1000 + k, 0, 4, pages[0]);
		okv_lease_release(own);
	}
	m->wrong += kv_canaries_broken(&a);
	kv_rank_close(&a);
	return NULL;
}

START_TEST(r1_publishes_and_restores_from_many_threads_are_exact)
{
	start(&small, _i ? 48 + 2 * 32 : 0);
	pthread_t threads[4];
	pthread_barrier_t ready;
	struct mixer mixers[4];
	ck_assert_int_eq(pthread_barrier_init(&ready, NULL, 4), 0);
	for (uint32_t i = 0; i < 4; i++) {
		mixers[i] = (struct mixer){.seq = 1 + i, .rounds = 25, .ready = &ready};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, mix, &mixers[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
		ck_assert_uint_eq(mixers[i].failed, 0);
		ck_assert_uint_eq(mixers[i].wrong, 0);
	}
	pthread_barrier_destroy(&ready);
	ck_assert_uint_eq(kv_stats(l.engine).ops_running, 0);
	kv_local_stop(&l);
}
END_TEST

/* ---- layers ---- */

START_TEST(layers_become_ready_in_consumption_order)
{
	start(&wide, 0);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op;
	struct okv_op_result r;
	struct kv_gate gates[4];
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	uint32_t *pages = kv_pages(&a, 8, 9, 2);
	/* Each layer has a page that does not arrive before we let it. */
	for (uint32_t i = 0; i < 4; i++)
		kv_gate_close_page(&gates[i], &a, i, i & 1, pages[i]);
	kv_ok(kv_restore_start(&a, lease, 0, 8, pages, 0, &op, kv_err));
	kv_gate_wait(&gates[0]);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_int_eq(okv_op_wait_enqueued(op, i, 60000), 0);
	for (uint32_t i = 0; i < 4; i++) {
		for (uint32_t j = i; j < 4; j++)
			ck_assert_int_eq(okv_op_wait_layer(op, j, 0), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_op_poll(op, NULL), OKV_E_RUNNING);
		kv_gate_open(&gates[i]);
		ck_assert_int_eq(okv_op_wait_layer(op, i, 60000), 0);
		/* The bytes of this layer, while others still lack theirs. */
		for (uint32_t b = 0; b < 8; b++) {
			uint8_t key[KV_KEY_BYTES];
			kv_key(1, b, key);
			for (uint32_t s = 0; s < 2; s++) {
				const uint8_t *at = (uint8_t *)a.layers[i].base +
						    pages[b] * a.layers[i].page_stride +
						    a.layers[i].segment_offset[s];
				for (uint32_t o = 0; o < wide.segment_bytes; o += 5)
					ck_assert_uint_eq(at[o], kv_byte(key, 0, i, s, o));
			}
		}
	}
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	okv_op_release(op);
	ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(wait_enqueued_tells_a_failed_operation_before_its_end)
{
	start(&wide, 80); /* parts of one block */
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op, *queued;
	struct okv_op_result r;
	struct kv_gate gate;
	uint32_t *pages;
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
	pages = kv_pages(&a, 9, 12, 1);
	/* The worker itself stands at the gate with the first; the second is not even claimed. */
	kv_gate_close_page(&gate, &a, 0, 0, pages[0]);
	kv_ok(kv_restore_start(&a, lease, 0, 8, pages, OKV_RESTORE_KEEP, &op, kv_err));
	kv_gate_wait(&gate);
	kv_ok(kv_restore_start(&a, lease, 0, 1, pages + 8, OKV_RESTORE_KEEP, &queued, kv_err));
	ck_assert_int_eq(okv_op_wait_enqueued(queued, 0, 0), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_wait_layer(op, 3, 1), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_cancel(queued), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(queued, 0, -1), OKV_E_CANCELLED);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(queued, -1, &r), OKV_E_CANCELLED);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_int_eq(okv_op_wait(op, -1, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	okv_op_release(op);
	okv_op_release(queued);
	ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
	free(pages);
	okv_lease_release(lease);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- leases ---- */

START_TEST(any_part_of_a_lease_in_any_order_and_shares_are_counted)
{
	start(&small, 0);
	struct kv_rank a;
	struct okv_lease *lease, *again;
	struct okv_op *none = NULL;
	struct okv_op_result r;
	struct okv_error err = {0};
	struct okv_lease_id id;
	const uint32_t parts[][2] = {{3, 2}, {0, 1}, {7, 1}, {0, 8}, {1, 6}, {5, 3}};
	kv_rank_open(&a, l.ns, &small, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 3, &lease), 8);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t *pages = kv_pages(&a, parts[i][1], 30 + i, 7);
		kv_poison(&a);
		ck_assert_int_eq(kv_restore(&a, lease, parts[i][0], parts[i][1], pages,
					    OKV_RESTORE_KEEP, &r),
				 0);
		ck_assert_uint_eq(r.blocks, parts[i][1]);
		ck_assert_uint_eq(r.lease_spent, 0);
		ck_assert_uint_eq(wrong(&a, 1, parts[i][0], parts[i][1], pages), 0);
		free(pages);
	}
	const uint32_t outside[][2] = {{8, 1}, {0, 9}, {7, 2}, {UINT32_MAX, 2}, {2, UINT32_MAX}};
	uint32_t *pages = kv_pages(&a, 9, 0, 1);
	for (uint32_t i = 0; i < 5; i++)
		ck_assert_int_lt(kv_restore_start(&a, lease, outside[i][0], outside[i][1], pages, 0,
						  &none, &err),
				 0);
	ck_assert_ptr_null(none);
	/* Three shares, whoever spends them. */
	kv_ok(okv_lease_open(l.ns, &id, &again, kv_err));
	for (uint32_t i = 0; i < 3; i++) {
		ck_assert_int_eq(kv_restore(&a, i & 1 ? again : lease, i, 1, pages, 0, &r), 0);
		ck_assert_uint_eq(r.lease_spent, 1);
	}
	ck_assert_int_eq(kv_restore(&a, again, 0, 1, pages, 0, &r), OKV_E_NOENT);
	ck_assert_uint_eq(r.lease_spent, 0);
	ck_assert_int_eq(kv_restore(&a, lease, 0, 1, pages, OKV_RESTORE_KEEP, &r), OKV_E_NOENT);
	ck_assert_uint_eq(kv_local_status(&l).leases, 0);
	ck_assert_uint_eq(kv_local_status(&l).bytes_pinned, 0);
	okv_lease_release(again);
	ck_assert_int_eq(okv_lease_open(l.ns, &id, &again, &err), OKV_E_NOENT);
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

/* ---- quiesce, owners, handles ---- */

struct quieter {
	struct okv_binding *binding;
	_Atomic pid_t tid;
};

static void *quiesce(void *arg)
{
	struct quieter *q = arg;
	q->tid = (pid_t)syscall(SYS_gettid);
	return (void *)(intptr_t)okv_binding_quiesce(q->binding, -1);
}

/* It has nothing to sleep on but the call above. */
static bool waits(struct quieter *q)
{
	char path[64], state = 0;
	if (!q->tid)
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)q->tid);
	FILE *f = fopen(path, "r");
	ck_assert_ptr_nonnull(f);
	ck_assert_int_eq(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
	fclose(f);
	return state == 'S';
}

START_TEST(s15_quiesce_drains_and_holds_until_resumed)
{
	start(&wide, 0);
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op, *none = NULL;
	struct okv_op_result r;
	struct okv_error err;
	struct kv_gate gate;
	pthread_t threads[2];
	kv_rank_open(&a, l.ns, &wide, 0);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 9, &lease), 8);
	uint32_t *pages = kv_pages(&a, 8, 8, 1), page = 30;
	for (uint32_t round = 0; round < 2; round++) {
		kv_gate_close_page(&gate, &a, 2, 0, pages[7]);
		kv_ok(kv_restore_start(&a, lease, 0, 8, pages, 0, &op, kv_err));
		kv_gate_wait(&gate);
		ck_assert_int_eq(okv_binding_quiesce(a.binding, 0), OKV_E_TIMEOUT);
		ck_assert_int_eq(okv_binding_quiesce(a.binding, 5), OKV_E_TIMEOUT);
		ck_assert_int_eq(kv_restore_start(&a, lease, 0, 1, &page, 0, &none, &err),
				 OKV_E_CLOSED);
		ck_assert_int_eq(kv_publish_start(&a, 2, 0, 1, &page, 0, &none, &err),
				 OKV_E_CLOSED);
		struct quieter quieters[2] = {{.binding = a.binding}, {.binding = a.binding}};
		for (int i = 0; i < 2; i++) {
			ck_assert_int_eq(pthread_create(&threads[i], NULL, quiesce, &quieters[i]),
					 0);
			kv_until(waits(&quieters[i]));
		}
		kv_gate_open(&gate);
		/* The last round ends in unregistering beside two who wait. */
		if (round == 1) {
			okv_binding_unregister(a.binding);
			a.binding = NULL;
		}
		for (int i = 0; i < 2; i++) {
			void *rc;
			ck_assert_int_eq(pthread_join(threads[i], &rc), 0);
			ck_assert_int_eq((intptr_t)rc, 0);
		}
		ck_assert_int_eq(okv_op_wait(op, 0, &r), 0);
		okv_op_release(op);
		ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
		if (round == 1)
			break;
		ck_assert_int_eq(kv_restore_start(&a, lease, 0, 1, &page, 0, &none, &err),
				 OKV_E_CLOSED);
		ck_assert_int_eq(okv_binding_resume(a.binding), 0);
		ck_assert_int_eq(kv_restore(&a, lease, 2, 1, &page, 0, &r), 0);
		ck_assert_uint_eq(kv_wrong(&a, 1, 2, &page), 0);
	}
	okv_lease_release(lease);
	free(pages);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(owners_are_released_once_and_only_after_the_drain)
{
	start(&wide, 0);
	struct kv_rank a;
	struct kv_owned tensor = {0}, restore = {0}, publish = {0}, refused = {0};
	struct okv_lease *lease;
	struct okv_op *ops[2], *none = NULL;
	struct okv_op_result r;
	struct okv_error err;
	struct kv_gate gates[2];
	kv_rank_init(&a, &wide, 0);
	for (uint32_t i = 0; i < 4; i++)
		a.layers[i].owner = kv_owner(&tensor);
	kv_ok(kv_rank_register(&a, l.ns, kv_err));
	ck_assert_uint_eq(tensor.retained, 4);
	ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 9, &lease), 8);
	uint32_t *to = kv_pages(&a, 4, 10, 1), *from = kv_pages(&a, 4, 20, 1);
	kv_gate_close_page(&gates[0], &a, 0, 0, to[0]);
	kv_gate_close_page(&gates[1], &a, 0, 0, from[0]);
	struct okv_restore_group rg = {.count = 4, .pages = to};
	struct okv_restore_options ro;
	okv_restore_options_init(&ro);
	ro.group_count = 1;
	ro.groups = &rg;
	ro.owner = kv_owner(&restore);
	kv_ok(okv_restore_start(a.binding, lease, &ro, &ops[0], kv_err));
	uint8_t *keys = kv_keys(2, 0, 4);
	struct okv_publish_group pg = {
		.keys = {.count = 4, .key_bytes = KV_KEY_BYTES, .keys = keys},
		.tokens = 64,
		.pages = from};
	struct okv_publish_options po;
	okv_publish_options_init(&po);
	po.group_count = 1;
	po.groups = &pg;
	po.owner = kv_owner(&publish);
	kv_ok(okv_publish_start(a.binding, &po, &ops[1], kv_err));
	kv_gate_wait(&gates[0]);
	kv_gate_wait(&gates[1]);
	/* A start that is refused keeps nothing. */
	ro.owner = po.owner = kv_owner(&refused);
	ck_assert_int_eq(okv_restore_start(a.binding, lease, &ro, &none, &err), OKV_E_BUSY);
	pg.pages = to;
	ck_assert_int_eq(okv_publish_start(a.binding, &po, &none, &err), OKV_E_BUSY);
	ck_assert_uint_eq(refused.retained, refused.released);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(okv_op_cancel(ops[i]), 0);
		okv_op_release(ops[i]);
	}
	okv_lease_release(lease);
	ck_assert_uint_eq(restore.retained + publish.retained, 2);
	ck_assert_uint_eq(restore.released + publish.released, 0);
	kv_gate_open(&gates[0]);
	kv_until(restore.released);
	ck_assert_uint_eq(publish.released + tensor.released, 0);
	kv_gate_open(&gates[1]);
	okv_binding_unregister(a.binding);
	a.binding = NULL;
	ck_assert_uint_eq(restore.retained + publish.retained, 2);
	ck_assert_uint_eq(restore.released + publish.released, 2);
	ck_assert_uint_eq(tensor.released, 4);
	free(keys);
	free(to);
	free(from);
	kv_rank_close(&a);
	kv_local_stop(&l);
}
END_TEST

START_TEST(handles_are_released_in_any_state_and_order)
{
	for (uint32_t way = 0; way < 8; way++) {
		start(&small, _i ? 80 : 0);
		struct kv_rank a;
		struct okv_lease *lease;
		struct okv_op *ops[2];
		struct okv_op_result r;
		kv_rank_open(&a, l.ns, &small, 0);
		ck_assert_int_eq(kv_publish(&a, 1, 0, 8, NULL, &r), 0);
		ck_assert_uint_eq(kv_lookup(l.ns, 1, 8, 1, &lease), 8);
		kv_fill(&a, 2, 0, (uint32_t[]){90});
		uint32_t *pages = kv_pages(&a, 8, 10, 1);
		kv_ok(kv_restore_start(&a, lease, 0, 8, pages, 0, &ops[0], kv_err));
		/* What is started keeps what it needs. */
		okv_lease_release(lease);
		kv_ok(kv_publish_start(&a, 2, 0, 1, (uint32_t[]){90}, OKV_OP_NOTIFY, &ops[1],
				       kv_err));
		if (way & 1) {
			okv_namespace_close(l.ns);
			l.ns = NULL;
		}
		if (way & 2)
			okv_op_release(ops[1]);
		if (way & 4) {
			okv_op_cancel(ops[0]);
			okv_engine_close(l.engine);
			l.engine = NULL;
		}
		okv_binding_unregister(a.binding);
		a.binding = NULL;
		int rc = okv_op_poll(ops[0], &r);
		ck_assert(rc == 0 || (way & 4 && rc == OKV_E_CANCELLED));
		if (!rc)
			ck_assert_uint_eq(wrong(&a, 1, 0, 8, pages), 0);
		okv_op_release(ops[0]);
		if (!(way & 2))
			okv_op_release(ops[1]);
		free(pages);
		kv_rank_close(&a);
		kv_local_stop(&l);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("inflight");
	TCase *t = tcase_create("inflight");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, r1_publishes_and_restores_from_many_threads_are_exact, 0, 2);
	tcase_add_test(t, any_part_of_a_lease_in_any_order_and_shares_are_counted);
	tcase_add_loop_test(t, handles_are_released_in_any_state_and_order, 0, 2);
	tcase_add_test(t, layers_become_ready_in_consumption_order);
	tcase_add_test(t, wait_enqueued_tells_a_failed_operation_before_its_end);
	tcase_add_test(t, s15_quiesce_drains_and_holds_until_resumed);
	tcase_add_test(t, owners_are_released_once_and_only_after_the_drain);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
