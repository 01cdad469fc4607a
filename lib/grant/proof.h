/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [M] Permission to reuse memory that a grant named. Values of this type are made in
 * lib/grant/proof.c only, from what the record proves; never from a timeout or a closed socket.
 */
#ifndef OKI_GRANT_PROOF_H
#define OKI_GRANT_PROOF_H

#include <stdbool.h>
#include <stdint.h>
#include "wire/wire.h"

enum oki_proof_kind {
	OKI_PROOF_NONE = 0,
	OKI_PROOF_UNGRANTED, /* the record never left Preparing: the engine got no addresses */
	OKI_PROOF_REVOKED,   /* the Manager won Granted → Revoked: no claim before or after */
	OKI_PROOF_DRAINED,   /* a valid Drained of this generation, every claimed part drained */
};

struct oki_proof {
	uint32_t kind_private; /* enum oki_proof_kind; read with oki_proof_kind() */
	int32_t engine_status_private;
	uint32_t claimed_private;
	uint32_t reserved_private;
	uint64_t tag_private;
};

/* Nothing was granted yet: record is in Preparing with this tag. */
bool oki_proof_ungranted(const struct okw_record *record, uint64_t tag, struct oki_proof *ret);
/* Revoke an unclaimed grant. On true the record is Revoked and *tag updated. */
bool oki_proof_revoke(struct okw_record *record, uint64_t *tag, struct oki_proof *ret);
/*
 * The record (seen Drained with this tag) accounts for every claimed part. Closes the parts and
 * copies each word once; an inconsistent record (drained != claimed, an unknown status, success
 * with a part left unclaimed) proves nothing: false.
 */
bool oki_proof_drained(struct okw_record *record, uint64_t tag, struct oki_proof *ret);

enum oki_proof_kind oki_proof_kind(const struct oki_proof *proof);
/* The status of the engine's executor: 0 only when every byte was copied. DRAINED only. */
int oki_proof_engine_status(const struct oki_proof *proof);
/*
 * How many parts were claimed and drained. DRAINED only. The caller knows how many parts it planned
 * and offered, and accepts a status of 0 only if this is all of them.
 */
uint32_t oki_proof_claimed(const struct oki_proof *proof);

#endif
