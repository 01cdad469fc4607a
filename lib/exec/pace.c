/* [B] When the worker looks at its marks again, on devices that do not call back. */
#include "exec/exec_private.h"

/* How often, once nothing says when something will end. */
#define POLL_NS 50000u
/* To wake from a sleep takes about so long, and more where an idle CPU sleeps deeply. */
#define WAKE_NS 30000u
/* Ends of less than this say little about the link. */
#define TELLING_BYTES (1u << 20)
/* An end that was seen within this says when it was. */
#define SURE_NS WAKE_NS
/* While the Manager prepares or seals, this many times longer: its thread may have to wake first,
 * and answers with a bell, which takes two more wakings, if nobody looks by then. */
#define CLAIM_FACTOR 4u

void oki_pace_started(struct oki_transfer *t, uint64_t now)
{
	if (!t->started_ns)
		t->started_ns = now;
}

/* Past transfers of about as many bytes, which way they go. */
static struct oki_pace *pace_of(struct oki_worker *w, const struct oki_transfer *t)
{
	uint32_t size = 0;
	while (size + 1 < OKI_PACE_SIZES && t->bytes >> (size + 1) >= TELLING_BYTES)
		size++;
	return &w->paces[t->direction][size];
}

void oki_pace_submitted(struct oki_worker *w, struct oki_transfer *t)
{
	uint64_t ns_per_mib = pace_of(w, t)->ns_per_mib;
	/* A large one is submitted piece by piece, as its copies end. */
	if (!ns_per_mib || t->pieces.marks[0] || w->ops->has_callbacks)
		return;
	t->expected_ns = t->started_ns + (t->bytes >> 10) * ns_per_mib / 1024;
}

void oki_pace_ended(struct oki_worker *w, const struct oki_transfer *t, uint64_t now)
{
	/* Who never saw it on its way knows nothing of its end. */
	if (t->bytes < TELLING_BYTES || t->pieces.marks[0] || !t->looked_ns)
		return;
	struct oki_pace *pace = pace_of(w, t);
	/* By the last look that found it on its way, not by the one that found it ended: that one
	 * says how long the worker slept, and would be believed for ever. */
	uint64_t ns = (t->looked_ns - t->started_ns) / (t->bytes >> 20);
	if (pace->sure && ns >= pace->ns_per_mib)
		return;
	pace->ns_per_mib = ns;
	pace->sure = now - t->looked_ns <= SURE_NS;
}

bool oki_pace_spins(const struct oki_worker *w, uint64_t now, uint64_t moved_at, uint64_t spin_ns)
{
	uint64_t idle = now - moved_at;
	if (idle < spin_ns)
		return true;
	if (!spin_ns)
		return false;
	bool patient = idle < CLAIM_FACTOR * spin_ns;
	/* A publish ends when the Manager has sealed it, and not before. */
	for (const struct oki_transfer *t = w->settling; t && patient; t = t->next)
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

uint64_t oki_pace_next(const struct oki_worker *w, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	for (const struct oki_transfer *t = w->active; t; t = t->next) {
		uint64_t at = now + POLL_NS;
		if (t->phase == OKI_PHASE_CLAIM || w->ops->has_callbacks)
			continue;
		if (t->phase == OKI_PHASE_DRAIN && t->expected_ns > now + WAKE_NS) {
			/* One that is through sooner than any before loses half of its time. */
			uint64_t half = now + (now - t->started_ns);
			uint64_t due = t->expected_ns - WAKE_NS;
			at = half > at ? half : at;
			at = due < at ? due : at;
		}
		next = at < next ? at : next;
	}
	return next;
}
