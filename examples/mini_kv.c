/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Pages, page numbers, and block keys. */
#include "mini_kv.h"

#include <stdlib.h>
#include <string.h>

uint64_t mini_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 0x2545f4914f6cdd1dull;
}

size_t mini_kv_layer_bytes(const struct mini_kv *kv)
{
	return kv->page_count * MINI_PAGE_BYTES;
}

int mini_kv_init(struct mini_kv *kv, uint32_t tokens)
{
	uint32_t needed = (tokens + MINI_BLOCK - 1) / MINI_BLOCK;

	memset(kv, 0, sizeof(*kv));
	kv->page_count = needed + needed / 4 + 4;
	kv->table = calloc(kv->page_count, sizeof(*kv->table));
	if (!kv->table)
		goto fail;
	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		kv->layers[l] = aligned_alloc(4096, mini_kv_layer_bytes(kv));
		if (!kv->layers[l])
			goto fail;
	}
	mini_kv_wipe(kv);
	mini_kv_renumber(kv, 0);
	return 0;

fail:
	mini_kv_fini(kv);
	return -1;
}

void mini_kv_fini(struct mini_kv *kv)
{
	for (uint32_t l = 0; l < MINI_LAYERS; l++)
		free(kv->layers[l]);
	free(kv->table);
	memset(kv, 0, sizeof(*kv));
}

void mini_kv_wipe(struct mini_kv *kv)
{
	for (uint32_t l = 0; l < MINI_LAYERS; l++)
		memset(kv->layers[l], MINI_WIPED, mini_kv_layer_bytes(kv));
}

void mini_kv_renumber(struct mini_kv *kv, uint64_t order)
{
	uint64_t state = order * 0x9e3779b97f4a7c15ull | 1;

	for (uint32_t i = 0; i < kv->page_count; i++)
		kv->table[i] = i;
	if (!order)
		return;
	/* Never j = left - 1: all pages become one cycle, in which none stays where it was. */
	for (uint32_t left = kv->page_count; left > 1; left--) {
		uint32_t j = (uint32_t)((mini_random(&state) >> 32) % (left - 1));
		uint32_t page = kv->table[left - 1];

		kv->table[left - 1] = kv->table[j];
		kv->table[j] = page;
	}
}

uint64_t mini_kv_differing(const struct mini_kv *a, const struct mini_kv *b, uint32_t blocks)
{
	uint64_t differing = 0;

	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		for (uint32_t block = 0; block < blocks; block++) {
			const uint8_t *pa = (const uint8_t *)mini_kv_k(a, l, block * MINI_BLOCK);
			const uint8_t *pb = (const uint8_t *)mini_kv_k(b, l, block * MINI_BLOCK);

			for (size_t i = 0; i < MINI_PAGE_BYTES; i++)
				differing += pa[i] != pb[i];
		}
	}
	return differing;
}

uint64_t mini_kv_stray(const struct mini_kv *kv, uint32_t used)
{
	uint64_t stray = 0;

	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		for (uint32_t page = used; page < kv->page_count; page++) {
			const uint8_t *p = (const uint8_t *)mini_kv_k(kv, l, page * MINI_BLOCK);

			for (size_t i = 0; i < MINI_PAGE_BYTES; i++)
				stray += p[i] != MINI_WIPED;
		}
	}
	return stray;
}

/* FNV-1a over both parts, then a murmur finish, so that every input bit reaches every output. */
static uint64_t mix(uint64_t seed, const uint8_t *parent, const uint8_t *tokens)
{
	uint64_t h = 0xcbf29ce484222325ull ^ seed;

	for (uint32_t i = 0; i < MINI_KEY_BYTES; i++)
		h = (h ^ parent[i]) * 0x100000001b3ull;
	for (uint32_t i = 0; i < MINI_BLOCK; i++)
		h = (h ^ tokens[i]) * 0x100000001b3ull;
	h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
	return h ^ h >> 33;
}

void mini_kv_keys(const uint8_t *tokens, uint32_t blocks, uint8_t *ret_keys)
{
	static const uint64_t seeds[MINI_KEY_BYTES / 8] = {
		0x9e3779b97f4a7c15ull,
		0xbf58476d1ce4e5b9ull,
		0x94d049bb133111ebull,
		0xd6e8feb86659fd93ull,
	};
	static const uint8_t start[MINI_KEY_BYTES];
	const uint8_t *parent = start;

	for (uint32_t block = 0; block < blocks; block++) {
		uint8_t *key = ret_keys + (size_t)block * MINI_KEY_BYTES;

		for (uint32_t i = 0; i < MINI_KEY_BYTES / 8; i++) {
			uint64_t h = mix(seeds[i], parent, tokens + (size_t)block * MINI_BLOCK);

			memcpy(key + (size_t)i * 8, &h, 8);
		}
		parent = key;
	}
}
