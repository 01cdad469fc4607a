/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Where each segment lies inside a block, and in which order layers are consumed. */
#include "schema/schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static bool align_up(uint64_t value, uint64_t *ret_aligned)
{
	if (!oki_add(value, OKI_SEGMENT_ALIGN - 1, &value))
		return false;
	*ret_aligned = value & ~(uint64_t)(OKI_SEGMENT_ALIGN - 1);
	return true;
}

/* Append one segment to the block. False: the sizes overflow 64 bits. */
static bool place_segment(struct oki_schema_group *group, uint64_t bytes, uint64_t *ret_offset)
{
	uint64_t end;
	*ret_offset = group->block_bytes;
	return oki_add(group->block_bytes, bytes, &end) && align_up(end, &group->block_bytes) &&
	       oki_add(group->payload_bytes, bytes, &group->payload_bytes);
}

static void copy_layer(struct oki_schema_layer *layer, const struct okv_layer_schema *from,
		       uint32_t group)
{
	layer->order = from->order;
	layer->group = group;
	layer->segment_count = from->segment_count;
	memcpy(layer->segment_bytes, from->segment_bytes,
	       from->segment_count * sizeof(from->segment_bytes[0]));
}

static int lay_out(struct oki_schema *schema, uint32_t g, const struct okv_group_schema *from,
		   struct okv_error *err)
{
	struct oki_schema_group *group = &schema->groups[g];
	group->kind = from->kind;
	group->block_tokens = from->block_tokens;
	group->window_tokens = from->window_tokens;
	group->first_layer = schema->layer_count;
	group->layer_count = from->layer_count;
	strncpy(group->layout_tag, from->layout_tag, sizeof(group->layout_tag) - 1);
	for (uint32_t i = 0; i < from->layer_count; i++) {
		struct oki_schema_layer *layer = &schema->layers[schema->layer_count + i];
		copy_layer(layer, &from->layers[i], g);
		for (uint32_t s = 0; s < layer->segment_count; s++)
			if (!place_segment(group, layer->segment_bytes[s], &layer->block_offset[s]))
				return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
						"group %u, layer %u: the block's size overflows", g,
						i);
	}
	schema->layer_count += from->layer_count;
	/* A plan entry has 32 bits for a block's bytes. */
	if (group->block_bytes > UINT32_MAX)
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"group %u: a block of %llu bytes; %u are allowed", g,
				(unsigned long long)group->block_bytes, UINT32_MAX);
	return 0;
}

static int compare_keys(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static int sort_by_order(struct oki_schema *schema, struct okv_error *err)
{
	uint64_t keys[OKV_MAX_LAYERS];
	for (uint32_t i = 0; i < schema->layer_count; i++)
		keys[i] = (uint64_t)schema->layers[i].order << 32 | i;
	qsort(keys, schema->layer_count, sizeof(keys[0]), compare_keys);
	for (uint32_t i = 0; i < schema->layer_count; i++) {
		schema->by_order[i] = (uint32_t)keys[i];
		if (i > 0 && keys[i] >> 32 == keys[i - 1] >> 32)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
					"layers %u and %u have the same order %u",
					(uint32_t)keys[i - 1], (uint32_t)keys[i],
					(uint32_t)(keys[i] >> 32));
	}
	return 0;
}

int oki_schema_init(struct oki_schema *schema, const struct okv_namespace_options *opts,
		    struct okv_error *err)
{
	struct okv_namespace_options full;
	struct oki_schema made = {0};
	uint32_t layers = 0;
	int rc = oki_namespace_check(opts, &full, err);
	if (rc)
		return rc;
	for (uint32_t g = 0; g < full.group_count; g++)
		layers += full.groups[g].layer_count;
	made.rank_slots = full.rank_slots;
	made.group_count = full.group_count;
	made.layers = calloc(layers, sizeof(made.layers[0]));
	made.by_order = calloc(layers, sizeof(made.by_order[0]));
	if (!made.layers || !made.by_order) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for a schema");
		goto free_made;
	}
	for (uint32_t g = 0; g < full.group_count; g++) {
		rc = lay_out(&made, g, &full.groups[g], err);
		if (rc)
			goto free_made;
	}
	rc = sort_by_order(&made, err);
	if (rc)
		goto free_made;
	*schema = made;
	return 0;
free_made:
	oki_schema_fini(&made);
	return rc;
}

void oki_schema_fini(struct oki_schema *schema)
{
	if (!schema)
		return;
	free(schema->layers);
	free(schema->by_order);
	memset(schema, 0, sizeof(*schema));
}
