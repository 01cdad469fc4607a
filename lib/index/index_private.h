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
/* Parents that one request follows from its first block. */
#define OKI_MAX_ANCESTORS OKW_MAX_BLOCKS
#define OKI_ROW_BLOCKS (OKI_MAX_ANCESTORS + OKW_MAX_BLOCKS)
/* Blocks that one hold of the mutex works on, ancestors included. */
#define OKI_TURN_BLOCKS (OKW_MAX_GROUPS * OKI_ROW_BLOCKS)
/* Keys that one oki_table_find() looks up. */
#define OKI_BATCH_KEYS 64u
/* Extents that one request may look at in vain while it looks for holes: about a millisecond. */
#define OKI_HOLE_LOOKS 16384u
/* Blocks that one hold of the mutex drops with their namespace. */
#define OKI_DROP_BLOCKS 256u
/* Blocks that one hold of the mutex unpins when leases end. */
#define OKI_UNPIN_BLOCKS 512u
/* Blocks that the leases of one session may name together; a block counts in each lease. */
#define OKI_SESSION_REFERENCES (1u << 20)
/* Removed blocks that are kept for new keys; more than these are freed. */
#define OKI_SPARE_BLOCKS (4u * OKW_MAX_BLOCKS)

/*
 * liburcu is not built with ThreadSanitizer. So ThreadSanitizer does not see that a block is filled
 * before it is added to the table, nor that readers leave before it is freed. These macros tell it:
 * release on the earlier side, acquire on the later side.
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

/* In the first of a list of removed blocks, which wait for one RCU grace period together. */
struct oki_gone {
	struct rcu_head rcu;
	struct oki_index *index;
	struct oki_block *last; /* of the list */
};

struct oki_block {
	struct cds_lfht_node node;
	union {
		struct { /* in the table */
			struct cds_list_head lru;
			struct oki_pin *pins; /* of leases; NULL: not pinned */
			uint64_t parent;      /* hint: hash of the key before this one; 0: none */
			uint64_t sealed;      /* bit r: every byte of slots[r] is in place */
		};
		struct { /* removed from the table */
			struct oki_block *next;
			struct oki_gone gone;
		};
	};
	uint32_t content; /* oki_namespace.content as it was when the block was added */
	uint32_t holds;	  /* restores that hold it */
	uint8_t group;
	uint8_t key_bytes;
	uint8_t slot_count;
	uint8_t filled : 7;	 /* slots that are not NULL: sealed or being written */
	uint8_t quarantined : 1; /* its bytes are counted as quarantined */
	_Atomic uint8_t usable;	 /* every slot is sealed; never becomes 0 again */
	uint8_t listed;		 /* 0: not in oki_index.lru; else oki_index.era then */
	/* Not 0: the call in progress names it, so it must not be evicted. A publish writes the
	 * number of the stretch that names it first, from 1 on, or OKI_ANCESTOR. */
	uint16_t in_request;
	uint8_t key[OKW_MAX_KEY_BYTES];
	struct oki_allocation *slots[];
};
#define OKI_ANCESTOR UINT16_MAX
static_assert(OKW_MAX_STRETCHES < OKI_ANCESTOR, "in_request");
#define OKI_BLOCK_BYTES(slots) (sizeof(struct oki_block) + (slots) * sizeof(void *))
static_assert(OKI_BLOCK_BYTES(1) <= 112, "millions of these");
/* The table has about one bucket head per block. */
#define OKI_TABLE_SHARE sizeof(struct cds_lfht_node)

struct oki_key {
	uint32_t content;
	uint32_t group;
	uint32_t bytes;
	const uint8_t *data;
};

/*
 * What the leases of one session's lookups pin. It outlives the session while another session holds
 * such a lease. So the next session in the same session slot starts with 0 bytes.
 */
struct oki_account {
	uint64_t bytes;	     /* pinned; each block counts once */
	uint64_t references; /* blocks that its leases name; each counts in every lease */
	uint64_t leases;
	bool gone; /* the session ended */
};

/* The leases of one account that pin one block. */
struct oki_pin {
	struct oki_pin *next;
	struct oki_account *account;
	uint32_t count;
};

struct oki_namespace {
	/* What its blocks have in their keys; changes when the namespace is dropped, to a value
	 * that no namespace ever had. Written under the mutex. */
	_Atomic uint32_t content;
	struct oki_schema schema;
	uint64_t block_bytes[OKV_MAX_GROUPS]; /* allocated bytes of all rank slots together */
	uint64_t hash;			      /* of canonical */
	size_t size;			      /* of canonical */
	uint8_t *canonical;
};

struct oki_lease {
	uint8_t id[16];
	struct cds_list_head bucket;
	struct cds_list_head expiry;  /* or in a list of ended leases */
	struct cds_list_head holders; /* oki_lease_slot.link; never empty */
	uint64_t expires_ns;
	struct oki_account *account;
	uint64_t tokens;
	uint32_t namespace_id;
	uint32_t content; /* of its blocks */
	uint64_t references;
	uint32_t consumers;
	uint32_t shortened;
	uint32_t uses; /* stretches of the call in progress that name it and are to be counted */
	bool spend;    /* one of them spends a share */
	uint32_t group_count;
	struct {
		uint32_t group;
		uint32_t first; /* position in the sequence */
		uint32_t count;
		uint32_t at; /* index in blocks */
	} groups[OKW_MAX_GROUPS];
	struct oki_block *blocks[];
};

/* If `used` is set and lease is NULL, the lease ended and the session has not released it yet. */
struct oki_lease_slot {
	struct cds_list_head link;
	struct oki_lease *lease;
	bool used;
};

struct oki_session {
	struct oki_account *account;
	uint32_t free_count;
	uint16_t free[OKW_LEASES]; /* stack of free lease slots */
	struct oki_lease_slot slots[OKW_LEASES];
};

/* The blocks of one stretch of the request are adjacent in the hold. */
struct oki_hold_stretch {
	uint32_t group;
	bool begins;	/* it begins a sequence */
	int64_t origin; /* position in the sequence, minus ordinal, of each of its blocks */
	uint64_t start; /* in items */
	uint64_t count;
};

struct oki_hold {
	struct cds_list_head link; /* in oki_index.quarantine */
	bool publish;
	uint32_t namespace_id;
	uint32_t rank_slot;
	uint32_t stretch_count;
	struct oki_hold_stretch *stretches; /* as the request orders them */
	uint64_t count;			    /* items */
	struct oki_block **blocks;	    /* blocks[i] belongs to items[i] */
	struct oki_hold_block items[];	    /* group after group, ascending */
};

/* A stretch of a publish that is prepared. */
struct oki_named {
	uint32_t at;	 /* of its first block, in oki_scratch.named */
	uint32_t count;	 /* blocks named so far */
	uint32_t before; /* of the parent of its first block, in oki_scratch.ancestors */
	uint32_t before_count;
	uint32_t missing; /* blocks whose slot must be allocated */
	bool begins;
};

/* A stretch whose blocks and ancestors are gathered in oki_scratch.turn. */
struct oki_gathered {
	uint32_t at;
	uint32_t count;
	int64_t end; /* position behind the last */
};

/* Work space of the call that holds the mutex. */
struct oki_scratch {
	union {
		/* Lookup: the blocks of each group's keys. */
		struct oki_block *rows[OKW_MAX_GROUPS][OKI_ROW_BLOCKS];
		struct { /* publish */
			struct oki_block *named[OKW_MAX_OPERATION_BLOCKS];
			struct oki_block *ancestors[OKW_MAX_OPERATION_BLOCKS];
		};
		struct oki_block *turn[OKI_TURN_BLOCKS]; /* the end of a publish */
	};
	union {
		struct { /* publish */
			struct oki_allocation *allocations[OKW_MAX_OPERATION_BLOCKS];
			uint8_t again[OKW_MAX_OPERATION_BLOCKS]; /* 1: named before */
			struct oki_named stretches[OKW_MAX_STRETCHES];
		};
		struct oki_gathered gathered[OKW_MAX_STRETCHES];
		struct { /* restore, for each stretch */
			struct oki_lease *lease;
			uint32_t group; /* in the lease; not valid without blocks */
		} parts[OKW_MAX_STRETCHES];
	};
	/* [group][i]: among the group's first i blocks, how many no lease pins (unpinned), and how
	 * many no lease of this session's account pins (uncharged). */
	uint32_t unpinned[OKW_MAX_GROUPS][OKW_MAX_BLOCKS + 1];
	uint32_t uncharged[OKW_MAX_GROUPS][OKW_MAX_BLOCKS + 1];
};

struct oki_index {
	struct oki_pool *pool;
	const struct oki_log *log;
	uint64_t lease_ttl_ns;
	uint64_t reserve_bytes;	     /* what all leases may pin */
	uint64_t session_bytes;	     /* what one account may pin */
	uint64_t largest_allocation; /* no allocation can be larger; bytes */
	uint64_t seed;		     /* of key hashes */
	struct cds_lfht *table;
	struct oki_namespace *_Atomic namespaces[OKI_MAX_NAMESPACES]; /* id - 1; set once */
	_Atomic uint64_t lookups;
	_Atomic uint64_t lookup_keys;
	_Atomic uint64_t lookup_hits;
	struct oki_block *_Atomic returned; /* list of removed blocks that no reader can see */

	/* Taken by threads that found the mutex held, until they have it. */
	pthread_mutex_t turn;
	pthread_mutex_t mutex;
	uint32_t namespace_count;
	uint32_t last_content;
	struct cds_list_head lru;	 /* blocks that may be evicted, least recently used first */
	struct cds_list_head quarantine; /* of holds */
	struct cds_list_head lease_expiry; /* in order of renewal, as all have the same TTL */
	struct cds_list_head lease_buckets[OKI_LEASE_BUCKETS];
	struct oki_session *sessions[OKW_MAX_SESSIONS];
	struct oki_block *gone; /* list of blocks removed since the mutex was taken */
	uint64_t gone_count;
	struct oki_block *spare_blocks;
	uint64_t spare_block_count; /* also counts those in `returned`, now or after RCU */
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
	/* Advances with the bytes that are evicted, 1 to 255 and around, some hundred times while
	 * the whole pool is evicted once. */
	uint8_t era;
	uint64_t era_bytes; /* evicted in this era */
	uint64_t published_blocks;
	uint64_t restored_blocks;
	uint8_t random[1024]; /* for lease ids */
	size_t random_left;   /* bytes not used yet */
	struct oki_scratch scratch;
};

/* ---- namespaces.c ---- */

/* NULL: unknown. */
struct oki_namespace *oki_namespace_get(struct oki_index *index, uint32_t id);
void oki_namespaces_fini(struct oki_index *index);
static inline uint32_t oki_namespace_content(const struct oki_namespace *ns)
{
	return atomic_load_explicit(&ns->content, memory_order_relaxed);
}
/* With the mutex held: is this lease of the namespace, and of what the namespace holds now? */
static inline bool oki_lease_is_current(struct oki_index *index, const struct oki_lease *lease)
{
	return lease->content ==
	       oki_namespace_content(oki_namespace_get(index, lease->namespace_id));
}
/* The same with an error for an unknown namespace. */
int oki_namespace_find(struct oki_index *index, uint32_t id, const struct oki_namespace **ret_ns,
		       struct okv_error *err);
int oki_rank_check(const struct oki_namespace *ns, uint32_t rank_slot, struct okv_error *err);
/* Check that the group is known and not in *groups_seen yet, and check count and key size.
 * groups_seen NULL: a group may come again. */
int oki_keys_check(const struct oki_namespace *ns, const struct oki_index_keys *keys,
		   uint32_t *groups_seen, struct okv_error *err);

/* ---- table.c: call under rcu_read_lock() ---- */

uint64_t oki_key_hash(const struct oki_index *index, const struct oki_key *key);
bool oki_block_has_key(const struct oki_block *block, const struct oki_key *key);
/* Find the blocks of `count` keys, packed from first->data on; NULL: not in the table. */
void oki_table_find(struct oki_index *index, const struct oki_key *first, uint32_t count,
		    uint64_t *ret_hashes, struct oki_block **ret_blocks);
/* The parent of a block; NULL: unknown or not in the table. likely: a block to try first, or
 * NULL. */
struct oki_block *oki_table_parent(struct oki_index *index, const struct oki_block *block,
				   struct oki_block *likely);
/* Add a block without slots that is not listed; or return the one there. NULL: no memory. */
struct oki_block *oki_table_add(struct oki_index *index, uint64_t hash, const struct oki_key *key,
				uint32_t slot_count);
/* Remove a block. It is freed or used again when no reader can see it any more. */
void oki_table_remove(struct oki_index *index, struct oki_block *block);
/* Start one grace period for all blocks that a call removed, at the end of the call. */
void oki_table_reclaim(struct oki_index *index);
/* Free the spare blocks. Call it when no reader is left and no grace period is pending. */
void oki_table_fini(struct oki_index *index);
static inline bool oki_block_usable(const struct oki_block *block)
{
	return atomic_load_explicit(&block->usable, memory_order_acquire);
}
/* rcu_read_unlock(), with the order that ThreadSanitizer must know. */
void oki_read_unlock(void);

/* ---- prefix.c ---- */

struct oki_usable_group {
	uint32_t block_tokens;
	uint32_t need;	/* a prefix needs its last `need` blocks, or all if it has fewer */
	uint32_t count; /* entries of run */
	uint16_t run[OKW_MAX_BLOCKS]; /* [i]: consecutive usable blocks that end with block i */
};

struct oki_usable {
	uint64_t limit; /* tokens; no usable prefix is longer */
	uint64_t step;	/* tokens; every usable prefix is a multiple; 0: there can be none */
	uint32_t group_count;
	struct oki_usable_group groups[OKW_MAX_GROUPS];
};

/* Look up every key that can matter. blocks (may be NULL): sequences, filled as far as run. */
void oki_usable_probe(struct oki_index *index, const struct oki_namespace *ns,
		      const struct oki_index_lookup *ask,
		      struct oki_block *(*blocks)[OKI_ROW_BLOCKS], struct oki_usable *ret_usable);
/* The longest usable prefix of at most `limit` tokens, in tokens; 0: none. */
uint64_t oki_usable_best(const struct oki_usable *usable, uint64_t limit);
/* The *ret_count blocks, from *ret_first on, that a prefix of `tokens` needs of a group. */
void oki_usable_range(const struct oki_usable_group *group, uint64_t tokens, uint32_t *ret_first,
		      uint32_t *ret_count);

/* ---- lru.c ---- */

/* Iterates over blocks of several groups, from the one that ends last in the sequence to the one
 * that ends first. */
struct oki_walk {
	uint32_t count;
	struct {
		struct oki_block **blocks;
		uint64_t left;
		int64_t end_token;
		uint32_t block_tokens;
		struct oki_block **before; /* ancestors of blocks[0], the nearest first */
		uint64_t before_left;
	} rows[OKW_MAX_GROUPS];
};

/* blocks: in sequence order, NULL entries are passed over; first: position of blocks[0] in the
 * sequence. */
void oki_walk_add(struct oki_walk *walk, struct oki_block **blocks, uint64_t count, int64_t first,
		  uint32_t block_tokens);
/* Ancestors of the first block that was added last, the nearest first. */
void oki_walk_add_before(struct oki_walk *walk, struct oki_block **before, uint64_t count);
struct oki_block *oki_walk_next(struct oki_walk *walk);

/*
 * Guess a block's parent or child in its sequence. A sequence enters the LRU list from its tail to
 * its head, so neighbours in the sequence are usually neighbours in the list. Returns the nearest
 * block of the same group; NULL: not listed, or none is near.
 */
struct oki_block *oki_block_likely_parent(const struct oki_index *index,
					  const struct oki_block *block);
struct oki_block *oki_block_likely_child(const struct oki_index *index,
					 const struct oki_block *block);
/* Take a block off the LRU list, so that it is not evicted. */
void oki_block_keep(struct oki_block *block);
/* If a block may be evicted, put it at the end of the LRU list, or drop it if it has no slots. */
void oki_block_settle(struct oki_index *index, struct oki_block *block);
/* Clear `in_request` and settle, for every block of the walk. */
void oki_walk_settle(struct oki_index *index, struct oki_walk *walk);
/* Free a block's slots and remove it from list and table. */
void oki_block_drop(struct oki_index *index, struct oki_block *block);

/* ---- evict.c ---- */

/*
 * Evict until `count` allocations of `bytes` fit, or no more holes can be made. Returns how many
 * fit. Where one block is as large as a hole, the least recently used one goes. A larger hole is
 * made of neighbours by address, so what goes is at most twice what fits then, plus one block.
 */
uint64_t oki_evict_for(struct oki_index *index, uint64_t bytes, uint64_t count);

/* ---- hole.c ---- */

/* What a search for holes may still look at, besides the one that is taken; extents. */
struct oki_hole_looks {
	uint64_t left;
};
/*
 * Find blocks that may be evicted and, with the free extents between them, are adjacent and have
 * `bytes` together. Moves them from the LRU list to *ret_blocks, which the caller evicts; they are
 * no longer `listed`. Returns the bytes of the hole; 0: none found.
 */
uint64_t oki_hole_take(struct oki_index *index, uint64_t bytes, struct oki_hole_looks *looks,
		       struct cds_list_head *ret_blocks);

/* ---- pin.c ---- */

/* Allocate spare pins, so that `count` calls of oki_pin_block() cannot fail. False: no memory. */
bool oki_pins_reserve(struct oki_index *index, uint64_t count);
void oki_pins_fini(struct oki_index *index);
void oki_pin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		   uint64_t bytes);
void oki_unpin_block(struct oki_index *index, struct oki_block *block, struct oki_account *account,
		     uint64_t bytes);
bool oki_pinned_by(struct oki_block *block, const struct oki_account *account);

/* ---- lease.c ---- */

/* The session's lease slots, created on first use. NULL: no memory. */
struct oki_session *oki_session_get(struct oki_index *index, uint32_t session);
/* A lease object with room for block_count blocks and a new id. No session holds it yet. */
int oki_lease_alloc(struct oki_index *index, uint64_t block_count, struct oki_lease **ret_lease,
		    struct okv_error *err);
/* Start a filled lease: pin its blocks (call oki_pins_reserve() before) and give it a lease slot
 * of the session, which must have a free one. Returns the slot. */
uint32_t oki_lease_start(struct oki_index *index, struct oki_lease *lease,
			 struct oki_session *session, uint64_t now_ns);
/*
 * A lease ends in two steps, since it may name many blocks. From the first on nobody finds it; its
 * blocks stay pinned. `ended`: a list of the caller.
 */
void oki_lease_end(struct oki_index *index, struct oki_lease *lease, struct cds_list_head *ended);
/* Unpin the blocks of ended leases and free the leases. Others have the mutex in between. */
void oki_leases_unpin(struct oki_index *index, struct cds_list_head *ended);
static inline bool oki_lease_expired(const struct oki_lease *lease, uint64_t now_ns)
{
	return lease->expires_ns <= now_ns;
}
void oki_lease_renew(struct oki_index *index, struct oki_lease *lease, uint64_t now_ns);
void oki_lease_reply(const struct oki_lease *lease, uint32_t slot,
		     struct okw_lookup_reply *ret_reply);
/* The lease in this slot of the session; NULL: none, ended, or with another id. */
struct oki_lease *oki_lease_find(struct oki_index *index, const uint8_t id[16]);
struct oki_lease *oki_lease_known(struct oki_index *index, uint32_t session, uint32_t slot,
				  const uint8_t id[16]);
/* End some leases whose time is over: as many as unpin about OKI_UNPIN_BLOCKS. Others have the
 * mutex in between. False: none is left. */
bool oki_leases_expire(struct oki_index *index, uint64_t now_ns);

/* ---- hold.c ---- */

/* An empty hold with room for `capacity` blocks, and stretches to be filled. NULL: no memory. */
struct oki_hold *oki_hold_alloc(uint64_t capacity, uint32_t stretch_count);
/* Blocks are added group after group, and stretch after stretch within a group. */
void oki_hold_add(struct oki_hold *hold, struct oki_block *block, uint32_t stretch,
		  uint32_t ordinal);
/* Does a stretch of this group begin a sequence? *seen: the groups of the sequence so far, first
 * 0. */
static inline bool oki_sequence_begins(uint32_t *seen, uint32_t group)
{
	uint32_t bit = 1u << group;
	bool begins = !*seen || *seen & bit;
	*seen = begins ? bit : *seen | bit;
	return begins;
}
void oki_holds_fini(struct oki_index *index);

/* A mutex goes to whoever is fastest, which is the thread that just unlocked it. So who waits for
 * the mutex holds `turn`, and oki_index_give_way() cannot pass. */
static inline void oki_index_wait_turn(struct oki_index *index)
{
	pthread_mutex_lock(&index->turn);
	pthread_mutex_lock(&index->mutex);
	pthread_mutex_unlock(&index->turn);
}

static inline void oki_index_take_mutex(struct oki_index *index)
{
	if (pthread_mutex_trylock(&index->mutex) != 0)
		oki_index_wait_turn(index);
}

static inline void oki_index_lock(struct oki_index *index)
{
	oki_index_take_mutex(index);
	rcu_read_lock();
}

static inline void oki_index_unlock(struct oki_index *index)
{
	if (index->gone)
		oki_table_reclaim(index);
	oki_read_unlock();
	pthread_mutex_unlock(&index->mutex);
}

/* Let a thread that waits for the mutex have it first. */
static inline void oki_index_give_way(struct oki_index *index)
{
	oki_index_unlock(index);
	oki_index_wait_turn(index);
	rcu_read_lock();
}

#endif
