/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Engines: open, close, state, statistics. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/options.h"

void okv_engine_options_init(struct okv_engine_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->connect_timeout_ms = 5000;
	opts->spin_us = 50;
}

static int take_options(struct okv_engine_options *ret_opts, const struct okv_engine_options *opts,
			struct okv_error *err)
{
	const uint32_t known = OKV_ENGINE_EMBEDDED | OKV_ENGINE_RESTORE_ONLY | OKV_ENGINE_POISON |
			       OKV_ENGINE_STAGE_TIMES | OKV_ENGINE_TRUST_UID;
	okv_engine_options_init(ret_opts);
	if (!opts)
		return 0;
	int rc = oki_options_take(ret_opts, sizeof(*ret_opts), opts, "engine", err);
	if (rc)
		return rc;
	if (ret_opts->flags & ~known)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "unknown engine flags 0x%x",
				ret_opts->flags & ~known);
	if (ret_opts->embedded && !(ret_opts->flags & OKV_ENGINE_EMBEDDED))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"embedded Manager options without OKV_ENGINE_EMBEDDED");
	if (ret_opts->socket_path && ret_opts->flags & OKV_ENGINE_EMBEDDED)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"socket_path with OKV_ENGINE_EMBEDDED: nobody would listen there");
	if (ret_opts->trust_uid && !(ret_opts->flags & OKV_ENGINE_TRUST_UID))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"trust_uid without OKV_ENGINE_TRUST_UID");
	if (ret_opts->reserved)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"engine options: reserved is not 0");
	if (ret_opts->connect_timeout_ms == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"connect_timeout_ms is 0; fill the options with their _init call");
	if (ret_opts->spin_us > 1000000)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"spin_us %u is above one second", ret_opts->spin_us);
	return 0;
}

static struct okv_engine *new_engine(const struct okv_engine_options *opts)
{
	struct okv_engine *e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	if (!oki_area_init(&e->area, OKW_REQUEST_AREA_BYTES, OKW_REQUEST_ALIGN, OKW_RECORDS)) {
		free(e);
		return NULL;
	}
	atomic_init(&e->refs, 1);
	e->fork_generation = oki_fork_generation();
	e->options = *opts;
	e->options.embedded = NULL;
	e->options.socket_path = NULL;
	e->sock = e->stop_fd = e->notify_fd = -1;
	e->channel.request_fd = e->channel.control_fd = -1;
	e->channel.engine_doorbell = e->channel.manager_doorbell = -1;
	e->notify_tail = &e->notify_head;
	pthread_mutex_t *locks[] = {&e->rpc_lock, &e->table_lock,  &e->register_lock,
				    &e->lock,	  &e->notify_lock, &e->event_lock};
	for (size_t i = 0; i < sizeof(locks) / sizeof(locks[0]); i++)
		pthread_mutex_init(locks[i], NULL);
	oki_cond_init(&e->rpc_idle);
	/* Index 0 comes off the stack first, so that a lightly used table stays in few cache lines.
	 */
	e->free_count = OKW_RECORDS;
	for (uint32_t i = 0; i < OKW_RECORDS; i++)
		e->free_records[i] = (uint16_t)(OKW_RECORDS - 1 - i);
	return e;
}

int okv_engine_open(const struct okv_engine_options *opts, struct okv_engine **ret_engine,
		    struct okv_error *err)
{
	struct okv_engine_options o;
	if (!ret_engine)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ret_engine is NULL");
	int rc = take_options(&o, opts, err);
	if (rc)
		return rc;
	struct okv_engine *e = new_engine(&o);
	if (!e)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for an engine");
	rc = oki_log_open(&e->log, o.log, o.log_arg, o.log_ring, err);
	if (!rc)
		rc = oki_notify_init(e, err);
	if (!rc && o.flags & OKV_ENGINE_EMBEDDED)
		rc = oki_embedded_start(e, o.embedded, err);
	/* After an embedded Manager touched its memory, which takes as long as it takes. */
	uint64_t deadline = oki_deadline_ns(o.connect_timeout_ms);
	if (!rc && !(o.flags & OKV_ENGINE_EMBEDDED))
		rc = oki_rpc_connect(e, o.socket_path, deadline, err);
	if (!rc)
		rc = oki_rpc_hello(e, deadline, err);
	if (!rc)
		rc = oki_session_start(e, err);
	if (rc) {
		okv_engine_close(e);
		return rc;
	}
	oki_log(&e->log, OKV_LOG_INFO, "session %u open, epoch %llu", e->welcome.slot,
		(unsigned long long)e->welcome.epoch);
	*ret_engine = e;
	return 0;
}

static void shut_bindings(struct okv_engine *e)
{
	for (;;) {
		struct okv_binding *b;
		pthread_mutex_lock(&e->lock);
		for (b = e->bindings; b; b = b->next) {
			pthread_mutex_lock(&b->lock);
			bool gone = b->gone;
			pthread_mutex_unlock(&b->lock);
			if (!gone)
				break;
		}
		if (b)
			oki_binding_get(b);
		pthread_mutex_unlock(&e->lock);
		if (!b)
			return;
		oki_binding_drain_stop(b);
		oki_binding_put(b);
	}
}

void okv_engine_close(struct okv_engine *engine)
{
	if (!engine || oki_forked(engine))
		return;
	atomic_store(&engine->closing, true);
	/* Let registrations end that saw closing unset; later ones are refused. */
	pthread_mutex_lock(&engine->register_lock);
	pthread_mutex_unlock(&engine->register_lock);
	shut_bindings(engine);
	oki_session_stop(engine);
	oki_rpc_close(engine);
	oki_embedded_stop(engine);
	oki_notify_drop(engine);
	oki_log_stop(&engine->log);
	oki_engine_put(engine);
}

int okv_engine_state(struct okv_engine *engine)
{
	if (!engine)
		return OKV_E_INVAL;
	return oki_engine_usable(engine, NULL);
}

uint64_t okv_engine_epoch(const struct okv_engine *engine)
{
	return engine ? engine->welcome.epoch : 0;
}

int okv_stats_get(struct okv_engine *engine, struct okv_engine_stats *ret_stats)
{
	if (!engine || !ret_stats)
		return OKV_E_INVAL;
	if (oki_forked(engine))
		return OKV_E_FORKED;
	struct oki_counters *c = &engine->counters;
	struct okv_engine_stats s = {
		.restores_started = atomic_load(&c->restores_started),
		.restores_ok = atomic_load(&c->restores_ok),
		.restores_failed = atomic_load(&c->restores_failed),
		.publishes_started = atomic_load(&c->publishes_started),
		.publishes_ok = atomic_load(&c->publishes_ok),
		.publishes_failed = atomic_load(&c->publishes_failed),
		.restored_bytes = atomic_load(&c->restored_bytes),
		.published_bytes = atomic_load(&c->published_bytes),
		.lookups = atomic_load(&c->lookups),
		.leases = atomic_load(&c->leases),
		.ops_running = atomic_load(&c->ops_running),
		.wakeups = atomic_load(&c->wakeups) + atomic_load(&c->worker_wakeups_gone),
		.arenas_mapped = atomic_load(&engine->arena_count),
	};
	for (uint32_t i = 0; i < s.arenas_mapped; i++)
		s.arena_bytes += engine->arenas[i].shm.bytes;
	pthread_mutex_lock(&engine->lock);
	for (struct okv_binding *b = engine->bindings; b; b = b->next) {
		pthread_mutex_lock(&b->lock);
		s.bindings++;
		if (!b->shut)
			s.wakeups += oki_worker_wakeups(b->worker);
		pthread_mutex_unlock(&b->lock);
	}
	pthread_mutex_unlock(&engine->lock);
	*ret_stats = s;
	return 0;
}
