/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Wake threads of the Manager and the engine of a session. */
#include "manager/manager_private.h"

#include <errno.h>
#include <unistd.h>

void oki_mgr_wake(int eventfd)
{
	int saved = errno;
	uint64_t one = 1;

	/* EAGAIN: the counter is at its maximum, so the event is there already. */
	while (write(eventfd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
	errno = saved;
}

void oki_mgr_loops_wake(struct okv_manager *m)
{
	oki_mgr_wake(m->retire.wake);
	for (uint32_t d = 0; d < m->dispatcher_count; d++)
		oki_mgr_wake(m->dispatchers[d].wake);
}

void oki_mgr_wake_retire(struct okv_manager *m)
{
	/* G1: store retire_wanted, then load resting; the loop stores resting, then loads
	 * retire_wanted. */
	atomic_store(&m->retire_wanted, true);
	if (atomic_exchange(&m->resting, false))
		oki_mgr_wake(m->retire.wake);
}

void oki_mgr_announce(struct oki_mgr_session *s, uint32_t i, bool moved)
{
	/* G1: the move, then the load of the flag. A spinner that stops clears the flag, then loads
	 * the tag. So either it sees the move, or this sees the flag cleared and rings. */
	if (moved && atomic_load(&oki_mgr_record(s, i)->engine_flags) & OKW_ENGINE_SPINNING)
		return;
	oki_doorbell_ring(&s->channel.control->engine, s->channel.engine_doorbell, i);
}
