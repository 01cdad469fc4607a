/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded before libc: one call of the library or of the Manager fails, as FAILING_CALL says.
 *   NAME:N:once|on:FILE[:lib]  the Nth call of NAME, and with `on` all after it; FILE is made when
 *                              it happens; lib: calls of the library alone, not the program's
 * Nobody else's calls count: what is asked is how our code takes it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANGES 8

static struct {
	char name[32];
	char file[128];
	unsigned long nth; /* 0: nothing fails */
	bool on, library_only;
	_Atomic unsigned long count;
	struct {
		uintptr_t from, to;
	} code[RANGES];
	int ranges;
} failing;

static int find_code(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	bool program = info->dlpi_name[0] == 0 && !failing.library_only;
	if (!program && !strstr(info->dlpi_name, "/libkv.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum && failing.ranges < RANGES; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
			continue;
		failing.code[failing.ranges].from = info->dlpi_addr + p->p_vaddr;
		failing.code[failing.ranges++].to = info->dlpi_addr + p->p_vaddr + p->p_memsz;
	}
	return 0;
}

__attribute__((constructor)) static void read_order(void)
{
	char text[256], *rest = text, *parts[5] = {NULL};
	const char *order = getenv("FAILING_CALL");
	if (!order || strlen(order) >= sizeof(text))
		return;
	strcpy(text, order);
	for (int i = 0; i < 5 && rest; i++)
		parts[i] = strsep(&rest, ":");
	if (!parts[3])
		return;
	strncpy(failing.name, parts[0], sizeof(failing.name) - 1);
	strncpy(failing.file, parts[3], sizeof(failing.file) - 1);
	failing.on = strcmp(parts[2], "on") == 0;
	failing.library_only = parts[4] && strcmp(parts[4], "lib") == 0;
	dl_iterate_phdr(find_code, NULL);
	failing.nth = strtoul(parts[1], NULL, 10);
}

static bool fails(const char *name, const void *caller)
{
	bool ours = false;
	if (!failing.nth || strcmp(name, failing.name) != 0)
		return false;
	for (int i = 0; i < failing.ranges; i++)
		ours |= (uintptr_t)caller >= failing.code[i].from &&
			(uintptr_t)caller < failing.code[i].to;
	if (!ours)
		return false;
	unsigned long n = atomic_fetch_add(&failing.count, 1) + 1;
	if (n == failing.nth)
		syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, failing.file, O_CREAT, 0600));
	return n == failing.nth || (failing.on && n > failing.nth);
}

#define CALLER __builtin_return_address(0)

/* With the error it is most likely to have. */
#define CALL(type, name, error, failure, parameters, arguments)             \
	type name parameters                                                \
	{                                                                   \
		static type(*next) parameters;                              \
		if (fails(#name, CALLER)) {                                 \
			errno = error;                                      \
			return failure;                                     \
		}                                                           \
		if (!next)                                                  \
			next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
		return next arguments;                                      \
	}

CALL(int, memfd_create, EMFILE, -1, (const char *name, unsigned flags), (name, flags))
CALL(void *, mmap64, ENOMEM, MAP_FAILED,
     (void *at, size_t n, int prot, int flags, int fd, off64_t o), (at, n, prot, flags, fd, o))
CALL(int, ftruncate64, ENOSPC, -1, (int fd, off64_t n), (fd, n))
CALL(int, madvise, ENOMEM, -1, (void *at, size_t n, int advice), (at, n, advice))
CALL(int, fstat64, EIO, -1, (int fd, struct stat64 *st), (fd, st))
CALL(int, fstatat64, EIO, -1, (int dir, const char *path, struct stat64 *st, int flags),
     (dir, path, st, flags))
CALL(int, socket, EMFILE, -1, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, bind, EACCES, -1, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
CALL(int, listen, EADDRINUSE, -1, (int fd, int n), (fd, n))
CALL(int, accept4, EMFILE, -1, (int fd, struct sockaddr *from, socklen_t *n, int flags),
     (fd, from, n, flags))
CALL(int, connect, ECONNREFUSED, -1, (int fd, const struct sockaddr *to, socklen_t n), (fd, to, n))
CALL(ssize_t, sendmsg, EPIPE, -1, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, recvmsg, ECONNRESET, -1, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(int, poll, ENOMEM, -1, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms))
CALL(int, epoll_create1, EMFILE, -1, (int flags), (flags))
CALL(int, epoll_ctl, ENOSPC, -1, (int epoll, int what, int fd, struct epoll_event *event),
     (epoll, what, fd, event))
CALL(int, epoll_wait, EINTR, -1, (int epoll, struct epoll_event *events, int n, int ms),
     (epoll, events, n, ms))
CALL(int, eventfd, EMFILE, -1, (unsigned count, int flags), (count, flags))
CALL(int, getsockopt, ENOBUFS, -1, (int fd, int level, int what, void *to, socklen_t *n),
     (fd, level, what, to, n))
CALL(ssize_t, getrandom, EAGAIN, -1, (void *to, size_t n, unsigned flags), (to, n, flags))
CALL(int, flock, EWOULDBLOCK, -1, (int fd, int what), (fd, what))
CALL(int, fchmodat, EPERM, -1, (int dir, const char *path, mode_t mode, int flags),
     (dir, path, mode, flags))
CALL(int, renameat, EACCES, -1, (int from, const char *a, int to, const char *b), (from, a, to, b))
CALL(int, unlinkat, EACCES, -1, (int dir, const char *path, int flags), (dir, path, flags))

int fcntl64(int fd, int what, ...)
{
	static int (*next)(int, int, ...);
	va_list list;
	va_start(list, what);
	void *argument = va_arg(list, void *);
	va_end(list);
	if (fails("fcntl64", CALLER)) {
		errno = EPERM;
		return -1;
	}
	if (!next)
		next = (int (*)(int, int, ...))dlsym(RTLD_NEXT, "fcntl64");
	return next(fd, what, argument);
}

int open64(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	if (fails("open64", CALLER)) {
		errno = EMFILE;
		return -1;
	}
	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
	return next(path, flags, mode);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
		   void *argument)
{
	static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	if (fails("pthread_create", CALLER))
		return EAGAIN;
	if (!next)
		next = (__typeof__(next))dlsym(RTLD_NEXT, "pthread_create");
	return next(thread, attributes, main, argument);
}

/* dlsym() asks for memory itself. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *at, size_t bytes);

void *malloc(size_t bytes)
{
	if (!fails("malloc", CALLER))
		return __libc_malloc(bytes);
	errno = ENOMEM;
	return NULL;
}

void *calloc(size_t count, size_t bytes)
{
	if (!fails("calloc", CALLER))
		return __libc_calloc(count, bytes);
	errno = ENOMEM;
	return NULL;
}

void *realloc(void *at, size_t bytes)
{
	if (!fails("realloc", CALLER))
		return __libc_realloc(at, bytes);
	errno = ENOMEM;
	return NULL;
}
