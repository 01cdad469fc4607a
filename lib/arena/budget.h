/* SPDX-License-Identifier: Apache-2.0 */
/* [M] How much memory this host can still give. */
#ifndef OKI_ARENA_BUDGET_H
#define OKI_ARENA_BUDGET_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

struct oki_budget {
	uint64_t available; /* what may be taken now */
	uint64_t limit;	    /* the tightest bound found */
	const char *source; /* which: "host memory", "cgroup", "huge page pool", "NUMA node" */
};

/*
 * Read from root + "/proc/meminfo", root + "/sys/fs/cgroup" ...; root is "" outside tests.
 *   host memory     MemAvailable of MemTotal
 *   huge page pool  idle 2 MiB pages less reserved ones, instead of host memory
 *   cgroup          v2 and v1, this process's group and all above it: limit less usage, where
 *                   file cache that can be dropped (inactive_file) does not count as used
 */
int oki_budget_read(const char *root, bool huge_pages, struct oki_budget *ret_budget,
		    struct okv_error *err);
/* What one NUMA node can give: its free memory and page cache, or its idle 2 MiB pages. */
int oki_budget_read_node(const char *root, int32_t node, bool huge_pages,
			 struct oki_budget *ret_budget, struct okv_error *err);

/* What a Manager wants: payload, and what it takes beside it to manage it. */
struct oki_need {
	uint64_t memory_bytes;
	bool huge_pages; /* the payload comes from their pool, so that only the rest counts */
	uint32_t sessions;
	uint64_t session_bytes; /* control memory of one */
};

/*
 * Control memory of a Manager with a full pool and all its sessions:
 *
 *   8 MiB                     heap, stacks, work space and program files; 4 MiB were measured
 *   sessions * session_bytes  all of it is there from the connection on
 *   memory_bytes / 256        index and allocator: 193 bytes for each block of one rank were
 *                             measured; this is 256 for blocks of 64 KiB, and more for larger ones
 *
 * Not in it are the plans being prepared, which struct okv_manager_options limits, and leases
 * beyond a few per session: 33 KiB were measured for one of 4,000 blocks.
 */
uint64_t oki_need_control(const struct oki_need *need);
/* OKV_E_BUDGET with what is requested, available and the limit, and with what would fit; or 0. */
int oki_budget_check_need(const struct oki_budget *budget, const struct oki_need *need,
			  struct okv_error *err);
/* OKV_E_BUDGET with requested, available and limit, or 0. */
int oki_budget_check(const struct oki_budget *budget, uint64_t requested, struct okv_error *err);

#endif
