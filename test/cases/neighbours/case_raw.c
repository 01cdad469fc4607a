/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that speaks the protocol by hand. */
#include "cases/neighbours/case_raw.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire/wire.h"

int case_raw_hello(const char *socket_path, uint32_t flags)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct {
		struct okw_msg head;
		struct okw_hello body;
	} hello = {
		.head = {.magic = OKW_MAGIC, .kind = OKW_MSG_HELLO, .bytes = sizeof(hello)},
		.body =
			{
				.bootstrap_version = 1,
				.protocol_version = 1,
				.schema_version = 1,
				.hello_bytes = sizeof(struct okw_hello),
				.record_bytes = sizeof(struct okw_record),
				.control_bytes = OKW_CONTROL_BYTES,
				.request_area_bytes = OKW_REQUEST_AREA_BYTES,
				.flags = flags,
				.name = "by hand",
			},
	};
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", socket_path);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -1;
	if (connect(s, (const struct sockaddr *)&to, sizeof(to)) ||
	    send(s, &hello, sizeof(hello), MSG_NOSIGNAL) < 0) {
		close(s);
		return -1;
	}
	return s;
}

int case_raw_ask_arena(int s)
{
	struct {
		struct okw_msg head;
		struct okw_arena_ask body;
	} ask = {.head = {.magic = OKW_MAGIC, .kind = OKW_MSG_ARENA, .bytes = sizeof(ask)}};
	return send(s, &ask, sizeof(ask), MSG_NOSIGNAL) < 0 ? -1 : 0;
}

int case_raw_descriptor(int s)
{
	char body[4096], control[256];
	struct iovec part = {body, sizeof(body)};
	struct msghdr m = {.msg_iov = &part,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control)};
	int fd = -1;
	if (recvmsg(s, &m, MSG_CMSG_CLOEXEC) <= 0)
		return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}
