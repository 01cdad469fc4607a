/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Operations that wait for space in the plan bank, in order. */
#include "manager/manager_private.h"

static void waiting_append(struct oki_mgr_session *s, uint32_t i)
{
	s->ops[i].next_waiting = OKI_MGR_NONE;
	if (s->waiting_last == OKI_MGR_NONE)
		s->waiting_first = i;
	else
		s->ops[s->waiting_last].next_waiting = i;
	s->waiting_last = i;
}

void oki_mgr_grant(struct oki_mgr_session *s, uint32_t i)
{
	waiting_append(s, i);
	oki_mgr_grant_waiting(s);
	if (s->ops[i].phase == OKI_MGR_WAITING)
		oki_mgr_wake_retire(s->manager);
}

void oki_mgr_grant_waiting(struct oki_mgr_session *s)
{
	while (s->waiting_first != OKI_MGR_NONE && !atomic_load(&s->lost)) {
		uint32_t i = s->waiting_first;
		int rc = oki_mgr_grant_first(s);

		if (rc == OKV_E_AGAIN)
			return;
		if (rc)
			oki_mgr_end_early(s, i, rc, "no memory for its plan");
	}
}
