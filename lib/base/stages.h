/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Stage times of one operation, in nanoseconds from its start (OKV_ENGINE_STAGE_TIMES). */
#ifndef OKI_BASE_STAGES_H
#define OKI_BASE_STAGES_H

#include <stdbool.h>
#include <stdint.h>

enum oki_stage {
	OKI_STAGE_READY,
	OKI_STAGE_DISPATCHED,
	OKI_STAGE_DEQUEUED,
	OKI_STAGE_CLAIMED,
	OKI_STAGE_ENQUEUED,
	OKI_STAGE_DRAINED,
	OKI_STAGES,
};

struct oki_stages {
	bool on;
	uint64_t start;
	uint64_t ns[OKI_STAGES];
};

void oki_stages_start(struct oki_stages *stages, bool on);
/* Record the time of a stage. Only the first call for a stage counts. Reads no clock when off. */
void oki_stages_mark(struct oki_stages *stages, enum oki_stage stage);

#endif
