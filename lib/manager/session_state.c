/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Questions about a session, and its failure when the peer broke the protocol. */
#include "manager/manager_private.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>

bool oki_mgr_session_dead(const struct oki_mgr_session *s)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};

	return s->pidfd >= 0 && poll(&p, 1, 0) == 1;
}

bool oki_mgr_session_has_namespace(const struct oki_mgr_session *s, uint32_t namespace_id)
{
	return namespace_id / 64 < s->namespace_words &&
	       s->namespaces[namespace_id / 64] >> (namespace_id % 64) & 1;
}

struct oki_mgr_binding *oki_mgr_session_binding(struct oki_mgr_session *s, uint32_t binding_id)
{
	struct oki_mgr_binding *binding = &s->bindings[binding_id % OKI_MGR_BINDINGS];

	return binding_id && binding->id == binding_id ? binding : NULL;
}

void oki_mgr_session_fail(struct oki_mgr_session *s, const char *fmt, ...)
{
	va_list args;

	if (atomic_load(&s->lost))
		return;
	va_start(args, fmt);
	vsnprintf(s->failure, sizeof(s->failure), fmt, args);
	va_end(args);
	oki_log(&s->manager->log, OKV_LOG_WARN, "session %u (%s, pid %d) dropped: %s", s->slot,
		s->name, (int)s->pid, s->failure);
	s->failed = true;
	atomic_store(&s->lost, true);
}
