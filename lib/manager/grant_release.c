/* SPDX-License-Identifier: Apache-2.0 */
/* [M] How operations end, and when the memory that a grant names is released. */
#include "manager/manager_private.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "grant/parts.h"
#include "grant/state.h"

static void count(_Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Must come before the move of the tag that lets the engine read these fields. */
static void write_result(struct okw_record *record, uint32_t reply_bytes, int status,
			 const char *text)
{
	record->reply_bytes = reply_bytes;
	record->status = status;
	snprintf(record->text, sizeof(record->text), "%s", text);
}

void oki_mgr_done(struct oki_mgr_session *s, uint32_t i, uint64_t tag, uint32_t reply_offset,
		  const void *reply, uint32_t reply_bytes, uint32_t more_bytes, int status,
		  const char *text)
{
	struct okw_record *record = oki_mgr_record(s, i);

	if (reply)
		memcpy(s->channel.requests + reply_offset, reply, reply_bytes);
	write_result(record, reply ? reply_bytes + more_bytes : 0, status, text);
	if (!oki_move(record, &tag, OKW_DONE, OKI_MOVER_MANAGER)) {
		oki_mgr_session_fail(s, "record %u left Preparing on its own", i);
		return;
	}
	count(status ? &s->manager->counters.refused : &s->manager->counters.done);
	oki_mgr_announce(s, i, true);
}

void oki_mgr_op_install(struct oki_mgr_session *s, uint32_t i, const struct oki_mgr_op *op)
{
	s->ops[i] = *op;
	s->open++;
	s->plan_bytes += op->plan_bytes;
	atomic_fetch_add(&s->manager->open_ops, 1);
}

static void dec_open_ops(struct oki_mgr_session *s)
{
	struct okv_manager *m = s->manager;

	s->open--;
	if (atomic_fetch_sub(&m->open_ops, 1) == 1 && atomic_load(&m->draining))
		oki_mgr_wake(m->wake);
}

/* Release all that the operation owns except its hold, which the caller releases. */
static void clear_op(struct oki_mgr_session *s, uint32_t i)
{
	struct oki_mgr_op *op = &s->ops[i];

	for (uint32_t k = 0; k < op->slot_count; k++)
		oki_extent_free(&s->bank, op->slots[k]);
	if (op->permit)
		oki_mgr_permit_give(&s->manager->permits, op->permit);
	s->plan_bytes -= op->plan_bytes;
	memset(op, 0, sizeof(*op));
	dec_open_ops(s);
}

void oki_mgr_quarantine(struct oki_mgr_session *s, uint32_t i, const char *why)
{
	struct oki_mgr_op *op = &s->ops[i];

	oki_log(&s->manager->log, OKV_LOG_WARN,
		"session %u: record %u is quarantined with %llu block%s: %s", s->slot, i,
		(unsigned long long)op->block_count, oki_plural(op->block_count), why);
	if (op->phase == OKI_MGR_WAITING)
		oki_mgr_waiting_remove(s, i);
	oki_hold_quarantine(s->manager->index, op->hold);
	op->hold = NULL;
	op->blocks = NULL;
	op->phase = OKI_MGR_QUARANTINED;
	s->quarantined++;
	dec_open_ops(s);
}

void oki_mgr_release_ungranted(struct oki_mgr_session *s, uint32_t i, uint64_t tag,
			       struct oki_hold *hold)
{
	struct oki_proof proof;

	if (oki_proof_ungranted(oki_mgr_record(s, i), tag, &proof)) {
		oki_hold_release(s->manager->index, hold, &proof);
		return;
	}
	oki_hold_quarantine(s->manager->index, hold);
	oki_mgr_session_fail(s, "record %u left Preparing on its own", i);
}

static void end_waiting(struct oki_mgr_session *s, uint32_t i, int status, const char *text)
{
	struct oki_mgr_op op = s->ops[i];

	oki_mgr_waiting_remove(s, i);
	clear_op(s, i);
	oki_mgr_release_ungranted(s, i, op.tag, op.hold);
	oki_mgr_done(s, i, op.tag, op.reply_offset, &op.reply, sizeof(op.reply),
		     op.reply_bytes - (uint32_t)sizeof(op.reply), status, text);
}

/* False: the engine claimed the grant first. */
static bool revoke(struct oki_mgr_session *s, uint32_t i, int status, const char *text)
{
	struct oki_mgr_op *op = &s->ops[i];
	struct okw_record *record = oki_mgr_record(s, i);
	uint64_t tag = op->tag;
	struct oki_proof proof;

	/* Harmless if the revoke fails: nobody reads these before Revoked or Reaped. */
	write_result(record, op->reply_bytes, status, text);
	if (!oki_proof_revoke(record, &tag, &proof))
		return false;
	oki_hold_release(s->manager->index, op->hold, &proof);
	clear_op(s, i);
	count(&s->manager->counters.revoked);
	oki_mgr_announce(s, i, true);
	return true;
}

void oki_mgr_end_early(struct oki_mgr_session *s, uint32_t i, int status, const char *text)
{
	struct oki_mgr_op *op = &s->ops[i];

	if (op->phase == OKI_MGR_WAITING) {
		end_waiting(s, i, status, text);
		return;
	}
	if (op->phase != OKI_MGR_GRANTED || op->closed || revoke(s, i, status, text))
		return;
	/* Claimed: offer no more parts. The engine drains what it has. */
	oki_parts_close(oki_mgr_record(s, i));
	op->closed = true;
	oki_mgr_announce(s, i, false);
}

/* The engine says that all copies of the operation ended. */
static void reap(struct oki_mgr_session *s, uint32_t i, uint64_t tag)
{
	struct okv_manager *m = s->manager;
	struct oki_mgr_op *op = &s->ops[i];
	struct okw_record *record = oki_mgr_record(s, i);
	struct oki_proof proof;

	if (!oki_proof_drained(record, tag, &proof)) {
		oki_mgr_quarantine(s, i, "Drained, but its counts do not add up");
		oki_mgr_session_fail(s, "record %u claims to be drained and is not", i);
		return;
	}
	int status = oki_proof_engine_status(&proof);
	uint32_t claimed = oki_proof_claimed(&proof);
	if (claimed > op->offered || (status == 0 && claimed != op->reply.part_total)) {
		oki_mgr_quarantine(s, i, "more or fewer parts than were offered");
		oki_mgr_session_fail(s, "record %u drained parts it was not given", i);
		return;
	}
	/* Seal before the move to Reaped: when a publish has ended, every lookup finds its
	 * blocks. */
	oki_hold_release(m->index, op->hold, &proof);
	memcpy(s->channel.requests + op->reply_offset, &op->reply, sizeof(op->reply));
	write_result(record, op->reply_bytes, status, "");
	clear_op(s, i);
	if (!oki_move(record, &tag, OKW_REAPED, OKI_MOVER_MANAGER)) {
		oki_mgr_session_fail(s, "record %u left Drained on its own", i);
		return;
	}
	count(&m->counters.reaped);
	oki_mgr_announce(s, i, true);
}

static void advance_granted(struct oki_mgr_session *s, uint32_t i, uint64_t now_ns)
{
	uint32_t flags = atomic_load(&oki_mgr_record(s, i)->engine_flags);

	if (flags & OKW_ENGINE_CANCEL)
		oki_mgr_end_early(s, i, OKV_E_CANCELLED, "cancelled before it was claimed");
	else if (now_ns >= s->ops[i].deadline_ns)
		oki_mgr_end_early(s, i, OKV_E_CANCELLED, "the grant expired unclaimed");
}

void oki_mgr_op_advance(struct oki_mgr_session *s, uint32_t i, uint64_t now_ns)
{
	struct oki_mgr_op *op = &s->ops[i];
	struct okw_record *record = oki_mgr_record(s, i);
	uint64_t tag = oki_tag_load(record);

	if (op->phase == OKI_MGR_WAITING) {
		if (atomic_load(&record->engine_flags) & OKW_ENGINE_CANCEL)
			oki_mgr_end_early(s, i, OKV_E_CANCELLED, "cancelled before it was granted");
		return;
	}
	if (op->phase != OKI_MGR_GRANTED)
		return;
	uint32_t state = OKI_TAG_STATE(tag);
	if (OKI_TAG_GENERATION(tag) != OKI_TAG_GENERATION(op->tag))
		state = OKW_STATES;
	switch (state) {
	case OKW_GRANTED: advance_granted(s, i, now_ns); return;
	case OKW_ACTIVE:
		if (atomic_load(&record->engine_flags) & OKW_ENGINE_CANCEL)
			oki_mgr_end_early(s, i, OKV_E_CANCELLED, "cancelled");
		if (op->phase == OKI_MGR_GRANTED)
			oki_mgr_offer_more(s, i);
		return;
	case OKW_DRAINED: reap(s, i, tag); return;
	case OKW_UNKNOWN:
		oki_mgr_quarantine(s, i, "the engine does not know whether its copies stopped");
		return;
	default:
		oki_mgr_quarantine(s, i, "the record went where no edge leads");
		oki_mgr_session_fail(s, "record %u moved from %s to %s", i,
				     oki_state_name(OKI_TAG_STATE(op->tag)),
				     oki_state_name(OKI_TAG_STATE(tag)));
	}
}
