/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of one engine. The Manager's are in manager.h. */
#ifndef ORBITKV_STATS_H
#define ORBITKV_STATS_H

#include <orbitkv/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Counters of one engine. */
struct okv_engine_stats {
	/* Counts since the engine was opened: */
	uint64_t restores_started;
	uint64_t restores_ok;
	uint64_t restores_failed;
	uint64_t publishes_started;
	uint64_t publishes_ok;
	uint64_t publishes_failed;
	uint64_t restored_bytes;
	uint64_t published_bytes;
	uint64_t lookups;
	/* What the engine has now: */
	uint64_t leases;      /* handles that are not released; at most OKV_MAX_LEASES */
	uint64_t ops_running; /* restores and publishes that are not drained */
	uint64_t bindings;
	uint64_t arenas_mapped;
	uint64_t arena_bytes; /* of the mapped arenas */
	/* A count since the engine was opened: */
	uint64_t wakeups; /* times that a library thread of this engine woke from sleep */
};

/**
 * Read the counters. Each is correct by itself, but they are not all read at the same moment.
 * Errors   OKV_E_INVAL for NULL, OKV_E_FORKED.
 * Blocks   never for the Manager.   Threads any.
 */
OKV_EXPORT int okv_stats_get(struct okv_engine *engine, struct okv_engine_stats *ret_stats);

#ifdef __cplusplus
}
#endif
#endif
