/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that do not keep to the protocol: each costs itself its session and nobody anything. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "grant/state.h"
#include "process/child.h"
#include "process/honest.h"
#include "process/raw_session.h"

START_TEST(role_honest)
{
	honest_play();
}
END_TEST

/* ---- messages ---- */

static void send_and_expect_end(const void *bytes, size_t size, const int *fds, uint32_t fd_count)
{
	int sock = raw_dial(child_socket);
	ck_assert_int_eq(raw_send(sock, bytes, size, fds, fd_count), 0);
	raw_until_closed(sock);
	close(sock);
}

START_TEST(role_hellos)
{
	static uint8_t big[OKW_MSG_MAX_BYTES + 4096];
	uint8_t bytes[sizeof(struct okw_msg) + sizeof(struct okw_hello)];
	struct okw_msg head = {.magic = OKW_MAGIC, .kind = OKW_MSG_HELLO, .bytes = sizeof(bytes)};
	struct okw_hello hello;
	int fds[16];
	oki_hello_init(&hello, "evil", 0);
	for (int i = 0; i < 16; i++)
		fds[i] = eventfd(0, EFD_CLOEXEC);
	memcpy(bytes + sizeof(head), &hello, sizeof(hello));
	for (size_t size = 1; size < sizeof(bytes); size += 3) {
		head.bytes = (uint32_t)size;
		memcpy(bytes, &head, sizeof(head));
		send_and_expect_end(bytes, size, NULL, 0);
	}
	head.bytes = sizeof(bytes);
	/* Descriptors that are promised or not, come or not: none is wanted. */
	for (uint32_t promised = 0; promised < 8; promised++) {
		for (uint32_t sent = 0; sent <= 16; sent += sent < 6 ? 1 : 5) {
			if (!promised && !sent)
				continue;
			head.fd_count = promised;
			memcpy(bytes, &head, sizeof(head));
			send_and_expect_end(bytes, sizeof(bytes), fds, sent);
		}
	}
	head.fd_count = 0;
	for (uint32_t kind = 0; kind < 100; kind++) {
		if (kind == OKW_MSG_HELLO || kind == OKW_MSG_STATUS)
			continue;
		head.kind = kind;
		memcpy(bytes, &head, sizeof(head));
		send_and_expect_end(bytes, sizeof(bytes), NULL, 0);
	}
	head.kind = OKW_MSG_HELLO;
	head.bytes = sizeof(big);
	memcpy(big, &head, sizeof(head));
	send_and_expect_end(big, sizeof(big), NULL, 0);
	head.bytes = 0xffffffffu;
	memcpy(bytes, &head, sizeof(head));
	send_and_expect_end(bytes, sizeof(bytes), NULL, 0);
	/* A second hello. */
	struct raw r;
	raw_open(&r, child_socket);
	ck_assert_int_eq(raw_call(&r, OKW_MSG_HELLO, &hello, sizeof(hello), NULL, 0),
			 OKV_E_PROTOCOL);
	raw_await_drop(&r);
	raw_close(&r);
	for (int i = 0; i < 16; i++)
		close(fds[i]);
	child_say("done");
	child_stay();
}
END_TEST

/* More silent connections than anyone needs. */
START_TEST(role_strangers)
{
	enum { MANY = 300 };
	int socks[MANY];
	for (int i = 0; i < MANY; i++)
		socks[i] = raw_dial(child_socket);
	struct raw r;
	raw_open(&r, child_socket);
	raw_register(&r, &honest_shape);
	raw_close(&r);
	/* The oldest made room. */
	ck_assert_int_eq(raw_until_closed(socks[0]), 0);
	for (int i = 0; i < MANY; i++)
		close(socks[i]);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(role_registrations)
{
	uint64_t seed = strtoull(child_arg, NULL, 10);
	static uint8_t noise[8192];
	size_t size;
	uint8_t *identity = raw_identity(&honest_shape, &size);
	struct raw r = {.sock = -1};
	for (int n = 0; n < 1500; n++) {
		uint32_t dice = raw_random(&seed), bytes = raw_random(&seed) % 200;
		uint32_t kind = OKW_MSG_NAMESPACE + dice % 4;
		if (r.sock < 0) {
			raw_open(&r, child_socket);
			raw_register(&r, &honest_shape);
		}
		for (size_t k = 0; k < sizeof(noise) / 4; k++)
			((uint32_t *)(void *)noise)[k] = raw_random(&seed) % (n % 2 ? 5 : 1u << 31);
		if (kind == OKW_MSG_NAMESPACE && n % 3) {
			/* Nearly right. */
			memcpy(noise, identity, size);
			bytes = (uint32_t)size - dice / 8 % 2;
			noise[raw_random(&seed) % size] = (uint8_t)dice;
		} else if (n % 3) {
			static const uint32_t sizes[] = {0, sizeof(struct okw_arena_ask),
							 sizeof(struct okw_bind),
							 sizeof(struct okw_bind_reply)};
			bytes = sizes[dice % 4];
		}
		int rc = raw_call(&r, kind, noise, bytes, NULL, 0);
		ck_assert_msg(rc <= 0, "status %d", rc);
		if (rc == -1 || raw_dropped(&r))
			raw_close(&r);
	}
	if (r.sock >= 0)
		raw_close(&r);
	free(identity);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(role_binds)
{
	struct raw r;
	raw_open(&r, child_socket);
	raw_register(&r, &honest_shape);
	struct okw_bind bind = {.namespace_id = r.namespace_id};
	struct okw_bind_reply reply = {.binding_id = 0};
	uint32_t bound = 1, first = r.binding_id;
	while (raw_call(&r, OKW_MSG_BIND, &bind, sizeof(bind), &reply, sizeof(reply)) == 0)
		ck_assert_uint_lt(++bound, 10000);
	/* A named limit, and the session lives. */
	ck_assert_int_eq(raw_call(&r, OKW_MSG_BIND, &bind, sizeof(bind), NULL, 0), OKV_E_LIMIT);
	struct okw_bind_reply ask = {.binding_id = first};
	ck_assert_int_eq(raw_call(&r, OKW_MSG_UNBIND, &ask, sizeof(ask), NULL, 0), 0);
	ck_assert_int_eq(raw_call(&r, OKW_MSG_UNBIND, &ask, sizeof(ask), NULL, 0), OKV_E_NOENT);
	ck_assert_int_eq(raw_call(&r, OKW_MSG_BIND, &bind, sizeof(bind), &reply, sizeof(reply)), 0);
	ck_assert_uint_ne(reply.binding_id, first);
	raw_close(&r);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(role_never_reads)
{
	struct raw r;
	raw_open(&r, child_socket);
	uint8_t bytes[sizeof(struct okw_msg) + sizeof(struct okw_arena_ask)] = {0};
	const struct okw_msg head = {
		.magic = OKW_MAGIC, .kind = OKW_MSG_ARENA, .bytes = sizeof(bytes)};
	memcpy(bytes, &head, sizeof(head));
	/* Each answer would bring a descriptor. */
	int os = 0;
	for (int n = 0; n < 100000 && !os; n++)
		os = raw_send(r.sock, bytes, sizeof(bytes), NULL, 0);
	ck_assert_msg(os == EPIPE || os == ECONNRESET, "%s", strerror(os));
	raw_close(&r);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(r8_hellos_of_any_form)
{
	run_evil("hellos", NULL, 0);
}
END_TEST

START_TEST(r8_silent_strangers_make_room)
{
	run_evil("pending_conns", NULL, 0);
}
END_TEST

START_TEST(r8_garbage_registrations)
{
	run_evil("registrations", "7", 0);
}
END_TEST

START_TEST(r8_bindings_have_a_limit)
{
	run_evil("binds", NULL, 0);
}
END_TEST

START_TEST(r8_peer_that_never_reads)
{
	run_evil("never_reads", NULL, 0);
}
END_TEST

/* ---- records ---- */

/* One submitted record that must cost the session. */
static void expect_drop(void (*spoil)(struct raw *r, struct okw_record *record, uint8_t *request))
{
	struct raw r;
	uint8_t request[RAW_REQUEST_BYTES];
	raw_open(&r, child_socket);
	raw_register(&r, &honest_shape);
	uint32_t bytes = raw_request(&r, OKW_OP_LOOKUP, HONEST_SEQ, 4, request);
	struct okw_record *record = raw_reserve(&r, 0);
	struct okw_request head;
	memcpy(&head, request, sizeof(head));
	head.epoch = r.welcome.epoch;
	head.token = r.welcome.token;
	head.tag = OKI_TAG(OKI_TAG_GENERATION(oki_tag_load(record)), OKW_SUBMITTED);
	memcpy(request, &head, sizeof(head));
	record->kind = OKW_OP_LOOKUP;
	record->request_bytes = bytes;
	uint8_t *at = r.channel.requests + record->request_offset;
	memcpy(at, request, bytes);
	if (spoil)
		spoil(&r, record, at);
	raw_announce(&r, 0);
	if (spoil) {
		raw_await_drop(&r);
	} else {
		ck_assert_uint_eq(raw_await(&r, 0), OKW_DONE);
		ck_assert_int_eq(raw_record(&r, 0)->status, 0);
	}
	raw_close(&r);
}

#define SPOIL(name, statement)                                                       \
	static void name(struct raw *r, struct okw_record *record, uint8_t *request) \
	{                                                                            \
		struct okw_request head;                                             \
		memcpy(&head, request, sizeof(head));                                \
		statement;                                                           \
		memcpy(request, &head, sizeof(head));                                \
		(void)r;                                                             \
		(void)record;                                                        \
	}

SPOIL(spoil_offset, record->request_offset = OKW_REQUEST_AREA_BYTES)
SPOIL(spoil_offset_far, record->request_offset = 0xfffffff8u)
SPOIL(spoil_offset_end, record->request_offset = OKW_REQUEST_AREA_BYTES - 64)
SPOIL(spoil_offset_odd, record->request_offset += 4)
SPOIL(spoil_bytes_zero, record->request_bytes = 0)
SPOIL(spoil_bytes_huge, record->request_bytes = 0xffffffffu)
SPOIL(spoil_bytes_more, record->request_bytes += 8)
SPOIL(spoil_capacity, record->reply_capacity = 8)
SPOIL(spoil_capacity_far, record->reply_capacity = 0xffffffffu)
SPOIL(spoil_record_kind, record->kind = 99)
SPOIL(spoil_kind, head.kind = OKW_OP_PUBLISH)
SPOIL(spoil_epoch, head.epoch ^= 1)
SPOIL(spoil_token, head.token ^= 1)
SPOIL(spoil_tag, head.tag += 256)
SPOIL(spoil_bytes, head.bytes ^= 16)
SPOIL(spoil_namespace, head.namespace_id = 0xffffffffu)
SPOIL(spoil_namespace_near, head.namespace_id += 1)
SPOIL(spoil_binding, head.binding_id = 5)
SPOIL(spoil_groups, head.group_count = 9)
SPOIL(spoil_groups_more, head.group_count = 2)
SPOIL(spoil_groups_none, head.group_count = 0)
SPOIL(spoil_flags, head.flags = 0x80000000u)
SPOIL(spoil_count, request[sizeof(head) + 11] = 0xff)
SPOIL(spoil_count_more, request[sizeof(head) + 8]++)
SPOIL(spoil_key_bytes, request[sizeof(head) + 12] = 33)
SPOIL(spoil_parent, request[sizeof(head) + 16] = 16)

START_TEST(role_extents)
{
	/* The same steps without a fault are answered. */
	expect_drop(NULL);
	void (*const spoils[])(struct raw *, struct okw_record *, uint8_t *) = {
		spoil_offset,	   spoil_offset_far,   spoil_offset_end,  spoil_offset_odd,
		spoil_bytes_zero,  spoil_bytes_huge,   spoil_bytes_more,  spoil_capacity,
		spoil_record_kind, spoil_kind,	       spoil_epoch,	  spoil_token,
		spoil_tag,	   spoil_bytes,	       spoil_namespace,	  spoil_namespace_near,
		spoil_binding,	   spoil_groups,       spoil_groups_more, spoil_groups_none,
		spoil_flags,	   spoil_count,	       spoil_count_more,  spoil_key_bytes,
		spoil_parent,	   spoil_capacity_far,
	};
	for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++)
		expect_drop(spoils[i]);
	child_say("done");
	child_stay();
}
END_TEST

/* Requests that are noise, or right but for a few bits. */
START_TEST(role_requests)
{
	uint64_t seed = strtoull(child_arg, NULL, 10);
	static uint8_t request[RAW_REQUEST_BYTES];
	struct raw r = {.sock = -1};
	uint32_t answered = 0, next = 0;
	for (uint32_t n = 0; n < 4000; n++) {
		if (r.sock < 0) {
			raw_open(&r, child_socket);
			raw_register(&r, &honest_shape);
			next = 0;
		}
		uint32_t kind = OKW_OP_LOOKUP + raw_random(&seed) % 4, seq = 1 + n % 50;
		uint32_t bytes = raw_request(&r, kind, seq, 1 + raw_random(&seed) % 32, request);
		bool noise = n % 10 == 9;
		if (noise)
			for (uint32_t k = 0; k < bytes; k++)
				request[k] = (uint8_t)raw_random(&seed);
		for (uint32_t k = raw_random(&seed) % 3; k; k--)
			request[raw_random(&seed) % bytes] ^=
				(uint8_t)(1u << raw_random(&seed) % 8);
		uint32_t i = next++ % OKW_RECORDS;
		raw_submit(&r, i, request, bytes, !noise);
		uint32_t state = raw_await(&r, i);
		answered += state != OKW_STATES;
		if (state == OKW_STATES || raw_dropped(&r))
			raw_close(&r);
		else if (state == OKW_GRANTED)
			next += n % 2; /* left as it is */
		if (r.sock >= 0 && state == OKW_GRANTED && next % OKW_RECORDS > 900)
			raw_close(&r);
	}
	ck_assert_uint_gt(answered, 400);
	if (r.sock >= 0)
		raw_close(&r);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(r8_extents_and_fields_out_of_range)
{
	run_evil("extents", NULL, 0);
}
END_TEST

START_TEST(r8_garbage_requests)
{
	run_evil("requests", "11", 0);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {
		{"honest", role_honest},
		{"hellos", role_hellos},
		{"pending_conns", role_strangers},
		{"registrations", role_registrations},
		{"binds", role_binds},
		{"never_reads", role_never_reads},
		{"extents", role_extents},
		{"requests", role_requests},
	};
	int rc = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("bad engine");
	TCase *t = tcase_create("bad engine");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, r8_hellos_of_any_form);
	tcase_add_test(t, r8_silent_strangers_make_room);
	tcase_add_test(t, r8_garbage_registrations);
	tcase_add_test(t, r8_bindings_have_a_limit);
	tcase_add_test(t, r8_peer_that_never_reads);
	tcase_add_test(t, r8_extents_and_fields_out_of_range);
	tcase_add_test(t, r8_garbage_requests);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
