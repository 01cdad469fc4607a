/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Memory budgets read from a made-up /proc and /sys. */
#include "arena/budget.h"
#include "support/suite.h"

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)

#define MEMINFO                                                                                   \
	"MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB\n" \
	"HugePages_Total:    100\nHugePages_Free:      60\nHugePages_Rsvd:      10\n"
#define POOL "sys/kernel/mm/hugepages/hugepages-2048kB/"

static char root[64];

static void make_root(void)
{
	snprintf(root, sizeof(root), "/tmp/orbitkv-budget-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(root));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void remove_root(void)
{
	nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(path, 0700);
		*at = '/';
	}
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

static void expect(bool huge, uint64_t available, uint64_t limit, const char *source)
{
	struct oki_budget budget;
	struct okv_error err;
	ck_assert_int_eq(oki_budget_read(root, huge, &budget, &err), 0);
	ck_assert_uint_eq(budget.available, available);
	ck_assert_uint_eq(budget.limit, limit);
	ck_assert_str_eq(budget.source, source);
}

START_TEST(host_memory_alone)
{
	put("proc/meminfo", MEMINFO);
	expect(false, 32 * GIB, 64 * GIB, "host memory");
}
END_TEST

START_TEST(no_meminfo_is_an_error)
{
	struct oki_budget budget = {7, 7, "x"};
	struct okv_error err;
	ck_assert_int_eq(oki_budget_read(root, false, &budget, &err), OKV_E_UNSUPPORTED);
	ck_assert_int_eq(oki_budget_read(root, true, &budget, &err), OKV_E_UNSUPPORTED);
	put("proc/meminfo", "MemTotal: 5 kB\nMemAvailable: none\n");
	ck_assert_int_eq(oki_budget_read(root, false, &budget, &err), OKV_E_UNSUPPORTED);
	ck_assert_uint_eq(budget.available, 7);
}
END_TEST

START_TEST(v2_group_counts_droppable_cache_as_free)
{
	put("proc/meminfo", MEMINFO);
	put("proc/self/cgroup", "0::/pod/box\n");
	put("sys/fs/cgroup/pod/box/memory.max", "8589934592\n");
	put("sys/fs/cgroup/pod/box/memory.current", "6442450944\n");
	put("sys/fs/cgroup/pod/box/memory.stat",
	    "anon 4\nactive_file 77\ninactive_file 1073741824\n");
	expect(false, 3 * GIB, 8 * GIB, "cgroup");
	/* without memory.stat nothing is known to be droppable */
	put("sys/fs/cgroup/pod/box/memory.stat", "anon 4\n");
	expect(false, 2 * GIB, 8 * GIB, "cgroup");
}
END_TEST

START_TEST(v2_unlimited_group_under_a_limited_parent)
{
	put("proc/meminfo", MEMINFO);
	put("proc/self/cgroup", "0::/pod/box\n");
	put("sys/fs/cgroup/pod/box/memory.max", "max\n");
	put("sys/fs/cgroup/pod/box/memory.current", "1073741824\n");
	expect(false, 32 * GIB, 64 * GIB, "host memory");
	put("sys/fs/cgroup/pod/memory.max", "4294967296\n");
	put("sys/fs/cgroup/pod/memory.current", "1073741824\n");
	expect(false, 3 * GIB, 4 * GIB, "cgroup");
	put("sys/fs/cgroup/pod/box/memory.high", "2147483648\n");
	expect(false, 1 * GIB, 2 * GIB, "cgroup");
}
END_TEST

START_TEST(v2_path_of_another_namespace_reads_the_mounted_root)
{
	put("proc/meminfo", MEMINFO);
	put("proc/self/cgroup", "0::/not/mounted/here\n");
	put("sys/fs/cgroup/memory.max", "1073741824\n");
	put("sys/fs/cgroup/memory.current", "0\n");
	expect(false, 1 * GIB, 1 * GIB, "cgroup");
}
END_TEST

START_TEST(v1_group)
{
	put("proc/meminfo", MEMINFO);
	put("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/a/b\n1:name=memory:/c\n");
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
	put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
	put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1\n");
	expect(false, 32 * GIB, 64 * GIB, "host memory");
	put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "2147483648\n");
	put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "2147483648\n");
	expect(false, 0, 2 * GIB, "cgroup");
	put("sys/fs/cgroup/memory/a/b/memory.stat",
	    "inactive_file 1\ntotal_inactive_file 536870912\n");
	expect(false, 512 * MIB, 2 * GIB, "cgroup");
}
END_TEST

START_TEST(usage_above_the_limit_leaves_nothing)
{
	put("proc/meminfo", MEMINFO);
	put("proc/self/cgroup", "0::/a\n");
	put("sys/fs/cgroup/a/memory.max", "1000\n");
	put("sys/fs/cgroup/a/memory.current", "2000\n");
	expect(false, 0, 1000, "cgroup");
}
END_TEST

START_TEST(huge_pages_come_from_their_own_pool)
{
	/* idle pages count as available though the host has no other memory left */
	put("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 0 kB\nHugepagesize: 2048 kB\n"
			    "HugePages_Total: 100\nHugePages_Free: 60\nHugePages_Rsvd: 10\n");
	expect(true, 100 * MIB, 200 * MIB, "huge page pool");
	put("proc/self/cgroup", "0::/a\n");
	put("sys/fs/cgroup/a/memory.max", "1000\n");
	put("sys/fs/cgroup/a/memory.current", "0\n");
	expect(true, 100 * MIB, 200 * MIB, "huge page pool");
	put("sys/fs/cgroup/a/hugetlb.2MB.max", "41943040\n");
	put("sys/fs/cgroup/a/hugetlb.2MB.current", "2097152\n");
	expect(true, 38 * MIB, 40 * MIB, "cgroup");
}
END_TEST

START_TEST(the_pool_of_2_mib_pages_is_meant)
{
	/* the default size is 1 GiB: what meminfo counts is another pool */
	put("proc/meminfo", "Hugepagesize: 1048576 kB\nHugePages_Total: 4\n"
			    "HugePages_Free: 4\nHugePages_Rsvd: 0\n");
	struct oki_budget budget;
	ck_assert_int_eq(oki_budget_read(root, true, &budget, NULL), OKV_E_UNSUPPORTED);
	put(POOL "nr_hugepages", "8\n");
	put(POOL "free_hugepages", "7\n");
	put(POOL "resv_hugepages", "2\n");
	expect(true, 10 * MIB, 16 * MIB, "huge page pool");
	put(POOL "resv_hugepages", "9\n");
	expect(true, 0, 16 * MIB, "huge page pool");
}
END_TEST

START_TEST(node_memory)
{
	struct oki_budget budget;
	struct okv_error err;
	ck_assert_int_eq(oki_budget_read_node(root, 3, false, &budget, &err), OKV_E_UNSUPPORTED);
	put("sys/devices/system/node/node3/meminfo",
	    "Node 3 MemTotal:       1000 kB\nNode 3 MemFree:        100 kB\n"
	    "Node 3 Active:         9999 kB\nNode 3 Active(file):     20 kB\n"
	    "Node 3 Inactive(file):    3 kB\n");
	ck_assert_int_eq(oki_budget_read_node(root, 3, false, &budget, &err), 0);
	ck_assert_uint_eq(budget.available, 123 * KIB);
	ck_assert_uint_eq(budget.limit, 1000 * KIB);
	put("sys/devices/system/node/node3/hugepages/hugepages-2048kB/nr_hugepages", "4\n");
	put("sys/devices/system/node/node3/hugepages/hugepages-2048kB/free_hugepages", "3\n");
	ck_assert_int_eq(oki_budget_read_node(root, 3, true, &budget, &err), 0);
	ck_assert_uint_eq(budget.available, 6 * MIB);
	ck_assert_uint_eq(budget.limit, 8 * MIB);
}
END_TEST

START_TEST(check_names_all_three_numbers)
{
	struct oki_budget budget = {1000, 5000, "host memory"};
	struct okv_error err = {.status = 55};
	ck_assert_int_eq(oki_budget_check(&budget, 1000, &err), 0);
	ck_assert_int_eq(err.status, 55);
	ck_assert_int_eq(oki_budget_check(&budget, 1001, &err), OKV_E_BUDGET);
	ck_assert_ptr_nonnull(strstr(err.text, "requested 1001 bytes"));
	ck_assert_ptr_nonnull(strstr(err.text, "available 1000 bytes"));
	ck_assert_ptr_nonnull(strstr(err.text, "limit 4.8 KiB"));
	ck_assert_ptr_nonnull(strstr(err.text, "host memory"));
	ck_assert_int_eq(oki_budget_check(&budget, 1001, NULL), OKV_E_BUDGET);
}
END_TEST

/* However little is missing, what was asked for is told as more than what there is. */
START_TEST(sizes_are_told_with_units)
{
	static const struct {
		uint64_t available;
		const char *asked, *there;
	} sizes[] = {
		{1023, "requested 1.0 KiB,", "available 1023 bytes,"},
		{1024, "requested 1.1 KiB,", "available 1.0 KiB,"},
		{MIB - 1, "requested 1.0 MiB,", "available 1023.9 KiB,"},
		{MIB, "requested 1.1 MiB,", "available 1.0 MiB,"},
		{3 * 512 * MIB, "requested 1.6 GiB,", "available 1.5 GiB,"},
		{(1ull << 46) - 2, "requested 64.0 TiB,", "available 63.9 TiB,"},
		{UINT64_MAX - 1, "requested 16.0 EiB,", "available 15.9 EiB,"},
	};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct oki_budget budget = {sizes[i].available, UINT64_MAX, "host memory"};
		struct okv_error err;
		ck_assert_int_eq(oki_budget_check(&budget, budget.available + 1, &err),
				 OKV_E_BUDGET);
		ck_assert_msg(strstr(err.text, sizes[i].asked) && strstr(err.text, sizes[i].there),
			      "%s", err.text);
	}
}
END_TEST

/* 8 MiB of its own, 100 bytes each for 3 sessions and a 256th of the payload. */
START_TEST(control_memory_counts_beside_the_payload)
{
	struct oki_need need = {.memory_bytes = 64 * MIB, .sessions = 3, .session_bytes = 100};
	const uint64_t control = 8 * MIB + 300 + 64 * MIB / 256;
	struct oki_budget budget = {64 * MIB + control, 99 * MIB, "cgroup"};
	struct okv_error err;
	ck_assert_uint_eq(oki_need_control(&need), control);
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), 0);
	budget.available--;
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
	ck_assert_str_eq(err.text,
			 "cgroup: requested 64.0 MiB and 8.3 MiB of control memory for 3 sessions, "
			 "available 72.2 MiB, limit 99.0 MiB; would fit: 67108864 bytes, or 2 "
			 "sessions");
	need.huge_pages = true;
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), 0);
	budget.available = control - 1;
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
	budget.available = 0;
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
	ck_assert_ptr_nonnull(strstr(err.text, "would fit: 0 bytes, or 0 sessions"));
	need.sessions = 1;
	ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
	ck_assert_ptr_nonnull(strstr(err.text, "for 1 session, "));
}
END_TEST

/* What is said to fit does, and a page more does not. */
START_TEST(what_would_fit_fits)
{
	for (uint64_t available = 8 * MIB; available < 80 * MIB; available += 777777) {
		struct oki_need need = {.memory_bytes = 1ull << 40, .sessions = 1};
		const struct oki_budget budget = {available, 99 * MIB, "cgroup"};
		struct okv_error err;
		unsigned long long fits;
		ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
		const char *said = strstr(err.text, "would fit: ");
		ck_assert_ptr_nonnull(said);
		ck_assert_int_eq(sscanf(said, "would fit: %llu", &fits), 1);
		need.memory_bytes = fits;
		ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), 0);
		need.memory_bytes = fits + 4096;
		ck_assert_int_eq(oki_budget_check_need(&budget, &need, &err), OKV_E_BUDGET);
	}
}
END_TEST

START_TEST(this_host_can_be_read)
{
	struct oki_budget budget;
	ck_assert_int_eq(oki_budget_read("", false, &budget, NULL), 0);
	ck_assert_uint_gt(budget.limit, 0);
	ck_assert_uint_le(budget.available, budget.limit);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("budget");
	TCase *tc = tcase_create("budget");
	tcase_add_checked_fixture(tc, make_root, remove_root);
	tcase_add_test(tc, host_memory_alone);
	tcase_add_test(tc, no_meminfo_is_an_error);
	tcase_add_test(tc, v2_group_counts_droppable_cache_as_free);
	tcase_add_test(tc, v2_unlimited_group_under_a_limited_parent);
	tcase_add_test(tc, v2_path_of_another_namespace_reads_the_mounted_root);
	tcase_add_test(tc, v1_group);
	tcase_add_test(tc, usage_above_the_limit_leaves_nothing);
	tcase_add_test(tc, huge_pages_come_from_their_own_pool);
	tcase_add_test(tc, the_pool_of_2_mib_pages_is_meant);
	tcase_add_test(tc, node_memory);
	tcase_add_test(tc, check_names_all_three_numbers);
	tcase_add_test(tc, sizes_are_told_with_units);
	tcase_add_test(tc, control_memory_counts_beside_the_payload);
	tcase_add_test(tc, what_would_fit_fits);
	tcase_add_test(tc, this_host_can_be_read);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
