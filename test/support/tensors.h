/* SPDX-License-Identifier: Apache-2.0 */
/* What the layout tests share: any schema, layers anywhere in one mapping, and a byte oracle. */
#ifndef TEST_SUPPORT_TENSORS_H
#define TEST_SUPPORT_TENSORS_H

#include "support/kv.h"

#define KV_CANARY 0xc9u

/* Where the segments of a layer's page lie. */
enum kv_place {
	KV_PLACE_PAGES,	 /* a tensor per layer; a page holds its segments one after another */
	KV_PLACE_HALVES, /* a tensor per layer: segment 0 of all pages, then segment 1 of all, … */
	KV_PLACE_CROSS,	 /* a tensor per group: a page holds all its layers */
};

/* One rank's tensors inside one mapping. */
struct kv_tensors {
	const struct okv_group_schema *groups; /* borrowed */
	uint32_t group_count;
	uint32_t slot;
	uint8_t *memory;
	uint64_t bytes;
	struct okv_layer *layers; /* group after group */
	uint32_t layer_count;
	struct okv_namespace *ns; /* borrowed */
	struct okv_binding *binding;
};

/* Blocks [first, first + count) of one group of a sequence, and the pages they go to. */
struct kv_blocks {
	uint32_t group;
	uint32_t first;
	uint32_t count;
	const uint32_t *pages; /* count * pages per block */
};

/* A namespace of model "test" with these groups. */
struct okv_namespace *kv_groups_open(struct okv_engine *engine,
				     const struct okv_group_schema *groups, uint32_t group_count,
				     uint32_t rank_slots);

/* Map bytes that nothing touched yet; the caller fills in the layers. */
void kv_tensors_map(struct kv_tensors *t, const struct okv_group_schema *groups,
		    uint32_t group_count, uint32_t slot, uint64_t bytes);
/*
 * Map and lay out: pages[g] pages in group g, pages_per_block[g] to a block, pad canary bytes
 * after every segment and every layer. Everything is canary then.
 */
void kv_tensors_place(struct kv_tensors *t, const struct okv_group_schema *groups,
		      uint32_t group_count, uint32_t slot, enum kv_place place,
		      const uint32_t *pages, const uint32_t *pages_per_block, uint32_t pad);
int kv_tensors_register(struct kv_tensors *t, struct okv_namespace *ns, struct okv_error *err);
void kv_tensors_close(struct kv_tensors *t);

/* Pages that make one block of the group. */
uint32_t kv_tensors_per_block(const struct kv_tensors *t, uint32_t group);
/* Key of block i of a group; the same for all ranks. */
void kv_group_key(uint64_t seq, uint32_t group, uint32_t i, uint8_t key[KV_KEY_BYTES]);
/* count keys from block first on; free() them */
uint8_t *kv_group_keys(uint64_t seq, uint32_t group, uint32_t first, uint32_t count);

void kv_tensors_canary(struct kv_tensors *t);
void kv_tensors_fill(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b);
/* Bytes of these pages that are not these blocks: of all layers, or of one (by binding index). */
uint64_t kv_tensors_wrong(const struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b);
uint64_t kv_layer_wrong(const struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b,
			uint32_t layer);
/* Turn the payload of these pages to canary, then count the bytes of the mapping that are not. */
uint64_t kv_tensors_stray(struct kv_tensors *t, const struct kv_blocks *blocks, uint32_t n);

int kv_blocks_publish_start(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *blocks,
			    uint32_t n, struct okv_op **ret_op, struct okv_error *err);
/* fill, start, wait, release */
int kv_blocks_publish(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *blocks,
		      uint32_t n, struct okv_op_result *ret_result);
/* Ask for blocks [0, counts[g]) of groups 0 … n - 1; ret_lease NULL: peek. Returns the tokens. */
uint64_t kv_groups_lookup(struct okv_namespace *ns, uint64_t seq, const uint32_t *counts,
			  uint32_t n, uint32_t consumers, struct okv_lookup_result *ret_result,
			  struct okv_lease **ret_lease);
/* Block numbers are those of the sequence, as in publish. */
int kv_blocks_restore_start(struct kv_tensors *t, struct okv_lease *lease,
			    const struct kv_blocks *blocks, uint32_t n, uint32_t flags,
			    struct okv_op **ret_op, struct okv_error *err);
int kv_blocks_restore(struct kv_tensors *t, struct okv_lease *lease, const struct kv_blocks *blocks,
		      uint32_t n, struct okv_op_result *ret_result);

#endif
