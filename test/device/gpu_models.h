/* SPDX-License-Identifier: Apache-2.0 */
/* KV geometries of public models, as models.json of the shared data has them. */
#ifndef TEST_DEVICE_GPU_MODELS_H
#define TEST_DEVICE_GPU_MODELS_H

#include <orbitkv/orbitkv.h>

#define GPU_MAX_MODELS 32

struct gpu_model {
	char name[64];
	uint32_t block_tokens;
	uint32_t segments;
	uint64_t token_bytes; /* of one segment of one layer */
	uint64_t block_bytes; /* of all layers and groups */
	uint32_t group_count;
	struct gpu_model_group {
		uint32_t kind;
		uint32_t layers;
		uint32_t window_tokens;
	} groups[OKV_MAX_GROUPS];
};

/*
 * $OKV_SHARED/models.json or $OKV_SHARED/data/models.json, ../shared/data/models.json beside the
 * source root, or the numbers built in here. Writes where they came from; returns how many.
 */
uint32_t gpu_models(struct gpu_model models[GPU_MAX_MODELS], char *ret_source, size_t source_size);

/* The schema of a model; layers has room for OKV_MAX_LAYERS. Layers of groups alternate. */
void gpu_model_schema(const struct gpu_model *model, struct okv_layer_schema *layers,
		      struct okv_group_schema groups[OKV_MAX_GROUPS]);

#endif
