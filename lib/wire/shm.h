/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Shared memory files: created sealed, verified before they are mapped. */
#ifndef OKI_WIRE_SHM_H
#define OKI_WIRE_SHM_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

/*
 * One mapping of one memfd. All users in this process of the same file with the same rights share
 * it: in embedded mode engine and Manager then use the same addresses, which a race detector needs.
 */
struct oki_shm {
	uint8_t *base;
	uint64_t bytes;
};

/*
 * memfd_create() with close-on-exec, sealing and, where the kernel knows it, no-exec, plus
 * more_flags (MFD_HUGETLB ...). Owned fd, or -1 and errno.
 */
int oki_shm_memfd(const char *name, unsigned more_flags);
/* Seal against shrinking, growing and further seals. -1 and errno when that fails. */
int oki_shm_seal(int fd);

/* A memfd of this size, zeroed, sealed against shrinking, growing and further seals. It takes
 * memory for the pages that are used: see oki_shm_allocate(). Owned fd. */
int oki_shm_create(const char *name, uint64_t bytes, int *ret_fd, struct okv_error *err);
/*
 * Take memory for the pages of a mapping that hold [at, at + bytes), so that a lack of memory is
 * found here and is no SIGBUS at the first write. False: there is none. Linux before 5.14 cannot
 * say: then true.
 */
bool oki_shm_allocate(void *at, uint64_t bytes);

/*
 * Map a file after proving size and seals with fstat and F_GET_SEALS. expect_inode 0: any.
 * Counted per file and rights; put once per get. Borrows fd.
 */
int oki_shm_get(int fd, uint64_t expect_bytes, uint64_t expect_inode, bool read_only,
		struct oki_shm *ret_shm, struct okv_error *err);
void oki_shm_put(struct oki_shm *shm);

#endif
