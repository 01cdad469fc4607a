/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Importing arenas: what is proven before a byte is mapped. */
#include "arena/import.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "arena/backing.h"
#include "support/suite.h"

#define BYTES (UINT64_C(4) << 20)

static struct oki_shards shards;

static void setup(void)
{
	struct oki_backing_config config = {
		.memory_bytes = BYTES,
		.numa = OKV_NUMA_OFF,
	};
	ck_assert_int_eq(oki_shards_create(&config, &shards, NULL), 0);
	ck_assert_uint_eq(shards.count, 1);
}

static void teardown(void)
{
	oki_shards_destroy(&shards);
}

static void refused(int fd, uint64_t bytes, uint64_t inode, int status)
{
	struct oki_arena arena = {.id = 99};
	struct okv_error err;
	ck_assert_int_eq(oki_arena_import(fd, 1, bytes, inode, false, &arena, &err), status);
	ck_assert_int_eq(err.stage, OKV_STAGE_IMPORT);
	ck_assert_uint_eq(arena.id, 99);
	ck_assert_ptr_null(arena.shm.base);
}

START_TEST(a_shard_is_imported_and_shared)
{
	const struct oki_shard *shard = &shards.shards[0];
	struct oki_arena rw, ro;
	ck_assert_int_eq(oki_arena_import(shard->fd, 7, BYTES, shard->inode, false, &rw, NULL), 0);
	ck_assert_int_eq(oki_arena_import(shard->fd, 8, BYTES, shard->inode, true, &ro, NULL), 0);
	ck_assert_uint_eq(rw.id, 7);
	ck_assert(!rw.read_only);
	ck_assert(ro.read_only);
	ck_assert_uint_eq(rw.shm.bytes, BYTES);
	for (uint64_t i = 0; i < BYTES; i += 512)
		ck_assert_uint_eq(rw.shm.base[i], 0);
	rw.shm.base[BYTES - 1] = 0x77;
	ck_assert_uint_eq(ro.shm.base[BYTES - 1], 0x77);
	oki_arena_release(&rw);
	ck_assert_ptr_null(rw.shm.base);
	oki_arena_release(&rw);
	ck_assert_uint_eq(ro.shm.base[BYTES - 1], 0x77);
	oki_arena_release(&ro);
	oki_arena_release(NULL);
}
END_TEST

START_TEST(the_mapping_outlives_the_manager)
{
	struct oki_arena arena;
	ck_assert_int_eq(oki_arena_import(shards.shards[0].fd, 1, BYTES, shards.shards[0].inode,
					  false, &arena, NULL),
			 0);
	oki_shards_destroy(&shards);
	memset(arena.shm.base, 0x11, BYTES);
	ck_assert_uint_eq(arena.shm.base[BYTES / 2], 0x11);
	oki_arena_release(&arena);
}
END_TEST

START_TEST(wrong_numbers_are_refused)
{
	const struct oki_shard *shard = &shards.shards[0];
	refused(shard->fd, BYTES - 1, shard->inode, OKV_E_PROTOCOL);
	refused(shard->fd, BYTES * 2, shard->inode, OKV_E_PROTOCOL);
	refused(shard->fd, 0, shard->inode, OKV_E_PROTOCOL);
	refused(shard->fd, BYTES, shard->inode + 1, OKV_E_PROTOCOL);
	refused(shard->fd, BYTES, 0, OKV_E_PROTOCOL);
	refused(-1, BYTES, shard->inode, OKV_E_INVAL);
}
END_TEST

START_TEST(files_that_could_shrink_are_refused)
{
	int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)BYTES), 0);
	struct stat st;
	ck_assert_int_eq(fstat(fd, &st), 0);
	refused(fd, BYTES, st.st_ino, OKV_E_PROTOCOL);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
	refused(fd, BYTES, st.st_ino, OKV_E_PROTOCOL);
	close(fd);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("import");
	TCase *tc = tcase_create("import");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_shard_is_imported_and_shared);
	tcase_add_test(tc, the_mapping_outlives_the_manager);
	tcase_add_test(tc, wrong_numbers_are_refused);
	tcase_add_test(tc, files_that_could_shrink_are_refused);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
