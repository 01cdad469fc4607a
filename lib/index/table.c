/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The hash table from keys to blocks (liburcu), read without a lock. */
#include "index/index_private.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ThreadSanitizer is told about the end of read sections with this address; never written. */
static char grace;

void oki_read_unlock(void)
{
	OKI_ORDER_RELEASE(&grace);
	rcu_read_unlock();
}

uint64_t oki_key_hash(const struct oki_index *index, const struct oki_key *key)
{
	uint8_t buf[8 + OKW_MAX_KEY_BYTES];
	uint32_t head[2] = {key->content, key->group << 8 | key->bytes};

	memcpy(buf, head, sizeof(head));
	memcpy(buf + sizeof(head), key->data, key->bytes);
	return XXH3_64bits_withSeed(buf, sizeof(head) + key->bytes, index->seed);
}

bool oki_block_has_key(const struct oki_block *block, const struct oki_key *key)
{
	return block->content == key->content && block->group == key->group &&
	       block->key_bytes == key->bytes && memcmp(block->key, key->data, key->bytes) == 0;
}

static int key_matches(struct cds_lfht_node *node, const void *arg)
{
	OKI_ORDER_ACQUIRE(node);
	return oki_block_has_key(caa_container_of(node, struct oki_block, node), arg);
}

/* The table has compared the hashes already. That is enough, since the parent is only a hint. */
static int sequence_matches(struct cds_lfht_node *node, const void *arg)
{
	const struct oki_block *block = caa_container_of(node, struct oki_block, node);
	const struct oki_block *child = arg;

	OKI_ORDER_ACQUIRE(node);
	return block->content == child->content && block->group == child->group;
}

static struct oki_block *find(struct oki_index *index, uint64_t hash, cds_lfht_match_fct match,
			      const void *arg)
{
	struct cds_lfht_iter iter;

	cds_lfht_lookup(index->table, hash, match, arg, &iter);
	struct cds_lfht_node *node = cds_lfht_iter_get_node(&iter);
	return node ? caa_container_of(node, struct oki_block, node) : NULL;
}

void oki_table_find(struct oki_index *index, const struct oki_key *first, uint32_t count,
		    uint64_t *ret_hashes, struct oki_block **ret_blocks)
{
	struct oki_key key = *first;

	for (uint32_t i = 0; i < count; i++, key.data += key.bytes)
		ret_hashes[i] = oki_key_hash(index, &key);
	/* Searches follow each other directly, so that the CPU overlaps their cache misses. */
	key.data = first->data;
	for (uint32_t i = 0; i < count; i++, key.data += key.bytes)
		ret_blocks[i] = find(index, ret_hashes[i], key_matches, &key);
}

static bool is_parent(const struct oki_index *index, const struct oki_block *parent,
		      const struct oki_block *block)
{
	struct oki_key key = {parent->content, parent->group, parent->key_bytes, parent->key};

	return parent->content == block->content && parent->group == block->group &&
	       oki_key_hash(index, &key) == block->parent;
}

struct oki_block *oki_table_parent(struct oki_index *index, const struct oki_block *block,
				   struct oki_block *likely)
{
	if (!block->parent)
		return NULL;
	/* Hashing a key costs much less than the cache misses of a search. */
	if (likely && is_parent(index, likely, block))
		return likely;
	return find(index, block->parent, sequence_matches, block);
}

/* Usually reuses the memory of an evicted block. */
static struct oki_block *new_block(struct oki_index *index, uint32_t slot_count)
{
	if (!index->spare_blocks)
		index->spare_blocks = atomic_exchange(&index->returned, NULL);
	struct oki_block *block = index->spare_blocks;
	if (!block)
		return calloc(1, OKI_BLOCK_BYTES(slot_count));
	index->spare_blocks = block->next;
	index->spare_block_count--;
	if (block->slot_count == slot_count)
		return memset(block, 0, OKI_BLOCK_BYTES(slot_count));
	free(block);
	return calloc(1, OKI_BLOCK_BYTES(slot_count));
}

static void push_spare(struct oki_index *index, struct oki_block *block)
{
	block->next = index->spare_blocks;
	index->spare_blocks = block;
	index->spare_block_count++;
}

struct oki_block *oki_table_add(struct oki_index *index, uint64_t hash, const struct oki_key *key,
				uint32_t slot_count)
{
	struct oki_block *block = new_block(index, slot_count);
	if (!block)
		return NULL;
	block->content = key->content;
	block->group = (uint8_t)key->group;
	block->key_bytes = (uint8_t)key->bytes;
	block->slot_count = (uint8_t)slot_count;
	memcpy(block->key, key->data, key->bytes);
	/* G7: the key is complete before the block can be found. */
	OKI_ORDER_RELEASE(&block->node);
	struct cds_lfht_node *there =
		cds_lfht_add_unique(index->table, hash, key_matches, key, &block->node);
	if (there != &block->node) {
		push_spare(index, block);
		return caa_container_of(there, struct oki_block, node);
	}
	index->blocks++;
	index->blocks_partial++;
	return block;
}

static void free_chain(struct oki_block *block)
{
	while (block) {
		struct oki_block *next = block->next;
		free(block);
		block = next;
	}
}

static void free_gone(struct rcu_head *head)
{
	OKI_ORDER_ACQUIRE(&grace);
	free_chain(caa_container_of(head, struct oki_block, gone.rcu));
}

static void return_gone(struct rcu_head *head)
{
	OKI_ORDER_ACQUIRE(&grace);
	struct oki_block *first = caa_container_of(head, struct oki_block, gone.rcu);
	struct oki_block *last = first->gone.last;
	struct oki_block *_Atomic *returned = &first->gone.index->returned;

	/* No ABA problem: the list is only ever taken whole. */
	last->next = atomic_load(returned);
	while (!atomic_compare_exchange_weak(returned, &last->next, first))
		;
}

void oki_table_remove(struct oki_index *index, struct oki_block *block)
{
	cds_lfht_del(index->table, &block->node);
	index->blocks--;
	if (!oki_block_usable(block))
		index->blocks_partial--;
	struct oki_block *last = index->gone ? index->gone->gone.last : block;
	block->next = index->gone;
	block->gone.last = last;
	index->gone = block;
	index->gone_count++;
}

void oki_table_reclaim(struct oki_index *index)
{
	struct oki_block *first = index->gone;
	bool keep = index->spare_block_count + index->gone_count <= OKI_SPARE_BLOCKS;

	if (keep)
		index->spare_block_count += index->gone_count;
	index->gone = NULL;
	index->gone_count = 0;
	first->gone.index = index;
	/* G7: freed or used again only after every reader that could see one has left. */
	OKI_ORDER_RELEASE(&grace);
	call_rcu(&first->gone.rcu, keep ? return_gone : free_gone);
}

void oki_table_fini(struct oki_index *index)
{
	free_chain(index->spare_blocks);
	free_chain(atomic_load(&index->returned));
}
