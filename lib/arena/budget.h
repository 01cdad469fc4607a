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
/* OKV_E_BUDGET with requested, available and limit, or 0. */
int oki_budget_check(const struct oki_budget *budget, uint64_t requested, struct okv_error *err);

#endif
