/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Parts of a grant: {offered, claimed, closed} in one word, moved by compare-and-swap. */
#include "grant/parts.h"

/*
 * An honest peer changes the word a few times per part. When this many swaps fail in a row, the
 * peer is not honest and the parts are closed.
 */
#define OFFER_TRIES 1000

static struct oki_parts decode(uint64_t word)
{
	return (struct oki_parts){
		.offered = (uint32_t)(word >> OKW_PARTS_OFFERED_SHIFT & OKW_PARTS_COUNT_MASK),
		.claimed = (uint32_t)(word >> OKW_PARTS_CLAIMED_SHIFT & OKW_PARTS_COUNT_MASK),
		.closed = (word & OKW_PARTS_CLOSED) != 0,
	};
}

struct oki_parts oki_parts_load(const struct okw_record *record)
{
	return decode(atomic_load(&record->parts));
}

void oki_parts_reset(struct okw_record *record)
{
	/* Relaxed is enough (G3): Reserved is the engine's alone, and the edge to Submitted
	 * publishes the stores (G2). */
	atomic_store_explicit(&record->parts, 0, memory_order_relaxed);
	atomic_store_explicit(&record->drained, 0, memory_order_relaxed);
	atomic_store_explicit(&record->consumed, 0, memory_order_relaxed);
}

bool oki_parts_offer(struct okw_record *record)
{
	uint64_t word = atomic_load(&record->parts);

	for (int i = 0; i < OFFER_TRIES; i++) {
		struct oki_parts parts = decode(word);

		if (parts.closed)
			return false;
		if (parts.offered == OKW_PARTS_COUNT_MASK)
			break;
		/* G3: the plan bytes are in the bank before this count offers them. */
		if (atomic_compare_exchange_strong(&record->parts, &word,
						   word + (1ull << OKW_PARTS_OFFERED_SHIFT)))
			return true;
	}
	oki_parts_close(record);
	return false;
}

bool oki_parts_claim(struct okw_record *record, uint32_t *ret_part)
{
	uint64_t word = atomic_load(&record->parts);

	for (;;) {
		struct oki_parts parts = decode(word);

		if (parts.closed || parts.claimed >= parts.offered)
			return false;
		/* G3: an earlier close makes this fail; a later one counts this claim. */
		if (atomic_compare_exchange_strong(&record->parts, &word,
						   word + (1ull << OKW_PARTS_CLAIMED_SHIFT))) {
			*ret_part = parts.claimed;
			return true;
		}
	}
}

struct oki_parts oki_parts_close(struct okw_record *record)
{
	return decode(atomic_fetch_or(&record->parts, OKW_PARTS_CLOSED) | OKW_PARTS_CLOSED);
}
