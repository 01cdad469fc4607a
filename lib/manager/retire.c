/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The retire loop: ends drained grants, offers parts, releases and expires leases, and finds
 * changes whose doorbell was lost. */
#include "manager/manager_private.h"

#include "base/clock.h"
#include "grant/state.h"

/*
 * A restore that was submitted before its lease was released must find the lease. So the bits are
 * taken, then the announced records are answered, and then the leases are released. True if there
 * was any bit.
 */
static bool release_leases(struct oki_mgr_loop *loop, struct oki_mgr_session *s)
{
	struct okw_control *control = s->channel.control;
	uint64_t released[OKW_LEASE_WORDS];

	if (!oki_mgr_released(s))
		return false;
	/* G6: the exchange takes a bit that was set before it, and leaves one that is set after it.
	 * What the engine submitted before it set the bit is visible from here on. */
	for (uint32_t w = 0; w < OKW_LEASE_WORDS; w++)
		released[w] = atomic_exchange(&control->lease_release[w], 0);
	for (uint32_t k = 0; k < OKW_RECORDS; k++)
		if (!oki_mgr_serve(s, loop->scratch, 1))
			break;
	pthread_mutex_lock(&s->lock);
	for (uint32_t w = 0; w < OKW_LEASE_WORDS && !atomic_load(&s->lost); w++)
		for (uint64_t bits = released[w]; bits; bits &= bits - 1)
			oki_index_lease_release(s->manager->index, s->slot,
						w * 64 + (uint32_t)__builtin_ctzll(bits));
	pthread_mutex_unlock(&s->lock);
	return true;
}

/* True when anything was announced. */
static bool advance_announced(struct oki_mgr_session *s, uint64_t now_ns)
{
	struct okw_doorbell *bell = &s->channel.control->retire;
	bool any = false;

	for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++) {
		uint64_t bits = oki_doorbell_take(bell, w);
		if (!bits)
			continue;
		any = true;
		pthread_mutex_lock(&s->lock);
		for (; bits; bits &= bits - 1)
			oki_mgr_op_advance(s, w * 64 + (uint32_t)__builtin_ctzll(bits), now_ns);
		oki_mgr_grant_waiting(s);
		oki_mgr_session_sweep(s);
		oki_mgr_session_leave_table(s);
		pthread_mutex_unlock(&s->lock);
	}
	return any;
}

/* [locked] Read every record of a live session, also one whose doorbell was lost. True: a record
 * is in use. */
static bool reread_live(struct oki_mgr_session *s, uint64_t now_ns)
{
	struct okw_control *control = s->channel.control;
	bool used = false;

	for (uint32_t i = 0, n = oki_mgr_records(s); i < n && !atomic_load(&s->lost); i++) {
		uint32_t state = OKI_TAG_STATE(oki_tag_load(&control->records[i]));
		if (state == OKW_FREE && s->ops[i].phase == OKI_MGR_IDLE)
			continue;
		used = used || s->ops[i].phase != OKI_MGR_QUARANTINED;
		if (state == OKW_SUBMITTED)
			oki_doorbell_ring(&control->submit, s->channel.manager_doorbell, i);
		else
			oki_mgr_op_advance(s, i, now_ns);
	}
	oki_mgr_grant_waiting(s);
	return used;
}

/*
 * [locked] A session whose peer hung up may still have copies running, and its records may still
 * say when they end. Once the process has ended nobody will say so: quarantine what is active.
 * True: an operation is still open.
 */
static bool reread_lost(struct oki_mgr_session *s, uint64_t now_ns)
{
	if (!s->open)
		return false;
	bool dead = oki_mgr_session_dead(s);
	for (uint32_t i = 0; i < s->served; i++) {
		if (s->ops[i].phase != OKI_MGR_GRANTED)
			continue;
		oki_mgr_op_advance(s, i, now_ns);
		if (dead && s->ops[i].phase == OKI_MGR_GRANTED)
			oki_mgr_quarantine(s, i, "its process ended while it was active");
	}
	oki_mgr_session_leave_table(s);
	return s->open;
}

static bool reread(struct oki_mgr_session *s, uint64_t now_ns)
{
	pthread_mutex_lock(&s->lock);
	bool used = atomic_load(&s->lost) ? reread_lost(s, now_ns) : reread_live(s, now_ns);
	oki_mgr_session_sweep(s);
	pthread_mutex_unlock(&s->lock);
	return used;
}

/* Times of the next work; UINT64_MAX: none. */
struct timers {
	uint64_t reread_ns; /* read all records */
	uint64_t expire_ns; /* expire leases */
};

/* One round of the loop. True: there was work. */
static bool run_once(struct oki_mgr_loop *loop, struct timers *timers, uint64_t now)
{
	struct okv_manager *m = loop->manager;
	/* Load first: an exchange in every round would take the cache line from the dispatchers. */
	bool any = atomic_load(&m->retire_wanted) && atomic_exchange(&m->retire_wanted, false);

	for (uint32_t k = 0; k < loop->count; k++) {
		struct oki_mgr_session *s = loop->sessions[k];
		if (atomic_load(&s->lost))
			continue;
		any |= advance_announced(s, now);
		any |= release_leases(loop, s);
	}
	if (now >= timers->reread_ns) {
		bool used = false;
		for (uint32_t k = 0; k < loop->count; k++)
			used |= reread(loop->sessions[k], now);
		timers->reread_ns = used ? now + OKI_MGR_REREAD_NS : UINT64_MAX;
	}
	if (any && timers->reread_ns == UINT64_MAX)
		timers->reread_ns = now + OKI_MGR_REREAD_NS;
	if (any || now >= timers->expire_ns)
		timers->expire_ns = oki_index_expire(m->index, now);
	return any;
}

void *oki_mgr_retire_thread(void *arg)
{
	struct oki_mgr_loop *loop = arg;
	struct okv_manager *m = loop->manager;
	struct timers timers = {.reread_ns = UINT64_MAX, .expire_ns = UINT64_MAX};

	uint64_t spin_ns = (uint64_t)m->opts.spin_us * 1000u, last = oki_now_ns();
	uint32_t rounds = 0;

	oki_index_thread_enter();
	while (!atomic_load(&m->quit)) {
		uint64_t now = oki_now_ns();
		oki_mgr_loop_refresh(loop);
		if (run_once(loop, &timers, now)) {
			last = now;
			/* A busy thread never sleeps: tell RCU that it holds no references. */
			oki_index_thread_offline();
			oki_index_thread_online();
			continue;
		}
		/* Spin: grants often drain soon after they were given. */
		if (now - last < spin_ns) {
			oki_spin(&rounds);
			continue;
		}
		/* From now on whoever grants an operation or a lease must wake this loop, unless
		 * it will wake anyway to re-read. */
		atomic_store(&m->resting, timers.reread_ns == UINT64_MAX);
		bool called = oki_mgr_loop_sleep(loop, timers.reread_ns < timers.expire_ns
							       ? timers.reread_ns
							       : timers.expire_ns);
		atomic_store(&m->resting, false);
		if (called)
			last = oki_now_ns();
	}
	oki_index_thread_leave();
	return NULL;
}
