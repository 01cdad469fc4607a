/* SPDX-License-Identifier: Apache-2.0 */
/* An operation that fails while its first copies still run: they end first, and nobody else waits
 * for them. */
#include <check.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/engine_private.h"
#include "grant/parts.h"
#include "grant/state.h"
#include "process/child.h"
#include "process/fake_manager.h"
#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"

#define BLOCK_BYTES (256u << 10)
#define GATED_PAGE 3u
#define FREE_PAGE 5u

/* More than the host device copies on the worker's own thread. */
static const struct kv_shape shape = {
	.layers = 1, .segments = 1, .segment_bytes = BLOCK_BYTES, .pages = 8};

static struct fake f;
static struct okv_engine *engine;
static struct okv_namespace *ns;
static struct kv_rank rank;

static void write_part(uint32_t i, uint64_t tag, uint32_t part, uint32_t ordinal, uint32_t place,
		       struct okw_transfer_reply *reply)
{
	const struct okw_plan_head head = {
		.magic = OKW_MAGIC,
		.version = OKW_PROTOCOL_VERSION,
		.epoch = 11,
		.token = 22,
		.tag = OKI_TAG(OKI_TAG_GENERATION(tag), OKW_GRANTED),
		.record = i,
		.part = part,
		.entry_count = 1,
	};
	const struct okw_plan_entry entry = {
		.allocation_id = 1 + place,
		.offset = (uint64_t)place * BLOCK_BYTES,
		.ordinal = ordinal,
		.bytes = BLOCK_BYTES,
	};
	reply->part[part].offset = 4096 * (1 + 2 * i + part);
	reply->part[part].bytes = sizeof(head) + sizeof(entry);
	uint8_t *to = f.channel.control->bank + reply->part[part].offset;
	memcpy(to, &head, sizeof(head));
	memcpy(to + sizeof(head), &entry, sizeof(entry));
}

/* The reply, and that of its one stretch. */
static void write_reply(struct fake *fake, struct okw_record *r,
			const struct okw_transfer_reply *reply)
{
	const struct okw_stretch_reply stretch = {.blocks = (uint32_t)reply->blocks};
	uint8_t *to = fake->channel.requests + r->request_offset + ((r->request_bytes + 7u) & ~7u);
	memcpy(to, reply, sizeof(*reply));
	memcpy(to + sizeof(*reply), &stretch, sizeof(stretch));
	r->reply_bytes = sizeof(*reply) + sizeof(stretch);
}

/* Publishes of two blocks get an invalid second part. */
static void answer(struct fake *fake, uint32_t i, uint64_t tag)
{
	struct okw_record *r = &fake->channel.control->records[i];
	struct okw_request head;
	struct okw_request_group group;
	uint8_t *request = fake->channel.requests + r->request_offset;
	memcpy(&head, request, sizeof(head));
	memcpy(&group, request + sizeof(head), sizeof(group));
	struct okw_transfer_reply reply = {.blocks = group.count, .part_total = group.count};
	write_part(i, tag, 0, 0, i, &reply);
	if (group.count == 2)
		write_part(i, tag, 1, 7, i, &reply);
	write_reply(fake, r, &reply);
	r->status = 0;
	for (uint32_t k = 0; k < group.count; k++)
		oki_parts_offer(r);
	oki_move(r, &tag, OKW_GRANTED, OKI_MOVER_MANAGER);
	fake_ring(fake, i);
}

START_TEST(a_failed_operation_holds_up_nobody)
{
	struct kv_gate gate;
	struct okv_op *failing, *other;
	struct okv_op_result r;
	f = (struct fake){.record = answer};
	fake_start(&f);
	kv_ok(fake_try_open(&f, &engine, kv_err));
	ns = kv_namespace(engine, &shape);
	kv_rank_open(&rank, ns, &shape, 0);
	for (uint32_t i = 0; i < 2; i++)
		kv_fill(&rank, 1, i, (uint32_t[]){i ? 4 : GATED_PAGE});
	kv_fill(&rank, 2, 0, (uint32_t[]){FREE_PAGE});
	kv_gate_close_page(&gate, &rank, 0, 0, GATED_PAGE);

	kv_ok(kv_publish_start(&rank, 1, 0, 2, (uint32_t[]){GATED_PAGE, 4}, 0, &failing, kv_err));
	kv_gate_wait(&gate);
	/* It is known to fail, and it is not over. */
	ck_assert_int_eq(okv_op_wait_enqueued(failing, 0, 60000), OKV_E_PLAN);
	ck_assert_int_eq(okv_op_poll(failing, NULL), OKV_E_RUNNING);
	/* The same binding's next operation does not wait for the end of that copy. */
	kv_ok(kv_publish_start(&rank, 2, 0, 1, (uint32_t[]){FREE_PAGE}, 0, &other, kv_err));
	ck_assert_int_eq(okv_op_wait(other, 60000, &r), 0);
	ck_assert_int_eq(okv_op_poll(failing, NULL), OKV_E_RUNNING);
	ck_assert(!kv_gate_is_open(&gate));

	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait(failing, 60000, &r), OKV_E_PLAN);
	okv_op_release(failing);
	okv_op_release(other);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	fake_end(&f);
}
END_TEST

/* ---- Managers that leave ---- */

static uint32_t taken; /* the record in Preparing */

static struct okw_record *begin(uint32_t flags, struct okv_op **ret_op)
{
	struct okv_engine_options o;
	f = (struct fake){.record = fake_keep, .never_reaps = true};
	fake_start(&f);
	okv_engine_options_init(&o);
	o.socket_path = f.path;
	o.connect_timeout_ms = 500;
	o.flags = flags;
	kv_ok(okv_engine_open(&o, &engine, kv_err));
	ns = kv_namespace(engine, &shape);
	kv_rank_open(&rank, ns, &shape, 0);
	kv_ok(kv_publish_start(&rank, 1, 0, 1, (uint32_t[]){0}, 0, ret_op, kv_err));
	taken = fake_kept(&f);
	return &f.channel.control->records[taken];
}

/* It grants, offers nothing, scribbles over the record and hangs up. */
START_TEST(a_part_that_never_comes_ends_with_the_session)
{
	struct okv_op *op;
	struct okv_op_result r;
	struct okw_record *record = begin(0, &op);
	const struct okw_transfer_reply reply = {.blocks = 1, .part_total = 1};
	write_reply(&f, record, &reply);
	uint64_t tag = oki_tag_load(record);
	ck_assert(oki_move(record, &tag, OKW_GRANTED, OKI_MOVER_MANAGER));
	fake_ring(&f, taken);
	kv_until(OKI_TAG_STATE(oki_tag_load(record)) == OKW_ACTIVE);
	/* Nothing ends it, so its worker asks for the part in vain and sleeps. */
	ck_assert_int_eq(okv_op_wait(op, 20, &r), OKV_E_TIMEOUT);
	atomic_store(&record->tag, OKI_TAG(OKI_TAG_GENERATION(tag), OKW_PREPARING));
	shutdown(f.sock, SHUT_RDWR);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), OKV_E_SESSION);
	okv_op_release(op);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	fake_end(&f);
}
END_TEST

/* Poisoned by another binding: what the Manager never answered ends when the engine is closed. */
START_TEST(an_unclaimed_operation_of_a_poisoned_engine_ends)
{
	struct okv_op *op;
	struct okv_op_result r;
	begin(OKV_ENGINE_POISON, &op);
	ck_assert_int_eq(okv_op_wait(op, 20, &r), OKV_E_TIMEOUT);
	atomic_store(&engine->state, OKV_E_POISONED);
	okv_engine_close(engine);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), OKV_E_CANCELLED);
	okv_op_release(op);
	/* The binding stays: its copies might run on. */
	fake_end(&f);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fail");
	TCase *t = tcase_create("fail");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, a_failed_operation_holds_up_nobody);
	tcase_add_test(t, a_part_that_never_comes_ends_with_the_session);
	tcase_add_test(t, an_unclaimed_operation_of_a_poisoned_engine_ends);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
