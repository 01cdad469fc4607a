/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Payload memory: sealed memfd shards, touched on their node before anyone sees them. */
#ifndef OKI_ARENA_BACKING_H
#define OKI_ARENA_BACKING_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/manager.h>
#include "base/log.h"

struct oki_shard {
	int fd; /* owned */
	uint64_t bytes;
	uint64_t inode;
	int32_t node; /* NUMA node it was bound to, -1: none */
	bool huge;
};

struct oki_shards {
	struct oki_shard *shards; /* owned */
	uint32_t count;		  /* 1 to OKW_MAX_SHARDS */
	uint64_t bytes;		  /* sum */
};

struct oki_backing_config {
	uint64_t memory_bytes; /* wanted; rounded up to whole pages per shard */
	uint64_t shard_bytes;  /* 0: chosen so that there are at most OKW_MAX_SHARDS */
	int32_t numa;	       /* OKV_NUMA_* or a node */
	bool huge_pages;
	uint32_t sessions;	/* whose control memory must have room beside the payload */
	uint64_t session_bytes; /* of one */
	uint32_t touch_threads; /* 0: one per CPU, at most 16 */
	okv_progress_fn *progress;
	void *progress_arg;
	const struct oki_log *log;
};

/*
 * Check the budget (host MemAvailable, cgroup v1/v2 limit, free huge pages of the pool really
 * used), then create, bind, allocate, first-touch in parallel and seal every shard. All or
 * nothing. OKV_E_BUDGET names requested, available and limit, with control memory counted;
 * OKV_E_INVAL an impossible node: NUMA auto falls back to nodes that have memory and keeps the
 * total.
 */
int oki_shards_create(const struct oki_backing_config *config, struct oki_shards *ret_shards,
		      struct okv_error *err);
void oki_shards_destroy(struct oki_shards *shards);

#endif
