/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The only place that makes a struct oki_proof. */
#include "grant/proof.h"

#include <string.h>
#include <orbitkv/status.h>
#include "grant/parts.h"
#include "grant/state.h"

static bool known_status(int32_t status)
{
	return status <= 0 && strcmp(okv_status_name(status), "OKV_E_?") != 0;
}

static struct oki_proof make(enum oki_proof_kind kind, uint64_t tag)
{
	return (struct oki_proof){.kind_private = (uint32_t)kind, .tag_private = tag};
}

bool oki_proof_ungranted(const struct okw_record *record, uint64_t tag, struct oki_proof *ret)
{
	/* Only the Manager moves a record out of Preparing, so one load is enough. */
	if (OKI_TAG_STATE(tag) != OKW_PREPARING || oki_tag_load(record) != tag)
		return false;
	*ret = make(OKI_PROOF_UNGRANTED, tag);
	return true;
}

bool oki_proof_revoke(struct okw_record *record, uint64_t *tag, struct oki_proof *ret)
{
	/* G2: claim and revoke swap the same tag; winning the swap is the proof. */
	if (!oki_move(record, tag, OKW_REVOKED, OKI_MOVER_MANAGER))
		return false;
	*ret = make(OKI_PROOF_REVOKED, *tag);
	return true;
}

bool oki_proof_drained(struct okw_record *record, uint64_t tag, struct oki_proof *ret)
{
	struct oki_parts parts;
	uint32_t drained, consumed;
	int32_t status;

	/* G5: the engine stores Drained last, so the values read below are final. */
	if (OKI_TAG_STATE(tag) != OKW_DRAINED || oki_tag_load(record) != tag)
		return false;
	/*
	 * Closing returns the word and forbids claims in one step: even an engine that claims after
	 * its own Drained cannot take a part that this proof does not count.
	 */
	parts = oki_parts_close(record);
	drained = atomic_load(&record->drained);
	consumed = atomic_load(&record->consumed);
	status = *(const volatile int32_t *)&record->engine_status;

	if (parts.claimed > parts.offered || drained != parts.claimed || consumed > parts.claimed)
		return false;
	if (!known_status(status))
		return false;
	/* Success and an unclaimed offered part contradict each other. */
	if (status == 0 && parts.claimed != parts.offered)
		return false;
	*ret = make(OKI_PROOF_DRAINED, tag);
	ret->engine_status_private = status;
	ret->claimed_private = parts.claimed;
	return true;
}

enum oki_proof_kind oki_proof_kind(const struct oki_proof *proof)
{
	return (enum oki_proof_kind)proof->kind_private;
}

int oki_proof_engine_status(const struct oki_proof *proof)
{
	return proof->engine_status_private;
}

uint32_t oki_proof_claimed(const struct oki_proof *proof)
{
	return proof->claimed_private;
}
