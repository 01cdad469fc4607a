/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Bytes that say where they belong. */
#ifndef ORBITKV_TOOLS_TOOL_PATTERN_H
#define ORBITKV_TOOLS_TOOL_PATTERN_H

#include <stdint.h>
#include <orbitkv/orbitkv.h>
#include "tool_base.h"

#define TOOL_KEY_BYTES 16
#define TOOL_MAX_ID ((1u << 26) - 1) /* of ids that a misplaced word names in full */
#define TOOL_MAX_SEGMENTS 8u	     /* of a layer of the tools' models */
#define TOOL_MAX_SEGMENT_BYTES (1ull << 28)
#define TOOL_POISON 0xee

/* Segment `segment` of layer `layer` of the block `id`. */
struct tool_place {
	uint64_t id;
	uint32_t layer;
	uint32_t segment;
};

void tool_key(uint64_t id, uint8_t key[TOOL_KEY_BYTES]);
void tool_fill(const struct tool_place *place, void *bytes, uint64_t size);
/*
 * Bytes that differ from what tool_fill() writes there; the first difference is told in text
 * (TOOL_TEXT bytes), with the place its bytes came from if they tell it.
 */
uint64_t tool_check(const struct tool_place *place, const void *bytes, uint64_t size, char *text);

#endif
