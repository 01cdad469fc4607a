/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Payload memory of a Manager, verified and mapped. */
#ifndef OKI_ARENA_IMPORT_H
#define OKI_ARENA_IMPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>
#include "wire/shm.h"

struct oki_arena {
	uint32_t id;
	bool read_only;
	struct oki_shm shm;
};

/*
 * Map an arena after checking its seals, size and inode. Never trusts the sender's numbers.
 * Borrows fd. Zero bytes is refused.
 */
int oki_arena_import(int fd, uint32_t id, uint64_t bytes, uint64_t inode, bool read_only,
		     struct oki_arena *ret_arena, struct okv_error *err);
void oki_arena_release(struct oki_arena *arena);

#endif
