/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Shards: sizes, seals, placement, first touch, and nothing left behind on failure. */
#include "arena/backing.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "arena/budget.h"
#include "arena/place.h"
#include "arena/touch.h"
#include "wire/wire.h"
#include "support/suite.h"

#define MIB (UINT64_C(1) << 20)
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uint32_t open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	ck_assert_ptr_nonnull(dir);
	uint32_t count = 0;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void check_shards(const struct oki_shards *shards, uint64_t total)
{
	uint64_t sum = 0;
	ck_assert_uint_ge(shards->count, 1);
	ck_assert_uint_le(shards->count, OKW_MAX_SHARDS);
	for (uint32_t i = 0; i < shards->count; i++) {
		const struct oki_shard *s = &shards->shards[i];
		struct stat st;
		ck_assert_int_eq(fstat(s->fd, &st), 0);
		ck_assert_uint_eq((uint64_t)st.st_size, s->bytes);
		ck_assert_uint_eq((uint64_t)st.st_ino, s->inode);
		/* touched: every page is there */
		ck_assert_uint_ge((uint64_t)st.st_blocks * 512, s->bytes);
		ck_assert_int_eq(fcntl(s->fd, F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
		ck_assert_int_ne(fcntl(s->fd, F_GETFD) & FD_CLOEXEC, 0);
		sum += s->bytes;
	}
	ck_assert_uint_eq(sum, total);
	ck_assert_uint_eq(shards->bytes, total);
}

static int refused(const struct oki_backing_config *config, struct okv_error *err)
{
	uint32_t before = open_fds();
	struct oki_shards shards = {NULL, 77, 0};
	int rc = oki_shards_create(config, &shards, err);
	ck_assert_int_lt(rc, 0);
	ck_assert_int_eq(err->status, rc);
	ck_assert_uint_eq(shards.count, 77);
	ck_assert_uint_eq(open_fds(), before);
	return rc;
}

START_TEST(small_memory_is_one_shard)
{
	uint32_t before = open_fds();
	struct oki_backing_config config = {.memory_bytes = MIB + 1, .numa = OKV_NUMA_OFF};
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	ck_assert_uint_eq(shards.count, 1);
	ck_assert_int_eq(shards.shards[0].node, -1);
	check_shards(&shards, MIB + (uint64_t)sysconf(_SC_PAGESIZE));
	oki_shards_destroy(&shards);
	ck_assert_uint_eq(open_fds(), before);
	oki_shards_destroy(&shards);
	oki_shards_destroy(NULL);
}
END_TEST

START_TEST(default_shards_are_64_mib)
{
	struct oki_backing_config config = {.memory_bytes = 100 * MIB, .numa = OKV_NUMA_AUTO};
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	ck_assert_uint_eq(shards.count, 2);
	ck_assert_uint_eq(shards.shards[0].bytes, 64 * MIB);
	ck_assert_uint_eq(shards.shards[1].bytes, 36 * MIB);
	check_shards(&shards, 100 * MIB);
	oki_shards_destroy(&shards);
}
END_TEST

START_TEST(chosen_shards_have_the_rest_in_the_last)
{
	struct oki_backing_config config = {
		.memory_bytes = 10 * MIB,
		.shard_bytes = 4 * MIB - 100,
		.numa = OKV_NUMA_OFF,
		.touch_threads = 3,
	};
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	ck_assert_uint_eq(shards.count, 3);
	ck_assert_uint_eq(shards.shards[1].bytes, 4 * MIB);
	ck_assert_uint_eq(shards.shards[2].bytes, 2 * MIB);
	check_shards(&shards, 10 * MIB);
	oki_shards_destroy(&shards);
}
END_TEST

START_TEST(shard_count_has_a_limit)
{
	struct oki_backing_config config = {
		.memory_bytes = OKW_MAX_SHARDS * MIB,
		.shard_bytes = MIB,
		.numa = OKV_NUMA_OFF,
	};
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	check_shards(&shards, OKW_MAX_SHARDS * MIB);
	ck_assert_uint_eq(shards.count, OKW_MAX_SHARDS);
	oki_shards_destroy(&shards);

	struct okv_error err;
	config.memory_bytes++;
	ck_assert_int_eq(refused(&config, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "49 shards"));
	ck_assert_ptr_nonnull(strstr(err.text, "at most 48"));
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
	struct okv_error err;
	struct oki_backing_config config = {.numa = OKV_NUMA_OFF};
	ck_assert_int_eq(refused(&config, &err), OKV_E_INVAL);
	config.memory_bytes = UINT64_MAX;
	ck_assert_int_eq(refused(&config, &err), OKV_E_INVAL);
	config.memory_bytes = MIB;
	config.shard_bytes = UINT64_MAX;
	ck_assert_int_eq(refused(&config, &err), OKV_E_INVAL);
}
END_TEST

START_TEST(more_than_the_host_has_is_a_budget_error)
{
	struct okv_error err;
	struct oki_backing_config config = {
		.memory_bytes = UINT64_C(1) << 50,
		.numa = OKV_NUMA_AUTO,
	};
	ck_assert_int_eq(refused(&config, &err), OKV_E_BUDGET);
	ck_assert_ptr_nonnull(strstr(err.text, "requested 1.0 PiB"));
	ck_assert_ptr_nonnull(strstr(err.text, "available"));
	ck_assert_ptr_nonnull(strstr(err.text, "limit"));
}
END_TEST

START_TEST(huge_pages_or_nothing)
{
	struct oki_backing_config config = {
		.memory_bytes = 3 * MIB,
		.numa = OKV_NUMA_AUTO,
		.huge_pages = true,
	};
	struct okv_error err;
	struct oki_budget budget;
	int has = oki_budget_read("", true, &budget, NULL);
	if (has < 0 || budget.available < 4 * MIB) {
		int rc = refused(&config, &err);
		ck_assert(rc == OKV_E_BUDGET || rc == OKV_E_UNSUPPORTED);
		return;
	}
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	check_shards(&shards, 4 * MIB);
	ck_assert(shards.shards[0].huge);
	oki_shards_destroy(&shards);
}
END_TEST

START_TEST(an_unknown_node_is_refused)
{
	struct oki_nodes nodes;
	struct okv_error err;
	struct oki_backing_config config = {.memory_bytes = MIB, .numa = 1000000};
	oki_nodes_read(&nodes);
	if (nodes.count == 0)
		return;
	ck_assert_int_eq(refused(&config, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "valid: "));
	/* and one that exists is used */
	struct oki_shards shards;
	int32_t picked[OKI_MAX_NODES];
	uint32_t count;
	ck_assert_int_eq(oki_nodes_pick(&nodes, OKV_NUMA_AUTO, picked, &count, NULL), 0);
	config.numa = picked[0];
	ck_assert_int_eq(oki_shards_create(&config, &shards, &err), 0);
	ck_assert_int_eq(shards.shards[0].node, picked[0]);
	check_shards(&shards, MIB);
	oki_shards_destroy(&shards);
}
END_TEST

struct progress {
	pthread_t caller;
	uint64_t last;
	uint64_t total;
	uint32_t calls;
	bool wrong;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct progress *p = arg;
	p->wrong |= !pthread_equal(p->caller, pthread_self()) || done <= p->last || done > total ||
		    (p->calls && total != p->total);
	p->last = done;
	p->total = total;
	p->calls++;
}

START_TEST(progress_rises_to_the_total)
{
	struct progress progress = {.caller = pthread_self()};
	struct oki_backing_config config = {
		.memory_bytes = 70 * MIB,
		.numa = OKV_NUMA_AUTO,
		.touch_threads = 2,
		.progress = on_progress,
		.progress_arg = &progress,
	};
	struct oki_shards shards;
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	ck_assert(!progress.wrong);
	ck_assert_uint_gt(progress.calls, 0);
	ck_assert_uint_eq(progress.last, 70 * MIB);
	ck_assert_uint_eq(progress.total, 70 * MIB);
	oki_shards_destroy(&shards);
}
END_TEST

/* ---- which nodes ---- */

static void expect_nodes(const struct oki_nodes *nodes, int32_t numa, const int32_t *want,
			 uint32_t want_count)
{
	int32_t picked[OKI_MAX_NODES];
	uint32_t count = 0;
	ck_assert_int_eq(oki_nodes_pick(nodes, numa, picked, &count, NULL), 0);
	ck_assert_uint_eq(count, want_count);
	ck_assert_mem_eq(picked, want, want_count * sizeof(*want));
}

START_TEST(auto_takes_every_node_with_memory)
{
	/* six nodes, of which 4 has no memory and 5 no CPUs */
	static const struct oki_nodes nodes = {
		.node = {{0, 8, 1}, {1, 8, 1}, {2, 8, 1}, {3, 8, 1}, {4, 8, 0}, {5, 0, 1}},
		.count = 6,
	};
	expect_nodes(&nodes, OKV_NUMA_AUTO, (const int32_t[]){0, 1, 2, 3}, 4);
	expect_nodes(&nodes, OKV_NUMA_OFF, (const int32_t[]){-1}, 1);
	expect_nodes(&nodes, 3, (const int32_t[]){3}, 1);
	expect_nodes(&nodes, 5, (const int32_t[]){5}, 1);
}
END_TEST

START_TEST(auto_falls_back)
{
	static const struct oki_nodes no_cpus = {.node = {{2, 0, 1}, {7, 0, 1}}, .count = 2};
	static const struct oki_nodes no_memory = {.node = {{0, 4, 0}}, .count = 1};
	static const struct oki_nodes none = {.count = 0};
	expect_nodes(&no_cpus, OKV_NUMA_AUTO, (const int32_t[]){2, 7}, 2);
	expect_nodes(&no_memory, OKV_NUMA_AUTO, (const int32_t[]){-1}, 1);
	expect_nodes(&none, OKV_NUMA_AUTO, (const int32_t[]){-1}, 1);
	expect_nodes(&none, 3, (const int32_t[]){-1}, 1);
}
END_TEST

START_TEST(a_wrong_node_names_the_valid_ones)
{
	static const struct oki_nodes nodes = {
		.node = {{0, 8, 1}, {4, 8, 0}, {6, 8, 1}},
		.count = 3,
	};
	static const int32_t wrong[] = {4, 5, -3};
	int32_t picked[OKI_MAX_NODES];
	uint32_t count = 9;
	struct okv_error err;
	ck_assert_int_eq(oki_nodes_pick(&nodes, wrong[_i], picked, &count, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "valid: 0 6"));
	ck_assert_uint_eq(count, 9);
}
END_TEST

/* ---- touching ---- */

static struct oki_touch_range range_of(uint64_t file_bytes, uint64_t mapped_bytes, int32_t node)
{
	struct oki_touch_range range = {.bytes = mapped_bytes, .page = 4096, .node = node};
	range.fd = memfd_create("touch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(range.fd, 0);
	ck_assert_int_eq(ftruncate(range.fd, (off_t)file_bytes), 0);
	ck_assert_int_eq(fcntl(range.fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	range.base = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, 0);
	ck_assert_ptr_ne(range.base, MAP_FAILED);
	return range;
}

static void drop_range(struct oki_touch_range *range)
{
	munmap(range->base, range->bytes);
	close(range->fd);
}

START_TEST(touch_covers_all_nodes_with_any_number_of_threads)
{
	struct oki_touch_range ranges[5];
	for (int32_t i = 0; i < 5; i++)
		ranges[i] = range_of((33 - 8 * (uint64_t)i) * MIB / 2 + 4096,
				     (33 - 8 * (uint64_t)i) * MIB / 2 + 4096, i % 2 ? -1 : 0);
	ck_assert_int_eq(oki_touch(ranges, 5, (uint32_t)_i, NULL, NULL, NULL), 0);
	for (uint32_t i = 0; i < 5; i++) {
		struct stat st;
		ck_assert_int_eq(fstat(ranges[i].fd, &st), 0);
		ck_assert_uint_eq((uint64_t)st.st_blocks * 512, ranges[i].bytes);
		drop_range(&ranges[i]);
	}
}
END_TEST

START_TEST(touch_reports_a_shard_without_memory)
{
	/* the mapping is longer than its file: the same fault as memory that cannot be had */
	struct oki_touch_range ranges[2] = {
		range_of(MIB, MIB, -1),
		range_of(MIB, 3 * MIB, -1),
	};
	struct okv_error err;
	ck_assert_int_eq(oki_touch(ranges, 2, 2, NULL, NULL, &err), OKV_E_NOMEM);
	ck_assert_ptr_nonnull(strstr(err.text, "shard 1"));
	ck_assert_int_ne(err.os_error, 0);
	drop_range(&ranges[0]);
	drop_range(&ranges[1]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("backing");
	TCase *tc = tcase_create("backing");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, small_memory_is_one_shard);
	tcase_add_test(tc, default_shards_are_64_mib);
	tcase_add_test(tc, chosen_shards_have_the_rest_in_the_last);
	tcase_add_test(tc, shard_count_has_a_limit);
	tcase_add_test(tc, impossible_sizes_are_refused);
	tcase_add_test(tc, more_than_the_host_has_is_a_budget_error);
	tcase_add_test(tc, huge_pages_or_nothing);
	tcase_add_test(tc, an_unknown_node_is_refused);
	tcase_add_test(tc, progress_rises_to_the_total);
	tcase_add_test(tc, auto_takes_every_node_with_memory);
	tcase_add_test(tc, auto_falls_back);
	tcase_add_loop_test(tc, a_wrong_node_names_the_valid_ones, 0, 3);
	tcase_add_loop_test(tc, touch_covers_all_nodes_with_any_number_of_threads, 0, 5);
	tcase_add_test(tc, touch_reports_a_shard_without_memory);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
