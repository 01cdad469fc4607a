/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Grants: plan parts are written into the plan bank and offered when it has space. */
#include "manager/manager_private.h"

#include <string.h>

#include "base/clock.h"
#include "grant/parts.h"
#include "grant/state.h"

static void fail_record(struct oki_mgr_session *s, uint32_t i, const char *what)
{
	oki_mgr_session_fail(s, "record %u: %s", i, what);
}

void oki_mgr_plan_size(const struct okv_manager *m, uint64_t blocks, uint32_t *ret_parts,
		       uint64_t *ret_bytes)
{
	/* blocks is bounded by OKW_MAX_OPERATION_BLOCKS */
	uint64_t parts = (blocks + m->part_entries - 1) / m->part_entries;

	*ret_parts = (uint32_t)parts;
	*ret_bytes = blocks * sizeof(struct okw_plan_entry) + parts * sizeof(struct okw_plan_head);
}

static void encode_entry(const struct oki_mgr_op *op, const struct oki_hold_block *block,
			 uint8_t *to)
{
	const struct okw_plan_entry entry = {
		.arena = oki_allocation_shard(block->allocation),
		.group = block->group,
		.allocation_id = oki_allocation_id(block->allocation),
		.offset = oki_allocation_offset(block->allocation),
		.ordinal = block->ordinal,
		.bytes = op->payload[block->group],
	};
	memcpy(to, &entry, sizeof(entry));
}

/* Write part k into its extent. Reads private memory only: the engine can write to the bank. */
static uint32_t encode_part(struct oki_mgr_session *s, uint32_t i, uint32_t k)
{
	struct oki_mgr_op *op = &s->ops[i];
	uint64_t first = (uint64_t)k * s->manager->part_entries;
	uint64_t left = op->block_count - first;
	uint32_t count =
		left < s->manager->part_entries ? (uint32_t)left : s->manager->part_entries;
	uint8_t *to = s->channel.control->bank + op->slots[k % op->slot_count];
	struct okw_plan_head head = {
		.magic = OKW_MAGIC,
		.version = OKW_PROTOCOL_VERSION,
		.epoch = s->manager->epoch,
		.token = s->token,
		.tag = OKI_TAG(OKI_TAG_GENERATION(op->tag), OKW_GRANTED),
		.record = i,
		.part = k,
		.entry_count = count,
	};

	for (uint32_t g = 0; g < op->group_count; g++)
		if (op->ends[g] <= first + count)
			head.groups_done |= 1u << g;
	memcpy(to, &head, sizeof(head));
	to += sizeof(head);
	for (uint64_t b = first; b < first + count; b++, to += sizeof(struct okw_plan_entry))
		encode_entry(op, &op->blocks[b], to);
	return (uint32_t)(sizeof(head) + count * sizeof(struct okw_plan_entry));
}

static void write_reply(struct oki_mgr_session *s, const struct oki_mgr_op *op)
{
	memcpy(s->channel.requests + op->reply_offset, &op->reply, sizeof(op->reply));
}

static void write_part(struct oki_mgr_session *s, const struct oki_mgr_op *op, uint32_t which)
{
	size_t at = offsetof(struct okw_transfer_reply, part) + which * sizeof(op->reply.part[0]);

	memcpy(s->channel.requests + op->reply_offset + at, &op->reply.part[which],
	       sizeof(op->reply.part[0]));
}

/* Offer every part that has a free extent. False: the engine closed the parts. */
static bool offer(struct oki_mgr_session *s, uint32_t i)
{
	struct oki_mgr_op *op = &s->ops[i];

	while (op->offered < op->reply.part_total && op->offered - op->consumed < op->slot_count) {
		uint32_t k = op->offered;
		uint32_t bytes = encode_part(s, i, k);

		/* Part k - 2 had this entry and is consumed: the engine does not read it now. */
		op->reply.part[k & 1].offset = op->slots[k % op->slot_count];
		op->reply.part[k & 1].bytes = bytes;
		write_part(s, op, k & 1);
		if (!oki_parts_offer(oki_mgr_record(s, i)))
			return false;
		op->offered++;
	}
	return true;
}

/* 0, OKV_E_AGAIN: no gap of the bank is long enough now, or OKV_E_NOMEM. */
static int take_extent(struct oki_mgr_session *s, uint32_t bytes, uint32_t *ret_offset)
{
	if (!oki_extent_alloc(&s->bank, bytes, ret_offset))
		return OKV_E_AGAIN;
	if (oki_channel_use(&s->channel, OKI_CHANNEL_BANK, *ret_offset + bytes))
		return 0;
	oki_extent_free(&s->bank, *ret_offset);
	return OKV_E_NOMEM;
}

/*
 * One extent is enough for an operation to progress. With a second one, part N + 1 is ready while
 * part N is copied. The operation keeps both until its last part is consumed. So a granted
 * operation never waits for the bank, and two operations cannot wait for each other.
 */
static int take_extents(struct oki_mgr_session *s, struct oki_mgr_op *op)
{
	uint64_t entries = op->block_count;

	if (!op->reply.part_total)
		return 0;
	if (entries > s->manager->part_entries)
		entries = s->manager->part_entries;
	uint32_t bytes =
		(uint32_t)(sizeof(struct okw_plan_head) + entries * sizeof(struct okw_plan_entry));
	int rc = take_extent(s, bytes, &op->slots[0]);
	if (rc)
		return rc;
	op->slot_count = 1;
	if (op->reply.part_total > 1 && take_extent(s, bytes, &op->slots[1]) == 0)
		op->slot_count = 2;
	return 0;
}

static void grant_now(struct oki_mgr_session *s, uint32_t i)
{
	struct okv_manager *m = s->manager;
	struct oki_mgr_op *op = &s->ops[i];
	struct okw_record *record = oki_mgr_record(s, i);
	uint64_t tag = op->tag;

	op->deadline_ns = oki_now_ns() + m->lease_ttl_ns;
	if (!offer(s, i)) {
		fail_record(s, i, "its parts were closed before they were offered");
		return;
	}
	write_reply(s, op);
	record->reply_bytes = op->reply_bytes;
	if (!oki_move(record, &tag, OKW_GRANTED, OKI_MOVER_MANAGER)) {
		fail_record(s, i, "left Preparing on its own");
		return;
	}
	op->tag = tag;
	op->phase = OKI_MGR_GRANTED;
	oki_mgr_announce(s, i, true);
	oki_mgr_wake_retire(m);
}

void oki_mgr_waiting_remove(struct oki_mgr_session *s, uint32_t i)
{
	uint32_t before = OKI_MGR_NONE;

	for (uint32_t at = s->waiting_first; at != OKI_MGR_NONE; at = s->ops[at].next_waiting) {
		if (at != i) {
			before = at;
			continue;
		}
		if (before == OKI_MGR_NONE)
			s->waiting_first = s->ops[i].next_waiting;
		else
			s->ops[before].next_waiting = s->ops[i].next_waiting;
		if (s->waiting_last == i)
			s->waiting_last = before;
		return;
	}
}

int oki_mgr_grant_first(struct oki_mgr_session *s)
{
	uint32_t i = s->waiting_first;
	int rc = take_extents(s, &s->ops[i]);

	if (rc)
		return rc;
	/* Remove it only once granted: if the session fails in grant_now(), the sweep must find it
	 * in the list. */
	grant_now(s, i);
	if (!atomic_load(&s->lost))
		oki_mgr_waiting_remove(s, i);
	return 0;
}

void oki_mgr_offer_more(struct oki_mgr_session *s, uint32_t i)
{
	struct oki_mgr_op *op = &s->ops[i];
	uint32_t consumed = atomic_load(&oki_mgr_record(s, i)->consumed);
	uint32_t offered = op->offered;

	if (consumed < op->consumed || consumed > op->offered) {
		fail_record(s, i, "consumed parts that were not offered");
		return;
	}
	op->consumed = consumed;
	if (consumed == op->reply.part_total) {
		while (op->slot_count)
			oki_extent_free(&s->bank, op->slots[--op->slot_count]);
		return;
	}
	if (op->closed)
		return;
	if (!offer(s, i))
		op->closed = true;
	if (op->offered != offered)
		oki_mgr_announce(s, i, false);
}
