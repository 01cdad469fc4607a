/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Shared memory files: proof before mapping, one mapping per file and rights. */
#include "wire/shm.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int sealed_file(uint64_t bytes, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int created(uint64_t bytes)
{
	int fd = -1;
	struct okv_error err;
	ck_assert_int_eq(oki_shm_create("test", bytes, &fd, &err), 0);
	return fd;
}

static void refused(int fd, uint64_t bytes, uint64_t inode, bool read_only, int status)
{
	struct oki_shm shm = {(uint8_t *)&shm, 7};
	struct okv_error err;
	ck_assert_int_eq(oki_shm_get(fd, bytes, inode, read_only, &shm, &err), status);
	ck_assert_int_eq(err.status, status);
	ck_assert_int_eq(err.stage, OKV_STAGE_IMPORT);
	ck_assert_uint_gt(strlen(err.text), 0);
	/* outputs are written on success only */
	ck_assert_ptr_eq(shm.base, (uint8_t *)&shm);
	ck_assert_uint_eq(shm.bytes, 7);
	ck_assert_int_eq(oki_shm_get(fd, bytes, inode, read_only, &shm, NULL), status);
}

START_TEST(create_is_sealed_zeroed_and_takes_no_memory_yet)
{
	int fd = created(5000);
	struct stat st;
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_eq(st.st_size, 5000);
	ck_assert_int_eq(st.st_blocks, 0);
	ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & ALL_SEALS, ALL_SEALS);
	ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
	ck_assert_int_eq(ftruncate(fd, 4096), -1);
	ck_assert_int_eq(ftruncate(fd, 8192), -1);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	struct oki_shm shm;
	ck_assert_int_eq(oki_shm_get(fd, 5000, st.st_ino, false, &shm, NULL), 0);
	for (size_t i = 0; i < 5000; i++)
		ck_assert_uint_eq(shm.base[i], 0);
	oki_shm_put(&shm);
	close(fd);
}
END_TEST

START_TEST(allocate_takes_memory_for_the_pages_it_is_asked_for)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int fd = created(8 * page);
	struct oki_shm shm;
	struct stat st;
	ck_assert_int_eq(oki_shm_get(fd, 8 * page, 0, false, &shm, NULL), 0);
	ck_assert(oki_shm_allocate(shm.base + page + 100, page));
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq((uint64_t)st.st_blocks * 512, 2 * page);
	/* Nothing is mapped there. */
	uint8_t *gone = shm.base;
	oki_shm_put(&shm);
	ck_assert(!oki_shm_allocate(gone, page));
	close(fd);
}
END_TEST

START_TEST(create_refuses_impossible_sizes)
{
	int fd = -5;
	struct okv_error err;
	ck_assert_int_eq(oki_shm_create("test", 0, &fd, &err), OKV_E_INVAL);
	ck_assert_int_eq(fd, -5);
	ck_assert_int_eq(oki_shm_create("test", UINT64_MAX, &fd, &err), OKV_E_INVAL);
	ck_assert_int_eq(fd, -5);
}
END_TEST

START_TEST(one_mapping_per_file_and_rights)
{
	int fd = created(8192);
	int again = dup(fd);
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int reopened = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(reopened, 0);
	struct oki_shm a, b, c, ro;
	ck_assert_int_eq(oki_shm_get(fd, 8192, 0, false, &a, NULL), 0);
	ck_assert_int_eq(oki_shm_get(again, 8192, 0, false, &b, NULL), 0);
	ck_assert_int_eq(oki_shm_get(reopened, 8192, 0, false, &c, NULL), 0);
	ck_assert_int_eq(oki_shm_get(fd, 8192, 0, true, &ro, NULL), 0);
	ck_assert_ptr_eq(a.base, b.base);
	ck_assert_ptr_eq(a.base, c.base);
	ck_assert_ptr_ne(a.base, ro.base);
	a.base[8191] = 0x5a;
	ck_assert_uint_eq(ro.base[8191], 0x5a);
	uint8_t *base = a.base;
	oki_shm_put(&a);
	ck_assert_ptr_null(a.base);
	oki_shm_put(&a); /* nothing left to put */
	close(fd);
	close(again);
	close(reopened);
	/* two users are left */
	oki_shm_put(&b);
	ck_assert_uint_eq(c.base[8191], 0x5a);
	oki_shm_put(&c);
	oki_shm_put(&ro);
	ck_assert_int_eq(msync(base, 4096, MS_ASYNC), -1);
	ck_assert_int_eq(errno, ENOMEM);
	oki_shm_put(NULL);
}
END_TEST

START_TEST(different_files_are_different_mappings)
{
	int one = created(4096);
	int two = created(4096);
	struct oki_shm a, b;
	ck_assert_int_eq(oki_shm_get(one, 4096, 0, false, &a, NULL), 0);
	ck_assert_int_eq(oki_shm_get(two, 4096, 0, false, &b, NULL), 0);
	ck_assert_ptr_ne(a.base, b.base);
	oki_shm_put(&a);
	b.base[0] = 1;
	oki_shm_put(&b);
	close(one);
	close(two);
}
END_TEST

START_TEST(wrong_numbers_are_refused)
{
	int fd = created(8192);
	struct stat st;
	ck_assert_int_eq(fstat(fd, &st), 0);
	refused(fd, 8191, 0, false, OKV_E_PROTOCOL);
	refused(fd, 8193, 0, false, OKV_E_PROTOCOL);
	refused(fd, 0, 0, false, OKV_E_PROTOCOL);
	refused(fd, 8192, (uint64_t)st.st_ino + 1, false, OKV_E_PROTOCOL);
	refused(-1, 8192, 0, false, OKV_E_INVAL);
	close(fd);
	fd = sealed_file(0, ALL_SEALS);
	refused(fd, 0, 0, false, OKV_E_PROTOCOL);
	refused(fd, 8192, 0, false, OKV_E_PROTOCOL);
	close(fd);
}
END_TEST

START_TEST(every_missing_seal_is_refused)
{
	static const int missing[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, ALL_SEALS};
	int fd = sealed_file(4096, ALL_SEALS & ~missing[_i]);
	refused(fd, 4096, 0, false, OKV_E_PROTOCOL);
	refused(fd, 4096, 0, true, OKV_E_PROTOCOL);
	close(fd);
}
END_TEST

START_TEST(other_kinds_of_files_are_refused)
{
	char path[] = "/tmp/orbitkv-test-XXXXXX";
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	unlink(path);
	ck_assert_int_eq(ftruncate(fd, 4096), 0);
	refused(fd, 4096, 0, false, OKV_E_PROTOCOL);
	close(fd);
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	refused(ends[0], 4096, 0, false, OKV_E_PROTOCOL);
	close(ends[0]);
	close(ends[1]);
}
END_TEST

START_TEST(descriptor_rights_bound_the_mapping)
{
	int fd = created(4096);
	char path[64];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int reader = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(reader, 0);
	refused(reader, 4096, 0, false, OKV_E_PROTOCOL);
	struct oki_shm rw, ro;
	ck_assert_int_eq(oki_shm_get(fd, 4096, 0, false, &rw, NULL), 0);
	/* a read-only descriptor does not borrow the writable mapping of another */
	refused(reader, 4096, 0, false, OKV_E_PROTOCOL);
	ck_assert_int_eq(oki_shm_get(reader, 4096, 0, true, &ro, NULL), 0);
	rw.base[7] = 9;
	ck_assert_uint_eq(ro.base[7], 9);
	oki_shm_put(&rw);
	oki_shm_put(&ro);
	close(reader);
	close(fd);
}
END_TEST

struct getter {
	int fd;
	atomic_uint *sum;
};

static void *get_and_put(void *arg)
{
	struct getter *g = arg;
	for (int i = 0; i < 500; i++) {
		struct oki_shm shm;
		if (oki_shm_get(g->fd, 4096, 0, i & 1, &shm, NULL) < 0)
			continue;
		atomic_fetch_add(g->sum, shm.base[0]);
		oki_shm_put(&shm);
	}
	return NULL;
}

START_TEST(threads_share_the_table)
{
	int fd = created(4096);
	ck_assert_int_eq(pwrite(fd, "\1", 1, 0), 1);
	atomic_uint sum = 0;
	struct getter g = {fd, &sum};
	pthread_t threads[3];
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, get_and_put, &g), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	ck_assert_uint_eq(atomic_load(&sum), 1500);
	close(fd);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("shm");
	TCase *tc = tcase_create("shm");
	tcase_add_test(tc, create_is_sealed_zeroed_and_takes_no_memory_yet);
	tcase_add_test(tc, allocate_takes_memory_for_the_pages_it_is_asked_for);
	tcase_add_test(tc, create_refuses_impossible_sizes);
	tcase_add_test(tc, one_mapping_per_file_and_rights);
	tcase_add_test(tc, different_files_are_different_mappings);
	tcase_add_test(tc, wrong_numbers_are_refused);
	tcase_add_loop_test(tc, every_missing_seal_is_refused, 0, 4);
	tcase_add_test(tc, other_kinds_of_files_are_refused);
	tcase_add_test(tc, descriptor_rights_bound_the_mapping);
	tcase_add_test(tc, threads_share_the_table);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
