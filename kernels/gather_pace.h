/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] When a lane group of the copy kernel may begin its next tile: arithmetic on clock values, in
 * units of 1/OKI_GATHER_PACE ns since the lane group began. The clocks of two SMs differ a little,
 * and a preempted block may continue on another SM, so time may go backwards.
 */
#ifndef KERNELS_GATHER_PACE_H
#define KERNELS_GATHER_PACE_H

#include "gather_copy.h"

#ifdef __CUDACC__
#define OKI_GATHER_INLINE static __device__ __forceinline__
#else
#define OKI_GATHER_INLINE static inline
#endif

/* A lane group that was delayed catches up by so many tiles at most. */
#define OKI_GATHER_BEHIND 2
/* Most clock reads before one tile, at least 100 ns apart; then the lane group continues, so that
 * no clock can stop a kernel for ever. Together longer than a launch may have to wait for the one
 * before. */
#define OKI_GATHER_LOOKS 200000u

/* Of one lane group. */
struct oki_gather_schedule {
	uint64_t start_ns;
	int64_t due; /* of the next tile */
};

/* The lane group begins now. Its first tile is due `share` after the expected end of the launch
 * before (until_ns); shares differ, so that not all lane groups begin at once. */
OKI_GATHER_INLINE struct oki_gather_schedule oki_gather_begin(uint64_t now_ns, uint64_t until_ns,
							      uint64_t share)
{
	struct oki_gather_schedule s;
	int64_t wait = (int64_t)(until_ns - now_ns);
	s.start_ns = now_ns;
	s.due = (wait > 0 ? wait : 0) * (int64_t)OKI_GATHER_PACE + (int64_t)share;
	return s;
}

OKI_GATHER_INLINE int64_t oki_gather_elapsed(const struct oki_gather_schedule *s, uint64_t now_ns)
{
	return (int64_t)(now_ns - s->start_ns) * (int64_t)OKI_GATHER_PACE;
}

OKI_GATHER_INLINE int oki_gather_is_early(const struct oki_gather_schedule *s, uint64_t now_ns)
{
	return oki_gather_elapsed(s, now_ns) < s->due;
}

/* Call before waiting for a tile that takes `takes`: forget what the lane group is behind by more
 * than OKI_GATHER_BEHIND tiles. */
OKI_GATHER_INLINE void oki_gather_catch_up(struct oki_gather_schedule *s, uint64_t now_ns,
					   uint64_t takes)
{
	int64_t least = oki_gather_elapsed(s, now_ns) - OKI_GATHER_BEHIND * (int64_t)takes;
	if (s->due < least)
		s->due = least;
}

/* The tile begins. If the lane group stopped waiting early, count from now. */
OKI_GATHER_INLINE void oki_gather_take(struct oki_gather_schedule *s, uint64_t now_ns,
				       uint64_t takes)
{
	if (oki_gather_is_early(s, now_ns))
		s->due = oki_gather_elapsed(s, now_ns);
	s->due += (int64_t)takes;
}

#endif
