/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager in this process behind a real socket, so that a test can see its counters. */
#ifndef TEST_SUPPORT_LOCAL_H
#define TEST_SUPPORT_LOCAL_H

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include "support/kv.h"

struct kv_local {
	struct okv_manager *manager;
	pthread_t thread;
	char dir[64];
	char socket_path[96];
	/* the first engine and its namespace */
	struct okv_engine *engine;
	struct okv_namespace *ns;
};

/* Defaults for tests: this much memory, no NUMA. */
struct okv_manager_options kv_local_options(uint64_t memory);
/* Start a Manager, connect an engine with these flags, open the namespace of the shape. */
void kv_local_start(struct kv_local *l, const struct okv_manager_options *opts, uint32_t flags,
		    const struct kv_shape *shape);
/* Close namespace and engine (NULL: closed by the test), stop; the Manager must have drained. */
void kv_local_stop(struct kv_local *l);
struct okv_manager_status kv_local_status(const struct kv_local *l);
struct okv_engine_stats kv_stats(struct okv_engine *engine);

/* How often an owner was retained and released. */
struct kv_owned {
	_Atomic uint32_t retained, released;
};
struct okv_owner kv_owner(struct kv_owned *owned);

/* Look again and again until it is true; fail the test after a minute. */
#define kv_until(condition)                                                             \
	do {                                                                            \
		time_t end_ = time(NULL) + 60;                                          \
		while (!(condition)) {                                                  \
			ck_assert_msg(time(NULL) < end_, "never true: %s", #condition); \
			sched_yield();                                                  \
		}                                                                       \
	} while (0)

#endif
