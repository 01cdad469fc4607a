/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Pins: the accounts whose leases pin a block, and the bytes that each account pins. */
#include "index/index_private.h"

#include <stdlib.h>
#include "base/error.h"

#define SLAB_PINS 170u /* a slab is just smaller than 4 KiB */

/* Pins are adjacent, since a lease takes many at once. Slabs live as long as the index. */
struct oki_pin_slab {
	struct oki_pin_slab *next;
	struct oki_pin pins[SLAB_PINS];
};

static void push_spare(struct oki_index *index, struct oki_pin *pin)
{
	pin->next = index->spare_pins;
	index->spare_pins = pin;
	index->spare_pin_count++;
}

bool oki_pins_reserve(struct oki_index *index, uint64_t count)
{
	while (index->spare_pin_count < count) {
		struct oki_pin_slab *slab = malloc(sizeof(*slab));
		if (!slab)
			return false;
		slab->next = index->pin_slabs;
		index->pin_slabs = slab;
		for (uint32_t i = SLAB_PINS; i > 0; i--)
			push_spare(index, &slab->pins[i - 1]);
	}
	return true;
}

void oki_pins_fini(struct oki_index *index)
{
	while (index->pin_slabs) {
		struct oki_pin_slab *slab = index->pin_slabs;
		index->pin_slabs = slab->next;
		free(slab);
	}
}

/* The link to the account's pin in the block's list, or the link at its end. */
static struct oki_pin **pin_of(struct oki_block *block, const struct oki_account *account)
{
	struct oki_pin **at = &block->pins;
	while (*at && (*at)->account != account)
		at = &(*at)->next;
	return at;
}

bool oki_pinned_by(struct oki_block *block, const struct oki_account *account)
{
	return *pin_of(block, account) != NULL;
}

void oki_pin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		   uint64_t bytes)
{
	struct oki_pin **at = pin_of(block, account);
	if (*at) {
		(*at)->count++;
		return;
	}
	if (!block->pins) {
		oki_block_keep(block);
		index->pinned_bytes += bytes;
	}
	struct oki_pin *pin = index->spare_pins;
	index->spare_pins = pin->next;
	index->spare_pin_count--;
	*pin = (struct oki_pin){.account = account, .count = 1};
	*at = pin;
	account->bytes += bytes;
}

void oki_unpin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		     uint64_t bytes)
{
	struct oki_pin **at = pin_of(block, account);
	struct oki_pin *pin = *at;

	if (!pin)
		oki_die("a lease unpins a block that it does not pin");
	if (--pin->count > 0)
		return;
	*at = pin->next;
	push_spare(index, pin);
	account->bytes -= bytes;
	if (block->pins)
		return;
	index->pinned_bytes -= bytes;
	oki_block_settle(index, block);
}
