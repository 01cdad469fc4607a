/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Operations as their callers see them: wait, poll, cancel, release. */
#include "engine/engine_private.h"

#include "base/clock.h"
#include "base/cond.h"

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

/* As okv_op_wait() for who has spun already. */
static int sleep_for_end(struct okv_op *op, uint64_t deadline_ns)
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

/* A Manager's thread may have to wake first, and answers with a bell, which takes two more wakings,
 * if nobody looks by then. */
#define ANSWER_FACTOR 4u

/* The record may be another operation's by now; to look at it and to unset its spinning flag (a
 * bell more for that one) is harmless, and only oki_record_advance() says what became of op. */
int oki_record_wait(struct okv_op *op, struct okw_record *r, int timeout_ms)
{
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	uint64_t spin_ns = (uint64_t)op->engine->options.spin_us * ANSWER_FACTOR * 1000u;
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
		/* G1 again: clear the flag, then look; the Manager moves, then reads the flag. */
		atomic_fetch_and(&r->engine_flags, ~OKW_ENGINE_SPINNING);
	oki_record_advance(op);
	return sleep_for_end(op, deadline);
}
