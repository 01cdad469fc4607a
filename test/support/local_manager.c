/* A Manager on a thread of the test, reachable at a socket. */
#include "support/local_manager.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *run(void *arg)
{
	okv_manager_run(arg, NULL);
	return NULL;
}

void kv_local_start(struct kv_local *local, const struct okv_manager_options *opts)
{
	struct okv_manager_options o;
	okv_manager_options_init(&o);
	o.memory_bytes = 16u << 20;
	o.numa = OKV_NUMA_OFF;
	memset(local, 0, sizeof(*local));
	strcpy(local->dir, "/tmp/orbitkv-test-XXXXXX");
	ck_assert(mkdtemp(local->dir) != NULL);
	snprintf(local->socket_path, sizeof(local->socket_path), "%s/m.sock", local->dir);
	kv_ok(okv_manager_create(opts ? opts : &o, &local->manager, kv_err));
	kv_ok(okv_manager_listen(local->manager, local->socket_path, kv_err));
	ck_assert_int_eq(pthread_create(&local->thread, NULL, run, local->manager), 0);
}

void kv_local_stop(struct kv_local *local)
{
	okv_manager_stop(local->manager);
	pthread_join(local->thread, NULL);
	okv_manager_destroy(local->manager);
	/* It takes its socket with it. */
	ck_assert_int_eq(rmdir(local->dir), 0);
	memset(local, 0, sizeof(*local));
}

struct okv_manager_status kv_local_status(const struct kv_local *local)
{
	struct okv_manager_status s;
	ck_assert_int_eq(okv_manager_status_get(local->manager, &s), 0);
	return s;
}
