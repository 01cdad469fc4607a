/* SPDX-License-Identifier: Apache-2.0 */
/* Groups, segments and tensors of every form: exact bytes, layer by layer, and nothing else. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/gate.h"
#include "support/local.h"
#include "support/suite.h"
#include "support/tensors.h"

static struct okv_engine *engine;

static void setup(void)
{
	engine = kv_engine_embedded(64u << 20, 0);
}

static void teardown(void)
{
	okv_engine_close(engine);
}

/* n distinct pages below total, spread by a step that has no divisor in common with it. */
static void spread(uint32_t *ret_pages, uint32_t n, uint32_t total, uint32_t start, uint32_t step)
{
	for (uint32_t i = 0; i < n; i++)
		ret_pages[i] = (start + i * step) % total;
}

/* ---- S12 ---- */

/* K, V and an index buffer: of other size, last in memory and last in the block. */
static const struct okv_layer_schema with_index[3] = {
	{.order = 0, .segment_count = 3, .segment_bytes = {196608, 196608, 98304}},
	{.order = 1, .segment_count = 3, .segment_bytes = {196608, 196608, 98304}},
	{.order = 2, .segment_count = 3, .segment_bytes = {196608, 196608, 98304}},
};

START_TEST(s12_a_layer_is_ready_only_after_its_index_buffer)
{
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 64,
					       .layer_count = 3,
					       .layout_tag = "NHD+index",
					       .layers = with_index};
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	const uint32_t pages = 16, per_block = 1, n = 4;
	const uint32_t from[4] = {0, 1, 2, 3}, to[4] = {15, 6, 13, 4};
	const struct kv_blocks source = {.count = n, .pages = from};
	const struct kv_blocks target = {.count = n, .pages = to};
	struct kv_tensors t;
	struct okv_op_result r;
	kv_tensors_place(&t, &group, 1, 0, KV_PLACE_HALVES, &pages, &per_block, 64);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	ck_assert_int_eq(kv_blocks_publish(&t, 12, &source, 1, &r), 0);
	for (uint32_t round = 0; round < 6; round++) {
		struct okv_lease *lease;
		struct okv_op *op;
		kv_tensors_canary(&t);
		kv_groups_lookup(ns, 12, &n, 1, 1, NULL, &lease);
		kv_ok(kv_blocks_restore_start(&t, lease, &target, 1, 0, &op, kv_err));
		/* Each round another layer is the first to be looked at, while others still move.
		 */
		for (uint32_t i = round % 3; i < 3; i++) {
			ck_assert_int_eq(okv_op_wait_layer(op, i, 60000), 0);
			const struct okv_layer *l = &t.layers[i];
			const uint8_t *end = (const uint8_t *)l->base + to[n - 1] * l->page_stride +
					     l->segment_offset[2] + l->segment_bytes[2];
			uint8_t key[KV_KEY_BYTES];
			kv_group_key(12, 0, n - 1, key);
			ck_assert_uint_eq(end[-1], kv_byte(key, 0, i, 2, 98303));
			ck_assert_uint_eq(kv_layer_wrong(&t, 12, &target, i), 0);
		}
		ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
		ck_assert_uint_eq(r.bytes, 3ull * n * (2 * 196608 + 98304));
		okv_op_release(op);
		okv_lease_release(lease);
	}
	ck_assert_uint_eq(kv_tensors_wrong(&t, 12, &target), 0);
	ck_assert_uint_eq(kv_tensors_stray(&t, &target, 1), 0);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

/* K and V bytes of a layer that are not in place. Looks on while they are copied. */
__attribute__((no_sanitize("thread"))) static uint64_t key_value_missing(const struct kv_tensors *t,
									 const struct kv_blocks *b,
									 uint32_t layer)
{
	const struct okv_layer *l = &t->layers[layer];
	uint64_t missing = 0;
	for (uint32_t i = 0; i < b->count; i++) {
		uint8_t key[KV_KEY_BYTES];
		kv_group_key(12, 0, i, key);
		for (uint32_t s = 0; s < 2; s++) {
			const volatile uint8_t *at = (const uint8_t *)l->base +
						     b->pages[i] * l->page_stride +
						     l->segment_offset[s];
			for (uint64_t o = 0; o < l->segment_bytes[s]; o++)
				missing += at[o] != kv_byte(key, 0, layer, s, o);
		}
	}
	return missing;
}

START_TEST(s12_key_and_value_alone_make_no_layer_ready)
{
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 64,
					       .layer_count = 3,
					       .layout_tag = "NHD+index",
					       .layers = with_index};
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	const uint32_t pages = 16, per_block = 1, n = 4, gated = (uint32_t)_i;
	/* The last page of the last block: nothing of the layer is copied after its index. */
	const uint32_t from[4] = {0, 1, 2, 3}, to[4] = {4, 6, 13, 15};
	const struct kv_blocks source = {.count = n, .pages = from};
	const struct kv_blocks target = {.count = n, .pages = to};
	struct kv_tensors t;
	struct kv_gate gate;
	struct okv_lease *lease;
	struct okv_op *op;
	struct okv_op_result r;
	kv_tensors_place(&t, &group, 1, 0, KV_PLACE_HALVES, &pages, &per_block, 64);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	ck_assert_int_eq(kv_blocks_publish(&t, 12, &source, 1, &r), 0);
	kv_tensors_canary(&t);
	kv_groups_lookup(ns, 12, &n, 1, 1, NULL, &lease);
	const struct okv_layer *l = &t.layers[gated];
	kv_gate_close(&gate, (uint8_t *)l->base + to[n - 1] * l->page_stride + l->segment_offset[2],
		      l->segment_bytes[2]);
	kv_ok(kv_blocks_restore_start(&t, lease, &target, 1, 0, &op, kv_err));
	kv_gate_wait(&gate);
	kv_until(key_value_missing(&t, &target, gated) == 0);
	for (uint32_t i = 0; i < gated; i++)
		ck_assert_int_eq(okv_op_wait_layer(op, i, 60000), 0);
	for (uint32_t i = gated; i < 3; i++)
		ck_assert_int_eq(okv_op_wait_layer(op, i, 0), OKV_E_TIMEOUT);
	ck_assert_int_eq(okv_op_wait(op, 0, NULL), OKV_E_TIMEOUT);
	kv_gate_open(&gate);
	ck_assert_int_eq(okv_op_wait_layer(op, gated, 60000), 0);
	ck_assert_uint_eq(kv_layer_wrong(&t, 12, &target, gated), 0);
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(kv_tensors_wrong(&t, 12, &target), 0);
	ck_assert_uint_eq(kv_tensors_stray(&t, &target, 1), 0);
	okv_op_release(op);
	okv_lease_release(lease);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

/* ---- several groups ---- */

static const struct okv_layer_schema full_layers[3] = {
	{.order = 0, .segment_count = 2, .segment_bytes = {512, 512}},
	{.order = 3, .segment_count = 2, .segment_bytes = {512, 512}},
	{.order = 6, .segment_count = 2, .segment_bytes = {512, 768}},
};
static const struct okv_layer_schema window_layers[2] = {
	{.order = 1, .segment_count = 1, .segment_bytes = {264}},
	{.order = 5, .segment_count = 1, .segment_bytes = {264}},
};
static const struct okv_layer_schema state_layers[2] = {
	{.order = 2, .segment_count = 3, .segment_bytes = {1000, 24, 8}},
	{.order = 4, .segment_count = 3, .segment_bytes = {1000, 24, 8}},
};
static const struct okv_group_schema hybrid[3] = {
	{.kind = OKV_GROUP_FULL,
	 .block_tokens = 16,
	 .layer_count = 3,
	 .layout_tag = "NHD",
	 .layers = full_layers},
	{.kind = OKV_GROUP_WINDOW,
	 .block_tokens = 8,
	 .window_tokens = 20,
	 .layer_count = 2,
	 .layout_tag = "NHD",
	 .layers = window_layers},
	{.kind = OKV_GROUP_STATE,
	 .block_tokens = 32,
	 .layer_count = 2,
	 .layout_tag = "conv+ssm",
	 .layers = state_layers},
};
/* Binding index by consumption order. */
static const uint32_t by_order[7] = {0, 3, 5, 1, 6, 4, 2};
static const uint32_t group_of_layer[7] = {0, 0, 0, 1, 1, 2, 2};

#define HYBRID_PAGES        \
	{                   \
		64, 128, 16 \
	}

/* Publish 64 tokens, restore what the lookup says is usable, checking layers as they come. */
static void hybrid_round(enum kv_place place, const uint32_t *per_block, uint32_t pad, uint64_t seq)
{
	const uint32_t pages[3] = HYBRID_PAGES, counts[3] = {4, 8, 2};
	struct okv_namespace *ns = kv_groups_open(engine, hybrid, 3, 1);
	uint32_t list[3][64];
	struct kv_blocks blocks[3];
	struct kv_tensors t;
	struct okv_op_result r;
	kv_tensors_place(&t, hybrid, 3, 0, place, pages, per_block, pad);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	for (uint32_t g = 0; g < 3; g++) {
		spread(list[g], counts[g] * per_block[g], pages[g], 1, 5);
		blocks[g] = (struct kv_blocks){.group = g, .count = counts[g], .pages = list[g]};
	}
	ck_assert_int_eq(kv_blocks_publish(&t, seq, blocks, 3, &r), 0);
	ck_assert_uint_eq(r.blocks, 14);
	kv_tensors_canary(&t);

	struct okv_lookup_result found;
	struct okv_lease *lease;
	ck_assert_uint_eq(kv_groups_lookup(ns, seq, counts, 3, 1, &found, &lease), 64);
	const struct okv_hit usable[3] = {{0, 0, 4, 0}, {1, 5, 3, 0}, {2, 1, 1, 0}};
	ck_assert_mem_eq(found.groups, usable, sizeof(usable));
	for (uint32_t g = 0; g < 3; g++) {
		spread(list[g], usable[g].count * per_block[g], pages[g], 7, 3);
		blocks[g].first = usable[g].first;
		blocks[g].count = usable[g].count;
	}
	/* The groups of a request need not come in the schema's order. */
	const struct kv_blocks asked[3] = {blocks[2], blocks[0], blocks[1]};
	struct okv_op *op;
	kv_ok(kv_blocks_restore_start(&t, lease, asked, 3, 0, &op, kv_err));
	for (uint32_t i = 0; i < 7; i++) {
		uint32_t layer = by_order[i];
		ck_assert_int_eq(okv_op_wait_layer(op, layer, 60000), 0);
		ck_assert_uint_eq(kv_layer_wrong(&t, seq, &blocks[group_of_layer[layer]], layer),
				  0);
	}
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.blocks, 8);
	ck_assert_uint_eq(r.bytes, 4 * 3328 + 3 * 528 + 2064);
	ck_assert_uint_eq(kv_tensors_stray(&t, blocks, 3), 0);
	okv_op_release(op);
	okv_lease_release(lease);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}

START_TEST(r1_r2_groups_of_three_kinds_in_every_place)
{
	const uint32_t whole[3] = {1, 1, 1}, tokens[3] = {16, 8, 4}, mixed[3] = {4, 1, 8};
	const uint32_t pads[3] = {0, 3, 64};
	uint64_t seq = 100;
	for (uint32_t p = 0; p < 3; p++)
		for (uint32_t place = KV_PLACE_PAGES; place <= KV_PLACE_CROSS; place++) {
			hybrid_round((enum kv_place)place, whole, pads[p], seq++);
			hybrid_round((enum kv_place)place, tokens, pads[p], seq++);
			hybrid_round((enum kv_place)place, mixed, pads[p], seq++);
		}
}
END_TEST

/* Heads outside of the tokens: a page is a row of each head, of K and of V. */
START_TEST(a_page_of_many_segments)
{
	struct okv_layer_schema layers[2] = {{.order = 0}, {.order = 1}};
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = 2,
					       .layout_tag = "HND",
					       .layers = layers};
	const uint32_t pages = 32, per_block = 1, n = 8;
	uint32_t from[8], to[8];
	const struct kv_blocks source = {.count = n, .pages = from};
	const struct kv_blocks target = {.count = n, .pages = to};
	struct kv_tensors t;
	struct okv_lease *lease;
	struct okv_op_result r;
	for (uint32_t i = 0; i < 2; i++) {
		layers[i].segment_count = OKV_MAX_SEGMENTS;
		for (uint32_t s = 0; s < OKV_MAX_SEGMENTS; s++)
			layers[i].segment_bytes[s] = 64 + 8 * s;
	}
	spread(from, n, pages, 1, 5);
	spread(to, n, pages, 7, 3);
	for (int place = KV_PLACE_PAGES; place <= KV_PLACE_HALVES; place++) {
		struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
		kv_tensors_place(&t, &group, 1, 0, (enum kv_place)place, &pages, &per_block, 24);
		kv_ok(kv_tensors_register(&t, ns, kv_err));
		ck_assert_int_eq(kv_blocks_publish(&t, 60 + (uint64_t)place, &source, 1, &r), 0);
		kv_tensors_canary(&t);
		kv_groups_lookup(ns, 60 + (uint64_t)place, &n, 1, 1, NULL, &lease);
		struct okv_op *op;
		kv_ok(kv_blocks_restore_start(&t, lease, &target, 1, 0, &op, kv_err));
		ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
		ck_assert_uint_eq(r.blocks, n);
		okv_op_release(op);
		ck_assert_uint_eq(kv_tensors_wrong(&t, 60 + (uint64_t)place, &target), 0);
		ck_assert_uint_eq(kv_tensors_stray(&t, &target, 1), 0);
		okv_lease_release(lease);
		kv_tensors_close(&t);
		okv_namespace_close(ns);
	}
}
END_TEST

START_TEST(r1_a_gap_in_one_group_shortens_all)
{
	const uint32_t pages[3] = HYBRID_PAGES, per_block[3] = {1, 1, 1}, counts[3] = {4, 8, 2};
	struct okv_namespace *ns = kv_groups_open(engine, hybrid, 3, 1);
	const uint32_t list[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct kv_tensors t;
	struct okv_op_result r;
	struct okv_lookup_result found;
	kv_tensors_place(&t, hybrid, 3, 0, KV_PLACE_PAGES, pages, per_block, 0);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	/* The window's last block is missing: 64 tokens cannot be continued, 32 can. */
	const struct kv_blocks first[3] = {{.group = 0, .count = 4, .pages = list},
					   {.group = 1, .count = 7, .pages = list},
					   {.group = 2, .count = 2, .pages = list}};
	ck_assert_int_eq(kv_blocks_publish(&t, 1, first, 3, &r), 0);
	ck_assert_uint_eq(kv_groups_lookup(ns, 1, counts, 3, 1, &found, NULL), 32);
	const struct okv_hit half[3] = {{0, 0, 2, 0}, {1, 1, 3, 0}, {2, 0, 1, 0}};
	ck_assert_mem_eq(found.groups, half, sizeof(half));
	/* It comes, as a publish of its own with its parent: all 64. */
	const struct kv_blocks rest = {.group = 1, .first = 7, .count = 1, .pages = list};
	ck_assert_int_eq(kv_blocks_publish(&t, 1, &rest, 1, &r), 0);
	ck_assert_uint_eq(kv_groups_lookup(ns, 1, counts, 3, 1, &found, NULL), 64);
	/* Without any state there is no usable prefix, whatever the others hold. */
	ck_assert_int_eq(kv_blocks_publish(&t, 2, first, 2, &r), 0);
	ck_assert_uint_eq(kv_groups_lookup(ns, 2, counts, 3, 1, &found, NULL), 0);
	ck_assert_uint_eq(kv_groups_lookup(ns, 2, counts, 1, 1, &found, NULL), 64);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(s19_groups_without_blocks_leave_every_layer_ready)
{
	const uint32_t pages[3] = HYBRID_PAGES, per_block[3] = {1, 1, 1}, counts[3] = {4, 8, 2};
	struct okv_namespace *ns = kv_groups_open(engine, hybrid, 3, 1);
	const uint32_t list[8] = {0, 1, 2, 3, 4, 5, 6, 7}, other[4] = {20, 21, 22, 23};
	struct kv_tensors t;
	struct okv_op_result r;
	struct okv_lease *lease;
	kv_tensors_place(&t, hybrid, 3, 0, KV_PLACE_CROSS, pages, per_block, 5);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	const struct kv_blocks all[3] = {{.group = 0, .count = 4, .pages = list},
					 {.group = 1, .count = 8, .pages = list},
					 {.group = 2, .count = 2, .pages = list}};
	ck_assert_int_eq(kv_blocks_publish(&t, 19, all, 3, &r), 0);
	kv_tensors_canary(&t);
	/* One group of three; then none at all. */
	const struct kv_blocks part = {.group = 0, .first = 1, .count = 2, .pages = other};
	for (uint32_t n = 2; n-- > 0;) {
		struct okv_op *op;
		kv_groups_lookup(ns, 19, counts, 3, 1, NULL, &lease);
		kv_ok(kv_blocks_restore_start(&t, lease, &part, n, 0, &op, kv_err));
		for (uint32_t layer = 0; layer < 7; layer++) {
			ck_assert_int_eq(okv_op_wait_enqueued(op, layer, 60000), 0);
			ck_assert_int_eq(okv_op_wait_layer(op, layer, 60000), 0);
		}
		ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
		ck_assert_uint_eq(r.blocks, n * 2);
		if (n)
			ck_assert_uint_eq(kv_tensors_wrong(&t, 19, &part), 0);
		ck_assert_uint_eq(kv_tensors_stray(&t, &part, n), 0);
		okv_op_release(op);
		okv_lease_release(lease);
	}
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(r1_page_sizes_and_places_of_two_bindings_need_not_agree)
{
	const uint32_t from[3] = {3, 1, 2};
	uint32_t to[48];
	const uint32_t page_list[2] = {8, 128}, per_block[2] = {1, 16}, n = 3;
	struct okv_namespace *ns = kv_groups_open(engine, hybrid, 1, 1);
	struct kv_tensors a, b;
	struct okv_op_result r;
	struct okv_lease *lease;
	kv_tensors_place(&a, hybrid, 1, 0, KV_PLACE_CROSS, &page_list[0], &per_block[0], 0);
	kv_tensors_place(&b, hybrid, 1, 0, KV_PLACE_HALVES, &page_list[1], &per_block[1], 9);
	kv_ok(kv_tensors_register(&a, ns, kv_err));
	kv_ok(kv_tensors_register(&b, ns, kv_err));
	ck_assert_int_eq(
		kv_blocks_publish(&a, 5, &(struct kv_blocks){.count = n, .pages = from}, 1, &r), 0);
	spread(to, 48, 128, 90, 37);
	const struct kv_blocks tokens = {.count = n, .pages = to};
	kv_groups_lookup(ns, 5, &n, 1, 2, NULL, &lease);
	ck_assert_int_eq(kv_blocks_restore(&b, lease, &tokens, 1, &r), 0);
	ck_assert_uint_eq(kv_tensors_wrong(&b, 5, &tokens), 0);
	ck_assert_uint_eq(kv_tensors_stray(&b, &tokens, 1), 0);
	/* And back, from one-token pages to whole ones. */
	ck_assert_int_eq(kv_blocks_publish(&b, 6, &tokens, 1, &r), 0);
	okv_lease_release(lease);
	kv_groups_lookup(ns, 6, &n, 1, 1, NULL, &lease);
	kv_tensors_canary(&a);
	ck_assert_int_eq(
		kv_blocks_restore(&a, lease, &(struct kv_blocks){.count = n, .pages = from}, 1, &r),
		0);
	ck_assert_uint_eq(kv_tensors_wrong(&a, 6, &(struct kv_blocks){.count = n, .pages = from}),
			  0);
	ck_assert_uint_eq(kv_tensors_stray(&a, &(struct kv_blocks){.count = n, .pages = from}, 1),
			  0);
	okv_lease_release(lease);
	kv_tensors_close(&a);
	kv_tensors_close(&b);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(r2_bindings_interleaved_in_one_allocation_keep_their_bytes)
{
	/* Two ranks of one process: layer by layer in the same pages of one mapping. */
	const struct okv_layer_schema layer = {.segment_count = 2, .segment_bytes = {96, 96}};
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = 1,
					       .layout_tag = "NHD",
					       .layers = &layer};
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 2);
	struct kv_tensors t[2];
	struct okv_op_result r;
	struct okv_lease *lease;
	const uint32_t from[4] = {0, 2, 4, 6}, to[4] = {15, 1, 13, 3}, n = 4;
	const struct kv_blocks source = {.count = n, .pages = from};
	const struct kv_blocks target = {.count = n, .pages = to};
	kv_tensors_map(&t[0], &group, 1, 0, 16 * 400);
	t[1] = t[0];
	t[1].slot = 1;
	t[1].layers = calloc(1, sizeof(struct okv_layer));
	for (uint32_t i = 0; i < 2; i++) {
		t[i].layers[0] = (struct okv_layer){.base = t[i].memory + i * 96,
						    .length = 15 * 400 + 288,
						    .page_stride = 400,
						    .page_count = 16,
						    .segment_count = 2,
						    .segment_offset = {0, 192},
						    .segment_bytes = {96, 96}};
		kv_ok(kv_tensors_register(&t[i], ns, kv_err));
		ck_assert_int_eq(kv_blocks_publish(&t[i], 9, &source, 1, &r), 0);
		/* Visible when all slots are sealed, not before. */
		ck_assert_uint_eq(kv_groups_lookup(ns, 9, &n, 1, 1, NULL, NULL), i * 64);
	}
	kv_groups_lookup(ns, 9, &n, 1, 2, NULL, &lease);
	kv_tensors_canary(&t[0]);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_int_eq(kv_blocks_restore(&t[i], lease, &target, 1, &r), 0);
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(kv_tensors_wrong(&t[i], 9, &target), 0);
	kv_tensors_stray(&t[0], &target, 1);
	ck_assert_uint_eq(kv_tensors_stray(&t[1], &target, 1), 0);
	okv_lease_release(lease);
	okv_binding_unregister(t[1].binding);
	free(t[1].layers);
	kv_tensors_close(&t[0]);
	okv_namespace_close(ns);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("groups");
	TCase *t = tcase_create("bytes");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, s12_a_layer_is_ready_only_after_its_index_buffer);
	tcase_add_loop_test(t, s12_key_and_value_alone_make_no_layer_ready, 0, 3);
	tcase_add_test(t, r1_r2_groups_of_three_kinds_in_every_place);
	tcase_add_test(t, a_page_of_many_segments);
	tcase_add_test(t, r1_a_gap_in_one_group_shortens_all);
	tcase_add_test(t, s19_groups_without_blocks_leave_every_layer_ready);
	tcase_add_test(t, r1_page_sizes_and_places_of_two_bindings_need_not_agree);
	tcase_add_test(t, r2_bindings_interleaved_in_one_allocation_keep_their_bytes);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
