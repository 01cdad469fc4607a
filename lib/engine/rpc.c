/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Registration calls: one message and its reply over the socket. */
#include "engine/engine_private.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/error.h"
#include "base/fd.h"

int oki_rpc_connect(struct okv_engine *engine, const char *socket_path, uint64_t deadline_ns,
		    struct okv_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (socket_path) {
		if (!*socket_path)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					"the socket path is empty");
		if (strlen(socket_path) >= sizeof(addr.sun_path))
			return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
					"socket path is longer than %zu bytes",
					sizeof(addr.sun_path) - 1);
		strcpy(addr.sun_path, socket_path);
	} else if (okv_default_socket_path(addr.sun_path, sizeof(addr.sun_path))) {
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"the default socket path is too long");
	}
	bool named = engine->options.flags & OKV_ENGINE_TRUST_UID;
	return oki_connect(&addr, deadline_ns, named ? &engine->options.trust_uid : NULL,
			   &engine->sock, err);
}

static int reply_error(const struct oki_message *m, uint32_t kind, struct okv_error *err)
{
	enum okv_stage stage = kind == OKW_MSG_HELLO ? OKV_STAGE_CONNECT : OKV_STAGE_REGISTER;
	return oki_fail(err, oki_peer_status(m->head.status), stage, "%.*s",
			(int)(m->body_bytes < 200 ? m->body_bytes : 200), (const char *)m->body);
}

/* Receive until the reply to serial comes; earlier serials are of calls that timed out. */
static int receive_reply(struct okv_engine *engine, uint32_t serial, uint64_t deadline_ns,
			 struct oki_message *ret_message, struct okv_error *err)
{
	for (;;) {
		int rc = oki_message_receive(engine->sock, oki_left_ms(deadline_ns), ret_message,
					     err);
		if (rc)
			return rc;
		if (ret_message->head.serial == serial || ret_message->head.kind == OKW_MSG_REFUSED)
			return 0;
		oki_message_fini(ret_message);
		/* A peer that sends other messages without end would never let receive time out. */
		if (oki_now_ns() >= deadline_ns)
			return OKV_E_TIMEOUT;
	}
}

static int call(struct okv_engine *engine, uint32_t kind, uint32_t reply_kind, const void *body,
		uint32_t bytes, uint64_t deadline_ns, struct oki_message *ret_message,
		struct okv_error *err)
{
	if (engine->sock < 0)
		return oki_fail(err, OKV_E_CLOSED, OKV_STAGE_REGISTER, "the engine is closed");
	uint32_t serial = ++engine->rpc_serial;
	int rc = oki_message_send_by(engine->sock, deadline_ns, kind, serial, body, bytes, err);
	/* Receive even after OKV_E_SESSION: a Manager that refuses the connection sends the reason
	 * before it hangs up. */
	if (rc && rc != OKV_E_SESSION)
		return rc;
	rc = receive_reply(engine, serial, deadline_ns, ret_message, err);
	if (rc)
		return rc;
	if (ret_message->head.status || ret_message->head.kind != reply_kind) {
		rc = reply_error(ret_message, kind, err);
		oki_message_fini(ret_message);
	}
	return rc;
}

/* False: the deadline passed while other threads' calls waited for their answers. */
static bool enter(struct okv_engine *engine, uint64_t deadline_ns)
{
	bool in_time = true;
	pthread_mutex_lock(&engine->rpc_lock);
	while (engine->rpc_busy && in_time)
		in_time = oki_cond_wait(&engine->rpc_idle, &engine->rpc_lock, deadline_ns);
	bool entered = !engine->rpc_busy;
	engine->rpc_busy = true;
	pthread_mutex_unlock(&engine->rpc_lock);
	return entered;
}

static void leave(struct okv_engine *engine)
{
	pthread_mutex_lock(&engine->rpc_lock);
	engine->rpc_busy = false;
	pthread_cond_signal(&engine->rpc_idle);
	pthread_mutex_unlock(&engine->rpc_lock);
}

/* One call at a time, which has the socket to itself. */
static int call_alone(struct okv_engine *engine, uint32_t kind, uint32_t reply_kind,
		      const void *body, uint32_t bytes, uint64_t deadline_ns,
		      struct oki_message *ret_message, struct okv_error *err)
{
	int rc = OKV_E_TIMEOUT;
	if (enter(engine, deadline_ns)) {
		rc = call(engine, kind, reply_kind, body, bytes, deadline_ns, ret_message, err);
		leave(engine);
	}
	if (rc == OKV_E_TIMEOUT)
		return oki_fail(err, rc, OKV_STAGE_CONNECT,
				"the Manager did not answer within %d ms",
				engine->options.connect_timeout_ms);
	return rc;
}

void oki_rpc_close(struct okv_engine *engine)
{
	enter(engine, UINT64_MAX);
	/* A forked child may hold this socket open; the session ends all the same. */
	if (engine->sock >= 0)
		shutdown(engine->sock, SHUT_RDWR);
	oki_fd_close(&engine->sock);
	leave(engine);
}

int oki_rpc(struct okv_engine *engine, uint32_t kind, const void *body, uint32_t bytes,
	    void *ret_reply, uint32_t reply_bytes, int *ret_fd, struct okv_error *err)
{
	struct oki_message m = {0};
	uint32_t fds = ret_fd ? 1 : 0;
	int timeout_ms = engine->options.connect_timeout_ms;
	/* A call that releases something ends, whatever the Manager does. */
	if (timeout_ms < 0 && kind == OKW_MSG_UNBIND)
		timeout_ms = OKI_RELEASE_TIMEOUT_MS;
	int rc = call_alone(engine, kind, kind, body, bytes, oki_deadline_ns(timeout_ms), &m, err);
	if (rc)
		return rc;
	if (m.body_bytes != reply_bytes || m.head.fd_count != fds) {
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
			      "reply of %u bytes and %u descriptor%s where %u and %u belong",
			      m.body_bytes, m.head.fd_count, oki_plural(m.head.fd_count),
			      reply_bytes, fds);
	} else {
		if (reply_bytes)
			memcpy(ret_reply, m.body, reply_bytes);
		if (ret_fd)
			*ret_fd = oki_fd_take(&m.fds[0]);
	}
	oki_message_fini(&m);
	return rc;
}

int oki_rpc_hello(struct okv_engine *engine, uint64_t deadline_ns, struct okv_error *err)
{
	struct okw_hello hello;
	uint32_t flags =
		engine->options.flags & OKV_ENGINE_RESTORE_ONLY ? OKW_HELLO_RESTORE_ONLY : 0;
	oki_hello_init(&hello, program_invocation_short_name, flags);
	struct oki_message m = {0};
	int rc = call_alone(engine, OKW_MSG_HELLO, OKW_MSG_WELCOME, &hello, sizeof(hello),
			    deadline_ns, &m, err);
	if (rc)
		return rc;
	if (m.body_bytes != sizeof(engine->welcome) || m.head.fd_count != 4) {
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
			      "welcome of %u bytes and %u descriptor%s", m.body_bytes,
			      m.head.fd_count, oki_plural(m.head.fd_count));
	} else {
		memcpy(&engine->welcome, m.body, sizeof(engine->welcome));
		rc = oki_channel_import(&engine->channel, m.fds, &engine->welcome, err);
	}
	oki_message_fini(&m);
	return rc;
}
