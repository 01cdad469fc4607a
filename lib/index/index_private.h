/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [M] What the files of this folder share.
 *
 * Everything here is written under oki_index.mutex. Without it, under rcu_read_lock() alone, a
 * thread may find a block in the table, compare its key and load `usable` (G7): nothing else.
 */
#ifndef OKI_INDEX_INDEX_PRIVATE_H
#define OKI_INDEX_INDEX_PRIVATE_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <urcu.h>
#include <urcu/list.h>
#include <urcu/rculfhash.h>
#include "index/index.h"

/* A namespace is never forgotten, so their number is bounded. */
#define OKI_MAX_NAMESPACES 1024u
#define OKI_LEASE_BUCKETS 4096u /* a power of two */
/* How far up a chain of parents one request reaches. */
#define OKI_MAX_ANCESTORS OKW_MAX_BLOCKS
#define OKI_ROW_BLOCKS (OKI_MAX_ANCESTORS + OKW_MAX_BLOCKS)
/* Keys looked up together. */
#define OKI_BATCH_KEYS 64u
/* Blocks kept for new keys once they are out of the table; the rest is freed. */
#define OKI_SPARE_BLOCKS (4u * OKW_MAX_BLOCKS)

/*
 * liburcu is not built with ThreadSanitizer, which therefore does not see that a block found in
 * the table was filled before it was added, nor that a reader left before the block was freed.
 * Both orders are told to it here: release on the earlier side, acquire on the later.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OKI_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define OKI_TSAN 1
#endif
#ifdef OKI_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define OKI_ORDER_ACQUIRE(address) __tsan_acquire(address)
#define OKI_ORDER_RELEASE(address) __tsan_release(address)
#else
#define OKI_ORDER_ACQUIRE(address) ((void)(address))
#define OKI_ORDER_RELEASE(address) ((void)(address))
#endif

/* Blocks out of the table that one grace period is awaited for, as their first one has it. */
struct oki_gone {
	struct rcu_head rcu;
	struct oki_index *index;
	struct oki_block *last;
};

struct oki_block {
	struct cds_lfht_node node;
	union {
		struct { /* in the table */
			struct cds_list_head lru;
			struct oki_pin *pins; /* of leases; NULL: not pinned */
			uint64_t parent;      /* hash of the key before this one, 0: none; a hint */
			uint64_t sealed;      /* bit r: slots[r] holds every byte */
		};
		struct { /* out of it */
			struct oki_block *next;
			struct oki_gone gone;
		};
	};
	uint32_t namespace_id;
	uint32_t holds; /* restores that read it */
	uint8_t group;
	uint8_t key_bytes;
	uint8_t slot_count;
	uint8_t filled;		/* slots that are not NULL: sealed or being written */
	_Atomic uint8_t usable; /* every slot is sealed; never goes back */
	uint8_t listed;		/* is in oki_index.lru */
	uint8_t in_request;	/* the call in progress has it, off the list */
	uint8_t quarantined;	/* its bytes are counted as such */
	uint8_t key[OKW_MAX_KEY_BYTES];
	struct oki_allocation *slots[];
};
#define OKI_BLOCK_BYTES(slots) (sizeof(struct oki_block) + (slots) * sizeof(void *))
static_assert(OKI_BLOCK_BYTES(1) <= 112, "millions of these");
/* One bucket head of the table per block. */
#define OKI_TABLE_SHARE sizeof(struct cds_lfht_node)

struct oki_key {
	uint32_t namespace_id;
	uint32_t group;
	uint32_t bytes;
	const uint8_t *data;
};

/*
 * What one session pins. Outlives the session while another one knows a lease it looked up, so
 * that the next session in the slot starts from zero.
 */
struct oki_account {
	uint64_t bytes; /* each block once */
	uint64_t leases;
	bool gone; /* the session */
};

/* An account's leases on one block. */
struct oki_pin {
	struct oki_pin *next;
	struct oki_account *account;
	uint32_t count;
};

struct oki_namespace {
	struct oki_schema schema;
	uint64_t block_bytes[OKV_MAX_GROUPS]; /* allocated, all rank slots together */
	uint64_t hash;
	size_t size;
	uint8_t *canonical;
};

struct oki_lease {
	uint8_t id[16];
	struct cds_list_head bucket;
	struct cds_list_head expiry;
	struct cds_list_head holders; /* oki_lease_slot.link; never empty */
	uint64_t expires_ns;
	struct oki_account *account;
	uint64_t tokens;
	uint32_t namespace_id;
	uint32_t consumers;
	uint32_t shortened;
	uint32_t group_count;
	struct {
		uint32_t group;
		uint32_t first; /* position in the sequence */
		uint32_t count;
		uint32_t at; /* index in blocks */
	} groups[OKW_MAX_GROUPS];
	struct oki_block *blocks[];
};

/* A used slot whose lease is NULL: the lease ended, the session has not released it yet. */
struct oki_lease_slot {
	struct cds_list_head link;
	struct oki_lease *lease;
	bool used;
};

struct oki_session {
	struct oki_account *account;
	uint32_t free_count;
	uint16_t free[OKW_LEASES]; /* a stack */
	struct oki_lease_slot slots[OKW_LEASES];
};

struct oki_hold {
	struct cds_list_head link; /* in oki_index.quarantine */
	bool publish;
	uint32_t namespace_id;
	uint32_t rank_slot;
	uint32_t group_count;
	struct {
		uint32_t group;
		uint32_t first; /* position in the sequence of the group's ordinal 0 */
		uint64_t count; /* items of this request group */
	} groups[OKW_MAX_GROUPS];
	uint64_t count;
	struct oki_block **blocks; /* beside items */
	struct oki_hold_block items[];
};

/* Work space of the call that holds the mutex. */
struct oki_scratch {
	/* Per request group, in sequence order: room for ancestors, then the request's keys. */
	struct oki_block *rows[OKW_MAX_GROUPS][OKI_ROW_BLOCKS];
	struct oki_allocation *allocations[OKW_MAX_BLOCKS];
	/* Blocks among the first i of a group that no lease, no lease of this session pins. */
	uint32_t unpinned[OKW_MAX_GROUPS][OKW_MAX_BLOCKS + 1];
	uint32_t uncharged[OKW_MAX_GROUPS][OKW_MAX_BLOCKS + 1];
};

struct oki_index {
	struct oki_pool *pool;
	const struct oki_log *log;
	uint64_t lease_ttl_ns;
	uint64_t reserve_bytes; /* limits */
	uint64_t session_bytes;
	uint64_t largest_piece; /* no allocation can be larger */
	uint64_t seed;
	struct cds_lfht *table;
	struct oki_namespace *_Atomic namespaces[OKI_MAX_NAMESPACES]; /* id - 1; set once */
	_Atomic uint64_t lookups;
	_Atomic uint64_t lookup_keys;
	_Atomic uint64_t lookup_hits;
	struct oki_block *_Atomic returned; /* no reader sees them any more; linked by next */

	pthread_mutex_t mutex;
	uint32_t namespace_count;
	struct cds_list_head lru; /* least recent first; only what may go */
	struct cds_list_head quarantine;
	struct cds_list_head lease_expiry; /* the TTL is one for all: order of renewal */
	struct cds_list_head lease_buckets[OKI_LEASE_BUCKETS];
	struct oki_session *sessions[OKW_MAX_SESSIONS];
	struct oki_block *gone; /* out of the table since the mutex was taken, last one first */
	uint64_t gone_count;
	struct oki_block *spare_blocks;
	uint64_t spare_block_count; /* with those in returned or on their way there */
	struct oki_pin_slab *pin_slabs;
	struct oki_pin *spare_pins;
	uint64_t spare_pin_count;
	uint64_t pinned_bytes;
	uint64_t quarantined_bytes;
	uint64_t blocks;
	uint64_t blocks_partial;
	uint64_t leases;
	uint64_t holds;
	uint64_t evictions;
	uint64_t published_blocks;
	uint64_t restored_blocks;
	uint8_t random[1024];
	size_t random_left;
	struct oki_scratch scratch;
};

/* ---- namespaces.c ---- */

/* NULL: unknown. */
struct oki_namespace *oki_namespace_get(struct oki_index *index, uint32_t id);
void oki_namespaces_fini(struct oki_index *index);
/* The same for a request, whose namespace may be unknown. */
int oki_namespace_find(struct oki_index *index, uint32_t id, const struct oki_namespace **ret_ns,
		       struct okv_error *err);
int oki_rank_check(const struct oki_namespace *ns, uint32_t rank_slot, struct okv_error *err);
/* Groups known and distinct, counts and key sizes within limits. */
int oki_keys_check(const struct oki_namespace *ns, const struct oki_index_keys *keys,
		   uint32_t *groups_seen, struct okv_error *err);

/* ---- table.c: call under rcu_read_lock() ---- */

uint64_t oki_key_hash(const struct oki_index *index, const struct oki_key *key);
bool oki_block_has_key(const struct oki_block *block, const struct oki_key *key);
/* `count` keys that follow each other from first->data on. NULL: not there. */
void oki_table_find(struct oki_index *index, const struct oki_key *first, uint32_t count,
		    uint64_t *ret_hashes, struct oki_block **ret_blocks);
/* NULL: the parent is not cached (or was never named). likely: a block of the table to try first,
 * or NULL. */
struct oki_block *oki_table_parent(struct oki_index *index, const struct oki_block *block,
				   struct oki_block *likely);
/* A block without slots, in the table, not listed; or the one that is there. NULL: no memory. */
struct oki_block *oki_table_add(struct oki_index *index, uint64_t hash, const struct oki_key *key,
				uint32_t slot_count);
/* Out of the table; freed, or used again, once no reader can see it. */
void oki_table_remove(struct oki_index *index, struct oki_block *block);
/* Let readers leave what was removed: once for all of it, at the end of a call. */
void oki_table_reclaim(struct oki_index *index);
/* No reader is left, and no grace period under way. */
void oki_table_fini(struct oki_index *index);
static inline bool oki_block_usable(const struct oki_block *block)
{
	return atomic_load_explicit(&block->usable, memory_order_acquire);
}
/* Leave the read side: what was read so far comes before any free that waited for it. */
void oki_read_unlock(void);

/* ---- usable.c ---- */

struct oki_usable_group {
	uint32_t block_tokens;
	uint32_t need;	/* blocks wanted at the end of a prefix, all of a shorter one */
	uint32_t count; /* entries of run */
	uint16_t run[OKW_MAX_BLOCKS]; /* how many usable blocks in a row end here */
};

struct oki_usable {
	uint64_t limit; /* no prefix is longer */
	uint64_t step;	/* every prefix is a multiple; 0: none can be */
	uint32_t group_count;
	struct oki_usable_group groups[OKW_MAX_GROUPS];
};

/* Look every key up that matters. blocks (may be NULL): scratch rows, filled as far as run is. */
void oki_usable_probe(struct oki_index *index, const struct oki_namespace *ns,
		      const struct oki_index_lookup *ask,
		      struct oki_block *(*blocks)[OKI_ROW_BLOCKS], struct oki_usable *ret_usable);
/* The longest prefix of at most `limit` tokens that every group supports; 0: none. */
uint64_t oki_usable_best(const struct oki_usable *usable, uint64_t limit);
/* The blocks [*ret_first, + *ret_count) that a prefix of `tokens` takes from a group. */
void oki_usable_range(const struct oki_usable_group *group, uint64_t tokens, uint32_t *ret_first,
		      uint32_t *ret_count);

/* ---- evict.c ---- */

/* Blocks of several groups by where they end in the sequence, last first. */
struct oki_walk {
	uint32_t count;
	struct {
		struct oki_block **blocks;
		uint64_t left;
		int64_t end_token;
		uint32_t block_tokens;
	} rows[OKW_MAX_GROUPS];
};

/* blocks: in sequence order, `first` the position of blocks[0]. */
void oki_walk_add(struct oki_walk *walk, struct oki_block **blocks, uint64_t count, int64_t first,
		  uint32_t block_tokens);
struct oki_block *oki_walk_next(struct oki_walk *walk);

/*
 * A sequence is settled from its tail to its head, so its neighbours in the list are most often
 * those in the sequence: whom the group has next to a block. NULL: not listed, or nobody near.
 */
struct oki_block *oki_block_likely_parent(const struct oki_index *index,
					  const struct oki_block *block);
struct oki_block *oki_block_likely_child(const struct oki_index *index,
					 const struct oki_block *block);
/* It may not go now. */
void oki_block_keep(struct oki_block *block);
/* If nothing keeps it: the most recent of those that may go; without slots it disappears. */
void oki_block_settle(struct oki_index *index, struct oki_block *block);
/* Clear `in_request` and settle, for every block of the walk. */
void oki_walk_settle(struct oki_index *index, struct oki_walk *walk);
/* Make room for `count` pieces of `bytes`, as far as that goes. Returns how many fit. */
uint64_t oki_evict_for(struct oki_index *index, uint64_t bytes, uint64_t count);
void oki_block_drop(struct oki_index *index, struct oki_block *block);

/* ---- pin.c ---- */

/* Spare pins for `count` calls of oki_pin_block(). */
bool oki_pins_reserve(struct oki_index *index, uint64_t count);
void oki_pins_fini(struct oki_index *index);
void oki_pin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		   uint64_t bytes);
void oki_unpin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		     uint64_t bytes);
bool oki_pinned_by(struct oki_block *block, const struct oki_account *account);

/* ---- lease.c ---- */

/* The session's slots, made on first use. NULL: no memory. */
struct oki_session *oki_session_get(struct oki_index *index, uint32_t session);
/* A lease object with room for block_count blocks and a fresh id; not yet known to anyone. */
int oki_lease_alloc(struct oki_index *index, uint64_t block_count, struct oki_lease **ret_lease,
		    struct okv_error *err);
/* Register a filled lease; the session has a free slot. Pins its blocks (pins are reserved). */
uint32_t oki_lease_start(struct oki_index *index, struct oki_lease *lease,
			 struct oki_session *session, uint64_t now_ns);
void oki_lease_end(struct oki_index *index, struct oki_lease *lease);
void oki_lease_renew(struct oki_index *index, struct oki_lease *lease, uint64_t now_ns);
void oki_lease_reply(const struct oki_lease *lease, uint32_t slot,
		     struct okw_lookup_reply *ret_reply);
/* What this session knows under that slot and id; NULL: nothing that lives. */
struct oki_lease *oki_lease_known(struct oki_index *index, uint32_t session, uint32_t slot,
				  const uint8_t id[16]);
void oki_leases_expire(struct oki_index *index, uint64_t now_ns);

/* ---- hold.c ---- */

/* Empty, with room for `capacity` blocks. NULL: no memory. */
struct oki_hold *oki_hold_alloc(uint64_t capacity);
void oki_hold_add(struct oki_hold *hold, struct oki_block *block, uint32_t request_group,
		  uint32_t ordinal);
void oki_holds_fini(struct oki_index *index);

static inline void oki_index_lock(struct oki_index *index)
{
	pthread_mutex_lock(&index->mutex);
	rcu_read_lock();
}

static inline void oki_index_unlock(struct oki_index *index)
{
	if (index->gone)
		oki_table_reclaim(index);
	oki_read_unlock();
	pthread_mutex_unlock(&index->mutex);
}

#endif
