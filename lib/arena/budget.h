/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The budget: how much memory the Manager can still take on this host. */
#ifndef OKI_ARENA_BUDGET_H
#define OKI_ARENA_BUDGET_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

struct oki_budget {
	uint64_t available; /* bytes that can be taken now, by the tightest bound */
	uint64_t limit;	    /* bytes that this bound allows in all */
	/* Source of the bound: "host memory", "cgroup", "huge page pool" or "NUMA node". */
	const char *source;
};

/*
 * Read from root + "/proc/meminfo", root + "/sys/fs/cgroup" ...; root is "" outside tests.
 *   host memory     MemAvailable of MemTotal
 *   huge page pool  idle 2 MiB pages less reserved ones, instead of host memory
 *   cgroup          v2 and v1, this process's group and all above it: limit less usage; file
 *                   cache that can be dropped (inactive_file) does not count as usage
 */
int oki_budget_read(const char *root, bool huge_pages, struct oki_budget *ret_budget,
		    struct okv_error *err);
/* The budget of one NUMA node: its free memory and page cache, or its idle 2 MiB pages. */
int oki_budget_read_node(const char *root, int32_t node, bool huge_pages,
			 struct oki_budget *ret_budget, struct okv_error *err);

/* What a Manager needs: memory for payload, and control memory. */
struct oki_need {
	uint64_t memory_bytes; /* payload */
	bool huge_pages; /* payload is in huge pages; only control memory is ordinary memory */
	uint32_t sessions;
	uint64_t session_bytes; /* control memory of one session */
};

/*
 * Control memory of a Manager with a full pool and all its sessions:
 *
 *   8 MiB                     heap, stacks, work space and program files; measured: 4 MiB
 *   sessions * session_bytes  a session takes all of it when it connects
 *   memory_bytes / 256        index and allocator; measured: 193 bytes for each block of one rank.
 *                             This is 256 bytes for blocks of 64 KiB, and more for larger ones
 *
 * It does not contain plans, which struct okv_manager_options limits, nor more than a few leases
 * per session; measured: 33 KiB for a lease of 4,000 blocks.
 */
uint64_t oki_need_control(const struct oki_need *need);
/* 0, or OKV_E_BUDGET with the bytes requested, available, the limit, and what would fit. */
int oki_budget_check_need(const struct oki_budget *budget, const struct oki_need *need,
			  struct okv_error *err);
/* 0, or OKV_E_BUDGET with the bytes requested, available and the limit. */
int oki_budget_check(const struct oki_budget *budget, uint64_t requested, struct okv_error *err);

#endif
