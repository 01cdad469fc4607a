/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The listening socket: one Manager per path; only a socket that nobody answers is replaced. */
#include "manager/manager_private.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"

#define BACKLOG 128
#define LOCK_TRIES 200
#define LOCK_WAIT_NS 10000000l
#define SOCKET_PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

static int fail_os(struct okv_error *err, int os, const char *what, const char *path)
{
	return oki_fail_os(err, OKV_E_CONNECT, OKV_STAGE_CONNECT, os, "%s %s", what, path);
}

/* Only in a directory that this user owns: no other user can add or remove names there. */
static int make_in_own_dir(const char *dir_name, const char *part, const struct stat *above,
			   struct okv_error *err)
{
	if (above->st_uid != geteuid())
		return oki_fail(err, OKV_E_CONNECT, OKV_STAGE_CONNECT,
				"cannot create %s: %s is missing, and the directory above it "
				"belongs to uid %u",
				dir_name, part, (unsigned)above->st_uid);
	if (mkdir(part, 0700) && errno != EEXIST)
		return fail_os(err, errno, "cannot create", part);
	return 0;
}

/* Create the directory and every missing directory above it. */
static int make_all(const char *dir_name, struct okv_error *err)
{
	OKI_FREE char *part = strdup(dir_name);
	struct stat above, st;

	if (!part)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a path");
	if (stat(*part == '/' ? "/" : ".", &above))
		return fail_os(err, errno, "cannot look above", dir_name);
	for (char *slash = part; slash;) {
		slash = strchr(slash + 1, '/');
		if (slash)
			*slash = '\0';
		if (stat(part, &st)) {
			int rc = errno == ENOENT ? make_in_own_dir(dir_name, part, &above, err)
						 : fail_os(err, errno, "cannot look at", part);
			if (rc)
				return rc;
			if (stat(part, &st))
				return fail_os(err, errno, "cannot look at", part);
		}
		above = st;
		if (slash)
			*slash = '/';
	}
	return 0;
}

/* The parent may belong to any user (/tmp, /run): the caller checks who owns the result. */
static int make_directory(const char *dir_name, struct okv_error *err)
{
	if (!mkdir(dir_name, 0700) || errno == EEXIST)
		return 0;
	return errno == ENOENT ? make_all(dir_name, err)
			       : fail_os(err, errno, "cannot create", dir_name);
}

/* Open the directory of path; create it if it is missing. *ret_name: owned. */
static int open_directory(const char *path, int *ret_dir, char **ret_name, struct okv_error *err)
{
	OKI_FREE char *for_dir = strdup(path);
	OKI_FREE char *for_base = strdup(path);
	struct stat st;

	if (!for_dir || !for_base)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a path");
	const char *dir_name = dirname(for_dir);
	int rc = make_directory(dir_name, err);
	if (rc)
		return rc;
	OKI_FD dir = open(dir_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || fstat(dir, &st))
		return fail_os(err, errno, "cannot open", dir_name);
	/* The owner of the directory can replace the socket in it. */
	if (geteuid() != 0 && st.st_uid != geteuid() && st.st_uid != 0)
		return oki_fail(err, OKV_E_PERM, OKV_STAGE_CONNECT, "%s belongs to uid %u",
				dir_name, (unsigned)st.st_uid);
	char *name = strdup(basename(for_base));
	if (!name)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a path");
	*ret_dir = oki_fd_take(&dir);
	*ret_name = name;
	return 0;
}

/* Serialises Managers that start or end at one path. A lock on the directory needs no file. */
static int lock_directory(int dir, const char *path, struct okv_error *err)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (!flock(dir, LOCK_EX | LOCK_NB))
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return fail_os(err, errno, "cannot lock the directory of", path);
		nanosleep(&(struct timespec){.tv_nsec = LOCK_WAIT_NS}, NULL);
	}
	return oki_fail(err, OKV_E_BUSY, OKV_STAGE_CONNECT,
			"the directory of %s is locked by another process", path);
}

/* The address of a socket in dir. It goes through /proc, since an address has only 108 bytes. */
static int address(int dir, const char *name, struct sockaddr_un *ret_addr, struct okv_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int used = snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/%s", dir, name);

	if (used < 0 || (size_t)used >= sizeof(addr.sun_path))
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_CONNECT,
				"the socket name %s is too long", name);
	*ret_addr = addr;
	return 0;
}

/* 0: nothing exists at the path, or a socket that nobody answers. */
static int check_free(int dir, const char *name, const char *path, struct okv_error *err)
{
	struct sockaddr_un addr;
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : fail_os(err, errno, "cannot look at", path);
	if (!S_ISSOCK(st.st_mode))
		return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_CONNECT, "%s is not a socket", path);
	int rc = address(dir, name, &addr, err);
	if (rc)
		return rc;
	OKI_FD probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socket");
	if (connect(probe, (struct sockaddr *)&addr, sizeof(addr)) && errno == ECONNREFUSED)
		return 0;
	return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_CONNECT, "someone listens at %s already",
			path);
}

/*
 * Bind a socket under a second name. The name is fixed, so that the next start removes what a
 * killed process left.
 */
static int bind_fresh(int dir, const char *name, const char *path, char **ret_fresh, int *ret_sock,
		      struct okv_error *err)
{
	OKI_FREE char *fresh = NULL;
	struct sockaddr_un addr;

	if (asprintf(&fresh, ".%s.new", name) < 0) {
		fresh = NULL;
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a path");
	}
	int rc = address(dir, fresh, &addr, err);
	if (rc)
		return rc;
	OKI_FD sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socket");
	unlinkat(dir, fresh, 0);
	/* bind() gives the file the mode of the socket: it never exists with a wider mode. */
	if (fchmod(sock, 0600) || bind(sock, (struct sockaddr *)&addr, sizeof(addr)))
		return fail_os(err, errno, "cannot bind", path);
	*ret_sock = oki_fd_take(&sock);
	*ret_fresh = fresh;
	fresh = NULL;
	return 0;
}

/* Listen, then rename: at the real name a client finds the old socket or a listening one. */
static int bind_and_rename(struct okv_manager *m, int dir, const char *name, const char *path,
			   struct okv_error *err)
{
	OKI_FREE char *fresh = NULL;
	OKI_FD sock = -1;
	struct stat st;

	int rc = bind_fresh(dir, name, path, &fresh, &sock, err);
	if (rc)
		return rc;
	if (fchmodat(dir, fresh, 0600, 0) || fstatat(dir, fresh, &st, AT_SYMLINK_NOFOLLOW) ||
	    listen(sock, BACKLOG) || renameat(dir, fresh, dir, name)) {
		int os = errno;
		unlinkat(dir, fresh, 0);
		return fail_os(err, os, "cannot listen at", path);
	}
	m->listen_device = st.st_dev;
	m->listen_inode = st.st_ino;
	m->listener = oki_fd_take(&sock);
	return 0;
}

static void remove_ours(struct okv_manager *m)
{
	struct stat st;

	if (!fstatat(m->listen_dir, m->listen_name, &st, AT_SYMLINK_NOFOLLOW) &&
	    st.st_dev == m->listen_device && st.st_ino == m->listen_inode)
		unlinkat(m->listen_dir, m->listen_name, 0);
}

void oki_mgr_unlisten(struct okv_manager *m)
{
	if (m->listen_dir < 0)
		return;
	/* Without the lock another Manager could bind between the check and the removal. */
	if (!lock_directory(m->listen_dir, m->listen_name, NULL))
		remove_ours(m);
	oki_fd_close(&m->listen_dir);
	oki_fd_close(&m->listener);
	free(m->listen_name);
	m->listen_name = NULL;
}

/* The path to listen at; it must fit the address that clients connect to. */
static int take_path(const char *socket_path, char *path, size_t size, struct okv_error *err)
{
	size_t bytes;

	if (!socket_path) {
		if (okv_default_socket_path(path, size) == 0)
			return 0;
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"the default socket path is longer than %zu bytes", size - 1);
	}
	bytes = strlen(socket_path);
	if (bytes == 0 || bytes >= size)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"a socket path has 1 to %zu bytes; this one has %zu: %.80s",
				size - 1, bytes, socket_path);
	strcpy(path, socket_path);
	return 0;
}

/* Lock the directory of the path and check that the name in it is free. Both are owned. */
static int lock_socket_path(const char *socket_path, char path[SOCKET_PATH_BYTES], int *ret_dir,
			    char **ret_name, struct okv_error *err)
{
	OKI_FREE char *name = NULL;
	OKI_FD dir = -1;

	int rc = take_path(socket_path, path, SOCKET_PATH_BYTES, err);
	if (!rc)
		rc = open_directory(path, &dir, &name, err);
	if (!rc)
		rc = lock_directory(dir, path, err);
	if (!rc)
		rc = check_free(dir, name, path, err);
	if (rc)
		return rc;
	*ret_dir = oki_fd_take(&dir);
	*ret_name = name;
	name = NULL;
	return 0;
}

int okv_manager_check_socket(const char *socket_path, struct okv_error *err)
{
	OKI_FREE char *name = NULL, *fresh = NULL;
	char path[SOCKET_PATH_BYTES];
	OKI_FD dir = -1, sock = -1;

	int rc = lock_socket_path(socket_path, path, &dir, &name, err);
	if (!rc)
		rc = bind_fresh(dir, name, path, &fresh, &sock, err);
	if (!rc)
		unlinkat(dir, fresh, 0);
	return rc;
}

int okv_manager_listen(struct okv_manager *m, const char *socket_path, struct okv_error *err)
{
	char path[SOCKET_PATH_BYTES];
	char *name = NULL;
	int dir = -1;

	int rc = oki_mgr_check(m, err);
	if (rc)
		return rc;
	if (m->listen_dir >= 0)
		return oki_fail(err, OKV_E_BUSY, OKV_STAGE_CONNECT, "this Manager listens already");
	rc = lock_socket_path(socket_path, path, &dir, &name, err);
	if (rc)
		return rc;
	rc = bind_and_rename(m, dir, name, path, err);
	if (rc)
		goto close_dir;
	flock(dir, LOCK_UN);
	m->listen_dir = dir;
	m->listen_name = name;
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &m->listener};
	if (epoll_ctl(m->epoll, EPOLL_CTL_ADD, m->listener, &ev)) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "epoll");
		oki_mgr_unlisten(m);
		return rc;
	}
	oki_log(&m->log, OKV_LOG_INFO, "listening at %s", path);
	return 0;

close_dir:
	oki_fd_close(&dir);
	free(name);
	return rc;
}
