/* [M] How much memory this host can still give. */
#ifndef OKI_ARENA_BUDGET_H
#define OKI_ARENA_BUDGET_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

struct oki_budget {
	uint64_t available; /* what may be taken now */
	uint64_t limit;	    /* the tightest bound found */
	const char *source; /* which: "host memory", "cgroup", "huge page pool" */
};

/* Read from root + "/proc/meminfo", root + "/sys/fs/cgroup" ...; root is "" outside tests. */
int oki_budget_read(const char *root, bool huge_pages, struct oki_budget *ret_budget,
		    struct okv_error *err);
/* OKV_E_BUDGET with requested, available and limit, or 0. */
int oki_budget_check(const struct oki_budget *budget, uint64_t requested, struct okv_error *err);

#endif
