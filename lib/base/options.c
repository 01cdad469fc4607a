/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Copy option structs of other library versions, which start with their size. */
#include "base/options.h"

#include <stdint.h>
#include <string.h>

#include "base/error.h"

int oki_options_take(void *dst, size_t dst_size, const void *src, const char *what,
		     struct okv_error *err)
{
	uint32_t size;
	if (!src)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "%s options are NULL", what);
	memcpy(&size, src, sizeof(size));
	if (size < sizeof(size))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%s options: size is %u; fill them with the _init call", what,
				size);
	if (size > 65536)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%s options: size %u is too large; fill them with the _init call",
				what, size);
	for (size_t i = dst_size; i < size; i++)
		if (((const uint8_t *)src)[i])
			return oki_fail(err, OKV_E_VERSION, OKV_STAGE_ARGUMENTS,
					"%s options: a field this library does not know is set",
					what);
	memcpy(dst, src, size < dst_size ? size : dst_size);
	uint32_t full = (uint32_t)dst_size;
	memcpy(dst, &full, sizeof(full));
	return 0;
}
