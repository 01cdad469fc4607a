/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Condition variables on the monotonic clock with nanosecond deadlines. */
#ifndef OKI_BASE_COND_H
#define OKI_BASE_COND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

void oki_cond_init(pthread_cond_t *cond);

/* Wait with the mutex held; false once deadline_ns (UINT64_MAX: none) has passed. */
bool oki_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns);

#endif
