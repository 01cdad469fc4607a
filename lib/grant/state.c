/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The transition table of operation records: one compare-and-swap per edge. */
#include "grant/state.h"

#include <stddef.h>

/*
 * Every edge there is, row "from", column "to". test/model/run.sh compares it with the edges of
 * the model, so a change here is a change there.
 */
static const uint8_t edges[OKW_STATES][OKW_STATES] = {
	[OKW_FREE][OKW_RESERVED] = OKI_MOVER_ENGINE,
	[OKW_RESERVED][OKW_FREE] = OKI_MOVER_ENGINE,
	[OKW_RESERVED][OKW_SUBMITTED] = OKI_MOVER_ENGINE,
	[OKW_SUBMITTED][OKW_PREPARING] = OKI_MOVER_MANAGER,
	[OKW_PREPARING][OKW_DONE] = OKI_MOVER_MANAGER,
	[OKW_PREPARING][OKW_MANAGED] = OKI_MOVER_MANAGER,
	[OKW_MANAGED][OKW_DONE] = OKI_MOVER_MANAGER,
	[OKW_PREPARING][OKW_GRANTED] = OKI_MOVER_MANAGER,
	[OKW_GRANTED][OKW_REVOKED] = OKI_MOVER_MANAGER,
	[OKW_GRANTED][OKW_ACTIVE] = OKI_MOVER_ENGINE,
	[OKW_ACTIVE][OKW_DRAINED] = OKI_MOVER_ENGINE,
	[OKW_ACTIVE][OKW_UNKNOWN] = OKI_MOVER_ENGINE,
	[OKW_DRAINED][OKW_REAPED] = OKI_MOVER_MANAGER,
	[OKW_DONE][OKW_FREE] = OKI_MOVER_ENGINE,
	[OKW_REVOKED][OKW_FREE] = OKI_MOVER_ENGINE,
	[OKW_REAPED][OKW_FREE] = OKI_MOVER_ENGINE,
};

static const char *const names[OKW_STATES] = {
	[OKW_FREE] = "Free",	       [OKW_RESERVED] = "Reserved", [OKW_SUBMITTED] = "Submitted",
	[OKW_PREPARING] = "Preparing", [OKW_DONE] = "Done",	    [OKW_MANAGED] = "Managed",
	[OKW_GRANTED] = "Granted",     [OKW_REVOKED] = "Revoked",   [OKW_ACTIVE] = "Active",
	[OKW_DRAINED] = "Drained",     [OKW_REAPED] = "Reaped",	    [OKW_UNKNOWN] = "Unknown",
};

enum oki_mover oki_edge(uint32_t from, uint32_t to)
{
	if (from >= OKW_STATES || to >= OKW_STATES)
		return OKI_MOVER_NONE;
	return (enum oki_mover)edges[from][to];
}

const char *oki_state_name(uint32_t state)
{
	return state < OKW_STATES ? names[state] : "?";
}

bool oki_move(struct okw_record *record, uint64_t *tag, uint32_t to, enum oki_mover mover)
{
	uint64_t expected = *tag;
	uint64_t generation = OKI_TAG_GENERATION(expected);
	uint64_t next;

	if (mover == OKI_MOVER_NONE || oki_edge(OKI_TAG_STATE(expected), to) != mover)
		return false;
	/* Raise the generation, so that a tag read earlier matches no more (G2). */
	next = to == OKW_FREE ? OKI_TAG(generation + 1, OKW_FREE) : OKI_TAG(generation, to);
	/* G1: the state before the ring. G2: one winner, and what it wrote before is visible. */
	if (!atomic_compare_exchange_strong(&record->tag, &expected, next))
		return false;
	*tag = next;
	return true;
}
