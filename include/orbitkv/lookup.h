/* SPDX-License-Identifier: Apache-2.0 */
/* Finding cached blocks and holding them. */
#ifndef ORBITKV_LOOKUP_H
#define ORBITKV_LOOKUP_H

#include <orbitkv/binding.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_lease;

/**
 * Keys of consecutive blocks of one group, all key_bytes long, packed one after another. Key i
 * names the tokens of block i and everything before them, for example a hash of key i - 1 and the
 * tokens of block i, long enough that two prefixes never share one. Keys of another length are
 * other keys.
 */
struct okv_keys {
	uint32_t group;
	uint32_t count;	    /* 1 to OKV_MAX_BLOCKS */
	uint32_t key_bytes; /* 1 to OKV_MAX_KEY_BYTES */
	uint32_t reserved;  /* 0 */
	const void *keys;   /* count * key_bytes */
};

#define OKV_MAX_LEASES 4096u /* lease handles of one engine at a time */

#define OKV_LOOKUP_PEEK 0x1u /* only ask: pins nothing, changes nothing, needs no release */

/** What okv_lookup() looks for: keys of one sequence, in one or more of its groups. */
struct okv_lookup_options {
	uint32_t size;
	uint32_t flags;	    /* OKV_LOOKUP_* */
	uint32_t consumers; /* how many restores will spend a share; default 1 */
	uint32_t group_count;
	const struct okv_keys *groups; /* distinct; block 0 of each is the sequence's start */
	int32_t timeout_ms; /* for the answer; default 5,000; < 0 without limit, 0: only if
			     * it comes while the call spins */
	uint32_t reserved;  /* 0 */
};

/** Fill in size and every default: one consumer, 5 s, no groups yet. NULL is ignored. */
OKV_EXPORT void okv_lookup_options_init(struct okv_lookup_options *opts);

/** The usable blocks of a group asked for; block i of a sequence is the one that key i names. */
struct okv_hit {
	uint32_t group;
	uint32_t first; /* block of the sequence; 0 for a full group, later for window and state */
	uint32_t count; /* the lease holds so many from there on */
	uint32_t reserved;
};

/** What okv_lookup() found; a lease keeps a copy, okv_lease_result(). */
struct okv_lookup_result {
	uint64_t tokens;      /* usable prefix, the same for all groups; 0: a miss */
	uint32_t group_count; /* as asked, in the order asked */
	uint32_t shortened;   /* 1: a reservation limit cut the prefix short */
	struct okv_hit groups[OKV_MAX_GROUPS];
};

/**
 * Find the longest usable prefix. A block is usable when every rank slot of it is sealed.
 * Without PEEK the usable blocks are pinned by a lease, which ends with its last consumer, its
 * TTL (renewed by use), or the last session that knows it. A lease that ended pins nothing, but its
 * handle keeps one of OKV_MAX_LEASES places until it is released.
 *
 * Owns     borrows opts; returns owned: a lease, or NULL on a miss or with PEEK (ret_lease may
 *          be NULL then). okv_lease_release().
 * Errors   OKV_E_AGAIN: the reservation limit leaves nothing, no place for a lease is left, or the
 *          request area is full. OKV_E_TIMEOUT: no answer in time; it changed nothing.
 *          OKV_E_LIMIT: the shortest usable prefix is larger than leases may pin
 *          at all. A miss is no error.
 * Blocks   for one answer.   Threads any.
 */
OKV_EXPORT int okv_lookup(struct okv_namespace *ns, const struct okv_lookup_options *opts,
			  struct okv_lookup_result *ret_result, struct okv_lease **ret_lease,
			  struct okv_error *err);

/** Names a lease to another process of the same namespace. */
struct okv_lease_id {
	uint8_t bytes[16];
};

/**
 * The name by which another session of the same namespace opens this lease: okv_lease_open().
 * Asks nobody, so the lease may have ended. OKV_E_INVAL for NULL.
 */
OKV_EXPORT int okv_lease_id(const struct okv_lease *lease, struct okv_lease_id *ret_id);
/** What the lease holds, as the lookup said. */
OKV_EXPORT int okv_lease_result(const struct okv_lease *lease,
				struct okv_lookup_result *ret_result);

/**
 * Open a lease that another session, or this one, looked up. Renews its TTL.
 * Errors   OKV_E_NOENT: ended, expired, or of another namespace.
 * Blocks   for one answer, up to 5 s.
 */
OKV_EXPORT int okv_lease_open(struct okv_namespace *ns, const struct okv_lease_id *id,
			      struct okv_lease **ret_lease, struct okv_error *err);

/**
 * Forget the lease here. When no session knows it any more it ends, whatever shares are left.
 * Never blocks, never fails; restores already started keep what they need. NULL is allowed.
 */
OKV_EXPORT void okv_lease_release(struct okv_lease *lease);

#ifdef __cplusplus
}
#endif
#endif
