/* SPDX-License-Identifier: Apache-2.0 */
/* Many requests in one operation: stretches, leases, pages and a byte oracle. */
#include "support/step.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct okv_layer_schema full_layers[2] = {
	{.order = 0, .segment_count = 2, .segment_bytes = {2048, 2048}},
	{.order = 2, .segment_count = 2, .segment_bytes = {2048, 2048}},
};
static const struct okv_layer_schema window_layers[1] = {
	{.order = 1, .segment_count = 1, .segment_bytes = {1024}},
};

const struct okv_group_schema kv_step_groups[2] = {
	{.kind = OKV_GROUP_FULL,
	 .block_tokens = 16,
	 .layer_count = 2,
	 .layout_tag = "NHD",
	 .layers = full_layers},
	{.kind = OKV_GROUP_WINDOW,
	 .block_tokens = 16,
	 .window_tokens = 16 * KV_STEP_WINDOW,
	 .layer_count = 1,
	 .layout_tag = "NHD",
	 .layers = window_layers},
};

static const uint32_t group_blocks[2] = {KV_STEP_BLOCKS, KV_STEP_WINDOW};

void kv_step_tensors(struct kv_tensors *t, struct okv_namespace *ns, uint32_t requests)
{
	const uint32_t pages[2] = {requests * KV_STEP_BLOCKS + 1, requests * KV_STEP_WINDOW + 1};
	const uint32_t per_block[2] = {1, 1};
	kv_tensors_place(t, kv_step_groups, 2, 0, KV_PLACE_HALVES, pages, per_block, 64);
	kv_ok(kv_tensors_register(t, ns, kv_err));
}

struct kv_blocks kv_step_blocks(const struct kv_step *s, uint32_t request, uint32_t group)
{
	return (struct kv_blocks){.group = group,
				  .first = KV_STEP_BLOCKS - group_blocks[group],
				  .count = group_blocks[group],
				  .pages = s->pages[group] + request * group_blocks[group]};
}

/* `n` different pages below n, in an order of their own. */
static uint32_t *scatter(uint32_t n, uint32_t shuffle)
{
	uint32_t *pages = malloc(n * sizeof(*pages));
	uint64_t random = shuffle + 1;
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i;
	for (uint32_t i = n; i > 1; i--) {
		random = random * 6364136223846793005ull + 1442695040888963407ull;
		uint32_t k = (uint32_t)(random >> 33) % i, page = pages[k];
		pages[k] = pages[i - 1];
		pages[i - 1] = page;
	}
	return pages;
}

static void set_stretch(struct kv_step *s, uint32_t r, uint32_t g, uint8_t *keys)
{
	const struct kv_blocks b = kv_step_blocks(s, r, g);
	/* One key more, in front: the parent of the first. */
	for (uint32_t i = 0; i <= b.count; i++)
		if (b.first + i > 0)
			kv_group_key(s->seq + r, g, b.first + i - 1,
				     keys + (size_t)i * KV_KEY_BYTES);
	s->publish[2 * r + g] = (struct okv_publish_group){
		.keys = {.group = g,
			 .count = b.count,
			 .key_bytes = KV_KEY_BYTES,
			 .keys = keys + KV_KEY_BYTES},
		.first_position = b.first,
		.tokens = b.count * 16,
		.parent = b.first ? keys : NULL,
		.pages = b.pages,
	};
	s->restore[2 * r + g] = (struct okv_restore_group){
		.group = g, .first = b.first, .count = b.count, .pages = b.pages};
}

void kv_step_init(struct kv_step *s, struct kv_tensors *t, uint64_t seq, uint32_t requests,
		  uint32_t shuffle)
{
	*s = (struct kv_step){.t = t, .seq = seq, .requests = requests};
	for (uint32_t g = 0; g < 2; g++)
		s->pages[g] = scatter(requests * group_blocks[g], shuffle + g);
	s->publish = calloc(2 * requests, sizeof(*s->publish));
	s->restore = calloc(2 * requests, sizeof(*s->restore));
	s->keys = calloc((size_t)2 * requests * (KV_STEP_BLOCKS + 1), KV_KEY_BYTES);
	s->leases = calloc(requests, sizeof(*s->leases));
	s->ids = calloc(requests, sizeof(*s->ids));
	for (uint32_t i = 0; i < 2 * requests; i++)
		set_stretch(s, i / 2, i % 2,
			    s->keys + (size_t)i * (KV_STEP_BLOCKS + 1) * KV_KEY_BYTES);
}

void kv_step_release(struct kv_step *s)
{
	for (uint32_t r = 0; r < s->requests; r++) {
		okv_lease_release(s->leases[r]);
		s->leases[r] = NULL;
	}
}

void kv_step_fini(struct kv_step *s)
{
	kv_step_release(s);
	free(s->pages[0]);
	free(s->pages[1]);
	free(s->publish);
	free(s->restore);
	free(s->keys);
	free(s->leases);
	free(s->ids);
}

void kv_step_fill(struct kv_step *s)
{
	for (uint32_t i = 0; i < 2 * s->requests; i++) {
		const struct kv_blocks b = kv_step_blocks(s, i / 2, i % 2);
		kv_tensors_fill(s->t, s->seq + i / 2, &b);
	}
}

int kv_step_publish(struct kv_step *s, uint32_t flags, struct okv_op **ret_op,
		    struct okv_error *err)
{
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.flags = flags;
	o.group_count = 2 * s->requests;
	o.groups = s->publish;
	return okv_publish_start(s->t->binding, &o, ret_op, err);
}

void kv_step_lookup(struct kv_step *s, uint32_t consumers)
{
	const uint32_t counts[2] = {KV_STEP_BLOCKS, KV_STEP_BLOCKS};
	for (uint32_t r = 0; r < s->requests; r++) {
		ck_assert_uint_eq(kv_groups_lookup(s->t->ns, s->seq + r, counts, 2, consumers, NULL,
						   &s->leases[r]),
				  KV_STEP_BLOCKS * 16);
		ck_assert_int_eq(okv_lease_id(s->leases[r], &s->ids[r]), 0);
	}
}

int kv_step_restore(struct kv_step *s, bool by_id, uint32_t flags, struct okv_op **ret_op,
		    struct okv_error *err)
{
	struct okv_restore_options o;
	for (uint32_t i = 0; i < 2 * s->requests; i++) {
		s->restore[i].lease = by_id ? NULL : s->leases[i / 2];
		s->restore[i].lease_id = by_id ? &s->ids[i / 2] : NULL;
	}
	okv_restore_options_init(&o);
	o.flags = flags;
	o.group_count = 2 * s->requests;
	o.groups = s->restore;
	return okv_restore_start(s->t->binding, NULL, &o, ret_op, err);
}

uint64_t kv_step_wrong(const struct kv_step *s, uint32_t request)
{
	uint64_t wrong = 0;
	for (uint32_t g = 0; g < 2; g++) {
		const struct kv_blocks b = kv_step_blocks(s, request, g);
		wrong += kv_tensors_wrong(s->t, s->seq + request, &b);
	}
	return wrong;
}
