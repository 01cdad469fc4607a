/* SPDX-License-Identifier: Apache-2.0 */
/* [E] KV geometries of models, and the schema of one. */
#ifndef ORBITKV_TOOLS_TOOL_SHAPE_H
#define ORBITKV_TOOLS_TOOL_SHAPE_H

#include <stdint.h>
#include <orbitkv/orbitkv.h>
#include "tool_base.h"

struct tool_model_group {
	uint32_t kind; /* enum okv_group_kind */
	uint32_t layers;
	uint32_t window_tokens;
};

struct tool_model {
	char name[64];
	uint32_t segments;    /* of every layer */
	uint32_t token_bytes; /* of one segment */
	uint32_t block_tokens;
	uint32_t group_count;
	struct tool_model_group groups[OKV_MAX_GROUPS];
};

struct tool_shape {
	struct tool_model model;
	uint32_t layer_count;		 /* all groups */
	uint64_t segment_bytes;		 /* of one block; the same everywhere: the fragment */
	uint64_t block_bytes;		 /* payload, all groups */
	struct okv_layer_schema *layers; /* owned; group after group */
	struct okv_group_schema groups[OKV_MAX_GROUPS];
};

/* The built-in geometries, or those of a JSON file. The list is the caller's to free(). */
int tool_models_load(const char *file, struct tool_model **ret_models, uint32_t *ret_count,
		     char *text);
/* NULL: there is none of that name. */
const struct tool_model *tool_model_find(const struct tool_model *models, uint32_t count,
					 const char *name);
/* The one for cases that need only one: qwen3-8b, or the first. */
const struct tool_model *tool_model_usual(const struct tool_model *models, uint32_t count);
int tool_shape_create(const struct tool_model *model, struct tool_shape *ret_shape, char *text);
void tool_shape_fini(struct tool_shape *shape);

#endif
