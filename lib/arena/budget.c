/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The budget: how much memory the Manager can still take on this host. */
#include "arena/budget.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define CONTROL_BYTES (UINT64_C(8) << 20)
#define CONTROL_SHARE 256
#define HUGE_POOL "sys/kernel/mm/hugepages/hugepages-2048kB"

/* The files of one memory-like cgroup controller. */
struct controller {
	const char *name;  /* in /proc/self/cgroup; "" for v2 */
	const char *mount; /* under root */
	const char *limit; /* name of a file, as is usage */
	const char *usage;
	const char *cache; /* key in memory.stat for file cache that can be dropped, or NULL */
};

static const struct controller memory_controllers[] = {
	{"", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"},
	{"", "sys/fs/cgroup", "memory.high", "memory.current", "inactive_file"},
	{"", "sys/fs/cgroup/unified", "memory.max", "memory.current", "inactive_file"},
	{"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
	 "total_inactive_file"},
	{NULL, NULL, NULL, NULL, NULL},
};

static const struct controller huge_controllers[] = {
	{"", "sys/fs/cgroup", "hugetlb.2MB.max", "hugetlb.2MB.current", NULL},
	{"", "sys/fs/cgroup", "hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current", NULL},
	{"hugetlb", "sys/fs/cgroup/hugetlb", "hugetlb.2MB.limit_in_bytes",
	 "hugetlb.2MB.usage_in_bytes", NULL},
	{"hugetlb", "sys/fs/cgroup/hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes",
	 "hugetlb.2MB.rsvd.usage_in_bytes", NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static FILE *open_under(const char *root, const char *dir, const char *file)
{
	char path[PATH_MAX];
	int used = snprintf(path, sizeof(path), "%s/%s/%s", root, dir, file);
	if (used < 0 || (size_t)used >= sizeof(path)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	return fopen(path, "re");
}

/* Read a file with one number. False if it has none ("max"). */
static bool read_number(const char *root, const char *dir, const char *file, uint64_t *ret_value)
{
	FILE *f = open_under(root, dir, file);
	if (!f)
		return false;
	bool found = fscanf(f, "%" SCNu64, ret_value) == 1;
	fclose(f);
	return found;
}

/* The number after a key, in lines "key value", "key: value kB" or "Node 0 key: value kB". */
static bool find_number(FILE *f, const char *key, uint64_t *ret_value)
{
	char line[256];
	size_t length = strlen(key);
	rewind(f);
	while (fgets(line, sizeof(line), f)) {
		const char *at = line;
		int skip = 0;
		if (sscanf(line, "Node %*d %n", &skip) == 0 && skip > 0)
			at += skip;
		if (strncmp(at, key, length) != 0)
			continue;
		at += length;
		if (*at == ':')
			at++;
		else if (*at != ' ')
			continue;
		return sscanf(at, "%" SCNu64, ret_value) == 1;
	}
	return false;
}

static bool find_kib(FILE *f, const char *key, uint64_t *ret_bytes)
{
	uint64_t kib;
	return find_number(f, key, &kib) && oki_mul(kib, 1024, ret_bytes);
}

static void tighten(struct oki_budget *budget, uint64_t available, uint64_t limit,
		    const char *source)
{
	if (budget->source && budget->available <= available)
		return;
	*budget = (struct oki_budget){available, limit, source};
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static int unreadable(const char *root, const char *dir, const char *file, struct okv_error *err)
{
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_NONE,
			"%s/%s/%s does not say how much memory there is", root, dir, file);
}

static int read_host(const char *root, struct oki_budget *budget, struct okv_error *err)
{
	FILE *f = open_under(root, "proc", "meminfo");
	if (!f)
		return unreadable(root, "proc", "meminfo", err);
	uint64_t total, available;
	bool found = find_kib(f, "MemTotal", &total) && find_kib(f, "MemAvailable", &available);
	fclose(f);
	if (!found)
		return unreadable(root, "proc", "meminfo", err);
	tighten(budget, available, total, "host memory");
	return 0;
}

/* Used without /sys. /proc/meminfo has only huge pages of the default size, which must be 2 MiB. */
static bool huge_from_meminfo(const char *root, struct oki_budget *budget)
{
	FILE *f = open_under(root, "proc", "meminfo");
	if (!f)
		return false;
	uint64_t size, total, idle, reserved;
	bool found = find_kib(f, "Hugepagesize", &size) && size == HUGE_PAGE_BYTES &&
		     find_number(f, "HugePages_Total", &total) &&
		     find_number(f, "HugePages_Free", &idle) &&
		     find_number(f, "HugePages_Rsvd", &reserved);
	fclose(f);
	if (found)
		tighten(budget, minus(idle, reserved) * size, total * size, "huge page pool");
	return found;
}

static int read_huge(const char *root, struct oki_budget *budget, struct okv_error *err)
{
	uint64_t total, idle, reserved;
	if (read_number(root, HUGE_POOL, "nr_hugepages", &total) &&
	    read_number(root, HUGE_POOL, "free_hugepages", &idle) &&
	    read_number(root, HUGE_POOL, "resv_hugepages", &reserved)) {
		tighten(budget, minus(idle, reserved) * HUGE_PAGE_BYTES, total * HUGE_PAGE_BYTES,
			"huge page pool");
		return 0;
	}
	if (huge_from_meminfo(root, budget))
		return 0;
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_NONE, "no pool of 2 MiB huge pages");
}

static void read_group(const char *root, const char *dir, const struct controller *controller,
		       struct oki_budget *budget)
{
	uint64_t limit, usage;
	if (!read_number(root, dir, controller->limit, &limit) ||
	    !read_number(root, dir, controller->usage, &usage))
		return;
	uint64_t cache = 0;
	FILE *f = controller->cache ? open_under(root, dir, "memory.stat") : NULL;
	if (f) {
		if (!find_number(f, controller->cache, &cache))
			cache = 0;
		fclose(f);
	}
	tighten(budget, minus(limit, minus(usage, cache)), limit, "cgroup");
}

/* Read every group from this process's up to the root. Skip one that is not mounted (container). */
static void walk_up(const char *root, const struct controller *controller, char *group,
		    struct oki_budget *budget)
{
	char dir[PATH_MAX];
	for (;;) {
		int used = snprintf(dir, sizeof(dir), "%s%s", controller->mount, group);
		if (used > 0 && (size_t)used < sizeof(dir))
			read_group(root, dir, controller, budget);
		char *slash = strrchr(group, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

static bool lists(const char *names, const char *name)
{
	size_t length = strlen(name);
	if (length == 0)
		return *names == '\0';
	for (const char *at = names; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
			return true;
	}
	return false;
}

/* Lines are "hierarchy:controllers:path"; v2 has no controllers. */
static void read_cgroups(const char *root, const struct controller *controllers,
			 struct oki_budget *budget)
{
	FILE *f = open_under(root, "proc", "self/cgroup");
	if (!f)
		return;
	char line[PATH_MAX + 128];
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		char *names = strchr(line, ':');
		char *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		names++;
		for (const struct controller *c = controllers; c->name; c++) {
			char group[PATH_MAX];
			if (!lists(names, c->name))
				continue;
			snprintf(group, sizeof(group), "%.*s", PATH_MAX - 1, path);
			walk_up(root, c, group, budget);
		}
	}
	fclose(f);
}

int oki_budget_read(const char *root, bool huge_pages, struct oki_budget *ret_budget,
		    struct okv_error *err)
{
	struct oki_budget budget = {0};
	int rc = huge_pages ? read_huge(root, &budget, err) : read_host(root, &budget, err);
	if (rc < 0)
		return rc;
	read_cgroups(root, huge_pages ? huge_controllers : memory_controllers, &budget);
	*ret_budget = budget;
	return 0;
}

static bool node_memory(const char *root, const char *dir, struct oki_budget *budget)
{
	FILE *f = open_under(root, dir, "meminfo");
	if (!f)
		return false;
	uint64_t total, idle, active = 0, inactive = 0;
	bool found = find_kib(f, "MemTotal", &total) && find_kib(f, "MemFree", &idle);
	if (found && find_kib(f, "Active(file)", &active))
		(void)find_kib(f, "Inactive(file)", &inactive);
	fclose(f);
	if (found)
		tighten(budget, idle + active + inactive, total, "NUMA node");
	return found;
}

static bool node_huge(const char *root, const char *dir, struct oki_budget *budget)
{
	char pool[128];
	uint64_t total, idle;
	snprintf(pool, sizeof(pool), "%s/hugepages/hugepages-2048kB", dir);
	if (!read_number(root, pool, "nr_hugepages", &total) ||
	    !read_number(root, pool, "free_hugepages", &idle))
		return false;
	tighten(budget, idle * HUGE_PAGE_BYTES, total * HUGE_PAGE_BYTES, "NUMA node");
	return true;
}

int oki_budget_read_node(const char *root, int32_t node, bool huge_pages,
			 struct oki_budget *ret_budget, struct okv_error *err)
{
	char dir[64];
	struct oki_budget budget = {0};
	snprintf(dir, sizeof(dir), "sys/devices/system/node/node%d", node);
	bool found = huge_pages ? node_huge(root, dir, &budget) : node_memory(root, dir, &budget);
	if (!found)
		return unreadable(root, dir, huge_pages ? "hugepages" : "meminfo", err);
	*ret_budget = budget;
	return 0;
}

struct size_text {
	char text[24];
};

enum rounding { DOWN, UP };

/* What is needed is rounded up and what is there down, so that they never look as if it fitted. */
static struct size_text size_text(uint64_t bytes, enum rounding rounding)
{
	static const char units[] = "KMGTPE";
	struct size_text made;
	if (bytes < 1024) {
		snprintf(made.text, sizeof(made.text), "%" PRIu64 " bytes", bytes);
		return made;
	}
	uint32_t shift = (uint32_t)(63 - __builtin_clzll(bytes)) / 10 * 10;
	uint64_t rest = bytes & ((UINT64_C(1) << shift) - 1), whole = bytes >> shift;
	/* Of the rest 10 bits are enough, but for whether there are any more. */
	uint64_t part = rest >> (shift - 10);
	if (rounding == UP && part << (shift - 10) != rest)
		part++;
	uint64_t tenths = (part * 10 + (rounding == UP ? 1023 : 0)) / 1024;
	whole += tenths / 10;
	snprintf(made.text, sizeof(made.text), "%" PRIu64 ".%" PRIu64 " %ciB", whole, tenths % 10,
		 units[shift / 10 - 1]);
	return made;
}

int oki_budget_check(const struct oki_budget *budget, uint64_t requested, struct okv_error *err)
{
	if (requested <= budget->available)
		return 0;
	return oki_fail(err, OKV_E_BUDGET, OKV_STAGE_ARGUMENTS,
			"%s: requested %s, available %s, limit %s", budget->source,
			size_text(requested, UP).text, size_text(budget->available, DOWN).text,
			size_text(budget->limit, DOWN).text);
}

uint64_t oki_need_control(const struct oki_need *need)
{
	return CONTROL_BYTES + need->sessions * need->session_bytes +
	       need->memory_bytes / CONTROL_SHARE;
}

/* The largest payload that fits together with its control memory. */
static uint64_t fitting_memory(const struct oki_budget *budget, const struct oki_need *need)
{
	const struct oki_need bare = {.sessions = need->sessions,
				      .session_bytes = need->session_bytes};
	uint64_t room = minus(budget->available, oki_need_control(&bare));
	if (need->huge_pages)
		return room > UINT64_MAX / CONTROL_SHARE ? UINT64_MAX : room * CONTROL_SHARE;
	return room - room / (CONTROL_SHARE + 1);
}

/* How many sessions fit beside this payload. */
static uint64_t fitting_sessions(const struct oki_budget *budget, const struct oki_need *need)
{
	const struct oki_need bare = {.memory_bytes = need->memory_bytes};
	uint64_t room = minus(budget->available, need->huge_pages ? 0 : need->memory_bytes);
	uint64_t each = need->session_bytes ? need->session_bytes : 1;
	uint64_t count = minus(room, oki_need_control(&bare)) / each;
	return count < need->sessions ? count : need->sessions;
}

int oki_budget_check_need(const struct oki_budget *budget, const struct oki_need *need,
			  struct okv_error *err)
{
	uint64_t payload = need->huge_pages ? 0 : need->memory_bytes;
	uint64_t control = oki_need_control(need);
	if (payload <= budget->available && control <= budget->available - payload)
		return 0;
	uint64_t sessions = fitting_sessions(budget, need);
	return oki_fail(err, OKV_E_BUDGET, OKV_STAGE_ARGUMENTS,
			"%s: requested %s and %s of control memory for %u session%s, available %s, "
			"limit %s; would fit: %" PRIu64 " bytes, or %" PRIu64 " session%s",
			budget->source, size_text(need->memory_bytes, UP).text,
			size_text(control, UP).text, need->sessions, oki_plural(need->sessions),
			size_text(budget->available, DOWN).text,
			size_text(budget->limit, DOWN).text, fitting_memory(budget, need), sessions,
			oki_plural(sessions));
}
