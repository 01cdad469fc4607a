/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Leases: which sessions hold them, and when they end. */
#include "index/index_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "base/error.h"

static_assert(OKW_LEASES <= UINT16_MAX, "oki_session.free");

struct oki_session *oki_session_get(struct oki_index *index, uint32_t session)
{
	if (index->sessions[session])
		return index->sessions[session];

	struct oki_session *made = calloc(1, sizeof(*made));
	struct oki_account *account = calloc(1, sizeof(*account));
	if (!made || !account) {
		free(made);
		free(account);
		return NULL;
	}
	made->account = account;
	while (made->free_count < OKW_LEASES) {
		made->free[made->free_count] = (uint16_t)(OKW_LEASES - 1 - made->free_count);
		made->free_count++;
	}
	index->sessions[session] = made;
	return made;
}

/* Free an account that nothing refers to any more. */
static void account_free_unused(struct oki_account *account)
{
	if (account->gone && account->leases == 0)
		free(account);
}

/* ---- ids ---- */

static struct cds_list_head *bucket(struct oki_index *index, const uint8_t id[16])
{
	uint32_t bits;
	memcpy(&bits, id, sizeof(bits)); /* random already */
	return &index->lease_buckets[bits & (OKI_LEASE_BUCKETS - 1)];
}

struct oki_lease *oki_lease_find(struct oki_index *index, const uint8_t id[16])
{
	struct oki_lease *lease;
	cds_list_for_each_entry (lease, bucket(index, id), bucket) {
		if (memcmp(lease->id, id, sizeof(lease->id)) == 0)
			return lease;
	}
	return NULL;
}

/* Ids come from a buffer of random bytes, so that few lookups pay for the system call. */
static bool next_id(struct oki_index *index, uint8_t ret_id[16])
{
	if (index->random_left < 16) {
		ssize_t got;
		do
			got = getrandom(index->random, sizeof(index->random), 0);
		while (got < 0 && errno == EINTR);
		if (got < 16)
			return false;
		index->random_left = (size_t)got;
	}
	index->random_left -= 16;
	memcpy(ret_id, index->random + index->random_left, 16);
	return true;
}

int oki_lease_alloc(struct oki_index *index, uint64_t block_count, struct oki_lease **ret_lease,
		    struct okv_error *err)
{
	struct oki_lease *lease =
		calloc(1, sizeof(*lease) + block_count * sizeof(lease->blocks[0]));
	if (!lease)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a lease");
	if (!next_id(index, lease->id)) {
		int os_error = errno;
		free(lease);
		return oki_fail_os(err, OKV_E_AGAIN, OKV_STAGE_PREPARE, os_error,
				   "no random lease id");
	}
	lease->references = block_count;
	*ret_lease = lease;
	return 0;
}

/* ---- the life of a lease ---- */

/* Take a free lease slot of the session for the lease. */
static uint32_t slot_take(struct oki_session *session, struct oki_lease *lease)
{
	uint32_t number = session->free[--session->free_count];
	struct oki_lease_slot *slot = &session->slots[number];
	slot->used = true;
	slot->lease = lease;
	cds_list_add(&slot->link, &lease->holders);
	return number;
}

static uint64_t group_bytes(struct oki_index *index, const struct oki_lease *lease, uint32_t i)
{
	return oki_namespace_get(index, lease->namespace_id)->block_bytes[lease->groups[i].group];
}

uint32_t oki_lease_start(struct oki_index *index, struct oki_lease *lease,
			 struct oki_session *session, uint64_t now_ns)
{
	lease->account = session->account;
	lease->account->leases++;
	lease->account->references += lease->references;
	for (uint32_t i = 0; i < lease->group_count; i++) {
		uint64_t bytes = group_bytes(index, lease, i);
		for (uint32_t b = 0; b < lease->groups[i].count; b++)
			oki_pin_block(index, lease->blocks[lease->groups[i].at + b], lease->account,
				      bytes);
	}
	CDS_INIT_LIST_HEAD(&lease->holders);
	CDS_INIT_LIST_HEAD(&lease->expiry);
	cds_list_add(&lease->bucket, bucket(index, lease->id));
	oki_lease_renew(index, lease, now_ns);
	index->leases++;
	return slot_take(session, lease);
}

void oki_lease_renew(struct oki_index *index, struct oki_lease *lease, uint64_t now_ns)
{
	lease->expires_ns = now_ns + index->lease_ttl_ns;
	cds_list_del(&lease->expiry);
	cds_list_add_tail(&lease->expiry, &index->lease_expiry);
}

/* *left: blocks that this hold of the mutex may still unpin. */
static void unpin(struct oki_index *index, struct oki_lease *lease, uint32_t *left)
{
	struct oki_namespace *ns = oki_namespace_get(index, lease->namespace_id);
	struct oki_walk walk = {0};
	struct oki_block *block;

	for (uint32_t i = 0; i < lease->group_count; i++)
		oki_walk_add(&walk, &lease->blocks[lease->groups[i].at], lease->groups[i].count,
			     lease->groups[i].first,
			     ns->schema.groups[lease->groups[i].group].block_tokens);
	while ((block = oki_walk_next(&walk))) {
		if (*left == 0) {
			oki_index_give_way(index);
			*left = OKI_UNPIN_BLOCKS;
		}
		--*left;
		oki_unpin_block(index, block, lease->account, ns->block_bytes[block->group]);
	}
}

void oki_lease_end(struct oki_index *index, struct oki_lease *lease, struct cds_list_head *ended)
{
	struct oki_lease_slot *slot, *next;

	cds_list_for_each_entry_safe (slot, next, &lease->holders, link) {
		cds_list_del(&slot->link);
		slot->lease = NULL;
	}
	cds_list_del(&lease->bucket);
	cds_list_del(&lease->expiry);
	cds_list_add_tail(&lease->expiry, ended);
	index->leases--;
}

void oki_leases_unpin(struct oki_index *index, struct cds_list_head *ended)
{
	struct oki_lease *lease, *next;
	uint32_t left = OKI_UNPIN_BLOCKS;

	cds_list_for_each_entry_safe (lease, next, ended, expiry) {
		unpin(index, lease, &left);
		lease->account->references -= lease->references;
		lease->account->leases--;
		account_free_unused(lease->account);
		free(lease);
	}
}

bool oki_leases_expire(struct oki_index *index, uint64_t now_ns)
{
	CDS_LIST_HEAD(ended);
	uint64_t blocks = 0;
	bool more = false;

	while (!cds_list_empty(&index->lease_expiry)) {
		struct oki_lease *lease =
			cds_list_first_entry(&index->lease_expiry, struct oki_lease, expiry);
		more = oki_lease_expired(lease, now_ns);
		if (!more || blocks >= OKI_UNPIN_BLOCKS)
			break;
		blocks += lease->references;
		oki_lease_end(index, lease, &ended);
		more = false;
	}
	oki_leases_unpin(index, &ended);
	return more;
}

uint64_t oki_index_expire(struct oki_index *index, uint64_t now_ns)
{
	uint64_t next = UINT64_MAX;

	oki_index_lock(index);
	while (oki_leases_expire(index, now_ns))
		oki_index_give_way(index);
	if (!cds_list_empty(&index->lease_expiry))
		next = cds_list_first_entry(&index->lease_expiry, struct oki_lease, expiry)
			       ->expires_ns;
	oki_index_unlock(index);
	return next;
}

void oki_lease_reply(const struct oki_lease *lease, uint32_t slot,
		     struct okw_lookup_reply *ret_reply)
{
	memset(ret_reply, 0, sizeof(*ret_reply));
	memcpy(ret_reply->lease_id, lease->id, sizeof(lease->id));
	ret_reply->lease_slot = slot;
	ret_reply->group_count = lease->group_count;
	ret_reply->shortened = lease->shortened;
	ret_reply->tokens = lease->tokens;
	for (uint32_t i = 0; i < lease->group_count; i++) {
		ret_reply->groups[i].group = lease->groups[i].group;
		ret_reply->groups[i].first = lease->groups[i].first;
		ret_reply->groups[i].count = lease->groups[i].count;
	}
}

/* ---- sessions and their slots ---- */

static int open_locked(struct oki_index *index, uint32_t namespace_id, uint32_t session_slot,
		       const uint8_t id[16], uint64_t now_ns, struct okw_lookup_reply *ret_reply,
		       struct okv_error *err)
{
	oki_leases_expire(index, now_ns);
	struct oki_lease *lease = oki_lease_find(index, id);
	if (!lease || lease->namespace_id != namespace_id || oki_lease_expired(lease, now_ns) ||
	    !oki_lease_is_current(index, lease))
		return oki_fail(
			err, OKV_E_NOENT, OKV_STAGE_PREPARE,
			"no such lease in this namespace: its shares are spent, it expired, it "
			"was released, or the namespace was dropped");
	struct oki_session *session = oki_session_get(index, session_slot);
	if (!session)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_PREPARE, "no memory for a session");
	if (session->free_count == 0)
		return oki_fail(err, OKV_E_AGAIN, OKV_STAGE_PREPARE,
				"all %u lease slots of the session are in use: release leases, "
				"ended ones too",
				OKW_LEASES);
	oki_lease_renew(index, lease, now_ns);
	oki_lease_reply(lease, slot_take(session, lease), ret_reply);
	return 0;
}

int oki_index_lease_open(struct oki_index *index, uint32_t namespace_id, uint32_t session,
			 const uint8_t id[16], uint64_t now_ns, struct okw_lookup_reply *ret_reply,
			 struct okv_error *err)
{
	if (session >= OKW_MAX_SESSIONS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_PREPARE, "session %u of %u", session,
				OKW_MAX_SESSIONS);
	oki_index_lock(index);
	int rc = open_locked(index, namespace_id, session, id, now_ns, ret_reply, err);
	oki_index_unlock(index);
	return rc;
}

struct oki_lease *oki_lease_known(struct oki_index *index, uint32_t session, uint32_t slot,
				  const uint8_t id[16])
{
	if (session >= OKW_MAX_SESSIONS || slot >= OKW_LEASES || !index->sessions[session])
		return NULL;
	struct oki_lease *lease = index->sessions[session]->slots[slot].lease;
	return lease && memcmp(lease->id, id, sizeof(lease->id)) == 0 ? lease : NULL;
}

/*
 * A lease slot becomes free only here, when its session releases it, and not when its lease ends:
 * otherwise a late release by the session could hit a new lease in the same slot.
 */
static void slot_release(struct oki_index *index, struct oki_session *session, uint32_t number,
			 struct cds_list_head *ended)
{
	struct oki_lease_slot *slot = &session->slots[number];
	if (!slot->used)
		return;
	struct oki_lease *lease = slot->lease;
	slot->used = false;
	slot->lease = NULL;
	session->free[session->free_count++] = (uint16_t)number;
	if (!lease)
		return;
	cds_list_del(&slot->link);
	if (cds_list_empty(&lease->holders))
		oki_lease_end(index, lease, ended);
}

void oki_index_lease_release(struct oki_index *index, uint32_t session, uint32_t lease_slot)
{
	CDS_LIST_HEAD(ended);

	if (session >= OKW_MAX_SESSIONS || lease_slot >= OKW_LEASES)
		return;
	oki_index_lock(index);
	if (index->sessions[session])
		slot_release(index, index->sessions[session], lease_slot, &ended);
	oki_leases_unpin(index, &ended);
	oki_index_unlock(index);
}

void oki_index_session_end(struct oki_index *index, uint32_t session)
{
	CDS_LIST_HEAD(ended);

	if (session >= OKW_MAX_SESSIONS)
		return;
	oki_index_lock(index);
	struct oki_session *gone = index->sessions[session];
	if (gone) {
		index->sessions[session] = NULL;
		for (uint32_t i = 0; i < OKW_LEASES; i++) {
			slot_release(index, gone, i, &ended);
			if ((i + 1) % OKI_UNPIN_BLOCKS == 0)
				oki_index_give_way(index);
		}
		gone->account->gone = true;
		account_free_unused(gone->account);
		free(gone);
		oki_leases_unpin(index, &ended);
	}
	oki_index_unlock(index);
}
