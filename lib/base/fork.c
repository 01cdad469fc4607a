/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this process a forked child of the one that made something? */
#include "base/fork.h"

#include <pthread.h>
#include <stdatomic.h>

static _Atomic uint64_t generation = 1;

static void after_fork_in_child(void)
{
	atomic_fetch_add(&generation, 1);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

uint64_t oki_fork_generation(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, watch_forks);
	return atomic_load(&generation);
}

bool oki_forked_since(uint64_t since)
{
	return atomic_load_explicit(&generation, memory_order_relaxed) != since;
}
