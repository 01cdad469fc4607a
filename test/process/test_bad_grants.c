/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that lie about their grants, change what is being read, or never let a doorbell rest. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "grant/parts.h"
#include "grant/state.h"
#include "process/child.h"
#include "process/honest.h"
#include "process/raw_session.h"

#define BLOCKS 8u

START_TEST(role_honest)
{
	honest_play();
}
END_TEST

/* ---- lies about a grant ---- */

static void to_active(struct okw_record *record)
{
	uint64_t tag = oki_tag_load(record);
	ck_assert(oki_move(record, &tag, OKW_ACTIVE, OKI_MOVER_ENGINE));
}

static void to_drained(struct okw_record *record)
{
	uint64_t tag = oki_tag_load(record);
	ck_assert(oki_move(record, &tag, OKW_DRAINED, OKI_MOVER_ENGINE));
}

static void set_state(struct okw_record *record, uint64_t add_generation, uint32_t state)
{
	uint64_t tag = oki_tag_load(record);
	atomic_store(&record->tag, OKI_TAG(OKI_TAG_GENERATION(tag) + add_generation, state));
}

static uint64_t parts(uint64_t offered, uint64_t claimed)
{
	return offered << OKW_PARTS_OFFERED_SHIFT | claimed << OKW_PARTS_CLAIMED_SHIFT;
}

#define LIE(name, statements)                       \
	static void name(struct okw_record *record) \
	{                                           \
		uint32_t part;                      \
		(void)part;                         \
		statements;                         \
	}

LIE(lie_claimed_not_drained, to_active(record); oki_parts_claim(record, &part); to_drained(record))
LIE(lie_drained_not_claimed, to_active(record); atomic_store(&record->drained, 1);
    to_drained(record))
LIE(lie_success_unclaimed, to_active(record); to_drained(record))
LIE(lie_more_claimed, to_active(record); atomic_store(&record->parts, parts(1, 5));
    atomic_store(&record->drained, 5); to_drained(record))
LIE(lie_more_offered, to_active(record); atomic_store(&record->parts, parts(3, 3));
    atomic_store(&record->drained, 3); to_drained(record))
LIE(lie_none_offered, to_active(record); atomic_store(&record->parts, 0); to_drained(record))
LIE(lie_consumed, to_active(record); oki_parts_claim(record, &part);
    atomic_store(&record->drained, 1); atomic_store(&record->consumed, 77); to_drained(record))
LIE(lie_status, to_active(record); oki_parts_claim(record, &part);
    atomic_store(&record->drained, 1); record->engine_status = -9999; to_drained(record))
LIE(lie_status_positive, to_active(record); oki_parts_claim(record, &part);
    atomic_store(&record->drained, 1); record->engine_status = 7; to_drained(record))
LIE(lie_free, set_state(record, 1, OKW_FREE))
LIE(lie_free_same, set_state(record, 0, OKW_FREE))
LIE(lie_reaped, to_active(record); set_state(record, 0, OKW_REAPED))
LIE(lie_submitted, to_active(record); set_state(record, 1, OKW_SUBMITTED))
LIE(lie_other_generation, to_active(record); oki_parts_claim(record, &part);
    atomic_store(&record->drained, 1); set_state(record, 5, OKW_DRAINED))
LIE(lie_no_state, set_state(record, 0, 200))
LIE(lie_preparing, to_active(record); set_state(record, 0, OKW_PREPARING))

static void (*const lies[])(struct okw_record *) = {
	lie_claimed_not_drained,
	lie_drained_not_claimed,
	lie_success_unclaimed,
	lie_more_claimed,
	lie_more_offered,
	lie_none_offered,
	lie_consumed,
	lie_status,
	lie_status_positive,
	lie_free,
	lie_free_same,
	lie_reaped,
	lie_submitted,
	lie_other_generation,
	lie_no_state,
	lie_preparing,
};
#define LIES (sizeof(lies) / sizeof(lies[0]))

static void open_raw(struct raw *r)
{
	raw_open(r, child_socket);
	raw_register(r, &honest_shape);
}

/* Submit a publish of a sequence; it must be granted all blocks. */
static struct okw_record *granted(struct raw *r, uint32_t i, uint64_t seq)
{
	uint8_t request[RAW_REQUEST_BYTES];
	uint32_t bytes = raw_request(r, OKW_OP_PUBLISH, seq, BLOCKS, request);
	struct okw_transfer_reply reply;
	raw_submit(r, i, request, bytes, true);
	uint32_t state = raw_await(r, i);
	ck_assert_msg(state == OKW_GRANTED, "%s, %d: %s", oki_state_name(state),
		      raw_record(r, i)->status, raw_record(r, i)->text);
	memcpy(&reply, r->channel.requests + raw_extent(i) + ((bytes + 7u) & ~7u), sizeof(reply));
	ck_assert_uint_eq(reply.blocks, BLOCKS);
	ck_assert_uint_eq(reply.present + reply.in_progress + reply.not_stored, 0);
	return raw_record(r, i);
}

static void end_honestly(struct raw *r, uint32_t i)
{
	struct okw_record *record = raw_record(r, i);
	uint32_t part;
	to_active(record);
	ck_assert(oki_parts_claim(record, &part));
	atomic_store(&record->consumed, 1);
	atomic_store(&record->drained, 1);
	to_drained(record);
	raw_ring(r, i);
}

START_TEST(role_lies)
{
	char line[32];
	for (uint32_t k = 0; k < LIES; k++) {
		struct raw r;
		open_raw(&r);
		lies[k](granted(&r, 3, 100 + k));
		raw_ring(&r, 3);
		raw_await_drop(&r);
		raw_close(&r);
		snprintf(line, sizeof(line), "lie %u", k);
		child_say(line);
		ck_assert(child_hear(line, sizeof(line)));
		/* The key is anyone's again, in memory that nobody doubts. */
		open_raw(&r);
		granted(&r, 3, 100 + k);
		end_honestly(&r, 3);
		while (OKI_TAG_STATE(oki_tag_load(raw_record(&r, 3))) != OKW_REAPED)
			sched_yield();
		ck_assert_int_eq(raw_record(&r, 3)->status, 0);
		raw_close(&r);
	}
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(r3_every_lie_about_a_grant_is_quarantined)
{
	struct stage s;
	struct child evil;
	stage_open(&s);
	uint64_t block = 4 * 2 * 512;
	child_start(&evil, "lies", s.m.socket_path, NULL);
	for (uint32_t k = 0; k < LIES; k++) {
		char line[32];
		snprintf(line, sizeof(line), "lie %u", k);
		child_wait(&evil, line);
		struct okv_manager_status st = kv_manager_status(&s.m);
		ck_assert_msg(st.ops_quarantined == k + 1, "after lie %u: %u quarantined", k,
			      (unsigned)st.ops_quarantined);
		ck_assert_uint_eq(st.bytes_quarantined, (k + 1) * BLOCKS * block);
		child_tell(&evil, "go on");
	}
	child_wait(&evil, "done");
	ck_assert_uint_eq(kv_manager_status(&s.m).blocks, HONEST_BLOCKS + LIES * BLOCKS);
	child_end(&evil);
	stage_close(&s, LIES);
}
END_TEST

/* ---- everything changes while it is read ---- */

struct flipper {
	pthread_t thread;
	struct raw *raw;
	_Atomic bool stop;
	bool records; /* else the request area */
};

static void *flip(void *arg)
{
	struct flipper *f = arg;
	uint64_t seed = 99;
	while (!atomic_load(&f->stop)) {
		uint32_t i = raw_random(&seed) % 8;
		if (f->records) {
			struct okw_record *record = raw_record(f->raw, i);
			/* All but the tag: its values are tried one by one elsewhere. */
			uint8_t *bytes = (uint8_t *)record + 8 + raw_random(&seed) % 48;
			__atomic_fetch_xor(bytes, (uint8_t)(1u << raw_random(&seed) % 8),
					   __ATOMIC_RELAXED);
		} else {
			uint8_t *bytes =
				f->raw->channel.requests + raw_extent(i) + raw_random(&seed) % 400;
			__atomic_fetch_xor(bytes, (uint8_t)(1u << raw_random(&seed) % 8),
					   __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void flip_start(struct flipper *f, struct raw *r, bool records)
{
	f->raw = r;
	f->records = records;
	atomic_init(&f->stop, false);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, flip, f), 0);
}

static void flip_stop(struct flipper *f)
{
	atomic_store(&f->stop, true);
	pthread_join(f->thread, NULL);
}

/* Submit lookups and publishes while another thread flips bits of them. */
static void flipped(bool records)
{
	static uint8_t request[RAW_REQUEST_BYTES];
	struct raw r = {.sock = -1};
	struct flipper f;
	uint32_t dropped = 0;
	/* And on, until a flip was met: a busy machine may give its thread little time. */
	for (uint32_t n = 0; n < 3000 || (!dropped && n < 10000000); n++) {
		if (r.sock < 0) {
			open_raw(&r);
			flip_start(&f, &r, records);
		}
		uint32_t i = n % 8, state = OKI_TAG_STATE(oki_tag_load(raw_record(&r, i)));
		if (state == OKW_SUBMITTED)
			state = raw_await(&r, i);
		if (state == OKW_GRANTED) {
			/* Nobody claimed it: the Manager takes it back on request. */
			atomic_store(&raw_record(&r, i)->engine_flags, OKW_ENGINE_CANCEL);
			raw_ring(&r, i);
		} else if (state == OKW_FREE || state == OKW_DONE || state == OKW_REVOKED) {
			uint32_t kind = n % 3 ? OKW_OP_LOOKUP : OKW_OP_PUBLISH;
			uint32_t bytes = raw_request(&r, kind, 1 + n % 20, 10, request);
			raw_submit(&r, i, request, bytes, true);
		}
		if (raw_dropped(&r)) {
			dropped++;
			flip_stop(&f);
			raw_close(&r);
		}
	}
	if (r.sock >= 0) {
		flip_stop(&f);
		raw_close(&r);
	}
	ck_assert_uint_gt(dropped, 0);
	child_say("done");
	child_stay();
}

START_TEST(role_flip_requests)
{
	flipped(false);
}
END_TEST

START_TEST(role_flip_records)
{
	flipped(true);
}
END_TEST

START_TEST(r8_requests_that_change_while_they_are_read)
{
	run_evil("flip_requests", NULL, 0);
}
END_TEST

START_TEST(r8_records_that_change_while_they_are_read)
{
	/* Nothing is ever claimed, but a parts word may say so. */
	run_evil("flip_records", NULL, 3000);
}
END_TEST

/* ---- floods ---- */

static void flood_bells(struct raw *r, uint64_t *seed)
{
	struct okw_control *c = r->channel.control;
	uint64_t one = 1;
	for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++) {
		atomic_store(&c->submit.dirty[w], ~0ull);
		atomic_store(&c->retire.dirty[w], ~0ull);
	}
	for (uint32_t w = 0; w < OKW_LEASE_WORDS; w++)
		atomic_store(&c->lease_release[w], ~0ull);
	atomic_store(&c->submit.asleep, raw_random(seed));
	atomic_store(&c->retire.asleep, raw_random(seed));
	atomic_store(&c->engine.asleep, 1);
	ck_assert_int_eq(write(r->channel.manager_doorbell, &one, sizeof(one)), sizeof(one));
}

START_TEST(role_floods)
{
	struct raw r;
	uint64_t seed = 5;
	open_raw(&r);
	child_say("here");
	while (!child_asked())
		flood_bells(&r, &seed);
	ck_assert(!raw_dropped(&r));
	raw_close(&r);
	child_stay();
}
END_TEST

START_TEST(r8_bells_that_never_rest)
{
	struct stage s;
	struct child evil[2];
	stage_open(&s);
	for (int i = 0; i < 2; i++)
		child_start(&evil[i], "floods", s.m.socket_path, NULL);
	for (int i = 0; i < 2; i++)
		child_wait(&evil[i], "here");
	for (int n = 0; n < 20; n++)
		stage_check(&s);
	for (int i = 0; i < 2; i++)
		child_end(&evil[i]);
	stage_close(&s, 0);
}
END_TEST

/* Grants held for ever: they cost their holder its pool share and permits, and end with it. */
START_TEST(role_hoards)
{
	struct raw r;
	open_raw(&r);
	for (uint32_t i = 0; i < 200; i++)
		to_active(granted(&r, i, 1000 + i));
	child_say("here");
	child_stay();
	raw_close(&r);
}
END_TEST

/* What the honest engine last did may be retiring still. */
static bool all_hoarded(const struct okv_manager_status *s)
{
	return s->ops_active == 200;
}

START_TEST(r10_grants_held_by_one_stop_nobody_else)
{
	struct stage s;
	struct child evil;
	stage_open(&s);
	child_start(&evil, "hoards", s.m.socket_path, NULL);
	child_wait(&evil, "here");
	kv_manager_wait(&s.m, all_hoarded, "200 grants held and no other");
	for (int n = 0; n < 5; n++)
		stage_check(&s);
	child_kill(&evil, SIGKILL);
	stage_close(&s, 200);
}
END_TEST

/* ---- hints that never come ---- */

/* A restore of all shared blocks through this lease; granted. */
static void restore_granted(struct raw *r, uint32_t i, const struct okw_lookup_reply *lease)
{
	uint8_t request[RAW_REQUEST_BYTES];
	struct okw_restore_part part;
	uint32_t bytes = raw_request(r, OKW_OP_RESTORE, 0, HONEST_BLOCKS, request);
	uint8_t *at = request + sizeof(struct okw_request);
	memcpy(&part, at, sizeof(part));
	part.flags = OKW_PART_KEEP;
	part.lease_slot = lease->lease_slot;
	memcpy(part.lease_id, lease->lease_id, sizeof(part.lease_id));
	memcpy(at, &part, sizeof(part));
	raw_submit(r, i, request, bytes, true);
	uint32_t state = raw_await(r, i);
	ck_assert_msg(state == OKW_GRANTED, "restore %u: %s: %s", i, oki_state_name(state),
		      raw_record(r, i)->text);
}

/* Restores one after another that end without a doorbell rung: none may be counted as running. */
START_TEST(role_silent)
{
	enum { RESTORES = 400 };
	struct raw r;
	uint8_t request[RAW_REQUEST_BYTES];
	struct okw_lookup_reply lease;
	open_raw(&r);
	uint32_t part, bytes = raw_request(&r, OKW_OP_LOOKUP, HONEST_SEQ, HONEST_BLOCKS, request);
	raw_submit(&r, 0, request, bytes, true);
	ck_assert_uint_eq(raw_await(&r, 0), OKW_DONE);
	memcpy(&lease, r.channel.requests + raw_extent(0) + ((bytes + 7u) & ~7u), sizeof(lease));
	ck_assert_uint_eq(lease.groups[0].count, HONEST_BLOCKS);
	for (uint32_t i = 1; i <= RESTORES; i++) {
		struct okw_record *record = raw_record(&r, i);
		restore_granted(&r, i, &lease);
		to_active(record);
		ck_assert(oki_parts_claim(record, &part));
		atomic_store(&record->consumed, 1);
		atomic_store(&record->drained, 1);
		to_drained(record);
	}
	for (uint32_t i = 1; i <= RESTORES; i++)
		while (OKI_TAG_STATE(oki_tag_load(raw_record(&r, i))) != OKW_REAPED)
			sched_yield();
	raw_close(&r);
	child_say("done");
	child_stay();
}
END_TEST

START_TEST(r10_drained_restores_hold_no_permit)
{
	run_evil("silent", NULL, 0);
}
END_TEST

int main(int argc, char **argv)
{
	const struct child_role roles[] = {
		{"honest", role_honest},
		{"lies", role_lies},
		{"flip_requests", role_flip_requests},
		{"flip_records", role_flip_records},
		{"floods", role_floods},
		{"hoards", role_hoards},
		{"silent", role_silent},
	};
	int rc = child_main(argc, argv, roles, sizeof(roles) / sizeof(roles[0]));
	if (rc >= 0)
		return rc;
	Suite *s = suite_create("bad grants");
	TCase *t = tcase_create("bad grants");
	tcase_set_timeout(t, 240);
	tcase_add_test(t, r3_every_lie_about_a_grant_is_quarantined);
	tcase_add_test(t, r8_requests_that_change_while_they_are_read);
	tcase_add_test(t, r8_records_that_change_while_they_are_read);
	tcase_add_test(t, r8_bells_that_never_rest);
	tcase_add_test(t, r10_grants_held_by_one_stop_nobody_else);
	tcase_add_test(t, r10_drained_restores_hold_no_permit);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
