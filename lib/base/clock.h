/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The monotonic clock, and spinning that yields the CPU. */
#ifndef OKI_BASE_CLOCK_H
#define OKI_BASE_CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t oki_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The time that is timeout_ms from now; UINT64_MAX (no deadline) for a negative timeout. */
static inline uint64_t oki_deadline_ns(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : oki_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

/* Milliseconds from now to a deadline, rounded up; -1 for none, as poll() takes them. */
static inline int oki_left_ms(uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX)
		return -1;
	uint64_t now = oki_now_ns();
	return now < deadline_ns ? (int)((deadline_ns - now + 999999) / 1000000) : 0;
}

static inline void oki_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* One of so many rounds of spinning yields the CPU. */
#define OKI_ROUNDS_PER_YIELD 16u

/*
 * One round of spinning. *rounds may start with any number. The thread that the caller waits for
 * may need this CPU, so some rounds yield it. A yield is a system call, so most rounds only pause.
 */
static inline void oki_spin(uint32_t *rounds)
{
	if (++*rounds % OKI_ROUNDS_PER_YIELD == 0)
		sched_yield();
	else
		oki_relax();
}

#endif
