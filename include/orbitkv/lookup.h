/* SPDX-License-Identifier: Apache-2.0 */
/* Find cached blocks and pin them. */
#ifndef ORBITKV_LOOKUP_H
#define ORBITKV_LOOKUP_H

#include <orbitkv/binding.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_lease;

/**
 * Keys of consecutive blocks of one group, packed one after another. Key i must name the tokens of
 * block i and all tokens before them, for example as a hash of key i - 1 and the tokens of block i.
 * Choose keys so long that two different prefixes never have the same key. Keys of different
 * lengths never match.
 */
struct okv_keys {
	uint32_t group;	    /* index of the group in the schema */
	uint32_t count;	    /* 1 to OKV_MAX_BLOCKS */
	uint32_t key_bytes; /* bytes of each key; 1 to OKV_MAX_KEY_BYTES */
	uint32_t reserved;  /* 0 */
	const void *keys;   /* count * key_bytes bytes */
};

#define OKV_MAX_LEASES 4096u /* lease handles of one engine at a time */

/** Flags of a lookup; they are or-ed. */
enum okv_lookup_flags {
	OKV_LOOKUP_PEEK = 0x1, /* only ask: pins nothing, changes nothing, returns no lease */
};

/** What okv_lookup() looks for: keys of one sequence, in one or more of its groups. */
struct okv_lookup_options {
	uint32_t size;	      /* set by the _init call */
	uint32_t flags;	      /* enum okv_lookup_flags; default 0 */
	uint32_t consumers;   /* shares: restores that will spend one; 1 or more, default 1 */
	uint32_t group_count; /* 1 to OKV_MAX_GROUPS */
	/* Each group at most once. The first key of each names block 0 of the sequence. Counts may
	 * differ: the shortest bounds the prefix. Keys of different groups never meet. */
	const struct okv_keys *groups;
	/* Milliseconds to wait for the answer; default 5,000. < 0: no limit. 0: return
	 * OKV_E_TIMEOUT unless the answer comes while the call spins. */
	int32_t timeout_ms;
	uint32_t reserved; /* 0 */
};

/** Set size and every default: one consumer, 5 s, no groups. NULL is ignored. */
OKV_EXPORT void okv_lookup_options_init(struct okv_lookup_options *opts);

/** The blocks of one group that a prefix needs. Block i of a sequence is the one key i names. */
struct okv_hit {
	uint32_t group;	   /* index of the group in the schema */
	uint32_t first;	   /* first block; 0 for a full group, maybe later for window and state */
	uint32_t count;	   /* blocks from first on */
	uint32_t reserved; /* 0 */
};

/** What okv_lookup() found. A lease keeps a copy: okv_lease_result(). */
struct okv_lookup_result {
	uint64_t tokens;      /* length of the usable prefix, the same for all groups; 0: a miss */
	uint32_t group_count; /* as asked, in the order asked */
	uint32_t shortened;   /* 1: reserve_percent or session_percent shortened the prefix */
	struct okv_hit groups[OKV_MAX_GROUPS];
};

/**
 * Find the longest usable prefix. A block is usable when all its rank slots are sealed.
 * Without OKV_LOOKUP_PEEK a lease pins the blocks of the prefix. The lease ends when its last share
 * is spent, when its TTL (lease_ttl_ms, renewed by use) is over, or when no session holds it any
 * more. After that it pins nothing, but its handle still counts towards OKV_MAX_LEASES until it is
 * released.
 *
 * Owns     borrows opts. Returns an owned lease, release it with okv_lease_release(); NULL on a
 *          miss and with OKV_LOOKUP_PEEK. ret_lease may be NULL with OKV_LOOKUP_PEEK.
 * Errors   OKV_E_AGAIN: other leases pin so much, or leases of this session name so many blocks
 *          (1,048,576; a block counts in every lease), that not even the shortest prefix fits, the
 *          session has OKV_MAX_LEASES leases, or the request area is full.
 *          OKV_E_TIMEOUT: no answer in time; nothing changed.
 *          OKV_E_LIMIT: the shortest usable prefix is larger than leases may ever pin.
 *          A miss is no error.
 * Blocks   for one answer of the Manager, up to timeout_ms.   Threads any.
 */
OKV_EXPORT int okv_lookup(struct okv_namespace *ns, const struct okv_lookup_options *opts,
			  struct okv_lookup_result *ret_result, struct okv_lease **ret_lease,
			  struct okv_error *err);

/** The name of a lease, for other sessions of the same namespace. Random; send it as bytes. */
struct okv_lease_id {
	uint8_t bytes[16];
};

/**
 * The name by which another session of the same namespace opens this lease: okv_lease_open().
 * The lease may have ended: the call does not ask the Manager. OKV_E_INVAL for NULL.
 */
OKV_EXPORT int okv_lease_id(const struct okv_lease *lease, struct okv_lease_id *ret_id);
/** What the lookup found, also after the lease ended. OKV_E_INVAL for NULL. */
OKV_EXPORT int okv_lease_result(const struct okv_lease *lease,
				struct okv_lookup_result *ret_result);

/**
 * Open a lease that another session, or this one, got from a lookup. Renews its TTL.
 *
 * Owns     returns an owned lease; release it with okv_lease_release().
 * Errors   OKV_E_NOENT: the lease ended, or belongs to another namespace. OKV_E_AGAIN: the session
 *          has OKV_MAX_LEASES leases, or the request area is full. OKV_E_TIMEOUT.
 * Blocks   for one answer of the Manager, up to 5 s.   Threads any.
 */
OKV_EXPORT int okv_lease_open(struct okv_namespace *ns, const struct okv_lease_id *id,
			      struct okv_lease **ret_lease, struct okv_error *err);

/**
 * Release the handle. When no session holds the lease any more it ends, even if shares are left.
 * Restores that were started keep the blocks that they need. NULL is allowed.
 * Blocks   never.
 */
OKV_EXPORT void okv_lease_release(struct okv_lease *lease);

#ifdef __cplusplus
}
#endif
#endif
