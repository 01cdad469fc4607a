/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Condition variables on the monotonic clock with nanosecond deadlines. */
#include "base/cond.h"

#include <errno.h>
#include <time.h>

void oki_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

bool oki_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX) {
		pthread_cond_wait(cond, mutex);
		return true;
	}
	struct timespec ts = {
		.tv_sec = (time_t)(deadline_ns / 1000000000u),
		.tv_nsec = (long)(deadline_ns % 1000000000u),
	};
	return pthread_cond_timedwait(cond, mutex, &ts) != ETIMEDOUT;
}
