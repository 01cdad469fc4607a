/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Start threads that block the signals of the process. */
#ifndef OKI_BASE_THREAD_H
#define OKI_BASE_THREAD_H

#include <pthread.h>

/*
 * Like pthread_create(), but the thread blocks all signals except those for its own faults (SIGSEGV
 * and others). So signal handlers of the process run on its own threads, and its crash handler
 * still sees faults of this thread. Returns 0 or an errno value.
 */
int oki_thread_start(pthread_t *ret_thread, void *(*body)(void *), void *arg);

#endif
