/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The model of a replay: what its blocks hold, and the Manager that has room for them. */
#include "replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT_ALIGN 16u /* how the Manager lays out a block, for --blocks */
#define BLOCK_GRAIN 64u
/* Up to this much one shard holds all blocks, so that no shard's tail is wasted. */
#define ONE_SHARD_BYTES (16ull << 30)
#define SHARDS 32u
#define PAGE 4096u

uint64_t replay_stored_bytes(uint64_t block_bytes)
{
	return (block_bytes + BLOCK_GRAIN - 1) & ~(uint64_t)(BLOCK_GRAIN - 1);
}

static void count_bytes(struct replay_model *model)
{
	uint64_t bytes = model->shape.segment_bytes;
	uint64_t aligned = (bytes + SEGMENT_ALIGN - 1) & ~(uint64_t)(SEGMENT_ALIGN - 1);

	for (uint32_t g = 0; g < model->shape.model.group_count; g++) {
		uint64_t rows =
			(uint64_t)model->shape.groups[g].layer_count * model->shape.model.segments;

		model->payload_bytes[g] = rows * bytes;
		model->stored_bytes[g] = replay_stored_bytes(rows * aligned);
		model->block_bytes += model->stored_bytes[g];
	}
}

static void explain_unknown(const char *file, const char *name, const struct tool_model *models,
			    uint32_t count, char *text)
{
	int length = snprintf(text, TOOL_TEXT, "no model \"%.40s\" %s%.60s; there are:", name,
			      file != NULL ? "in " : "", file != NULL ? file : "is built in");

	for (uint32_t i = 0; i < count && length < TOOL_TEXT; i++)
		length += snprintf(text + length, (size_t)(TOOL_TEXT - length), " %s",
				   models[i].name);
}

int replay_model_load(const char *file, const char *name, struct replay_model *ret_model)
{
	const char *wanted = name != NULL ? name : "tiny";
	struct replay_model model = {.block_bytes = 0};
	const struct tool_model *found;
	struct tool_model *models;
	char text[TOOL_TEXT];
	uint32_t count;
	int rc = tool_models_load(file, &models, &count, text);

	if (rc != TOOL_OK)
		goto out;
	found = tool_model_find(models, count, wanted);
	if (found != NULL) {
		rc = tool_shape_create(found, &model.shape, text);
	} else {
		rc = TOOL_USAGE;
		explain_unknown(file, wanted, models, count, text);
	}
	free(models);
out:
	if (rc != TOOL_OK) {
		fprintf(stderr, "orbitkv-replay: %s\n", text);
		return -1;
	}
	count_bytes(&model);
	*ret_model = model;
	return 0;
}

void replay_model_fini(struct replay_model *model)
{
	tool_shape_fini(&model->shape);
}

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

void replay_manager_options(const struct replay_config *config, struct okv_manager_options *opts)
{
	uint64_t block = config->model.block_bytes;
	uint64_t unit = block / greatest_divisor(block, PAGE) * PAGE;

	okv_manager_options_init(opts);
	if (config->blocks == 0) {
		opts->memory_bytes = config->memory_bytes;
		return;
	}
	opts->memory_bytes = (config->blocks * block + PAGE - 1) / PAGE * PAGE;
	opts->shard_bytes = opts->memory_bytes;
	if (opts->memory_bytes > ONE_SHARD_BYTES) {
		uint64_t share = opts->memory_bytes / SHARDS;

		opts->shard_bytes = (share + unit - 1) / unit * unit;
	}
}

int replay_manager_start(const struct replay_config *config, struct tool_manager *ret_manager,
			 char *text)
{
	struct okv_manager_options opts;

	replay_manager_options(config, &opts);
	return tool_manager_start("orbitkv-replay", &opts, ret_manager, text);
}
