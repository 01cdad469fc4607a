/* SPDX-License-Identifier: Apache-2.0 */
/* Layout and addressing: where a page's bytes lie, what is refused, and what is never touched. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"
#include "support/suite.h"

#define CHECK_REFUSED(rc_, err_, code)                                                       \
	do {                                                                                 \
		ck_assert_msg((rc_) == (code), "%s: %s", okv_status_name(rc_), (err_).text); \
		ck_assert_int_eq((err_).status, (code));                                     \
		ck_assert_uint_gt(strlen((err_).text), 0);                                   \
	} while (0)

static struct okv_engine *engine;

static void setup(void)
{
	engine = kv_engine_embedded(64u << 20, 0);
}

static void teardown(void)
{
	okv_engine_close(engine);
}

/* A full group of one layer. */
static struct okv_group_schema one_layer(struct okv_layer_schema *layer, uint32_t block_tokens)
{
	return (struct okv_group_schema){.kind = OKV_GROUP_FULL,
					 .block_tokens = block_tokens,
					 .layer_count = 1,
					 .layout_tag = "NHD",
					 .layers = layer};
}

/* Publish n blocks from one page list, restore them to another; nothing else is looked at. */
static void move_blocks(struct kv_tensors *t, const struct kv_blocks *from,
			const struct kv_blocks *to)
{
	struct okv_op_result r;
	struct okv_lease *lease;
	uint32_t counts[1] = {from->count};
	ck_assert_int_eq(kv_blocks_publish(t, 1, from, 1, &r), 0);
	ck_assert_uint_eq(r.blocks, from->count);
	kv_groups_lookup(t->ns, 1, counts, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	ck_assert_int_eq(kv_blocks_restore(t, lease, to, 1, &r), 0);
	ck_assert_uint_eq(r.blocks, to->count);
	okv_lease_release(lease);
	ck_assert_uint_eq(kv_tensors_wrong(t, 1, to), 0);
}

static uint64_t bytes_that_are_not(const uint8_t *at, uint64_t n, uint8_t value)
{
	uint64_t other = 0;
	for (uint64_t i = 0; i < n; i++)
		other += at[i] != value;
	return other;
}

/* ---- S1 ---- */

#define S1_STORAGE 156349440ull
#define S1_PAGES 1044u
#define S1_ROWS 256u
#define S1_ROW 584u

/* The pad after the payload of each page: set, or count what changed. */
static uint64_t pads(const struct kv_tensors *t, bool set)
{
	const struct okv_layer *l = &t->layers[0];
	uint64_t pad = l->page_stride - l->segment_bytes[0], changed = 0;
	for (uint32_t p = 0; p < l->page_count; p++) {
		uint8_t *at = t->memory + p * l->page_stride + l->segment_bytes[0];
		if (set)
			memset(at, KV_CANARY, pad);
		else
			changed += bytes_that_are_not(at, pad, KV_CANARY);
	}
	return changed;
}

static void padded_storage(uint32_t per_block)
{
	struct okv_layer_schema layer = {.segment_count = 1, .segment_bytes = {S1_ROWS * S1_ROW}};
	struct okv_group_schema group = one_layer(&layer, S1_ROWS);
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	struct kv_tensors t;
	kv_tensors_map(&t, &group, 1, 0, S1_STORAGE);
	t.layers[0] = (struct okv_layer){
		.base = t.memory,
		.length = S1_STORAGE,
		.page_stride = (uint64_t)S1_ROWS / per_block * (S1_ROW + 1),
		.page_count = S1_PAGES * per_block,
		.segment_count = 1,
		.segment_bytes = {(uint64_t)S1_ROWS / per_block * S1_ROW},
	};
	ck_assert_uint_eq(t.layers[0].page_stride * t.layers[0].page_count, S1_STORAGE);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	pads(&t, true);
	const uint32_t source[3] = {11, 700, 12}, target[3] = {517, 1043, 0};
	uint32_t from[3 * S1_ROWS], to[3 * S1_ROWS];
	for (uint32_t i = 0; i < 3 * per_block; i++) {
		from[i] = source[i / per_block] * per_block + i % per_block;
		to[i] = target[i / per_block] * per_block + i % per_block;
	}
	move_blocks(&t, &(struct kv_blocks){.count = 3, .pages = from},
		    &(struct kv_blocks){.count = 3, .pages = to});
	ck_assert_uint_eq(pads(&t, false), 0);
	/* The neighbours of what was restored were never written. */
	const uint32_t next[] = {1, 516, 518, 1042};
	for (uint32_t i = 0; i < 4 * per_block; i++) {
		uint64_t page = (uint64_t)next[i / per_block] * per_block + i % per_block;
		ck_assert_uint_eq(bytes_that_are_not(t.memory + page * t.layers[0].page_stride,
						     t.layers[0].segment_bytes[0], 0),
				  0);
	}
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}

START_TEST(s1_padded_pages_of_a_larger_storage)
{
	padded_storage(1);
}
END_TEST

START_TEST(s1_padded_rows_as_one_token_pages)
{
	padded_storage(S1_ROWS);
}
END_TEST

/* ---- S2, S3 ---- */

START_TEST(s2_tails_of_odd_sizes_are_exact)
{
	const struct {
		uint32_t bytes, pad;
	} rows[] = {{576, 8}, {1, 1}, {7, 2}, {9, 1}, {584, 3}, {1, 0}, {7, 0}, {9, 0}};
	const uint32_t from[] = {0, 1, 2, 3, 4, 5}, to[] = {31, 6, 30, 7, 29, 8};
	const uint32_t pages = 32, per_block = 1;
	for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct okv_layer_schema layer = {.segment_count = 1,
						 .segment_bytes = {rows[i].bytes}};
		struct okv_group_schema group = one_layer(&layer, 16);
		struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
		struct kv_tensors t;
		struct kv_blocks target = {.count = 6, .pages = to};
		kv_tensors_place(&t, &group, 1, 0, KV_PLACE_PAGES, &pages, &per_block, rows[i].pad);
		kv_ok(kv_tensors_register(&t, ns, kv_err));
		struct okv_op_result r;
		struct okv_lease *lease;
		ck_assert_int_eq(kv_blocks_publish(&t, i + 1,
						   &(struct kv_blocks){.count = 6, .pages = from},
						   1, &r),
				 0);
		kv_tensors_canary(&t);
		kv_groups_lookup(ns, i + 1, &target.count, 1, 1, NULL, &lease);
		ck_assert_int_eq(kv_blocks_restore(&t, lease, &target, 1, &r), 0);
		ck_assert_uint_eq(r.bytes, 6ull * rows[i].bytes);
		ck_assert_uint_eq(kv_tensors_wrong(&t, i + 1, &target), 0);
		ck_assert_uint_eq(kv_tensors_stray(&t, &target, 1), 0);
		okv_lease_release(lease);
		kv_tensors_close(&t);
		okv_namespace_close(ns);
	}
}
END_TEST

/* Register one layer; on success unregister it again. */
static int try_layer(struct okv_namespace *ns, const struct okv_layer *layer, struct okv_error *err)
{
	struct okv_binding_options o;
	struct okv_binding *binding = NULL;
	okv_binding_options_init(&o);
	o.layer_count = 1;
	o.layers = layer;
	o.copy_threads = 1;
	int rc = okv_binding_register(ns, &o, &binding, err);
	ck_assert_int_eq(rc != 0, binding == NULL);
	okv_binding_unregister(binding);
	return rc;
}

START_TEST(s2_a_span_one_byte_past_the_allocation_is_refused)
{
	const uint32_t sizes[] = {1, 7, 9, 576, 584};
	for (uint32_t i = 0; i < 5; i++) {
		struct okv_layer_schema known = {.segment_count = 1, .segment_bytes = {sizes[i]}};
		struct okv_group_schema group = one_layer(&known, 16);
		struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
		uint64_t span = 9ull * 584 + sizes[i];
		struct okv_layer layer = {.base = malloc(span),
					  .length = span,
					  .page_stride = 584,
					  .page_count = 10,
					  .segment_count = 1,
					  .segment_bytes = {sizes[i]}};
		struct okv_error err = {0};
		layer.length = span - 1;
		CHECK_REFUSED(try_layer(ns, &layer, &err), err, OKV_E_INVAL);
		layer.length = span;
		layer.segment_offset[0] = 1;
		CHECK_REFUSED(try_layer(ns, &layer, &err), err, OKV_E_INVAL);
		layer.segment_offset[0] = UINT64_MAX;
		CHECK_REFUSED(try_layer(ns, &layer, &err), err, OKV_E_INVAL);
		layer.segment_offset[0] = 0;
		kv_ok(try_layer(ns, &layer, kv_err));
		free(layer.base);
		okv_namespace_close(ns);
	}
}
END_TEST

START_TEST(s3_declared_length_without_the_stride_is_refused)
{
	const uint32_t n = 28743;
	struct okv_layer_schema known = {.segment_count = 1, .segment_bytes = {4096}};
	struct okv_group_schema group = one_layer(&known, 16);
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	uint64_t span = (n - 1) * 4160ull + 4096;
	struct kv_tensors t;
	kv_tensors_map(&t, &group, 1, 0, n * 4160ull);
	t.layers[0] = (struct okv_layer){.base = t.memory,
					 .length = n * 4096ull,
					 .page_stride = 4160,
					 .page_count = n,
					 .segment_count = 1,
					 .segment_bytes = {4096}};
	struct okv_error err = {0};
	CHECK_REFUSED(kv_tensors_register(&t, ns, &err), err, OKV_E_INVAL);
	ck_assert_ptr_null(t.binding);
	t.layers[0].length = span;
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	uint8_t *around = t.memory + 28737 * 4160ull;
	const uint32_t from[] = {5, 9}, to[] = {28738, 28742};
	memset(around, KV_CANARY, t.bytes - 28737 * 4160ull);
	move_blocks(&t, &(struct kv_blocks){.count = 2, .pages = from},
		    &(struct kv_blocks){.count = 2, .pages = to});
	ck_assert_uint_eq(bytes_that_are_not(around, 4160, KV_CANARY), 0);
	ck_assert_uint_eq(bytes_that_are_not(around + 4160 + 4096, 64 + 3 * 4160, KV_CANARY), 0);
	ck_assert_uint_eq(bytes_that_are_not(t.memory + t.bytes - 64, 64, KV_CANARY), 0);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

/* ---- S4 ---- */

#define S4_PAGES 97871u
#define S4_TOKENS 16u
#define S4_ROW 256u

static struct okv_layer s4_view(const struct kv_tensors *t)
{
	return (struct okv_layer){.base = t->memory,
				  .length = t->bytes,
				  .page_stride = 2 * S4_ROW,
				  .page_count = S4_PAGES * S4_TOKENS,
				  .segment_count = 2,
				  .segment_offset = {0, S4_ROW},
				  .segment_bytes = {S4_ROW, S4_ROW}};
}

/* Bytes of one token that are not K and V of this block, by the strides of the view. */
static uint64_t s4_wrong_token(const struct kv_tensors *t, uint32_t block, uint32_t page,
			       uint32_t token)
{
	uint8_t key[KV_KEY_BYTES];
	uint64_t wrong = 0;
	kv_group_key(1, 0, block, key);
	for (uint32_t kv = 0; kv < 2; kv++)
		for (uint32_t i = 0; i < S4_ROW; i++)
			wrong += t->memory[page * 8192ull + kv * 256ull + token * 512ull + i] !=
				 kv_byte(key, 0, 0, kv, token * S4_ROW + i);
	return wrong;
}

START_TEST(s4_interleaved_kv_needs_explicit_segments_and_is_exact_per_token)
{
	struct okv_layer_schema known = {.segment_count = 2,
					 .segment_bytes = {S4_TOKENS * S4_ROW, S4_TOKENS * S4_ROW}};
	struct okv_group_schema group = one_layer(&known, S4_TOKENS);
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	struct kv_tensors t;
	struct okv_error err = {0};
	kv_tensors_map(&t, &group, 1, 0, S4_PAGES * 8192ull);

	/* One run of 8,192 bytes, K and V as if each were contiguous, and no segments at all. */
	struct okv_layer whole = s4_view(&t);
	whole.page_stride = 8192;
	whole.page_count = S4_PAGES;
	whole.segment_count = 1;
	whole.segment_bytes[0] = 8192;
	CHECK_REFUSED(try_layer(ns, &whole, &err), err, OKV_E_INVAL);
	whole.segment_count = 2;
	whole.segment_bytes[0] = whole.segment_bytes[1] = 4096;
	CHECK_REFUSED(try_layer(ns, &whole, &err), err, OKV_E_INVAL);
	whole.segment_count = 0;
	CHECK_REFUSED(try_layer(ns, &whole, &err), err, OKV_E_INVAL);

	t.layers[0] = s4_view(&t);
	kv_ok(kv_tensors_register(&t, ns, kv_err));
	const uint32_t source[3] = {1, 97870, 50000}, target[3] = {97869, 0, 7};
	uint32_t from[3 * S4_TOKENS], to[3 * S4_TOKENS];
	for (uint32_t i = 0; i < 3 * S4_TOKENS; i++) {
		from[i] = source[i / S4_TOKENS] * S4_TOKENS + i % S4_TOKENS;
		to[i] = target[i / S4_TOKENS] * S4_TOKENS + i % S4_TOKENS;
	}
	move_blocks(&t, &(struct kv_blocks){.count = 3, .pages = from},
		    &(struct kv_blocks){.count = 3, .pages = to});
	for (uint32_t i = 0; i < 3 * S4_TOKENS; i++)
		ck_assert_uint_eq(
			s4_wrong_token(&t, i / S4_TOKENS, target[i / S4_TOKENS], i % S4_TOKENS), 0);

	/* The same bytes under the same keys, read as one segment, are another cache. */
	struct okv_layer_schema flat = {.segment_count = 1, .segment_bytes = {8192}};
	struct okv_group_schema other = one_layer(&flat, S4_TOKENS);
	struct okv_namespace *flat_ns = kv_groups_open(engine, &other, 1, 1);
	const uint32_t three = 3;
	ck_assert_uint_eq(kv_groups_lookup(flat_ns, 1, &three, 1, 1, NULL, NULL), 0);
	ck_assert_uint_eq(kv_groups_lookup(ns, 1, &three, 1, 1, NULL, NULL), 48);
	okv_namespace_close(flat_ns);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

/* ---- S6, S7, S8, S33 ---- */

START_TEST(s6_bytes_per_page_that_disagree_with_the_schema_are_refused)
{
	struct okv_layer_schema known[2] = {
		{.order = 0, .segment_count = 2, .segment_bytes = {480, 960}},
		{.order = 1, .segment_count = 2, .segment_bytes = {480, 960}}};
	struct okv_group_schema group = one_layer(known, 16);
	group.layer_count = 2;
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	const struct {
		uint64_t k0, v0, k1, v1;
		int status;
	} cases[] = {
		{480, 960, 480, 960, 0},
		{120, 240, 120, 240, 0},
		{30, 60, 30, 60, 0},
		{481, 960, 480, 960, OKV_E_INVAL},
		{480, 959, 480, 960, OKV_E_INVAL},
		{960, 1920, 480, 960, OKV_E_INVAL},
		{240, 960, 480, 960, OKV_E_INVAL},
		{240, 480, 480, 960, OKV_E_INVAL},
		{480, 960, 480, 480, OKV_E_INVAL},
		{0, 960, 480, 960, OKV_E_INVAL},
		{160, 320, 160, 320, OKV_E_INVAL}, /* a third of 16 tokens */
		{15, 30, 15, 30, OKV_E_INVAL},	   /* half a token */
		{960, 480, 960, 480, OKV_E_INVAL}, /* K and V in the wrong order */
	};
	const uint32_t pages = 8, per_block = 1;
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kv_tensors t;
		struct okv_error err = {0};
		kv_tensors_place(&t, &group, 1, 0, KV_PLACE_PAGES, &pages, &per_block, 1000);
		t.layers[0].segment_bytes[0] = cases[i].k0;
		t.layers[0].segment_bytes[1] = cases[i].v0;
		t.layers[1].segment_bytes[0] = cases[i].k1;
		t.layers[1].segment_bytes[1] = cases[i].v1;
		int rc = kv_tensors_register(&t, ns, &err);
		ck_assert_msg(rc == cases[i].status, "case %u: %s %s", i, okv_status_name(rc),
			      err.text);
		ck_assert_int_eq(rc != 0, err.text[0] != 0);
		kv_tensors_close(&t);
	}
	okv_namespace_close(ns);
}
END_TEST

START_TEST(s7_layers_that_share_bytes_are_refused)
{
	struct okv_layer_schema known[2] = {
		{.order = 0, .segment_count = 2, .segment_bytes = {64, 64}},
		{.order = 1, .segment_count = 2, .segment_bytes = {64, 64}}};
	struct okv_group_schema group = one_layer(known, 16);
	group.layer_count = 2;
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	/* Layer 0 takes [0, 128) of each 512; where layer 1 begins, its stride, and the verdict. */
	const struct {
		uint64_t base, stride, second;
		int status;
	} cases[] = {
		{128, 512, 64, 0},	      /* interleaved, adjacent */
		{384, 512, 64, 0},	      /* up to the next page */
		{0, 512, 64, OKV_E_INVAL},    /* the same */
		{127, 512, 64, OKV_E_INVAL},  /* one byte at the start */
		{385, 512, 64, OKV_E_INVAL},  /* one byte into the next page */
		{256, 576, 64, OKV_E_INVAL},  /* meets it in a later page only */
		{256, 512, 320, OKV_E_INVAL}, /* its V is in the next page's K */
		{128, 512, 63, OKV_E_INVAL},  /* its own K and V */
		{128, 127, 64, OKV_E_INVAL},  /* its own pages */
		{128, 0, 64, OKV_E_INVAL},
		{512 * 8, 128, 64, 0}, /* behind layer 0 */
		{512 * 7 + 127, 128, 64, OKV_E_INVAL},
	};
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kv_tensors t;
		struct okv_error err = {0};
		kv_tensors_map(&t, &group, 1, 0, 16384);
		for (uint32_t k = 0; k < 2; k++)
			t.layers[k] =
				(struct okv_layer){.base = t.memory + (k ? cases[i].base : 0),
						   .length = 8192,
						   .page_stride = k ? cases[i].stride : 512,
						   .page_count = 8,
						   .segment_count = 2,
						   .segment_offset = {0, k ? cases[i].second : 64},
						   .segment_bytes = {64, 64}};
		int rc = kv_tensors_register(&t, ns, &err);
		ck_assert_msg(rc == cases[i].status, "case %u: %s %s", i, okv_status_name(rc),
			      err.text);
		ck_assert_int_eq(rc != 0, err.text[0] != 0);
		if (!rc) {
			/* Registered bytes are nobody else's until they are given back. */
			struct kv_tensors again = t;
			CHECK_REFUSED(kv_tensors_register(&again, ns, &err), err, OKV_E_EXISTS);
			okv_binding_unregister(t.binding);
			kv_ok(kv_tensors_register(&t, ns, kv_err));
		}
		kv_tensors_close(&t);
	}
	okv_namespace_close(ns);
}
END_TEST

START_TEST(s7_a_page_named_twice_is_refused_before_the_lease_is_spent)
{
	struct okv_namespace *ns = kv_namespace(engine, &(struct kv_shape){.pages_per_block = 2});
	struct kv_rank a;
	struct okv_lease *lease;
	struct okv_op *op = NULL;
	struct okv_op_result r;
	struct okv_error err = {0};
	kv_rank_open(&a, ns, &(struct kv_shape){.pages_per_block = 2}, 0);
	ck_assert_int_eq(kv_publish(&a, 3, 0, 3, NULL, &r), 0);
	kv_poison(&a);
	ck_assert_uint_eq(kv_lookup(ns, 3, 3, 1, &lease), 3);
	const uint32_t twice[][6] = {
		{1, 1, 2, 3, 4, 5}, {9, 8, 7, 6, 5, 9}, {0, 1, 2, 3, 2, 5}, {63, 1, 2, 63, 4, 5}};
	for (uint32_t i = 0; i < 4; i++) {
		int rc = kv_restore_start(&a, lease, 0, 3, twice[i], 0, &op, &err);
		CHECK_REFUSED(rc, err, OKV_E_INVAL);
		rc = kv_publish_start(&a, 4, 0, 3, twice[i], 0, &op, &err);
		CHECK_REFUSED(rc, err, OKV_E_INVAL);
	}
	const uint32_t fine[] = {1, 0, 63, 3, 62, 5};
	/* The same group twice, with pages that meet. */
	struct okv_restore_group g[2] = {{.count = 1, .pages = fine},
					 {.first = 1, .count = 1, .pages = fine + 1}};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.group_count = 2;
	o.groups = g;
	CHECK_REFUSED(okv_restore_start(a.binding, lease, &o, &op, &err), err, OKV_E_INVAL);
	ck_assert_ptr_null(op);
	for (uint32_t p = 0; p < a.shape.pages; p++)
		ck_assert_uint_eq(kv_touched(&a, p), 0);

	/* The one share of the lease is still there, and was the only one. */
	ck_assert_int_eq(kv_restore(&a, lease, 0, 3, fine, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_uint_eq(kv_wrong(&a, 3, i, fine + 2 * i), 0);
	ck_assert_int_ne(kv_restore(&a, lease, 0, 3, fine, 0, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 4, 3, 1, NULL), 0);
	okv_lease_release(lease);
	kv_rank_close(&a);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(s8_a_block_with_fewer_tokens_is_not_published)
{
	struct okv_namespace *ns = kv_namespace(engine, &(struct kv_shape){.salt = "s8"});
	struct kv_rank a;
	struct okv_op *op = NULL;
	struct okv_op_result r;
	struct okv_error err = {0};
	struct okv_engine_stats before, after;
	kv_rank_open(&a, ns, &(struct kv_shape){.salt = "s8"}, 0);
	uint8_t *keys = kv_keys(8, 0, 2);
	uint32_t pages[2] = {0, 1};
	struct okv_publish_group g = {.keys = {.count = 2, .key_bytes = KV_KEY_BYTES, .keys = keys},
				      .pages = pages};
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	okv_stats_get(engine, &before);
	const uint32_t tokens[] = {31, 33, 17, 16, 0, 48, UINT32_MAX};
	for (uint32_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		g.tokens = tokens[i];
		CHECK_REFUSED(okv_publish_start(a.binding, &o, &op, &err), err, OKV_E_INVAL);
	}
	okv_stats_get(engine, &after);
	ck_assert_uint_eq(before.publishes_started, after.publishes_started);
	ck_assert_uint_eq(kv_lookup(ns, 8, 2, 1, NULL), 0);
	ck_assert_int_eq(kv_publish(&a, 8, 0, 2, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 8, 2, 1, NULL), 2);
	free(keys);
	kv_rank_close(&a);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(s33_layers_without_bytes_are_refused)
{
	struct okv_layer_schema known = {.segment_count = 1, .segment_bytes = {64}};
	struct okv_group_schema group = one_layer(&known, 16);
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	uint8_t memory[1024];
	const struct okv_layer good = {.base = memory,
				       .length = sizeof(memory),
				       .page_stride = 64,
				       .page_count = 16,
				       .segment_count = 1,
				       .segment_bytes = {64}};
	struct okv_layer bad[6] = {good, good, good, good, good, good};
	bad[0].length = 0;
	bad[1].base = NULL;
	bad[2].page_count = 0;
	bad[3].segment_bytes[0] = 0;
	bad[4].page_stride = 0;
	bad[5].length = 1;
	for (uint32_t i = 0; i < 6; i++) {
		struct okv_error err = {0};
		CHECK_REFUSED(try_layer(ns, &bad[i], &err), err, OKV_E_INVAL);
	}
	kv_ok(try_layer(ns, &good, kv_err));
	known.segment_bytes[0] = 0;
	struct okv_namespace_options o;
	struct okv_namespace *none = NULL;
	struct okv_error err = {0};
	okv_namespace_options_init(&o);
	o.model = "test";
	o.group_count = 1;
	o.groups = &group;
	CHECK_REFUSED(okv_namespace_open(engine, &o, &none, &err), err, OKV_E_INVAL);
	ck_assert_ptr_null(none);
	okv_namespace_close(ns);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("layout");
	TCase *t = tcase_create("addresses");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, s1_padded_pages_of_a_larger_storage);
	tcase_add_test(t, s1_padded_rows_as_one_token_pages);
	tcase_add_test(t, s2_tails_of_odd_sizes_are_exact);
	tcase_add_test(t, s2_a_span_one_byte_past_the_allocation_is_refused);
	tcase_add_test(t, s3_declared_length_without_the_stride_is_refused);
	tcase_add_test(t, s4_interleaved_kv_needs_explicit_segments_and_is_exact_per_token);
	tcase_add_test(t, s6_bytes_per_page_that_disagree_with_the_schema_are_refused);
	tcase_add_test(t, s7_layers_that_share_bytes_are_refused);
	tcase_add_test(t, s7_a_page_named_twice_is_refused_before_the_lease_is_spent);
	tcase_add_test(t, s8_a_block_with_fewer_tokens_is_not_published);
	tcase_add_test(t, s33_layers_without_bytes_are_refused);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
