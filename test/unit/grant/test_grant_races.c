/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The transition code of lib/grant with both sides as threads over one record. Each thread
 * yields at random before each atomic access, in the code under test too: it is compiled into
 * this program with accesses that do so. The block that a grant names is plain memory: the engine's
 * side reads it while it copies, the Manager's side overwrites it once it holds a proof, so a
 * proof given too early is a wrong byte here and a race under ThreadSanitizer.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <string.h>
#include <orbitkv/status.h>

static void yield_maybe(void);

#undef atomic_load
#undef atomic_store
#undef atomic_fetch_or
#undef atomic_compare_exchange_strong
#define atomic_load(p) (yield_maybe(), atomic_load_explicit(p, memory_order_seq_cst))
#define atomic_store(p, v) (yield_maybe(), atomic_store_explicit(p, v, memory_order_seq_cst))
#define atomic_fetch_or(p, v) (yield_maybe(), atomic_fetch_or_explicit(p, v, memory_order_seq_cst))
#define atomic_compare_exchange_strong(p, e, v)                                                \
	(yield_maybe(), atomic_compare_exchange_strong_explicit(p, e, v, memory_order_seq_cst, \
								memory_order_seq_cst))
#include "grant/parts.c"
#include "grant/proof.c"
#include "grant/state.c"
#include "support/suite.h"

#define ROUNDS 3000
#define PARTS 3u
#define BLOCK_BYTES 64u

/* Each thread's own dice: the same in every run. */
static _Thread_local uint64_t dice = 1;

static uint32_t roll(uint32_t sides)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	dice ^= dice << 17;
	return (uint32_t)(dice >> 33) % sides;
}

static void yield_maybe(void)
{
	if (roll(8) == 0)
		sched_yield();
}

/* Threads note a broken promise and go on to their end; the test asserts when they are gone. */
static _Atomic int broken_line;
#define PROMISE(condition)                     \
	do {                                   \
		if (!(condition))              \
			note_broken(__LINE__); \
	} while (0)

static void note_broken(int line)
{
	int none = 0;

	atomic_compare_exchange_strong(&broken_line, &none, line);
}

static bool broken(void)
{
	return atomic_load_explicit(&broken_line, memory_order_relaxed) != 0;
}

static void assert_kept(void)
{
	int line = atomic_exchange(&broken_line, 0);

	ck_assert_msg(line == 0, "the promise in line %d is broken", line);
}

/* One scene: a record, a block, two or three actors that start each round together. */
struct scene {
	struct okw_record record;
	uint8_t block[BLOCK_BYTES];
	pthread_barrier_t gate;
	uint64_t start_tag;
	/* Written by one actor each, read by the test between rounds. */
	bool engine_won;
	bool manager_won;
	uint32_t engine_claims;
	uint32_t rogue_claims;
	struct oki_parts closed_as;
};

static void fill(uint8_t *block, uint8_t value)
{
	memset(block, value, BLOCK_BYTES);
}

/* The copy: every byte must be the granted one. */
static bool holds_bytes(const uint8_t *block, uint8_t value)
{
	for (uint32_t i = 0; i < BLOCK_BYTES; i++)
		if (block[i] != value)
			return false;
	return true;
}

static void scene_init(struct scene *scene, unsigned actors)
{
	memset(scene, 0, sizeof(*scene));
	ck_assert_int_eq(pthread_barrier_init(&scene->gate, NULL, actors), 0);
}

static void round_reset(struct scene *scene, uint32_t state)
{
	uint64_t generation = OKI_TAG_GENERATION(scene->start_tag) + 1;

	scene->start_tag = OKI_TAG(generation, state);
	scene->engine_won = false;
	scene->manager_won = false;
	scene->engine_claims = 0;
	scene->rogue_claims = 0;
	oki_parts_reset(&scene->record);
	scene->record.engine_status = 0;
	fill(scene->block, (uint8_t)generation);
	atomic_store(&scene->record.tag, scene->start_tag);
}

struct actor {
	pthread_t thread;
	struct scene *scene;
	uint64_t seed;
	void (*act)(struct scene *);
};

static void *actor_run(void *arg)
{
	struct actor *actor = arg;

	dice = actor->seed;
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&actor->scene->gate);
		yield_maybe();
		actor->act(actor->scene);
		pthread_barrier_wait(&actor->scene->gate);
	}
	return NULL;
}

static void play(struct scene *scene, struct actor *actors, unsigned count, uint32_t state,
		 void (*verify)(struct scene *))
{
	scene_init(scene, count + 1);
	for (unsigned i = 0; i < count; i++) {
		actors[i].scene = scene;
		actors[i].seed = 0x9e3779b97f4a7c15ull * (i + 1);
		ck_assert_int_eq(pthread_create(&actors[i].thread, NULL, actor_run, &actors[i]), 0);
	}
	for (int i = 0; i < ROUNDS; i++) {
		round_reset(scene, state);
		pthread_barrier_wait(&scene->gate);
		pthread_barrier_wait(&scene->gate);
		verify(scene);
	}
	for (unsigned i = 0; i < count; i++)
		pthread_join(actors[i].thread, NULL);
	pthread_barrier_destroy(&scene->gate);
	assert_kept();
}

/* ---- claim against revoke ---- */

static void engine_claims_grant(struct scene *scene)
{
	uint64_t tag = scene->start_tag;

	scene->engine_won = oki_move(&scene->record, &tag, OKW_ACTIVE, OKI_MOVER_ENGINE);
	if (!scene->engine_won)
		return;
	yield_maybe();
	PROMISE(holds_bytes(scene->block, (uint8_t)OKI_TAG_GENERATION(tag)));
}

static void manager_revokes_grant(struct scene *scene)
{
	uint64_t tag = scene->start_tag;
	struct oki_proof proof;

	scene->manager_won = oki_proof_revoke(&scene->record, &tag, &proof);
	if (scene->manager_won)
		fill(scene->block, 0xee);
}

static unsigned revokes_won, claims_won;

static void verify_one_winner(struct scene *scene)
{
	uint32_t state = OKI_TAG_STATE(oki_tag_load(&scene->record));

	PROMISE(scene->engine_won != scene->manager_won);
	PROMISE(state == (scene->engine_won ? OKW_ACTIVE : OKW_REVOKED));
	revokes_won += scene->manager_won;
	claims_won += scene->engine_won;
}

START_TEST(claim_against_revoke_has_one_winner)
{
	struct actor actors[2] = {{.act = engine_claims_grant}, {.act = manager_revokes_grant}};
	struct scene scene;

	revokes_won = claims_won = 0;
	play(&scene, actors, 2, OKW_GRANTED, verify_one_winner);
	/* The race was one. */
	ck_assert_uint_gt(revokes_won, 0);
	ck_assert_uint_gt(claims_won, 0);
}
END_TEST

/* ---- close against claim, with offers going on ---- */

static void engine_claims_parts(struct scene *scene)
{
	uint32_t part;

	for (;;) {
		if (oki_parts_claim(&scene->record, &part)) {
			PROMISE(part == scene->engine_claims);
			scene->engine_claims++;
			yield_maybe();
			continue;
		}
		if (oki_parts_load(&scene->record).closed)
			return;
		sched_yield();
	}
}

static void manager_offers_parts(struct scene *scene)
{
	for (uint32_t i = 0; i < PARTS; i++) {
		if (!oki_parts_offer(&scene->record))
			return;
		yield_maybe();
	}
}

static void someone_closes(struct scene *scene)
{
	uint32_t part;

	for (uint32_t i = roll(4); i > 0; i--)
		yield_maybe();
	scene->closed_as = oki_parts_close(&scene->record);
	PROMISE(!oki_parts_offer(&scene->record));
	PROMISE(!oki_parts_claim(&scene->record, &part));
}

static unsigned closed_early;

static void verify_closed_counts(struct scene *scene)
{
	struct oki_parts parts = oki_parts_load(&scene->record);

	/* The word that the close returned is the last word. */
	PROMISE(parts.closed && scene->closed_as.closed);
	PROMISE(parts.claimed == (scene->closed_as.claimed));
	PROMISE(parts.offered == (scene->closed_as.offered));
	PROMISE(parts.claimed == scene->engine_claims);
	PROMISE(parts.claimed <= parts.offered);
	PROMISE(parts.offered <= PARTS);
	closed_early += parts.claimed < PARTS;
}

START_TEST(close_against_claim_counts_every_claim)
{
	struct actor actors[3] = {{.act = engine_claims_parts},
				  {.act = manager_offers_parts},
				  {.act = someone_closes}};
	struct scene scene;

	closed_early = 0;
	play(&scene, actors, 3, OKW_ACTIVE, verify_closed_counts);
	ck_assert_uint_gt(closed_early, 0);
}
END_TEST

/* ---- drained proof against claims: one by the rules, one by an engine that has none ---- */

static void engine_drains(struct scene *scene)
{
	uint64_t tag = scene->start_tag;
	uint32_t part;

	while (oki_parts_claim(&scene->record, &part)) {
		atomic_fetch_add(&scene->record.consumed, 1);
		yield_maybe();
		PROMISE(holds_bytes(scene->block, (uint8_t)OKI_TAG_GENERATION(tag)));
		atomic_fetch_add(&scene->record.drained, 1);
		scene->engine_claims++;
	}
	scene->record.engine_status = scene->engine_claims == PARTS ? 0 : OKV_E_CANCELLED;
	yield_maybe();
	scene->engine_won = oki_move(&scene->record, &tag, OKW_DRAINED, OKI_MOVER_ENGINE);
}

static void rogue_claims_late(struct scene *scene)
{
	uint32_t part;

	if (roll(2) == 0)
		return;
	/* Waits for Drained, as no engine would, and claims what is there. */
	while (!broken() && OKI_TAG_STATE(oki_tag_load(&scene->record)) == OKW_ACTIVE)
		sched_yield();
	yield_maybe();
	scene->rogue_claims += oki_parts_claim(&scene->record, &part);
}

static void manager_reaps(struct scene *scene)
{
	uint64_t drained = OKI_TAG(OKI_TAG_GENERATION(scene->start_tag), OKW_DRAINED);
	struct oki_proof proof;
	uint64_t tag;

	/* The engine may have looked for the last time before a part is offered. */
	for (uint32_t i = 0; i < PARTS; i++) {
		oki_parts_offer(&scene->record);
		yield_maybe();
	}
	do {
		if (broken())
			return;
		tag = oki_tag_load(&scene->record);
		sched_yield();
	} while (tag != drained);
	yield_maybe();
	scene->manager_won = oki_proof_drained(&scene->record, drained, &proof);
	if (!scene->manager_won)
		return;
	PROMISE(oki_proof_claimed(&proof) == oki_parts_load(&scene->record).claimed);
	fill(scene->block, 0xdd);
	PROMISE(oki_move(&scene->record, &tag, OKW_REAPED, OKI_MOVER_MANAGER));
}

static unsigned proofs_made, proofs_refused;

static void verify_no_proof_over_a_claim(struct scene *scene)
{
	struct oki_parts parts = oki_parts_load(&scene->record);

	PROMISE(scene->engine_won);
	PROMISE(parts.claimed == scene->engine_claims + scene->rogue_claims);
	/* A proof exactly when nobody holds a claimed part that is not drained. */
	PROMISE(scene->manager_won == (scene->rogue_claims == 0));
	proofs_made += scene->manager_won;
	proofs_refused += !scene->manager_won;
}

START_TEST(drained_proof_never_covers_a_live_claim)
{
	struct actor actors[3] = {
		{.act = engine_drains}, {.act = rogue_claims_late}, {.act = manager_reaps}};
	struct scene scene;

	proofs_made = proofs_refused = 0;
	play(&scene, actors, 3, OKW_ACTIVE, verify_no_proof_over_a_claim);
	ck_assert_uint_gt(proofs_made, 0);
	ck_assert_uint_gt(proofs_refused, 0);
}
END_TEST

/* ---- the whole life, one record used again and again ---- */

struct life {
	struct okw_record record;
	uint8_t source[PARTS][BLOCK_BYTES];
	_Atomic bool stop;
	uint32_t answered, revoked, drained; /* the engine's count of results */
	uint32_t done, won, reaped;	     /* the Manager's */
};

static uint8_t source_byte(uint64_t tag, uint32_t part)
{
	return (uint8_t)(OKI_TAG_GENERATION(tag) * 7 + part);
}

static void life_copy_part(struct life *life, uint64_t tag, uint32_t part)
{
	atomic_fetch_add(&life->record.consumed, 1);
	PROMISE(holds_bytes(life->source[part], source_byte(tag, part)));
	atomic_fetch_add(&life->record.drained, 1);
}

/* Granted was seen: claim it, copy, drain; or lose to the revoke. */
static void life_try_claim(struct life *life, uint64_t *tag)
{
	uint32_t stop_after = roll(2) ? PARTS : roll(PARTS);
	uint32_t copied = 0;
	uint32_t part;

	yield_maybe();
	if (!oki_move(&life->record, tag, OKW_ACTIVE, OKI_MOVER_ENGINE))
		return;
	while (copied < stop_after && !broken()) {
		PROMISE(oki_tag_load(&life->record) == *tag);
		if (!oki_parts_claim(&life->record, &part)) {
			sched_yield();
			continue;
		}
		yield_maybe();
		life_copy_part(life, *tag, part);
		copied++;
	}
	oki_parts_close(&life->record);
	life->record.engine_status = copied == PARTS ? 0 : OKV_E_CANCELLED;
	PROMISE(oki_move(&life->record, tag, OKW_DRAINED, OKI_MOVER_ENGINE));
}

/* Wait for a state that ends the operation; exactly one result is counted. */
static void life_wait_end(struct life *life, uint64_t *tag)
{
	while (!broken()) {
		*tag = oki_tag_load(&life->record);
		switch (OKI_TAG_STATE(*tag)) {
		case OKW_GRANTED: life_try_claim(life, tag); break;
		case OKW_DONE: life->answered++; return;
		case OKW_REVOKED: life->revoked++; return;
		case OKW_REAPED: life->drained++; return;
		default: sched_yield(); break;
		}
	}
}

static void *life_engine(void *arg)
{
	struct life *life = arg;

	dice = 0x51ed270b;
	for (uint32_t n = 0; n < ROUNDS && !broken(); n++) {
		uint64_t tag = oki_tag_load(&life->record);
		uint64_t generation = OKI_TAG_GENERATION(tag);

		PROMISE(oki_move(&life->record, &tag, OKW_RESERVED, OKI_MOVER_ENGINE));
		oki_parts_reset(&life->record);
		life->record.kind = OKW_OP_RESTORE;
		life->record.request_offset = n;
		life->record.status = 1;
		yield_maybe();
		PROMISE(oki_move(&life->record, &tag, OKW_SUBMITTED, OKI_MOVER_ENGINE));
		life_wait_end(life, &tag);
		PROMISE(OKI_TAG_GENERATION(tag) == generation);
		/* The result was written before the state that announces it. */
		PROMISE(life->record.status == -(int32_t)OKI_TAG_STATE(tag));
		PROMISE(life->record.text[0] == 'a' + (char)(n % 26));
		yield_maybe();
		PROMISE(oki_move(&life->record, &tag, OKW_FREE, OKI_MOVER_ENGINE));
		PROMISE(OKI_TAG_GENERATION(tag) == generation + 1);
	}
	atomic_store(&life->stop, true);
	return NULL;
}

static void life_result(struct life *life, uint32_t n, uint32_t state)
{
	life->record.status = -(int32_t)state;
	life->record.text[0] = (char)('a' + (char)(n % 26));
	life->record.text[1] = 0;
}

static void life_sources(struct life *life, uint64_t tag)
{
	for (uint32_t part = 0; part < PARTS; part++)
		fill(life->source[part], source_byte(tag, part));
}

/* Offer what is left, revoke at random, reap; until this operation's grant is over. */
static void life_retire(struct life *life, uint32_t n, uint64_t tag)
{
	uint64_t drained = OKI_TAG(OKI_TAG_GENERATION(tag), OKW_DRAINED);
	bool may_revoke = roll(2) == 0;
	uint32_t offered = 1;
	struct oki_proof proof;

	while (!broken()) {
		uint64_t now = oki_tag_load(&life->record);

		if (may_revoke && roll(3) == 0) {
			/* Active may be seen here only by a claim that came first. */
			uint64_t mine = tag;

			if (now == tag)
				life_result(life, n, OKW_REVOKED);
			yield_maybe();
			if (now == tag && oki_proof_revoke(&life->record, &mine, &proof)) {
				life->won++;
				return;
			}
		}
		if (now == drained) {
			PROMISE(oki_proof_drained(&life->record, now, &proof));
			memset(life->source, 0xff, sizeof(life->source));
			life_result(life, n, OKW_REAPED);
			PROMISE(oki_move(&life->record, &now, OKW_REAPED, OKI_MOVER_MANAGER));
			life->reaped++;
			return;
		}
		if (offered < PARTS && oki_parts_offer(&life->record))
			offered++;
		sched_yield();
	}
}

static void life_serve(struct life *life, uint64_t tag)
{
	uint32_t n;

	PROMISE(oki_move(&life->record, &tag, OKW_PREPARING, OKI_MOVER_MANAGER));
	n = life->record.request_offset;
	PROMISE(life->record.kind == OKW_OP_RESTORE);
	yield_maybe();
	if (roll(4) == 0) {
		life_result(life, n, OKW_DONE);
		PROMISE(oki_move(&life->record, &tag, OKW_DONE, OKI_MOVER_MANAGER));
		life->done++;
		return;
	}
	life_sources(life, tag);
	PROMISE(oki_parts_offer(&life->record));
	PROMISE(oki_move(&life->record, &tag, OKW_GRANTED, OKI_MOVER_MANAGER));
	life_retire(life, n, tag);
}

static void *life_manager(void *arg)
{
	struct life *life = arg;
	uint64_t old[4] = {0};
	uint32_t seen = 0;

	dice = 0xc0ffee;
	while (!atomic_load(&life->stop)) {
		uint64_t tag = oki_tag_load(&life->record);

		/* Tags of generations that are over never move anything again. */
		for (uint32_t i = 0; i < 4 && i < seen; i++) {
			uint64_t stale = old[i];

			PROMISE(!oki_move(&life->record, &stale, OKW_PREPARING, OKI_MOVER_MANAGER));
		}
		/* No grant is out. */
		PROMISE(OKI_TAG_STATE(tag) != OKW_ACTIVE && OKI_TAG_STATE(tag) != OKW_DRAINED);
		if (OKI_TAG_STATE(tag) != OKW_SUBMITTED) {
			sched_yield();
			continue;
		}
		old[seen++ % 4] = tag;
		life_serve(life, tag);
	}
	return NULL;
}

START_TEST(one_record_lives_many_lives)
{
	struct life *life = calloc(1, sizeof(*life));
	pthread_t engine, manager;

	ck_assert_ptr_nonnull(life);
	ck_assert_int_eq(pthread_create(&engine, NULL, life_engine, life), 0);
	ck_assert_int_eq(pthread_create(&manager, NULL, life_manager, life), 0);
	pthread_join(engine, NULL);
	pthread_join(manager, NULL);
	assert_kept();
	/* One result each, and the two sides agree which. */
	ck_assert_uint_eq(life->answered + life->revoked + life->drained, ROUNDS);
	ck_assert_uint_eq(life->answered, life->done);
	ck_assert_uint_eq(life->revoked, life->won);
	ck_assert_uint_eq(life->drained, life->reaped);
	ck_assert_uint_gt(life->revoked, 0);
	ck_assert_uint_gt(life->drained, 0);
	ck_assert_uint_eq(oki_tag_load(&life->record), OKI_TAG(ROUNDS, OKW_FREE));
	free(life);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("grant_races");
	TCase *races = tcase_create("races");

	tcase_set_timeout(races, 120);
	tcase_add_test(races, claim_against_revoke_has_one_winner);
	tcase_add_test(races, close_against_claim_counts_every_claim);
	tcase_add_test(races, drained_proof_never_covers_a_live_claim);
	tcase_add_test(races, one_record_lives_many_lives);
	suite_add_tcase(suite, races);
	return kv_suite_run(suite);
}
