/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Operations as their callers see them: wait, poll, cancel, release. */
#include "engine/engine_private.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"

static int check_op(const struct okv_op *op)
{
	if (!op)
		return OKV_E_INVAL;
	return oki_forked(op->engine) ? OKV_E_FORKED : 0;
}

/* What a caller waits for: a flag of the operation. */
struct wait_cond {
	struct okv_op *op;
	const _Atomic bool *flag;
	bool layer; /* flag of a layer: the wait also ends when the operation fails */
};

/* True when the flag is set or never will be; *ret_rc says which. */
static bool is_satisfied(const struct wait_cond *w, int *ret_rc)
{
	/* G8: failing is set first and read first. */
	int failing = w->layer ? atomic_load(&w->op->failing) : 0;
	if (!failing && !atomic_load(w->flag))
		return false;
	*ret_rc = w->layer ? failing : w->op->result.status;
	return true;
}

/* A drained publish ends with a move of its record. Polling the record finds the move sooner than
 * any wakeup. */
static void poll_reaped(const struct wait_cond *w)
{
	struct okw_record *r = atomic_load(&w->op->ending);
	if (r && !w->layer && OKI_TAG_STATE(oki_tag_load(r)) == OKW_REAPED)
		oki_record_advance(w->op);
}

/* Spin for `times` times spin_us, but not past the deadline. */
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

/* The end is announced as near: spin for this many times spin_us. */
#define SOON_FACTOR 3u

/* Reasons for a sleeper to spin again, each used once. */
struct looks {
	bool soon;   /* its copies are about to end */
	bool ending; /* its copies ended, and the Manager seals */
};

/* For how many times spin_us to spin now; 0: sleep. */
static uint32_t spin_times(const struct wait_cond *w, struct looks *left)
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
	bool satisfied = false;
	uint32_t times;
	pthread_mutex_lock(&op->lock);
	/* G8: raise waiters, then read the flag. Raise it before enabling wakeups, too, so that the
	 * worker does not disable them again. */
	atomic_fetch_add(&op->waiters, 1);
	pthread_mutex_unlock(&op->lock);
	oki_record_enable_wakeups(op);
	pthread_mutex_lock(&op->lock);
	for (bool in_time = true;;) {
		satisfied = is_satisfied(w, ret_rc);
		if (satisfied || !in_time)
			break;
		if ((times = spin_times(w, &left)) > 0) {
			pthread_mutex_unlock(&op->lock);
			spin(w, times, deadline, ret_rc);
			pthread_mutex_lock(&op->lock);
			continue;
		}
		in_time = oki_cond_wait(&op->cond, &op->lock, deadline);
	}
	atomic_fetch_sub(&op->waiters, 1);
	pthread_mutex_unlock(&op->lock);
	return satisfied;
}

/* Read without the lock first: a caller that polls in a loop would keep the lock from the threads
 * that end the operation. With OKV_OP_NOTIFY read again under the lock: the completion is queued
 * before final is set, both under the lock. */
static bool look_once(const struct wait_cond *w, int *ret_rc)
{
	bool satisfied = is_satisfied(w, ret_rc);
	if (satisfied || !(w->op->flags & OKV_OP_NOTIFY))
		return satisfied;
	pthread_mutex_lock(&w->op->lock);
	satisfied = is_satisfied(w, ret_rc);
	pthread_mutex_unlock(&w->op->lock);
	return satisfied;
}

/* False: timed out; *ret_rc is not written then. */
static bool wait_for(const struct wait_cond *w, int timeout_ms, int *ret_rc)
{
	if (timeout_ms == 0)
		return look_once(w, ret_rc);
	if (is_satisfied(w, ret_rc))
		return true;
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	bool spins = w->op->engine->options.spin_us > 0;
	/* Poll for Reaped before sleeping, unless spinning is off, the wait is for a layer, or it
	 * was done already. */
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

/* The result is complete when final is set and never changes after. */
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

/* As okv_op_wait(), for a caller that has spun already. */
static int sleep_for_end(struct okv_op *op, uint64_t deadline_ns)
{
	const struct wait_cond cond = {op, &op->final, false};
	int rc;
	return sleep_until(&cond, (struct looks){0}, deadline_ns, &rc) ? rc : OKV_E_TIMEOUT;
}

int okv_op_stretches(struct okv_op *op, uint32_t first, uint32_t count,
		     struct okv_stretch_result *ret_results)
{
	if (!op || (count && !ret_results))
		return OKV_E_INVAL;
	if (oki_forked(op->engine))
		return OKV_E_FORKED;
	if (!atomic_load(&op->final))
		return OKV_E_RUNNING;
	if (first > op->asked_stretches || count > op->asked_stretches - first)
		return OKV_E_INVAL;
	for (uint32_t i = 0; i < count; i++) {
		const struct okw_stretch_reply *r = &op->stretches[first + i].reply;
		ret_results[i] = (struct okv_stretch_result){
			.status = r->status ? oki_peer_status(r->status) : 0};
		if (op->result.status)
			continue;
		ret_results[i].blocks = r->blocks;
		ret_results[i].present = r->present;
		ret_results[i].in_progress = r->in_progress;
		ret_results[i].not_stored = r->not_stored;
	}
	return 0;
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
	/* Wake a worker that waits for the next part, so that it ends the operation. */
	if (op->binding)
		oki_binding_wake(op->binding);
	return 0;
}

void okv_op_release(struct okv_op *op)
{
	if (op && !oki_forked(op->engine))
		oki_op_put(op);
}

/* The record may belong to another operation by now. Reading it is harmless, and so is clearing
 * its spinning flag, which costs that operation one ring. Only oki_record_advance() decides
 * about op. */
int oki_record_wait(struct okv_op *op, struct okw_record *r, int timeout_ms)
{
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	uint64_t spin_ns = (uint64_t)op->engine->options.spin_us * OKI_REPLY_SPINS * 1000u;
	uint64_t spin_end = oki_now_ns() + spin_ns;
	uint32_t rounds = 0;
	bool done;
	if (deadline < spin_end)
		spin_end = deadline;
	do {
		do {
			done = OKI_TAG_STATE(oki_tag_load(r)) == OKW_DONE;
			if (!done)
				oki_spin(&rounds);
		} while (!done && rounds % OKI_ROUNDS_PER_YIELD);
	} while (!done && oki_now_ns() < spin_end);
	if (!done)
		/* G1 again: clear the flag, then read the tag; the Manager moves the tag, then
		 * reads the flag. */
		atomic_fetch_and(&r->engine_flags, ~OKW_ENGINE_SPINNING);
	oki_record_advance(op);
	return sleep_for_end(op, deadline);
}
