/* SPDX-License-Identifier: Apache-2.0 */
/* [B] From pairs (block, pages) to runs. */
#ifndef OKI_PLAN_COMPILE_H
#define OKI_PLAN_COMPILE_H

#include "plan/runs.h"

/* One block of a plan after its own check against the mapping. */
struct oki_pair {
	uint8_t *host;	  /* its payload in this process */
	uint32_t region;  /* the mapped arena it lies in; a run never crosses two */
	uint32_t ordinal; /* which block of the group, in the order of its pages */
};

/*
 * Cut each block into spans of constant page step, sort spans of one region and shape by page, and
 * join those at a constant distance in host memory and pages into runs. pages holds pages_per_block
 * entries per ordinal; a page may come again if it is only read. block_bytes is the least distance
 * between two blocks. The pitches of a run are at most max_pitch_bytes, for pages of stride
 * max_page_stride too. OKV_E_INVAL, OKV_E_NOMEM.
 */
int oki_compile(struct oki_compile_scratch *scratch, const struct oki_pair *pairs,
		uint32_t pair_count, const uint32_t *pages, uint32_t pages_per_block,
		uint64_t block_bytes, uint64_t max_page_stride, uint64_t max_pitch_bytes,
		struct oki_runs *ret_runs, struct okv_error *err);

#endif
