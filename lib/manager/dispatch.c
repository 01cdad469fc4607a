/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Dispatchers: copy, check and answer submitted records, session by session. */
#include "manager/manager_private.h"

#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "grant/state.h"

/* The fields that the engine wrote into a record; each is read once, since it may change them. */
struct ask {
	uint64_t submitted; /* the tag in Submitted */
	uint64_t tag;	    /* the tag after the move to Preparing */
	uint32_t kind;
	uint32_t offset;
	uint32_t bytes;
	uint32_t capacity;
};

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))

static void read_record(const struct okw_record *record, struct ask *ask)
{
	ask->kind = READ_ONCE(record->kind);
	ask->offset = READ_ONCE(record->request_offset);
	ask->bytes = READ_ONCE(record->request_bytes);
	ask->capacity = READ_ONCE(record->reply_capacity);
}

/* Does the extent lie in the request area, with room for the reply? */
static const char *check_extent(const struct ask *ask)
{
	uint32_t reply_bytes = oki_mgr_reply_bytes(ask->kind);
	uint64_t request = ((uint64_t)ask->bytes + 7) & ~(uint64_t)7;

	if (!reply_bytes)
		return "unknown kind";
	if (ask->offset % 8)
		return "misaligned request";
	if (ask->bytes < sizeof(struct okw_request) || ask->bytes > OKI_MGR_REQUEST_MAX)
		return "request size";
	if (ask->capacity < reply_bytes)
		return "no room for the reply";
	if (!oki_within(ask->offset, request + ask->capacity, OKW_REQUEST_AREA_BYTES))
		return "request outside its area";
	return NULL;
}

/* Does this request belong to this record's operation, and name what the session opened? */
static const char *check_request(struct oki_mgr_session *s, const struct ask *ask,
				 const struct okw_request *head)
{
	if (head->epoch != s->manager->epoch || head->token != s->token)
		return "a request of another session";
	if (head->tag != ask->submitted || head->kind != ask->kind)
		return "a request of another operation";
	if (!oki_mgr_session_has_namespace(s, head->namespace_id))
		return "unknown namespace";
	if (head->kind != OKW_OP_RESTORE && head->kind != OKW_OP_PUBLISH)
		return NULL;
	const struct oki_mgr_binding *binding = oki_mgr_session_binding(s, head->binding_id);
	if (!binding || binding->namespace_id != head->namespace_id)
		return "unknown binding";
	return NULL;
}

/* [locked] The record is Submitted. */
static void take_request(struct oki_mgr_session *s, uint32_t i, uint64_t tag, uint8_t *scratch)
{
	struct okw_record *record = oki_mgr_record(s, i);
	struct ask ask = {.submitted = tag, .tag = tag};
	struct oki_mgr_request request;
	struct okv_error err;

	if (s->ops[i].phase != OKI_MGR_IDLE) {
		oki_mgr_session_fail(s, "record %u was submitted while its grant lives", i);
		return;
	}
	if (!oki_move(record, &ask.tag, OKW_PREPARING, OKI_MOVER_MANAGER))
		return;
	read_record(record, &ask);
	const char *wrong = check_extent(&ask);
	if (wrong) {
		oki_mgr_session_fail(s, "record %u: %s", i, wrong);
		return;
	}
	memcpy(scratch, s->channel.requests + ask.offset, ask.bytes);
	/* Keeps the compiler from reading the shared memory again instead of the copy. */
	__asm__ volatile("" ::: "memory");
	if (oki_mgr_request_decode(scratch, ask.bytes, &request, &err)) {
		oki_mgr_session_fail(s, "record %u: %s", i, err.text);
		return;
	}
	wrong = check_request(s, &ask, &request.head);
	if (!wrong && ask.capacity < oki_mgr_whole_reply_bytes(&request))
		wrong = "no room for the replies of its stretches";
	if (wrong) {
		oki_mgr_session_fail(s, "record %u: %s", i, wrong);
		return;
	}
	oki_mgr_answer(s, i, ask.tag, ask.offset + ((ask.bytes + 7u) & ~7u), &request);
}

static void serve_record(struct oki_mgr_session *s, uint32_t i, uint8_t *scratch)
{
	uint64_t tag = oki_tag_load(oki_mgr_record(s, i));

	if (i >= s->served)
		s->served = i + 1;
	if (OKI_TAG_STATE(tag) == OKW_SUBMITTED)
		take_request(s, i, tag, scratch);
	else
		oki_mgr_op_advance(s, i, oki_now_ns());
}

/* [locked] Take the next announced record after the one served last. */
static bool next_record(struct oki_mgr_session *s, uint32_t *ret_index)
{
	struct okw_doorbell *bell = &s->channel.control->submit;
	uint32_t first = s->cursor / 64, bit = s->cursor % 64;

	for (uint32_t k = 0; k <= OKW_DIRTY_WORDS; k++) {
		uint32_t w = (first + k) % OKW_DIRTY_WORDS;
		/* G1: relaxed is enough. If it reads an old zero, the check before sleep finds the
		 * bit. */
		uint64_t bits = atomic_load_explicit(&bell->dirty[w], memory_order_relaxed);
		if (k == 0)
			bits &= bit == 63 ? 0 : ~0ull << (bit + 1);
		if (!bits)
			continue;
		uint32_t i = w * 64 + (uint32_t)__builtin_ctzll(bits);
		/* G1: clear the bit before the record is read; a later ring sets it again. */
		atomic_fetch_and(&bell->dirty[w], ~(1ull << (i % 64)));
		s->cursor = i;
		*ret_index = i;
		return true;
	}
	return false;
}

uint32_t oki_mgr_serve(struct oki_mgr_session *s, uint8_t *scratch, uint32_t max)
{
	uint32_t n = 0, i;

	pthread_mutex_lock(&s->lock);
	while (n < max && !atomic_load(&s->lost) && next_record(s, &i)) {
		serve_record(s, i, scratch);
		n++;
	}
	if (n)
		oki_mgr_grant_waiting(s);
	oki_mgr_session_sweep(s);
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* Without the lock, and relaxed: oki_mgr_loop_sleep() checks again (G1). */
static bool announced(struct oki_mgr_session *s)
{
	struct okw_doorbell *bell = &s->channel.control->submit;

	for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++)
		if (atomic_load_explicit(&bell->dirty[w], memory_order_relaxed))
			return true;
	return false;
}

/* One turn for every session. */
static uint32_t serve_all(struct oki_mgr_loop *loop)
{
	uint32_t served = 0;

	for (uint32_t k = 0; k < loop->count; k++)
		if (announced(loop->sessions[k]))
			served += oki_mgr_serve(loop->sessions[k], loop->scratch, OKI_MGR_TURN);
	return served;
}

void *oki_mgr_dispatch_thread(void *arg)
{
	struct oki_mgr_loop *loop = arg;
	struct okv_manager *m = loop->manager;
	uint64_t spin_ns = (uint64_t)m->opts.spin_us * 1000u;
	uint64_t last = oki_now_ns();
	uint32_t rounds = 0;

	oki_index_thread_enter();
	while (!atomic_load(&m->quit)) {
		oki_mgr_loop_refresh(loop);
		if (serve_all(loop)) {
			last = oki_now_ns();
			/* A busy thread never sleeps: tell RCU that it holds no references. */
			oki_index_thread_offline();
			oki_index_thread_online();
			continue;
		}
		if (oki_now_ns() - last < spin_ns) {
			oki_spin(&rounds);
			continue;
		}
		oki_mgr_loop_sleep(loop, UINT64_MAX);
		last = oki_now_ns();
	}
	oki_index_thread_leave();
	return NULL;
}
