/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager that answers with an invalid reply or plan: an error, and no byte is touched. */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "grant/parts.h"
#include "grant/state.h"
#include "process/child.h"
#include "process/fake_manager.h"

#define BLOCKS 8u
#define BLOCK_BYTES (4u * 2u * 256u) /* of the default shape */

static const struct kv_shape shape = {.pages = 32};

/* ---- answers ---- */

static uint8_t *reply_of(struct fake *f, const struct okw_record *record)
{
	return f->channel.requests + record->request_offset + ((record->request_bytes + 7u) & ~7u);
}

static void move(struct fake *f, uint32_t i, uint64_t tag, uint32_t state)
{
	struct okw_record *record = &f->channel.control->records[i];
	oki_move(record, &tag, state, OKI_MOVER_MANAGER);
	fake_ring(f, i);
}

static struct okw_lookup_reply right_lookup(void)
{
	struct okw_lookup_reply reply = {.lease_slot = 5, .group_count = 1, .tokens = 8 * 16};
	reply.groups[0].count = BLOCKS;
	return reply;
}

static void say_lookup(struct fake *f, uint32_t i, uint64_t tag,
		       const struct okw_lookup_reply *reply)
{
	struct okw_record *record = &f->channel.control->records[i];
	memcpy(reply_of(f, record), reply, sizeof(*reply));
	record->reply_bytes = sizeof(*reply);
	record->status = 0;
	move(f, i, tag, OKW_DONE);
}

enum {
	L_RIGHT,
	L_GROUPS_NONE,
	L_GROUPS_TWO,
	L_GROUPS_MANY,
	L_OTHER_GROUP,
	L_MORE_BLOCKS,
	L_FAR_BLOCKS,
	L_WRAPPED_BLOCKS,
	L_NO_REPLY,
	L_LONG_REPLY,
	L_STATUS_POSITIVE,
	L_STATUS_UNKNOWN,
	L_TEXT_UNTERMINATED,
	LOOKUPS,
};

static void odd_lookup(struct fake *f, uint32_t i, uint64_t tag)
{
	struct okw_record *record = &f->channel.control->records[i];
	struct okw_lookup_reply reply = right_lookup();
	switch (f->which) {
	case L_GROUPS_NONE: reply.group_count = 0; break;
	case L_GROUPS_TWO: reply.group_count = 2; break;
	case L_GROUPS_MANY: reply.group_count = 0xffffffffu; break;
	case L_OTHER_GROUP: reply.groups[0].group = 4; break;
	case L_MORE_BLOCKS: reply.groups[0].count = BLOCKS + 1; break;
	case L_FAR_BLOCKS: reply.groups[0].first = 1; break;
	case L_WRAPPED_BLOCKS: reply.groups[0].first = 0xfffffffeu; break;
	default: break;
	}
	memcpy(reply_of(f, record), &reply, sizeof(reply));
	record->reply_bytes = sizeof(reply);
	record->status = 0;
	switch (f->which) {
	case L_NO_REPLY: record->reply_bytes = 0; break;
	case L_LONG_REPLY: record->reply_bytes = 0xffffffffu; break;
	case L_STATUS_POSITIVE: record->status = 3; break;
	case L_STATUS_UNKNOWN: record->status = -31000; break;
	case L_TEXT_UNTERMINATED:
		record->status = OKV_E_LIMIT;
		memset(record->text, 'x', sizeof(record->text));
		break;
	default: break;
	}
	move(f, i, tag, OKW_DONE);
}

static int lookup(struct okv_namespace *ns, struct okv_lookup_result *ret_result,
		  struct okv_lease **ret_lease, struct okv_error *err)
{
	uint8_t *keys = kv_keys(1, 0, BLOCKS);
	struct okv_keys k = {.count = BLOCKS, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &k;
	o.timeout_ms = 20000;
	int rc = okv_lookup(ns, &o, ret_result, ret_lease, err);
	free(keys);
	return rc;
}

START_TEST(r8_lookup_answers_that_do_not_hold)
{
	struct fake f = {.record = odd_lookup, .which = _i};
	struct okv_engine *e = NULL;
	struct okv_lookup_result result;
	struct okv_lease *lease = NULL;
	struct okv_error err = {.status = 0};
	fake_start(&f);
	ck_assert_int_eq(fake_try_open(&f, &e, &err), 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	memset(&result, 0xee, sizeof(result));
	int rc = lookup(ns, &result, &lease, &err);
	if (_i == L_RIGHT) {
		ck_assert_int_eq(rc, 0);
		ck_assert_uint_eq(result.groups[0].count, BLOCKS);
		ck_assert(lease != NULL);
	} else {
		ck_assert_msg(is_known_failure(rc), "answer %d: %d %s", _i, rc,
			      okv_status_name(rc));
		ck_assert(lease == NULL);
		/* Outputs are written on success only. */
		ck_assert_uint_eq(result.group_count, 0xeeeeeeeeu);
		ck_assert(memchr(err.text, 0, sizeof(err.text)) != NULL);
	}
	okv_lease_release(lease);
	okv_namespace_close(ns);
	okv_engine_close(e);
	fake_end(&f);
}
END_TEST

/* ---- plans ---- */

enum {
	P_RIGHT,
	P_TWO_PARTS,	    /* also right */
	P_GROUP_DONE_EARLY, /* also in two parts */
	P_MAGIC,
	P_VERSION,
	P_EPOCH,
	P_TOKEN,
	P_GENERATION,
	P_RECORD,
	P_PART,
	P_COUNT_MORE,
	P_COUNT_HUGE,
	P_COUNT_LESS,
	P_ARENA,
	P_ARENA_HUGE,
	P_OFFSET_END,
	P_OFFSET_WRAP,
	P_OFFSET_ODD,
	P_BYTES_LESS,
	P_BYTES_MORE,
	P_GROUP,
	P_GROUP_HUGE,
	P_ORDINAL_TWICE,
	P_ORDINAL_FAR,
	P_ORDINAL_BACK,
	P_MISSING_FIRST,
	P_MISSING_LAST,
	P_NO_ENTRIES,
	P_STRETCH_LESS, /* the counts of the stretch */
	P_STRETCH_MORE,
	P_STRETCH_STATUS,
	P_SPENT_MORE, /* more leases than stretches */
	P_SUM_LESS,
	P_PART_OUTSIDE,
	P_PART_HUGE,
	P_PART_SMALL,
	P_NO_PARTS,
	P_DONE,
	P_DONE_POSITIVE,
	P_DONE_UNKNOWN,
	P_DONE_REFUSED,
	P_REVOKED,
	P_CLOSED,
	PLANS,
};

struct part {
	struct okw_plan_head head;
	struct okw_plan_entry entries[BLOCKS];
};
static_assert(sizeof(struct part) ==
		      sizeof(struct okw_plan_head) + BLOCKS * sizeof(struct okw_plan_entry),
	      "packed");

static void fill_part(struct part *p, uint32_t i, uint64_t tag, uint32_t part, uint32_t first,
		      uint32_t count)
{
	p->head = (struct okw_plan_head){
		.magic = OKW_MAGIC,
		.version = OKW_PROTOCOL_VERSION,
		.epoch = 11,
		.token = 22,
		.tag = OKI_TAG(OKI_TAG_GENERATION(tag), OKW_GRANTED),
		.record = i,
		.part = part,
		.entry_count = count,
		.groups_done = first + count == BLOCKS,
	};
	for (uint32_t k = 0; k < count; k++)
		p->entries[k] = (struct okw_plan_entry){
			.allocation_id = 1 + first + k,
			.offset = (uint64_t)(first + k) * BLOCK_BYTES,
			.ordinal = first + k,
			.bytes = BLOCK_BYTES,
		};
}

static void spoil_part(struct part *p, int which)
{
	struct okw_plan_head *h = &p->head;
	struct okw_plan_entry *last = &p->entries[BLOCKS - 1];
	switch (which) {
	case P_MAGIC: h->magic++; return;
	case P_VERSION: h->version++; return;
	case P_EPOCH: h->epoch++; return;
	case P_TOKEN: h->token++; return;
	case P_GENERATION: h->tag += 256; return;
	case P_RECORD: h->record++; return;
	case P_PART: h->part++; return;
	case P_COUNT_MORE: h->entry_count++; return;
	case P_COUNT_HUGE: h->entry_count = 0x08000001u; return;
	case P_COUNT_LESS: h->entry_count--; return;
	case P_ARENA: last->arena = 1; return;
	case P_ARENA_HUGE: last->arena = 0xffffffffu; return;
	case P_OFFSET_END: last->offset = FAKE_ARENA_BYTES - BLOCK_BYTES + 16; return;
	case P_OFFSET_WRAP: last->offset = -(uint64_t)BLOCK_BYTES; return;
	case P_OFFSET_ODD: last->offset += 1; return;
	case P_BYTES_LESS: last->bytes -= 1; return;
	case P_BYTES_MORE: last->bytes += 1; return;
	case P_GROUP: last->group = 1; return;
	case P_GROUP_HUGE: last->group = 0xffffffffu; return;
	case P_ORDINAL_TWICE: last->ordinal--; return;
	case P_ORDINAL_FAR: last->ordinal = BLOCKS; return;
	case P_ORDINAL_BACK: last->ordinal = 0; return;
	case P_MISSING_FIRST:
		memmove(p->entries, p->entries + 1, (BLOCKS - 1) * sizeof(p->entries[0]));
		h->entry_count--;
		return;
	case P_MISSING_LAST: h->entry_count--; return;
	case P_NO_ENTRIES: h->entry_count = 0; return;
	default: return;
	}
}

/* The replies of the transfer and of its one stretch. */
static void say_transfer(struct fake *f, uint32_t i, const struct okw_transfer_reply *reply)
{
	struct okw_record *record = &f->channel.control->records[i];
	const struct okw_stretch_reply stretch = {
		.blocks = f->which == P_STRETCH_LESS ? BLOCKS - 1 : BLOCKS,
		.present = f->which == P_STRETCH_MORE,
		.status = f->which == P_STRETCH_STATUS ? OKV_E_NOENT : 0,
	};
	memcpy(reply_of(f, record), reply, sizeof(*reply));
	memcpy(reply_of(f, record) + sizeof(*reply), &stretch, sizeof(stretch));
	record->reply_bytes = sizeof(*reply) + sizeof(stretch);
}

static void end_at_once(struct fake *f, uint32_t i, uint64_t tag)
{
	struct okw_record *record = &f->channel.control->records[i];
	const struct okw_transfer_reply reply = {.blocks = BLOCKS, .lease_spent = 1};
	say_transfer(f, i, &reply);
	record->status = f->which == P_DONE_POSITIVE  ? 4
			 : f->which == P_DONE_UNKNOWN ? -9999
			 : f->which == P_DONE_REFUSED ? OKV_E_NOENT
						      : 0;
	move(f, i, tag, OKW_DONE);
}

static void two_parts(struct fake *f, uint32_t i, uint64_t tag, struct okw_transfer_reply *reply)
{
	uint8_t *bank = f->channel.control->bank;
	struct part p;
	for (uint32_t k = 0; k < 2; k++) {
		fill_part(&p, i, tag, k, k * BLOCKS / 2, BLOCKS / 2);
		if (f->which == P_GROUP_DONE_EARLY)
			p.head.groups_done = 1;
		reply->part[k].offset = 4096 * (k + 1);
		reply->part[k].bytes = sizeof(p.head) + BLOCKS / 2 * sizeof(p.entries[0]);
		memcpy(bank + reply->part[k].offset, &p, reply->part[k].bytes);
	}
	reply->part_total = 2;
	oki_parts_offer(&f->channel.control->records[i]);
}

static void odd_plan(struct fake *f, uint32_t i, uint64_t tag)
{
	struct okw_record *record = &f->channel.control->records[i];
	struct okw_transfer_reply reply = {.blocks = BLOCKS, .lease_spent = 1, .part_total = 1};
	uint8_t *bank = f->channel.control->bank;
	struct part p;
	if (f->which >= P_DONE && f->which <= P_DONE_REFUSED) {
		end_at_once(f, i, tag);
		return;
	}
	fill_part(&p, i, tag, 0, 0, BLOCKS);
	spoil_part(&p, f->which);
	reply.part[0].offset = 4096;
	reply.part[0].bytes = sizeof(p);
	if (f->which == P_MISSING_FIRST || f->which == P_MISSING_LAST)
		reply.part[0].bytes -= (uint32_t)sizeof(p.entries[0]);
	if (f->which == P_NO_ENTRIES)
		reply.part[0].bytes = sizeof(p.head);
	memcpy(bank + reply.part[0].offset, &p, sizeof(p));
	switch (f->which) {
	case P_PART_OUTSIDE: reply.part[0].offset = OKW_PLAN_BANK_BYTES - 64; break;
	case P_PART_HUGE: reply.part[0].bytes = 0xffffffffu; break;
	case P_PART_SMALL: reply.part[0].bytes = 7; break;
	case P_NO_PARTS: reply.part_total = 0; break;
	case P_TWO_PARTS:
	case P_GROUP_DONE_EARLY: two_parts(f, i, tag, &reply); break;
	default: break;
	}
	if (f->which == P_SPENT_MORE)
		reply.lease_spent = 2;
	if (f->which == P_SUM_LESS)
		reply.blocks = BLOCKS - 1;
	say_transfer(f, i, &reply);
	record->status = 0;
	if (f->which != P_NO_PARTS)
		oki_parts_offer(record);
	if (f->which == P_CLOSED)
		oki_parts_close(record);
	move(f, i, tag, OKW_GRANTED);
	tag = OKI_TAG(OKI_TAG_GENERATION(tag), OKW_GRANTED);
	if (f->which == P_REVOKED)
		move(f, i, tag, OKW_REVOKED);
}

/* The first operation is the lookup, the second what is tested. */
static void plan_record(struct fake *f, uint32_t i, uint64_t tag)
{
	struct okw_lookup_reply found = right_lookup();
	if (f->channel.control->records[i].kind == OKW_OP_LOOKUP)
		say_lookup(f, i, tag, &found);
	else
		odd_plan(f, i, tag);
}

/* Block k of the arena is full of the byte k + 1. */
static void fill_arena(const struct fake *f)
{
	uint8_t *at = mmap(NULL, FAKE_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, f->arena, 0);
	ck_assert(at != MAP_FAILED);
	memset(at, 0xff, FAKE_ARENA_BYTES);
	for (uint32_t k = 0; k < BLOCKS; k++)
		memset(at + k * BLOCK_BYTES, (int)k + 1, BLOCK_BYTES);
	munmap(at, FAKE_ARENA_BYTES);
}

static void check_pages(const struct kv_rank *rank, const uint32_t *pages)
{
	for (uint32_t k = 0; k < BLOCKS; k++)
		for (uint32_t l = 0; l < rank->shape.layers; l++) {
			const struct okv_layer *layer = &rank->layers[l];
			const uint8_t *at = (uint8_t *)layer->base + pages[k] * layer->page_stride;
			for (uint32_t o = 0; o < layer->page_stride; o++)
				ck_assert_uint_eq(at[o], k + 1);
		}
}

START_TEST(r8_plans_that_do_not_hold)
{
	uint32_t fds = kv_fd_count();
	struct fake f = {.record = plan_record, .which = _i};
	struct okv_engine *e = NULL;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	struct okv_op_result result;
	struct kv_rank rank;
	fake_start(&f);
	fill_arena(&f);
	ck_assert_int_eq(fake_try_open(&f, &e, NULL), 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	ck_assert_uint_eq(okv_namespace_block_bytes(ns, 0), BLOCK_BYTES);
	kv_rank_open(&rank, ns, &shape, 0);
	kv_ok(lookup(ns, &found, &lease, kv_err));
	uint32_t *pages = kv_pages(&rank, BLOCKS, 1, 2);
	int rc = kv_restore(&rank, lease, 0, BLOCKS, pages, 0, &result);
	/* A grant may be claimed before it is taken back. */
	if (_i <= P_TWO_PARTS || (_i == P_REVOKED && !rc)) {
		ck_assert_int_eq(rc, 0);
		check_pages(&rank, pages);
	} else {
		ck_assert_msg(is_known_failure(rc), "plan %d: %d %s", _i, rc, okv_status_name(rc));
		ck_assert_uint_eq(result.blocks, 0);
		for (uint32_t k = 0; k < BLOCKS && _i != P_MISSING_FIRST && _i != P_MISSING_LAST;
		     k++)
			ck_assert_uint_eq(kv_touched(&rank, pages[k]), 0);
	}
	for (uint32_t p = 0; p < 32; p += 2)
		ck_assert_uint_eq(kv_touched(&rank, p), 0);
	ck_assert_uint_eq(kv_canaries_broken(&rank), 0);
	/* The engine lives: it asks again, and gets an answer of whatever kind. */
	okv_lease_release(lease);
	kv_ok(lookup(ns, &found, &lease, kv_err));
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
	fake_end(&f);
	free(pages);
	ck_assert_uint_eq(kv_fd_count(), fds);
}
END_TEST

/* ---- memory that changes under the engine ---- */

struct scribbler {
	pthread_t thread;
	struct fake *fake;
	_Atomic bool stop;
};

static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	uint64_t n = 1;
	while (!atomic_load(&s->stop)) {
		uint8_t *bank = s->fake->channel.control->bank + 4096;
		n = n * 6364136223846793005ull + 1442695040888963407ull;
		__atomic_fetch_xor(bank + (n >> 33) % sizeof(struct part),
				   (uint8_t)(1u << (n >> 60) % 8), __ATOMIC_RELAXED);
	}
	return NULL;
}

START_TEST(r8_plans_that_change_while_they_are_read)
{
	struct fake f = {.record = plan_record, .which = P_RIGHT};
	struct scribbler s = {.fake = &f};
	struct okv_engine *e = NULL;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	struct kv_rank rank;
	uint32_t good = 0, bad = 0;
	fake_start(&f);
	fill_arena(&f);
	ck_assert_int_eq(fake_try_open(&f, &e, NULL), 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	kv_rank_open(&rank, ns, &shape, 0);
	kv_ok(lookup(ns, &found, &lease, kv_err));
	atomic_init(&s.stop, false);
	ck_assert_int_eq(pthread_create(&s.thread, NULL, scribble, &s), 0);
	uint32_t *pages = kv_pages(&rank, BLOCKS, 1, 2);
	for (int n = 0; n < 300; n++) {
		int rc = kv_restore(&rank, lease, 0, BLOCKS, pages, 0, NULL);
		ck_assert_msg(rc == 0 || rc == OKV_E_PLAN, "%s", okv_status_name(rc));
		good += rc == 0;
		bad += rc != 0;
	}
	ck_assert_uint_gt(good + bad, 0);
	for (uint32_t p = 0; p < 32; p += 2)
		ck_assert_uint_eq(kv_touched(&rank, p), 0);
	ck_assert_uint_eq(kv_canaries_broken(&rank), 0);
	atomic_store(&s.stop, true);
	pthread_join(s.thread, NULL);
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
	fake_end(&f);
	free(pages);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("bad plans");
	TCase *t = tcase_create("bad plans");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, r8_lookup_answers_that_do_not_hold, 0, LOOKUPS);
	tcase_add_loop_test(t, r8_plans_that_do_not_hold, 0, PLANS);
	tcase_add_test(t, r8_plans_that_change_while_they_are_read);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
