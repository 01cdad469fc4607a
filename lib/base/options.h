/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Copy option structs of other library versions, which start with their size. */
#ifndef OKI_BASE_OPTIONS_H
#define OKI_BASE_OPTIONS_H

#include <stddef.h>
#include <orbitkv/status.h>

/*
 * Copy the caller's option struct src over dst, which has the defaults. If src is shorter, the
 * other fields keep their defaults. If it is longer, the bytes that dst lacks must be 0, else
 * OKV_E_VERSION.
 */
int oki_options_take(void *dst, size_t dst_size, const void *src, const char *what,
		     struct okv_error *err);

#endif
