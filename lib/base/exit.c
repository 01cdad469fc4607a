/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this process in exit()? */
#include "base/exit.h"

#include <stdatomic.h>

static _Atomic bool begun;

void oki_exit_begins(void)
{
	atomic_store(&begun, true);
}

bool oki_exit_has_begun(void)
{
	return atomic_load(&begun);
}
