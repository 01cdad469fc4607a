/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that overtake the asker: the record may be free before the asker looks at it again. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#include "support/kv.h"
#include "support/suite.h"

#define THREADS 6
#define ROUNDS 4000

static struct okv_namespace *ns;

static void *ask(void *arg)
{
	uint64_t *hits = arg;
	for (int i = 0; i < ROUNDS; i++)
		*hits += kv_lookup(ns, 3, 2, 1, NULL);
	return NULL;
}

/* More threads than CPUs and no spinning: the asker is off its CPU while its record is answered,
 * freed and given to somebody else. */
START_TEST(answer_overtakes_asker)
{
	struct okv_manager_options m;
	okv_manager_options_init(&m);
	m.memory_bytes = 4u << 20;
	m.numa = OKV_NUMA_OFF;
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &m;
	o.spin_us = 0;
	struct okv_engine *e;
	kv_ok(okv_engine_open(&o, &e, kv_err));
	struct kv_shape shape = {0};
	ns = kv_namespace(e, &shape);
	struct kv_rank rank;
	kv_rank_open(&rank, ns, &shape, 0);
	struct okv_op_result r;
	ck_assert_int_eq(kv_publish(&rank, 3, 0, 2, NULL, &r), 0);
	pthread_t threads[THREADS];
	uint64_t hits[THREADS] = {0};
	for (int i = 0; i < THREADS; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, ask, &hits[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		ck_assert_uint_eq(hits[i], 2 * ROUNDS);
	}
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
}
END_TEST

static _Atomic int timeouts;

static void *ask_until_closed(void *arg)
{
	uint8_t *keys = kv_keys(3, 0, OKV_MAX_BLOCKS);
	struct okv_keys k = {.count = OKV_MAX_BLOCKS, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.flags = OKV_LOOKUP_PEEK;
	o.group_count = 1;
	o.groups = &k;
	o.timeout_ms = 60000;
	struct okv_lookup_result result;
	int rc;
	do
		rc = okv_lookup(arg, &o, &result, NULL, NULL);
	while (rc == 0 || rc == OKV_E_AGAIN);
	timeouts += rc != OKV_E_CLOSED;
	free(keys);
	return NULL;
}

/* Long requests are being written while the table of records goes away. */
START_TEST(close_beside_lookups)
{
	struct kv_shape shape = {0};
	for (int round = 0; round < 40; round++) {
		struct okv_engine *e = kv_engine_embedded(4u << 20, 0);
		struct okv_namespace *n = kv_namespace(e, &shape);
		pthread_t threads[THREADS];
		for (int i = 0; i < THREADS; i++)
			ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_until_closed, n), 0);
		struct okv_engine_stats stats;
		do
			ck_assert_int_eq(okv_stats_get(e, &stats), 0);
		while (stats.lookups < 3 + (uint64_t)round % 7);
		okv_engine_close(e);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		okv_namespace_close(n);
	}
	ck_assert_int_eq(timeouts, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("lookup race");
	TCase *t = tcase_create("answers");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, answer_overtakes_asker);
	tcase_add_test(t, close_beside_lookups);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
