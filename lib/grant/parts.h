/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Parts of a grant: {offered, claimed, closed} in one word, moved by compare-and-swap. */
#ifndef OKI_GRANT_PARTS_H
#define OKI_GRANT_PARTS_H

#include <stdbool.h>
#include <stdint.h>
#include "wire/wire.h"

struct oki_parts {
	uint32_t offered;
	uint32_t claimed;
	bool closed;
};

struct oki_parts oki_parts_load(const struct okw_record *record);
/* [E, while Reserved] Set the parts and their counts to 0. */
void oki_parts_reset(struct okw_record *record);
/* [M] Offer one more part, which is in the bank. False when closed. */
bool oki_parts_offer(struct okw_record *record);
/* [E, while Active] Take the next offered part: its index in *ret_part. False: none or closed. */
bool oki_parts_claim(struct okw_record *record, uint32_t *ret_part);
/* [B] Forbid further claims. Returns the word as closed. */
struct oki_parts oki_parts_close(struct okw_record *record);

#endif
