/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this process a forked child of the one that made something? */
#ifndef OKI_BASE_FORK_H
#define OKI_BASE_FORK_H

#include <stdbool.h>
#include <stdint.h>

/* The generation of this process, never 0: a child of fork() has another one than its parent. An
 * object of which a child has no use keeps the one that it was made in. */
uint64_t oki_fork_generation(void);

/* Is this process a child, or a child of a child, of the one that had this generation? */
bool oki_forked_since(uint64_t generation);

#endif
