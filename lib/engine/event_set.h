/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The events that running operations record, found in constant time. Not thread-safe. */
#ifndef OKI_ENGINE_EVENT_SET_H
#define OKI_ENGINE_EVENT_SET_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: empty. */
struct oki_event_set {
	const void **slots; /* owned; NULL: free */
	uint32_t count;
	uint32_t capacity; /* a power of two, at least twice the count */
};

void oki_event_set_fini(struct oki_event_set *set);
/* Make room, so that `more` events can be added. False: no memory. */
bool oki_event_set_reserve(struct oki_event_set *set, uint32_t more);
bool oki_event_set_has(const struct oki_event_set *set, const void *event);
/* event: not NULL, and not in the set; there is room for it. */
void oki_event_set_add(struct oki_event_set *set, const void *event);
/* One that is not there is ignored. */
void oki_event_set_remove(struct oki_event_set *set, const void *event);

#endif
