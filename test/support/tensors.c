/* SPDX-License-Identifier: Apache-2.0 */
/* Any schema, layers anywhere in one mapping, and a byte oracle. */
#include "support/tensors.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MARGIN 512u

struct okv_namespace *kv_groups_open(struct okv_engine *engine,
				     const struct okv_group_schema *groups, uint32_t group_count,
				     uint32_t rank_slots)
{
	struct okv_namespace_options o;
	okv_namespace_options_init(&o);
	o.model = "test";
	o.rank_slots = rank_slots;
	o.group_count = group_count;
	o.groups = groups;
	struct okv_namespace *ns = NULL;
	kv_ok(okv_namespace_open(engine, &o, &ns, kv_err));
	return ns;
}

void kv_tensors_map(struct kv_tensors *t, const struct okv_group_schema *groups,
		    uint32_t group_count, uint32_t slot, uint64_t bytes)
{
	memset(t, 0, sizeof(*t));
	t->groups = groups;
	t->group_count = group_count;
	t->slot = slot;
	t->bytes = bytes;
	for (uint32_t g = 0; g < group_count; g++)
		t->layer_count += groups[g].layer_count;
	t->layers = calloc(t->layer_count, sizeof(*t->layers));
	t->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ck_assert(t->layers && t->memory != MAP_FAILED);
}

static void place_layer(struct okv_layer *l, const struct okv_layer_schema *known,
			enum kv_place place, uint32_t pages, uint32_t per_block, uint32_t pad)
{
	uint64_t at = 0;
	l->page_count = pages;
	l->segment_count = known->segment_count;
	for (uint32_t s = 0; s < known->segment_count; s++) {
		uint64_t bytes = known->segment_bytes[s] / per_block;
		ck_assert_uint_eq(known->segment_bytes[s] % per_block, 0);
		l->segment_bytes[s] = bytes;
		l->segment_offset[s] = at;
		if (place == KV_PLACE_HALVES) {
			/* One stride for all halves: that of the widest segment. */
			uint64_t widest = 0;
			for (uint32_t i = 0; i < known->segment_count; i++)
				if (known->segment_bytes[i] > widest)
					widest = known->segment_bytes[i];
			l->page_stride = widest / per_block + pad;
			at += pages * l->page_stride;
		} else {
			at += bytes + pad;
		}
	}
	if (place != KV_PLACE_HALVES)
		l->page_stride = at;
	l->length = place == KV_PLACE_HALVES ? at : at * pages;
}

/* Layers of one group from offset at; their bases are offsets. Returns where they end. */
static uint64_t place_group(struct okv_layer *layers, const struct okv_group_schema *group,
			    enum kv_place place, uint32_t pages, uint32_t per_block, uint32_t pad,
			    uint64_t at)
{
	uint64_t row = 0;
	for (uint32_t i = 0; i < group->layer_count; i++) {
		place_layer(&layers[i], &group->layers[i], place, pages, per_block, pad);
		layers[i].base = (void *)(uintptr_t)(place == KV_PLACE_CROSS ? at + row : at);
		row += layers[i].page_stride;
		if (place != KV_PLACE_CROSS)
			at += layers[i].length + MARGIN;
	}
	if (place != KV_PLACE_CROSS)
		return at;
	for (uint32_t i = 0; i < group->layer_count; i++) {
		layers[i].length = row * (pages - 1) + layers[i].page_stride;
		layers[i].page_stride = row;
	}
	return at + row * pages + MARGIN;
}

void kv_tensors_place(struct kv_tensors *t, const struct okv_group_schema *groups,
		      uint32_t group_count, uint32_t slot, enum kv_place place,
		      const uint32_t *pages, const uint32_t *pages_per_block, uint32_t pad)
{
	uint64_t at = MARGIN;
	uint32_t layer = 0;
	struct okv_layer *layers = calloc(OKV_MAX_LAYERS, sizeof(*layers));
	ck_assert(layers != NULL);
	for (uint32_t g = 0; g < group_count; g++) {
		at = place_group(layers + layer, &groups[g], place, pages[g], pages_per_block[g],
				 pad, at);
		layer += groups[g].layer_count;
	}
	kv_tensors_map(t, groups, group_count, slot, at);
	for (uint32_t i = 0; i < layer; i++) {
		t->layers[i] = layers[i];
		t->layers[i].base = t->memory + (uintptr_t)layers[i].base;
	}
	free(layers);
	kv_tensors_canary(t);
}

int kv_tensors_register(struct kv_tensors *t, struct okv_namespace *ns, struct okv_error *err)
{
	struct okv_binding_options o;
	okv_binding_options_init(&o);
	o.rank_slot = t->slot;
	o.layer_count = t->layer_count;
	o.layers = t->layers;
	o.copy_threads = 2;
	t->ns = ns;
	return okv_binding_register(ns, &o, &t->binding, err);
}

void kv_tensors_close(struct kv_tensors *t)
{
	okv_binding_unregister(t->binding);
	munmap(t->memory, t->bytes);
	free(t->layers);
	memset(t, 0, sizeof(*t));
}

static uint32_t first_layer(const struct kv_tensors *t, uint32_t group)
{
	uint32_t first = 0;
	for (uint32_t g = 0; g < group; g++)
		first += t->groups[g].layer_count;
	return first;
}

uint32_t kv_tensors_per_block(const struct kv_tensors *t, uint32_t group)
{
	const struct okv_layer *l = &t->layers[first_layer(t, group)];
	return (uint32_t)(t->groups[group].layers[0].segment_bytes[0] / l->segment_bytes[0]);
}

void kv_group_key(uint64_t seq, uint32_t group, uint32_t i, uint8_t key[KV_KEY_BYTES])
{
	kv_key(seq << 8 | group, i, key);
}

uint8_t *kv_group_keys(uint64_t seq, uint32_t group, uint32_t first, uint32_t count)
{
	return kv_keys(seq << 8 | group, first, count);
}

void kv_tensors_canary(struct kv_tensors *t)
{
	memset(t->memory, KV_CANARY, t->bytes);
}

/* What to do with each payload row of some blocks. */
enum walk { WALK_FILL, WALK_COUNT_WRONG, WALK_WIPE };

static uint64_t walk_row(const struct kv_tensors *t, enum walk walk, const uint8_t *key,
			 uint32_t layer, uint32_t seg, uint32_t part, uint32_t page)
{
	const struct okv_layer *l = &t->layers[layer];
	uint64_t n = l->segment_bytes[seg], wrong = 0;
	uint8_t *at = (uint8_t *)l->base + page * l->page_stride + l->segment_offset[seg];
	ck_assert_uint_lt(page, l->page_count);
	if (walk == WALK_WIPE)
		memset(at, KV_CANARY, n);
	for (uint64_t o = 0; o < n && walk != WALK_WIPE; o++) {
		uint8_t want = kv_byte(key, t->slot, layer, seg, part * n + o);
		if (walk == WALK_FILL)
			at[o] = want;
		else
			wrong += at[o] != want;
	}
	return wrong;
}

/* layer UINT32_MAX: all of the group */
static uint64_t walk_blocks(const struct kv_tensors *t, enum walk walk, uint64_t seq,
			    const struct kv_blocks *b, uint32_t only)
{
	uint32_t first = first_layer(t, b->group), per_block = kv_tensors_per_block(t, b->group);
	uint64_t wrong = 0;
	for (uint32_t i = 0; i < b->count; i++) {
		uint8_t key[KV_KEY_BYTES];
		kv_group_key(seq, b->group, b->first + i, key);
		for (uint32_t k = 0; k < t->groups[b->group].layer_count; k++) {
			uint32_t layer = first + k;
			if (only != UINT32_MAX && only != layer)
				continue;
			for (uint32_t s = 0; s < t->layers[layer].segment_count; s++)
				for (uint32_t p = 0; p < per_block; p++)
					wrong += walk_row(t, walk, key, layer, s, p,
							  b->pages[i * per_block + p]);
		}
	}
	return wrong;
}

void kv_tensors_fill(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b)
{
	walk_blocks(t, WALK_FILL, seq, b, UINT32_MAX);
}

uint64_t kv_tensors_wrong(const struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b)
{
	return walk_blocks(t, WALK_COUNT_WRONG, seq, b, UINT32_MAX);
}

uint64_t kv_layer_wrong(const struct kv_tensors *t, uint64_t seq, const struct kv_blocks *b,
			uint32_t layer)
{
	return walk_blocks(t, WALK_COUNT_WRONG, seq, b, layer);
}

uint64_t kv_tensors_stray(struct kv_tensors *t, const struct kv_blocks *blocks, uint32_t n)
{
	uint64_t stray = 0;
	for (uint32_t i = 0; i < n; i++)
		walk_blocks(t, WALK_WIPE, 0, &blocks[i], UINT32_MAX);
	for (uint64_t i = 0; i < t->bytes; i++)
		stray += t->memory[i] != KV_CANARY;
	return stray;
}

int kv_blocks_publish_start(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *blocks,
			    uint32_t n, struct okv_op **ret_op, struct okv_error *err)
{
	struct okv_publish_group g[OKV_MAX_GROUPS] = {{.first_position = 0}};
	uint8_t *keys[OKV_MAX_GROUPS], parents[OKV_MAX_GROUPS][KV_KEY_BYTES];
	for (uint32_t i = 0; i < n; i++) {
		const struct kv_blocks *b = &blocks[i];
		keys[i] = kv_group_keys(seq, b->group, b->first, b->count);
		if (b->first)
			kv_group_key(seq, b->group, b->first - 1, parents[i]);
		g[i] = (struct okv_publish_group){
			.keys = {.group = b->group,
				 .count = b->count,
				 .key_bytes = KV_KEY_BYTES,
				 .keys = keys[i]},
			.first_position = b->first,
			.tokens = b->count * t->groups[b->group].block_tokens,
			.parent = b->first ? parents[i] : NULL,
			.pages = b->pages,
		};
	}
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.group_count = n;
	o.groups = g;
	int rc = okv_publish_start(t->binding, &o, ret_op, err);
	for (uint32_t i = 0; i < n; i++)
		free(keys[i]);
	return rc;
}

int kv_blocks_publish(struct kv_tensors *t, uint64_t seq, const struct kv_blocks *blocks,
		      uint32_t n, struct okv_op_result *ret_result)
{
	struct okv_op *op;
	for (uint32_t i = 0; i < n; i++)
		kv_tensors_fill(t, seq, &blocks[i]);
	kv_ok(kv_blocks_publish_start(t, seq, blocks, n, &op, kv_err));
	int rc = okv_op_wait(op, 60000, ret_result);
	okv_op_release(op);
	return rc;
}

uint64_t kv_groups_lookup(struct okv_namespace *ns, uint64_t seq, const uint32_t *counts,
			  uint32_t n, uint32_t consumers, struct okv_lookup_result *ret_result,
			  struct okv_lease **ret_lease)
{
	struct okv_keys k[OKV_MAX_GROUPS] = {{.group = 0}};
	uint8_t *keys[OKV_MAX_GROUPS];
	struct okv_lookup_result result;
	for (uint32_t g = 0; g < n; g++) {
		keys[g] = kv_group_keys(seq, g, 0, counts[g]);
		k[g] = (struct okv_keys){
			.group = g, .count = counts[g], .key_bytes = KV_KEY_BYTES, .keys = keys[g]};
	}
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.flags = ret_lease ? 0 : OKV_LOOKUP_PEEK;
	o.consumers = consumers;
	o.group_count = n;
	o.groups = k;
	o.timeout_ms = 60000;
	kv_ok(okv_lookup(ns, &o, &result, ret_lease, kv_err));
	for (uint32_t g = 0; g < n; g++)
		free(keys[g]);
	ck_assert_uint_eq(result.group_count, n);
	if (ret_result)
		*ret_result = result;
	return result.tokens;
}

int kv_blocks_restore_start(struct kv_tensors *t, struct okv_lease *lease,
			    const struct kv_blocks *blocks, uint32_t n, uint32_t flags,
			    struct okv_op **ret_op, struct okv_error *err)
{
	struct okv_restore_group g[OKV_MAX_GROUPS] = {{.group = 0}};
	for (uint32_t i = 0; i < n; i++)
		g[i] = (struct okv_restore_group){.group = blocks[i].group,
						  .first = blocks[i].first,
						  .count = blocks[i].count,
						  .pages = blocks[i].pages};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.flags = flags;
	o.group_count = n;
	o.groups = g;
	return okv_restore_start(t->binding, lease, &o, ret_op, err);
}

int kv_blocks_restore(struct kv_tensors *t, struct okv_lease *lease, const struct kv_blocks *blocks,
		      uint32_t n, struct okv_op_result *ret_result)
{
	struct okv_op *op;
	kv_ok(kv_blocks_restore_start(t, lease, blocks, n, 0, &op, kv_err));
	int rc = okv_op_wait(op, 60000, ret_result);
	okv_op_release(op);
	return rc;
}
