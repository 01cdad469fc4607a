/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one engine. The Manager's are in manager.h. */
#ifndef ORBITKV_STATS_H
#define ORBITKV_STATS_H

#include <orbitkv/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Counters of one engine since it was opened, and what it has at the moment. */
struct okv_engine_stats {
	uint64_t restores_started;
	uint64_t restores_ok;
	uint64_t restores_failed;
	uint64_t publishes_started;
	uint64_t publishes_ok;
	uint64_t publishes_failed;
	uint64_t restored_bytes;
	uint64_t published_bytes;
	uint64_t lookups;
	uint64_t leases;      /* handles not released yet, of OKV_MAX_LEASES */
	uint64_t ops_running; /* not drained */
	uint64_t bindings;
	uint64_t arenas_mapped;
	uint64_t arena_bytes;
	uint64_t wakeups; /* times a library thread of this engine woke from sleep */
};

/**
 * Each counter is right by itself; no moment has all of them.
 * Errors   OKV_E_INVAL for NULL, OKV_E_FORKED.   Blocks never for the Manager.   Threads any.
 */
OKV_EXPORT int okv_stats_get(struct okv_engine *engine, struct okv_engine_stats *ret_stats);

#ifdef __cplusplus
}
#endif
#endif
