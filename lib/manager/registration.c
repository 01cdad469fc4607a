/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Socket messages: hello, namespace, drop, arena, bind, unbind, status. Control thread only. */
#include "manager/manager_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"

/* One message while it is answered. A handler returns 0, or an error that refuses the message. */
struct incoming {
	struct okv_manager *m;
	struct oki_mgr_conn *conn;
	const struct oki_message *message;
};

static int reply(const struct incoming *in, uint32_t kind, const void *body, uint32_t bytes,
		 const int *fds, uint32_t fd_count, struct okv_error *err)
{
	return oki_message_send(in->conn->fd, kind, in->message->head.serial, 0, body, bytes, fds,
				fd_count, err);
}

static int expect_body(const struct incoming *in, size_t bytes, struct okv_error *err)
{
	if (in->message->body_bytes == bytes)
		return 0;
	return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
			"message %u has %u bytes where %zu belong", in->message->head.kind,
			in->message->body_bytes, bytes);
}

static int welcome(const struct incoming *in, struct oki_mgr_session *s, struct okv_error *err)
{
	struct okv_manager *m = in->m;
	const struct okw_welcome body = {
		.epoch = m->epoch,
		.token = s->token,
		.slot = s->slot,
		.arena_count = m->shards.count,
		.control_bytes = OKW_CONTROL_BYTES,
		.request_area_bytes = OKW_REQUEST_AREA_BYTES,
		.lease_ttl_ms = m->opts.lease_ttl_ms,
		.part_bytes = m->opts.part_bytes,
	};
	const int fds[4] = {s->channel.request_fd, s->channel.control_fd,
			    s->channel.engine_doorbell, s->channel.manager_doorbell};

	return reply(in, OKW_MSG_WELCOME, &body, sizeof(body), fds, 4, err);
}

static int hello(const struct incoming *in, struct okv_error *err)
{
	struct okv_manager *m = in->m;
	struct okw_hello theirs = {.bootstrap_version = 0};
	struct oki_mgr_session *s;
	uint32_t bytes = in->message->body_bytes;

	if (bytes)
		memcpy(&theirs, in->message->body, bytes < sizeof(theirs) ? bytes : sizeof(theirs));
	int rc = oki_hello_check(&theirs, bytes, err);
	if (rc)
		return rc;
	if (atomic_load(&m->draining))
		return oki_fail(err, OKV_E_CLOSED, OKV_STAGE_CONNECT, "the Manager is draining");
	rc = oki_mgr_session_create(m, in->conn, &theirs, &s, err);
	if (rc)
		return rc;
	rc = oki_mgr_conn_watch(m, in->conn, s, err);
	if (!rc)
		rc = welcome(in, s, err);
	if (rc) {
		oki_mgr_conn_unwatch(m, s);
		oki_mgr_session_put(s);
		return rc;
	}
	oki_channel_sent(&s->channel);
	in->conn->session = s;
	m->pending_conns--;
	oki_mgr_session_enter(s);
	oki_log(&m->log, OKV_LOG_INFO, "session %u (%s, pid %d, uid %u): connected%s", s->slot,
		s->name, (int)s->pid, (unsigned)in->conn->peer.uid,
		s->restore_only ? ", restores only" : "");
	return 0;
}

/* Records of the session may use the namespace from now on. */
static int add_namespace(struct oki_mgr_session *s, uint32_t id, struct okv_error *err)
{
	uint32_t words = id / 64 + 1;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	if (words > s->namespace_words) {
		uint64_t *grown = realloc(s->namespaces, words * sizeof(*grown));
		if (grown) {
			memset(grown + s->namespace_words, 0,
			       (words - s->namespace_words) * sizeof(*grown));
			s->namespaces = grown;
			s->namespace_words = words;
		} else {
			rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER,
				      "no memory for a namespace");
		}
	}
	if (!rc)
		s->namespaces[id / 64] |= 1ull << (id % 64);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static int open_namespace(const struct incoming *in, struct okv_error *err)
{
	struct oki_index *index = in->m->index;
	struct okw_namespace_reply body = {.reserved = 0};
	int rc = oki_index_namespace(index, in->message->body, in->message->body_bytes,
				     &body.namespace_id, err);
	if (rc)
		return rc;
	const struct oki_schema *schema = oki_index_schema(index, body.namespace_id);
	for (uint32_t g = 0; g < schema->group_count; g++)
		if (schema->groups[g].payload_bytes > UINT32_MAX)
			return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_REGISTER,
					"group %u: a block of %llu bytes; %u are possible", g,
					(unsigned long long)schema->groups[g].payload_bytes,
					UINT32_MAX);
	rc = add_namespace(in->conn->session, body.namespace_id, err);
	if (rc)
		return rc;
	return reply(in, OKW_MSG_NAMESPACE, &body, sizeof(body), NULL, 0, err);
}

static int drop_namespace(const struct incoming *in, struct okv_error *err)
{
	struct oki_mgr_session *s = in->conn->session;
	struct okw_drop ask;

	int rc = expect_body(in, sizeof(ask), err);
	if (rc)
		return rc;
	memcpy(&ask, in->message->body, sizeof(ask));
	if (!oki_mgr_session_has_namespace(s, ask.namespace_id))
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_REGISTER, "unknown namespace %u",
				ask.namespace_id);
	if (s->restore_only)
		return oki_fail(err, OKV_E_PERM, OKV_STAGE_REGISTER,
				"the session may only restore");
	rc = oki_index_drop(in->m->index, ask.namespace_id, err);
	if (rc)
		return rc;
	oki_log(&in->m->log, OKV_LOG_INFO, "session %u (%s): dropped namespace %u", s->slot,
		s->name, ask.namespace_id);
	return reply(in, OKW_MSG_DROP, NULL, 0, NULL, 0, err);
}

static int send_arena(const struct incoming *in, struct okv_error *err)
{
	const struct okv_manager *m = in->m;
	bool read_only = in->conn->session->restore_only;
	struct okw_arena_ask ask;
	char path[40];

	int rc = expect_body(in, sizeof(ask), err);
	if (rc)
		return rc;
	memcpy(&ask, in->message->body, sizeof(ask));
	if (ask.index >= m->shards.count)
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_IMPORT, "arena %u of %u", ask.index,
				m->shards.count);
	const struct oki_shard *shard = &m->shards.shards[ask.index];
	const struct okw_arena_reply body = {
		.arena = ask.index,
		.huge = shard->huge,
		.bytes = shard->bytes,
		.inode = shard->inode,
		.node = shard->node,
		.writable = !read_only,
	};
	/* Open the memfd again, for reading. With the first descriptor the peer could map the arena
	 * writable, however it maps it at first. */
	OKI_FD reopened = -1;
	if (read_only) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", shard->fd);
		reopened = open(path, O_RDONLY | O_CLOEXEC);
		if (reopened < 0)
			return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_IMPORT, errno,
					   "cannot reopen arena %u", ask.index);
	}
	return reply(in, OKW_MSG_ARENA, &body, sizeof(body), read_only ? &reopened : &shard->fd, 1,
		     err);
}

/* [locked] A free place, with an id that was never used. */
static struct oki_mgr_binding *free_binding(struct oki_mgr_session *s, uint32_t *ret_id)
{
	for (uint32_t b = 0; b < OKI_MGR_BINDINGS; b++) {
		struct oki_mgr_binding *binding = &s->bindings[b];
		if (binding->id || binding->generation == UINT32_MAX / OKI_MGR_BINDINGS)
			continue;
		*ret_id = ++binding->generation * OKI_MGR_BINDINGS + b;
		return binding;
	}
	return NULL;
}

static int bind_rank(const struct incoming *in, struct okv_error *err)
{
	struct okv_manager *m = in->m;
	struct oki_mgr_session *s = in->conn->session;
	struct okw_bind_reply body = {.reserved = 0};
	struct okw_bind ask;

	int rc = expect_body(in, sizeof(ask), err);
	if (rc)
		return rc;
	memcpy(&ask, in->message->body, sizeof(ask));
	if (!oki_mgr_session_has_namespace(s, ask.namespace_id))
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_REGISTER, "unknown namespace %u",
				ask.namespace_id);
	uint32_t rank_slots = oki_index_schema(m->index, ask.namespace_id)->rank_slots;
	if (ask.rank_slot >= rank_slots)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"rank slot %u of a namespace that has %u", ask.rank_slot,
				rank_slots);
	struct oki_mgr_device *device = oki_mgr_device_get(&m->permits, ask.device_id);
	if (!device)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a binding");
	pthread_mutex_lock(&s->lock);
	struct oki_mgr_binding *binding = free_binding(s, &body.binding_id);
	if (binding) {
		binding->id = body.binding_id;
		binding->namespace_id = ask.namespace_id;
		binding->rank_slot = ask.rank_slot;
		binding->node = ask.node;
		binding->device = device;
	}
	pthread_mutex_unlock(&s->lock);
	if (!binding) {
		oki_mgr_device_put(&m->permits, device);
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_REGISTER,
				"a session may have %u bindings", OKI_MGR_BINDINGS);
	}
	return reply(in, OKW_MSG_BIND, &body, sizeof(body), NULL, 0, err);
}

/* Running operations keep their reference to the device, and their permits, until they end. */
static int unbind_rank(const struct incoming *in, struct okv_error *err)
{
	struct oki_mgr_session *s = in->conn->session;
	struct oki_mgr_device *device = NULL;
	struct okw_bind_reply ask;

	int rc = expect_body(in, sizeof(ask), err);
	if (rc)
		return rc;
	memcpy(&ask, in->message->body, sizeof(ask));
	pthread_mutex_lock(&s->lock);
	struct oki_mgr_binding *binding = oki_mgr_session_binding(s, ask.binding_id);
	if (binding) {
		device = binding->device;
		binding->id = 0;
		binding->device = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	if (!device)
		return oki_fail(err, OKV_E_NOENT, OKV_STAGE_REGISTER, "unknown binding %u",
				ask.binding_id);
	oki_mgr_device_put(&in->m->permits, device);
	return reply(in, OKW_MSG_UNBIND, NULL, 0, NULL, 0, err);
}

static_assert(sizeof(struct okv_manager_status) == sizeof(struct okw_status_reply),
	      "every counter has its place in the reply");
#define TO_WIRE(field) .field = status.field,

static int send_status(const struct incoming *in, struct okv_error *err)
{
	struct okv_manager_status status;

	oki_mgr_status_fill(in->m, &status);
	const struct okw_status_reply body = {OKW_STATUS_FIELDS(TO_WIRE)};
	return reply(in, OKW_MSG_STATUS, &body, sizeof(body), NULL, 0, err);
}

/* A message before hello. Only a hello that is answered keeps the connection. */
static int first_message(const struct incoming *in, struct okv_error *err)
{
	if (!in->conn->allowed)
		return oki_fail(err, OKV_E_PERM, OKV_STAGE_CONNECT,
				"uid %u may not use the Manager of uid %u",
				(unsigned)in->conn->peer.uid, (unsigned)geteuid());
	switch (in->message->head.kind) {
	case OKW_MSG_HELLO: return hello(in, err);
	case OKW_MSG_STATUS: return send_status(in, err);
	default:
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, "message %u before hello",
				in->message->head.kind);
	}
}

static int later_message(const struct incoming *in, struct okv_error *err)
{
	switch (in->message->head.kind) {
	case OKW_MSG_NAMESPACE: return open_namespace(in, err);
	case OKW_MSG_ARENA: return send_arena(in, err);
	case OKW_MSG_DROP: return drop_namespace(in, err);
	case OKW_MSG_BIND: return bind_rank(in, err);
	case OKW_MSG_UNBIND: return unbind_rank(in, err);
	case OKW_MSG_STATUS: return send_status(in, err);
	default:
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER, "unexpected message %u",
				in->message->head.kind);
	}
}

bool oki_mgr_message(struct okv_manager *m, struct oki_mgr_conn *conn,
		     const struct oki_message *message)
{
	const struct incoming in = {.m = m, .conn = conn, .message = message};
	struct okv_error err;
	bool first = !conn->session;
	int rc;

	if (message->head.fd_count)
		rc = oki_fail(&err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
			      "a message that brings descriptors");
	else
		rc = first ? first_message(&in, &err) : later_message(&in, &err);
	if (!rc)
		return conn->session;
	if (first || rc == OKV_E_PROTOCOL)
		oki_log(&m->log, OKV_LOG_WARN, "pid %d, uid %u: refused: %s", (int)conn->peer.pid,
			(unsigned)conn->peer.uid, err.text);
	int sent = oki_message_refuse(conn->fd, OKW_MSG_REFUSED, message->head.serial, &err);
	/* Close the connection of a peer that breaks the protocol or does not read its replies. */
	return !first && !sent && okv_status_group(rc) != OKV_STATUS_GROUP_SESSION;
}
