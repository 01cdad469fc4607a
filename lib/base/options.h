/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Option structs that carry their size. */
#ifndef OKI_BASE_OPTIONS_H
#define OKI_BASE_OPTIONS_H

#include <stddef.h>
#include <orbitkv/status.h>

/*
 * Copy a caller's option struct over dst, which holds the defaults: a shorter one leaves the rest
 * at its default; a longer one is accepted when its unknown tail is all zero.
 */
int oki_options_take(void *dst, size_t dst_size, const void *src, const char *what,
		     struct okv_error *err);

#endif
