/* SPDX-License-Identifier: Apache-2.0 */
/* The geometries of public models (models.json), scaled down: round trips in every form. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tensors.h"

#define SCALE 4u  /* bytes per token are divided by this */
#define BLOCKS 3u /* per group */
#define PAGES 8u  /* pages of a whole block; one-token pages: times the block's tokens */

struct model {
	const char *name;
	uint32_t ranks;
	uint32_t group_count;
	uint32_t block_tokens;
	uint64_t block_bytes; /* of all groups together, as the file says */
	struct okv_layer_schema layers[OKV_MAX_LAYERS];
	struct okv_group_schema groups[OKV_MAX_GROUPS];
};

static json_t *models;
static struct okv_engine *engine;

static void setup(void)
{
	engine = kv_engine_embedded(64u << 20, 0);
}

static void teardown(void)
{
	okv_engine_close(engine);
}

static uint32_t number(const json_t *object, const char *name, uint32_t otherwise)
{
	const json_t *value = json_object_get(object, name);
	return value ? (uint32_t)json_integer_value(value) : otherwise;
}

static uint32_t kind_of(const json_t *group)
{
	const char *kind = json_string_value(json_object_get(group, "kind"));
	if (!kind || !strcmp(kind, "full"))
		return OKV_GROUP_FULL;
	ck_assert_str_eq(kind, "window");
	return OKV_GROUP_WINDOW;
}

/* Layers of several groups alternate in the model. */
static void read_model(const json_t *from, uint32_t scale, struct model *ret_model)
{
	struct model *m = ret_model;
	const json_t *groups = json_object_get(from, "groups");
	uint32_t segments = number(from, "segments", 0), at = 0;
	memset(m, 0, sizeof(*m));
	m->name = json_string_value(json_object_get(from, "name"));
	m->ranks = number(from, "tp", 1);
	m->block_tokens = number(from, "block_tokens", 0);
	m->block_bytes = number(from, "block_bytes", 0);
	m->group_count = groups ? (uint32_t)json_array_size(groups) : 1;
	uint64_t bytes = number(from, "segment_bytes_per_token", 0) / scale * m->block_tokens;
	ck_assert_msg(m->name && bytes && segments && segments <= OKV_MAX_SEGMENTS, "models.json");
	for (uint32_t g = 0; g < m->group_count; g++) {
		const json_t *group = groups ? json_array_get(groups, g) : from;
		m->groups[g] = (struct okv_group_schema){
			.kind = kind_of(group),
			.block_tokens = m->block_tokens,
			.window_tokens = number(group, "window_tokens", 0),
			.layer_count = number(group, "layers", 0),
			.layout_tag = segments == 1 ? "latent" : "NHD",
			.layers = &m->layers[at],
		};
		for (uint32_t i = 0; i < m->groups[g].layer_count; i++, at++) {
			m->layers[at].order = i * m->group_count + g;
			m->layers[at].segment_count = segments;
			for (uint32_t s = 0; s < segments; s++)
				m->layers[at].segment_bytes[s] = bytes;
		}
	}
	ck_assert_uint_eq(at, number(from, "layers", 0));
}

START_TEST(block_bytes_of_every_model)
{
	struct model *m = malloc(sizeof(*m));
	read_model(json_array_get(models, (size_t)_i), 1, m);
	struct okv_namespace *ns = kv_groups_open(engine, m->groups, m->group_count, m->ranks);
	uint64_t sum = 0;
	for (uint32_t g = 0; g < m->group_count; g++)
		sum += okv_namespace_block_bytes(ns, g);
	ck_assert_msg(sum == m->block_bytes, "%s: %llu", m->name, (unsigned long long)sum);
	ck_assert_uint_eq(okv_namespace_block_bytes(ns, m->group_count), 0);
	okv_namespace_close(ns);
	free(m);
}
END_TEST

/* Every rank publishes and restores; each has its own bytes. */
static void round_trip(const struct model *m, enum kv_place place, uint32_t per_block, uint32_t pad,
		       uint64_t seq)
{
	uint32_t pages[OKV_MAX_GROUPS], parts[OKV_MAX_GROUPS], counts[OKV_MAX_GROUPS];
	uint32_t from[PAGES * 128], to[PAGES * 128], total = PAGES * per_block;
	struct kv_blocks blocks[OKV_MAX_GROUPS];
	struct okv_namespace *ns = kv_groups_open(engine, m->groups, m->group_count, m->ranks);
	struct kv_tensors *t = calloc(m->ranks, sizeof(*t));
	struct okv_lookup_result found;
	struct okv_op_result r;
	struct okv_lease *lease;
	ck_assert_uint_le(per_block, 128);
	for (uint32_t i = 0; i < BLOCKS * per_block; i++) {
		from[i] = i;
		to[i] = (total - 1 - i * 3 % total) % total;
	}
	for (uint32_t g = 0; g < m->group_count; g++) {
		pages[g] = total;
		parts[g] = per_block;
		counts[g] = BLOCKS;
		blocks[g] = (struct kv_blocks){.group = g, .count = BLOCKS, .pages = from};
	}
	for (uint32_t k = 0; k < m->ranks; k++) {
		kv_tensors_place(&t[k], m->groups, m->group_count, k, place, pages, parts, pad);
		kv_ok(kv_tensors_register(&t[k], ns, kv_err));
		ck_assert_int_eq(kv_blocks_publish(&t[k], seq, blocks, m->group_count, &r), 0);
		kv_tensors_canary(&t[k]);
	}
	ck_assert_uint_eq(
		kv_groups_lookup(ns, seq, counts, m->group_count, m->ranks, &found, &lease),
		(uint64_t)BLOCKS * m->block_tokens);
	for (uint32_t g = 0; g < m->group_count; g++)
		blocks[g] = (struct kv_blocks){.group = g,
					       .first = found.groups[g].first,
					       .count = found.groups[g].count,
					       .pages = to};
	for (uint32_t k = 0; k < m->ranks; k++) {
		ck_assert_int_eq(kv_blocks_restore(&t[k], lease, blocks, m->group_count, &r), 0);
		for (uint32_t g = 0; g < m->group_count; g++)
			ck_assert_msg(kv_tensors_wrong(&t[k], seq, &blocks[g]) == 0,
				      "%s, rank %u, group %u", m->name, k, g);
		ck_assert_uint_eq(kv_tensors_stray(&t[k], blocks, m->group_count), 0);
		kv_tensors_close(&t[k]);
	}
	okv_lease_release(lease);
	free(t);
	okv_namespace_close(ns);
}

START_TEST(r1_r2_every_model_in_every_form)
{
	struct model *m = malloc(sizeof(*m));
	read_model(json_array_get(models, (size_t)_i), SCALE, m);
	round_trip(m, KV_PLACE_PAGES, 1, 0, 1);		      /* K and V in one page */
	round_trip(m, KV_PLACE_HALVES, 1, 0, 2);	      /* all K, then all V */
	round_trip(m, KV_PLACE_CROSS, 1, 0, 3);		      /* all layers in one page */
	round_trip(m, KV_PLACE_PAGES, m->block_tokens, 8, 4); /* padded one-token pages */
	round_trip(m, KV_PLACE_CROSS, m->block_tokens / 2, 1, 5);
	free(m);
}
END_TEST

static json_t *load(void)
{
	const char *shared = getenv("OKV_SHARED");
	char path[4096];
	json_error_t error;
	snprintf(path, sizeof(path), "%s/data/models.json",
		 shared ? shared : OKV_SOURCE_ROOT "/../shared");
	json_t *file = json_load_file(path, 0, &error);
	if (!file)
		printf("skipped: %s: %s (OKV_SHARED names the folder)\n", path, error.text);
	return file;
}

int main(void)
{
	json_t *file = load();
	if (!file)
		return 77;
	models = json_object_get(file, "models");
	int n = (int)json_array_size(models), failed = n == 0;
	Suite *s = suite_create("models");
	TCase *t = tcase_create("models.json");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, block_bytes_of_every_model, 0, n);
	tcase_add_loop_test(t, r1_r2_every_model_in_every_form, 0, n);
	suite_add_tcase(s, t);
	SRunner *r = srunner_create(s);
	srunner_run_all(r, CK_ENV);
	failed |= srunner_ntests_failed(r);
	srunner_free(r);
	json_decref(file);
	return failed ? 1 : 0;
}
