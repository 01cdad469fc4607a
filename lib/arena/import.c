/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Arenas: payload memory of a Manager, checked and mapped by an engine. */
#include "arena/import.h"

#include <sys/mman.h>
#include "base/error.h"

int oki_arena_import(int fd, uint32_t id, uint64_t bytes, uint64_t inode, bool read_only,
		     struct oki_arena *ret_arena, struct okv_error *err)
{
	/* For oki_shm_get() 0 means any size or inode; the Manager must not choose that. */
	if (bytes == 0 || inode == 0)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_IMPORT,
				"arena %u of zero bytes or without an inode", id);
	struct oki_shm shm;
	int rc = oki_shm_get(fd, bytes, inode, read_only, &shm, err);
	if (rc < 0)
		return rc;
	/* Keep the cache out of the engine's core dumps. A failure does no harm. */
	(void)madvise(shm.base, shm.bytes, MADV_DONTDUMP);
	*ret_arena = (struct oki_arena){.id = id, .read_only = read_only, .shm = shm};
	return 0;
}

void oki_arena_release(struct oki_arena *arena)
{
	if (!arena)
		return;
	oki_shm_put(&arena->shm);
}
