/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Which pages and events running operations use. */
#include "engine/engine_private.h"

#include <stdlib.h>

#include "base/error.h"

/* The uses of a page's bytes. */
static uint32_t *uses_of(const struct okv_binding *b, uint32_t group, uint32_t page)
{
	return b->page_use[group] + (uint64_t)page * b->geometry.page_units[group];
}

static bool is_free_for(const struct okv_op *op, const uint32_t *use, uint32_t units)
{
	for (uint32_t i = 0; i < units; i++)
		if (op->kind == OKW_OP_RESTORE ? use[i] != 0 : use[i] >= OKI_PAGE_WRITTEN - 1)
			return false;
	return true;
}

/* Undo enter_pages() for the groups before `groups` and for the first `pages` pages of that
 * group. */
static void leave_pages(struct okv_op *op, uint32_t groups, uint64_t pages)
{
	struct okv_binding *b = op->binding;
	for (uint32_t g = 0; g <= groups && g < op->transfer.group_count; g++) {
		const struct oki_transfer_group *tg = &op->transfer.groups[g];
		const uint32_t units = b->geometry.page_units[tg->group];
		uint64_t n = g < groups
				     ? (uint64_t)tg->count * b->geometry.pages_per_block[tg->group]
				     : pages;
		for (uint64_t i = 0; i < n; i++) {
			uint32_t *use = uses_of(b, tg->group, tg->pages[i]);
			for (uint32_t u = 0; u < units; u++)
				use[u] = op->kind == OKW_OP_RESTORE ? 0 : use[u] - 1;
		}
	}
}

static int enter_pages(struct okv_op *op, struct okv_error *err)
{
	struct okv_binding *b = op->binding;
	for (uint32_t g = 0; g < op->transfer.group_count; g++) {
		const struct oki_transfer_group *tg = &op->transfer.groups[g];
		const uint32_t units = b->geometry.page_units[tg->group];
		uint64_t n = (uint64_t)tg->count * b->geometry.pages_per_block[tg->group];
		for (uint64_t i = 0; i < n; i++) {
			uint32_t *use = uses_of(b, tg->group, tg->pages[i]);
			if (!is_free_for(op, use, units)) {
				leave_pages(op, g, i);
				return oki_fail(
					err, OKV_E_BUSY, OKV_STAGE_READY,
					"page %u of group %u is in use by a running operation",
					tg->pages[i], tg->group);
			}
			for (uint32_t u = 0; u < units; u++)
				use[u] = op->kind == OKW_OP_RESTORE ? OKI_PAGE_WRITTEN : use[u] + 1;
		}
	}
	return 0;
}

/* The events of an operation, one after another; NULL: no more. */
static const void *event_of(const struct okv_op *op, uint32_t i)
{
	if (i < op->event_count)
		return op->events[i].event;
	return i == op->event_count ? op->transfer.final_event : NULL;
}

static int enter_events(struct okv_op *op, struct okv_error *err)
{
	struct okv_engine *e = op->engine;
	const void *event;
	int rc = 0;
	if (!event_of(op, 0))
		return 0;
	pthread_mutex_lock(&e->event_lock);
	for (uint32_t i = 0; (event = event_of(op, i)) && !rc; i++)
		if (oki_event_set_has(&e->events, event))
			rc = oki_fail(err, OKV_E_BUSY, OKV_STAGE_READY,
				      "an event is in use by a running operation");
	if (!rc && !oki_event_set_reserve(&e->events, op->event_count + 1))
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_READY, "no memory for events");
	for (uint32_t i = 0; !rc && (event = event_of(op, i)); i++)
		oki_event_set_add(&e->events, event);
	pthread_mutex_unlock(&e->event_lock);
	return rc;
}

static void leave_events(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	const void *event;
	if (!event_of(op, 0))
		return;
	pthread_mutex_lock(&e->event_lock);
	for (uint32_t i = 0; (event = event_of(op, i)); i++)
		oki_event_set_remove(&e->events, event);
	pthread_mutex_unlock(&e->event_lock);
}

int oki_in_use_enter(struct okv_op *op, struct okv_error *err)
{
	int rc = enter_pages(op, err);
	if (rc)
		return rc;
	rc = enter_events(op, err);
	if (rc) {
		leave_pages(op, op->transfer.group_count, 0);
		return rc;
	}
	op->busy = true;
	return 0;
}

void oki_in_use_leave(struct okv_op *op)
{
	if (!op->busy)
		return;
	op->busy = false;
	leave_events(op);
	leave_pages(op, op->transfer.group_count, 0);
}
