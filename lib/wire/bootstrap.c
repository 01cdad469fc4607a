/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Socket messages with descriptors, counted exactly, and peer credentials. */
#include "wire/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

union fd_space {
	struct cmsghdr align;
	/* Room for one more than allowed: a surplus descriptor is received, counted and closed.
	 * With no room for it the kernel would drop it and report only MSG_CTRUNC. */
	char bytes[CMSG_SPACE(sizeof(int) * (OKW_MSG_MAX_FDS + 1))];
};

static int send_message(int sock, int flags, uint32_t kind, uint32_t serial, int32_t status,
			const void *body, uint32_t body_bytes, const int *fds, uint32_t fd_count,
			struct okv_error *err)
{
	if (body_bytes > OKW_MSG_MAX_BYTES - sizeof(struct okw_msg) || fd_count > OKW_MSG_MAX_FDS)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_CONNECT,
				"message of %u bytes and %u descriptor%s is above the limit",
				body_bytes, fd_count, oki_plural(fd_count));
	struct okw_msg head = {
		.magic = OKW_MAGIC,
		.kind = kind,
		.bytes = (uint32_t)sizeof(head) + body_bytes,
		.fd_count = fd_count,
		.status = status,
		.serial = serial,
	};
	struct iovec iov[2] = {
		{.iov_base = &head, .iov_len = sizeof(head)},
		{.iov_base = (void *)(uintptr_t)body, .iov_len = body_bytes},
	};
	union fd_space control;
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = body_bytes ? 2 : 1};
	if (fd_count) {
		memset(&control, 0, sizeof(control));
		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
	}
	ssize_t n;
	do {
		n = sendmsg(sock, &msg, MSG_NOSIGNAL | flags);
	} while (n < 0 && errno == EINTR);
	if (n == (ssize_t)head.bytes)
		return 0;
	if (n >= 0)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, "message was cut short");
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return oki_fail(err, OKV_E_AGAIN, OKV_STAGE_CONNECT, "the peer reads too slowly");
	return oki_fail_os(err, OKV_E_SESSION, OKV_STAGE_CONNECT, errno, "cannot send");
}

int oki_message_send(int sock, uint32_t kind, uint32_t serial, int32_t status, const void *body,
		     uint32_t body_bytes, const int *fds, uint32_t fd_count, struct okv_error *err)
{
	return send_message(sock, 0, kind, serial, status, body, body_bytes, fds, fd_count, err);
}

int oki_message_refuse(int sock, uint32_t kind, uint32_t serial, const struct okv_error *why)
{
	return oki_message_send(sock, kind, serial, why->status, why->text,
				(uint32_t)strnlen(why->text, sizeof(why->text) - 1), NULL, 0, NULL);
}

/* 0, OKV_E_TIMEOUT without an err, or OKV_E_SESSION. */
static int wait_for(int sock, short events, uint64_t deadline_ns, struct okv_error *err)
{
	for (;;) {
		struct pollfd p = {.fd = sock, .events = events};
		int n = poll(&p, 1, oki_left_ms(deadline_ns));
		if (n > 0)
			return 0;
		if (n == 0)
			return OKV_E_TIMEOUT;
		if (errno != EINTR)
			return oki_fail_os(err, OKV_E_SESSION, OKV_STAGE_CONNECT, errno, "poll");
	}
}

int oki_message_send_by(int sock, uint64_t deadline_ns, uint32_t kind, uint32_t serial,
			const void *body, uint32_t body_bytes, struct okv_error *err)
{
	for (;;) {
		int rc = send_message(sock, MSG_DONTWAIT, kind, serial, 0, body, body_bytes, NULL,
				      0, err);
		if (rc != OKV_E_AGAIN)
			return rc;
		rc = wait_for(sock, POLLOUT, deadline_ns, err);
		if (rc == OKV_E_TIMEOUT)
			return oki_fail(err, rc, OKV_STAGE_CONNECT,
					"the peer reads no messages in time");
		if (rc)
			return rc;
	}
}

/* Collect every descriptor of every control message; close and count those above the limit. */
static uint32_t take_fds(struct msghdr *msg, int fds[OKW_MSG_MAX_FDS])
{
	uint32_t count = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (count < OKW_MSG_MAX_FDS)
				fds[count] = fd;
			else
				close(fd);
			count++;
		}
	}
	return count;
}

static int check_message(const struct oki_message *m, size_t received, uint32_t fds, int flags,
			 struct okv_error *err)
{
	if (flags & (MSG_TRUNC | MSG_CTRUNC))
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
				"message truncated: too long, or this process is at its descriptor "
				"limit");
	if (received < sizeof(m->head) || m->head.magic != OKW_MAGIC)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
				"not a message of this protocol (%zu bytes)", received);
	if (m->head.bytes != received)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
				"message says %u bytes and has %zu", m->head.bytes, received);
	if (m->head.fd_count != fds)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
				"message promises %u descriptor%s and carries %u", m->head.fd_count,
				oki_plural(m->head.fd_count), fds);
	return 0;
}

int oki_message_receive(int sock, int timeout_ms, struct oki_message *ret_message,
			struct okv_error *err)
{
	struct oki_message m = {.fds = {-1, -1, -1, -1}};
	int rc = wait_for(sock, POLLIN, oki_deadline_ns(timeout_ms), err);
	if (rc == OKV_E_TIMEOUT)
		return oki_fail(err, rc, OKV_STAGE_CONNECT, "no answer within %d ms", timeout_ms);
	if (rc)
		return rc;
	uint8_t *body = malloc(OKW_MSG_MAX_BYTES);
	if (!body)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a message");
	struct iovec iov[2] = {
		{.iov_base = &m.head, .iov_len = sizeof(m.head)},
		{.iov_base = body, .iov_len = OKW_MSG_MAX_BYTES - sizeof(m.head)},
	};
	union fd_space control;
	struct msghdr msg = {.msg_iov = iov,
			     .msg_iovlen = 2,
			     .msg_control = control.bytes,
			     .msg_controllen = sizeof(control.bytes)};
	ssize_t n;
	do {
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | (timeout_ms >= 0 ? MSG_DONTWAIT : 0));
	} while (n < 0 && errno == EINTR);
	if (n <= 0) {
		int os = n < 0 ? errno : 0;
		free(body);
		if (n < 0 && (os == EAGAIN || os == EWOULDBLOCK))
			return oki_fail(err, OKV_E_TIMEOUT, OKV_STAGE_CONNECT, "no message");
		return oki_fail_os(err, OKV_E_SESSION, OKV_STAGE_CONNECT, os, "the peer hung up");
	}
	uint32_t fds = take_fds(&msg, m.fds);
	rc = check_message(&m, (size_t)n, fds, msg.msg_flags, err);
	if (rc) {
		for (uint32_t i = 0; i < OKW_MSG_MAX_FDS; i++)
			oki_fd_close(&m.fds[i]);
		free(body);
		return rc;
	}
	m.body_bytes = m.head.bytes - (uint32_t)sizeof(m.head);
	m.body = body;
	*ret_message = m;
	return 0;
}

void oki_message_fini(struct oki_message *message)
{
	for (uint32_t i = 0; i < OKW_MSG_MAX_FDS; i++)
		oki_fd_close(&message->fds[i]);
	free(message->body);
	message->body = NULL;
	message->body_bytes = 0;
}

int oki_peer_get(int sock, struct oki_peer *ret_peer, struct okv_error *err)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return oki_fail_os(err, OKV_E_PERM, OKV_STAGE_CONNECT, errno,
				   "cannot read the peer's credentials");
	*ret_peer = (struct oki_peer){.pid = cred.pid, .uid = cred.uid, .gid = cred.gid};
	return 0;
}

int oki_peer_trust(int sock, const char *path, const uint32_t *trusted, struct okv_error *err)
{
	struct oki_peer peer;
	int rc = oki_peer_get(sock, &peer, err);
	if (rc)
		return rc;
	/* Another user's socket in a shared directory must not give this process memory; root may
	 * serve any process. */
	if (peer.uid == geteuid() || peer.uid == 0 || (trusted && peer.uid == *trusted))
		return 0;
	return oki_fail(err, OKV_E_PERM, OKV_STAGE_CONNECT,
			"the Manager at %s runs as uid %u, which this process does not trust", path,
			(unsigned)peer.uid);
}

/* The kernel has no poll() for connect(), which waits while the peer's queue is full. */
static int limit_connect(int sock, uint64_t deadline_ns)
{
	if (deadline_ns == UINT64_MAX)
		return 0;
	uint64_t now = oki_now_ns();
	uint64_t left = deadline_ns > now ? (deadline_ns - now) / 1000 : 0;
	/* Zero would mean no limit. */
	left = left ? left : 1;
	const struct timeval wait = {.tv_sec = (time_t)(left / 1000000),
				     .tv_usec = (suseconds_t)(left % 1000000)};
	return setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

int oki_connect(const struct sockaddr_un *addr, uint64_t deadline_ns, const uint32_t *trusted,
		int *ret_sock, struct okv_error *err)
{
	OKI_FD sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socket");
	int rc;
	do {
		if (limit_connect(sock, deadline_ns))
			return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno,
					   "setsockopt");
		rc = connect(sock, (const struct sockaddr *)addr, sizeof(*addr));
	} while (rc && errno == EINTR);
	if (rc && errno == EAGAIN)
		return oki_fail(err, OKV_E_TIMEOUT, OKV_STAGE_CONNECT,
				"the Manager at %s takes no connection in time", addr->sun_path);
	if (rc)
		return oki_fail_os(err, OKV_E_CONNECT, OKV_STAGE_CONNECT, errno,
				   "no Manager answers at %s", addr->sun_path);
	rc = oki_peer_trust(sock, addr->sun_path, trusted, err);
	if (rc)
		return rc;
	*ret_sock = oki_fd_take(&sock);
	return 0;
}

void oki_hello_init(struct okw_hello *hello, const char *name, uint32_t flags)
{
	memset(hello, 0, sizeof(*hello));
	hello->bootstrap_version = OKW_BOOTSTRAP_VERSION;
	hello->protocol_version = OKW_PROTOCOL_VERSION;
	hello->schema_version = OKW_SCHEMA_VERSION;
	hello->hello_bytes = sizeof(*hello);
	hello->record_bytes = sizeof(struct okw_record);
	hello->control_bytes = OKW_CONTROL_BYTES;
	hello->request_area_bytes = OKW_REQUEST_AREA_BYTES;
	hello->flags = flags;
	strncpy(hello->name, name, sizeof(hello->name) - 1);
}

int oki_hello_check(const struct okw_hello *theirs, uint32_t bytes, struct okv_error *err)
{
	struct okw_hello ours;
	oki_hello_init(&ours, "", 0);
	if (bytes < sizeof(theirs->bootstrap_version) * 4)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, "hello of %u bytes", bytes);
	const struct {
		const char *what;
		uint32_t a, b;
	} fields[] = {
		{"bootstrap version", theirs->bootstrap_version, ours.bootstrap_version},
		{"hello size", bytes, ours.hello_bytes},
		{"protocol version", theirs->protocol_version, ours.protocol_version},
		{"schema version", theirs->schema_version, ours.schema_version},
		{"hello size", theirs->hello_bytes, ours.hello_bytes},
		{"record size", theirs->record_bytes, ours.record_bytes},
		{"control size", theirs->control_bytes, ours.control_bytes},
		{"request area size", theirs->request_area_bytes, ours.request_area_bytes},
	};
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (fields[i].a != fields[i].b)
			return oki_fail(err, OKV_E_VERSION, OKV_STAGE_CONNECT,
					"%s: the peer has %u, this side %u; build both from one "
					"version",
					fields[i].what, fields[i].a, fields[i].b);
	if (theirs->flags & ~OKW_HELLO_RESTORE_ONLY)
		return oki_fail(err, OKV_E_VERSION, OKV_STAGE_CONNECT,
				"the peer wants features 0x%x this side does not know",
				theirs->flags);
	if (!memchr(theirs->name, 0, sizeof(theirs->name)))
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, "unterminated name");
	return 0;
}
