/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [M] The index: cached blocks, leases and holds on them, eviction. One mutex inside; a peek takes
 * only the RCU read lock. Any thread that called oki_index_thread_enter() may make any call.
 */
#ifndef OKI_INDEX_INDEX_H
#define OKI_INDEX_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/lookup.h>
#include "arena/alloc.h"
#include "base/log.h"
#include "grant/proof.h"
#include "schema/schema.h"
#include "wire/wire.h"

struct oki_index;
struct oki_hold; /* memory that a grant names: sources of a restore, destinations of a publish */

struct oki_index_config {
	struct oki_pool *pool;	  /* borrowed */
	uint32_t reserve_percent; /* of the pool: what all leases together may pin; 1 to 100 */
	uint32_t session_percent; /* of the pool: what one session's leases may pin */
	uint64_t lease_ttl_ns;	  /* > 0 */
	const struct oki_log *log;
};

/* Can there be an index in this process? Not in a child of one that ever had one. */
int oki_index_check_fork(struct okv_error *err);

int oki_index_create(const struct oki_index_config *config, struct oki_index **ret_index,
		     struct okv_error *err);
/* Call it when all threads left and all holds are released or quarantined. Frees quarantined memory
 * too. */
void oki_index_destroy(struct oki_index *index);
void oki_index_thread_enter(void);
void oki_index_thread_leave(void);
/* Call these around a sleep: RCU frees no memory while an online thread sleeps. */
void oki_index_thread_offline(void);
void oki_index_thread_online(void);

/* Find or create a namespace. All bytes are compared, not only a hash. Ids start at 1. */
int oki_index_namespace(struct oki_index *index, const uint8_t *canonical, size_t size,
			uint32_t *ret_id, struct okv_error *err);
/*
 * Forget what is stored under the namespace: from now on lookups miss it, and leases of it restore
 * nothing more. Restores that run end exact. A publish that has begun is stored with what was
 * dropped, where nobody finds it. Frees the memory in slices, and takes a look at every block of
 * the index.
 */
int oki_index_drop(struct oki_index *index, uint32_t namespace_id, struct okv_error *err);
/* Valid as long as the index; NULL: unknown namespace. */
const struct oki_schema *oki_index_schema(struct oki_index *index, uint32_t namespace_id);

/* ---- lookup and leases ---- */

struct oki_index_keys {
	uint32_t group;
	uint32_t count;
	uint32_t key_bytes;
	const uint8_t *keys; /* borrowed */
};

struct oki_index_lookup {
	uint32_t namespace_id;
	uint32_t session; /* slot, below OKW_MAX_SESSIONS */
	bool peek;
	uint32_t consumers;
	uint32_t group_count;
	const struct oki_index_keys *groups;
	uint64_t now_ns;
};

/*
 * Find the longest usable prefix. Unless peek is set or nothing was found, a lease pins it. Its
 * blocks become the most recently used, the head of the prefix last. Fills tokens, group_count,
 * shortened, groups, lease_id and lease_slot (OKW_LEASES: no lease). OKV_E_AGAIN: what is pinned
 * already leaves no room for the shortest prefix. OKV_E_LIMIT: that prefix never fits.
 */
int oki_index_lookup(struct oki_index *index, const struct oki_index_lookup *ask,
		     struct okw_lookup_reply *ret_reply, struct okv_error *err);
/* Give another session, or the same again, a lease slot for a lease. Renews the TTL. */
int oki_index_lease_open(struct oki_index *index, uint32_t namespace_id, uint32_t session,
			 const uint8_t id[16], uint64_t now_ns, struct okw_lookup_reply *ret_reply,
			 struct okv_error *err);
/* Free one lease slot of the session; one that is not in use is ignored. */
void oki_index_lease_release(struct oki_index *index, uint32_t session, uint32_t lease_slot);
/* The session ended: free all its lease slots. */
void oki_index_session_end(struct oki_index *index, uint32_t session);
/* End expired leases. Returns the next expiry, or UINT64_MAX when no lease is left. */
uint64_t oki_index_expire(struct oki_index *index, uint64_t now_ns);

/* ---- grants ---- */

/* A stretch of a restore: blocks of one lease. */
struct oki_index_range {
	uint32_t group;
	uint32_t first; /* position in the sequence */
	uint32_t count;
	bool keep;		 /* spend no share for this stretch */
	uint32_t lease_slot;	 /* OKW_LEASES: find the lease by its id alone */
	const uint8_t *lease_id; /* 16 bytes */
};

struct oki_index_restore {
	uint32_t namespace_id;
	uint32_t session;
	uint32_t rank_slot;
	uint32_t range_count; /* up to OKW_MAX_STRETCHES */
	const struct oki_index_range *ranges;
	uint64_t now_ns;
};

/* One block of a hold. */
struct oki_hold_block {
	const struct oki_allocation *allocation;
	uint32_t group;
	uint32_t ordinal; /* among all blocks of the group that the request names, in its order */
};

/*
 * Check every stretch, then put their blocks, group after group, into a new hold and spend a share
 * of each lease that a stretch without keep names; *ret_spent is the number of these leases. All
 * leases that stay are renewed. On failure nothing changed, and ret_replies (range_count entries)
 * has the status of every stretch.
 */
int oki_index_restore_begin(struct oki_index *index, const struct oki_index_restore *ask,
			    struct oki_hold **ret_hold, struct okw_stretch_reply *ret_replies,
			    uint32_t *ret_spent, struct okv_error *err);

struct oki_index_publish_keys {
	struct oki_index_keys keys;
	uint32_t first_position;
	const uint8_t *parent; /* key_bytes long, or NULL */
};

struct oki_index_publish {
	uint32_t namespace_id;
	uint32_t session;
	uint32_t rank_slot;
	int32_t node;	      /* NUMA node for the new allocations, -1: any */
	uint32_t group_count; /* stretches, up to OKW_MAX_STRETCHES; sequences as in wire.h */
	const struct oki_index_publish_keys *groups;
	uint64_t now_ns;
};

/*
 * Allocate this rank's slot for every key that has none, and evict blocks to make space. Skip keys
 * that are stored or being stored, or that an earlier stretch names. Stop at the first key for
 * which there is no space; groups are served in ascending order. The hold has no blocks if nothing
 * was missing. ret_replies has group_count entries. OKV_E_NOSPACE: slots were missing and none
 * could be allocated.
 */
int oki_index_publish_begin(struct oki_index *index, const struct oki_index_publish *ask,
			    struct oki_hold **ret_hold, struct okw_stretch_reply *ret_replies,
			    struct okv_error *err);

const struct oki_hold_block *oki_hold_blocks(const struct oki_hold *hold, uint64_t *ret_count);
bool oki_hold_is_publish(const struct oki_hold *hold);

/*
 * End a hold; the proof shows that no copy can touch its memory any more. A publish is sealed if
 * the proof is DRAINED with engine status 0; otherwise its slots are freed.
 */
void oki_hold_release(struct oki_index *index, struct oki_hold *hold,
		      const struct oki_proof *proof);
/* No proof will come: count the hold's bytes as quarantined and do not reuse them. */
void oki_hold_quarantine(struct oki_index *index, struct oki_hold *hold);

struct oki_index_stats {
	uint64_t namespaces;
	uint64_t blocks;
	uint64_t blocks_partial;
	uint64_t leases;
	uint64_t lookups;
	uint64_t lookup_keys;
	uint64_t lookup_hits;
	uint64_t evictions;
	uint64_t published_blocks;
	uint64_t restored_blocks;
	uint64_t bytes_total;
	uint64_t bytes_used;
	uint64_t bytes_quarantined;
	uint64_t bytes_pinned;
	uint64_t metadata_per_block; /* bytes of a block with one slot, hash table included */
};
void oki_index_stats(struct oki_index *index, struct oki_index_stats *ret_stats);

#endif
