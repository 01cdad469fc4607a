/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Lookup: finds the longest usable prefix and, unless it is a peek, pins it by a lease. */
#include "index/index_private.h"

#include <string.h>
#include "base/error.h"

static void count_lookup(struct oki_index *index, const struct oki_index_lookup *ask,
			 const struct okw_lookup_reply *reply)
{
	uint64_t keys = 0;
	uint64_t hits = 0;

	for (uint32_t i = 0; i < ask->group_count; i++) {
		keys += ask->groups[i].count;
		hits += reply->groups[i].count;
	}
	atomic_fetch_add_explicit(&index->lookups, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&index->lookup_keys, keys, memory_order_relaxed);
	atomic_fetch_add_explicit(&index->lookup_hits, hits, memory_order_relaxed);
}

static void fill_reply(const struct oki_index_lookup *ask, const struct oki_usable *usable,
		       uint64_t tokens, struct okw_lookup_reply *ret_reply)
{
	memset(ret_reply, 0, sizeof(*ret_reply));
	ret_reply->lease_slot = OKW_LEASES;
	ret_reply->group_count = ask->group_count;
	ret_reply->tokens = tokens;
	for (uint32_t i = 0; i < ask->group_count; i++) {
		ret_reply->groups[i].group = ask->groups[i].group;
		oki_usable_range(&usable->groups[i], tokens, &ret_reply->groups[i].first,
				 &ret_reply->groups[i].count);
	}
}

static void peek(struct oki_index *index, const struct oki_namespace *ns,
		 const struct oki_index_lookup *ask, struct oki_usable *usable,
		 struct okw_lookup_reply *ret_reply)
{
	/* G7: without the mutex, blocks may be evicted after the answer; a pin looks them up
	 * again. */
	rcu_read_lock();
	oki_usable_probe(index, ns, ask, NULL, usable);
	oki_read_unlock();
	fill_reply(ask, usable, oki_usable_best(usable, UINT64_MAX), ret_reply);
}

/* One lookup that pins, with the mutex held. */
struct pinning {
	struct oki_index *index;
	const struct oki_namespace *ns;
	const struct oki_index_lookup *ask;
	const struct oki_account *account;
	struct oki_usable *usable;
};

static uint64_t block_bytes(const struct pinning *p, uint32_t i)
{
	return p->ns->block_bytes[p->ask->groups[i].group];
}

static bool within_limits(const struct pinning *p, uint64_t more, uint64_t more_own,
			  uint64_t blocks)
{
	return p->index->pinned_bytes + more <= p->index->reserve_bytes &&
	       p->account->bytes + more_own <= p->index->session_bytes &&
	       p->account->references + blocks <= OKI_SESSION_REFERENCES;
}

static uint64_t whole_bytes(const struct pinning *p, uint64_t tokens, uint64_t *ret_blocks)
{
	uint64_t bytes = 0;
	*ret_blocks = 0;
	for (uint32_t i = 0; i < p->ask->group_count; i++) {
		uint32_t first, count;
		oki_usable_range(&p->usable->groups[i], tokens, &first, &count);
		bytes += count * block_bytes(p, i);
		*ret_blocks += count;
	}
	return bytes;
}

/* Does the prefix fit even if none of its blocks is pinned yet? Cheaper than fits_limits(). */
static bool fits_unpinned(const struct pinning *p, uint64_t tokens)
{
	uint64_t blocks, bytes = whole_bytes(p, tokens, &blocks);
	return within_limits(p, bytes, bytes, blocks);
}

static void count_unpinned(const struct pinning *p)
{
	struct oki_scratch *scratch = &p->index->scratch;

	for (uint32_t i = 0; i < p->ask->group_count; i++) {
		uint32_t all = 0;
		uint32_t own = 0;
		for (uint32_t b = 0; b < p->usable->groups[i].count; b++) {
			struct oki_block *block = scratch->rows[i][b];
			scratch->unpinned[i][b] = all;
			scratch->uncharged[i][b] = own;
			if (!block)
				continue;
			all += !block->pins;
			own += !oki_pinned_by(block, p->account);
		}
		scratch->unpinned[i][p->usable->groups[i].count] = all;
		scratch->uncharged[i][p->usable->groups[i].count] = own;
	}
}

static bool fits_limits(const struct pinning *p, uint64_t tokens)
{
	const struct oki_scratch *scratch = &p->index->scratch;
	uint64_t more = 0;
	uint64_t more_own = 0;
	uint64_t blocks = 0;

	for (uint32_t i = 0; i < p->ask->group_count; i++) {
		uint32_t first, count;
		oki_usable_range(&p->usable->groups[i], tokens, &first, &count);
		blocks += count;
		const uint32_t *all = &scratch->unpinned[i][first];
		const uint32_t *own = &scratch->uncharged[i][first];
		more += (all[count] - all[0]) * block_bytes(p, i);
		more_own += (own[count] - own[0]) * block_bytes(p, i);
	}
	return within_limits(p, more, more_own, blocks);
}

/* Shorten a usable prefix until it fits the limits; 0: none does. *ret_least: the shortest prefix
 * that was tried. */
static uint64_t shorten(const struct pinning *p, uint64_t tokens, uint64_t *ret_least)
{
	*ret_least = tokens;
	if (fits_unpinned(p, tokens))
		return tokens;
	count_unpinned(p);
	while (tokens && !fits_limits(p, tokens)) {
		*ret_least = tokens;
		tokens = oki_usable_best(p->usable, tokens - p->usable->step);
	}
	return tokens;
}

/* Not even the shortest prefix fits: OKV_E_LIMIT if it never can, else OKV_E_AGAIN. */
static int refuse(const struct pinning *p, uint64_t least, struct okv_error *err)
{
	const struct oki_index *index = p->index;
	uint64_t blocks, bytes = whole_bytes(p, least, &blocks);

	if (bytes > index->reserve_bytes || bytes > index->session_bytes)
		return oki_fail(
			err, OKV_E_LIMIT, OKV_STAGE_PREPARE,
			"the shortest prefix has %llu bytes; leases may pin %llu, a session "
			"%llu",
			(unsigned long long)bytes, (unsigned long long)index->reserve_bytes,
			(unsigned long long)index->session_bytes);
	if (p->account->references + blocks > OKI_SESSION_REFERENCES)
		return oki_fail(err, OKV_E_AGAIN, OKV_STAGE_PREPARE,
				"the leases of this session name %llu of %u blocks: release leases",
				(unsigned long long)p->account->references, OKI_SESSION_REFERENCES);
	return oki_fail(
		err, OKV_E_AGAIN, OKV_STAGE_PREPARE,
		"leases pin %llu of %llu bytes, this session %llu of %llu",
		(unsigned long long)index->pinned_bytes, (unsigned long long)index->reserve_bytes,
		(unsigned long long)p->account->bytes, (unsigned long long)index->session_bytes);
}

/* Blocks of the full prefix that the shortened lease lacks become recently used too. */
static void touch(const struct pinning *p, uint64_t tokens)
{
	struct oki_walk walk = {0};
	struct oki_block *block;

	for (uint32_t i = 0; i < p->ask->group_count; i++) {
		uint32_t first, count;
		oki_usable_range(&p->usable->groups[i], tokens, &first, &count);
		oki_walk_add(&walk, &p->index->scratch.rows[i][first], count, first,
			     p->usable->groups[i].block_tokens);
	}
	while ((block = oki_walk_next(&walk)))
		oki_block_settle(p->index, block);
}

static void fill_lease(const struct pinning *p, const struct okw_lookup_reply *reply,
		       struct oki_lease *lease)
{
	uint32_t at = 0;

	lease->namespace_id = p->ask->namespace_id;
	lease->content = oki_namespace_content(p->ns);
	lease->consumers = p->ask->consumers;
	lease->tokens = reply->tokens;
	lease->shortened = reply->shortened;
	lease->group_count = reply->group_count;
	for (uint32_t i = 0; i < reply->group_count; i++) {
		uint32_t first = reply->groups[i].first;
		uint32_t count = reply->groups[i].count;
		lease->groups[i].group = reply->groups[i].group;
		lease->groups[i].first = first;
		lease->groups[i].count = count;
		lease->groups[i].at = at;
		memcpy(&lease->blocks[at], &p->index->scratch.rows[i][first],
		       count * sizeof(lease->blocks[0]));
		at += count;
	}
}

static int pin(struct pinning *p, struct oki_session *session, struct okw_lookup_reply *reply,
	       struct okv_error *err)
{
	struct oki_index *index = p->index;
	struct oki_lease *lease;
	uint64_t blocks = 0;

	if (session->free_count == 0)
		return oki_fail(err, OKV_E_AGAIN, OKV_STAGE_PREPARE,
				"all %u lease slots of the session are in use: release leases, "
				"ended ones too",
				OKW_LEASES);
	for (uint32_t i = 0; i < reply->group_count; i++)
		blocks += reply->groups[i].count;
	if (!oki_pins_reserve(index, blocks))
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory to pin blocks");
	int rc = oki_lease_alloc(index, blocks, &lease, err);
	if (rc < 0)
		return rc;
	fill_lease(p, reply, lease);
	oki_lease_reply(lease, oki_lease_start(index, lease, session, p->ask->now_ns), reply);
	return 0;
}

static int lookup_locked(struct pinning *p, struct okw_lookup_reply *reply, struct okv_error *err)
{
	struct oki_index *index = p->index;
	oki_leases_expire(index, p->ask->now_ns);
	struct oki_session *session = oki_session_get(index, p->ask->session);
	if (!session)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a session");
	p->account = session->account;

	oki_usable_probe(index, p->ns, p->ask, index->scratch.rows, p->usable);
	uint64_t found = oki_usable_best(p->usable, UINT64_MAX);
	uint64_t least, tokens = shorten(p, found, &least);
	if (found && !tokens)
		return refuse(p, least, err);
	fill_reply(p->ask, p->usable, tokens, reply);
	if (!tokens)
		return 0;
	reply->shortened = tokens < found;
	int rc = pin(p, session, reply, err);
	if (rc == 0 && tokens < found)
		touch(p, found);
	return rc;
}

static int check(struct oki_index *index, const struct oki_index_lookup *ask,
		 const struct oki_namespace **ret_ns, struct okv_error *err)
{
	const struct oki_namespace *ns;
	uint32_t seen = 0;
	int rc = oki_namespace_find(index, ask->namespace_id, &ns, err);
	if (rc < 0)
		return rc;
	if (ask->group_count == 0 || ask->group_count > OKW_MAX_GROUPS || !ask->groups)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"%u groups; 1 to %u are possible", ask->group_count,
				OKW_MAX_GROUPS);
	if (ask->session >= OKW_MAX_SESSIONS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "session %u of %u",
				ask->session, OKW_MAX_SESSIONS);
	if (!ask->peek && ask->consumers == 0)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE,
				"a lease needs at least one consumer");
	for (uint32_t i = 0; i < ask->group_count; i++) {
		rc = oki_keys_check(ns, &ask->groups[i], &seen, err);
		if (rc < 0)
			return rc;
	}
	*ret_ns = ns;
	return 0;
}

int oki_index_lookup(struct oki_index *index, const struct oki_index_lookup *ask,
		     struct okw_lookup_reply *ret_reply, struct okv_error *err)
{
	struct oki_usable usable; /* not initialised, since it is large */
	struct pinning p = {.index = index, .ask = ask, .usable = &usable};
	struct okw_lookup_reply reply;
	int rc = check(index, ask, &p.ns, err);
	if (rc < 0)
		return rc;

	if (ask->peek) {
		peek(index, p.ns, ask, &usable, &reply);
	} else {
		oki_index_lock(index);
		rc = lookup_locked(&p, &reply, err);
		oki_index_unlock(index);
		if (rc < 0)
			return rc;
	}
	count_lookup(index, ask, &reply);
	*ret_reply = reply;
	return 0;
}
