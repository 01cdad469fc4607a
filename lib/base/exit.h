/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this process in exit()? */
#ifndef OKI_BASE_EXIT_H
#define OKI_BASE_EXIT_H

#include <stdbool.h>

/* What drives a device shuts down: the process is in exit(), or about to end. Never taken back. */
void oki_exit_begins(void);
bool oki_exit_has_begun(void);

#endif
