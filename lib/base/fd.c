/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Owned file descriptors. */
#include "base/fd.h"

#include <errno.h>
#include <unistd.h>

void oki_fd_close(int *fd)
{
	if (*fd < 0)
		return;
	int saved = errno;
	close(*fd);
	errno = saved;
	*fd = -1;
}
