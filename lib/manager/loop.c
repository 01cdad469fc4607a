/* SPDX-License-Identifier: Apache-2.0 */
/* [M] A thread that watches sessions: copies the table, sleeps on all their doorbells at once. */
#include "manager/manager_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/fd.h"

#define UNWATCHED_MS 10

/*
 * Every eventfd here is watched edge-triggered and never read: a write is an edge whatever the
 * count, so one eventfd wakes both loops that watch it and neither steals the other's signal.
 */
static int watch(int epoll, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

int oki_mgr_loop_init(struct oki_mgr_loop *loop, struct okv_manager *m, bool retires,
		      uint32_t index, struct okv_error *err)
{
	*loop = (struct oki_mgr_loop){.manager = m, .retires = retires, .index = index};
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	loop->scratch = malloc(OKI_MGR_REQUEST_MAX);
	if (loop->epoll >= 0 && loop->wake >= 0 && loop->scratch && !watch(loop->epoll, loop->wake))
		return 0;
	return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno, "cannot prepare a thread");
}

static void forget(struct oki_mgr_loop *loop, struct oki_mgr_session *s)
{
	/* In embedded mode the engine has the same eventfd open, so close() leaves it in epoll. */
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, s->channel.manager_doorbell, NULL);
	oki_mgr_session_put(s);
}

void oki_mgr_loop_fini(struct oki_mgr_loop *loop)
{
	for (uint32_t k = 0; k < loop->count; k++)
		forget(loop, loop->sessions[k]);
	loop->count = 0;
	free(loop->scratch);
	loop->scratch = NULL;
	oki_fd_close(&loop->epoll);
	oki_fd_close(&loop->wake);
}

int oki_mgr_loop_start(struct oki_mgr_loop *loop, void *(*body)(void *), struct okv_error *err)
{
	int os = oki_thread_start(&loop->thread, body, loop);
	if (os)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, os, "cannot start a thread");
	loop->started = true;
	return 0;
}

void oki_mgr_loop_join(struct oki_mgr_loop *loop)
{
	if (!loop->started)
		return;
	pthread_join(loop->thread, NULL);
	loop->started = false;
}

static bool watches(const struct oki_mgr_loop *loop, const struct oki_mgr_session *s)
{
	return loop->retires || (s->dispatcher == loop->index && !atomic_load(&s->lost));
}

/* Watch a session that is new in the list. */
static void watch_session(struct oki_mgr_loop *loop, const struct oki_mgr_session *s)
{
	if (!watch(loop->epoll, s->channel.manager_doorbell))
		return;
	oki_log(&loop->manager->log, OKV_LOG_ERROR,
		"session %u: cannot watch its doorbell; it is polled instead: %s", s->slot,
		strerror(errno));
	loop->unwatched = true;
}

void oki_mgr_loop_refresh(struct oki_mgr_loop *loop)
{
	struct okv_manager *m = loop->manager;
	struct oki_mgr_session *all[OKW_MAX_SESSIONS], *had[OKW_MAX_SESSIONS] = {NULL};
	uint32_t count = 0;

	if (atomic_load(&m->version) == loop->version)
		return;
	for (uint32_t k = 0; k < loop->count; k++)
		had[loop->sessions[k]->slot] = loop->sessions[k];
	uint32_t n = oki_mgr_sessions_list(m, all, &loop->version);
	for (uint32_t k = 0; k < n; k++) {
		struct oki_mgr_session *s = all[k];
		if (!watches(loop, s)) {
			oki_mgr_session_put(s);
			continue;
		}
		if (had[s->slot] == s) {
			had[s->slot] = NULL;
			oki_mgr_session_put(s); /* the list has its reference */
		} else {
			watch_session(loop, s);
		}
		/* A lost peer must not wake threads any more. Its records are re-read at
		 * intervals. */
		if (atomic_load(&s->lost))
			epoll_ctl(loop->epoll, EPOLL_CTL_DEL, s->channel.manager_doorbell, NULL);
		loop->sessions[count++] = s;
	}
	for (uint32_t slot = 0; slot < OKW_MAX_SESSIONS; slot++)
		if (had[slot])
			forget(loop, had[slot]);
	loop->count = count;
}

static struct okw_doorbell *doorbell_of(const struct oki_mgr_loop *loop,
					const struct oki_mgr_session *s)
{
	return loop->retires ? &s->channel.control->retire : &s->channel.control->submit;
}

bool oki_mgr_released(struct oki_mgr_session *s)
{
	for (uint32_t w = 0; w < OKW_LEASE_WORDS; w++)
		if (atomic_load(&s->channel.control->lease_release[w]))
			return true;
	return false;
}

/* Set the sleep flag of every session's doorbell; false when one of them has work. */
static bool declare_sleep(struct oki_mgr_loop *loop)
{
	for (uint32_t k = 0; k < loop->count; k++) {
		struct oki_mgr_session *s = loop->sessions[k];
		if (atomic_load(&s->lost))
			continue;
		if (!oki_doorbell_sleep(doorbell_of(loop, s)))
			return false;
		/* G1, G6: lease_release bits are beside the doorbell's dirty bits, and are checked
		 * again after the flag as these are. */
		if (loop->retires && oki_mgr_released(s))
			return false;
	}
	return true;
}

/* The limit that kept a doorbell out of epoll may depend on other processes, so try again. */
static void retry_watch(struct oki_mgr_loop *loop)
{
	if (!loop->unwatched)
		return;
	loop->unwatched = false;
	for (uint32_t k = 0; k < loop->count; k++) {
		const struct oki_mgr_session *s = loop->sessions[k];
		if (!atomic_load(&s->lost) && watch(loop->epoll, s->channel.manager_doorbell) &&
		    errno != EEXIST)
			loop->unwatched = true;
	}
}

static bool may_sleep(const struct oki_mgr_loop *loop)
{
	const struct okv_manager *m = loop->manager;

	if (atomic_load(&m->quit) || atomic_load(&m->version) != loop->version)
		return false;
	return !loop->retires || !atomic_load(&m->retire_wanted);
}

static int timeout_ms(uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX)
		return -1;
	uint64_t now = oki_now_ns();
	if (deadline_ns <= now)
		return 0;
	uint64_t ms = (deadline_ns - now + 999999) / 1000000;
	return ms > 3600000 ? 3600000 : (int)ms;
}

bool oki_mgr_loop_sleep(struct oki_mgr_loop *loop, uint64_t deadline_ns)
{
	struct okv_manager *m = loop->manager;
	bool called = true;

	retry_watch(loop);
	if (declare_sleep(loop) && may_sleep(loop)) {
		struct epoll_event events[8];
		int timeout = timeout_ms(deadline_ns);

		if (loop->unwatched && (timeout < 0 || timeout > UNWATCHED_MS))
			timeout = UNWATCHED_MS;

		oki_index_thread_offline();
		called = epoll_wait(loop->epoll, events, 8, timeout) > 0;
		oki_index_thread_online();
		atomic_fetch_add_explicit(&m->counters.wakeups, 1, memory_order_relaxed);
	}
	for (uint32_t k = 0; k < loop->count; k++)
		oki_doorbell_awake(doorbell_of(loop, loop->sessions[k]));
	return called;
}
