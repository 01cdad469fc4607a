/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Counted references to engines, namespaces, bindings and operations; is an engine usable? */
#include "engine/engine_private.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/fork.h"

bool oki_forked(const struct okv_engine *engine)
{
	return oki_forked_since(engine->fork_generation);
}

int oki_engine_usable(struct okv_engine *engine, struct okv_error *err)
{
	if (oki_forked(engine))
		return oki_fail(
			err, OKV_E_FORKED, OKV_STAGE_ARGUMENTS,
			"the engine was opened before a fork; open another in this process");
	if (atomic_load(&engine->closing))
		return oki_fail(err, OKV_E_CLOSED, OKV_STAGE_ARGUMENTS, "the engine is closed");
	int state = atomic_load(&engine->state);
	if (state)
		return oki_fail(err, state, OKV_STAGE_CONNECT, "%s; close it and open another",
				okv_status_text(state));
	return 0;
}

void oki_engine_get(struct okv_engine *engine)
{
	atomic_fetch_add_explicit(&engine->refs, 1, memory_order_relaxed);
}

void oki_engine_put(struct okv_engine *engine)
{
	if (atomic_fetch_sub(&engine->refs, 1) != 1)
		return;
	for (uint32_t i = 0; i < engine->arena_count; i++)
		oki_arena_release(&engine->arenas[i]);
	oki_channel_fini(&engine->channel);
	oki_area_fini(&engine->area);
	oki_event_set_fini(&engine->events);
	oki_fd_close(&engine->notify_fd);
	oki_log_fini(&engine->log);
	pthread_mutex_t *locks[] = {&engine->rpc_lock, &engine->table_lock,  &engine->register_lock,
				    &engine->lock,     &engine->notify_lock, &engine->event_lock};
	for (size_t i = 0; i < sizeof(locks) / sizeof(locks[0]); i++)
		pthread_mutex_destroy(locks[i]);
	pthread_cond_destroy(&engine->rpc_idle);
	free(engine);
}

void oki_ns_get(struct okv_namespace *ns)
{
	atomic_fetch_add_explicit(&ns->refs, 1, memory_order_relaxed);
}

void okv_namespace_close(struct okv_namespace *ns)
{
	if (!ns || oki_forked(ns->engine) || atomic_fetch_sub(&ns->refs, 1) != 1)
		return;
	struct okv_engine *engine = ns->engine;
	oki_schema_fini(&ns->schema);
	free(ns->canonical);
	free(ns);
	oki_engine_put(engine);
}

void oki_binding_get(struct okv_binding *binding)
{
	atomic_fetch_add_explicit(&binding->refs, 1, memory_order_relaxed);
}

void oki_binding_free(struct okv_binding *b)
{
	free(b->page_uses);
	free(b->part);
	free(b->owners);
	oki_geometry_fini(&b->geometry);
	pthread_cond_destroy(&b->drained);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

void oki_binding_put(struct okv_binding *binding)
{
	if (atomic_fetch_sub(&binding->refs, 1) != 1)
		return;
	struct okv_namespace *ns = binding->ns;
	oki_binding_free(binding);
	okv_namespace_close(ns);
}

void oki_binding_op_done(struct okv_binding *binding)
{
	if (--binding->running == 0)
		pthread_cond_broadcast(&binding->drained);
}

void oki_binding_wake(struct okv_binding *binding)
{
	pthread_mutex_lock(&binding->lock);
	if (!binding->shut)
		oki_worker_wake(binding->worker);
	pthread_mutex_unlock(&binding->lock);
}

void oki_op_get(struct okv_op *op)
{
	atomic_fetch_add_explicit(&op->refs, 1, memory_order_relaxed);
}

void oki_op_put(struct okv_op *op)
{
	if (atomic_fetch_sub(&op->refs, 1) != 1)
		return;
	struct okv_engine *engine = op->engine;
	if (op->binding)
		oki_binding_put(op->binding);
	free(op->transfer.events);
	free(op->events);
	free(op->pages);
	oki_stretches_free(op);
	free(op->enqueued);
	pthread_cond_destroy(&op->cond);
	pthread_mutex_destroy(&op->lock);
	free(op);
	oki_engine_put(engine);
}
