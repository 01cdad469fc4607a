/* [E] A plan part in private memory, proven against request, schema and mappings. */
#include "engine/engine_private.h"

#include <stdlib.h>
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

/* The address of the entry's payload, or NULL: outside the arena, wrong size, unknown arena. */
static uint8_t *entry_address(struct okv_op *op, const struct okw_plan_entry *e)
{
	if (e->request_group >= op->transfer.group_count || e->arena >= op->engine->arena_count)
		return NULL;
	const struct oki_transfer_group *g = &op->transfer.groups[e->request_group];
	const struct oki_schema_group *sg = &op->binding->ns->schema.groups[g->group];
	const struct oki_arena *arena = &op->engine->arenas[e->arena];
	if (e->ordinal >= g->count || e->bytes != sg->payload_bytes)
		return NULL;
	if (!oki_within(e->offset, sg->block_bytes, arena->shm.bytes) ||
	    e->offset % OKI_SEGMENT_ALIGN)
		return NULL;
	return arena->shm.base + e->offset;
}

/* How many entries each group has; every one proven. */
static int count_entries(struct okv_op *op, const struct okw_plan_entry *entries, uint32_t count,
			 struct oki_part *part, struct okv_error *err)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct okw_plan_entry *e = &entries[i];
		if (!entry_address(op, e))
			return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
					"entry %u: arena %u, offset %llu, %u bytes, block %u of "
					"group %u is not what was asked for",
					i, e->arena, (unsigned long long)e->offset, e->bytes,
					e->ordinal, e->request_group);
		uint32_t *next = &op->next_ordinal[e->request_group];
		/* Ascending over all parts: no page of the operation is written twice. */
		if (e->ordinal < *next || (op->kind == OKW_OP_RESTORE && e->ordinal != *next))
			return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
					"block %u of group %u where block %u is due", e->ordinal,
					e->request_group, *next);
		*next = e->ordinal + 1;
		part->groups[e->request_group].count++;
	}
	return 0;
}

static void fill_pairs(struct okv_op *op, const struct okw_plan_entry *entries, uint32_t count,
		       struct oki_part *part)
{
	struct oki_pair *at[OKV_MAX_GROUPS], *pairs = part->pairs;
	for (uint32_t g = 0; g < OKV_MAX_GROUPS; g++) {
		at[g] = part->groups[g].pairs = pairs;
		pairs += part->groups[g].count;
	}
	for (uint32_t i = 0; i < count; i++) {
		const struct okw_plan_entry *e = &entries[i];
		*at[e->request_group]++ = (struct oki_pair){
			.host = entry_address(op, e), .region = e->arena, .ordinal = e->ordinal};
	}
}

/*
 * A restore is all of its blocks: none is missing at the end, and no group is called complete
 * before. A publish may leave out what is stored already.
 */
static int check_complete(struct okv_op *op, uint32_t groups_done, bool last, struct okv_error *err)
{
	if (op->kind != OKW_OP_RESTORE)
		return 0;
	for (uint32_t g = 0; g < op->transfer.group_count; g++) {
		uint32_t asked = op->transfer.groups[g].count;
		if (op->next_ordinal[g] != asked && (last || groups_done >> g & 1))
			return oki_fail(err, OKV_E_PLAN, OKV_STAGE_CLAIM,
					"the plan ends group %u after %u of %u blocks", g,
					op->next_ordinal[g], asked);
	}
	return 0;
}

int oki_plan_check(struct okv_op *op, const uint8_t *part, uint32_t bytes, uint32_t index,
		   struct oki_part *ret_part, struct okv_error *err)
{
	struct okw_plan_head head;
	memcpy(&head, part, sizeof(head));
	int rc = check_head(op, &head, bytes, index, err);
	if (rc)
		return rc;
	const struct okw_plan_entry *entries =
		(const struct okw_plan_entry *)(const void *)(part + sizeof(head));
	struct oki_part made = {.groups_done = head.groups_done};
	rc = count_entries(op, entries, head.entry_count, &made, err);
	if (!rc)
		rc = check_complete(op, head.groups_done, index + 1 == op->part_total, err);
	if (rc)
		return rc;
	made.pairs = malloc((head.entry_count + 1) * sizeof(*made.pairs));
	if (!made.pairs)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CLAIM, "no memory for a plan");
	fill_pairs(op, entries, head.entry_count, &made);
	*ret_part = made;
	return 0;
}
