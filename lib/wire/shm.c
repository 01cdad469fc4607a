/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Shared memory files: created sealed, verified before they are mapped. */
#include "wire/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/fd.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE_BYTES 4096u
#define SHM_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct mapping {
	struct mapping *next;
	dev_t device;
	ino_t inode;
	bool read_only;
	uint32_t users;
	struct oki_shm shm;
};

/* A live mapping keeps its inode in use, so {device, inode} cannot name another file. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *table;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&table_lock);
}

static void after_fork_in_parent(void)
{
	pthread_mutex_unlock(&table_lock);
}

/* None of the mappings is there: MADV_DONTFORK. */
static void after_fork_in_child(void)
{
	while (table) {
		struct mapping *m = table;
		table = m->next;
		free(m);
	}
	pthread_mutex_unlock(&table_lock);
}

/* Before the lock is first taken: a child must find it free. */
static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int oki_shm_memfd(const char *name, unsigned more_flags)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | more_flags;
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	/* Linux before 6.3 does not know MFD_NOEXEC_SEAL. */
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd;
}

int oki_shm_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, SHM_SEALS);
}

bool oki_shm_allocate(void *at, uint64_t bytes)
{
	uintptr_t first = (uintptr_t)at / PAGE_BYTES * PAGE_BYTES;
	int rc;

	do
		rc = madvise((uint8_t *)at - ((uintptr_t)at - first), (uintptr_t)at - first + bytes,
			     MADV_POPULATE_WRITE);
	while (rc < 0 && errno == EINTR);
	return rc == 0 || errno == EINVAL;
}

int oki_shm_create(const char *name, uint64_t bytes, int *ret_fd, struct okv_error *err)
{
	if (bytes == 0 || bytes > INT64_MAX)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"shared memory %s of %" PRIu64 " bytes", name, bytes);
	OKI_FD fd = oki_shm_memfd(name, 0);
	if (fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno, "memfd %s", name);
	if (ftruncate(fd, (off_t)bytes) < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno,
				   "%" PRIu64 " bytes of %s", bytes, name);
	if (oki_shm_seal(fd) < 0)
		return oki_fail_os(err, OKV_E_UNSUPPORTED, OKV_STAGE_NONE, errno, "sealing %s",
				   name);
	*ret_fd = oki_fd_take(&fd);
	return 0;
}

/* Check every property of the file that the sender could have got wrong. */
static int verify(int fd, const struct stat *st, uint64_t expect_bytes, uint64_t expect_inode,
		  bool read_only, struct okv_error *err)
{
	const int stage = OKV_STAGE_IMPORT;
	if (!S_ISREG(st->st_mode))
		return oki_fail(err, OKV_E_PROTOCOL, stage, "shared memory is no regular file");
	if (expect_bytes == 0 || st->st_size <= 0)
		return oki_fail(err, OKV_E_PROTOCOL, stage, "shared memory of zero bytes");
	if ((uint64_t)st->st_size != expect_bytes)
		return oki_fail(err, OKV_E_PROTOCOL, stage,
				"shared memory has %" PRIu64 " bytes, expected %" PRIu64,
				(uint64_t)st->st_size, expect_bytes);
	if (expect_inode != 0 && (uint64_t)st->st_ino != expect_inode)
		return oki_fail(err, OKV_E_PROTOCOL, stage,
				"shared memory is inode %" PRIu64 ", expected %" PRIu64,
				(uint64_t)st->st_ino, expect_inode);
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return oki_fail_os(err, OKV_E_PROTOCOL, stage, errno, "shared memory has no seals");
	if ((seals & SHM_SEALS) != SHM_SEALS)
		return oki_fail(err, OKV_E_PROTOCOL, stage,
				"shared memory has seals %#x, needs %#x", (unsigned)seals,
				(unsigned)SHM_SEALS);
	/* A mapping found in the table skips mmap(), which would have checked the fd's mode. */
	int mode = fcntl(fd, F_GETFL);
	if (mode < 0)
		return oki_fail_os(err, OKV_E_PROTOCOL, stage, errno, "F_GETFL of shared memory");
	mode &= O_ACCMODE;
	if (mode != O_RDWR && !(read_only && mode == O_RDONLY))
		return oki_fail(err, OKV_E_PROTOCOL, stage, "shared memory is not %s",
				read_only ? "readable" : "writable");
	return 0;
}

static struct mapping *find(const struct stat *st, bool read_only)
{
	for (struct mapping *m = table; m; m = m->next)
		if (m->device == st->st_dev && m->inode == st->st_ino && m->read_only == read_only)
			return m;
	return NULL;
}

static int map(int fd, const struct stat *st, bool read_only, struct mapping **ret_mapping,
	       struct okv_error *err)
{
	OKI_FREE struct mapping *m = calloc(1, sizeof(*m));
	if (!m)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_IMPORT, "out of memory");
	int rights = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
	void *base = mmap(NULL, (size_t)st->st_size, rights, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return oki_fail_os(err, errno == ENOMEM ? OKV_E_NOMEM : OKV_E_PROTOCOL,
				   OKV_STAGE_IMPORT, errno, "mapping %" PRIu64 " bytes",
				   (uint64_t)st->st_size);
	/* A child must not use it, and would keep the cache's memory when all others let it go. */
	if (madvise(base, (size_t)st->st_size, MADV_DONTFORK)) {
		int os = errno;
		munmap(base, (size_t)st->st_size);
		return oki_fail_os(err, OKV_E_UNSUPPORTED, OKV_STAGE_IMPORT, os,
				   "madvise of %" PRIu64 " bytes", (uint64_t)st->st_size);
	}
	m->device = st->st_dev;
	m->inode = st->st_ino;
	m->read_only = read_only;
	m->shm.base = base;
	m->shm.bytes = (uint64_t)st->st_size;
	*ret_mapping = m;
	m = NULL;
	return 0;
}

int oki_shm_get(int fd, uint64_t expect_bytes, uint64_t expect_inode, bool read_only,
		struct oki_shm *ret_shm, struct okv_error *err)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return oki_fail_os(err, OKV_E_INVAL, OKV_STAGE_IMPORT, errno,
				   "fstat of shared memory");
	int rc = verify(fd, &st, expect_bytes, expect_inode, read_only, err);
	if (rc < 0)
		return rc;
	pthread_once(&watched, watch_forks);
	pthread_mutex_lock(&table_lock);
	struct mapping *m = find(&st, read_only);
	if (!m) {
		rc = map(fd, &st, read_only, &m, err);
		if (rc < 0)
			goto unlock;
		m->next = table;
		table = m;
	}
	m->users++;
	*ret_shm = m->shm;
unlock:
	pthread_mutex_unlock(&table_lock);
	return rc;
}

void oki_shm_put(struct oki_shm *shm)
{
	if (!shm || !shm->base)
		return;
	pthread_mutex_lock(&table_lock);
	struct mapping **link = &table;
	while (*link && (*link)->shm.base != shm->base)
		link = &(*link)->next;
	struct mapping *m = *link;
	if (!m)
		oki_die("shared memory %p was put without a get", (void *)shm->base);
	if (--m->users == 0) {
		*link = m->next;
		munmap(m->shm.base, m->shm.bytes);
		free(m);
	}
	pthread_mutex_unlock(&table_lock);
	*shm = (struct oki_shm){0};
}
