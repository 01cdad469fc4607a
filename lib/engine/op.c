/* [E] Operations as their callers see them: wait, poll, cancel, release. */
#include "engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"

struct okv_op *oki_op_create(struct okv_engine *engine, uint32_t kind, struct okv_error *err)
{
	struct okv_op *op = calloc(1, sizeof(*op));
	if (!op) {
		oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REQUEST, "no memory for an operation");
		return NULL;
	}
	atomic_init(&op->refs, 1);
	op->engine = engine;
	op->kind = kind;
	op->record = OKI_NO_RECORD;
	pthread_mutex_init(&op->lock, NULL);
	oki_cond_init(&op->cond);
	oki_engine_get(engine);
	return op;
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
	free(op->enqueued);
	pthread_cond_destroy(&op->cond);
	pthread_mutex_destroy(&op->lock);
	free(op);
	oki_engine_put(engine);
}

static void count_end(struct okv_op *op, int status)
{
	struct oki_counters *c = &op->engine->counters;
	if (op->kind == OKW_OP_RESTORE) {
		atomic_fetch_add(status ? &c->restores_failed : &c->restores_ok, 1);
		if (!status)
			atomic_fetch_add(&c->restored_bytes, op->result.bytes);
	} else if (op->kind == OKW_OP_PUBLISH) {
		atomic_fetch_add(status ? &c->publishes_failed : &c->publishes_ok, 1);
		if (!status)
			atomic_fetch_add(&c->published_bytes, op->result.bytes);
	}
}

static void fill_result(struct okv_op *op)
{
	int status = op->end_status;
	struct okv_op_result *r = &op->result;
	r->status = status;
	if (op->kind == OKW_OP_RESTORE || op->kind == OKW_OP_PUBLISH) {
		r->lease_spent = op->reply.transfer.lease_spent;
		r->present = op->reply.transfer.present;
		r->in_progress = op->reply.transfer.in_progress;
		r->not_stored = op->reply.transfer.not_stored;
		if (!status)
			r->blocks = op->reply.transfer.blocks;
		else
			r->bytes = 0;
	}
	if (op->stages.on) {
		const uint64_t *ns = op->stages.ns;
		r->times = (struct okv_stage_times){
			ns[OKI_STAGE_READY],   ns[OKI_STAGE_DISPATCHED], ns[OKI_STAGE_DEQUEUED],
			ns[OKI_STAGE_CLAIMED], ns[OKI_STAGE_ENQUEUED],	 ns[OKI_STAGE_DRAINED]};
	}
	memcpy(r->text, op->end_text, sizeof(r->text));
}

void oki_op_set_error(struct okv_op *op, int status, const char *text)
{
	if (!status || op->failing)
		return;
	op->failing = op->end_status = status;
	snprintf(op->end_text, sizeof(op->end_text), "%s",
		 text && *text ? text : okv_status_text(status));
	pthread_cond_broadcast(&op->cond);
}

static void set_flags(struct okv_op *op, _Atomic bool *flags, uint32_t layer)
{
	uint32_t end = layer + 1;
	if (layer == op->layer_count)
		layer = 0, end = op->layer_count;
	for (; layer < end; layer++)
		atomic_store(&flags[layer], true);
}

/* G8: after the flag; a waiter says that it will sleep, then looks. */
static void wake_waiters(struct okv_op *op)
{
	if (!atomic_load(&op->waiters))
		return;
	pthread_mutex_lock(&op->lock);
	pthread_cond_broadcast(&op->cond);
	pthread_mutex_unlock(&op->lock);
}

void oki_op_flag(struct okv_op *op, _Atomic bool *flags, uint32_t layer)
{
	set_flags(op, flags, layer);
	wake_waiters(op);
}

void oki_op_soon(struct okv_op *op)
{
	atomic_store(&op->soon, true);
	wake_waiters(op);
}

void oki_op_finish(struct okv_op *op)
{
	if (op->final)
		return;
	fill_result(op);
	/* A lost report of a layer must not outlive the end of the whole. */
	if (!op->end_status && op->done) {
		set_flags(op, op->enqueued, op->layer_count);
		set_flags(op, op->done, op->layer_count);
	}
	count_end(op, op->end_status);
	if (op->flags & OKV_OP_NOTIFY)
		oki_notify_push(op);
	/* Last: who sees it needs no lock for the rest. */
	atomic_store(&op->final, true);
	pthread_cond_broadcast(&op->cond);
}

static void release_owner(const struct okv_owner *owner)
{
	if (owner->release)
		owner->release(owner->object);
}

void oki_op_release_resources(struct okv_op *op)
{
	struct okv_binding *b = op->binding;
	if (op->has_stream) {
		/* Not claimed: nothing was copied, but the caller's streams may not be through. */
		oki_worker_stream_put(b->worker, op->transfer.stream, op->phase == OKI_OP_ACTIVE);
		op->has_stream = false;
	}
	/* Busy entries go before the owners: a released page may be in use again at once. */
	pthread_mutex_lock(&b->lock);
	oki_in_use_leave(op);
	pthread_mutex_unlock(&b->lock);
	for (uint32_t i = 0; i < op->event_count; i++)
		release_owner(&op->events[i].owner);
	release_owner(&op->owner);
	op->owner = (struct okv_owner){0};
	atomic_fetch_sub(&op->engine->counters.ops_running, 1);
}

void oki_op_abandon(struct okv_op *op, int status, const char *text)
{
	bool wake = false;
	pthread_mutex_lock(&op->lock);
	if (!op->final && op->phase == OKI_OP_GRANT) {
		op->phase = OKI_OP_ABANDONED;
		oki_op_set_error(op, status, text);
		if (op->record != OKI_NO_RECORD) {
			atomic_fetch_or(&oki_record_of(op)->engine_flags, OKW_ENGINE_CANCEL);
			oki_record_ring(op, &op->engine->channel.control->submit);
		}
		wake = op->binding != NULL;
		if (!wake)
			oki_op_finish(op);
	} else if (!op->final && op->phase == OKI_OP_DRAINED) {
		/* A publish that drained: whether it was sealed cannot be learned any more. */
		oki_op_set_error(op, status, text);
		oki_op_finish(op);
	} else if (!op->final && op->phase == OKI_OP_ACTIVE) {
		/* Its worker may wait for a part that nobody offers any more. */
		wake = true;
	}
	pthread_mutex_unlock(&op->lock);
	if (wake)
		oki_binding_wake(op->binding);
}

static int check_op(const struct okv_op *op)
{
	if (!op)
		return OKV_E_INVAL;
	return oki_forked(op->engine) ? OKV_E_FORKED : 0;
}

/* What somebody waits for: a flag of the operation. */
struct wait_cond {
	struct okv_op *op;
	const _Atomic bool *flag;
	bool layer; /* of a layer: the operation may fail before */
};

/* Is it there, or will it never be? Then *ret_rc says which. */
static bool is_satisfied(const struct wait_cond *w, int *ret_rc)
{
	/* G8: failing is set first and read first. */
	int failing = w->layer ? atomic_load(&w->op->failing) : 0;
	if (!failing && !atomic_load(w->flag))
		return false;
	*ret_rc = w->layer ? failing : w->op->result.status;
	return true;
}

/* A drained publish ends with a move of its record, which its caller sees before anybody can tell
 * him. */
static void poll_reaped(const struct wait_cond *w)
{
	struct okw_record *r = atomic_load(&w->op->ending);
	if (r && !w->layer && OKI_TAG_STATE(oki_tag_load(r)) == OKW_REAPED)
		oki_record_advance(w->op);
}

/* Look for so many times what the engine's options say, and never past the deadline. */
static bool spin(const struct wait_cond *w, uint32_t times, uint64_t deadline, int *ret_rc)
{
	uint64_t end = oki_now_ns() + (uint64_t)w->op->engine->options.spin_us * times * 1000u;
	uint32_t rounds = 0;
	if (end > deadline)
		end = deadline;
	do {
		do {
			poll_reaped(w);
			if (is_satisfied(w, ret_rc))
				return true;
			oki_spin(&rounds);
		} while (rounds % OKI_ROUNDS_PER_YIELD);
	} while (oki_now_ns() < end);
	return false;
}

/* So many times as long is looked for an end that was said to come soon. */
#define SOON_FACTOR 3u

/* What a sleeper looks closely for, once each. */
struct looks {
	bool soon;   /* its copies end in a moment */
	bool ending; /* they ended, and it is sealed */
};

/* How many times the usual to look now; 0: sleep on. */
static uint32_t look_times(const struct wait_cond *w, struct looks *left)
{
	if (left->ending && atomic_load(&w->op->ending)) {
		*left = (struct looks){false, false};
		return 1;
	}
	if (!left->soon || !atomic_load(&w->op->soon))
		return 0;
	left->soon = false;
	return SOON_FACTOR;
}

static bool sleep_until(const struct wait_cond *w, struct looks left, uint64_t deadline,
			int *ret_rc)
{
	struct okv_op *op = w->op;
	bool there = false;
	uint32_t times;
	pthread_mutex_lock(&op->lock);
	/* G8: declared first, then the look; and before the bells are asked for, so that the worker
	 * does not call them off. */
	atomic_fetch_add(&op->waiters, 1);
	pthread_mutex_unlock(&op->lock);
	oki_record_enable_wakeups(op);
	pthread_mutex_lock(&op->lock);
	for (bool in_time = true;;) {
		there = is_satisfied(w, ret_rc);
		if (there || !in_time)
			break;
		if ((times = look_times(w, &left)) > 0) {
			pthread_mutex_unlock(&op->lock);
			spin(w, times, deadline, ret_rc);
			pthread_mutex_lock(&op->lock);
			continue;
		}
		in_time = oki_cond_wait(&op->cond, &op->lock, deadline);
	}
	atomic_fetch_sub(&op->waiters, 1);
	pthread_mutex_unlock(&op->lock);
	return there;
}

/* Who looks in a loop would keep the lock from those who end it. A completion may be there before
 * final is, whose teller holds the lock. */
static bool look_once(const struct wait_cond *w, int *ret_rc)
{
	bool there = is_satisfied(w, ret_rc);
	if (there || !(w->op->flags & OKV_OP_NOTIFY))
		return there;
	pthread_mutex_lock(&w->op->lock);
	there = is_satisfied(w, ret_rc);
	pthread_mutex_unlock(&w->op->lock);
	return there;
}

/* False: the time is over; *ret_rc is not written then. */
static bool wait_for(const struct wait_cond *w, int timeout_ms, int *ret_rc)
{
	if (timeout_ms == 0)
		return look_once(w, ret_rc);
	if (is_satisfied(w, ret_rc))
		return true;
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	bool spins = w->op->engine->options.spin_us > 0;
	/* Nobody who never spins, and not for a layer, and not twice. */
	bool looks = spins && !w->layer && !atomic_load(&w->op->ending);
	struct looks left = {looks && !atomic_load(&w->op->soon), looks};
	if (spins && spin(w, 1, deadline, ret_rc))
		return true;
	return sleep_until(w, left, deadline, ret_rc);
}

static int wait_layer_flag(struct okv_op *op, uint32_t layer, int timeout_ms, bool in_place)
{
	int rc = check_op(op);
	if (rc)
		return rc;
	bool possible = op->kind == OKW_OP_RESTORE || (op->kind == OKW_OP_PUBLISH && !in_place);
	if (!possible || layer >= op->layer_count)
		return OKV_E_INVAL;
	const struct wait_cond cond = {op, &(in_place ? op->done : op->enqueued)[layer], true};
	return wait_for(&cond, timeout_ms, &rc) ? rc : OKV_E_TIMEOUT;
}

int okv_op_wait_enqueued(struct okv_op *op, uint32_t layer, int timeout_ms)
{
	return wait_layer_flag(op, layer, timeout_ms, false);
}

int okv_op_wait_layer(struct okv_op *op, uint32_t layer, int timeout_ms)
{
	return wait_layer_flag(op, layer, timeout_ms, true);
}

/* Complete with final, it never changes after. */
static void take_result(const struct okv_op *op, struct okv_op_result *ret_result)
{
	if (ret_result)
		*ret_result = op->result;
}

int okv_op_poll(struct okv_op *op, struct okv_op_result *ret_result)
{
	int rc = check_op(op);
	if (rc)
		return rc;
	const struct wait_cond cond = {op, &op->final, false};
	if (!look_once(&cond, &rc))
		return OKV_E_RUNNING;
	take_result(op, ret_result);
	return rc;
}

int oki_op_sleep(struct okv_op *op, uint64_t deadline_ns)
{
	const struct wait_cond cond = {op, &op->final, false};
	int rc;
	return sleep_until(&cond, (struct looks){0}, deadline_ns, &rc) ? rc : OKV_E_TIMEOUT;
}

int okv_op_wait(struct okv_op *op, int timeout_ms, struct okv_op_result *ret_result)
{
	int rc = check_op(op);
	if (rc)
		return rc;
	const struct wait_cond cond = {op, &op->final, false};
	if (!wait_for(&cond, timeout_ms, &rc))
		return OKV_E_TIMEOUT;
	take_result(op, ret_result);
	return rc;
}

int okv_op_cancel(struct okv_op *op)
{
	int rc = check_op(op);
	if (rc)
		return rc;
	pthread_mutex_lock(&op->lock);
	op->cancelled = true;
	if (op->record != OKI_NO_RECORD && op->phase != OKI_OP_DRAINED) {
		atomic_fetch_or(&oki_record_of(op)->engine_flags, OKW_ENGINE_CANCEL);
		oki_record_ring(op, &op->engine->channel.control->submit);
	}
	pthread_mutex_unlock(&op->lock);
	oki_record_enable_wakeups(op);
	/* A worker that waits for the next part learns that it need not. */
	if (op->binding)
		oki_binding_wake(op->binding);
	return 0;
}

void okv_op_release(struct okv_op *op)
{
	if (op && !oki_forked(op->engine))
		oki_op_put(op);
}
