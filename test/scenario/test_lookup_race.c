/* Answers that overtake the asker: the record may be free before the asker looks at it again. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>

#include "support/kv.h"

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

int main(void)
{
	Suite *s = suite_create("lookup race");
	TCase *t = tcase_create("answers");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, answer_overtakes_asker);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? 1 : 0;
}
