/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Owned file descriptors and heap memory with scope cleanup. */
#ifndef OKI_BASE_FD_H
#define OKI_BASE_FD_H

#include <stdlib.h>

/* Close *fd if it is one, and set it to -1. */
void oki_fd_close(int *fd);

static inline void oki_free_cleanup(void *p)
{
	free(*(void **)p);
}

/* Hand the descriptor on: the variable gives it up. */
static inline int oki_fd_take(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}

#define OKI_FD __attribute__((cleanup(oki_fd_close))) int
#define OKI_FREE __attribute__((cleanup(oki_free_cleanup)))

#endif
