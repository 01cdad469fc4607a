/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The stretches of a publish or restore: checked, joined by group, and the replies to them. */
#include "engine/engine_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/page_check.h"

int oki_stretches_make(struct okv_op *op, uint32_t count, struct okv_error *err)
{
	op->stretch_count = count;
	op->stretches = op->few;
	if (count <= OKV_MAX_GROUPS)
		return 0;
	op->stretches = calloc(count, sizeof(*op->stretches));
	if (op->stretches)
		return 0;
	op->stretch_count = 0;
	return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for %u stretches", count);
}

void oki_stretches_free(struct okv_op *op)
{
	if (op->stretches != op->few)
		free(op->stretches);
}

int oki_stretch_add(struct okv_op *op, uint32_t i, uint32_t group, uint32_t count,
		    const uint32_t *pages, struct okv_error *err)
{
	struct oki_transfer *t = &op->transfer;
	if (group >= t->group_count)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u of a schema with %u", group, t->group_count);
	if (count > OKV_MAX_BLOCKS)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"%u blocks of group %u; %u are possible in one stretch", count,
				group, OKV_MAX_BLOCKS);
	if (count && !pages)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "group %u: pages is NULL",
				group);
	op->stretches[i] = (struct oki_stretch){.group = group, .count = count, .pages = pages};
	t->groups[group].count += count;
	return 0;
}

/* Give each group its part of op->pages. */
static int make_room(struct okv_op *op, struct okv_error *err)
{
	struct oki_transfer *t = &op->transfer;
	uint64_t blocks = 0, pages = 0;
	for (uint32_t g = 0; g < t->group_count; g++) {
		blocks += t->groups[g].count;
		pages += (uint64_t)t->groups[g].count * op->binding->geometry.pages_per_block[g];
	}
	if (blocks > OKV_MAX_OPERATION_BLOCKS)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"%llu blocks; %u are possible in one operation",
				(unsigned long long)blocks, OKV_MAX_OPERATION_BLOCKS);
	if (!pages)
		return 0;
	op->pages = malloc(pages * sizeof(uint32_t));
	if (!op->pages)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for a page list");
	uint32_t *at = op->pages;
	for (uint32_t g = 0; g < t->group_count; g++) {
		t->groups[g].pages = at;
		at += (uint64_t)t->groups[g].count * op->binding->geometry.pages_per_block[g];
	}
	return 0;
}

/* A restore writes its pages, so each of them comes once. The pages of a publish are only read:
 * stretches may share them, as requests with the same prefix do. */
static int check_pages(struct okv_op *op, struct okv_error *err)
{
	const struct oki_geometry *geometry = &op->binding->geometry;
	const struct oki_transfer *t = &op->transfer;
	uint64_t at[OKV_MAX_GROUPS] = {0};
	int rc = 0;
	for (uint32_t g = 0; g < t->group_count && op->kind == OKW_OP_RESTORE && !rc; g++)
		rc = oki_pages_check(g, t->groups[g].pages,
				     (uint64_t)t->groups[g].count * geometry->pages_per_block[g],
				     geometry->page_count[g], err);
	for (uint32_t i = 0; i < op->stretch_count && op->kind == OKW_OP_PUBLISH && !rc; i++) {
		uint32_t g = op->stretches[i].group;
		uint64_t n = (uint64_t)op->stretches[i].count * geometry->pages_per_block[g];
		rc = oki_pages_check(g, t->groups[g].pages + at[g], n, geometry->page_count[g],
				     err);
		at[g] += n;
	}
	return rc;
}

int oki_stretches_keep_pages(struct okv_op *op, struct okv_error *err)
{
	uint64_t at[OKV_MAX_GROUPS] = {0};
	int rc = make_room(op, err);
	for (uint32_t i = 0; i < op->stretch_count && !rc && op->pages; i++) {
		struct oki_stretch *s = &op->stretches[i];
		uint64_t n = (uint64_t)s->count * op->binding->geometry.pages_per_block[s->group];
		uint32_t *to = op->pages + (op->transfer.groups[s->group].pages - op->pages);
		if (n)
			memcpy(to + at[s->group], s->pages, n * sizeof(uint32_t));
		at[s->group] += n;
		s->pages = NULL;
	}
	return rc ? rc : check_pages(op, err);
}

uint32_t oki_stretches_reply_bytes(const struct okv_op *op)
{
	return (uint32_t)(sizeof(struct okw_transfer_reply) +
			  op->stretch_count * sizeof(struct okw_stretch_reply));
}

static bool adds_up(const struct okv_op *op, const struct oki_stretch *s)
{
	const struct okw_stretch_reply *r = &s->reply;
	uint64_t sum = (uint64_t)r->blocks + r->present + r->in_progress + r->not_stored;
	return !r->status && sum == s->count && (op->kind == OKW_OP_PUBLISH || sum == r->blocks);
}

bool oki_stretches_take(struct okv_op *op)
{
	const struct okw_transfer_reply *all = &op->reply.transfer;
	struct okw_stretch_reply sum = {0};
	const uint8_t *at = op->engine->channel.requests + op->reply_offset + sizeof(*all);
	bool right = all->lease_spent <= op->stretch_count;
	uint64_t blocks = 0, present = 0, in_progress = 0, not_stored = 0;
	for (uint32_t i = 0; i < op->stretch_count; i++, at += sizeof(sum)) {
		struct oki_stretch *s = &op->stretches[i];
		memcpy(&s->reply, at, sizeof(s->reply));
		right = right && adds_up(op, s);
		blocks += s->reply.blocks;
		present += s->reply.present;
		in_progress += s->reply.in_progress;
		not_stored += s->reply.not_stored;
	}
	return right && blocks == all->blocks && present == all->present &&
	       in_progress == all->in_progress && not_stored == all->not_stored;
}
