/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The control thread: connections, their messages, hang-ups, drain and stop. */
#include "manager/manager_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

#define EVENTS 64
#define ACCEPTS 16
#define ACCEPT_PAUSE_NS 100000000ull

void oki_mgr_conn_close(struct okv_manager *m, struct oki_mgr_conn *conn)
{
	struct oki_mgr_session *s = conn->session;

	if (conn->dead)
		return;
	conn->dead = true;
	if (s) {
		oki_mgr_conn_unwatch(m, s);
		oki_mgr_session_disconnect(s, "disconnected");
		pthread_mutex_lock(&s->lock);
		s->sock = -1;
		pthread_mutex_unlock(&s->lock);
		oki_mgr_session_put(s);
		conn->session = NULL;
	} else {
		m->pending_conns--;
	}
	/* A forked child may have the same socket open. Then close() leaves it in epoll. */
	epoll_ctl(m->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
	oki_fd_close(&conn->fd);
}

/* Free closed connections. Only after a batch of events, whose later ones may point to them. */
static void free_closed_conns(struct okv_manager *m)
{
	struct oki_mgr_conn **link = &m->conns;

	while (*link) {
		struct oki_mgr_conn *conn = *link;
		if (!conn->dead) {
			link = &conn->next;
			continue;
		}
		*link = conn->next;
		free(conn);
	}
}

/* New connections are at the head of the list, so the last pending one is the oldest. */
static void close_oldest_pending(struct okv_manager *m)
{
	struct oki_mgr_conn *oldest = NULL;

	for (struct oki_mgr_conn *conn = m->conns; conn; conn = conn->next)
		if (!conn->dead && !conn->session)
			oldest = conn;
	if (oldest)
		oki_mgr_conn_close(m, oldest);
}

static bool may_connect(const struct okv_manager *m, uid_t uid)
{
	if (uid == geteuid())
		return true;
	for (uint32_t i = 0; i < m->opts.allow_uid_count; i++)
		if (m->allow_uids[i] == uid)
			return true;
	return false;
}

/* Owns fd from now on. */
static void add_conn(struct okv_manager *m, int fd)
{
	struct oki_mgr_conn *conn = calloc(1, sizeof(*conn));
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = conn};
	struct okv_error err;

	if (!conn)
		goto close_fd;
	conn->fd = fd;
	conn->deadline_ns = oki_now_ns() + OKI_MGR_HELLO_NS;
	if (oki_peer_get(fd, &conn->peer, &err) || epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &ev))
		goto free_conn;
	conn->allowed = may_connect(m, conn->peer.uid);
	if (m->pending_conns >= OKI_MGR_PENDING_CONNS)
		close_oldest_pending(m);
	m->pending_conns++;
	conn->next = m->conns;
	m->conns = conn;
	return;

free_conn:
	free(conn);
close_fd:
	oki_log(&m->log, OKV_LOG_ERROR, "cannot take a connection");
	close(fd);
}

static void watch_listener(struct okv_manager *m, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = &m->listener};
	epoll_ctl(m->epoll, EPOLL_CTL_MOD, m->listener, &ev);
}

/* Not one descriptor is left to refuse a connection with: connections wait in the socket's queue.
 * Logged once until one is accepted. */
static void pause_accept(struct okv_manager *m, int os)
{
	if (!m->accept_paused)
		oki_log(&m->log, OKV_LOG_ERROR, "cannot accept connections: %s",
			strerrordesc_np(os));
	m->accept_paused = true;
	m->accept_paused_until_ns = oki_now_ns() + ACCEPT_PAUSE_NS;
	watch_listener(m, 0);
}

/* Lowers *ret_next to the end of the pause if that comes first. */
static void resume_accept(struct okv_manager *m, uint64_t *ret_next)
{
	if (!m->accept_paused_until_ns)
		return;
	if (oki_now_ns() >= m->accept_paused_until_ns) {
		m->accept_paused_until_ns = 0;
		watch_listener(m, EPOLLIN);
	} else if (m->accept_paused_until_ns < *ret_next) {
		*ret_next = m->accept_paused_until_ns;
	}
}

/* Accept with the spare descriptor and close: a connection that stays in the queue would keep the
 * listener readable, and this thread busy. */
static void refuse_connection(struct okv_manager *m)
{
	oki_fd_close(&m->spare);
	int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
	int os = errno;
	if (fd >= 0)
		close(fd);
	m->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		oki_log(&m->log, OKV_LOG_ERROR, "out of descriptors: turned a connection away");
	else if (os != EAGAIN)
		pause_accept(m, os);
}

static void accept_some(struct okv_manager *m)
{
	for (int i = 0; i < ACCEPTS; i++) {
		int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			m->accept_paused = false;
			add_conn(m, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			refuse_connection(m);
		return;
	}
}

static void take_attached(struct okv_manager *m)
{
	int fds[OKI_MGR_PENDING_CONNS];

	pthread_mutex_lock(&m->lock);
	uint32_t n = m->attached_count;
	for (uint32_t k = 0; k < n; k++)
		fds[k] = m->attached[k];
	m->attached_count = 0;
	pthread_mutex_unlock(&m->lock);
	for (uint32_t k = 0; k < n; k++)
		add_conn(m, fds[k]);
}

/* One message per event, so that no peer keeps the others waiting. */
static void conn_event(struct okv_manager *m, struct oki_mgr_conn *conn)
{
	struct oki_message message;
	struct okv_error err;

	if (conn->dead)
		return;
	if (conn->session && atomic_load(&conn->session->lost)) {
		oki_mgr_conn_close(m, conn);
		return;
	}
	/* Its children may still hold the socket; what the process sent is not needed any more. */
	if (conn->session && oki_mgr_session_dead(conn->session)) {
		oki_mgr_conn_close(m, conn);
		return;
	}
	int rc = oki_message_receive(conn->fd, 0, &message, &err);
	if (rc == OKV_E_TIMEOUT)
		return;
	if (rc) {
		if (rc != OKV_E_SESSION)
			oki_log(&m->log, OKV_LOG_WARN, "pid %d: %s", (int)conn->peer.pid, err.text);
		oki_mgr_conn_close(m, conn);
		return;
	}
	if (!oki_mgr_message(m, conn, &message))
		oki_mgr_conn_close(m, conn);
	oki_message_fini(&message);
}

/* Close connections that sent no hello in time; *ret_next: the next such deadline. */
static void expire_pending_conns(struct okv_manager *m, uint64_t *ret_next)
{
	uint64_t now, next = UINT64_MAX;

	*ret_next = next;
	if (!m->pending_conns)
		return;
	now = oki_now_ns();
	for (struct oki_mgr_conn *conn = m->conns; conn; conn = conn->next) {
		if (conn->dead || conn->session)
			continue;
		if (now >= conn->deadline_ns) {
			oki_log(&m->log, OKV_LOG_WARN, "pid %d: silent for too long",
				(int)conn->peer.pid);
			oki_mgr_conn_close(m, conn);
		} else if (conn->deadline_ns < next) {
			next = conn->deadline_ns;
		}
	}
	*ret_next = next;
}

static void begin_drain(struct okv_manager *m)
{
	struct oki_mgr_session *list[OKW_MAX_SESSIONS];

	atomic_store(&m->draining, true);
	/* A thread that answers a record has its session's lock. One that read the old flag is done
	 * when we have had that lock, so from then on open_ops only falls. */
	uint32_t n = oki_mgr_sessions_list(m, list, NULL);
	for (uint32_t k = 0; k < n; k++) {
		pthread_mutex_lock(&list[k]->lock);
		pthread_mutex_unlock(&list[k]->lock);
		oki_mgr_session_put(list[k]);
	}
	uint64_t running = atomic_load(&m->open_ops);
	oki_log(&m->log, OKV_LOG_INFO, "draining: %llu operation%s to end",
		(unsigned long long)running, oki_plural(running));
}

static int wait_ms(uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX)
		return -1;
	uint64_t now = oki_now_ns();
	return deadline_ns <= now ? 0 : (int)((deadline_ns - now + 999999) / 1000000);
}

static void wait_and_handle(struct okv_manager *m, uint64_t deadline_ns)
{
	struct epoll_event events[EVENTS];
	int timeout = wait_ms(deadline_ns);

	oki_index_thread_offline();
	int n = epoll_wait(m->epoll, events, EVENTS, timeout);
	oki_index_thread_online();
	atomic_fetch_add_explicit(&m->counters.wakeups, 1, memory_order_relaxed);
	for (int k = 0; k < n; k++) {
		void *what = events[k].data.ptr;
		if (what == &m->listener)
			accept_some(m);
		else if (what != &m->wake)
			conn_event(m, what);
	}
	take_attached(m);
	free_closed_conns(m);
}

static int stopped_again(struct okv_manager *m, struct okv_error *err)
{
	uint64_t running = atomic_load(&m->open_ops);

	return oki_fail(err, OKV_E_BUSY, OKV_STAGE_NONE,
			"stopped again with %llu operation%s running", (unsigned long long)running,
			oki_plural(running));
}

static int serve(struct okv_manager *m, struct okv_error *err)
{
	uint64_t deadline;

	for (;;) {
		uint32_t stops = atomic_load(&m->stops);
		if (stops > 1)
			return stopped_again(m, err);
		if (stops && !atomic_load(&m->draining))
			begin_drain(m);
		if (stops && !atomic_load(&m->open_ops))
			return 0;
		expire_pending_conns(m, &deadline);
		resume_accept(m, &deadline);
		wait_and_handle(m, deadline);
	}
}

static int start_threads(struct okv_manager *m, struct okv_error *err)
{
	int rc = oki_mgr_loop_start(&m->retire, oki_mgr_retire_thread, err);

	for (uint32_t d = 0; d < m->dispatcher_count && !rc; d++)
		rc = oki_mgr_loop_start(&m->dispatchers[d], oki_mgr_dispatch_thread, err);
	return rc;
}

static void end_threads(struct okv_manager *m)
{
	atomic_store(&m->quit, true);
	oki_mgr_loops_wake(m);
	for (uint32_t d = 0; d < m->dispatcher_count; d++)
		oki_mgr_loop_join(&m->dispatchers[d]);
	oki_mgr_loop_join(&m->retire);
}

/* The other threads have ended. Sessions whose copies may still run stay in the table until
 * okv_manager_destroy(). */
static void end_sessions(struct okv_manager *m)
{
	struct oki_mgr_session *list[OKW_MAX_SESSIONS];

	for (struct oki_mgr_conn *conn = m->conns; conn; conn = conn->next)
		oki_mgr_conn_close(m, conn);
	free_closed_conns(m);
	uint32_t n = oki_mgr_sessions_list(m, list, NULL);
	for (uint32_t k = 0; k < n; k++) {
		struct oki_mgr_session *s = list[k];
		pthread_mutex_lock(&s->lock);
		for (uint32_t i = 0; i < s->served && s->open; i++)
			if (s->ops[i].phase == OKI_MGR_GRANTED)
				oki_mgr_quarantine(s, i, "the Manager ends while it is active");
		pthread_mutex_unlock(&s->lock);
		oki_mgr_session_put(s);
	}
}

int okv_manager_run(struct okv_manager *m, struct okv_error *err)
{
	int rc = oki_mgr_check(m, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&m->lock);
	bool again = m->ran;
	m->ran = true;
	pthread_mutex_unlock(&m->lock);
	if (again)
		return oki_fail(err, OKV_E_CLOSED, OKV_STAGE_NONE, "this Manager ran already");

	oki_index_thread_enter();
	rc = start_threads(m, err);
	if (!rc)
		rc = serve(m, err);
	end_threads(m);
	pthread_mutex_lock(&m->lock);
	m->finished = true;
	pthread_mutex_unlock(&m->lock);
	take_attached(m);
	end_sessions(m);
	oki_index_thread_leave();
	return rc;
}
