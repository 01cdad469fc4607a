/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Starting a thread that takes no signals meant for the process. */
#ifndef OKI_BASE_THREAD_H
#define OKI_BASE_THREAD_H

#include <pthread.h>

/*
 * As pthread_create(). The thread blocks every signal but those that a fault of its own raises:
 * handlers of the process run on threads its author knows, and its crash handler sees our faults.
 * Returns 0 or an errno value.
 */
int oki_thread_start(pthread_t *ret_thread, void *(*body)(void *), void *arg);

#endif
