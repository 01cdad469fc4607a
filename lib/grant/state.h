/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The transition table of operation records: one compare-and-swap per edge. */
#ifndef OKI_GRANT_STATE_H
#define OKI_GRANT_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include "wire/wire.h"

enum oki_mover { OKI_MOVER_NONE, OKI_MOVER_ENGINE, OKI_MOVER_MANAGER };

#define OKI_TAG(generation, state) ((uint64_t)(generation) << 8 | (uint64_t)(state))
#define OKI_TAG_STATE(tag) ((uint32_t)((tag)&0xffu))
#define OKI_TAG_GENERATION(tag) ((uint64_t)(tag) >> 8)

/* Who may move a record from one state to the other; OKI_MOVER_NONE: there is no such edge. */
enum oki_mover oki_edge(uint32_t from, uint32_t to);
const char *oki_state_name(uint32_t state);

/*
 * Move record from exactly `tag` to `to`. False when the record has another tag (somebody moved it
 * first) or the edge is not the mover's. On true *tag is the new tag; an edge into Free raises the
 * generation. Sequentially consistent: everything the mover wrote before is visible to a thread
 * that sees the state.
 */
bool oki_move(struct okw_record *record, uint64_t *tag, uint32_t to, enum oki_mover mover);

static inline uint64_t oki_tag_load(const struct okw_record *record)
{
	return atomic_load(&record->tag);
}

#endif
