/* SPDX-License-Identifier: Apache-2.0 */
/* [M] An engine's session: created at hello, lost at hang-up, in the table until the last of its
 * operations ended. */
#include "manager/manager_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "grant/state.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/*
 * *ret_fd is -1 where the kernel has none, or forbids it: then only a hang-up tells that the
 * process ended. Linux before 6.5 has no SO_PEERPIDFD, and a process number may be used again: then
 * the owner of the session has ended, and the end of the other process, which counts, is no
 * earlier.
 */
static int open_pidfd(int sock, pid_t pid, int *ret_fd, struct okv_error *err)
{
	int fd = -1;
	socklen_t len = sizeof(fd);

	*ret_fd = -1;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len)) {
		/* EINVAL, ESRCH: of a process that was waited for. */
		bool ended = errno == EINVAL || errno == ESRCH;
		fd = -1;
		if (errno == ENOPROTOOPT && pid > 0)
			fd = (int)syscall(SYS_pidfd_open, pid, 0);
		if (ended || (fd < 0 && errno == ESRCH))
			return oki_fail(err, OKV_E_SESSION, OKV_STAGE_CONNECT,
					"the process that connected has ended");
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno,
					   "no descriptor for the engine's process");
	}
	*ret_fd = fd;
	return 0;
}

/* Names come from peers and go into log lines: replace what cannot be printed. */
static void copy_name(char to[32], const char from[32])
{
	for (uint32_t i = 0; i < 31 && from[i]; i++)
		to[i] = isprint((unsigned char)from[i]) ? from[i] : '?';
}

static int find_slot(struct okv_manager *m, uint32_t *ret_slot, struct okv_error *err)
{
	uint32_t slot = 0;

	pthread_mutex_lock(&m->lock);
	while (slot < m->opts.max_sessions && m->table[slot])
		slot++;
	pthread_mutex_unlock(&m->lock);
	if (slot == m->opts.max_sessions)
		return oki_fail(
			err, OKV_E_AGAIN, OKV_STAGE_CONNECT,
			"all %u sessions are in use, or kept for copies whose end is unknown",
			m->opts.max_sessions);
	*ret_slot = slot;
	return 0;
}

int oki_mgr_session_create(struct okv_manager *m, const struct oki_mgr_conn *conn,
			   const struct okw_hello *hello, struct oki_mgr_session **ret_session,
			   struct okv_error *err)
{
	uint32_t slot = 0;
	int rc = find_slot(m, &slot, err);
	if (rc)
		return rc;
	struct oki_mgr_session *s = calloc(1, sizeof(*s));
	if (!s)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a session");
	if (getrandom(&s->token, sizeof(s->token), 0) != (ssize_t)sizeof(s->token)) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "getrandom");
		goto free_session;
	}
	/* An operation offers two parts at a time. */
	if (!oki_area_init(&s->bank, OKW_PLAN_BANK_BYTES, OKW_REQUEST_ALIGN, 2 * OKW_RECORDS)) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a session");
		goto free_session;
	}
	rc = open_pidfd(conn->fd, conn->peer.pid, &s->pidfd, err);
	if (rc)
		goto free_bank;
	rc = oki_channel_create(&s->channel, m->epoch, s->token, slot, err);
	if (rc)
		goto close_pidfd;
	s->manager = m;
	atomic_init(&s->refs, 1);
	s->slot = slot;
	s->dispatcher = slot % m->dispatcher_count;
	s->restore_only = hello->flags & OKW_HELLO_RESTORE_ONLY;
	s->pid = conn->peer.pid;
	copy_name(s->name, hello->name);
	pthread_mutex_init(&s->lock, NULL);
	s->sock = conn->fd;
	s->waiting_first = s->waiting_last = OKI_MGR_NONE;
	*ret_session = s;
	return 0;

close_pidfd:
	oki_fd_close(&s->pidfd);
free_bank:
	oki_area_fini(&s->bank);
free_session:
	free(s);
	return rc;
}

int oki_mgr_conn_watch(struct okv_manager *m, struct oki_mgr_conn *conn,
		       const struct oki_mgr_session *s, struct okv_error *err)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = conn};

	if (s->pidfd < 0 || !epoll_ctl(m->epoll, EPOLL_CTL_ADD, s->pidfd, &ev))
		return 0;
	return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno,
			   "cannot watch the engine's process");
}

void oki_mgr_conn_unwatch(struct okv_manager *m, const struct oki_mgr_session *s)
{
	if (s->pidfd >= 0)
		epoll_ctl(m->epoll, EPOLL_CTL_DEL, s->pidfd, NULL);
}

static void destroy(struct oki_mgr_session *s)
{
	for (uint32_t b = 0; b < OKI_MGR_BINDINGS; b++)
		if (s->bindings[b].id)
			oki_mgr_device_put(&s->manager->permits, s->bindings[b].device);
	oki_area_fini(&s->bank);
	free(s->namespaces);
	oki_channel_fini(&s->channel);
	oki_fd_close(&s->pidfd);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

struct oki_mgr_session *oki_mgr_session_get(struct oki_mgr_session *s)
{
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
	return s;
}

void oki_mgr_session_put(struct oki_mgr_session *s)
{
	if (s && atomic_fetch_sub(&s->refs, 1) == 1)
		destroy(s);
}

void oki_mgr_session_enter(struct oki_mgr_session *s)
{
	struct okv_manager *m = s->manager;

	pthread_mutex_lock(&m->lock);
	m->table[s->slot] = oki_mgr_session_get(s);
	atomic_fetch_add(&m->version, 1);
	pthread_mutex_unlock(&m->lock);
	oki_mgr_loops_wake(m);
}

uint32_t oki_mgr_sessions_list(struct okv_manager *m,
			       struct oki_mgr_session *ret_list[OKW_MAX_SESSIONS],
			       uint64_t *ret_version)
{
	uint32_t n = 0;

	pthread_mutex_lock(&m->lock);
	for (uint32_t slot = 0; slot < OKW_MAX_SESSIONS; slot++)
		if (m->table[slot])
			ret_list[n++] = oki_mgr_session_get(m->table[slot]);
	if (ret_version)
		*ret_version = atomic_load(&m->version);
	pthread_mutex_unlock(&m->lock);
	return n;
}

void oki_mgr_session_leave_table(struct oki_mgr_session *s)
{
	struct okv_manager *m = s->manager;

	if (!atomic_load(&s->lost) || s->gone || s->open || s->quarantined)
		return;
	s->gone = true;
	pthread_mutex_lock(&m->lock);
	m->table[s->slot] = NULL;
	atomic_fetch_add(&m->version, 1);
	pthread_mutex_unlock(&m->lock);
	oki_mgr_loops_wake(m);
	/* The caller has a reference of its own, so this is never the last one. */
	oki_mgr_session_put(s);
}

static void end_record(struct oki_mgr_session *s, uint32_t i, int status, const char *text,
		       uint64_t now_ns)
{
	struct okw_record *record = oki_mgr_record(s, i);
	uint64_t tag = oki_tag_load(record);

	switch (s->ops[i].phase) {
	case OKI_MGR_IDLE:
		if (OKI_TAG_STATE(tag) == OKW_SUBMITTED)
			oki_move(record, &tag, OKW_PREPARING, OKI_MOVER_MANAGER);
		if (OKI_TAG_STATE(tag) == OKW_PREPARING)
			oki_mgr_done(s, i, tag, 0, NULL, 0, 0, status, text);
		return;
	case OKI_MGR_WAITING: oki_mgr_end_early(s, i, status, text); return;
	case OKI_MGR_GRANTED:
		oki_mgr_end_early(s, i, status, text);
		oki_mgr_op_advance(s, i, now_ns);
		return;
	default: return;
	}
}

/* [locked] The session is lost: end every operation that can be ended. */
static void end_all(struct oki_mgr_session *s, int status, const char *why)
{
	struct okv_manager *m = s->manager;
	uint64_t now = oki_now_ns();

	for (uint32_t i = 0, n = oki_mgr_records(s); i < n; i++)
		end_record(s, i, status, why, now);
	oki_index_session_end(m->index, s->slot);
	/* Hang up last: a peer that sees the hang-up finds records that no longer change. */
	if (s->sock >= 0)
		shutdown(s->sock, SHUT_RDWR);
	if (s->open || s->quarantined)
		oki_log(&m->log, OKV_LOG_WARN,
			"session %u: kept, %u operation%s running and %u quarantined", s->slot,
			s->open, oki_plural(s->open), s->quarantined);
	pthread_mutex_lock(&m->lock);
	atomic_fetch_add(&m->version, 1);
	pthread_mutex_unlock(&m->lock);
	oki_mgr_loops_wake(m);
	oki_mgr_wake_retire(m);
	oki_mgr_session_leave_table(s);
}

void oki_mgr_session_disconnect(struct oki_mgr_session *s, const char *why)
{
	pthread_mutex_lock(&s->lock);
	if (!atomic_load(&s->lost)) {
		if (why)
			oki_log(&s->manager->log, OKV_LOG_INFO, "session %u (%s, pid %d): %s",
				s->slot, s->name, (int)s->pid, why);
		atomic_store(&s->lost, true);
		end_all(s, OKV_E_SESSION, "the session ended");
	}
	pthread_mutex_unlock(&s->lock);
}

void oki_mgr_session_sweep(struct oki_mgr_session *s)
{
	if (!s->failed)
		return;
	s->failed = false;
	end_all(s, OKV_E_PROTOCOL, s->failure);
}
