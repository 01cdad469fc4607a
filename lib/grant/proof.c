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
	/* Out of Preparing leads only the Manager's own hand, so one look is enough. */
	if (OKI_TAG_STATE(tag) != OKW_PREPARING || oki_tag_load(record) != tag)
		return false;
	*ret = make(OKI_PROOF_UNGRANTED, tag);
	return true;
}

bool oki_proof_revoke(struct okw_record *record, uint64_t *tag, struct oki_proof *ret)
{
	/* G2: the claim and this are the same compare-and-swap; the one that won is the proof. */
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

	/* G5: Drained is the last thing the engine stores, so what follows is its final word. */
	if (OKI_TAG_STATE(tag) != OKW_DRAINED || oki_tag_load(record) != tag)
		return false;
	/*
	 * Closing returns the word and ends claiming in one step: not even an engine that claims
	 * after its own Drained can take a part that this proof does not count.
	 */
	parts = oki_parts_close(record);
	drained = atomic_load(&record->drained);
	consumed = atomic_load(&record->consumed);
	status = *(const volatile int32_t *)&record->engine_status;

	if (parts.claimed > parts.offered || drained != parts.claimed || consumed > parts.claimed)
		return false;
	if (!known_status(status))
		return false;
	/* "All bytes copied" and an offered part left alone cannot both be true. */
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
