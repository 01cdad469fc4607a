/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The paged KV cache of mini_engine, in host memory, and the keys of its blocks. */
#ifndef MINI_KV_H
#define MINI_KV_H

#include <stddef.h>
#include <stdint.h>

#define MINI_LAYERS 4u
#define MINI_KV_HEADS 2u
#define MINI_HEAD_DIM 32u
#define MINI_KV_DIM (MINI_KV_HEADS * MINI_HEAD_DIM)
#define MINI_BLOCK 16u /* tokens of a page, and of a block */

/* A page of a layer: K of its tokens, then V; each [token][head][dim]. */
#define MINI_SEGMENT_FLOATS ((size_t)MINI_BLOCK * MINI_KV_DIM)
#define MINI_SEGMENT_BYTES (MINI_SEGMENT_FLOATS * sizeof(float))
#define MINI_PAGE_BYTES (2 * MINI_SEGMENT_BYTES)
#define MINI_BLOCK_BYTES (MINI_LAYERS * MINI_PAGE_BYTES)

#define MINI_KEY_BYTES 32u
#define MINI_WIPED 0xa5 /* what pages hold before anyone wrote them */

struct mini_kv {
	float *layers[MINI_LAYERS]; /* page_count pages each */
	uint32_t *table; /* logical page (position / MINI_BLOCK) to page; a permutation */
	uint32_t page_count;
};

/** Room for this many tokens and a few pages more, wiped. -1 when memory runs out. */
int mini_kv_init(struct mini_kv *kv, uint32_t tokens);
void mini_kv_fini(struct mini_kv *kv);
size_t mini_kv_layer_bytes(const struct mini_kv *kv);

void mini_kv_wipe(struct mini_kv *kv);
/** Number the pages anew: order 0 maps page i to i, any other number maps none to itself. */
void mini_kv_renumber(struct mini_kv *kv, uint64_t order);

static inline float *mini_kv_k(const struct mini_kv *kv, uint32_t layer, uint32_t position)
{
	return kv->layers[layer] + kv->table[position / MINI_BLOCK] * 2 * MINI_SEGMENT_FLOATS +
	       (size_t)(position % MINI_BLOCK) * MINI_KV_DIM;
}

static inline float *mini_kv_v(const struct mini_kv *kv, uint32_t layer, uint32_t position)
{
	return mini_kv_k(kv, layer, position) + MINI_SEGMENT_FLOATS;
}

/** Bytes in which the first blocks differ, each cache read through its own page numbers. */
uint64_t mini_kv_differing(const struct mini_kv *a, const struct mini_kv *b, uint32_t blocks);
/** Bytes that are not wiped any more in pages behind the first used ones. */
uint64_t mini_kv_stray(const struct mini_kv *kv, uint32_t used);

/**
 * Keys of the first blocks: each hashes the key before it and the block's tokens, so that equal
 * keys mean equal prefixes. Good enough for an example; an engine uses its own block hashes.
 */
void mini_kv_keys(const uint8_t *tokens, uint32_t blocks, uint8_t *ret_keys);

/** The next number of a sequence that a nonzero state determines. */
uint64_t mini_random(uint64_t *state);

#endif
