/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Owned file descriptors and heap memory with scope cleanup. */
#ifndef OKI_BASE_FD_H
#define OKI_BASE_FD_H

#include <stdlib.h>

/* Close *fd unless it is negative, and set it to -1. Keeps errno. */
void oki_fd_close(int *fd);

static inline void oki_free_cleanup(void *p)
{
	free(*(void **)p);
}

/* Return the descriptor and set *fd to -1: the caller owns it now. */
static inline int oki_fd_take(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}

#define OKI_FD __attribute__((cleanup(oki_fd_close))) int
#define OKI_FREE __attribute__((cleanup(oki_free_cleanup)))

#endif
