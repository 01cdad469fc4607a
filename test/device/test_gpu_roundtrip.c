/* SPDX-License-Identifier: Apache-2.0 */
/* Publish and restore on a GPU: every byte of every tensor, in every layout, gaps included. */
#include "device/gpu_support.h"
#include "device/gpu_models.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (1ull << 30)
#define PUBLISHED 0x3cu /* background while published, */
#define POISON 0xe1u	/* and before a restore */

static struct gpu_model models[GPU_MAX_MODELS];
static uint32_t model_count;
static struct okv_engine *engine;
static uint64_t next_seq = 1;

/* Keeps the arenas pinned, so that each test's binding pins them once more and at once. */
static struct okv_layer_schema anchor_layer = {.segment_count = 1, .segment_bytes = {64}};
static const struct okv_group_schema anchor_group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 1,
	.layer_count = 1,
	.layout_tag = "anchor",
	.layers = &anchor_layer,
};
static struct okv_namespace *anchor_ns;
static struct gpu_kv anchor;

static void setup(void)
{
	const uint32_t one = 1;
	engine = kv_engine_embedded(MEMORY, 0);
	anchor_ns = kv_groups_open(engine, &anchor_group, 1, 1);
	gpu_kv_place(&anchor, &anchor_group, 1, KV_PLACE_PAGES, &one, &one, 0);
	kv_ok(gpu_kv_register(&anchor, anchor_ns, kv_err));
}

static void teardown(void)
{
	gpu_kv_close(&anchor);
	okv_namespace_close(anchor_ns);
	okv_engine_close(engine);
}

struct form {
	enum kv_place place;
	bool shuffled;
	bool one_token; /* pages */
	uint32_t pad;
};

/* What one round trip works with: a group's pages, and blocks in them. */
struct trip {
	struct gpu_kv kv;
	uint32_t groups;
	uint32_t count; /* blocks of each group */
	uint64_t seq;
	uint32_t *from[OKV_MAX_GROUPS];
	uint32_t *to[OKV_MAX_GROUPS];
};

/* Three times the pages that are needed, so that most stay untouched. */
static uint32_t pages_of(uint32_t count, uint32_t per_block)
{
	return 3 * count * per_block + 1;
}

static void choose_pages(struct trip *t, const uint32_t *per_block, bool shuffled)
{
	for (uint32_t g = 0; g < t->groups; g++) {
		uint32_t n = t->count * per_block[g], total = pages_of(t->count, per_block[g]);
		t->from[g] = gpu_pages(total, n, 1, shuffled ? 7 + g : 0);
		t->to[g] = gpu_pages(total, n, n + 2, shuffled ? 1007 + g : 0);
	}
}

static uint64_t blocks_bytes(const struct okv_group_schema *group, uint32_t count)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < group->layer_count; i++)
		for (uint32_t s = 0; s < group->layers[i].segment_count; s++)
			bytes += group->layers[i].segment_bytes[s];
	return bytes * count;
}

static void publish(struct trip *t)
{
	struct kv_blocks b[OKV_MAX_GROUPS];
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < t->groups; g++) {
		b[g] = (struct kv_blocks){.group = g, .count = t->count, .pages = t->from[g]};
		bytes += blocks_bytes(&t->kv.image.groups[g], t->count);
	}
	struct okv_op *op;
	struct okv_op_result r;
	gpu_kv_image(&t->kv, PUBLISHED, t->seq, b, t->groups);
	gpu_kv_upload(&t->kv);
	kv_ok(gpu_publish_start(&t->kv, t->seq, b, t->groups, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, &r), 0);
	ck_assert_uint_eq(r.blocks, (uint64_t)t->count * t->groups);
	ck_assert_uint_eq(r.bytes, bytes);
	ck_assert_uint_eq(gpu_kv_differs(&t->kv), 0);
}

static void restore(struct trip *t)
{
	struct kv_blocks b[OKV_MAX_GROUPS];
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	uint32_t counts[OKV_MAX_GROUPS];
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < t->groups; g++)
		counts[g] = t->count;
	uint64_t tokens =
		kv_groups_lookup(t->kv.image.ns, t->seq, counts, t->groups, 1, &found, &lease);
	ck_assert_uint_eq(tokens, (uint64_t)t->count * t->kv.image.groups[0].block_tokens);
	for (uint32_t g = 0; g < t->groups; g++) {
		ck_assert_uint_eq(found.groups[g].first + found.groups[g].count, t->count);
		b[g] = (struct kv_blocks){.group = g,
					  .first = found.groups[g].first,
					  .count = found.groups[g].count,
					  .pages = t->to[g]};
		bytes += blocks_bytes(&t->kv.image.groups[g], b[g].count);
	}
	struct okv_op *op;
	struct okv_op_result r;
	gpu_kv_image(&t->kv, POISON, 0, NULL, 0);
	gpu_kv_upload(&t->kv);
	kv_ok(gpu_restore_start(&t->kv, lease, b, t->groups, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, &r), 0);
	ck_assert_uint_eq(r.bytes, bytes);
	gpu_kv_image(&t->kv, POISON, t->seq, b, t->groups);
	ck_assert_uint_eq(gpu_kv_differs(&t->kv), 0);
	okv_lease_release(lease);
}

/* The tensors are placed already. */
static void trip_with(struct trip *t, const struct okv_group_schema *groups, uint32_t group_count,
		      const uint32_t *per_block, uint32_t count, bool shuffled)
{
	struct okv_namespace *ns = kv_groups_open(engine, groups, group_count, 1);
	t->groups = group_count;
	t->count = count;
	t->seq = next_seq++;
	choose_pages(t, per_block, shuffled);
	kv_ok(gpu_kv_register(&t->kv, ns, kv_err));
	publish(t);
	restore(t);
	gpu_kv_close(&t->kv);
	for (uint32_t g = 0; g < group_count; g++) {
		free(t->from[g]);
		free(t->to[g]);
	}
	okv_namespace_close(ns);
}

static void trip(const struct okv_group_schema *groups, uint32_t group_count,
		 const uint32_t *per_block, uint32_t count, const struct form *form)
{
	struct trip t;
	uint32_t pages[OKV_MAX_GROUPS];
	for (uint32_t g = 0; g < group_count; g++)
		pages[g] = pages_of(count, per_block[g]);
	gpu_kv_place(&t.kv, groups, group_count, form->place, pages, per_block, form->pad);
	trip_with(&t, groups, group_count, per_block, count, form->shuffled);
}

/* Fused K/V, split K/V and cross-layer tensors; whole blocks and one-token pages. */
static const struct form forms[] = {
	{KV_PLACE_PAGES, false, false, 0},  {KV_PLACE_PAGES, true, false, 0},
	{KV_PLACE_HALVES, false, false, 0}, {KV_PLACE_HALVES, true, false, 0},
	{KV_PLACE_CROSS, false, false, 0},  {KV_PLACE_CROSS, true, false, 0},
	{KV_PLACE_PAGES, true, true, 0},    {KV_PLACE_HALVES, false, true, 0},
	{KV_PLACE_CROSS, true, true, 0},    {KV_PLACE_PAGES, true, false, 256},
	{KV_PLACE_CROSS, false, false, 48},
};
#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* About 16 MiB of blocks; more than a window where there is one. */
static uint32_t blocks_for(const struct gpu_model *m)
{
	uint64_t n = (16u << 20) / m->block_bytes;
	n = n < 3 ? 3 : n;
	n = n > 16 ? 16 : n;
	for (uint32_t g = 0; g < m->group_count; g++)
		if (n < m->groups[g].window_tokens / m->block_tokens + 2)
			n = m->groups[g].window_tokens / m->block_tokens + 2;
	return (uint32_t)n;
}

START_TEST(r1_every_model_in_every_layout)
{
	const struct gpu_model *m = &models[(unsigned)_i / FORMS];
	const struct form *form = &forms[(unsigned)_i % FORMS];
	struct okv_layer_schema *layers = calloc(OKV_MAX_LAYERS, sizeof(*layers));
	struct okv_group_schema groups[OKV_MAX_GROUPS];
	uint32_t per_block[OKV_MAX_GROUPS];
	gpu_model_schema(m, layers, groups);
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < m->group_count; g++) {
		per_block[g] = form->one_token ? m->block_tokens : 1;
		bytes += blocks_bytes(&groups[g], 1);
	}
	ck_assert_msg(bytes == m->block_bytes, "%s: blocks of %llu bytes", m->name,
		      (unsigned long long)bytes);
	trip(groups, m->group_count, per_block, blocks_for(m), form);
	free(layers);
}
END_TEST

START_TEST(s2_odd_sizes_in_padded_rows)
{
	const uint32_t sizes[] = {1, 7, 9, 584}, pads[] = {3, 1, 0};
	const struct form *form = &forms[(unsigned)_i % 6];
	struct okv_layer_schema layers[5] = {{.order = 0}};
	for (uint32_t i = 0; i < 4; i++)
		for (uint32_t p = 0; p < 3; p++)
			for (uint32_t per_block = 1; per_block <= 4; per_block *= 4) {
				for (uint32_t l = 0; l < 5; l++) {
					layers[l].order = l;
					layers[l].segment_count = 3;
					layers[l].segment_bytes[0] = sizes[i] * per_block;
					layers[l].segment_bytes[1] = sizes[i] * per_block;
					layers[l].segment_bytes[2] = sizes[(i + l) % 4] * per_block;
				}
				struct okv_group_schema group = {
					.kind = OKV_GROUP_FULL,
					.block_tokens = 16,
					.layer_count = 5,
					.layout_tag = "odd",
					.layers = layers,
				};
				struct form padded = *form;
				padded.pad = pads[p];
				trip(&group, 1, &per_block, 24, &padded);
			}
}
END_TEST

/* 1,044 rows of 256 × 584 bytes at a row stride of 585, three of them restored. */
START_TEST(s1_padded_rows_of_a_view)
{
	const uint32_t pages = 1044, from[3] = {1, 518, 1042}, to[3] = {0, 517, 1043};
	const uint32_t one = 1;
	struct okv_layer_schema layer = {.segment_count = 1, .segment_bytes = {149504}};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = 256,
					 .layer_count = 1,
					 .layout_tag = "rows",
					 .layers = &layer};
	struct trip t = {.groups = 1, .count = 3, .seq = next_seq++};
	struct okv_namespace *ns = kv_groups_open(engine, &group, 1, 1);
	gpu_kv_place(&t.kv, &group, 1, KV_PLACE_PAGES, &pages, &one, 256);
	ck_assert_uint_eq(t.kv.layers[0].page_stride, 149760);
	t.from[0] = (uint32_t *)(uintptr_t)from;
	t.to[0] = (uint32_t *)(uintptr_t)to;
	kv_ok(gpu_kv_register(&t.kv, ns, kv_err));
	publish(&t);
	restore(&t);
	gpu_kv_close(&t.kv);
	okv_namespace_close(ns);
}
END_TEST

/* A full group, a sliding window and a recurrent state, of different sizes. */
START_TEST(hybrid_groups_of_three_kinds)
{
	const struct form *form = &forms[(unsigned)_i % 6];
	struct okv_layer_schema full[3], window[6], state[2];
	const uint32_t per_block[3] = {16, 4, 1};
	memset(full, 0, sizeof(full));
	memset(window, 0, sizeof(window));
	memset(state, 0, sizeof(state));
	for (uint32_t i = 0; i < 3; i++)
		full[i] = (struct okv_layer_schema){3 * i, 2, {16 * 1024, 16 * 1024}};
	for (uint32_t i = 0; i < 6; i++)
		window[i] = (struct okv_layer_schema){20 + i, 2, {4 * 520, 4 * 520}};
	for (uint32_t i = 0; i < 2; i++)
		state[i] = (struct okv_layer_schema){40 + i, 3, {70000, 24, 4099}};
	const struct okv_group_schema groups[3] = {
		{OKV_GROUP_FULL, 16, 0, 3, "NHD", full},
		{OKV_GROUP_WINDOW, 16, 64, 6, "NHD", window},
		{OKV_GROUP_STATE, 16, 0, 2, "ssm", state},
	};
	trip(groups, 3, per_block, 12, form);
}
END_TEST

static uint8_t *get_interior(void *arg, uint64_t bytes)
{
	void **ret_allocation = arg;
	gpu_ok(cudaMalloc(ret_allocation, bytes + 512));
	return (uint8_t *)*ret_allocation + 512;
}

static struct okv_layer_schema plain_layers[6];
static const struct okv_group_schema plain = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layer_count = 6,
	.layout_tag = "NHD",
	.layers = plain_layers,
};

static void fill_plain(void)
{
	for (uint32_t i = 0; i < 6; i++)
		plain_layers[i] = (struct okv_layer_schema){i, 2, {16384, 16384}};
}

START_TEST(s36_at_an_interior_address)
{
	struct trip t;
	void *allocation = NULL;
	const uint32_t per_block = 1, pages = pages_of(16, 1);
	fill_plain();
	gpu_kv_place_in(&t.kv, &plain, 1, KV_PLACE_PAGES, &pages, &per_block, 0, get_interior,
			&allocation);
	trip_with(&t, &plain, 1, &per_block, 16, _i);
	gpu_ok(cudaFree(allocation));
}
END_TEST

/* One address range of several physical pieces. */
struct pieces {
	CUdeviceptr base;
	size_t piece;
	uint32_t count;
	CUmemGenericAllocationHandle handles[64];
};

static uint8_t *get_pieces(void *arg, uint64_t bytes)
{
	struct pieces *p = arg;
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemAccessDesc access = {.location = prop.location,
				  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	gpu_must(cu.cuMemGetAllocationGranularity(&p->piece, &prop,
						  CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	p->count = (uint32_t)((bytes + p->piece - 1) / p->piece);
	ck_assert(p->count > 1 && p->count <= 64);
	gpu_must(cu.cuMemAddressReserve(&p->base, p->count * p->piece, 0, 0, 0));
	for (uint32_t i = 0; i < p->count; i++) {
		gpu_must(cu.cuMemCreate(&p->handles[i], p->piece, &prop, 0));
		gpu_must(cu.cuMemMap(p->base + i * p->piece, p->piece, 0, p->handles[i], 0));
	}
	gpu_must(cu.cuMemSetAccess(p->base, p->count * p->piece, &access, 1));
	return (uint8_t *)p->base;
}

static void free_pieces(struct pieces *p)
{
	for (uint32_t i = 0; i < p->count; i++) {
		gpu_must(cu.cuMemUnmap(p->base + i * p->piece, p->piece));
		gpu_must(cu.cuMemRelease(p->handles[i]));
	}
	gpu_must(cu.cuMemAddressFree(p->base, p->count * p->piece));
}

START_TEST(s36_in_mapped_pieces)
{
	struct trip t;
	struct pieces pieces = {.base = 0};
	const uint32_t per_block = 4, pages = pages_of(16, 4);
	fill_plain();
	gpu_kv_place_in(&t.kv, &plain, 1, KV_PLACE_CROSS, &pages, &per_block, 0, get_pieces,
			&pieces);
	trip_with(&t, &plain, 1, &per_block, 16, _i);
	free_pieces(&pieces);
}
END_TEST

/* The oracle can fail: one byte of one page, and one byte of a gap. */
START_TEST(the_oracle_sees_one_byte)
{
	struct gpu_kv k;
	const uint32_t per_block = 1, pages = 8;
	fill_plain();
	gpu_kv_place(&k, &plain, 1, KV_PLACE_PAGES, &pages, &per_block, 16);
	gpu_kv_image(&k, POISON, 0, NULL, 0);
	gpu_kv_upload(&k);
	ck_assert_uint_eq(gpu_kv_differs(&k), 0);
	gpu_ok(cudaMemset(k.memory + 512 + 16384 * 3, 0, 1));
	gpu_ok(cudaDeviceSynchronize());
	ck_assert_uint_eq(gpu_kv_differs(&k), 1);
	gpu_ok(cudaMemset(k.memory + k.image.bytes - 1, 0, 1));
	gpu_ok(cudaDeviceSynchronize());
	ck_assert_uint_eq(gpu_kv_differs(&k), 2);
	gpu_kv_close(&k);
}
END_TEST

int main(void)
{
	char source[512];
	int rc = gpu_find();
	if (rc)
		return rc;
	model_count = gpu_models(models, source, sizeof(source));
	printf("%u models of %s\n", model_count, source);
	Suite *suite = suite_create("gpu round trips");
	TCase *t = tcase_create("bytes");
	tcase_set_timeout(t, 0);
	tcase_add_unchecked_fixture(t, setup, teardown);
	tcase_add_test(t, the_oracle_sees_one_byte);
	tcase_add_loop_test(t, r1_every_model_in_every_layout, 0, (int)(model_count * FORMS));
	tcase_add_loop_test(t, s2_odd_sizes_in_padded_rows, 0, 6);
	tcase_add_test(t, s1_padded_rows_of_a_view);
	tcase_add_loop_test(t, hybrid_groups_of_three_kinds, 0, 6);
	tcase_add_loop_test(t, s36_at_an_interior_address, 0, 2);
	tcase_add_loop_test(t, s36_in_mapped_pieces, 0, 2);
	suite_add_tcase(suite, t);
	return kv_suite_run_here(suite);
}
