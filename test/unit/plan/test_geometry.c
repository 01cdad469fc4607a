/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What a rank's tensors may look like, against a byte map. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "plan/geometry.h"
#include "plan/overlap.h"
#include "support/suite.h"

#define BASE 0x100000000ull /* addresses only: no test touches them */

static uint64_t random_state;

static uint64_t random_below(uint64_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % limit;
}

static void *address(uint64_t offset)
{
	return (void *)(uintptr_t)(BASE + offset);
}

/* A schema of one full group, every layer alike. */
static void uniform_schema(struct oki_schema *schema, uint32_t layer_count, uint32_t block_tokens,
			   uint32_t segment_count, const uint64_t *segment_bytes)
{
	struct okv_layer_schema layers[64];
	struct okv_group_schema group = {OKV_GROUP_FULL, block_tokens, 0,
					 layer_count,	 "NHD",	       layers};
	struct okv_namespace_options opts = {
		.size = sizeof(opts),
		.rank_slots = 1,
		.model = "m",
		.pipeline_stages = 1,
		.group_count = 1,
		.groups = &group,
	};
	for (uint32_t i = 0; i < layer_count; i++) {
		layers[i] = (struct okv_layer_schema){.order = i, .segment_count = segment_count};
		memcpy(layers[i].segment_bytes, segment_bytes,
		       segment_count * sizeof(segment_bytes[0]));
	}
	ck_assert_int_eq(oki_schema_init(schema, &opts, NULL), 0);
}

static int try_layers(const struct oki_schema *schema, const struct okv_layer *layers,
		      uint32_t count, struct okv_error *err)
{
	struct oki_geometry geometry;
	memset(err, 0, sizeof(*err));
	int rc = oki_geometry_init(&geometry, schema, layers, count, false, err);
	if (rc == 0)
		oki_geometry_fini(&geometry);
	else
		ck_assert_int_eq(rc, err->status);
	return rc;
}

static int try_one(uint64_t block_bytes, struct okv_layer layer, struct okv_error *err)
{
	struct oki_schema schema;
	uniform_schema(&schema, 1, 256, 1, &block_bytes);
	int rc = try_layers(&schema, &layer, 1, err);
	oki_schema_fini(&schema);
	return rc;
}

START_TEST(maps_are_filled)
{
	static const uint64_t block[2] = {4096, 520};
	struct oki_schema schema;
	struct oki_geometry g;
	struct okv_layer layers[2] = {
		{address(0), 65536, 2048, 32, 2, {0, 1024}, {1024, 130}, {0}},
		{address(65536), 65536, 4096, 16, 2, {256, 2000}, {1024, 130}, {0}},
	};
	uniform_schema(&schema, 2, 16, 2, block);
	ck_assert_int_eq(oki_geometry_init(&g, &schema, layers, 2, false, NULL), 0);
	ck_assert_uint_eq(g.layer_count, 2);
	ck_assert_uint_eq(g.group_count, 1);
	ck_assert_uint_eq(g.pages_per_block[0], 4);
	ck_assert_uint_eq(g.page_count[0], 16);
	ck_assert_uint_eq(g.lengths[1], 65536);
	ck_assert_ptr_eq(g.maps[1].base, address(65536));
	ck_assert_uint_eq(g.maps[0].page_count, 32);
	ck_assert_uint_eq(g.maps[1].page_stride, 4096);
	ck_assert_uint_eq(g.maps[1].segments[0].page_offset, 256);
	ck_assert_uint_eq(g.maps[1].segments[1].bytes, 130);
	ck_assert_uint_eq(g.maps[1].segments[0].block_offset, 4096 + 528);
	ck_assert_uint_eq(g.maps[1].segments[1].block_offset, 2 * 4096 + 528);
	oki_geometry_fini(&g);
	oki_geometry_fini(&g);
	oki_schema_fini(&schema);
}
END_TEST

/* S1: rows of 584 bytes in rows of 585. */
START_TEST(padded_rows_are_accepted)
{
	struct okv_error err;
	struct okv_layer layer = {
		address(0), 156349440, 149760, 1044, 1, {0}, {149504}, {0},
	};
	ck_assert_int_eq(try_one(149504, layer, &err), 0);
	layer.page_count = 1045;
	ck_assert_int_eq(try_one(149504, layer, &err), OKV_E_INVAL);
}
END_TEST

/* S2 */
START_TEST(one_byte_past_the_allocation_is_refused)
{
	static const uint64_t sizes[] = {1, 7, 9, 584};
	for (size_t i = 0; i < 4; i++) {
		struct okv_error err;
		uint64_t span = 9 * 584 + sizes[i];
		struct okv_layer layer = {address(0), span, 584, 10, 1, {0}, {sizes[i]}, {0}};
		ck_assert_int_eq(try_one(sizes[i], layer, &err), 0);
		layer.segment_offset[0] = 1;
		ck_assert_int_eq(try_one(sizes[i], layer, &err), OKV_E_INVAL);
		layer.segment_offset[0] = 0;
		layer.length--;
		ck_assert_int_eq(try_one(sizes[i], layer, &err), OKV_E_INVAL);
	}
}
END_TEST

/* S3 */
START_TEST(declared_length_must_hold_the_stride)
{
	struct okv_error err;
	struct okv_layer layer = {
		address(0), 28743ull * 4096, 4160, 28743, 1, {0}, {4096}, {0},
	};
	ck_assert_int_eq(try_one(4096, layer, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "layer 0"));
	ck_assert_ptr_nonnull(strstr(err.text, "28743"));
	ck_assert_ptr_nonnull(strstr(err.text, "117731328"));
	layer.length = 28742ull * 4160 + 4096;
	ck_assert_int_eq(try_one(4096, layer, &err), 0);
	layer.length--;
	ck_assert_int_eq(try_one(4096, layer, &err), OKV_E_INVAL);
}
END_TEST

/* S4 */
START_TEST(segments_must_be_explicit)
{
	static const uint64_t block[2] = {8192, 8192};
	struct okv_error err;
	struct oki_schema schema;
	struct okv_layer layer = {
		address(0), 97871ull * 16384, 16384, 97871, 0, {0, 8192}, {8192, 8192}, {0},
	};
	uniform_schema(&schema, 1, 16, 2, block);
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	layer.segment_count = 1;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	layer.segment_count = 2;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), 0);
	oki_schema_fini(&schema);
}
END_TEST

/* S6 */
START_TEST(bytes_per_page_must_agree)
{
	static const uint64_t block[2] = {4096, 512};
	struct okv_error err;
	struct oki_schema schema;
	uniform_schema(&schema, 2, 16, 2, block);
	struct okv_layer good[2] = {
		{address(0), 65536, 2048, 8, 2, {0, 1024}, {1024, 128}, {0}},
		{address(65536), 65536, 2048, 8, 2, {0, 1024}, {1024, 128}, {0}},
	};
	struct okv_layer layers[2];
	ck_assert_int_eq(try_layers(&schema, good, 2, &err), 0);
#define REFUSED(change)                                                              \
	do {                                                                         \
		memcpy(layers, good, sizeof(layers));                                \
		change;                                                              \
		ck_assert_int_eq(try_layers(&schema, layers, 2, &err), OKV_E_INVAL); \
	} while (0)
	REFUSED(layers[1].segment_bytes[0] = 1000);
	ck_assert_ptr_nonnull(strstr(err.text, "layer 1"));
	ck_assert_ptr_nonnull(strstr(err.text, "1000"));
	ck_assert_ptr_nonnull(strstr(err.text, "4096"));
	REFUSED(layers[1].segment_bytes[1] = 256);
	ck_assert_ptr_nonnull(strstr(err.text, "segment 1"));
	REFUSED(layers[1].segment_bytes[0] = 512; layers[1].segment_bytes[1] = 64);
	REFUSED(layers[0].segment_bytes[0] = 0);
	REFUSED(layers[0].segment_bytes[0] = 8192);
	/* 32 pages for 16 tokens */
	REFUSED(for (int i = 0; i < 2; i++) {
		layers[i].segment_bytes[0] = 128;
		layers[i].segment_bytes[1] = 16;
	});
	REFUSED(layers[0].base = NULL);
	REFUSED(layers[0].length = 0);
	REFUSED(layers[0].page_count = 0);
	REFUSED(layers[1].page_stride = UINT64_MAX / 2);
	REFUSED(layers[1].segment_offset[1] = UINT64_MAX - 10);
	REFUSED(layers[1].length = UINT64_MAX);
	REFUSED(layers[1].page_stride = 0);
#undef REFUSED
	ck_assert_int_eq(try_layers(&schema, good, 1, &err), OKV_E_INVAL);
	ck_assert_int_eq(try_layers(&schema, NULL, 2, &err), OKV_E_INVAL);
	oki_schema_fini(&schema);
}
END_TEST

/* S7 */
START_TEST(layers_that_share_bytes_are_refused)
{
	static const uint64_t block = 1024;
	struct okv_error err;
	struct oki_schema schema;
	struct okv_layer layers[3] = {
		{address(0), 8192, 1024, 8, 1, {0}, {1024}, {0}},
		{address(8192), 8192, 1024, 8, 1, {0}, {1024}, {0}},
		{address(16384), 8192, 1024, 8, 1, {0}, {1024}, {0}},
	};
	uniform_schema(&schema, 3, 16, 1, &block);
	ck_assert_int_eq(try_layers(&schema, layers, 3, &err), 0);
	layers[2].base = layers[0].base;
	ck_assert_int_eq(try_layers(&schema, layers, 3, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "layers 0 and 2"));
	layers[2].base = address(16383);
	ck_assert_int_eq(try_layers(&schema, layers, 3, &err), OKV_E_INVAL);
	oki_schema_fini(&schema);
}
END_TEST

/* All layers of one page side by side, K and V of each; as fused engines allocate them. */
START_TEST(interleaved_layers_are_accepted)
{
	static const uint64_t block[2] = {1024, 1024};
	struct okv_error err;
	struct oki_schema schema;
	struct okv_layer layers[64];
	uniform_schema(&schema, 64, 16, 2, block);
	for (uint32_t i = 0; i < 64; i++)
		layers[i] = (struct okv_layer){
			address(i * 2048ull),
			1000 * 131072ull - i * 2048ull,
			131072,
			1000,
			2,
			{0, 1024},
			{1024, 1024},
			{0},
		};
	ck_assert_int_eq(try_layers(&schema, layers, 64, &err), 0);
	layers[63].segment_offset[1] = 1025; /* its last byte is the next page's first */
	layers[63].length++;
	ck_assert_int_eq(try_layers(&schema, layers, 64, &err), OKV_E_INVAL);
	oki_schema_fini(&schema);
}
END_TEST

/* K in the first half of a tensor, V in the second. */
START_TEST(segments_may_lie_beyond_the_stride)
{
	static const uint64_t block[2] = {1024, 1024};
	struct okv_error err;
	struct oki_schema schema;
	struct okv_layer layer = {
		address(0), 200 * 1024, 1024, 100, 2, {0, 100 * 1024}, {1024, 1024}, {0},
	};
	uniform_schema(&schema, 1, 16, 2, block);
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), 0);
	layer.segment_offset[1]--;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "segments 0 and 1"));
	oki_schema_fini(&schema);
}
END_TEST

/* What is wrong is the stride, whichever segments then share bytes. */
/* Two groups of one layer each, the second one's pages `times` as large. */
static int try_shared(uint64_t base, uint64_t stride, uint32_t times, bool flag,
		      struct oki_geometry *ret_geometry)
{
	struct okv_layer_schema layers[2] = {
		{.order = 0, .segment_count = 1, .segment_bytes = {512}},
		{.order = 1, .segment_count = 1, .segment_bytes = {512ull * times}},
	};
	struct okv_group_schema groups[2] = {
		{OKV_GROUP_FULL, 16, 0, 1, "NHD", &layers[0]},
		{OKV_GROUP_FULL, 16, 0, 1, "NHD", &layers[1]},
	};
	const struct okv_namespace_options opts = {.size = sizeof(opts),
						   .rank_slots = 1,
						   .model = "m",
						   .pipeline_stages = 1,
						   .group_count = 2,
						   .groups = groups};
	const struct okv_layer tensors[2] = {
		{address(0), 1 << 20, 512, 64, 1, {0}, {512}, {0}},
		{address(base), 1 << 20, stride, 16, 1, {0}, {512ull * times}, {0}},
	};
	struct oki_schema schema;
	ck_assert_int_eq(oki_schema_init(&schema, &opts, NULL), 0);
	int rc = oki_geometry_init(ret_geometry, &schema, tensors, 2, flag, NULL);
	oki_schema_fini(&schema);
	return rc;
}

START_TEST(groups_share_bytes_only_where_one_asks)
{
	struct oki_geometry g;
	ck_assert_int_eq(try_shared(0, 512, 1, false, &g), OKV_E_INVAL);
	ck_assert_int_eq(try_shared(0, 512, 1, true, &g), 0);
	ck_assert_uint_eq(g.page_units[0], 1);
	ck_assert_uint_eq(g.page_units[1], 1);
	oki_geometry_fini(&g);
	/* Larger pages have the bytes of several. */
	ck_assert_int_eq(try_shared(0, 2048, 4, true, &g), 0);
	ck_assert_uint_eq(g.page_units[0], 1);
	ck_assert_uint_eq(g.page_units[1], 4);
	oki_geometry_fini(&g);
	/* Pages whose units cannot be compared. */
	ck_assert_int_eq(try_shared(512, 512, 1, true, &g), OKV_E_INVAL);
	ck_assert_int_eq(try_shared(0, 768, 1, true, &g), OKV_E_INVAL);
	/* Beside each other nothing is shared. */
	ck_assert_int_eq(try_shared(1 << 20, 2048, 4, true, &g), 0);
	oki_geometry_fini(&g);
}
END_TEST

START_TEST(a_stride_that_is_too_small_is_called_so)
{
	static const uint64_t block[2] = {1024, 1024};
	struct okv_error err;
	struct oki_schema schema;
	struct okv_layer layer = {
		address(0), 200 * 1024, 2048, 100, 2, {0, 1024}, {1024, 1024}, {0},
	};
	uniform_schema(&schema, 1, 16, 2, block);
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), 0);
	layer.page_stride = 1024;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	ck_assert_str_eq(err.text, "layer 0: page_stride 1024 is too small: segment 1 of a page "
				   "and 0 of the next share bytes");
	layer.page_stride = 1023;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	ck_assert_str_eq(err.text, "layer 0, segment 0: page_stride 1023 is too small for pages of "
				   "1024 bytes");
	/* No stride would help these. */
	layer.page_stride = 2048;
	layer.segment_offset[1] = 1023;
	ck_assert_int_eq(try_layers(&schema, &layer, 1, &err), OKV_E_INVAL);
	ck_assert_str_eq(err.text, "layer 0: segments 0 and 1 share bytes");
	oki_schema_fini(&schema);
}
END_TEST

START_TEST(state_pages_need_no_whole_tokens)
{
	struct okv_layer_schema layer = {0, 1, {3000}};
	struct okv_group_schema group = {OKV_GROUP_STATE, 16, 0, 1, "S", &layer};
	struct okv_namespace_options opts = {
		.size = sizeof(opts),
		.rank_slots = 1,
		.model = "m",
		.pipeline_stages = 1,
		.group_count = 1,
		.groups = &group,
	};
	struct okv_layer tensor = {address(0), 30000, 1000, 30, 1, {0}, {1000}, {0}};
	struct oki_schema schema;
	struct okv_error err;
	ck_assert_int_eq(oki_schema_init(&schema, &opts, NULL), 0);
	ck_assert_int_eq(try_layers(&schema, &tensor, 1, &err), 0);
	oki_schema_fini(&schema);
	group.kind = OKV_GROUP_FULL;
	ck_assert_int_eq(oki_schema_init(&schema, &opts, NULL), 0);
	ck_assert_int_eq(try_layers(&schema, &tensor, 1, &err), OKV_E_INVAL);
	oki_schema_fini(&schema);
}
END_TEST

static void comb_bytes(const struct oki_comb *comb, uint8_t *used, bool *ret_twice)
{
	for (uint32_t i = 0; i < comb->count; i++)
		for (uint64_t b = 0; b < comb->bytes; b++) {
			uint8_t *at = &used[comb->start + i * comb->stride + b];
			*ret_twice |= *at;
			*at = 1;
		}
}

static bool meet_by_bytes(const struct oki_comb *a, const struct oki_comb *b)
{
	static uint8_t used_a[4096], used_b[4096];
	bool ignored = false;
	memset(used_a, 0, sizeof(used_a));
	memset(used_b, 0, sizeof(used_b));
	comb_bytes(a, used_a, &ignored);
	comb_bytes(b, used_b, &ignored);
	for (size_t i = 0; i < sizeof(used_a); i++)
		if (used_a[i] & used_b[i])
			return true;
	return false;
}

static struct oki_comb random_comb(void)
{
	struct oki_comb comb = {
		.start = random_below(300),
		.bytes = 1 + random_below(random_below(4) ? 4 : 40),
		.stride = random_below(100),
		.count = 1 + (uint32_t)random_below(random_below(4) ? 30 : 2),
	};
	return comb;
}

START_TEST(combs_agree_with_a_byte_map)
{
	unsigned met = 0, apart = 0;
	random_state = 88172645463325252ull;
	for (int round = 0; round < 20000; round++) {
		struct oki_comb a = random_comb();
		struct oki_comb b = random_comb();
		if (round % 3 == 0)
			b.stride = a.stride;
		bool want = meet_by_bytes(&a, &b);
		ck_assert_msg(oki_combs_meet(&a, &b) == want && oki_combs_meet(&b, &a) == want,
			      "round %d: want %d", round, want);
		met += want;
		apart += !want;
	}
	ck_assert_uint_gt(met, 1000);
	ck_assert_uint_gt(apart, 1000);
}
END_TEST

/* Two tensors of millions of pages whose strides meet once, near the end. */
START_TEST(combs_are_exact_at_full_size)
{
	struct oki_comb a = {
		BASE,
		1,
		1000003,
		4000000,
	};
	struct oki_comb b = {BASE + 1000003ull * 3999999 - 999983ull * 3000000, 1, 999983, 4000000};
	ck_assert(oki_combs_meet(&a, &b));
	ck_assert(oki_combs_meet(&b, &a));
	/* without the one page of b that meets it: the next meeting is 999,983 pages of a away */
	a.count = 999983;
	b.start = BASE + 1000003ull * 999982 - 999983ull * 10;
	ck_assert(oki_combs_meet(&a, &b));
	a.count--;
	ck_assert(!oki_combs_meet(&a, &b));
	ck_assert(!oki_combs_meet(&b, &a));
	/* the ends of the address space */
	struct oki_comb low = {1, 100, UINT64_MAX / 4, 4};
	struct oki_comb high = {UINT64_MAX - 200, 100, 1, 1};
	ck_assert(!oki_combs_meet(&low, &high));
	ck_assert(!oki_combs_meet(&high, &low));
}
END_TEST

/* One random layer of two segments; its bytes are marked in used. */
static bool random_geometry(const struct oki_schema *schema, struct oki_geometry *geometry,
			    uint8_t *used)
{
	struct okv_layer layers[2];
	bool twice = false;
	memset(used, 0, 8192);
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t start = random_below(400);
		layers[i] = (struct okv_layer){
			.base = address(start),
			.length = 8192 - start,
			.page_stride = random_below(120),
			.page_count = 1 + (uint32_t)random_below(12),
			.segment_count = 2,
			.segment_offset = {random_below(60), random_below(200)},
			.segment_bytes = {8, 3},
		};
		for (uint32_t s = 0; s < 2; s++) {
			struct oki_comb comb = {
				start + layers[i].segment_offset[s],
				layers[i].segment_bytes[s],
				layers[i].page_stride,
				layers[i].page_count,
			};
			comb_bytes(&comb, used, &twice);
		}
	}
	int rc = oki_geometry_init(geometry, schema, layers, 2, false, NULL);
	ck_assert_int_eq(rc, twice ? OKV_E_INVAL : 0);
	return rc == 0;
}

START_TEST(geometries_agree_with_a_byte_map)
{
	static const uint64_t block[2] = {16, 6};
	static uint8_t used_a[8192], used_b[8192];
	struct oki_schema schema;
	unsigned met = 0, apart = 0;
	random_state = 1234567;
	uniform_schema(&schema, 2, 16, 2, block);
	for (int round = 0; round < 4000; round++) {
		struct oki_geometry a, b;
		bool want = false;
		if (!random_geometry(&schema, &a, used_a))
			continue;
		if (!random_geometry(&schema, &b, used_b)) {
			oki_geometry_fini(&a);
			continue;
		}
		for (size_t i = 0; i < sizeof(used_a); i++)
			want |= used_a[i] & used_b[i];
		ck_assert(oki_geometry_overlaps(&a, &b) == want);
		ck_assert(oki_geometry_overlaps(&b, &a) == want);
		met += want;
		apart += !want;
		oki_geometry_fini(&a);
		oki_geometry_fini(&b);
	}
	ck_assert_uint_gt(met, 10);
	ck_assert_uint_gt(apart, 10);
	oki_schema_fini(&schema);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("geometry");
	TCase *tc = tcase_create("geometry");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, maps_are_filled);
	tcase_add_test(tc, padded_rows_are_accepted);
	tcase_add_test(tc, one_byte_past_the_allocation_is_refused);
	tcase_add_test(tc, declared_length_must_hold_the_stride);
	tcase_add_test(tc, segments_must_be_explicit);
	tcase_add_test(tc, bytes_per_page_must_agree);
	tcase_add_test(tc, layers_that_share_bytes_are_refused);
	tcase_add_test(tc, interleaved_layers_are_accepted);
	tcase_add_test(tc, segments_may_lie_beyond_the_stride);
	tcase_add_test(tc, groups_share_bytes_only_where_one_asks);
	tcase_add_test(tc, a_stride_that_is_too_small_is_called_so);
	tcase_add_test(tc, state_pages_need_no_whole_tokens);
	tcase_add_test(tc, combs_agree_with_a_byte_map);
	tcase_add_test(tc, combs_are_exact_at_full_size);
	tcase_add_test(tc, geometries_agree_with_a_byte_map);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
