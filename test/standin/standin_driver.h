/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the stand-in driver. */
#ifndef TEST_STANDIN_STANDIN_DRIVER_H
#define TEST_STANDIN_STANDIN_DRIVER_H

#include "standin/standin_control.h"

#include <pthread.h>

#include "kernels/gather_copy.h"

/* Misuse that a GPU would answer with a fault, or not at all: say what and abort. */
void standin_stop(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

enum standin_enter { STANDIN_ANY, STANDIN_IN_CONTEXT };

/* Every entry point starts here: what to return at once if not 0. */
CUresult standin_enter(const char *name, enum standin_enter needs);
bool standin_is_exempt(void);
bool standin_is_context(CUcontext context);
CUcontext standin_context(void);
#define ENTER(needs)                                              \
	do {                                                      \
		CUresult enter_ = standin_enter(__func__, needs); \
		if (enter_ != CUDA_SUCCESS)                       \
			return enter_;                            \
	} while (0)

/* Changed with standin_lock held; `changed` tells of queues, events and counters. */
extern struct standin_counts standin_now;
/* Takes the lock for one of them. */
void standin_count(uint32_t *count, int by);
extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_changed;

/* ---- memory ---- */

enum standin_use { STANDIN_READ, STANDIN_WRITE };

/* Bytes as the GPU addresses them, of its own memory. */
uint8_t *standin_device(CUdeviceptr at, uint64_t bytes);
/* Host memory that is pinned, as the GPU addresses it, all of it one registration. */
uint8_t *standin_mapped(CUdeviceptr at, uint64_t bytes, enum standin_use use);
/* The same by the CPU's address, as copy engines take it. */
uint8_t *standin_pinned(const void *host, uint64_t bytes, enum standin_use use);
/* Is this address of the CPU's pinned? */
bool standin_is_pinned(const void *host);
/* And by cuMemHostRegister()? */
bool standin_is_registered(const void *host);

/* ---- delays ---- */

/* A sequence of its own for each user. */
uint64_t standin_random_new(void);
/* One time in `one_in`, up to most_us. */
void standin_delay(uint64_t *random, uint32_t one_in, uint32_t most_us);

/* ---- the kernel ---- */

/* Copies as kernels/gather_copy.cu does, with groups of `lanes` lanes in several threads. */
void standin_gather(const struct oki_gather *gather, uint32_t lanes, uint32_t blocks,
		    uint32_t block_threads, uint64_t *random);
/* Lanes of a function of the module. */
uint32_t standin_lanes(CUfunction function);
/* Until no stream has work left, as CUDA does before it frees memory. */
void standin_wait_for_all(void);
/* The null stream ends with the context. */
void standin_null_stream_end(void);

#endif
