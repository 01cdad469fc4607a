/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Stage times of one operation, in nanoseconds from its start (OKV_ENGINE_STAGE_TIMES). */
#include "base/stages.h"

#include "base/clock.h"

void oki_stages_start(struct oki_stages *stages, bool on)
{
	*stages = (struct oki_stages){.on = on};
	if (on)
		stages->start = oki_now_ns();
}

void oki_stages_mark(struct oki_stages *stages, enum oki_stage stage)
{
	if (stages->on && !stages->ns[stage])
		stages->ns[stage] = oki_now_ns() - stages->start + 1;
}
