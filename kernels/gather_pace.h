/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] When a group of lanes of the copy kernel may begin its next piece: arithmetic on what a clock
 * says, in units of 1/OKI_GATHER_PACE ns from the group's beginning on. The clocks of two SMs
 * differ by a little, and a block that was taken off its SM may go on on another one, so time may
 * go back.
 */
#ifndef KERNELS_GATHER_PACE_H
#define KERNELS_GATHER_PACE_H

#include "gather_copy.h"

#ifdef __CUDACC__
#define OKI_GATHER_INLINE static __device__ __forceinline__
#else
#define OKI_GATHER_INLINE static inline
#endif

/* One that was held up makes up for a few pieces at most. */
#define OKI_GATHER_BEHIND 2
/* A group looks at the clock so often for one piece, at least 100 ns apart, and then goes on: no
 * clock keeps a kernel for ever. Longer than a launch may have to wait for the one before. */
#define OKI_GATHER_LOOKS 200000u

/* A group's. */
struct oki_gather_schedule {
	uint64_t start_ns;
	int64_t due; /* of the next piece */
};

/* Begins now, and its first piece is due when the launch before is through and as much later as its
 * share of one piece says, so that not all groups begin at once. */
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

/* Before the wait for a piece that takes so long. */
OKI_GATHER_INLINE void oki_gather_catch_up(struct oki_gather_schedule *s, uint64_t now_ns,
					   uint64_t takes)
{
	int64_t least = oki_gather_elapsed(s, now_ns) - OKI_GATHER_BEHIND * (int64_t)takes;
	if (s->due < least)
		s->due = least;
}

/* The piece begins; who gave up waiting begins anew. */
OKI_GATHER_INLINE void oki_gather_take(struct oki_gather_schedule *s, uint64_t now_ns,
				       uint64_t takes)
{
	if (oki_gather_is_early(s, now_ns))
		s->due = oki_gather_elapsed(s, now_ns);
	s->due += (int64_t)takes;
}

#endif
