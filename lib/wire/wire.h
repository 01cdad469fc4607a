/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Every byte that two processes share. Fixed-width integers and atomics only. */
#ifndef OKW_WIRE_H
#define OKW_WIRE_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define OKW_MAGIC 0x564b424fu /* "OBKV" */
#define OKW_BOOTSTRAP_VERSION 1u
#define OKW_PROTOCOL_VERSION 3u
#define OKW_SCHEMA_VERSION 1u

#define OKW_RECORDS 1024u
#define OKW_DIRTY_WORDS (OKW_RECORDS / 64u)
#define OKW_PLAN_BANK_BYTES (1u << 20)
#define OKW_PART_MAX_BYTES (OKW_PLAN_BANK_BYTES / 4u)
#define OKW_REQUEST_AREA_BYTES (4u << 20)
#define OKW_REQUEST_ALIGN 64u
#define OKW_LEASES 4096u /* lease slots of one session */
#define OKW_LEASE_WORDS (OKW_LEASES / 64u)
#define OKW_TEXT_BYTES 88u
#define OKW_MAX_GROUPS 8u
#define OKW_MAX_KEY_BYTES 32u
#define OKW_MAX_BLOCKS 4096u	/* of one stretch */
#define OKW_MAX_STRETCHES 1024u /* of one publish or restore */
#define OKW_MAX_OPERATION_BLOCKS (OKW_MAX_GROUPS * OKW_MAX_BLOCKS)
#define OKW_MAX_SESSIONS 1024u
#define OKW_MAX_ARENAS 64u /* what one importer accepts */
#define OKW_MAX_SHARDS 48u /* what a Manager creates, leaving room for replacements */

/*
 * Operation record. One 64-bit tag word, generation << 8 | state, moved by compare-and-swap only;
 * E = the engine moves it, M = the Manager. lib/grant/state.c has this graph as a table and
 * test/model/ proves it.
 *
 *   Free ─E→ Reserved ─E→ Free                          local failure before submitting
 *            Reserved ─E→ Submitted ─M→ Preparing
 *   Preparing ─M→ Done                                  answered or refused
 *   Preparing ─M→ Managed ─M→ Done                      the Manager's own executor ran it
 *   Preparing ─M→ Granted ─M→ Revoked                   cancel, TTL, session loss before the claim
 *                 Granted ─E→ Active ─E→ Drained ─M→ Reaped
 *                             Active ─E→ Unknown        engine poisoned: quarantine
 *   Done, Revoked, Reaped ─E→ Free                      generation + 1
 *   engine gone while Active: no edge; quarantine
 */
enum {
	OKW_FREE = 0,
	OKW_RESERVED = 1,
	OKW_SUBMITTED = 2,
	OKW_PREPARING = 3,
	OKW_DONE = 4,
	OKW_MANAGED = 5,
	OKW_GRANTED = 6,
	OKW_REVOKED = 7,
	OKW_ACTIVE = 8,
	OKW_DRAINED = 9,
	OKW_REAPED = 10,
	OKW_UNKNOWN = 11,
	OKW_STATES = 12,
};

enum {
	OKW_OP_LOOKUP = 1,
	OKW_OP_LEASE_OPEN = 2,
	OKW_OP_RESTORE = 3,
	OKW_OP_PUBLISH = 4,
};

/* okw_record.engine_flags, written by E only */
#define OKW_ENGINE_CANCEL 0x1u	 /* the engine wants it to end early */
#define OKW_ENGINE_SPINNING 0x2u /* the engine polls the tag: the next move needs no ring */

/* okw_record.parts: E and M by compare-and-swap. closed forbids further claims. */
#define OKW_PARTS_OFFERED_SHIFT 0
#define OKW_PARTS_CLAIMED_SHIFT 16
#define OKW_PARTS_COUNT_MASK 0xffffu
#define OKW_PARTS_CLOSED (1ull << 32)

struct okw_record {
	_Atomic uint64_t tag;	       /* E, M: see above */
	_Atomic uint64_t parts;	       /* E, M: {offered, claimed, closed} */
	_Atomic uint32_t drained;      /* E: claimed parts whose copies ended */
	_Atomic uint32_t consumed;     /* E: parts copied to private memory */
	_Atomic uint32_t engine_flags; /* E: OKW_ENGINE_* */
	uint32_t kind;		       /* E, before Submitted: OKW_OP_* */
	uint32_t request_offset;       /* E, before Submitted: extent in the request area */
	uint32_t request_bytes;	       /* E: request, from request_offset */
	uint32_t reply_capacity;       /* E: reply, after the request rounded up to 8 */
	uint32_t reply_bytes;	       /* M, before Done/Granted/Revoked/Reaped */
	int32_t status;		       /* M, before Done/Revoked/Reaped: OKV_E_* */
	int32_t engine_status;	       /* E, before Drained: status of its executor */
	uint64_t stage[6];	       /* E, before Drained: ns from start; all zero: none */
	char text[OKW_TEXT_BYTES];     /* M, with status; terminated */
};
static_assert(sizeof(struct okw_record) == 192, "record size");
static_assert(offsetof(struct okw_record, parts) == 8, "record layout");
static_assert(offsetof(struct okw_record, drained) == 16, "record layout");
static_assert(offsetof(struct okw_record, kind) == 28, "record layout");
static_assert(offsetof(struct okw_record, status) == 48, "record layout");
static_assert(offsetof(struct okw_record, stage) == 56, "record layout");
static_assert(offsetof(struct okw_record, text) == 104, "record layout");

/*
 * A doorbell in one direction. The ringer sets the dirty bit after the state it announces, then
 * reads asleep; the sleeper sets asleep, then reads dirty again. All four are sequentially
 * consistent. The bits are hints: the records are the authority.
 */
struct okw_doorbell {
	_Atomic uint64_t dirty[OKW_DIRTY_WORDS];
	_Atomic uint32_t asleep;
	uint32_t reserved[31];
};
static_assert(sizeof(struct okw_doorbell) == 256, "doorbell size");
static_assert(offsetof(struct okw_doorbell, asleep) == 128, "doorbell layout");

/* The grant memfd. Created by M, mapped by both. */
struct okw_control {
	uint32_t magic; /* M, before the fd is sent; up to slot nothing changes after */
	uint32_t bytes;
	uint64_t epoch;
	uint64_t token;
	uint32_t slot;
	/* E, before Submitted: records below this may be in use. Only a hint for whoever reads
	 * them all: reading takes memory for pages that were never written. */
	_Atomic uint32_t records_used;
	uint32_t reserved0[8];
	struct okw_doorbell submit; /* E rings, M's dispatcher listens: Submitted, cancel */
	struct okw_doorbell
		retire; /* E rings, M's retire loop listens: consumed, Drained, releases */
	struct okw_doorbell engine;			 /* M rings, E's session thread listens */
	_Atomic uint64_t lease_release[OKW_LEASE_WORDS]; /* E sets, M takes: lease slots released */
	struct okw_record records[OKW_RECORDS];
	uint8_t bank[OKW_PLAN_BANK_BYTES]; /* M, while the part is offered and not consumed */
};
static_assert(offsetof(struct okw_control, submit) == 64, "control layout");
static_assert(offsetof(struct okw_control, records) % 64 == 0, "control layout");
static_assert(offsetof(struct okw_control, token) == 16, "control layout");
static_assert(offsetof(struct okw_control, records_used) == 28, "control layout");
static_assert(offsetof(struct okw_control, retire) == 320, "control layout");
static_assert(offsetof(struct okw_control, engine) == 576, "control layout");
static_assert(offsetof(struct okw_control, lease_release) == 832, "control layout");
static_assert(offsetof(struct okw_control, records) == 1344, "control layout");
static_assert(offsetof(struct okw_control, bank) == 197952, "control layout");
static_assert(sizeof(struct okw_control) == 1246528, "control size");
#define OKW_CONTROL_BYTES ((sizeof(struct okw_control) + 4095u) & ~4095u)
/* Shared control memory of one session at most: control and request area. */
#define OKW_SESSION_BYTES (OKW_CONTROL_BYTES + OKW_REQUEST_AREA_BYTES)
static_assert(OKW_SESSION_BYTES < 5500000u, "control memory per session");

/* ---- requests: E writes them into the request area before Submitted; M copies them once ---- */

struct okw_request {
	uint64_t epoch;
	uint64_t token;
	uint64_t tag; /* of the record at Submitted, so that a stale extent is refused */
	uint32_t kind;
	uint32_t bytes; /* whole request, this head included */
	uint32_t namespace_id;
	uint32_t binding_id;  /* 0 for lookups */
	uint32_t flags;	      /* OKW_REQUEST_* */
	uint32_t group_count; /* entries that follow; publish, restore: stretches */
	uint32_t consumers;   /* lookup */
	uint32_t reserved;
	uint8_t lease_id[16]; /* lease open */
	/* lookup, publish: followed by group_count okw_request_group, then the keys of each,
	 * packed. restore: followed by group_count okw_restore_part */
};
static_assert(sizeof(struct okw_request) == 72, "request size");
static_assert(offsetof(struct okw_request, tag) == 16, "request layout");
static_assert(offsetof(struct okw_request, namespace_id) == 32, "request layout");
static_assert(offsetof(struct okw_request, lease_id) == 56, "request layout");

#define OKW_REQUEST_PEEK 0x1u

/* Keys of consecutive blocks of one group. A lookup names a group once. A publish may name it in
 * many stretches: stretches that follow each other and are of different groups are one sequence,
 * and a stretch of a group that the sequence has already begins the next. */
struct okw_request_group {
	uint32_t group;
	uint32_t first; /* publish: position of the first block in its sequence */
	uint32_t count;
	uint32_t key_bytes;
	uint32_t parent_bytes; /* publish: key_bytes or 0; the parent key precedes the keys */
	uint32_t reserved;
};
static_assert(sizeof(struct okw_request_group) == 24, "request group size");
static_assert(offsetof(struct okw_request_group, key_bytes) == 12, "request group layout");

#define OKW_PART_KEEP 0x1u /* names its lease without spending a share */

/* A stretch of a restore. Stretches may name the same lease: its share is spent once. */
struct okw_restore_part {
	uint32_t group;
	uint32_t first;	     /* position in the sequence */
	uint32_t count;	     /* 0: only the lease counts */
	uint32_t flags;	     /* OKW_PART_* */
	uint32_t lease_slot; /* the lease slot in this session; OKW_LEASES: found by id alone */
	uint32_t reserved;
	uint8_t lease_id[16];
};
static_assert(sizeof(struct okw_restore_part) == 40, "restore part size");
static_assert(offsetof(struct okw_restore_part, lease_slot) == 16, "restore part layout");
static_assert(offsetof(struct okw_restore_part, lease_id) == 24, "restore part layout");

/* ---- replies: M writes them behind the request, before the state that announces them ---- */

struct okw_lookup_reply { /* lookup and lease open */
	uint8_t lease_id[16];
	uint32_t lease_slot; /* OKW_LEASES: no lease */
	uint32_t group_count;
	uint32_t shortened;
	uint32_t reserved;
	uint64_t tokens;
	struct {
		uint32_t group;
		uint32_t first;
		uint32_t count;
		uint32_t reserved;
	} groups[OKW_MAX_GROUPS];
};
static_assert(sizeof(struct okw_lookup_reply) == 168, "lookup reply size");
static_assert(offsetof(struct okw_lookup_reply, lease_slot) == 16, "lookup reply layout");
static_assert(offsetof(struct okw_lookup_reply, tokens) == 32, "lookup reply layout");
static_assert(offsetof(struct okw_lookup_reply, groups) == 40, "lookup reply layout");

/* restore and publish */
struct okw_transfer_reply {
	uint64_t blocks;      /* in the plan */
	uint64_t present;     /* publish */
	uint64_t in_progress; /* publish */
	uint64_t not_stored;  /* publish */
	uint32_t lease_spent; /* restore: leases that lost a share */
	uint32_t part_total;  /* at Granted: how many parts will be offered */
	struct {
		uint32_t offset; /* in the bank */
		uint32_t bytes;
	} part[2]; /* part k is at [k & 1]; rewritten only after part k - 2 is consumed */
	/* followed by an okw_stretch_reply for each stretch, as the request orders them */
};
static_assert(sizeof(struct okw_transfer_reply) == 56, "transfer reply size");
static_assert(offsetof(struct okw_transfer_reply, part_total) == 36, "transfer reply layout");
static_assert(offsetof(struct okw_transfer_reply, part) == 40, "transfer reply layout");

struct okw_stretch_reply {
	int32_t status;	      /* restore: OKV_E_* of a stretch that cannot be granted */
	uint32_t blocks;      /* in the plan */
	uint32_t present;     /* publish; with the two below: the rest of the stretch */
	uint32_t in_progress; /* publish: also a key of an earlier stretch */
	uint32_t not_stored;  /* publish */
};
static_assert(sizeof(struct okw_stretch_reply) == 20, "stretch reply size");
static_assert(offsetof(struct okw_stretch_reply, not_stored) == 16, "stretch reply layout");

/*
 * A plan part: blocks, group after group, ascending. Pages are never sent: the engine keeps its own
 * list, so no plan can name a page that the engine did not offer.
 */
struct okw_plan_head {
	uint32_t magic;
	uint32_t version; /* OKW_PROTOCOL_VERSION */
	uint64_t epoch;
	uint64_t token;
	uint64_t tag; /* generation << 8 | OKW_GRANTED of the record */
	uint32_t record;
	uint32_t part;
	uint32_t entry_count;
	uint32_t groups_done; /* bit g: no later part has an entry of schema group g */
};
static_assert(sizeof(struct okw_plan_head) == 48, "plan head size");
static_assert(offsetof(struct okw_plan_head, tag) == 24, "plan head layout");
static_assert(offsetof(struct okw_plan_head, entry_count) == 40, "plan head layout");

struct okw_plan_entry {
	uint32_t arena;
	uint32_t group; /* of the schema */
	uint64_t allocation_id;
	uint64_t offset; /* in the arena */
	/* Ascending within the group: blocks of all its stretches, counted as the request orders
	 * them. */
	uint32_t ordinal;
	uint32_t bytes; /* of the allocation's payload */
};
static_assert(sizeof(struct okw_plan_entry) == 32, "plan entry size");
static_assert(offsetof(struct okw_plan_entry, offset) == 16, "plan entry layout");
static_assert(offsetof(struct okw_plan_entry, bytes) == 28, "plan entry layout");

/* ---- socket messages (SOCK_SEQPACKET): one head, one body, the promised descriptors ---- */

enum {
	OKW_MSG_HELLO = 1,     /* E: okw_hello */
	OKW_MSG_WELCOME = 2,   /* M: okw_welcome + 4 fds, or status and text */
	OKW_MSG_NAMESPACE = 3, /* E: canonical bytes; M: okw_namespace_reply */
	OKW_MSG_ARENA = 4,     /* E: okw_arena_ask; M: okw_arena_reply + 1 fd */
	OKW_MSG_BIND = 5,      /* E: okw_bind; M: okw_bind_reply */
	OKW_MSG_UNBIND = 6,    /* E: okw_bind_reply; M: status */
	OKW_MSG_STATUS =
		7, /* E: nothing; M: okw_status_reply. Also instead of hello, then hang-up */
	OKW_MSG_REFUSED = 8, /* M: status and text, to anything */
	OKW_MSG_DROP = 9,    /* E: okw_drop; M: status */
};

#define OKW_MSG_MAX_BYTES 131072u /* head and body */
#define OKW_MSG_MAX_FDS 4u

struct okw_msg {
	uint32_t magic;
	uint32_t kind;
	uint32_t bytes; /* head and body */
	uint32_t fd_count;
	int32_t status;	 /* replies: 0 or OKV_E_*; then the body is the text */
	uint32_t serial; /* a reply repeats its request's */
};
static_assert(sizeof(struct okw_msg) == 24, "message head size");
static_assert(offsetof(struct okw_msg, bytes) == 8, "message head layout");
static_assert(offsetof(struct okw_msg, status) == 16, "message head layout");

#define OKW_HELLO_RESTORE_ONLY 0x1u

struct okw_hello {
	uint32_t bootstrap_version;
	uint32_t protocol_version;
	uint32_t schema_version;
	uint32_t hello_bytes;
	uint32_t record_bytes;
	uint32_t control_bytes;
	uint32_t request_area_bytes;
	uint32_t flags; /* OKW_HELLO_* */
	char name[32];	/* for the log; terminated */
};
static_assert(sizeof(struct okw_hello) == 64, "hello size");
static_assert(offsetof(struct okw_hello, flags) == 28, "hello layout");
static_assert(offsetof(struct okw_hello, name) == 32, "hello layout");

/* fds: request memfd, grant memfd, eventfd M→E, eventfd E→M */
struct okw_welcome {
	uint64_t epoch;
	uint64_t token;
	uint32_t slot;
	uint32_t arena_count;
	uint32_t control_bytes;
	uint32_t request_area_bytes;
	uint32_t lease_ttl_ms;
	uint32_t part_bytes;
};
static_assert(sizeof(struct okw_welcome) == 40, "welcome size");
static_assert(offsetof(struct okw_welcome, slot) == 16, "welcome layout");
static_assert(offsetof(struct okw_welcome, control_bytes) == 24, "welcome layout");

/*
 * The body of OKW_MSG_NAMESPACE is no struct but a byte string without padding, the canonical
 * identity and schema, which lib/schema/identity.c writes and checks.
 */
struct okw_namespace_reply {
	uint32_t namespace_id;
	uint32_t reserved;
};
static_assert(sizeof(struct okw_namespace_reply) == 8, "namespace reply size");

struct okw_drop {
	uint32_t namespace_id;
	uint32_t reserved;
};
static_assert(sizeof(struct okw_drop) == 8, "drop size");

struct okw_arena_ask {
	uint32_t index;
	uint32_t reserved;
};
static_assert(sizeof(struct okw_arena_ask) == 8, "arena ask size");

struct okw_arena_reply {
	uint32_t arena; /* id named by plan entries */
	uint32_t huge;	/* 1: huge pages */
	uint64_t bytes;
	uint64_t inode;	   /* what fstat() must report */
	int32_t node;	   /* NUMA node or -1 */
	uint32_t writable; /* 0: opened read-only for this session */
};
static_assert(sizeof(struct okw_arena_reply) == 32, "arena reply size");
static_assert(offsetof(struct okw_arena_reply, inode) == 16, "arena reply layout");
static_assert(offsetof(struct okw_arena_reply, node) == 24, "arena reply layout");

struct okw_bind {
	uint32_t namespace_id;
	uint32_t rank_slot;
	uint32_t device_kind;
	int32_t node;	       /* NUMA node that publishes go to if there is room, -1: any */
	uint8_t device_id[16]; /* restore permits count per device: a GPU's UUID, or pid and slot */
};
static_assert(sizeof(struct okw_bind) == 32, "bind size");
static_assert(offsetof(struct okw_bind, device_id) == 16, "bind layout");

struct okw_bind_reply {
	uint32_t binding_id;
	uint32_t reserved;
};
static_assert(sizeof(struct okw_bind_reply) == 8, "bind reply size");

/* The counters of struct okv_manager_status, in its order. */
#define OKW_STATUS_FIELDS(X) \
	X(epoch)             \
	X(uptime_ms)         \
	X(sessions)          \
	X(sessions_retained) \
	X(namespaces)        \
	X(bindings)          \
	X(arenas)            \
	X(bytes_total)       \
	X(bytes_free)        \
	X(bytes_used)        \
	X(bytes_quarantined) \
	X(bytes_pinned)      \
	X(blocks)            \
	X(blocks_partial)    \
	X(leases)            \
	X(lookups)           \
	X(lookup_keys)       \
	X(lookup_hits)       \
	X(evictions)         \
	X(published_blocks)  \
	X(restored_blocks)   \
	X(ops_preparing)     \
	X(ops_granted)       \
	X(ops_active)        \
	X(ops_quarantined)   \
	X(ops_done)          \
	X(ops_reaped)        \
	X(ops_revoked)       \
	X(ops_refused)       \
	X(control_bytes)     \
	X(wakeups)

#define OKW_STATUS_FIELD(name) uint64_t name;
struct okw_status_reply {
	OKW_STATUS_FIELDS(OKW_STATUS_FIELD)
};
static_assert(sizeof(struct okw_status_reply) == 248, "status reply size");
static_assert(offsetof(struct okw_status_reply, bytes_total) == 56, "status reply layout");
static_assert(offsetof(struct okw_status_reply, wakeups) == 240, "status reply layout");

#endif
