/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Waking threads of the Manager, and the engine of a session. */
#include "manager/manager_private.h"

#include <errno.h>
#include <unistd.h>

void oki_mgr_wake(int eventfd)
{
	int saved = errno;
	uint64_t one = 1;

	/* EAGAIN: at its maximum, so the edge is there already. */
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
	/* G1: flag, then "does it rest?"; the loop says that it rests, then looks at the flag. */
	atomic_store(&m->retire_wanted, true);
	if (atomic_exchange(&m->resting, false))
		oki_mgr_wake(m->retire.wake);
}

void oki_mgr_announce(struct oki_mgr_session *s, uint32_t i, bool moved)
{
	/* G1: the look at the flag follows the move, as the spinner's look at the tag follows its
	 * store of the flag: one of the two sees the other. */
	if (moved && atomic_load(&oki_mgr_record(s, i)->engine_flags) & OKW_ENGINE_SPINNING)
		return;
	oki_doorbell_ring(&s->channel.control->engine, s->channel.engine_doorbell, i);
}
