/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Arenas: payload memory of a Manager, checked and mapped by an engine. */
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
 * Check the seals, size and inode of fd, then map it. bytes and inode come from the Manager and
 * must match what the kernel says of fd; 0 is refused. Borrows fd.
 */
int oki_arena_import(int fd, uint32_t id, uint64_t bytes, uint64_t inode, bool read_only,
		     struct oki_arena *ret_arena, struct okv_error *err);
void oki_arena_release(struct oki_arena *arena);

#endif
