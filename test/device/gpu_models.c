/* SPDX-License-Identifier: Apache-2.0 */
/* KV geometries of public models. */
#include "device/gpu_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if GPU_HAVE_JANSSON
#include <jansson.h>
#endif

#define FULL(count) .group_count = 1, .groups = {{OKV_GROUP_FULL, count, 0}}

static const struct gpu_model built_in[] = {
	{"qwen3-8b", 16, 2, 2048, 2359296, FULL(36)},
	{"llama-3.1-8b", 16, 2, 2048, 2097152, FULL(32)},
	{"llama-3.1-70b-tp8", 16, 2, 256, 655360, FULL(80)},
	{"llama-3.1-70b-tp8-fp8", 16, 2, 128, 327680, FULL(80)},
	{"deepseek-v3-mla", 64, 1, 1152, 4497408, FULL(61)},
	{"qwen2.5-0.5b", 16, 2, 256, 196608, FULL(24)},
	{"tiny", 16, 2, 128, 16384, FULL(4)},
	{"gpt-oss-20b-hybrid",
	 16,
	 2,
	 1024,
	 786432,
	 2,
	 {{OKV_GROUP_FULL, 12, 0}, {OKV_GROUP_WINDOW, 12, 128}}},
};

#if GPU_HAVE_JANSSON
static uint32_t number(const json_t *object, const char *name)
{
	return (uint32_t)json_integer_value(json_object_get(object, name));
}

static void read_group(const json_t *from, struct gpu_model_group *ret_group)
{
	const char *kind = json_string_value(json_object_get(from, "kind"));
	ret_group->kind = OKV_GROUP_FULL;
	if (kind && !strcmp(kind, "window"))
		ret_group->kind = OKV_GROUP_WINDOW;
	if (kind && !strcmp(kind, "state"))
		ret_group->kind = OKV_GROUP_STATE;
	ret_group->layers = number(from, "layers");
	ret_group->window_tokens = number(from, "window_tokens");
}

static void read_model(const json_t *from, struct gpu_model *ret_model)
{
	const json_t *groups = json_object_get(from, "groups");
	const char *name = json_string_value(json_object_get(from, "name"));
	memset(ret_model, 0, sizeof(*ret_model));
	snprintf(ret_model->name, sizeof(ret_model->name), "%s", name ? name : "?");
	ret_model->block_tokens = number(from, "block_tokens");
	ret_model->segments = number(from, "segments");
	ret_model->token_bytes = number(from, "segment_bytes_per_token");
	ret_model->block_bytes = number(from, "block_bytes");
	ret_model->group_count = groups ? (uint32_t)json_array_size(groups) : 1;
	for (uint32_t g = 0; g < ret_model->group_count && g < OKV_MAX_GROUPS; g++)
		read_group(groups ? json_array_get(groups, g) : from, &ret_model->groups[g]);
}

static uint32_t read_file(const char *path, struct gpu_model *models)
{
	json_t *root = json_load_file(path, 0, NULL);
	const json_t *list = json_object_get(root, "models");
	uint32_t n = (uint32_t)json_array_size(list);
	if (n > GPU_MAX_MODELS)
		n = GPU_MAX_MODELS;
	for (uint32_t i = 0; i < n; i++)
		read_model(json_array_get(list, i), &models[i]);
	json_decref(root);
	return n;
}
#else
static uint32_t read_file(const char *path, struct gpu_model *models)
{
	(void)path;
	(void)models;
	return 0;
}
#endif

uint32_t gpu_models(struct gpu_model models[GPU_MAX_MODELS], char *ret_source, size_t source_size)
{
	const char *shared = getenv("OKV_SHARED"), *root = getenv("OKV_SOURCE_ROOT");
	const char *dirs[][2] = {
		{shared, "models.json"},
		{shared, "data/models.json"},
		{root, "../shared/data/models.json"},
	};
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		if (!dirs[i][0])
			continue;
		snprintf(ret_source, source_size, "%s/%s", dirs[i][0], dirs[i][1]);
		uint32_t n = read_file(ret_source, models);
		if (n)
			return n;
	}
	snprintf(ret_source, source_size, "built-in numbers");
	memcpy(models, built_in, sizeof(built_in));
	return sizeof(built_in) / sizeof(built_in[0]);
}

void gpu_model_schema(const struct gpu_model *model, struct okv_layer_schema *layers,
		      struct okv_group_schema groups[OKV_MAX_GROUPS])
{
	for (uint32_t g = 0; g < model->group_count; g++) {
		const struct gpu_model_group *from = &model->groups[g];
		groups[g] = (struct okv_group_schema){
			.kind = from->kind,
			.block_tokens = model->block_tokens,
			.window_tokens = from->window_tokens,
			.layer_count = from->layers,
			.layout_tag = model->segments == 1 ? "latent" : "NHD",
			.layers = layers,
		};
		for (uint32_t i = 0; i < from->layers; i++, layers++) {
			memset(layers, 0, sizeof(*layers));
			layers->order = i * model->group_count + g;
			layers->segment_count = model->segments;
			for (uint32_t s = 0; s < model->segments; s++)
				layers->segment_bytes[s] = model->token_bytes * model->block_tokens;
		}
	}
}
