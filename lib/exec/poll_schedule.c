/* SPDX-License-Identifier: Apache-2.0 */
/* [B] When the worker polls its marks again, on devices that do not call back. */
#include "exec/exec_private.h"

/* Interval when no end is predicted. */
#define POLL_NS 50000u
/* Interval while the last pieces of a large transfer are copied: no end is predicted, but it is
 * near. */
#define LAST_POLL_NS 20000u
/* A wakeup takes about this long, and longer from a deep idle state of the CPU. */
#define WAKE_NS 30000u
/* The source is notified this long before the predicted end, so that a waiter has time to wake. */
#define SOON_NS (2u * WAKE_NS)
/* The time of a smaller transfer says little about the link. */
#define TELLING_BYTES (1u << 20)
/* The time of an end is known when the poll before it was at most this long ago. */
#define SURE_NS WAKE_NS
/* Before the predicted end: the next poll comes after 1/STEP_PART of the time since the last copy
 * was queued. */
#define STEP_PART 4u

void oki_poll_started(struct oki_transfer *t, uint64_t now)
{
	if (!t->started_ns)
		t->started_ns = now;
}

/* Do past transfers predict when this one ends? Not if a caller's stream delays it, nor if it is
 * submitted piece by piece as its copies end. */
static bool is_predictable(const struct oki_worker *w, const struct oki_transfer *t)
{
	return !t->fenced && !t->pieces.marks[0] && !w->ops->has_callbacks;
}

/* Times of past transfers of this direction and about this size. */
static struct oki_poll_times *times_of(struct oki_worker *w, const struct oki_transfer *t)
{
	uint32_t size = 0;
	while (size + 1 < OKI_POLL_SIZES && t->bytes >> (size + 1) >= TELLING_BYTES)
		size++;
	return &w->poll_times[t->direction][size];
}

void oki_poll_submitted(struct oki_worker *w, struct oki_transfer *t, uint64_t now)
{
	uint64_t due_ns = times_of(w, t)->due_ns;
	t->submitted_ns = now;
	if (due_ns && is_predictable(w, t))
		t->expected_ns = t->started_ns + (t->bytes >> 10) * due_ns / 1024;
}

/* The end of the piece before the last one predicts the end of the last: all pieces are copied at
 * one rate. */
void oki_poll_looked(struct oki_worker *w, struct oki_transfer *t, uint64_t now)
{
	struct oki_pieces *p = &t->pieces;
	uint32_t before = p->filling ^ 1;
	if (p->marks[0] && p->busy[before] && w->ops->query(p->marks[before], NULL) == 1) {
		p->busy[before] = false;
		/* It ended after the previous poll. */
		uint64_t seen = t->looked_ns, bytes = t->bytes - p->bytes;
		if (seen && !t->fenced && bytes >= TELLING_BYTES)
			t->expected_ns =
				seen + (p->bytes >> 10) * (seen - t->started_ns) / (bytes >> 10);
	}
	t->looked_ns = now;
}

bool oki_poll_is_soon(const struct oki_transfer *t, uint64_t now)
{
	return t->expected_ns && now + SOON_NS >= t->expected_ns;
}

static uint64_t for_mib(const struct oki_transfer *t, uint64_t at)
{
	return (at - t->started_ns) * 1024 / (t->bytes >> 10);
}

/*
 * It ended between the last poll that found it pending and now. The fastest transfer counts. Use
 * the last poll that still found it pending; the one that found it done includes the sleep of the
 * worker.
 */
void oki_poll_ended(struct oki_worker *w, const struct oki_transfer *t, uint64_t now)
{
	/* If no poll found it pending, its end is unknown. */
	if (t->bytes < TELLING_BYTES || !is_predictable(w, t) || !t->looked_ns)
		return;
	struct oki_poll_times *times = times_of(w, t);
	uint64_t looked = for_mib(t, t->looked_ns), seen = for_mib(t, now);
	if (!times->seen_ns || seen < times->seen_ns)
		times->seen_ns = seen;
	/* This one was slower than the fastest, which ended between due_ns and seen_ns: take the
	 * middle, unless its end is known. */
	if (looked > times->seen_ns) {
		times->due_ns += times->sure ? 0 : (times->seen_ns - times->due_ns) / 2;
	} else if (!times->sure || looked < times->due_ns) {
		times->sure = now - t->looked_ns <= SURE_NS;
		times->due_ns = looked;
	}
}

bool oki_poll_spins(const struct oki_worker *w, uint64_t now, uint64_t moved_at, uint64_t spin_ns)
{
	uint64_t idle = now - moved_at;
	if (idle < spin_ns)
		return true;
	if (!spin_ns)
		return false;
	bool patient = idle < OKI_REPLY_SPINS * spin_ns;
	/* A publish ends when the Manager has sealed it, and not before. */
	for (const struct oki_transfer *t = w->unreaped; t && patient; t = t->next)
		if (t->direction == OKI_TO_BLOCKS)
			return true;
	for (const struct oki_transfer *t = w->active; t; t = t->next) {
		if (t->phase == OKI_PHASE_CLAIM && patient)
			return true;
		if (t->phase == OKI_PHASE_DRAIN && now + WAKE_NS >= t->expected_ns &&
		    now < t->expected_ns + spin_ns)
			return true;
	}
	return false;
}

uint64_t oki_poll_next(const struct oki_worker *w, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	for (const struct oki_transfer *t = w->active; t; t = t->next) {
		bool last = t->phase == OKI_PHASE_DRAIN && t->pieces.marks[0] && !t->fenced;
		uint64_t at = now + (last ? LAST_POLL_NS : POLL_NS);
		if (t->phase == OKI_PHASE_CLAIM || w->ops->has_callbacks)
			continue;
		uint64_t lead = oki_poll_is_soon(t, now) ? WAKE_NS : SOON_NS;
		if (t->phase == OKI_PHASE_DRAIN && t->expected_ns > now + lead) {
			/* A transfer that is faster than any before is found late by a part of its
			 * time. */
			uint64_t step = now + (now - t->submitted_ns) / STEP_PART;
			uint64_t due = t->expected_ns - lead;
			at = step > at ? step : at;
			at = due < at ? due : at;
		}
		next = at < next ? at : next;
	}
	return next;
}
