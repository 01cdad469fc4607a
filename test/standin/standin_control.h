/* SPDX-License-Identifier: Apache-2.0 */
/* What a test may ask of the stand-in driver beside CUDA's calls; found by dlsym(). */
#ifndef TEST_STANDIN_STANDIN_CONTROL_H
#define TEST_STANDIN_STANDIN_CONTROL_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* What exists, and what was asked for since the library was loaded. */
struct standin_counts {
	uint32_t registrations;
	uint32_t pinned; /* cuMemHostAlloc() */
	uint32_t allocations;
	uint32_t streams;
	uint32_t events;
	uint32_t modules;
	uint32_t contexts; /* retained */
	uint32_t launches;
	uint32_t empty; /* launches that copy nothing; they are not among the others */
	uint32_t copies;
	uint32_t value_waits;
	uint32_t batches; /* batched calls that were accepted */
};

void standin_counts(struct standin_counts *ret_counts);

/* Small delays at random from now on; 0: none. */
void standin_seed(uint64_t seed);

/*
 * Fail a call: the nth one from now on, and all after it if for_ever. name: count calls of this
 * entry point only; NULL: all but cuInit() and those that name errors. What only gives something
 * back does so and fails all the same. Queries that say "not ready" are not counted: how many there
 * are is a matter of time. nth 0: fail nothing.
 */
void standin_fail(const char *name, uint32_t nth, CUresult result, bool for_ever);
/* The entry point that failed last because of it, or NULL. */
const char *standin_failed(void);

/* The calling thread is the test's own: its calls never fail on purpose, need no current context,
 * and its streams have no delays. */
void standin_exempt(bool on);
/* Contexts that the calling thread has pushed, and how many it ever did. */
uint32_t standin_pushed(void);
uint32_t standin_entered(void);

/* cuMemHostAlloc() refuses more than this. A link that cannot be measured is as fast as any must
 * be, so that nothing depends on this machine. */
void standin_pinned_limit(uint64_t bytes);

/* What cuEventElapsedTime() says from now on, where there is one; first 0. */
void standin_elapsed(float ms);

/* Where the CPU sees memory of the GPU. */
void *standin_see(CUdeviceptr at, uint64_t bytes);

/* Later work of the stream waits until the gate is opened, which also frees it. */
struct standin_gate;
struct standin_gate *standin_gate_close(CUstream stream);
void standin_gate_open(struct standin_gate *gate);

/*
 * A GPU has few hardware queues for streams: `count` from now on, up to STANDIN_CHANNELS, 0 for one
 * each. A stream that gets work takes a free one, else shares one until it has none left; in a
 * queue nothing begins before what was asked for earlier. A test's own streams are in none of them.
 * Waits until no stream has work.
 */
#define STANDIN_CHANNELS 32
void standin_channels(uint32_t count);

/* From now on no launch begins, or no copy of registered memory; those that have begun must have
 * ended. */
enum standin_held { STANDIN_NOTHING, STANDIN_LAUNCHES, STANDIN_COPIES };
void standin_hold(enum standin_held what);

/* Until no stream can go on: each has no work, or its first one waits for an event, a value, a gate
 * or the end of a hold. Returns how many have work. */
uint32_t standin_settle(void);

#define STANDIN_CONTROLS(CALL)     \
	CALL(standin_counts)       \
	CALL(standin_seed)         \
	CALL(standin_fail)         \
	CALL(standin_failed)       \
	CALL(standin_exempt)       \
	CALL(standin_pushed)       \
	CALL(standin_entered)      \
	CALL(standin_pinned_limit) \
	CALL(standin_elapsed)      \
	CALL(standin_gate_close)   \
	CALL(standin_gate_open)    \
	CALL(standin_see)          \
	CALL(standin_channels)     \
	CALL(standin_hold)         \
	CALL(standin_settle)

#endif
