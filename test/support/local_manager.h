/* A Manager on a thread of the test, reachable at a socket: several engines, and its counters. */
#ifndef TEST_SUPPORT_LOCAL_MANAGER_H
#define TEST_SUPPORT_LOCAL_MANAGER_H

#include <pthread.h>

#include "support/kv.h"

struct kv_local {
	struct okv_manager *manager;
	pthread_t thread;
	char dir[64];
	char socket_path[96];
};

/* opts NULL: 16 MiB, no NUMA. */
void kv_local_start(struct kv_local *local, const struct okv_manager_options *opts);
/* Drain and end it; fails the test when it leaves a file behind. */
void kv_local_stop(struct kv_local *local);
struct okv_manager_status kv_local_status(const struct kv_local *local);

#endif
