/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The events that running operations record: a hash table with linear probing. */
#include "engine/event_set.h"

#include <stdlib.h>

#define FIRST_CAPACITY 64u

static uint32_t home(const struct oki_event_set *set, const void *event)
{
	/* Fibonacci hashing: the low bits of addresses say little. */
	uint64_t hash = (uint64_t)(uintptr_t)event * 0x9e3779b97f4a7c15ull;
	return (uint32_t)(hash >> 32) & (set->capacity - 1);
}

/* Where the event is, or the free slot where it belongs. There is one. */
static uint32_t find(const struct oki_event_set *set, const void *event)
{
	uint32_t at = home(set, event);
	while (set->slots[at] && set->slots[at] != event)
		at = (at + 1) & (set->capacity - 1);
	return at;
}

void oki_event_set_fini(struct oki_event_set *set)
{
	free(set->slots);
	*set = (struct oki_event_set){0};
}

bool oki_event_set_reserve(struct oki_event_set *set, uint32_t more)
{
	uint64_t need = 2 * ((uint64_t)set->count + more);
	if (need <= set->capacity)
		return true;
	uint64_t capacity = set->capacity ? set->capacity : FIRST_CAPACITY;
	while (capacity < need)
		capacity *= 2;
	if (capacity > UINT32_MAX)
		return false;
	struct oki_event_set grown = {.capacity = (uint32_t)capacity};
	grown.slots = calloc(capacity, sizeof(*grown.slots));
	if (!grown.slots)
		return false;
	for (uint32_t i = 0; i < set->capacity; i++)
		if (set->slots[i])
			oki_event_set_add(&grown, set->slots[i]);
	oki_event_set_fini(set);
	*set = grown;
	return true;
}

bool oki_event_set_has(const struct oki_event_set *set, const void *event)
{
	return set->count && set->slots[find(set, event)];
}

void oki_event_set_add(struct oki_event_set *set, const void *event)
{
	set->slots[find(set, event)] = event;
	set->count++;
}

void oki_event_set_remove(struct oki_event_set *set, const void *event)
{
	uint32_t mask = set->capacity - 1;
	if (!oki_event_set_has(set, event))
		return;
	uint32_t gap = find(set, event);
	/* Close the gap: a search stops at a free slot, so nothing behind it may have its home
	 * before it. */
	for (uint32_t at = (gap + 1) & mask; set->slots[at]; at = (at + 1) & mask) {
		if (((at - home(set, set->slots[at])) & mask) < ((at - gap) & mask))
			continue;
		set->slots[gap] = set->slots[at];
		gap = at;
	}
	set->slots[gap] = NULL;
	set->count--;
}
