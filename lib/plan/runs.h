/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The runs that plans are compiled to, and memory that is kept between plans. */
#ifndef OKI_PLAN_RUNS_H
#define OKI_PLAN_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include "device/device.h"

struct oki_runs {
	struct oki_run *runs; /* owned */
	uint32_t count;
	uint32_t room; /* capacity of runs */
};

/* Memory above this is not kept for the next plan. */
#define OKI_SCRATCH_KEEP_BYTES (8u << 20)
#define OKI_SPARE_RUNS 16u

/*
 * Memory that one thread keeps between plans: fresh memory pages for every plan would take several
 * times as long as compiling it. All zero is empty.
 */
struct oki_compile_scratch {
	void *memory; /* work space of one call */
	size_t bytes;
	struct oki_runs spare[OKI_SPARE_RUNS]; /* given back, the longest unused first */
	uint32_t spare_count;
	uint64_t spare_bytes;
};
void oki_compile_scratch_fini(struct oki_compile_scratch *scratch);

/* Memory with undefined contents, valid until the next call. NULL: no memory. */
void *oki_scratch_space(struct oki_compile_scratch *scratch, size_t bytes);
/* The space is no longer used: free it if it is above OKI_SCRATCH_KEEP_BYTES. */
void oki_scratch_trim(struct oki_compile_scratch *scratch);

/* An array with room for `count` runs or some more, and none in it. False: no memory. */
bool oki_runs_take(struct oki_compile_scratch *scratch, uint32_t count, struct oki_runs *ret_runs);
/*
 * Cut runs of more than `rows` rows, which is at least 1, keeping their order. False: no memory, or
 * more runs than 32 bits count; the runs are unchanged then.
 */
bool oki_runs_cut(struct oki_compile_scratch *scratch, struct oki_runs *runs, uint64_t rows);
/* Release runs: give keeps their memory for the thread's next plan, fini frees it. */
void oki_runs_give(struct oki_compile_scratch *scratch, struct oki_runs *runs);
void oki_runs_fini(struct oki_runs *runs);

#endif
