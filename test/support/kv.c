/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests share: an engine with tensors whose every byte is known. */
#include "support/kv.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 4096u
#define CANARY 0xc9u
#define POISON 0x5au

#define DEFAULT(field, value) s->field = s->field ? s->field : (value)

static void defaults(struct kv_shape *s)
{
	DEFAULT(layers, 4);
	DEFAULT(segments, 2);
	DEFAULT(segment_bytes, 256);
	DEFAULT(pages, 64);
	DEFAULT(pages_per_block, 1);
	DEFAULT(block_tokens, 16);
	DEFAULT(rank_slots, 1);
	DEFAULT(layout_tag, "NHD");
}

struct okv_engine *kv_engine_embedded(uint64_t memory, uint32_t flags)
{
	struct okv_manager_options m;
	okv_manager_options_init(&m);
	m.memory_bytes = memory ? memory : 16u << 20;
	m.numa = OKV_NUMA_OFF;
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED | flags;
	o.embedded = &m;
	struct okv_engine *engine = NULL;
	kv_ok(okv_engine_open(&o, &engine, kv_err));
	return engine;
}

struct okv_engine *kv_engine_connect(const char *socket_path, uint32_t flags)
{
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.flags = flags;
	o.socket_path = socket_path;
	struct okv_engine *engine = NULL;
	kv_ok(okv_engine_open(&o, &engine, kv_err));
	return engine;
}

struct okv_namespace *kv_namespace(struct okv_engine *engine, const struct kv_shape *shape)
{
	struct kv_shape s = *shape;
	defaults(&s);
	struct okv_layer_schema *layers = calloc(s.layers, sizeof(*layers));
	for (uint32_t i = 0; i < s.layers; i++) {
		layers[i].order = i;
		layers[i].segment_count = s.segments;
		for (uint32_t j = 0; j < s.segments; j++)
			layers[i].segment_bytes[j] = (uint64_t)s.segment_bytes * s.pages_per_block;
	}
	struct okv_group_schema group = {
		.kind = OKV_GROUP_FULL,
		.block_tokens = s.block_tokens,
		.layer_count = s.layers,
		.layout_tag = s.layout_tag,
		.layers = layers,
	};
	struct okv_namespace_options o;
	okv_namespace_options_init(&o);
	o.model = "test";
	o.salt = s.salt;
	o.rank_slots = s.rank_slots;
	o.group_count = 1;
	o.groups = &group;
	struct okv_namespace *ns = NULL;
	kv_ok(okv_namespace_open(engine, &o, &ns, kv_err));
	free(layers);
	return ns;
}

static uint64_t page_stride(const struct kv_shape *s)
{
	return (uint64_t)s->segments * (s->segment_bytes + s->page_pad);
}

void kv_rank_init(struct kv_rank *rank, const struct kv_shape *shape, uint32_t slot)
{
	memset(rank, 0, sizeof(*rank));
	rank->shape = *shape;
	defaults(&rank->shape);
	rank->slot = slot;
	const struct kv_shape *s = &rank->shape;
	uint64_t tensor = page_stride(s) * s->pages;
	rank->memory_bytes = MARGIN + s->layers * (tensor + MARGIN);
	rank->memory = malloc(rank->memory_bytes);
	rank->layers = calloc(s->layers, sizeof(*rank->layers));
	ck_assert(rank->memory && rank->layers);
	memset(rank->memory, CANARY, rank->memory_bytes);
	for (uint32_t i = 0; i < s->layers; i++) {
		struct okv_layer *l = &rank->layers[i];
		l->base = rank->memory + MARGIN + i * (tensor + MARGIN);
		l->length = tensor;
		l->page_stride = page_stride(s);
		l->page_count = s->pages;
		l->segment_count = s->segments;
		for (uint32_t j = 0; j < s->segments; j++) {
			l->segment_offset[j] = j * (uint64_t)(s->segment_bytes + s->page_pad);
			l->segment_bytes[j] = s->segment_bytes;
		}
	}
	kv_poison(rank);
}

int kv_rank_register(struct kv_rank *rank, struct okv_namespace *ns, struct okv_error *err)
{
	struct okv_binding_options o;
	okv_binding_options_init(&o);
	o.rank_slot = rank->slot;
	o.layer_count = rank->shape.layers;
	o.layers = rank->layers;
	o.copy_threads = 2;
	rank->ns = ns;
	return okv_binding_register(ns, &o, &rank->binding, err);
}

void kv_rank_open(struct kv_rank *rank, struct okv_namespace *ns, const struct kv_shape *shape,
		  uint32_t slot)
{
	kv_rank_init(rank, shape, slot);
	kv_ok(kv_rank_register(rank, ns, kv_err));
}

void kv_rank_close(struct kv_rank *rank)
{
	okv_binding_unregister(rank->binding);
	free(rank->layers);
	free(rank->memory);
	memset(rank, 0, sizeof(*rank));
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

void kv_key(uint64_t seq, uint32_t i, uint8_t key[KV_KEY_BYTES])
{
	uint64_t a = mix(seq * 0x9e3779b97f4a7c15ull + i + 1), b = mix(a ^ seq);
	memcpy(key, &a, 8);
	memcpy(key + 8, &b, 8);
}

uint8_t *kv_keys(uint64_t seq, uint32_t first, uint32_t count)
{
	uint8_t *keys = malloc((size_t)count * KV_KEY_BYTES + 1);
	ck_assert(keys != NULL);
	for (uint32_t i = 0; i < count; i++)
		kv_key(seq, first + i, keys + (size_t)i * KV_KEY_BYTES);
	return keys;
}

uint8_t kv_byte(const uint8_t key[KV_KEY_BYTES], uint32_t slot, uint32_t layer, uint32_t segment,
		uint64_t offset)
{
	uint64_t k;
	memcpy(&k, key, 8);
	uint64_t where = (uint64_t)slot << 48 | (uint64_t)layer << 32 | segment;
	return (uint8_t)(mix(k ^ mix(where) ^ (offset / 8) * 0x9e3779b97f4a7c15ull) >>
			 (offset % 8 * 8));
}

static uint8_t *segment_at(const struct kv_rank *rank, uint32_t layer, uint32_t segment,
			   uint32_t page)
{
	const struct okv_layer *l = &rank->layers[layer];
	ck_assert_uint_lt(page, l->page_count);
	return (uint8_t *)l->base + page * l->page_stride + l->segment_offset[segment];
}

void kv_fill(struct kv_rank *rank, uint64_t seq, uint32_t i, const uint32_t *pages)
{
	const struct kv_shape *s = &rank->shape;
	uint8_t key[KV_KEY_BYTES];
	kv_key(seq, i, key);
	for (uint32_t p = 0; p < s->pages_per_block; p++)
		for (uint32_t layer = 0; layer < s->layers; layer++)
			for (uint32_t seg = 0; seg < s->segments; seg++) {
				uint8_t *at = segment_at(rank, layer, seg, pages[p]);
				for (uint32_t o = 0; o < s->segment_bytes; o++)
					at[o] = kv_byte(key, rank->slot, layer, seg,
							(uint64_t)p * s->segment_bytes + o);
			}
}

uint64_t kv_wrong(const struct kv_rank *rank, uint64_t seq, uint32_t i, const uint32_t *pages)
{
	const struct kv_shape *s = &rank->shape;
	uint8_t key[KV_KEY_BYTES];
	uint64_t wrong = 0;
	kv_key(seq, i, key);
	for (uint32_t p = 0; p < s->pages_per_block; p++)
		for (uint32_t layer = 0; layer < s->layers; layer++)
			for (uint32_t seg = 0; seg < s->segments; seg++) {
				const uint8_t *at = segment_at(rank, layer, seg, pages[p]);
				for (uint32_t o = 0; o < s->segment_bytes; o++)
					wrong += at[o] !=
						 kv_byte(key, rank->slot, layer, seg,
							 (uint64_t)p * s->segment_bytes + o);
			}
	return wrong;
}

void kv_poison(struct kv_rank *rank)
{
	const struct kv_shape *s = &rank->shape;
	for (uint32_t page = 0; page < s->pages; page++)
		for (uint32_t layer = 0; layer < s->layers; layer++)
			for (uint32_t seg = 0; seg < s->segments; seg++)
				memset(segment_at(rank, layer, seg, page), POISON,
				       s->segment_bytes);
}

uint64_t kv_touched(const struct kv_rank *rank, uint32_t page)
{
	const struct kv_shape *s = &rank->shape;
	uint64_t touched = 0;
	for (uint32_t layer = 0; layer < s->layers; layer++)
		for (uint32_t seg = 0; seg < s->segments; seg++) {
			const uint8_t *at = segment_at(rank, layer, seg, page);
			for (uint32_t o = 0; o < s->segment_bytes; o++)
				touched += at[o] != POISON;
		}
	return touched;
}

uint64_t kv_canaries_broken(const struct kv_rank *rank)
{
	const struct kv_shape *s = &rank->shape;
	uint8_t *payload = calloc(rank->memory_bytes, 1);
	ck_assert(payload != NULL);
	for (uint32_t page = 0; page < s->pages; page++)
		for (uint32_t layer = 0; layer < s->layers; layer++)
			for (uint32_t seg = 0; seg < s->segments; seg++)
				memset(payload +
					       (segment_at(rank, layer, seg, page) - rank->memory),
				       1, s->segment_bytes);
	uint64_t broken = 0;
	for (uint64_t i = 0; i < rank->memory_bytes; i++)
		broken += !payload[i] && rank->memory[i] != CANARY;
	free(payload);
	return broken;
}
