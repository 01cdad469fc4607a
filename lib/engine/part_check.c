/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Check a plan part in private memory against request, schema and mappings. */
#include "engine/engine_private.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static int check_head(struct okv_op *op, const struct okw_plan_head *h, uint32_t bytes,
		      uint32_t index, struct okv_error *err)
{
	const struct okw_welcome *w = &op->engine->welcome;
	if (h->magic != OKW_MAGIC || h->version != OKW_PROTOCOL_VERSION)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM, "part %u is no plan", index);
	if (h->epoch != w->epoch || h->token != w->token || h->record != op->record ||
	    OKI_TAG_GENERATION(h->tag) != OKI_TAG_GENERATION(op->tag) || h->part != index)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
				"part %u belongs to another operation", index);
	if (h->entry_count > (bytes - sizeof(*h)) / sizeof(struct okw_plan_entry) ||
	    sizeof(*h) + h->entry_count * sizeof(struct okw_plan_entry) != bytes)
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM, "part %u: %u entries in %u bytes",
				index, h->entry_count, bytes);
	return 0;
}

/* What entries of one group in one arena must match; looked up once for thousands. */
struct expected {
	uint32_t group;
	uint32_t arena;
	uint32_t count;
	uint32_t next; /* lowest ordinal that the next entry may have */
	bool exact;    /* the next entry must have that ordinal */
	uint64_t bytes;
	uint64_t last_offset;
	uint8_t *base; /* NULL: no entry is valid */
};

static struct expected expect(const struct okv_op *op, const struct okw_plan_entry *e)
{
	struct expected x = {.group = e->group, .arena = e->arena};
	if (x.group >= op->transfer.group_count || x.arena >= op->engine->arena_count)
		return x;
	const struct oki_transfer_group *g = &op->transfer.groups[x.group];
	const struct oki_schema_group *sg = &op->binding->ns->schema.groups[g->group];
	const struct oki_arena *arena = &op->engine->arenas[x.arena];
	if (!oki_within(0, sg->block_bytes, arena->shm.bytes))
		return x;
	x.count = g->count;
	x.bytes = sg->payload_bytes;
	x.next = op->next_ordinal[x.group];
	x.exact = op->kind == OKW_OP_RESTORE;
	x.last_offset = arena->shm.bytes - sg->block_bytes;
	x.base = arena->shm.base;
	return x;
}

/* Inside the arena, of the right size, in a known arena and group. */
static bool is_valid_entry(const struct expected *x, const struct okw_plan_entry *e)
{
	return x->base && e->ordinal < x->count && e->bytes == x->bytes &&
	       e->offset <= x->last_offset && e->offset % OKI_SEGMENT_ALIGN == 0;
}

static int wrong_entry(const struct expected *x, const struct okw_plan_entry *e, uint32_t i,
		       struct okv_error *err)
{
	if (is_valid_entry(x, e))
		return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
				"block %u of group %u where block %u is due", e->ordinal, e->group,
				x->next);
	return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
			"entry %u: arena %u, offset %llu, %u bytes, block %u of group %u is not "
			"what was asked for",
			i, e->arena, (unsigned long long)e->offset, e->bytes, e->ordinal, e->group);
}

static void end_group(struct okv_op *op, const struct expected *x, const struct oki_pair *end,
		      struct oki_part *part)
{
	if (!x->base)
		return;
	struct oki_part_group *g = &part->groups[x->group];
	op->next_ordinal[x->group] = x->next;
	g->count = (uint32_t)(end - g->pairs);
}

static_assert(sizeof(struct oki_pair) <= sizeof(struct okw_plan_entry), "a pair is no longer");

/*
 * Check every entry, group after group, and turn it into a pair. Pairs overwrite the entries: each
 * pair ends before the next entry begins.
 */
static int take_entries(struct okv_op *op, uint8_t *memory, uint32_t count, struct oki_part *part,
			struct okv_error *err)
{
	const uint8_t *at = memory + sizeof(struct okw_plan_head);
	struct oki_pair *pairs = (struct oki_pair *)(void *)memory;
	struct expected x = {0};
	for (uint32_t i = 0; i < count; i++, at += sizeof(struct okw_plan_entry)) {
		struct okw_plan_entry e;
		memcpy(&e, at, sizeof(e));
		if (!x.base || e.group != x.group || e.arena != x.arena) {
			end_group(op, &x, &pairs[i], part);
			bool group_starts = !x.base || e.group != x.group;
			if (x.base && e.group < x.group)
				return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
						"entry %u: group %u after group %u", i, e.group,
						x.group);
			x = expect(op, &e);
			if (x.base && group_starts)
				part->groups[x.group].pairs = &pairs[i];
		}
		/* Ordinals ascend over all parts, so no page is written twice. */
		if (!is_valid_entry(&x, &e) || e.ordinal < x.next ||
		    (x.exact && e.ordinal != x.next))
			return wrong_entry(&x, &e, i, err);
		x.next = e.ordinal + 1;
		struct oki_pair pair = {
			.host = x.base + e.offset, .region = e.arena, .ordinal = e.ordinal};
		memcpy(&pairs[i], &pair, sizeof(pair));
	}
	end_group(op, &x, &pairs[count], part);
	return 0;
}

/*
 * A restore must have all its blocks at the end, and all blocks of a group before the plan declares
 * the group done. A publish may leave out blocks that are stored already.
 */
static int check_complete(struct okv_op *op, uint32_t groups_done, bool last, struct okv_error *err)
{
	if (op->kind != OKW_OP_RESTORE)
		return 0;
	for (uint32_t g = 0; g < op->transfer.group_count; g++) {
		uint32_t asked = op->transfer.groups[g].count;
		if (op->next_ordinal[g] != asked && (last || groups_done >> g & 1))
			return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
					"the plan ends group %u after %u of %u block%s", g,
					op->next_ordinal[g], asked, oki_plural(asked));
	}
	return 0;
}

int oki_part_check(struct okv_op *op, uint8_t *part, uint32_t bytes, uint32_t index,
		   struct oki_part *ret_part, struct okv_error *err)
{
	struct okw_plan_head head;
	memcpy(&head, part, sizeof(head));
	int rc = check_head(op, &head, bytes, index, err);
	if (rc)
		return rc;
	struct oki_part made = {.groups_done = head.groups_done};
	rc = take_entries(op, part, head.entry_count, &made, err);
	if (!rc)
		rc = check_complete(op, head.groups_done, index + 1 == op->part_total, err);
	if (rc)
		return rc;
	*ret_part = made;
	return 0;
}
