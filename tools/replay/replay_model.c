/* [E] KV geometries: two built in, others from a JSON file of models. */
#include "replay.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT_ALIGN 16u /* how the Manager lays out a block, for --blocks */
#define BLOCK_GRAIN 64u

#define BUILT_IN                                                                          \
	"{\"models\": ["                                                                  \
	"{\"name\": \"tiny\", \"layers\": 4, \"segments\": 2, \"block_tokens\": 16,"      \
	" \"segment_bytes_per_token\": 128},"                                             \
	"{\"name\": \"qwen3-8b\", \"layers\": 36, \"segments\": 2, \"block_tokens\": 16," \
	" \"segment_bytes_per_token\": 2048}"                                             \
	"]}"

/* The member as a number from 1 to max; 0 when it is not. */
static uint32_t number(const json_t *object, const char *member, uint32_t max)
{
	const json_t *value = json_object_get(object, member);
	json_int_t n = json_integer_value(value);

	return json_is_integer(value) && n >= 1 && n <= max ? (uint32_t)n : 0;
}

static const char *read_group(const json_t *group, struct okv_group_schema *out)
{
	const char *kind = json_string_value(json_object_get(group, "kind"));

	out->layer_count = number(group, "layers", OKV_MAX_LAYERS);
	if (kind == NULL || out->layer_count == 0)
		return "a group lacks \"kind\" or \"layers\"";
	if (strcmp(kind, "full") == 0) {
		out->kind = OKV_GROUP_FULL;
	} else if (strcmp(kind, "window") == 0) {
		out->kind = OKV_GROUP_WINDOW;
		out->window_tokens = number(group, "window_tokens", UINT32_MAX);
		if (out->window_tokens == 0)
			return "a window group lacks \"window_tokens\"";
	} else if (strcmp(kind, "state") == 0) {
		out->kind = OKV_GROUP_STATE;
	} else {
		return "a group is of no known kind (full, window, state)";
	}
	return NULL;
}

static const char *read_groups(const json_t *entry, struct replay_model *model)
{
	const json_t *groups = json_object_get(entry, "groups");

	if (groups == NULL) {
		model->group_count = 1;
		model->groups[0].kind = OKV_GROUP_FULL;
		model->groups[0].layer_count = number(entry, "layers", OKV_MAX_LAYERS);
		return model->groups[0].layer_count > 0 ? NULL : "\"layers\" is not 1 to 1024";
	}
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

/* Layers of the groups alternate, as in hybrid models, as long as each group has some. */
static void number_layers(struct replay_model *model)
{
	uint32_t order = 0;

	for (uint32_t step = 0; order < model->layer_count; step++) {
		struct okv_layer_schema *layer = model->layers;

		for (uint32_t g = 0; g < model->group_count; g++) {
			if (step < model->groups[g].layer_count)
				layer[step].order = order++;
			layer += model->groups[g].layer_count;
		}
	}
}

uint64_t replay_stored_bytes(uint64_t block_bytes)
{
	return (block_bytes + BLOCK_GRAIN - 1) & ~(uint64_t)(BLOCK_GRAIN - 1);
}

static const char *lay_out(struct replay_model *model, uint32_t segments, uint64_t segment_bytes)
{
	uint64_t aligned = (segment_bytes + SEGMENT_ALIGN - 1) & ~(uint64_t)(SEGMENT_ALIGN - 1);

	for (uint32_t g = 0; g < model->group_count; g++)
		model->layer_count += model->groups[g].layer_count;
	if (model->layer_count > OKV_MAX_LAYERS)
		return "more than 1024 layers";
	model->layers = calloc(model->layer_count, sizeof(*model->layers));
	if (model->layers == NULL)
		return "out of memory";
	for (uint32_t l = 0; l < model->layer_count; l++) {
		model->layers[l].segment_count = segments;
		for (uint32_t s = 0; s < segments; s++)
			model->layers[l].segment_bytes[s] = segment_bytes;
	}
	number_layers(model);
	struct okv_layer_schema *layer = model->layers;
	for (uint32_t g = 0; g < model->group_count; g++) {
		struct okv_group_schema *group = &model->groups[g];
		uint64_t rows = (uint64_t)group->layer_count * segments;

		group->block_tokens = model->block_tokens;
		group->layout_tag = "NHD";
		group->layers = layer;
		layer += group->layer_count;
		model->payload_bytes[g] = rows * segment_bytes;
		model->stored_bytes[g] = replay_stored_bytes(rows * aligned);
		model->block_bytes += model->stored_bytes[g];
	}
	return NULL;
}

static const char *read_model(const json_t *entry, struct replay_model *model)
{
	uint32_t segments = number(entry, "segments", OKV_MAX_SEGMENTS);
	uint32_t token_bytes = number(entry, "segment_bytes_per_token", UINT32_MAX);
	const char *why;

	model->block_tokens = number(entry, "block_tokens", UINT32_MAX);
	if (segments == 0 || token_bytes == 0 || model->block_tokens == 0)
		return "needs \"segments\" (1 to 8), \"segment_bytes_per_token\", \"block_tokens\"";
	uint64_t segment_bytes = (uint64_t)token_bytes * model->block_tokens;
	if (segment_bytes > TOOL_MAX_SEGMENT_BYTES)
		return "has segments above 256 MiB";
	why = read_groups(entry, model);
	return why != NULL ? why : lay_out(model, segments, segment_bytes);
}

static const json_t *find(const json_t *models, const char *name)
{
	const json_t *entry;
	size_t i;

	json_array_foreach(models, i, entry)
	{
		const char *is = json_string_value(json_object_get(entry, "name"));

		if (is != NULL && strcmp(is, name) == 0)
			return entry;
	}
	return NULL;
}

static void print_unknown(const char *name, const char *file, const json_t *models)
{
	const json_t *entry;
	size_t i;

	fprintf(stderr, "orbitkv-replay: no model \"%s\" %s%s; there are:", name,
		file != NULL ? "in " : "", file != NULL ? file : "is built in");
	json_array_foreach(models, i, entry)
	{
		const char *is = json_string_value(json_object_get(entry, "name"));

		fprintf(stderr, " %s", is != NULL ? is : "(unnamed)");
	}
	fputc('\n', stderr);
}

int replay_model_load(const char *file, const char *name, struct replay_model *ret_model)
{
	struct replay_model model = {.name = ""};
	const char *wanted = name != NULL ? name : "tiny";
	json_error_t error;
	json_t *root;
	int rc = -1;

	root = file != NULL ? json_load_file(file, 0, &error) : json_loads(BUILT_IN, 0, &error);
	if (root == NULL) {
		fprintf(stderr, "orbitkv-replay: %s:%d: %s\n", file != NULL ? file : "built-in",
			error.line, error.text);
		return -1;
	}
	const json_t *models = json_object_get(root, "models");
	const json_t *entry = find(models, wanted);
	if (entry == NULL) {
		print_unknown(wanted, file, models);
		goto out;
	}
	snprintf(model.name, sizeof(model.name), "%s", wanted);
	const char *why = read_model(entry, &model);
	if (why != NULL) {
		fprintf(stderr, "orbitkv-replay: model \"%s\": %s\n", wanted, why);
		replay_model_fini(&model);
		goto out;
	}
	*ret_model = model;
	rc = 0;
out:
	json_decref(root);
	return rc;
}

void replay_model_fini(struct replay_model *model)
{
	free(model->layers);
	memset(model, 0, sizeof(*model));
}
