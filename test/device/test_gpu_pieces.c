/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas that are registered in pieces, by each path: blocks that lie across two pieces, pieces
 * that the driver refuses, bindings with different limits. */
#include "device/gpu_case.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One run of all tests. */
static const struct config {
	const char *name;
	const char *path;
	const char *limit;
	size_t limit_bytes;
} configs[] = {
	{"gpu pieces, dma", "dma", "2M", 2u << 20},
	{"gpu pieces, auto", "auto", "6M", 6u << 20},
	{"gpu pieces, kernel", "kernel", "2048K", 2u << 20},
};
static const struct config *config;

static void limit_is(const char *limit)
{
	ck_assert_int_eq(setenv("ORBITKV_PIN_LIMIT", limit, 1), 0);
}

/* ---- bytes ---- */

/* Blocks of 2.1 MiB: with pieces of 2 MiB not one lies in a single piece. */
START_TEST(s30_an_arena_pinned_in_pieces)
{
	for (uint64_t round = 0; round < 3; round++) {
		struct okv_lease *lease = case_stored(900 + round);
		struct okv_op *op;
		kv_ok(gpu_restore_start(&cs.kv, lease, &cs.target, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, NULL), 0);
		gpu_kv_image(&cs.kv, CASE_POISON, cs.seq, &cs.target, 1);
		ck_assert_uint_eq(gpu_kv_differs(&cs.kv), 0);
		okv_lease_release(lease);
	}
}
END_TEST

#define SMALL_LAYERS 4u
#define SMALL_SEGMENT 5000u
#define SMALL_COUNT 600u /* 24 MB: a dozen boundaries, of which few fall between two rows */

static struct okv_layer_schema small_layers[SMALL_LAYERS];
static const struct okv_group_schema small_group = {
	.kind = OKV_GROUP_FULL,
	.block_tokens = 16,
	.layer_count = SMALL_LAYERS,
	.layout_tag = "NHD",
	.layers = small_layers,
};

static void small_restored(struct gpu_kv *kv, struct okv_namespace *ns, uint64_t seq,
			   uint64_t shuffle)
{
	const uint32_t n = SMALL_COUNT;
	struct kv_blocks to = {.count = n, .pages = gpu_pages(n + 8, n, 5, shuffle)};
	struct okv_lease *lease = NULL;
	struct okv_op *op;
	gpu_kv_image(kv, CASE_POISON, 0, NULL, 0);
	gpu_kv_upload(kv);
	kv_groups_lookup(ns, seq, &n, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	kv_ok(gpu_restore_start(kv, lease, &to, 1, NULL, &op, kv_err));
	ck_assert_int_eq(gpu_finish(op, NULL), 0);
	gpu_kv_image(kv, CASE_POISON, seq, &to, 1);
	ck_assert_uint_eq(gpu_kv_differs(kv), 0);
	okv_lease_release(lease);
	free((void *)(uintptr_t)to.pages);
}

/* Rows of 5,000 bytes in rectangles, or each by itself, and a boundary anywhere in them. The second
 * binding has another limit: it takes the pieces as they are. _i: pages in a row, or scattered. */
START_TEST(s30_small_blocks_and_a_boundary_anywhere)
{
	const uint32_t per_block = 1, pages = SMALL_COUNT + 8;
	for (uint32_t i = 0; i < SMALL_LAYERS; i++)
		small_layers[i] = (struct okv_layer_schema){i, 2, {SMALL_SEGMENT, SMALL_SEGMENT}};
	struct okv_namespace *ns = kv_groups_open(cs.engine, &small_group, 1, 1);
	for (enum kv_place place = KV_PLACE_PAGES; place <= KV_PLACE_CROSS; place++) {
		uint64_t shuffle = _i ? 40 + (uint64_t)place : 0;
		uint64_t seq = 950 + 10 * (uint64_t)_i + (uint64_t)place;
		struct kv_blocks from = {.count = SMALL_COUNT,
					 .pages = gpu_pages(pages, SMALL_COUNT, 1, shuffle)};
		struct gpu_kv first, second;
		struct okv_op *op;
		struct okv_op_result r;
		gpu_kv_place(&first, &small_group, 1, place, &pages, &per_block, 0);
		kv_ok(gpu_kv_register(&first, ns, kv_err));
		gpu_kv_image(&first, CASE_OLD, seq, &from, 1);
		gpu_kv_upload(&first);
		kv_ok(gpu_publish_start(&first, seq, &from, 1, NULL, &op, kv_err));
		ck_assert_int_eq(gpu_finish(op, &r), 0);
		ck_assert_uint_eq(r.blocks, SMALL_COUNT);
		ck_assert_uint_eq(gpu_kv_differs(&first), 0);
		small_restored(&first, ns, seq, shuffle ? shuffle + 1 : 0);
		limit_is("64M");
		gpu_kv_place(&second, &small_group, 1, place, &pages, &per_block, 64);
		kv_ok(gpu_kv_register(&second, ns, kv_err));
		limit_is(config->limit);
		small_restored(&second, ns, seq, shuffle ? shuffle + 2 : 0);
		gpu_kv_close(&first);
		small_restored(&second, ns, seq, 0);
		gpu_kv_close(&second);
		free((void *)(uintptr_t)from.pages);
	}
	okv_namespace_close(ns);
}
END_TEST

/* ---- registrations ---- */

struct shard {
	uint8_t *base;
	size_t bytes;
};
#define SHARDS 16u

/* Every mapping of the pool in this process; the engine's own are among them. */
static uint32_t find_shards(struct shard *shards)
{
	char line[512];
	uint32_t n = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	ck_assert_ptr_nonnull(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long start, end;
		if (!strstr(line, "orbitkv-shard") || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		ck_assert_uint_lt(n, SHARDS);
		shards[n].base = (uint8_t *)start;
		shards[n++].bytes = end - start;
	}
	fclose(maps);
	ck_assert_uint_gt(n, 0);
	return n;
}

/* None of it is registered, by anybody. */
static void all_are_free(const struct shard *shards, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		gpu_ok(cudaHostRegister(shards[i].base, shards[i].bytes, 0));
		gpu_ok(cudaHostUnregister(shards[i].base));
	}
}

/* An engine of its own, whose pool is mapped and not registered: a host binding did that. */
struct apart {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct kv_tensors host;
	struct gpu_kv kv;
	struct shard shards[SHARDS];
	uint32_t shard_count;
};

static struct apart apart;

static void apart_setup(void)
{
	const uint32_t per_block = 1, pages = 4;
	for (uint32_t i = 0; i < SMALL_LAYERS; i++)
		small_layers[i] = (struct okv_layer_schema){i, 2, {SMALL_SEGMENT, SMALL_SEGMENT}};
	apart.engine = kv_engine_embedded(160u << 20, 0);
	apart.ns = kv_groups_open(apart.engine, &small_group, 1, 1);
	kv_tensors_place(&apart.host, &small_group, 1, 0, KV_PLACE_PAGES, &pages, &per_block, 0);
	kv_ok(kv_tensors_register(&apart.host, apart.ns, kv_err));
	gpu_kv_place(&apart.kv, &small_group, 1, KV_PLACE_PAGES, &pages, &per_block, 0);
	apart.shard_count = find_shards(apart.shards);
}

static void apart_teardown(void)
{
	gpu_kv_close(&apart.kv);
	kv_tensors_close(&apart.host);
	okv_namespace_close(apart.ns);
	okv_engine_close(apart.engine);
	ck_assert_int_eq(setenv("ORBITKV_PIN_LIMIT", config->limit, 1), 0);
}

/* Somebody else holds one piece in the middle of a shard. The pieces before it, and the shards
 * before that one, are registered no more; his is left alone. */
START_TEST(s30_a_refused_piece_takes_all_others_back)
{
	uint32_t refused = 0;
	all_are_free(apart.shards, apart.shard_count);
	for (uint32_t i = 0; i < apart.shard_count; i++) {
		uint8_t *theirs = apart.shards[i].base + 2 * config->limit_bytes;
		struct okv_error err = {0};
		unsigned flags;
		gpu_ok(cudaHostRegister(theirs, config->limit_bytes, 0));
		int rc = gpu_kv_register(&apart.kv, apart.ns, &err);
		gpu_ok(cudaPeekAtLastError());
		if (rc == 0) { /* a mapping of the Manager's, which no GPU needs */
			okv_binding_unregister(apart.kv.image.binding);
			apart.kv.image.binding = NULL;
		} else {
			char at[32];
			snprintf(at, sizeof(at), "%p", (void *)theirs);
			ck_assert_int_eq(rc, OKV_E_EXISTS);
			ck_assert_msg(strstr(err.text, at) != NULL, "%s: not %s", err.text, at);
			refused++;
		}
		gpu_ok(cudaHostGetFlags(&flags, theirs));
		gpu_ok(cudaHostUnregister(theirs));
		all_are_free(apart.shards, apart.shard_count);
	}
	ck_assert_uint_gt(refused, 0);
	kv_ok(gpu_kv_register(&apart.kv, apart.ns, kv_err));
}
END_TEST

/* The pieces are where the limit says, and unregistered all of them, also when one is gone. */
START_TEST(s30_pieces_begin_where_the_limit_says)
{
	uint32_t found = 0;
	kv_ok(gpu_kv_register(&apart.kv, apart.ns, kv_err));
	for (uint32_t i = 0; i < apart.shard_count; i++) {
		uint8_t *second = apart.shards[i].base + config->limit_bytes;
		cudaError_t rc = cudaHostUnregister(second);
		found += rc == cudaSuccess;
		cudaGetLastError();
		ck_assert_int_ne(cudaHostUnregister(second + config->limit_bytes / 2), cudaSuccess);
		cudaGetLastError();
	}
	ck_assert_uint_gt(found, 0);
	okv_binding_unregister(apart.kv.image.binding);
	apart.kv.image.binding = NULL;
	all_are_free(apart.shards, apart.shard_count);
}
END_TEST

START_TEST(a_limit_that_is_none_is_refused)
{
	static const char *const limits[] = {"0", "1M", "3M", "2 M", "2MB", "-2M", "all"};
	for (uint32_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct okv_error err = {0};
		limit_is(limits[i]);
		ck_assert_int_eq(gpu_kv_register(&apart.kv, apart.ns, &err), OKV_E_INVAL);
		ck_assert_ptr_nonnull(strstr(err.text, "ORBITKV_PIN_LIMIT"));
		ck_assert_ptr_nonnull(strstr(err.text, limits[i]));
	}
	limit_is("");
	kv_ok(gpu_kv_register(&apart.kv, apart.ns, kv_err));
}
END_TEST

static int run(const struct config *with)
{
	config = with;
	if (setenv("ORBITKV_COPY", config->path, 1) != 0 ||
	    setenv("ORBITKV_PIN_LIMIT", config->limit, 1) != 0)
		return EXIT_FAILURE;
	Suite *suite = suite_create(config->name);
	TCase *bytes = tcase_create("bytes"), *pins = tcase_create("registrations");
	tcase_add_checked_fixture(bytes, gpu_case_setup, gpu_case_teardown);
	tcase_add_test(bytes, s30_an_arena_pinned_in_pieces);
	tcase_add_loop_test(bytes, s30_small_blocks_and_a_boundary_anywhere, 0, 2);
	suite_add_tcase(suite, bytes);
	tcase_add_checked_fixture(pins, apart_setup, apart_teardown);
	tcase_add_test(pins, s30_a_refused_piece_takes_all_others_back);
	tcase_add_test(pins, s30_pieces_begin_where_the_limit_says);
	tcase_add_test(pins, a_limit_that_is_none_is_refused);
	suite_add_tcase(suite, pins);
	return kv_suite_run_here(suite);
}

int main(void)
{
	int rc = gpu_find();
	if (rc)
		return rc;
	for (uint32_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++)
		if (run(&configs[i]) != EXIT_SUCCESS)
			rc = EXIT_FAILURE;
	return rc;
}
