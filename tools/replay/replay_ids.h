/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The hash ids of one request, as they stand in its line of JSON. */
#ifndef ORBITKV_TOOLS_REPLAY_IDS_H
#define ORBITKV_TOOLS_REPLAY_IDS_H

#include <stdint.h>
#include <orbitkv/orbitkv.h>

struct replay_ids {
	uint32_t count;
	uint64_t cut; /* ids left out, because a request has no more than OKV_MAX_BLOCKS blocks */
	uint64_t ids[OKV_MAX_BLOCKS];
};

/*
 * Of a line that is valid JSON: whole numbers of up to 64 bits, which JSON libraries do not hold,
 * each once. 0, or -1 with the reason in text (TOOL_TEXT bytes).
 */
int replay_ids_read(const char *line, struct replay_ids *ret_ids, char *text);

#endif
