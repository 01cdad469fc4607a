/* SPDX-License-Identifier: Apache-2.0 */
/* [B] What plans become, and the memory that stays between plans. */
#ifndef OKI_PLAN_RUNS_H
#define OKI_PLAN_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include "device/device.h"

struct oki_runs {
	struct oki_run *runs; /* owned */
	uint32_t count;
	uint32_t room; /* what runs has space for */
};

/* Memory above this is not kept for the next plan. */
#define OKI_SCRATCH_KEEP_BYTES (8u << 20)
#define OKI_SPARE_RUNS 16u

/*
 * Memory that stays between plans of one thread: fresh pages for every plan would cost several
 * times what compiling it does. All zero is empty.
 */
struct oki_compile_scratch {
	void *memory; /* work space of one call */
	size_t bytes;
	struct oki_runs spare[OKI_SPARE_RUNS]; /* given back, the oldest first */
	uint32_t spare_count;
	uint64_t spare_bytes;
};
void oki_compile_scratch_fini(struct oki_compile_scratch *scratch);

/* Undefined bytes, until the next call. NULL: no memory. */
void *oki_scratch_space(struct oki_compile_scratch *scratch, size_t bytes);
/* Done with them: what is huge goes. */
void oki_scratch_trim(struct oki_compile_scratch *scratch);

/* Room for `count` runs or a few more, of which none is there yet. False: no memory. */
bool oki_runs_take(struct oki_compile_scratch *scratch, uint32_t count, struct oki_runs *ret_runs);
/*
 * Cut what has more than `rows` rows, which is at least one; their order stays. False: no memory,
 * or more runs than can be counted, and they are as before.
 */
bool oki_runs_cut(struct oki_compile_scratch *scratch, struct oki_runs *runs, uint64_t rows);
/* The end of runs: for the next plan of the same thread, or for anyone. */
void oki_runs_give(struct oki_compile_scratch *scratch, struct oki_runs *runs);
void oki_runs_fini(struct oki_runs *runs);

#endif
