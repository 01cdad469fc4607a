/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Registration calls: one message and its reply over the socket. */
#include "engine/engine_private.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

int oki_rpc_connect(struct okv_engine *engine, const char *socket_path, struct okv_error *err)
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
	OKI_FD fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socket");
	int rc;
	do {
		rc = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	} while (rc && errno == EINTR);
	if (rc)
		return oki_fail_os(err, OKV_E_CONNECT, OKV_STAGE_CONNECT, errno,
				   "no Manager answers at %s", addr.sun_path);
	bool named = engine->options.flags & OKV_ENGINE_TRUST_UID;
	rc = oki_peer_trust(fd, addr.sun_path, named ? &engine->options.trust_uid : NULL, err);
	if (rc)
		return rc;
	engine->sock = oki_fd_take(&fd);
	return 0;
}

static int reply_error(const struct oki_message *m, uint32_t kind, struct okv_error *err)
{
	enum okv_stage stage = kind == OKW_MSG_HELLO ? OKV_STAGE_CONNECT : OKV_STAGE_REGISTER;
	return oki_fail(err, oki_peer_status(m->head.status), stage, "%.*s",
			(int)(m->body_bytes < 200 ? m->body_bytes : 200), (const char *)m->body);
}

/* Receive until the reply to serial comes; earlier serials are of calls that timed out. */
static int receive_reply(struct okv_engine *engine, uint32_t serial,
			 struct oki_message *ret_message, struct okv_error *err)
{
	uint64_t deadline = oki_deadline_ns(engine->options.connect_timeout_ms);
	for (;;) {
		int left = -1;
		if (deadline != UINT64_MAX) {
			uint64_t now = oki_now_ns();
			left = now < deadline ? (int)((deadline - now + 999999) / 1000000) : 0;
		}
		int rc = oki_message_receive(engine->sock, left, ret_message, err);
		if (rc == OKV_E_TIMEOUT)
			return oki_fail(err, rc, OKV_STAGE_CONNECT,
					"the Manager did not answer within %d ms",
					engine->options.connect_timeout_ms);
		if (rc)
			return rc;
		if (ret_message->head.serial == serial || ret_message->head.kind == OKW_MSG_REFUSED)
			return 0;
		oki_message_fini(ret_message);
	}
}

static int call(struct okv_engine *engine, uint32_t kind, uint32_t reply_kind, const void *body,
		uint32_t bytes, struct oki_message *ret_message, struct okv_error *err)
{
	if (engine->sock < 0)
		return oki_fail(err, OKV_E_CLOSED, OKV_STAGE_REGISTER, "the engine is closed");
	uint32_t serial = ++engine->rpc_serial;
	int rc = oki_message_send(engine->sock, kind, serial, 0, body, bytes, NULL, 0, err);
	/* Receive even after OKV_E_SESSION: a Manager that refuses the connection sends the reason
	 * before it hangs up. */
	if (rc && rc != OKV_E_SESSION)
		return rc;
	rc = receive_reply(engine, serial, ret_message, err);
	if (rc)
		return rc;
	if (ret_message->head.status || ret_message->head.kind != reply_kind) {
		rc = reply_error(ret_message, kind, err);
		oki_message_fini(ret_message);
	}
	return rc;
}

int oki_rpc(struct okv_engine *engine, uint32_t kind, const void *body, uint32_t bytes,
	    void *ret_reply, uint32_t reply_bytes, int *ret_fd, struct okv_error *err)
{
	struct oki_message m = {0};
	uint32_t fds = ret_fd ? 1 : 0;
	pthread_mutex_lock(&engine->rpc_lock);
	int rc = call(engine, kind, kind, body, bytes, &m, err);
	pthread_mutex_unlock(&engine->rpc_lock);
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

int oki_rpc_hello(struct okv_engine *engine, struct okv_error *err)
{
	struct okw_hello hello;
	uint32_t flags =
		engine->options.flags & OKV_ENGINE_RESTORE_ONLY ? OKW_HELLO_RESTORE_ONLY : 0;
	oki_hello_init(&hello, program_invocation_short_name, flags);
	struct oki_message m = {0};
	pthread_mutex_lock(&engine->rpc_lock);
	int rc = call(engine, OKW_MSG_HELLO, OKW_MSG_WELCOME, &hello, sizeof(hello), &m, err);
	pthread_mutex_unlock(&engine->rpc_lock);
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
