/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Read the status of a running Manager without a session. */
#include <orbitkv/manager.h>

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
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
	struct sockaddr_un addr;
	OKI_FD sock = -1;

	if (!ret_status)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "nowhere to put the status");
	int rc = take_address(socket_path, &addr, err);
	if (rc)
		return rc;
	uint64_t deadline = oki_deadline_ns(timeout_ms);
	rc = oki_connect(&addr, deadline, NULL, &sock, err);
	if (!rc)
		rc = oki_message_send_by(sock, deadline, OKW_MSG_STATUS, 1, NULL, 0, err);
	if (!rc)
		rc = oki_message_receive(sock, oki_left_ms(deadline), &message, err);
	if (rc == OKV_E_TIMEOUT)
		return oki_fail(err, rc, OKV_STAGE_CONNECT,
				"the Manager at %s did not answer within %d ms", addr.sun_path,
				timeout_ms);
	if (rc)
		return rc;
	rc = take_reply(&message, ret_status, err);
	oki_message_fini(&message);
	return rc;
}
