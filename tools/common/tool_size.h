/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Sizes as people write them. */
#ifndef ORBITKV_TOOLS_TOOL_SIZE_H
#define ORBITKV_TOOLS_TOOL_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* For what a program expects where tool_parse_size() says no. */
#define TOOL_SIZE_FORMS "512M, 1.5G or 64KiB, in powers of 1024"

/*
 * Bytes, or with K, M, G or T for powers of 1024, in either case and with or without "iB"; before
 * such a unit the number may have up to six decimals, and is cut to whole bytes. False for anything
 * else: 0, more than 64 bits, and "GB", of which nobody can know whether it means 10^9.
 */
bool tool_parse_size(const char *text, uint64_t *ret_bytes);

/* lead and the size as tool_parse_size() reads it, exactly: 64M, 1536K, 1000. */
void tool_write_size(uint64_t bytes, const char *lead, char *ret_text, size_t text_bytes);

#endif
