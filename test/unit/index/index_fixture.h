/* SPDX-License-Identifier: Apache-2.0 */
/* [M] A pool, an index and one namespace, and words to fill, ask and drain it with. */
#ifndef TEST_INDEX_FIXTURE_H
#define TEST_INDEX_FIXTURE_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "grant/state.h"
#include "index/index.h"

#define UNUSED_OK __attribute__((unused))
#define KEY_BYTES 16u
#define BLOCK_BYTES 1024u /* of every group, on one rank */
#define TTL_NS 1000u
#define MAX_KEYS OKW_MAX_BLOCKS

struct bed {
	struct oki_pool *pool;
	struct oki_index *index;
	uint32_t ns;
	uint32_t rank_slots;
	uint64_t now;
};

/* What a group of the bed's schema looks like; block_tokens 0 ends a list. */
struct bed_group {
	uint32_t kind;
	uint32_t block_tokens;
	uint32_t window_tokens;
	uint32_t times; /* as large as the others' blocks; 0: once */
};

static UNUSED_OK const struct bed_group one_full[] = {{OKV_GROUP_FULL, 16, 0, 0}, {0, 0, 0, 0}};

static UNUSED_OK int bed_try_namespace(struct bed *bed, const char *model, const char *salt,
				       const char *adapter, uint32_t pipeline_stage,
				       const struct bed_group *groups, uint64_t segment_bytes,
				       uint32_t *ret_id)
{
	struct okv_layer_schema layers[OKV_MAX_GROUPS];
	struct okv_group_schema schema[OKV_MAX_GROUPS];
	struct okv_namespace_options opts;
	struct okv_error err = {0};
	uint8_t *bytes = NULL;
	size_t size = 0;

	memset(layers, 0, sizeof(layers));
	memset(schema, 0, sizeof(schema));
	memset(&opts, 0, sizeof(opts));
	opts.size = sizeof(opts);
	opts.rank_slots = bed->rank_slots;
	opts.model = model;
	opts.salt = salt;
	opts.adapter = adapter;
	opts.pipeline_stage = pipeline_stage;
	opts.pipeline_stages = 4;
	opts.groups = schema;
	for (uint32_t g = 0; groups[g].block_tokens; g++) {
		layers[g].order = g;
		layers[g].segment_count = 1;
		layers[g].segment_bytes[0] =
			segment_bytes * (groups[g].times ? groups[g].times : 1);
		schema[g].kind = groups[g].kind;
		schema[g].block_tokens = groups[g].block_tokens;
		schema[g].window_tokens = groups[g].window_tokens;
		schema[g].layer_count = 1;
		schema[g].layout_tag = "NHD";
		schema[g].layers = &layers[g];
		opts.group_count = g + 1;
	}
	int rc = oki_identity_encode(&opts, &bytes, &size, &err);
	ck_assert_msg(rc == 0, "%s", err.text);
	rc = oki_index_namespace(bed->index, bytes, size, ret_id, &err);
	ck_assert_msg(rc == err.status, "%s", err.text);
	free(bytes);
	return rc;
}

static UNUSED_OK uint32_t bed_namespace(struct bed *bed, const char *model, const char *salt,
					const char *adapter, uint32_t pipeline_stage,
					const struct bed_group *groups, uint64_t segment_bytes)
{
	uint32_t id = 0;
	ck_assert_int_eq(bed_try_namespace(bed, model, salt, adapter, pipeline_stage, groups,
					   segment_bytes, &id),
			 0);
	return id;
}

static UNUSED_OK void bed_make(struct bed *bed, uint64_t pool_bytes, uint32_t rank_slots,
			       uint32_t reserve_percent, uint32_t session_percent,
			       const struct bed_group *groups)
{
	const int32_t node = -1;
	struct oki_index_config config = {
		.reserve_percent = reserve_percent,
		.session_percent = session_percent,
		.lease_ttl_ns = TTL_NS,
	};

	memset(bed, 0, sizeof(*bed));
	bed->rank_slots = rank_slots;
	bed->now = 1000000;
	ck_assert_int_eq(oki_pool_create(&pool_bytes, &node, 1, &bed->pool, NULL), 0);
	config.pool = bed->pool;
	oki_index_thread_enter();
	ck_assert_int_eq(oki_index_create(&config, &bed->index, NULL), 0);
	bed->ns = bed_namespace(bed, "model", NULL, NULL, 0, groups, BLOCK_BYTES);
}

/* blocks: how many fit the pool, one rank each */
static UNUSED_OK void bed_init(struct bed *bed, uint64_t blocks)
{
	bed_make(bed, blocks * BLOCK_BYTES, 1, 100, 100, one_full);
}

static UNUSED_OK void bed_fini(struct bed *bed)
{
	oki_index_destroy(bed->index);
	oki_index_thread_leave();
	ck_assert_uint_eq(oki_pool_used(bed->pool), 0);
	oki_pool_destroy(bed->pool);
}

/* Keys of blocks [first, first + count) of a sequence; they last for 15 more calls. */
static UNUSED_OK const uint8_t *keys_of(uint32_t sequence, uint32_t first, uint32_t count)
{
	static uint8_t rows[16][MAX_KEYS * KEY_BYTES];
	static uint32_t turn;
	uint8_t *row = rows[turn++ % 16];
	for (uint32_t i = 0; i < count; i++) {
		uint32_t words[4] = {sequence, first + i, 0x5eed, 0};
		memcpy(row + (size_t)i * KEY_BYTES, words, KEY_BYTES);
	}
	return row;
}

/* ---- proofs, made the real way from a record ---- */

static UNUSED_OK struct oki_proof proof_drained(int32_t engine_status)
{
	struct okw_record record;
	struct oki_proof proof = {0};
	memset(&record, 0, sizeof(record));
	record.tag = OKI_TAG(1, OKW_DRAINED);
	record.engine_status = engine_status;
	ck_assert(oki_proof_drained(&record, OKI_TAG(1, OKW_DRAINED), &proof));
	return proof;
}

static UNUSED_OK struct oki_proof proof_ungranted(void)
{
	struct okw_record record;
	struct oki_proof proof = {0};
	memset(&record, 0, sizeof(record));
	record.tag = OKI_TAG(1, OKW_PREPARING);
	ck_assert(oki_proof_ungranted(&record, OKI_TAG(1, OKW_PREPARING), &proof));
	return proof;
}

static UNUSED_OK void seal(struct bed *bed, struct oki_hold *hold)
{
	struct oki_proof proof = proof_drained(0);
	oki_hold_release(bed->index, hold, &proof);
}

static UNUSED_OK uint64_t hold_count(const struct oki_hold *hold)
{
	uint64_t count = 0;
	oki_hold_blocks(hold, &count);
	return count;
}

/* ---- publish ---- */

static UNUSED_OK int begin(struct bed *bed, uint32_t rank, uint32_t group, uint32_t sequence,
			   uint32_t first, uint32_t count, struct oki_hold **ret_hold,
			   struct okw_stretch_reply *ret_counts)
{
	struct oki_index_publish_keys keys = {
		.keys = {group, count, KEY_BYTES, keys_of(sequence, first, count)},
		.first_position = first,
		.parent = first ? keys_of(sequence, first - 1, 1) : NULL,
	};
	struct oki_index_publish ask = {
		.namespace_id = bed->ns,
		.rank_slot = rank,
		.node = -1,
		.group_count = 1,
		.groups = &keys,
		.now_ns = bed->now,
	};
	return oki_index_publish_begin(bed->index, &ask, ret_hold, ret_counts, NULL);
}

/* Publish and seal blocks [first, first + count); returns how many were stored. */
static UNUSED_OK uint64_t put_in(struct bed *bed, uint32_t rank, uint32_t group, uint32_t sequence,
				 uint32_t first, uint32_t count)
{
	struct okw_stretch_reply counts;
	struct oki_hold *hold;
	if (begin(bed, rank, group, sequence, first, count, &hold, &counts) < 0)
		return 0;
	uint64_t stored = hold_count(hold);
	seal(bed, hold);
	return stored;
}

static UNUSED_OK uint64_t put(struct bed *bed, uint32_t sequence, uint32_t first, uint32_t count)
{
	return put_in(bed, 0, 0, sequence, first, count);
}

/* ---- lookup ---- */

static UNUSED_OK int find(struct bed *bed, uint32_t session, uint32_t sequence, uint32_t count,
			  struct okw_lookup_reply *ret_reply)
{
	struct oki_index_keys keys = {0, count, KEY_BYTES, keys_of(sequence, 0, count)};
	struct oki_index_lookup ask = {
		.namespace_id = bed->ns,
		.session = session,
		.consumers = 1,
		.group_count = 1,
		.groups = &keys,
		.now_ns = bed->now,
	};
	return oki_index_lookup(bed->index, &ask, ret_reply, NULL);
}

/* Leading blocks of a sequence that are usable, without touching them. */
static UNUSED_OK uint32_t peek_in(struct bed *bed, uint32_t ns, uint32_t sequence, uint32_t count)
{
	struct oki_index_keys keys = {0, count, KEY_BYTES, keys_of(sequence, 0, count)};
	struct oki_index_lookup ask = {
		.namespace_id = ns,
		.peek = true,
		.group_count = 1,
		.groups = &keys,
		.now_ns = bed->now,
	};
	struct okw_lookup_reply reply;
	ck_assert_int_eq(oki_index_lookup(bed->index, &ask, &reply, NULL), 0);
	ck_assert_uint_eq(reply.lease_slot, OKW_LEASES);
	return reply.groups[0].count;
}

static UNUSED_OK uint32_t peek(struct bed *bed, uint32_t sequence, uint32_t count)
{
	return peek_in(bed, bed->ns, sequence, count);
}

/* A lease on `count` blocks, all of which must be there. */
static UNUSED_OK struct okw_lookup_reply lease(struct bed *bed, uint32_t session, uint32_t sequence,
					       uint32_t count)
{
	struct okw_lookup_reply reply;
	ck_assert_int_eq(find(bed, session, sequence, count, &reply), 0);
	ck_assert_uint_eq(reply.groups[0].count, count);
	ck_assert_uint_lt(reply.lease_slot, OKW_LEASES);
	return reply;
}

/* Use a prefix: as a lookup and its release do. */
static UNUSED_OK void touch(struct bed *bed, uint32_t sequence, uint32_t count)
{
	struct okw_lookup_reply reply = lease(bed, 0, sequence, count);
	oki_index_lease_release(bed->index, 0, reply.lease_slot);
}

/* ---- restore ---- */

static UNUSED_OK int restore(struct bed *bed, uint32_t session, const struct okw_lookup_reply *from,
			     uint32_t first, uint32_t count, bool keep, struct oki_hold **ret_hold)
{
	struct oki_index_range range = {0, first, count, keep, from->lease_slot, from->lease_id};
	struct oki_index_restore ask = {
		.namespace_id = bed->ns,
		.session = session,
		.range_count = 1,
		.ranges = &range,
		.now_ns = bed->now,
	};
	struct okw_stretch_reply reply;
	uint32_t spent;
	return oki_index_restore_begin(bed->index, &ask, ret_hold, &reply, &spent, NULL);
}

static UNUSED_OK struct oki_index_stats stats(struct bed *bed)
{
	struct oki_index_stats now;
	oki_index_stats(bed->index, &now);
	return now;
}

#endif
