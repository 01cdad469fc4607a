/* SPDX-License-Identifier: Apache-2.0 */
/* [E] KV geometries of public models, built in or from a JSON file. */
#include "tool_shape.h"
#include "tool_pattern.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCK_TOKENS (1u << 19)

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

static const char *read_group(const json_t *entry, struct tool_model_group *group)
{
	const char *kind = json_string_value(json_object_get(entry, "kind"));

	group->layers = number(entry, "layers", OKV_MAX_LAYERS);
	group->window_tokens = number(entry, "window_tokens", UINT32_MAX);
	if (group->layers == 0)
		return "\"layers\" of a group is not 1 to 1024";
	if (kind == NULL)
		return "a group lacks \"kind\" (full, window, state)";
	if (strcmp(kind, "full") == 0)
		group->kind = OKV_GROUP_FULL;
	else if (strcmp(kind, "window") == 0)
		group->kind = OKV_GROUP_WINDOW;
	else if (strcmp(kind, "state") == 0)
		group->kind = OKV_GROUP_STATE;
	else
		return "a group is of no known kind (full, window, state)";
	if ((group->kind == OKV_GROUP_WINDOW) != (group->window_tokens > 0))
		return "\"window_tokens\" goes with groups of kind window, and they need it";
	return NULL;
}

static const char *read_groups(const json_t *groups, struct tool_model *model)
{
	size_t count = json_array_size(groups);

	if (count < 1 || count > OKV_MAX_GROUPS)
		return "\"groups\" is not a list of 1 to 8";
	model->group_count = (uint32_t)count;
	for (size_t g = 0; g < count; g++) {
		const char *why = read_group(json_array_get(groups, g), &model->groups[g]);

		if (why != NULL)
			return why;
	}
	return NULL;
}

/* Returns NULL or what is wrong. */
static const char *read_model(const json_t *entry, struct tool_model *model)
{
	const char *name = json_string_value(json_object_get(entry, "name"));
	const json_t *groups = json_object_get(entry, "groups");

	if (name == NULL || strlen(name) >= sizeof(model->name))
		return "\"name\" is no string of up to 63 bytes";
	strcpy(model->name, name);
	model->segments = number(entry, "segments", TOOL_MAX_SEGMENTS);
	model->token_bytes = number(entry, "segment_bytes_per_token", UINT32_MAX);
	model->block_tokens = number(entry, "block_tokens", MAX_BLOCK_TOKENS);
	if (model->segments == 0)
		return "\"segments\" is not 1 to 8";
	if (model->token_bytes == 0)
		return "\"segment_bytes_per_token\" is not a number above 0";
	if (model->block_tokens == 0)
		return "\"block_tokens\" is not 1 to 524288";
	if (groups != NULL)
		return read_groups(groups, model);
	model->group_count = 1;
	model->groups[0].kind = OKV_GROUP_FULL;
	model->groups[0].layers = number(entry, "layers", OKV_MAX_LAYERS);
	return model->groups[0].layers > 0 ? NULL : "\"layers\" is not 1 to 1024";
}

/* "FILE:LINE:COLUMN: why", as far as there is a line. */
static void explain_json(const char *file, const json_error_t *error, char *text)
{
	if (error->line > 0)
		snprintf(text, TOOL_TEXT, "%.100s:%d:%d: %.120s", file, error->line, error->column,
			 error->text);
	else
		snprintf(text, TOOL_TEXT, "%s", error->text);
}

static int load_file(const char *file, struct tool_model **ret_models, uint32_t *ret_count,
		     char *text)
{
	json_error_t error;
	json_t *root = json_load_file(file, 0, &error);
	const json_t *entries = json_object_get(root, "models");
	size_t count = json_array_size(entries);
	struct tool_model *models;
	int rc = TOOL_USAGE;

	if (root == NULL) {
		explain_json(file, &error, text);
		return TOOL_USAGE;
	}
	if (count == 0) {
		snprintf(text, TOOL_TEXT, "%.160s: \"models\" is not a list of at least one", file);
		goto out;
	}
	models = calloc(count, sizeof(*models));
	if (models == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		goto out;
	}
	for (size_t i = 0; i < count; i++) {
		const char *why = read_model(json_array_get(entries, i), &models[i]);

		if (why == NULL)
			continue;
		snprintf(text, TOOL_TEXT, "%.80s: model %zu \"%s\": %s", file, i, models[i].name,
			 why);
		free(models);
		goto out;
	}
	*ret_models = models;
	*ret_count = (uint32_t)count;
	rc = TOOL_OK;
out:
	json_decref(root);
	return rc;
}

int tool_models_load(const char *file, struct tool_model **ret_models, uint32_t *ret_count,
		     char *text)
{
	struct tool_model *models;

	if (file != NULL)
		return load_file(file, ret_models, ret_count, text);
	models = malloc(sizeof(built_in));
	if (models == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	memcpy(models, built_in, sizeof(built_in));
	*ret_models = models;
	*ret_count = BUILT_IN_COUNT;
	return TOOL_OK;
}

const struct tool_model *tool_model_find(const struct tool_model *models, uint32_t count,
					 const char *name)
{
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(models[i].name, name) == 0)
			return &models[i];
	}
	return NULL;
}

const struct tool_model *tool_model_usual(const struct tool_model *models, uint32_t count)
{
	const struct tool_model *model = tool_model_find(models, count, "qwen3-8b");

	return model != NULL ? model : &models[0];
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
		const struct tool_model_group *group = &shape->model.groups[g];

		shape->groups[g] =
			(struct okv_group_schema){.kind = group->kind,
						  .block_tokens = shape->model.block_tokens,
						  .window_tokens = group->window_tokens,
						  .layer_count = group->layers,
						  .layout_tag = "NHD",
						  .layers = layer};
		layer += group->layers;
	}
}

int tool_shape_create(const struct tool_model *model, struct tool_shape *ret_shape, char *text)
{
	struct tool_shape shape = {.model = *model};

	for (uint32_t g = 0; g < model->group_count; g++)
		shape.layer_count += model->groups[g].layers;
	if (shape.layer_count > OKV_MAX_LAYERS) {
		snprintf(text, TOOL_TEXT, "%s has more than %d layers", model->name,
			 OKV_MAX_LAYERS);
		return TOOL_USAGE;
	}
	shape.segment_bytes = (uint64_t)model->token_bytes * model->block_tokens;
	if (shape.segment_bytes > TOOL_MAX_SEGMENT_BYTES) {
		snprintf(text, TOOL_TEXT, "%s has segments above 256 MiB", model->name);
		return TOOL_USAGE;
	}
	shape.layers = calloc(shape.layer_count, sizeof(*shape.layers));
	if (shape.layers == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	shape.block_bytes = shape.segment_bytes * model->segments * shape.layer_count;
	for (uint32_t l = 0; l < shape.layer_count; l++) {
		shape.layers[l].segment_count = model->segments;
		for (uint32_t s = 0; s < model->segments; s++)
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
