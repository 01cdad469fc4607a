/* [E] KV geometries of public models, built in or from a JSON file. */
#include "tool_shape.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FULL(count)                              \
	1,                                       \
	{                                        \
		{                                \
			OKV_GROUP_FULL, count, 0 \
		}                                \
	}

/* name, segments, bytes per token and segment, block tokens, groups */
static const struct tool_model built_in[] = {
	{"qwen3-8b", 2, 2048, 16, FULL(36)},
	{"llama-3.1-8b", 2, 2048, 16, FULL(32)},
	{"llama-3.1-70b-tp8", 2, 256, 16, FULL(80)},
	{"llama-3.1-70b-tp8-fp8", 2, 128, 16, FULL(80)},
	{"deepseek-v3-mla", 1, 1152, 64, FULL(61)},
	{"qwen2.5-0.5b", 2, 256, 16, FULL(24)},
	{"tiny", 2, 128, 16, FULL(4)},
	{"gpt-oss-20b-hybrid",
	 2,
	 1024,
	 16,
	 2,
	 {{OKV_GROUP_FULL, 12, 0}, {OKV_GROUP_WINDOW, 12, 128}}},
};

#define BUILT_IN_COUNT (sizeof(built_in) / sizeof(built_in[0]))

/* The member as a number from 1 to max; 0 when it is not. */
static uint32_t number(const json_t *object, const char *member, uint32_t max)
{
	const json_t *value = json_object_get(object, member);
	json_int_t n = json_integer_value(value);

	return json_is_integer(value) && n >= 1 && n <= max ? (uint32_t)n : 0;
}

static bool read_group(const json_t *entry, struct tool_model_group *ret_group)
{
	const char *kind = json_string_value(json_object_get(entry, "kind"));

	ret_group->layers = number(entry, "layers", OKV_MAX_LAYERS);
	ret_group->window_tokens = number(entry, "window_tokens", UINT32_MAX);
	if (kind == NULL || ret_group->layers == 0)
		return false;
	if (strcmp(kind, "full") == 0)
		ret_group->kind = OKV_GROUP_FULL;
	else if (strcmp(kind, "window") == 0)
		ret_group->kind = OKV_GROUP_WINDOW;
	else if (strcmp(kind, "state") == 0)
		ret_group->kind = OKV_GROUP_STATE;
	else
		return false;
	return (ret_group->kind == OKV_GROUP_WINDOW) == (ret_group->window_tokens > 0);
}

static bool read_spec(const json_t *entry, struct tool_model *spec)
{
	const char *name = json_string_value(json_object_get(entry, "name"));
	const json_t *groups = json_object_get(entry, "groups");

	if (name == NULL)
		return false;
	snprintf(spec->name, sizeof(spec->name), "%s", name);
	spec->segments = number(entry, "segments", OKV_MAX_SEGMENTS);
	spec->token_bytes = number(entry, "segment_bytes_per_token", UINT32_MAX);
	spec->block_tokens = number(entry, "block_tokens", 1u << 19);
	spec->group_count = 1;
	spec->groups[0].kind = OKV_GROUP_FULL;
	spec->groups[0].layers = number(entry, "layers", OKV_MAX_LAYERS);
	if (groups != NULL) {
		size_t count = json_array_size(groups);

		if (count < 1 || count > OKV_MAX_GROUPS)
			return false;
		spec->group_count = (uint32_t)count;
		for (size_t g = 0; g < count; g++) {
			if (!read_group(json_array_get(groups, g), &spec->groups[g]))
				return false;
		}
	}
	return spec->segments > 0 && spec->token_bytes > 0 && spec->block_tokens > 0 &&
	       spec->groups[0].layers > 0;
}

static int load_file(const char *file, struct tool_model **ret_specs, uint32_t *ret_count,
		     char *text)
{
	json_error_t error;
	json_t *root = json_load_file(file, 0, &error);
	const json_t *models = json_object_get(root, "models");
	size_t count = json_array_size(models);
	struct tool_model *specs;
	int rc = TOOL_USAGE;

	if (count == 0) {
		snprintf(text, TOOL_TEXT, "%s has no models: %.160s", file,
			 root == NULL ? error.text : "\"models\" is no list");
		goto out;
	}
	specs = calloc(count, sizeof(*specs));
	if (specs == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		goto out;
	}
	for (size_t i = 0; i < count; i++) {
		if (read_spec(json_array_get(models, i), &specs[i]))
			continue;
		snprintf(text, TOOL_TEXT, "%s: model %zu (%s) lacks a number or has a bad group",
			 file, i, specs[i].name);
		free(specs);
		goto out;
	}
	*ret_specs = specs;
	*ret_count = (uint32_t)count;
	rc = TOOL_OK;
out:
	json_decref(root);
	return rc;
}

int tool_models_load(const char *file, struct tool_model **ret_specs, uint32_t *ret_count,
		     char *text)
{
	struct tool_model *specs;

	if (file != NULL)
		return load_file(file, ret_specs, ret_count, text);
	specs = malloc(sizeof(built_in));
	if (specs == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	memcpy(specs, built_in, sizeof(built_in));
	*ret_specs = specs;
	*ret_count = BUILT_IN_COUNT;
	return TOOL_OK;
}

const struct tool_model *tool_model_find(const struct tool_model *specs, uint32_t count,
					 const char *name)
{
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(specs[i].name, name) == 0)
			return &specs[i];
	}
	return NULL;
}

const struct tool_model *tool_model_usual(const struct tool_model *specs, uint32_t count)
{
	const struct tool_model *spec = tool_model_find(specs, count, "qwen3-8b");

	return spec != NULL ? spec : &specs[0];
}

/* Layers of the groups alternate, as in hybrid models, as long as each group has some. */
static void number_layers(struct tool_shape *shape)
{
	uint32_t order = 0;

	for (uint32_t step = 0; order < shape->layer_count; step++) {
		struct okv_layer_schema *layer = shape->layers;

		for (uint32_t g = 0; g < shape->model.group_count; g++) {
			if (step < shape->model.groups[g].layers)
				layer[step].order = order++;
			layer += shape->model.groups[g].layers;
		}
	}
}

static void describe_groups(struct tool_shape *shape)
{
	struct okv_layer_schema *layer = shape->layers;

	for (uint32_t g = 0; g < shape->model.group_count; g++) {
		const struct tool_model_group *spec = &shape->model.groups[g];

		shape->groups[g] =
			(struct okv_group_schema){.kind = spec->kind,
						  .block_tokens = shape->model.block_tokens,
						  .window_tokens = spec->window_tokens,
						  .layer_count = spec->layers,
						  .layout_tag = "NHD",
						  .layers = layer};
		layer += spec->layers;
	}
}

int tool_shape_create(const struct tool_model *spec, struct tool_shape *ret_shape, char *text)
{
	struct tool_shape shape = {.model = *spec};

	for (uint32_t g = 0; g < spec->group_count; g++)
		shape.layer_count += spec->groups[g].layers;
	if (shape.layer_count > OKV_MAX_LAYERS) {
		snprintf(text, TOOL_TEXT, "%s has more than %d layers", spec->name, OKV_MAX_LAYERS);
		return TOOL_USAGE;
	}
	shape.layers = calloc(shape.layer_count, sizeof(*shape.layers));
	if (shape.layers == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	shape.segment_bytes = (uint64_t)spec->token_bytes * spec->block_tokens;
	shape.block_bytes = shape.segment_bytes * spec->segments * shape.layer_count;
	for (uint32_t l = 0; l < shape.layer_count; l++) {
		shape.layers[l].segment_count = spec->segments;
		for (uint32_t s = 0; s < spec->segments; s++)
			shape.layers[l].segment_bytes[s] = shape.segment_bytes;
	}
	number_layers(&shape);
	describe_groups(&shape);
	*ret_shape = shape;
	return TOOL_OK;
}

void tool_shape_fini(struct tool_shape *shape)
{
	free(shape->layers);
	shape->layers = NULL;
}
