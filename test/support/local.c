/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager in this process behind a real socket, so that a test can see its counters. */
#include "support/local.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct okv_manager_options kv_local_options(uint64_t memory)
{
	struct okv_manager_options o;
	okv_manager_options_init(&o);
	o.memory_bytes = memory;
	o.numa = OKV_NUMA_OFF;
	return o;
}

static void *run(void *arg)
{
	struct kv_local *l = arg;
	return (void *)(intptr_t)okv_manager_run(l->manager, NULL);
}

void kv_local_start(struct kv_local *l, const struct okv_manager_options *opts, uint32_t flags,
		    const struct kv_shape *shape)
{
	memset(l, 0, sizeof(*l));
	strcpy(l->dir, "/tmp/okv-local-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(l->dir));
	snprintf(l->socket_path, sizeof(l->socket_path), "%s/manager.sock", l->dir);
	kv_ok(okv_manager_create(opts, &l->manager, kv_err));
	kv_ok(okv_manager_listen(l->manager, l->socket_path, kv_err));
	ck_assert_int_eq(pthread_create(&l->thread, NULL, run, l), 0);
	l->engine = kv_engine_connect(l->socket_path, flags);
	l->ns = kv_namespace(l->engine, shape);
}

void kv_local_stop(struct kv_local *l)
{
	void *rc;
	okv_namespace_close(l->ns);
	okv_engine_close(l->engine);
	okv_manager_stop(l->manager);
	ck_assert_int_eq(pthread_join(l->thread, &rc), 0);
	ck_assert_int_eq((int)(intptr_t)rc, 0);
	okv_manager_destroy(l->manager);
	ck_assert_int_eq(rmdir(l->dir), 0);
}

struct okv_manager_status kv_local_status(const struct kv_local *l)
{
	struct okv_manager_status s;
	ck_assert_int_eq(okv_manager_status_get(l->manager, &s), 0);
	return s;
}

struct okv_engine_stats kv_stats(struct okv_engine *engine)
{
	struct okv_engine_stats s;
	ck_assert_int_eq(okv_stats_get(engine, &s), 0);
	return s;
}

static void retain(void *object)
{
	struct kv_owned *owned = object;
	atomic_fetch_add(&owned->retained, 1);
}

static void release(void *object)
{
	struct kv_owned *owned = object;
	atomic_fetch_add(&owned->released, 1);
}

struct okv_owner kv_owner(struct kv_owned *owned)
{
	return (struct okv_owner){.object = owned, .retain = retain, .release = release};
}
