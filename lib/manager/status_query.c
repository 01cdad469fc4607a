/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Read the status of a running Manager without a session. */
#include <orbitkv/manager.h>

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/error.h"
#include "base/fd.h"
#include "wire/bootstrap.h"

static int take_address(const char *socket_path, struct sockaddr_un *ret_addr,
			struct okv_error *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int rc = 0;

	if (!socket_path)
		rc = okv_default_socket_path(addr.sun_path, sizeof(addr.sun_path));
	else if (*socket_path && strlen(socket_path) < sizeof(addr.sun_path))
		strcpy(addr.sun_path, socket_path);
	else
		rc = OKV_E_LIMIT;
	if (rc)
		return oki_fail(err, rc, OKV_STAGE_ARGUMENTS, "a socket path has 1 to %zu bytes",
				sizeof(addr.sun_path) - 1);
	*ret_addr = addr;
	return 0;
}

static int connect_to(const char *socket_path, int timeout_ms, int *ret_sock, struct okv_error *err)
{
	struct sockaddr_un addr;
	int rc = take_address(socket_path, &addr, err);
	if (rc)
		return rc;
	OKI_FD sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socket");
	/* Limits both connect(), which waits while the Manager's backlog is full, and send(). Zero
	 * would mean no limit, hence + 1. */
	const struct timeval wait = {.tv_sec = timeout_ms / 1000,
				     .tv_usec = timeout_ms % 1000 * 1000 + 1};
	if (timeout_ms >= 0 && setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)))
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "setsockopt");
	if (connect(sock, (struct sockaddr *)&addr, sizeof(addr)))
		return oki_fail_os(err, errno == EAGAIN ? OKV_E_TIMEOUT : OKV_E_CONNECT,
				   OKV_STAGE_CONNECT, errno, "no Manager answers at %s",
				   addr.sun_path);
	rc = oki_peer_trust(sock, addr.sun_path, NULL, err);
	if (rc)
		return rc;
	*ret_sock = oki_fd_take(&sock);
	return 0;
}

#define FROM_WIRE(field) .field = reply.field,

static int take_reply(const struct oki_message *message, struct okv_manager_status *ret_status,
		      struct okv_error *err)
{
	struct okw_status_reply reply;

	if (message->head.status)
		return oki_fail(err, oki_peer_status(message->head.status), OKV_STAGE_CONNECT,
				"%.*s",
				(int)(message->body_bytes < 200 ? message->body_bytes : 200),
				(const char *)message->body);
	if (message->head.kind != OKW_MSG_STATUS || message->body_bytes != sizeof(reply))
		return oki_fail(err, OKV_E_VERSION, OKV_STAGE_CONNECT,
				"the Manager's status has %u bytes, this side's %zu",
				message->body_bytes, sizeof(reply));
	memcpy(&reply, message->body, sizeof(reply));
	*ret_status = (struct okv_manager_status){OKW_STATUS_FIELDS(FROM_WIRE)};
	return 0;
}

int okv_manager_status_query(const char *socket_path, int timeout_ms,
			     struct okv_manager_status *ret_status, struct okv_error *err)
{
	struct oki_message message;
	int sock = -1;

	if (!ret_status)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "nowhere to put the status");
	int rc = connect_to(socket_path, timeout_ms, &sock, err);
	if (rc)
		return rc;
	rc = oki_message_send(sock, OKW_MSG_STATUS, 1, 0, NULL, 0, NULL, 0, err);
	if (!rc)
		rc = oki_message_receive(sock, timeout_ms, &message, err);
	oki_fd_close(&sock);
	if (rc)
		return rc;
	rc = take_reply(&message, ret_status, err);
	oki_message_fini(&message);
	return rc;
}
