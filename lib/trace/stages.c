/* [E] Stage clocks of one operation: opt-in, one clock, nanoseconds from its start. */
#include "trace/stages.h"

#include "base/clock.h"

#define DAY_NS (86400ull * 1000000000ull)

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

bool oki_stages_plausible(const uint64_t ns[OKI_STAGES])
{
	uint64_t last = 0;
	for (int i = 0; i < OKI_STAGES; i++) {
		if (!ns[i])
			continue;
		if (ns[i] < last || ns[i] > DAY_NS)
			return false;
		last = ns[i];
	}
	return true;
}
