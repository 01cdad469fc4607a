/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Socket messages with descriptors, counted exactly, and peer credentials. */
#ifndef OKI_WIRE_BOOTSTRAP_H
#define OKI_WIRE_BOOTSTRAP_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>
#include <orbitkv/status.h>
#include "wire/wire.h"

struct oki_message {
	struct okw_msg head;
	uint8_t *body; /* owned; head.bytes - sizeof(head) long; NULL when empty */
	uint32_t body_bytes;
	int fds[OKW_MSG_MAX_FDS]; /* owned; head.fd_count are valid, the rest -1 */
};

/*
 * Send one message. Never raises SIGPIPE, never blocks when the socket is nonblocking
 * (OKV_E_AGAIN). Borrows everything.
 */
int oki_message_send(int sock, uint32_t kind, uint32_t serial, int32_t status, const void *body,
		     uint32_t body_bytes, const int *fds, uint32_t fd_count, struct okv_error *err);

/* The same without descriptors, waiting until deadline_ns for a peer that reads too slowly, also on
 * a blocking socket. OKV_E_TIMEOUT. */
int oki_message_send_by(int sock, uint64_t deadline_ns, uint32_t kind, uint32_t serial,
			const void *body, uint32_t body_bytes, struct okv_error *err);

/* A reply that carries a status and its text. */
int oki_message_refuse(int sock, uint32_t kind, uint32_t serial, const struct okv_error *why);

/*
 * Receive one message and check all of it: magic, length, exactly head.fd_count descriptors, no
 * truncation of either. On failure every descriptor that arrived is closed. timeout_ms < 0 waits
 * without limit; OKV_E_TIMEOUT; OKV_E_SESSION at hang-up; OKV_E_PROTOCOL for an invalid message.
 */
int oki_message_receive(int sock, int timeout_ms, struct oki_message *ret_message,
			struct okv_error *err);

/* Close the remaining descriptors and free the body. */
void oki_message_fini(struct oki_message *message);

struct oki_peer {
	pid_t pid;
	uid_t uid;
	gid_t gid;
};
int oki_peer_get(int sock, struct oki_peer *ret_peer, struct okv_error *err);

/*
 * Call before using anything that the Manager at path sends: it must run as our effective user, as
 * root, or as *trusted when that is not NULL. OKV_E_PERM names the user it runs as.
 */
int oki_peer_trust(int sock, const char *path, const uint32_t *trusted, struct okv_error *err);

/*
 * Connect to the Manager at addr, which must be trusted as above. The wait for a place in its queue
 * of connections ends at deadline_ns (UINT64_MAX: never) with OKV_E_TIMEOUT. OKV_E_CONNECT: nobody
 * listens there. The socket is blocking.
 */
int oki_connect(const struct sockaddr_un *addr, uint64_t deadline_ns, const uint32_t *trusted,
		int *ret_sock, struct okv_error *err);

/* This build's hello; the other side compares field by field. */
void oki_hello_init(struct okw_hello *hello, const char *name, uint32_t flags);
int oki_hello_check(const struct okw_hello *theirs, uint32_t bytes, struct okv_error *err);

#endif
