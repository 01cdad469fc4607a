/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Sizes as people write them: 512M, 1.5G, 64KiB, 200g. */
#include "tool_size.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARTS 1000000u /* so that parts of a T fit in 64 bits */

/* The decimals behind a point; returns where they end, or NULL. */
static const char *read_parts(const char *at, uint64_t *ret_part, uint64_t *ret_parts)
{
	uint64_t part = 0;
	uint64_t parts = 1;

	for (; *at >= '0' && *at <= '9'; at++) {
		if (parts == MOST_PARTS)
			return NULL;
		part = part * 10 + (uint64_t)(*at - '0');
		parts *= 10;
	}
	*ret_part = part;
	*ret_parts = parts;
	return parts > 1 ? at : NULL;
}

/* The power of two of a unit, which ends the text; 0 when it is none. */
static unsigned read_unit(const char *at)
{
	static const char units[] = "kmgt";
	const char *unit = strchr(units, tolower((unsigned char)*at));

	if (unit == NULL || (at[1] != '\0' && (tolower((unsigned char)at[1]) != 'i' ||
					       tolower((unsigned char)at[2]) != 'b' || at[3])))
		return 0;
	return 10 * (unsigned)(unit - units + 1);
}

bool tool_parse_size(const char *text, uint64_t *ret_bytes)
{
	uint64_t part = 0;
	uint64_t parts = 1;
	unsigned shift = 0;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	uint64_t whole = strtoull(text, &end, 10);
	const char *at = end;

	if (errno != 0)
		return false;
	if (*at == '.')
		at = read_parts(at + 1, &part, &parts);
	if (at == NULL || (*at == '\0' && parts > 1))
		return false;
	if (*at != '\0') {
		shift = read_unit(at);
		if (shift == 0 || whole > UINT64_MAX >> shift)
			return false;
	}
	uint64_t bytes = (whole << shift) + (part << shift) / parts;

	if (bytes == 0)
		return false;
	*ret_bytes = bytes;
	return true;
}

void tool_write_size(uint64_t bytes, const char *lead, char *ret_text, size_t text_bytes)
{
	static const char *const units[] = {"", "K", "M", "G", "T"};
	unsigned unit = 0;

	for (; bytes && bytes % 1024 == 0 && unit < 4; unit++)
		bytes /= 1024;
	snprintf(ret_text, text_bytes, "%s%llu%s", lead, (unsigned long long)bytes, units[unit]);
}
