/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Shards: sealed memfds for payload, touched on their NUMA node before any engine maps them. */
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
	uint64_t memory_bytes; /* all shards together; rounded up to whole pages */
	uint64_t shard_bytes;  /* 0: memory_bytes / OKW_MAX_SHARDS, at least 64 MiB */
	int32_t numa;	       /* OKV_NUMA_* or the number of a node */
	bool huge_pages;
	uint32_t sessions;	/* sessions whose control memory must fit beside the payload */
	uint64_t session_bytes; /* control memory of one session */
	uint32_t touch_threads; /* 0: one per CPU, at most 16 */
	okv_progress_fn *progress;
	void *progress_arg;
	const struct oki_log *log;
};

/*
 * Check the budget (MemAvailable of the host, limits of cgroup v1 and v2, free huge pages). Then
 * create every shard, bind it to its node, allocate and touch its pages in parallel, and seal it.
 * On failure no shard exists. OKV_E_BUDGET: the text has the bytes requested (control memory too),
 * available, and the limit. OKV_E_INVAL: an impossible size or node. With OKV_NUMA_AUTO a node that
 * cannot be bound to is only logged.
 */
int oki_shards_create(const struct oki_backing_config *config, struct oki_shards *ret_shards,
		      struct okv_error *err);
void oki_shards_destroy(struct oki_shards *shards);

#endif
