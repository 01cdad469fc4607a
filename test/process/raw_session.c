/* SPDX-License-Identifier: Apache-2.0 */
/* A session of the wire protocol without the library's engine. */
#include "process/raw_session.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "grant/parts.h"
#include "grant/state.h"
#include "schema/schema.h"

#define WAIT_MS 20000

int raw_dial(const char *socket_path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(sock, 0);
	strcpy(addr.sun_path, socket_path);
	ck_assert_int_eq(connect(sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return sock;
}

int raw_send(int sock, const void *bytes, size_t size, const int *fds, uint32_t fd_count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 16)];
	} control;
	struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
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
	return sendmsg(sock, &msg, MSG_NOSIGNAL) < 0 ? errno : 0;
}

int raw_until_closed(int sock)
{
	int status = 0;
	for (;;) {
		struct oki_message m;
		struct okv_error err;
		int rc = oki_message_receive(sock, WAIT_MS, &m, &err);
		ck_assert_msg(rc != OKV_E_TIMEOUT, "the Manager neither answers nor hangs up");
		if (rc)
			return status;
		status = m.head.status;
		oki_message_fini(&m);
	}
}

int raw_call(struct raw *r, uint32_t kind, const void *body, uint32_t bytes, void *ret_reply,
	     uint32_t reply_bytes)
{
	struct oki_message m;
	struct okv_error err;
	if (oki_message_send(r->sock, kind, ++r->serial, 0, body, bytes, NULL, 0, &err))
		return -1;
	int rc = oki_message_receive(r->sock, WAIT_MS, &m, &err);
	ck_assert_int_ne(rc, OKV_E_TIMEOUT);
	if (rc)
		return -1;
	int status = m.head.status;
	if (!status && ret_reply) {
		ck_assert_uint_eq(m.body_bytes, reply_bytes);
		memcpy(ret_reply, m.body, reply_bytes);
	}
	oki_message_fini(&m);
	return status;
}

void raw_open(struct raw *r, const char *socket_path)
{
	struct okw_hello hello;
	struct oki_message m;
	memset(r, 0, sizeof(*r));
	r->sock = raw_dial(socket_path);
	oki_hello_init(&hello, "raw", 0);
	kv_ok(oki_message_send(r->sock, OKW_MSG_HELLO, ++r->serial, 0, &hello, sizeof(hello), NULL,
			       0, kv_err));
	kv_ok(oki_message_receive(r->sock, WAIT_MS, &m, kv_err));
	ck_assert_msg(m.head.kind == OKW_MSG_WELCOME && m.head.fd_count == 4, "%.*s",
		      (int)m.body_bytes, (const char *)m.body);
	memcpy(&r->welcome, m.body, sizeof(r->welcome));
	kv_ok(oki_channel_import(&r->channel, m.fds, &r->welcome, kv_err));
	ck_assert(oki_channel_use(&r->channel, OKI_CHANNEL_RECORDS,
				  sizeof(r->channel.control->records)));
	oki_message_fini(&m);
}

uint8_t *raw_identity(const struct kv_shape *shape, size_t *ret_size)
{
	struct okv_layer_schema *layers = calloc(shape->layers, sizeof(*layers));
	for (uint32_t i = 0; i < shape->layers; i++) {
		layers[i].order = i;
		layers[i].segment_count = shape->segments;
		for (uint32_t j = 0; j < shape->segments; j++)
			layers[i].segment_bytes[j] = shape->segment_bytes;
	}
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = shape->block_tokens,
					       .layer_count = shape->layers,
					       .layout_tag = shape->layout_tag,
					       .layers = layers};
	struct okv_namespace_options o;
	uint8_t *bytes;
	memset(&o, 0, sizeof(o));
	o.size = sizeof(o);
	o.model = "test";
	o.rank_slots = 1;
	o.pipeline_stages = 1;
	o.group_count = 1;
	o.groups = &group;
	kv_ok(oki_identity_encode(&o, &bytes, ret_size, kv_err));
	free(layers);
	return bytes;
}

void raw_register(struct raw *r, const struct kv_shape *shape)
{
	size_t size;
	uint8_t *identity = raw_identity(shape, &size);
	struct okw_namespace_reply ns;
	ck_assert_int_eq(raw_call(r, OKW_MSG_NAMESPACE, identity, (uint32_t)size, &ns, sizeof(ns)),
			 0);
	free(identity);
	r->namespace_id = ns.namespace_id;
	const struct okw_bind bind = {.namespace_id = ns.namespace_id,
				      .device_kind = OKV_DEVICE_HOST,
				      .device_id = {(uint8_t)getpid()}};
	struct okw_bind_reply reply;
	ck_assert_int_eq(raw_call(r, OKW_MSG_BIND, &bind, sizeof(bind), &reply, sizeof(reply)), 0);
	r->binding_id = reply.binding_id;
}

void raw_close(struct raw *r)
{
	oki_channel_fini(&r->channel);
	close(r->sock);
	r->sock = -1;
}

uint32_t raw_request(const struct raw *r, uint32_t kind, uint64_t seq, uint32_t count,
		     uint8_t *bytes)
{
	bool keys = kind == OKW_OP_LOOKUP || kind == OKW_OP_PUBLISH;
	bool groups = kind != OKW_OP_LEASE_OPEN;
	struct okw_request head = {
		.kind = kind,
		.namespace_id = r->namespace_id,
		.binding_id = kind == OKW_OP_PUBLISH || kind == OKW_OP_RESTORE ? r->binding_id : 0,
		.group_count = groups,
		.consumers = kind == OKW_OP_LOOKUP,
	};
	struct okw_request_group group = {.count = count, .key_bytes = KV_KEY_BYTES};
	struct okw_restore_part part = {.count = count};
	uint32_t at = sizeof(head);
	if (kind == OKW_OP_RESTORE) {
		memcpy(bytes + at, &part, sizeof(part));
		at += sizeof(part);
	} else if (groups) {
		memcpy(bytes + at, &group, sizeof(group));
		at += sizeof(group);
	}
	for (uint32_t i = 0; i < count && keys; i++, at += KV_KEY_BYTES)
		kv_key(seq, i, bytes + at);
	head.bytes = at;
	memcpy(bytes, &head, sizeof(head));
	return at;
}

uint32_t raw_extent(uint32_t i)
{
	return i % 512 * (RAW_REQUEST_BYTES + RAW_REPLY_ROOM);
}

struct okw_record *raw_reserve(struct raw *r, uint32_t i)
{
	struct okw_record *record = raw_record(r, i);
	uint64_t tag = oki_tag_load(record);
	uint32_t state = OKI_TAG_STATE(tag);
	/* A finished one is given back first. */
	if (state == OKW_DONE || state == OKW_REVOKED || state == OKW_REAPED)
		oki_move(record, &tag, OKW_FREE, OKI_MOVER_ENGINE);
	ck_assert(oki_move(record, &tag, OKW_RESERVED, OKI_MOVER_ENGINE));
	oki_parts_reset(record);
	atomic_store(&record->engine_flags, 0);
	record->request_offset = raw_extent(i);
	record->reply_capacity = RAW_REPLY_ROOM - 8;
	record->reply_bytes = 0;
	record->status = 0;
	record->engine_status = 0;
	return record;
}

void raw_ring(struct raw *r, uint32_t i)
{
	oki_doorbell_ring(&r->channel.control->submit, r->channel.manager_doorbell, i);
	oki_doorbell_ring(&r->channel.control->retire, r->channel.manager_doorbell, i);
}

void raw_announce(struct raw *r, uint32_t i)
{
	uint64_t tag = oki_tag_load(raw_record(r, i));
	oki_move(raw_record(r, i), &tag, OKW_SUBMITTED, OKI_MOVER_ENGINE);
	oki_doorbell_ring(&r->channel.control->submit, r->channel.manager_doorbell, i);
}

void raw_submit(struct raw *r, uint32_t i, const void *request, uint32_t bytes, bool fix)
{
	struct okw_record *record = raw_reserve(r, i);
	struct okw_request head;
	memcpy(&head, request, sizeof(head));
	record->kind = head.kind;
	record->request_bytes = bytes;
	memcpy(r->channel.requests + raw_extent(i), request, bytes);
	if (fix) {
		head.epoch = r->welcome.epoch;
		head.token = r->welcome.token;
		head.tag = OKI_TAG(OKI_TAG_GENERATION(oki_tag_load(record)), OKW_SUBMITTED);
		memcpy(r->channel.requests + raw_extent(i), &head, sizeof(head));
	}
	raw_announce(r, i);
}

bool raw_dropped(const struct raw *r)
{
	struct pollfd p = {.fd = r->sock, .events = 0};
	return poll(&p, 1, 0) > 0 && p.revents & (POLLHUP | POLLERR);
}

void raw_await_drop(const struct raw *r)
{
	struct pollfd p = {.fd = r->sock, .events = 0};
	ck_assert_msg(poll(&p, 1, WAIT_MS) > 0, "the session was not dropped");
}

uint32_t raw_await(struct raw *r, uint32_t i)
{
	for (;;) {
		/* Before the look at the record: what a dropped session says is final. */
		bool dropped = raw_dropped(r);
		uint32_t state = OKI_TAG_STATE(oki_tag_load(raw_record(r, i)));
		if (state != OKW_SUBMITTED && state != OKW_PREPARING && state != OKW_RESERVED)
			return state;
		if (dropped)
			return OKW_STATES;
		sched_yield();
	}
}
