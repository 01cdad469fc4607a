/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager in this process and an engine made by hand: raw messages, raw records. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <check.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <orbitkv/manager.h>
#include "base/clock.h"
#include "grant/parts.h"
#include "grant/state.h"
#include "schema/schema.h"
#include "wire/bootstrap.h"
#include "wire/channel.h"
#include "wire/wire.h"

#ifndef PATIENCE_MS
#define PATIENCE_MS 30000
#endif
#define BLOCK_BYTES 256u /* of every schema here: one layer, one segment */

/* ---- a Manager and its control thread ---- */

struct fixture {
	struct okv_manager *manager;
	pthread_t thread;
	int result;
};

static inline void *fixture_main(void *arg)
{
	struct fixture *f = arg;
	f->result = okv_manager_run(f->manager, NULL);
	return NULL;
}

static inline void fixture_options(struct okv_manager_options *opts)
{
	okv_manager_options_init(opts);
	opts->memory_bytes = 8u << 20;
	opts->numa = OKV_NUMA_OFF;
	opts->touch_threads = 1;
	opts->spin_us = 0;
}

static inline void fixture_start(struct fixture *f, const struct okv_manager_options *opts)
{
	struct okv_error err = {0};
	int rc = okv_manager_create(opts, &f->manager, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, fixture_main, f), 0);
}

static inline void fixture_join(struct fixture *f)
{
	pthread_join(f->thread, NULL);
}

static inline void fixture_end(struct fixture *f, int expected)
{
	okv_manager_stop(f->manager);
	fixture_join(f);
	ck_assert_int_eq(f->result, expected);
	okv_manager_destroy(f->manager);
}

static inline struct okv_manager_status fixture_status(struct fixture *f)
{
	struct okv_manager_status st;
	ck_assert_int_eq(okv_manager_status_get(f->manager, &st), 0);
	return st;
}

/* Wait until the counter at this offset has this value. */
static inline void fixture_wait(struct fixture *f, size_t offset, uint64_t value)
{
	uint64_t deadline = oki_deadline_ns(PATIENCE_MS), now;
	do {
		struct okv_manager_status st = fixture_status(f);
		memcpy(&now, (char *)&st + offset, sizeof(now));
		if (now == value)
			return;
		sched_yield();
	} while (oki_now_ns() < deadline);
	ck_abort_msg("counter at %zu is %llu, not %llu", offset, (unsigned long long)now,
		     (unsigned long long)value);
}
#define WAIT_STATUS(f, field, value) \
	fixture_wait(f, offsetof(struct okv_manager_status, field), value)

static inline uint32_t count_fds(void)
{
	uint32_t n = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Loops let go of a session a moment after it is out of the table. */
static inline void wait_fds(uint32_t most)
{
	uint64_t deadline = oki_deadline_ns(PATIENCE_MS);
	while (count_fds() > most && oki_now_ns() < deadline)
		sched_yield();
	ck_assert_uint_le(count_fds(), most);
}

/* ---- an engine ---- */

struct fake {
	int sock;
	uint32_t serial;
	struct okw_welcome welcome;
	struct oki_channel channel;
	uint32_t namespace_id;
	uint32_t binding_id;
};

/* Send a message and take its reply. */
static inline int fake_call(struct fake *e, uint32_t kind, const void *body, uint32_t bytes,
			    struct oki_message *ret_message)
{
	struct okv_error err = {0};
	int rc = oki_message_send(e->sock, kind, ++e->serial, 0, body, bytes, NULL, 0, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	rc = oki_message_receive(e->sock, PATIENCE_MS, ret_message, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	ck_assert_uint_eq(ret_message->head.serial, e->serial);
	return ret_message->head.status;
}

static inline int fake_simple(struct fake *e, uint32_t kind, const void *body, uint32_t bytes,
			      void *ret_reply, uint32_t reply_bytes)
{
	struct oki_message m;
	int status = fake_call(e, kind, body, bytes, &m);
	if (!status) {
		ck_assert_uint_eq(m.head.kind, kind);
		ck_assert_uint_eq(m.body_bytes, reply_bytes);
		if (reply_bytes)
			memcpy(ret_reply, m.body, reply_bytes);
	}
	oki_message_fini(&m);
	return status;
}

static inline void fake_init(struct fake *e, int sock)
{
	*e = (struct fake){.sock = sock,
			   .channel = {.request_fd = -1,
				       .control_fd = -1,
				       .engine_doorbell = -1,
				       .manager_doorbell = -1}};
}

static inline void fake_attach(struct fake *e, struct fixture *f)
{
	int pair[2];
	struct okv_error err = {0};
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	int rc = okv_manager_attach(f->manager, pair[1], &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	fake_init(e, pair[0]);
}

static inline int fake_hello(struct fake *e, uint32_t flags)
{
	struct okw_hello hello;
	struct oki_message m;
	struct okv_error err = {0};
	oki_hello_init(&hello, "fake", flags);
	int status = fake_call(e, OKW_MSG_HELLO, &hello, sizeof(hello), &m);
	if (!status) {
		ck_assert_uint_eq(m.head.kind, OKW_MSG_WELCOME);
		ck_assert_uint_eq(m.head.fd_count, 4);
		ck_assert_uint_eq(m.body_bytes, sizeof(e->welcome));
		memcpy(&e->welcome, m.body, sizeof(e->welcome));
		int rc = oki_channel_import(&e->channel, m.fds, &e->welcome, &err);
		ck_assert_msg(rc == 0, "%s", err.text);
		ck_assert(oki_channel_use(&e->channel, OKI_CHANNEL_RECORDS,
					  sizeof(e->channel.control->records)));
	}
	oki_message_fini(&m);
	return status;
}

/* One full group unless two are asked for; model tells namespaces apart. */
static inline void fake_identity(const char *model, uint32_t groups, uint8_t **ret_bytes,
				 size_t *ret_size)
{
	static const struct okv_layer_schema layers[2] = {
		{.order = 0, .segment_count = 1, .segment_bytes = {BLOCK_BYTES}},
		{.order = 1, .segment_count = 1, .segment_bytes = {BLOCK_BYTES}},
	};
	const struct okv_group_schema table[2] = {
		{.kind = OKV_GROUP_FULL,
		 .block_tokens = 16,
		 .layer_count = 1,
		 .layout_tag = "NHD",
		 .layers = &layers[0]},
		{.kind = OKV_GROUP_FULL,
		 .block_tokens = 16,
		 .layer_count = 1,
		 .layout_tag = "NHD",
		 .layers = &layers[1]},
	};
	struct okv_namespace_options opts = {
		.size = sizeof(opts),
		.rank_slots = 1,
		.model = model,
		.pipeline_stages = 1,
		.group_count = groups,
		.groups = table,
	};
	struct okv_error err = {0};
	int rc = oki_identity_encode(&opts, ret_bytes, ret_size, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
}

static inline void fake_bind(struct fake *e, const char *model, uint32_t groups)
{
	uint8_t *bytes;
	size_t size;
	struct okw_namespace_reply ns;
	struct okw_bind_reply bound;
	fake_identity(model, groups, &bytes, &size);
	ck_assert_int_eq(fake_simple(e, OKW_MSG_NAMESPACE, bytes, (uint32_t)size, &ns, sizeof(ns)),
			 0);
	free(bytes);
	const struct okw_bind ask = {.namespace_id = ns.namespace_id,
				     .device_kind = OKV_DEVICE_HOST};
	ck_assert_int_eq(fake_simple(e, OKW_MSG_BIND, &ask, sizeof(ask), &bound, sizeof(bound)), 0);
	e->namespace_id = ns.namespace_id;
	e->binding_id = bound.binding_id;
	ck_assert_uint_ne(e->binding_id, 0);
}

static inline void fake_open(struct fake *e, struct fixture *f)
{
	fake_attach(e, f);
	ck_assert_int_eq(fake_hello(e, 0), 0);
	fake_bind(e, "model", 1);
}

/* Hang up as a process that ends does: the socket first or last makes no difference. */
static inline void fake_close(struct fake *e)
{
	if (e->sock >= 0)
		close(e->sock);
	e->sock = -1;
	oki_channel_fini(&e->channel);
}

/* ---- records ---- */

static inline struct okw_record *rec(struct fake *e, uint32_t i)
{
	return &e->channel.control->records[i];
}

static inline uint32_t state_of(struct fake *e, uint32_t i)
{
	return OKI_TAG_STATE(oki_tag_load(rec(e, i)));
}

/* Sleep on the bell until the record's state is one of the mask's. */
static inline uint32_t wait_state(struct fake *e, uint32_t i, uint32_t mask)
{
	struct okw_doorbell *bell = &e->channel.control->engine;
	uint64_t deadline = oki_deadline_ns(PATIENCE_MS);
	for (;;) {
		uint32_t state = state_of(e, i);
		if (mask & 1u << state)
			return state;
		if (oki_now_ns() > deadline)
			ck_abort_msg("record %u stays %s: %s", i, oki_state_name(state),
				     rec(e, i)->text);
		for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++)
			oki_doorbell_take(bell, w);
		if (mask & 1u << state_of(e, i) || !oki_doorbell_sleep(bell))
			continue;
		if (!(mask & 1u << state_of(e, i))) {
			struct pollfd p = {.fd = e->channel.engine_doorbell, .events = POLLIN};
			uint64_t count;
			if (poll(&p, 1, PATIENCE_MS) == 1)
				ck_assert(read(p.fd, &count, sizeof(count)) == sizeof(count));
		}
		oki_doorbell_awake(bell);
	}
}

static inline uint32_t wait_one(struct fake *e, uint32_t i, uint32_t state)
{
	return wait_state(e, i, 1u << state);
}

/* A request under construction. Record i uses 64 KiB of the area from i * 64 KiB. */
struct request {
	struct okw_request head;
	uint8_t *body; /* groups, then keys */
	uint32_t body_bytes;
	uint32_t capacity;
};

static inline uint32_t extent_of(uint32_t i)
{
	return i * 65536u;
}

static inline void request_init(struct request *r, struct fake *e, uint32_t kind)
{
	*r = (struct request){.capacity = 256};
	r->head.epoch = e->welcome.epoch;
	r->head.token = e->welcome.token;
	r->head.kind = kind;
	r->head.namespace_id = e->namespace_id;
	r->head.consumers = 1;
	if (kind == OKW_OP_RESTORE || kind == OKW_OP_PUBLISH)
		r->head.binding_id = e->binding_id;
}

static inline void request_add(struct request *r, const void *bytes, uint32_t count)
{
	r->body = realloc(r->body, r->body_bytes + count);
	memcpy(r->body + r->body_bytes, bytes, count);
	r->body_bytes += count;
}

/* Key k of a test is the number k in 8 bytes. */
static inline void request_keys(struct request *r, uint64_t first_key, uint32_t count)
{
	for (uint64_t k = first_key; k < first_key + count; k++)
		request_add(r, &k, sizeof(k));
}

static inline void request_group(struct request *r, uint32_t group, uint32_t first, uint32_t count,
				 uint32_t key_bytes)
{
	const struct okw_request_group g = {
		.group = group, .first = first, .count = count, .key_bytes = key_bytes};
	r->head.group_count++;
	request_add(r, &g, sizeof(g));
}

/* A stretch of a restore, of group 0. */
static inline void request_part(struct request *r, const struct okw_lookup_reply *lease,
				uint32_t first, uint32_t count, uint32_t flags)
{
	struct okw_restore_part part = {
		.first = first, .count = count, .flags = flags, .lease_slot = lease->lease_slot};
	memcpy(part.lease_id, lease->lease_id, sizeof(part.lease_id));
	r->head.group_count++;
	request_add(r, &part, sizeof(part));
}

/* Write it and publish the state; ring unless told not to. Takes the request. */
static inline void submit_raw(struct fake *e, uint32_t i, struct request *r, bool ring)
{
	struct okw_record *record = rec(e, i);
	uint64_t tag = oki_tag_load(record);
	ck_assert(oki_move(record, &tag, OKW_RESERVED, OKI_MOVER_ENGINE));
	oki_parts_reset(record);
	atomic_store(&record->engine_flags, 0);
	record->kind = r->head.kind;
	record->request_offset = extent_of(i);
	record->request_bytes = (uint32_t)sizeof(r->head) + r->body_bytes;
	record->reply_capacity = r->capacity;
	if (!r->head.bytes)
		r->head.bytes = record->request_bytes;
	if (!r->head.tag)
		r->head.tag = OKI_TAG(OKI_TAG_GENERATION(tag), OKW_SUBMITTED);
	memcpy(e->channel.requests + extent_of(i), &r->head, sizeof(r->head));
	if (r->body_bytes)
		memcpy(e->channel.requests + extent_of(i) + sizeof(r->head), r->body,
		       r->body_bytes);
	free(r->body);
	ck_assert(oki_move(record, &tag, OKW_SUBMITTED, OKI_MOVER_ENGINE));
	if (ring)
		oki_doorbell_ring(&e->channel.control->submit, e->channel.manager_doorbell, i);
}

static inline void submit(struct fake *e, uint32_t i, struct request *r)
{
	submit_raw(e, i, r, true);
}

static inline const void *reply_of(struct fake *e, uint32_t i)
{
	return e->channel.requests + extent_of(i) + ((rec(e, i)->request_bytes + 7u) & ~7u);
}

static inline struct okw_transfer_reply transfer_reply(struct fake *e, uint32_t i)
{
	struct okw_transfer_reply reply;
	memcpy(&reply, reply_of(e, i), sizeof(reply));
	return reply;
}

static inline void free_record(struct fake *e, uint32_t i)
{
	uint64_t tag = oki_tag_load(rec(e, i));
	ck_assert(oki_move(rec(e, i), &tag, OKW_FREE, OKI_MOVER_ENGINE));
}

static inline void send_lookup(struct fake *e, uint32_t i, uint64_t first_key, uint32_t count,
			       uint32_t flags, uint32_t consumers)
{
	struct request r;
	request_init(&r, e, OKW_OP_LOOKUP);
	r.head.flags = flags;
	r.head.consumers = consumers;
	request_group(&r, 0, 0, count, 8);
	request_keys(&r, first_key, count);
	submit(e, i, &r);
}

/* Look keys up; the record is Free again. */
static inline struct okw_lookup_reply do_lookup(struct fake *e, uint64_t first_key, uint32_t count,
						uint32_t flags)
{
	struct okw_lookup_reply reply;
	send_lookup(e, 20, first_key, count, flags, 1);
	wait_one(e, 20, OKW_DONE);
	ck_assert_msg(rec(e, 20)->status == 0, "%s", rec(e, 20)->text);
	ck_assert_uint_eq(rec(e, 20)->reply_bytes, sizeof(reply));
	memcpy(&reply, reply_of(e, 20), sizeof(reply));
	free_record(e, 20);
	return reply;
}

static inline void send_publish(struct fake *e, uint32_t i, uint64_t first_key, uint32_t count)
{
	struct request r;
	request_init(&r, e, OKW_OP_PUBLISH);
	request_group(&r, 0, 0, count, 8);
	request_keys(&r, first_key, count);
	submit(e, i, &r);
}

static inline void send_restore(struct fake *e, uint32_t i, const struct okw_lookup_reply *lease,
				uint32_t count, uint32_t flags)
{
	struct request r;
	request_init(&r, e, OKW_OP_RESTORE);
	request_part(&r, lease, 0, count, flags);
	submit(e, i, &r);
}

static inline void claim(struct fake *e, uint32_t i)
{
	uint64_t tag = oki_tag_load(rec(e, i));
	ck_assert(oki_move(rec(e, i), &tag, OKW_ACTIVE, OKI_MOVER_ENGINE));
}

static inline void ring_retire(struct fake *e, uint32_t i)
{
	oki_doorbell_ring(&e->channel.control->retire, e->channel.manager_doorbell, i);
}

/* Claim the next part, copy it out, say consumed. Returns its entries, owned. */
static inline struct okw_plan_entry *take_part(struct fake *e, uint32_t i,
					       struct okw_plan_head *ret_head)
{
	struct okw_transfer_reply reply;
	uint32_t part;
	ck_assert(oki_parts_claim(rec(e, i), &part));
	reply = transfer_reply(e, i);
	uint32_t offset = reply.part[part & 1].offset, bytes = reply.part[part & 1].bytes;
	ck_assert_uint_le(offset + bytes, OKW_PLAN_BANK_BYTES);
	memcpy(ret_head, e->channel.control->bank + offset, sizeof(*ret_head));
	uint32_t size = ret_head->entry_count * (uint32_t)sizeof(struct okw_plan_entry);
	ck_assert_uint_eq(bytes, sizeof(*ret_head) + size);
	ck_assert_uint_eq(ret_head->magic, OKW_MAGIC);
	ck_assert_uint_eq(ret_head->epoch, e->welcome.epoch);
	ck_assert_uint_eq(ret_head->token, e->welcome.token);
	ck_assert_uint_eq(ret_head->record, i);
	ck_assert_uint_eq(ret_head->part, part);
	ck_assert_uint_eq(ret_head->tag,
			  OKI_TAG(OKI_TAG_GENERATION(oki_tag_load(rec(e, i))), OKW_GRANTED));
	struct okw_plan_entry *entries = malloc(size);
	memcpy(entries, e->channel.control->bank + offset + sizeof(*ret_head), size);
	atomic_fetch_add(&rec(e, i)->consumed, 1);
	ring_retire(e, i);
	return entries;
}

static inline void drain(struct fake *e, uint32_t i, int status)
{
	struct okw_record *record = rec(e, i);
	uint64_t tag = oki_tag_load(record);
	atomic_store(&record->drained, oki_parts_load(record).claimed);
	record->engine_status = status;
	ck_assert(oki_move(record, &tag, OKW_DRAINED, OKI_MOVER_ENGINE));
	ring_retire(e, i);
}

/* A granted one-part operation to its end; the record is Free again. */
static inline void run_to_end(struct fake *e, uint32_t i, int status)
{
	struct okw_plan_head head;
	wait_one(e, i, OKW_GRANTED);
	claim(e, i);
	if (transfer_reply(e, i).part_total)
		free(take_part(e, i, &head));
	drain(e, i, status);
	wait_one(e, i, OKW_REAPED);
	ck_assert_int_eq(rec(e, i)->status, status);
	free_record(e, i);
}

static inline void do_publish(struct fake *e, uint64_t first_key, uint32_t count)
{
	send_publish(e, 21, first_key, count);
	run_to_end(e, 21, 0);
}

static inline void cancel(struct fake *e, uint32_t i)
{
	atomic_fetch_or(&rec(e, i)->engine_flags, OKW_ENGINE_CANCEL);
	oki_doorbell_ring(&e->channel.control->submit, e->channel.manager_doorbell, i);
}

/* The Manager hung up on this one. */
static inline void expect_hangup(struct fake *e)
{
	struct oki_message m;
	ck_assert_int_eq(oki_message_receive(e->sock, PATIENCE_MS, &m, NULL), OKV_E_SESSION);
}

#define ADD(tcase, name) tcase_add_test(tcase, name)

#endif
