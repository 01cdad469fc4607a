/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The Manager object: options, memory, stop, attach, status. */
#include "manager/manager_private.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/options.h"
#include "grant/state.h"

/*
 * Most memory of one session: the shared memory, the private half of its records, and 256 KiB for
 * its leases and for kernel objects. Memory is taken as it is used, and an idle session uses less
 * than a sixteenth, so room for BUSY_SESSIONS of them is room for OKW_MAX_SESSIONS idle ones.
 */
#define BUSY_SESSIONS (OKW_MAX_SESSIONS / 16u)
#define SESSION_BYTES (OKW_SESSION_BYTES + sizeof(struct oki_mgr_session) + (256u << 10))
#define PART_MIN_BYTES (sizeof(struct okw_plan_head) + sizeof(struct okw_plan_entry))

void okv_manager_options_init(struct okv_manager_options *opts)
{
	if (!opts)
		return;
	*opts = (struct okv_manager_options){
		.size = sizeof(*opts),
		.memory_bytes = 1ull << 30,
		.numa = OKV_NUMA_AUTO,
		.spin_us = 50,
		.lease_ttl_ms = 600000,
		.reserve_percent = 75,
		.session_percent = 75,
		.restore_permits = 128,
		.max_sessions = OKW_MAX_SESSIONS,
		.part_bytes = OKW_PART_MAX_BYTES,
		.operation_plan_bytes = 32ull << 20,
		.session_plan_bytes = 64ull << 20,
	};
}

/* One numeric option and its range. */
struct bound {
	const char *name;
	uint64_t value;
	uint64_t least;
	uint64_t most;
};

static int check_options(const struct okv_manager_options *o, struct okv_error *err)
{
	const struct bound bounds[] = {
		{"memory_bytes", o->memory_bytes, 1, 1ull << 62},
		{"shard_bytes", o->shard_bytes, 0, 1ull << 62},
		{"flags", o->flags, 0, OKV_MANAGER_HUGE_PAGES},
		{"touch_threads", o->touch_threads, 0, 1024},
		{"allow_uid_count", o->allow_uid_count, 0, o->allow_uids ? 4096 : 0},
		{"dispatchers", o->dispatchers, 0, OKI_MGR_DISPATCHERS},
		{"spin_us", o->spin_us, 0, 1000000},
		{"lease_ttl_ms", o->lease_ttl_ms, 1, UINT32_MAX},
		{"reserve_percent", o->reserve_percent, 1, 100},
		{"session_percent", o->session_percent, 1, 100},
		{"restore_permits", o->restore_permits, 1, UINT32_MAX},
		{"max_sessions", o->max_sessions, 1, OKW_MAX_SESSIONS},
		{"part_bytes", o->part_bytes, PART_MIN_BYTES, OKW_PART_MAX_BYTES},
		{"operation_plan_bytes", o->operation_plan_bytes, 1, UINT64_MAX},
		{"session_plan_bytes", o->session_plan_bytes, 1, UINT64_MAX},
	};

	if (o->numa < OKV_NUMA_OFF)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "numa is %d", o->numa);
	for (size_t k = 0; k < sizeof(bounds) / sizeof(bounds[0]); k++) {
		const struct bound *b = &bounds[k];
		if (b->value < b->least || b->value > b->most)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					"%s is %llu; %llu to %llu are possible", b->name,
					(unsigned long long)b->value, (unsigned long long)b->least,
					(unsigned long long)b->most);
	}
	return 0;
}

static int copy_uids(struct okv_manager *m, struct okv_error *err)
{
	uint32_t n = m->opts.allow_uid_count;

	m->allow_uids = calloc(n ? n : 1, sizeof(uid_t));
	if (!m->allow_uids)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "no memory for options");
	if (n)
		memcpy(m->allow_uids, m->opts.allow_uids, n * sizeof(uid_t));
	m->opts.allow_uids = m->allow_uids;
	return 0;
}

static uint32_t count_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return (uint32_t)CPU_COUNT(&set);
}

static int init_threads(struct okv_manager *m, struct okv_error *err)
{
	uint32_t dispatchers = m->opts.dispatchers;

	if (!dispatchers)
		dispatchers = count_cpus() > 4 ? 2 : 1;
	int rc = oki_mgr_loop_init(&m->retire, m, true, 0, err);
	while (!rc && m->dispatcher_count < dispatchers) {
		uint32_t d = m->dispatcher_count++;
		rc = oki_mgr_loop_init(&m->dispatchers[d], m, false, d, err);
	}
	if (rc)
		return rc;
	m->epoll = epoll_create1(EPOLL_CLOEXEC);
	m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = &m->wake};
	if (m->epoll < 0 || m->wake < 0 || m->spare < 0 ||
	    epoll_ctl(m->epoll, EPOLL_CTL_ADD, m->wake, &ev))
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno,
				   "cannot prepare the control loop");
	return 0;
}

static int init_memory(struct okv_manager *m, struct okv_error *err)
{
	const struct okv_manager_options *o = &m->opts;
	const struct oki_backing_config config = {
		.memory_bytes = o->memory_bytes,
		.shard_bytes = o->shard_bytes,
		.numa = o->numa,
		.huge_pages = o->flags & OKV_MANAGER_HUGE_PAGES,
		.sessions = o->max_sessions < BUSY_SESSIONS ? o->max_sessions : BUSY_SESSIONS,
		.session_bytes = SESSION_BYTES,
		.touch_threads = o->touch_threads,
		.progress = o->progress,
		.progress_arg = o->arg,
		.log = &m->log,
	};
	uint64_t bytes[OKW_MAX_SHARDS];
	int32_t nodes[OKW_MAX_SHARDS];

	int rc = oki_shards_create(&config, &m->shards, err);
	if (rc)
		return rc;
	for (uint32_t k = 0; k < m->shards.count; k++) {
		bytes[k] = m->shards.shards[k].bytes;
		nodes[k] = m->shards.shards[k].node;
	}
	rc = oki_pool_create(bytes, nodes, m->shards.count, &m->pool, err);
	if (rc)
		return rc;
	const struct oki_index_config index = {
		.pool = m->pool,
		.reserve_percent = o->reserve_percent,
		.session_percent = o->session_percent,
		.lease_ttl_ns = m->lease_ttl_ns,
		.log = &m->log,
	};
	return oki_index_create(&index, &m->index, err);
}

int okv_manager_create(const struct okv_manager_options *opts, struct okv_manager **ret_manager,
		       struct okv_error *err)
{
	struct okv_manager_options defaults;

	if (!ret_manager)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"nowhere to put the Manager");
	int rc = oki_index_check_fork(err);
	if (rc)
		return rc;
	okv_manager_options_init(&defaults);
	struct okv_manager *m = calloc(1, sizeof(*m));
	if (!m)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "no memory for a Manager");
	m->opts = defaults;
	m->fork_generation = oki_fork_generation();
	m->epoll = m->wake = m->spare = m->listener = m->listen_dir = -1;
	m->retire.epoll = m->retire.wake = -1;
	pthread_mutex_init(&m->lock, NULL);
	oki_mgr_permits_init(&m->permits, 0);

	rc = opts ? oki_options_take(&m->opts, sizeof(m->opts), opts, "Manager", err) : 0;
	if (!rc)
		rc = check_options(&m->opts, err);
	if (!rc)
		rc = copy_uids(m, err);
	if (rc)
		goto destroy;
	rc = oki_log_open(&m->log, m->opts.log, m->opts.arg, m->opts.log_ring, err);
	if (rc)
		goto destroy;
	m->lease_ttl_ns = (uint64_t)m->opts.lease_ttl_ms * 1000000u;
	m->part_entries = (uint32_t)((m->opts.part_bytes - sizeof(struct okw_plan_head)) /
				     sizeof(struct okw_plan_entry));
	m->permits.limit = m->opts.restore_permits;
	m->started_ns = oki_now_ns();
	if (getrandom(&m->epoch, sizeof(m->epoch), 0) != (ssize_t)sizeof(m->epoch)) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno, "getrandom");
		goto destroy;
	}
	if (m->epoch == 0)
		m->epoch = 1; /* 0 means none */
	rc = init_threads(m, err);
	if (!rc)
		rc = init_memory(m, err);
	if (rc)
		goto destroy;
	*ret_manager = m;
	return 0;

destroy:
	okv_manager_destroy(m);
	return rc;
}

void okv_manager_destroy(struct okv_manager *m)
{
	if (!m || oki_forked_since(m->fork_generation))
		return;
	oki_mgr_unlisten(m);
	for (uint32_t k = 0; k < m->attached_count; k++)
		close(m->attached[k]);
	oki_mgr_loop_fini(&m->retire);
	for (uint32_t d = 0; d < m->dispatcher_count; d++)
		oki_mgr_loop_fini(&m->dispatchers[d]);
	for (uint32_t slot = 0; slot < OKW_MAX_SESSIONS; slot++)
		oki_mgr_session_put(m->table[slot]);
	if (m->index)
		oki_index_destroy(m->index);
	if (m->pool)
		oki_pool_destroy(m->pool);
	oki_shards_destroy(&m->shards);
	oki_mgr_permits_fini(&m->permits);
	oki_fd_close(&m->epoll);
	oki_fd_close(&m->wake);
	oki_fd_close(&m->spare);
	oki_log_stop(&m->log);
	oki_log_fini(&m->log);
	free(m->allow_uids);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

void okv_manager_stop(struct okv_manager *m)
{
	if (!m || oki_forked_since(m->fork_generation))
		return;
	atomic_fetch_add(&m->stops, 1);
	oki_mgr_wake(m->wake);
}

static int check_socket(int fd, struct okv_error *err)
{
	int type = 0, domain = 0;
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) ||
	    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || type != SOCK_SEQPACKET ||
	    domain != AF_UNIX)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"descriptor %d is no Unix SEQPACKET socket", fd);
	return 0;
}

int okv_manager_attach(struct okv_manager *m, int fd, struct okv_error *err)
{
	int rc = oki_mgr_check(m, err);
	if (!rc)
		rc = check_socket(fd, err);
	if (rc)
		return rc;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return oki_fail_os(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, errno, "fcntl");
	pthread_mutex_lock(&m->lock);
	if (m->finished)
		rc = oki_fail(err, OKV_E_CLOSED, OKV_STAGE_CONNECT, "the Manager has ended");
	else if (m->attached_count == OKI_MGR_PENDING_CONNS)
		rc = oki_fail(err, OKV_E_AGAIN, OKV_STAGE_CONNECT, "too many new peers");
	else
		m->attached[m->attached_count++] = fd;
	pthread_mutex_unlock(&m->lock);
	if (!rc)
		oki_mgr_wake(m->wake);
	return rc;
}

static void count_session(struct oki_mgr_session *s, struct okv_manager_status *st)
{
	pthread_mutex_lock(&s->lock);
	if (!atomic_load(&s->lost))
		st->sessions++;
	else if (!s->gone)
		st->sessions_retained++;
	for (uint32_t b = 0; b < OKI_MGR_BINDINGS && !atomic_load(&s->lost); b++)
		st->bindings += s->bindings[b].id != 0;
	for (uint32_t i = 0; i < s->served && s->open; i++) {
		if (s->ops[i].phase == OKI_MGR_WAITING)
			st->ops_preparing++;
		if (s->ops[i].phase != OKI_MGR_GRANTED)
			continue;
		if (OKI_TAG_STATE(oki_tag_load(oki_mgr_record(s, i))) == OKW_GRANTED)
			st->ops_granted++;
		else
			st->ops_active++;
	}
	st->ops_quarantined += s->quarantined;
	pthread_mutex_unlock(&s->lock);
}

static void count_index(struct okv_manager *m, struct okv_manager_status *st)
{
	struct oki_index_stats x;

	oki_index_stats(m->index, &x);
	st->namespaces = x.namespaces;
	st->bytes_total = x.bytes_total;
	st->bytes_free = x.bytes_total - x.bytes_used;
	st->bytes_used = x.bytes_used;
	st->bytes_quarantined = x.bytes_quarantined;
	st->bytes_pinned = x.bytes_pinned;
	st->blocks = x.blocks - x.blocks_partial; /* the index counts both */
	st->blocks_partial = x.blocks_partial;
	st->leases = x.leases;
	st->lookups = x.lookups;
	st->lookup_keys = x.lookup_keys;
	st->lookup_hits = x.lookup_hits;
	st->evictions = x.evictions;
	st->published_blocks = x.published_blocks;
	st->restored_blocks = x.restored_blocks;
}

void oki_mgr_status_fill(struct okv_manager *m, struct okv_manager_status *ret_status)
{
	struct oki_mgr_session *list[OKW_MAX_SESSIONS];
	struct okv_manager_status st = {
		.epoch = m->epoch,
		.uptime_ms = (oki_now_ns() - m->started_ns) / 1000000u,
		.arenas = m->shards.count,
		.ops_done = atomic_load_explicit(&m->counters.done, memory_order_relaxed),
		.ops_reaped = atomic_load_explicit(&m->counters.reaped, memory_order_relaxed),
		.ops_revoked = atomic_load_explicit(&m->counters.revoked, memory_order_relaxed),
		.ops_refused = atomic_load_explicit(&m->counters.refused, memory_order_relaxed),
		.wakeups = atomic_load_explicit(&m->counters.wakeups, memory_order_relaxed),
		.control_bytes = OKW_SESSION_BYTES,
	};

	uint32_t n = oki_mgr_sessions_list(m, list, NULL);
	for (uint32_t k = 0; k < n; k++) {
		count_session(list[k], &st);
		oki_mgr_session_put(list[k]);
	}
	count_index(m, &st);
	*ret_status = st;
}

int okv_manager_status_get(struct okv_manager *m, struct okv_manager_status *ret_status)
{
	if (!m || !ret_status)
		return OKV_E_INVAL;
	if (oki_forked_since(m->fork_generation))
		return OKV_E_FORKED;
	oki_index_thread_enter();
	oki_mgr_status_fill(m, ret_status);
	oki_index_thread_leave();
	return 0;
}
