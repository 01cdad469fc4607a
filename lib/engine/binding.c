/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Bindings: this rank's tensors, checked once, kept alive, drained before they are released. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/options.h"

/* Streams made at registration: this many operations can run at once before a start call has to
 * make one (transfer.h). */
#define READY_STREAMS 4u

void okv_binding_options_init(struct okv_binding_options *opts)
{
	if (!opts)
		return;
	memset(opts, 0, sizeof(*opts));
	opts->size = sizeof(*opts);
	opts->device = OKV_DEVICE_HOST;
}

static int check_options(const struct okv_namespace *ns, const struct okv_binding_options *o,
			 struct okv_error *err)
{
	if (!o->layers)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "layers is NULL");
	if (o->layer_count != ns->schema.layer_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%u layer%s given, but the schema has %u", o->layer_count,
				oki_plural(o->layer_count), ns->schema.layer_count);
	if (o->rank_slot >= ns->schema.rank_slots)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"rank slot %u of a namespace with %u", o->rank_slot,
				ns->schema.rank_slots);
	for (uint32_t i = 0; i < o->layer_count; i++)
		if (!o->layers[i].owner.retain != !o->layers[i].owner.release)
			return oki_fail(
				err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"layer %u: an owner has both retain and release, or neither", i);
	if (o->flags & ~(uint32_t)OKV_BINDING_SHARED_GROUPS || o->reserved)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"binding flags %#x are unknown, or reserved is not 0", o->flags);
	if (!oki_device_find(o->device))
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_ARGUMENTS,
				"device kind %u is unknown", o->device);
	if (o->device == OKV_DEVICE_HOST && o->device_index)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"the host device has index 0, not %d", o->device_index);
	if (o->copy_path > OKV_COPY_KERNEL)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "copy path %u is unknown",
				o->copy_path);
	if (o->copy_sms > OKI_MAX_SMS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"copy_sms %u: a copy kernel takes 1 to %u SMs", o->copy_sms,
				OKI_MAX_SMS);
	return 0;
}

/* Map every arena of the Manager once per engine. With register_lock held. */
static int import_arenas(struct okv_engine *e, struct okv_error *err)
{
	if (atomic_load(&e->arena_count))
		return 0;
	uint32_t count = e->welcome.arena_count, done = 0;
	if (count == 0 || count > OKW_MAX_ARENAS)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_IMPORT, "the Manager has %u arenas",
				count);
	int rc = 0;
	for (; done < count; done++) {
		struct okw_arena_ask ask = {.index = done};
		struct okw_arena_reply reply;
		OKI_FD fd = -1;
		rc = oki_rpc(e, OKW_MSG_ARENA, &ask, sizeof(ask), &reply, sizeof(reply), &fd, err);
		if (rc)
			break;
		bool read_only = e->options.flags & OKV_ENGINE_RESTORE_ONLY;
		if (reply.arena != done) {
			rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_IMPORT,
				      "asked for arena %u and got %u", done, reply.arena);
			break;
		}
		rc = oki_arena_import(fd, reply.arena, reply.bytes, reply.inode, read_only,
				      &e->arenas[done], err);
		if (rc)
			break;
	}
	if (rc) {
		while (done--)
			oki_arena_release(&e->arenas[done]);
		return rc;
	}
	atomic_store(&e->arena_count, count);
	return 0;
}

static void unpin_arenas(struct okv_binding *b)
{
	const struct oki_device_ops *ops = oki_worker_ops(b->worker);
	while (b->pinned) {
		b->pinned--;
		ops->unpin(oki_worker_device(b->worker), b->ns->engine->arenas[b->pinned].shm.base);
	}
}

static int pin_arenas(struct okv_binding *b, struct okv_error *err)
{
	struct okv_engine *e = b->ns->engine;
	const struct oki_device_ops *ops = oki_worker_ops(b->worker);
	for (; b->pinned < e->arena_count; b->pinned++) {
		struct oki_arena *a = &e->arenas[b->pinned];
		int rc = ops->pin(oki_worker_device(b->worker), a->shm.base, a->shm.bytes,
				  a->read_only, err);
		if (rc) {
			unpin_arenas(b);
			return rc;
		}
	}
	return 0;
}

/* With register_lock held. */
static int check_not_registered(struct okv_binding *b, struct okv_error *err)
{
	struct okv_engine *e = b->ns->engine;
	int rc = 0;
	pthread_mutex_lock(&e->lock);
	for (struct okv_binding *o = e->bindings; o && !rc; o = o->next)
		if (oki_geometry_overlaps(&o->geometry, &b->geometry))
			rc = oki_fail(err, OKV_E_EXISTS, OKV_STAGE_REGISTER,
				      "some of these bytes are registered already");
	pthread_mutex_unlock(&e->lock);
	return rc;
}

static int check_memory(struct okv_binding *b, struct okv_error *err)
{
	for (uint32_t i = 0; i < b->geometry.layer_count; i++) {
		int rc = oki_worker_ops(b->worker)->check_memory(oki_worker_device(b->worker),
								 b->geometry.maps[i].base,
								 b->geometry.lengths[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

static int bind_remote(struct okv_binding *b, const struct okv_binding_options *o,
		       struct okv_error *err)
{
	struct okw_bind bind = {
		.namespace_id = b->ns->id,
		.rank_slot = o->rank_slot,
		.device_kind = o->device,
	};
	oki_worker_ops(b->worker)->identify(oki_worker_device(b->worker), bind.device_id,
					    &bind.node);
	if (o->device == OKV_DEVICE_HOST) {
		/* Permits count per process and rank slot, so that one process cannot block
		 * another. */
		uint32_t id[2] = {(uint32_t)getpid(), o->rank_slot};
		memcpy(bind.device_id, id, sizeof(id));
	}
	struct okw_bind_reply reply;
	int rc = oki_rpc(b->ns->engine, OKW_MSG_BIND, &bind, sizeof(bind), &reply, sizeof(reply),
			 NULL, err);
	if (!rc)
		b->id = reply.binding_id;
	return rc;
}

static int alloc_tables(struct okv_binding *b, struct okv_error *err)
{
	const struct oki_geometry *geometry = &b->geometry;
	uint64_t count = 0, shared = 0;

	for (uint32_t g = 0; g < geometry->group_count; g++) {
		uint64_t units = (uint64_t)geometry->page_count[g] * geometry->page_units[g];
		shared = units > shared ? units : shared;
		count += units;
	}
	b->page_uses = calloc(geometry->shared_groups ? shared : count, sizeof(uint32_t));
	if (!b->page_uses)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a binding");
	for (uint32_t g = 0, at = 0; g < geometry->group_count; g++) {
		b->page_use[g] = b->page_uses + at;
		at += geometry->shared_groups ? 0 : geometry->page_count[g];
	}
	return 0;
}

/* Everything that can fail, in order, with register_lock held. */
static int build(struct okv_binding *b, const struct okv_binding_options *o, struct okv_error *err)
{
	struct okv_engine *e = b->ns->engine;
	int rc = oki_geometry_init(&b->geometry, &b->ns->schema, o->layers, o->layer_count,
				   o->flags & OKV_BINDING_SHARED_GROUPS, err);
	if (rc)
		return rc;
	rc = check_not_registered(b, err);
	if (!rc)
		rc = alloc_tables(b, err);
	if (!rc)
		rc = import_arenas(e, err);
	if (rc)
		return rc;
	struct oki_worker_config config = {
		.ops = oki_device_find(o->device),
		.device_index = o->device_index,
		.threads = o->copy_threads,
		.copy_path = o->copy_path,
		.copy_sms = o->copy_sms,
		.log = &e->log,
		.spin_us = e->options.spin_us,
		.schema = &b->ns->schema,
		.geometry = &b->geometry,
	};
	rc = oki_worker_create(&config, &b->worker, err);
	if (rc)
		return rc;
	rc = check_memory(b, err);
	if (!rc)
		rc = pin_arenas(b, err);
	if (!rc)
		rc = oki_worker_streams_open(b->worker, READY_STREAMS, err);
	if (!rc)
		rc = bind_remote(b, o, err);
	if (rc) {
		unpin_arenas(b);
		oki_worker_destroy(b->worker);
		b->worker = NULL;
	}
	return rc;
}

static struct okv_binding *new_binding(struct okv_namespace *ns,
				       const struct okv_binding_options *o)
{
	struct okv_binding *b = calloc(1, sizeof(*b));
	if (!b)
		return NULL;
	b->owners = calloc(o->layer_count, sizeof(*b->owners));
	if (!b->owners) {
		free(b);
		return NULL;
	}
	for (uint32_t i = 0; i < o->layer_count; i++)
		b->owners[i] = o->layers[i].owner;
	b->owner_count = o->layer_count;
	atomic_init(&b->refs, 1);
	b->ns = ns;
	b->rank_slot = o->rank_slot;
	pthread_mutex_init(&b->lock, NULL);
	oki_cond_init(&b->drained);
	return b;
}

static void retain_owners(const struct okv_binding *b)
{
	for (uint32_t i = 0; i < b->owner_count; i++)
		if (b->owners[i].retain)
			b->owners[i].retain(b->owners[i].object);
}

static void release_owners(const struct okv_binding *b)
{
	for (uint32_t i = 0; i < b->owner_count; i++)
		if (b->owners[i].release)
			b->owners[i].release(b->owners[i].object);
}

int okv_binding_register(struct okv_namespace *ns, const struct okv_binding_options *opts,
			 struct okv_binding **ret_binding, struct okv_error *err)
{
	struct okv_binding_options o;
	if (!ns || !ret_binding)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ns or ret_binding is NULL");
	okv_binding_options_init(&o);
	int rc = oki_options_take(&o, sizeof(o), opts, "binding", err);
	if (!rc)
		rc = check_options(ns, &o, err);
	if (!rc)
		rc = oki_engine_usable(ns->engine, err);
	if (rc)
		return rc;
	struct okv_engine *e = ns->engine;
	struct okv_binding *b = new_binding(ns, &o);
	if (!b)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a binding");
	/* Before the binding can be found, as okv_engine_close() releases what it finds; and not
	 * under register_lock, as retain() may wait for a thread that registers. */
	retain_owners(b);

	pthread_mutex_lock(&e->register_lock);
	rc = oki_engine_usable(e, err); /* it may have been closed meanwhile */
	if (!rc)
		rc = build(b, &o, err);
	if (rc) {
		pthread_mutex_unlock(&e->register_lock);
		release_owners(b);
		oki_binding_free(b);
		return rc;
	}
	oki_ns_get(ns);
	pthread_mutex_lock(&e->lock);
	b->next = e->bindings;
	e->bindings = b;
	pthread_mutex_unlock(&e->lock);
	pthread_mutex_unlock(&e->register_lock);
	*ret_binding = b;
	return 0;
}

static bool poisoned(const struct okv_binding *b)
{
	return atomic_load(&b->ns->engine->state) == OKV_E_POISONED;
}

/* With b->lock held. False: the deadline passed. */
static bool wait_drained(struct okv_binding *b, uint64_t deadline)
{
	bool in_time = true;
	while (b->running && !poisoned(b) && in_time)
		in_time = oki_cond_wait(&b->drained, &b->lock, deadline);
	return b->running == 0 || poisoned(b);
}

/* A Manager that never answers must not block closing: end unclaimed operations here. */
static void abandon_unclaimed(struct okv_binding *b)
{
	struct okv_engine *e = b->ns->engine;
	for (uint32_t i = 0; i < OKW_RECORDS; i++) {
		pthread_mutex_lock(&e->table_lock);
		struct okv_op *op = e->ops[i];
		if (op && op->binding == b)
			oki_op_get(op);
		else
			op = NULL;
		pthread_mutex_unlock(&e->table_lock);
		if (!op)
			continue;
		pthread_mutex_lock(&op->lock);
		bool unclaimed = op->phase == OKI_OP_GRANT;
		/* A claimed one copies the parts it has and asks for no more. */
		op->cancelled = op->cancelled || !unclaimed;
		pthread_mutex_unlock(&op->lock);
		if (unclaimed)
			oki_op_abandon(op, OKV_E_CANCELLED, "its binding or engine was closed");
		else
			oki_binding_wake(b);
		oki_op_put(op);
	}
}

void oki_binding_drain_stop(struct okv_binding *binding)
{
	struct okv_engine *e = binding->ns->engine;
	int timeout_ms = e->options.connect_timeout_ms;
	if (timeout_ms < 0)
		timeout_ms = OKI_RELEASE_TIMEOUT_MS;
	pthread_mutex_lock(&binding->lock);
	binding->admission = OKI_CLOSED;
	if (!wait_drained(binding, oki_deadline_ns(timeout_ms))) {
		pthread_mutex_unlock(&binding->lock);
		abandon_unclaimed(binding);
		pthread_mutex_lock(&binding->lock);
		wait_drained(binding, UINT64_MAX);
	}
	/* Poisoned: copies may still run, so worker, registered memory and owners stay until the
	 * process exits. Nothing waits for unclaimed operations then, so end them here. */
	if (poisoned(binding) && !binding->shut) {
		pthread_mutex_unlock(&binding->lock);
		abandon_unclaimed(binding);
		pthread_mutex_lock(&binding->lock);
	}
	if (poisoned(binding))
		binding->gone = true;
	bool first = !binding->shut && !binding->gone;
	binding->shut = true;
	while (!first && !binding->gone)
		pthread_cond_wait(&binding->drained, &binding->lock);
	pthread_mutex_unlock(&binding->lock);
	if (!first)
		return;
	unpin_arenas(binding);
	atomic_fetch_add(&e->counters.worker_wakeups_gone, oki_worker_wakeups(binding->worker));
	oki_worker_destroy(binding->worker);
	release_owners(binding);
	pthread_mutex_lock(&binding->lock);
	binding->gone = true;
	pthread_cond_broadcast(&binding->drained);
	pthread_mutex_unlock(&binding->lock);
}

void okv_binding_unregister(struct okv_binding *binding)
{
	if (!binding || oki_forked(binding->ns->engine))
		return;
	struct okv_engine *e = binding->ns->engine;
	oki_binding_drain_stop(binding);
	struct okw_bind_reply ask = {.binding_id = binding->id};
	if (!atomic_load(&e->closing) && !atomic_load(&e->state))
		oki_rpc(e, OKW_MSG_UNBIND, &ask, sizeof(ask), NULL, 0, NULL, NULL);
	pthread_mutex_lock(&e->lock);
	for (struct okv_binding **p = &e->bindings; *p; p = &(*p)->next)
		if (*p == binding) {
			*p = binding->next;
			break;
		}
	pthread_mutex_unlock(&e->lock);
	oki_binding_put(binding);
}

int okv_binding_quiesce(struct okv_binding *binding, int timeout_ms)
{
	if (!binding)
		return OKV_E_INVAL;
	if (oki_forked(binding->ns->engine))
		return OKV_E_FORKED;
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	/* A concurrent unregister must not free it while this call uses it. */
	oki_binding_get(binding);
	pthread_mutex_lock(&binding->lock);
	int rc = 0;
	if (binding->admission == OKI_CLOSED)
		rc = OKV_E_CLOSED;
	else
		binding->admission = OKI_QUIESCED;
	if (!rc && !wait_drained(binding, deadline))
		rc = OKV_E_TIMEOUT;
	if (!rc && poisoned(binding))
		rc = OKV_E_POISONED;
	pthread_mutex_unlock(&binding->lock);
	oki_binding_put(binding);
	return rc;
}

int okv_binding_resume(struct okv_binding *binding)
{
	if (!binding)
		return OKV_E_INVAL;
	int rc = oki_engine_usable(binding->ns->engine, NULL);
	if (rc)
		return rc;
	pthread_mutex_lock(&binding->lock);
	if (binding->admission == OKI_CLOSED)
		rc = OKV_E_CLOSED;
	/* Running operations require valid tensors already, so check only when there are none. */
	else if (binding->running == 0)
		rc = check_memory(binding, NULL);
	if (!rc)
		binding->admission = OKI_OPEN;
	pthread_mutex_unlock(&binding->lock);
	return rc;
}
