/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A few threads for plain memcpy, and for filling and checking pages. */
#include "tool_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_THREADS 8u /* as the host device */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t begin;
	pthread_cond_t end;
	pthread_t threads[MAX_THREADS];
	uint32_t thread_count; /* besides the caller */
	uint32_t working;
	uint64_t round;
	bool quit;
	tool_part_fn *fn;
	void *arg;
	uint64_t count;
	uint64_t grain;
	atomic_uint_fast64_t next;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
	  .begin = PTHREAD_COND_INITIALIZER,
	  .end = PTHREAD_COND_INITIALIZER};

uint32_t tool_pool_threads(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return MAX_THREADS;
	uint32_t count = (uint32_t)CPU_COUNT(&set);
	return count < MAX_THREADS ? count : MAX_THREADS;
}

static void take_parts(void)
{
	for (;;) {
		uint64_t first = atomic_fetch_add(&pool.next, pool.grain);
		uint64_t last = first + pool.grain < pool.count ? first + pool.grain : pool.count;

		if (first >= pool.count)
			return;
		pool.fn(pool.arg, first, last);
	}
}

static void *serve(void *arg)
{
	uint64_t seen = 0;

	(void)arg;
	pthread_mutex_lock(&pool.lock);
	for (;;) {
		while (pool.round == seen && !pool.quit)
			pthread_cond_wait(&pool.begin, &pool.lock);
		if (pool.quit)
			break;
		seen = pool.round;
		pthread_mutex_unlock(&pool.lock);
		take_parts();
		pthread_mutex_lock(&pool.lock);
		if (--pool.working == 0)
			pthread_cond_signal(&pool.end);
	}
	pthread_mutex_unlock(&pool.lock);
	return NULL;
}

static void start_threads(void)
{
	uint32_t wanted = tool_pool_threads() - 1;

	while (pool.thread_count < wanted) {
		if (pthread_create(&pool.threads[pool.thread_count], NULL, serve, NULL) != 0)
			break;
		pool.thread_count++;
	}
}

void tool_pool_run(tool_part_fn *fn, void *arg, uint64_t count, uint64_t grain)
{
	if (pool.thread_count == 0)
		start_threads();
	pthread_mutex_lock(&pool.lock);
	pool.fn = fn;
	pool.arg = arg;
	pool.count = count;
	pool.grain = grain;
	atomic_store(&pool.next, 0);
	pool.working = pool.thread_count;
	pool.round++;
	pthread_cond_broadcast(&pool.begin);
	pthread_mutex_unlock(&pool.lock);
	take_parts();
	pthread_mutex_lock(&pool.lock);
	while (pool.working > 0)
		pthread_cond_wait(&pool.end, &pool.lock);
	pthread_mutex_unlock(&pool.lock);
}

void tool_pool_stop(void)
{
	pthread_mutex_lock(&pool.lock);
	pool.quit = true;
	pthread_cond_broadcast(&pool.begin);
	pthread_mutex_unlock(&pool.lock);
	for (uint32_t i = 0; i < pool.thread_count; i++)
		pthread_join(pool.threads[i], NULL);
	pool.thread_count = 0;
	pool.quit = false;
}
