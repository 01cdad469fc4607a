/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The thread of one binding that submits copies and never waits for one. */
#include "exec/exec_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"
#include "base/thread.h"

/* Ended transfers that wait for Reaped. They keep the worker awake only for a while. */
static void poll_reaped(struct oki_worker *w, bool last)
{
	for (struct oki_transfer **p = &w->unreaped; *p;) {
		struct oki_transfer *t = *p, *next = t->next;
		if (t->source->poll_reaped(t->arg, last) || last)
			*p = next;
		else
			p = &t->next;
	}
}

/* The worker stops polling: from here on, what it waits for must wake it. */
static void rest(struct oki_worker *w)
{
	poll_reaped(w, true);
	for (struct oki_transfer *t = w->active; t; t = t->next)
		if (t->phase == OKI_PHASE_CLAIM && t->source->rest)
			t->source->rest(t->arg);
}

static void end_transfer(struct oki_worker *w, struct oki_transfer *t, int status)
{
	/* Before ended(): another thread may free the transfer after it. */
	for (; t->kept_count && status != OKV_E_POISONED; t->kept_count--)
		oki_runs_give(&w->scratch, &t->kept[t->kept_count - 1]);
	t->source->ended(t->arg, status, t->bytes);
}

/* STEP_ENDED: ended() was called. STEP_GONE: the transfer may be freed already. */
enum step { STEP_IDLE, STEP_MOVED, STEP_ENDED, STEP_GONE };

/* The device cannot record or query a mark any more: block until the stream is drained. */
static enum step end_blocking(struct oki_worker *w, struct oki_transfer *t, int status)
{
	struct okv_error err;
	rest(w);
	int rc = w->ops->drain(t->stream, &err);
	end_transfer(w, t, rc == OKV_E_POISONED ? rc : status);
	return STEP_ENDED;
}

/* A copy or record failed. Copies that were queued must stop before ended() is called. They may
 * wait long for a caller's stream, so poll for them as for any end. */
static enum step fail_transfer(struct oki_worker *w, struct oki_transfer *t,
			       const struct okv_error *why)
{
	struct okv_error err;
	t->source->failing(t->arg, why);
	if (w->ops->record(t->stream, t->final_mark, &err))
		return end_blocking(w, t, why->status);
	t->failed = why->status;
	t->phase = OKI_PHASE_FAILED;
	return STEP_MOVED;
}

static enum step step_failed(struct oki_worker *w, struct oki_transfer *t)
{
	struct okv_error err;
	int rc = w->ops->query(t->final_mark, &err);
	if (rc == 0)
		return STEP_IDLE;
	if (rc < 0)
		return end_blocking(w, t, t->failed);
	end_transfer(w, t, t->failed);
	return STEP_ENDED;
}

/* 1: the last part is submitted; 0: not yet. */
static int step_parts(struct oki_worker *w, struct oki_transfer *t, bool *ret_moved,
		      struct okv_error *err)
{
	*ret_moved = false;
	for (;;) {
		if (!t->part.in_hand) {
			struct oki_part part;
			int rc = t->source->next(t->arg, &part, err);
			if (rc <= 0)
				return rc;
			rc = oki_submit_begin(w, t, &part, err);
			if (rc)
				return rc;
			oki_poll_started(t, oki_now_ns());
		}
		bool moved;
		int rc = oki_submit_some(w, t, &moved, err);
		*ret_moved |= moved;
		if (rc <= 0)
			return rc;
		if (t->part.last)
			return 1;
	}
}

static enum step step_drain(struct oki_worker *w, struct oki_transfer *t)
{
	bool reported = w->ops->has_callbacks && oki_layers_report(w, t, false);
	struct okv_error err;
	uint64_t now = oki_now_ns();
	int rc = w->ops->query(t->final_mark, &err);
	if (rc == 0) {
		oki_poll_looked(w, t, now);
		if (!t->told_soon && oki_poll_is_soon(t, now)) {
			t->told_soon = true;
			if (t->source->soon)
				t->source->soon(t->arg);
		}
		return reported ? STEP_MOVED : STEP_IDLE;
	}
	if (rc < 0) {
		t->source->failing(t->arg, &err);
		return end_blocking(w, t, err.status);
	}
	oki_layers_report(w, t, true);
	oki_poll_ended(w, t, oki_now_ns());
	end_transfer(w, t, 0);
	return STEP_ENDED;
}

static enum step step(struct oki_worker *w, struct oki_transfer *t)
{
	struct okv_error err = {0};
	enum step moved = STEP_IDLE;
	if (t->phase == OKI_PHASE_CLAIM) {
		bool empty = false;
		int rc = t->source->claim(t->arg, &empty);
		if (rc < 0)
			return STEP_GONE;
		if (rc == 0)
			return STEP_IDLE;
		t->phase = OKI_PHASE_PARTS;
		if (empty)
			goto submitted;
		moved = STEP_MOVED;
	}
	if (t->phase == OKI_PHASE_PARTS) {
		bool submitted_some;
		int rc = step_parts(w, t, &submitted_some, &err);
		if (rc == 0) {
			if (submitted_some)
				moved = STEP_MOVED;
			if (w->ops->has_callbacks && oki_layers_report(w, t, false))
				moved = STEP_MOVED;
			return moved;
		}
		if (rc < 0)
			return fail_transfer(w, t, &err);
		goto submitted;
	}
	return t->phase == OKI_PHASE_FAILED ? step_failed(w, t) : step_drain(w, t);

submitted:
	if (oki_submit_end(w, t, &err))
		return fail_transfer(w, t, &err);
	t->source->enqueued(t->arg);
	t->phase = OKI_PHASE_DRAIN;
	oki_poll_submitted(w, t, oki_now_ns());
	return step_drain(w, t) == STEP_ENDED ? STEP_ENDED : STEP_MOVED;
}

/* One round over the active transfers; true when any of them made progress. */
static bool round_trip(struct oki_worker *w)
{
	bool moved = false;
	for (struct oki_transfer **p = &w->active; *p;) {
		struct oki_transfer *t = *p, *next = t->next;
		bool polls_reaped = t->source->poll_reaped;
		enum step s = step(w, t);
		if (s != STEP_IDLE)
			moved = true;
		if (s == STEP_GONE || s == STEP_ENDED)
			*p = next;
		if (s == STEP_ENDED && polls_reaped) {
			t->next = w->unreaped;
			w->unreaped = t;
		}
		if (s == STEP_GONE || s == STEP_ENDED)
			continue;
		p = &t->next;
	}
	return moved;
}

/* Take what was queued. Returns true when something was queued or it was woken. */
static bool take_queue(struct oki_worker *w)
{
	/* Test without the lock first, so that a spinning thread does not contend for it. Relaxed:
	 * the test before sleeping is under the lock. */
	if (!atomic_load_explicit(&w->work_pending, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&w->lock);
	atomic_store_explicit(&w->work_pending, false, memory_order_relaxed);
	w->ending = w->stop;
	struct oki_transfer **tail = &w->active;
	while (*tail)
		tail = &(*tail)->next;
	*tail = w->queue;
	for (struct oki_transfer *t = w->queue; t; t = t->next)
		t->sequence = ++w->arrived;
	w->queue = NULL;
	w->queue_tail = &w->queue;
	pthread_mutex_unlock(&w->lock);
	return true;
}

static void wait_for_work(struct oki_worker *w, uint64_t deadline_ns)
{
	pthread_mutex_lock(&w->lock);
	if (!atomic_load_explicit(&w->work_pending, memory_order_relaxed)) {
		oki_cond_wait(&w->cond, &w->lock, deadline_ns);
		atomic_fetch_add_explicit(&w->wakeups, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&w->lock);
}

/* With the lock held. */
static void wake_locked(struct oki_worker *w)
{
	atomic_store_explicit(&w->work_pending, true, memory_order_relaxed);
	pthread_cond_signal(&w->cond);
}

static void *worker_main(void *arg)
{
	struct oki_worker *w = arg;
	uint64_t spin_ns = (uint64_t)w->config.spin_us * 1000u, moved_at = oki_now_ns();
	uint32_t rounds = 0;
	w->ops->attach(w->device);
	/* Sleeps last tens of microseconds; the usual timer slack would double them. */
	prctl(PR_SET_TIMERSLACK, 1);
	for (;;) {
		bool woken = take_queue(w);
		if (w->ending && !w->active)
			break;
		bool moved = round_trip(w);
		poll_reaped(w, false);
		uint64_t now = oki_now_ns();
		if (moved || woken)
			moved_at = now;
		/* Spin also when idle: the next transfer often comes right after the last. */
		bool spin = oki_poll_spins(w, now, moved_at, spin_ns);
		if (spin)
			oki_spin(&rounds);
		if (moved || spin)
			continue;
		rest(w);
		wait_for_work(w, oki_poll_next(w, now));
	}
	rest(w);
	return NULL;
}

void oki_worker_submit(struct oki_worker *worker, struct oki_transfer *transfer)
{
	transfer->next = NULL;
	transfer->phase = OKI_PHASE_CLAIM;
	pthread_mutex_lock(&worker->lock);
	*worker->queue_tail = transfer;
	worker->queue_tail = &transfer->next;
	wake_locked(worker);
	pthread_mutex_unlock(&worker->lock);
}

void oki_worker_wake(struct oki_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	wake_locked(worker);
	pthread_mutex_unlock(&worker->lock);
}

static void on_device(void *arg)
{
	oki_worker_wake(arg);
}

int oki_worker_create(const struct oki_worker_config *config, struct oki_worker **ret_worker,
		      struct okv_error *err)
{
	struct oki_worker *w = calloc(1, sizeof(*w));
	if (!w)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a worker");
	w->config = *config;
	w->ops = config->ops;
	w->queue_tail = &w->queue;
	pthread_mutex_init(&w->lock, NULL);
	pthread_mutex_init(&w->stream_lock, NULL);
	oki_cond_init(&w->cond);
	struct oki_device_config dc = {.index = config->device_index,
				       .threads = config->threads,
				       .copy_path = config->copy_path,
				       .copy_sms = config->copy_sms,
				       .log = config->log,
				       .notify = on_device,
				       .arg = w};
	int rc = w->ops->open(&dc, &w->device, err);
	if (rc)
		goto free_worker;
	int os = oki_thread_start(&w->thread, worker_main, w);
	if (os) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, os, "cannot start a thread");
		goto close_device;
	}
	*ret_worker = w;
	return 0;

close_device:
	w->ops->close(w->device);
free_worker:
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->stream_lock);
	pthread_mutex_destroy(&w->lock);
	free(w);
	return rc;
}

static void free_spares(struct oki_worker *w)
{
	while (w->mark_count)
		w->ops->mark_destroy(w->marks[--w->mark_count]);
	struct oki_stream_node *lists[2] = {w->streams, w->spare};
	for (int i = 0; i < 2; i++)
		for (struct oki_stream_node *n = lists[i], *next; n; n = next) {
			next = n->next;
			if (n->stream)
				w->ops->stream_destroy(n->stream);
			free(n);
		}
}

void oki_worker_destroy(struct oki_worker *worker)
{
	if (!worker)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->stop = true;
	wake_locked(worker);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	free_spares(worker);
	oki_compile_scratch_fini(&worker->scratch);
	worker->ops->close(worker->device);
	pthread_cond_destroy(&worker->cond);
	pthread_mutex_destroy(&worker->stream_lock);
	pthread_mutex_destroy(&worker->lock);
	free(worker);
}

struct oki_device *oki_worker_device(struct oki_worker *worker)
{
	return worker->device;
}

const struct oki_device_ops *oki_worker_ops(struct oki_worker *worker)
{
	return worker->ops;
}

uint64_t oki_worker_wakeups(struct oki_worker *worker)
{
	return atomic_load_explicit(&worker->wakeups, memory_order_relaxed);
}
