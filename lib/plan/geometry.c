/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Where a rank's layers are in memory, proven once, at registration. */
#include "plan/geometry.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "plan/overlap.h"

#define REFUSE(err, ...) oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER, __VA_ARGS__)
#define LL(value) ((unsigned long long)(value))

/* Bytes from a layer's base to the end of its last page. False: that overflows 64 bits. */
static bool layer_span(const struct oki_layer_map *map, uint64_t *ret_span)
{
	uint64_t last, end, reach = 0;
	for (uint32_t s = 0; s < map->segment_count; s++) {
		if (!oki_add(map->segments[s].page_offset, map->segments[s].bytes, &end))
			return false;
		if (end > reach)
			reach = end;
	}
	return oki_mul(map->page_count - 1u, map->page_stride, &last) &&
	       oki_add(last, reach, ret_span);
}

static int check_numbers(uint32_t index, const struct okv_layer *layer,
			 const struct oki_schema_layer *known, struct okv_error *err)
{
	uint64_t end;
	if (!layer->base)
		return REFUSE(err, "layer %u: base is NULL", index);
	if (layer->length == 0)
		return REFUSE(err, "layer %u: length is 0", index);
	if (!oki_add((uintptr_t)layer->base, layer->length, &end))
		return REFUSE(err, "layer %u: %llu bytes from %p leave the address space", index,
			      LL(layer->length), layer->base);
	if (layer->page_count == 0)
		return REFUSE(err, "layer %u: page_count is 0", index);
	if (layer->segment_count != known->segment_count)
		return REFUSE(err, "layer %u: %u segment%s, but the schema has %u", index,
			      layer->segment_count, oki_plural(layer->segment_count),
			      known->segment_count);
	return 0;
}

/* The number of pages per block that one segment implies. */
static int check_segment(uint32_t index, uint32_t s, const struct okv_layer *layer,
			 const struct oki_schema_layer *known, uint32_t *ret_pages,
			 struct okv_error *err)
{
	uint64_t page = layer->segment_bytes[s];
	uint64_t block = known->segment_bytes[s];
	if (page == 0)
		return REFUSE(err, "layer %u, segment %u: 0 bytes per page", index, s);
	if (block % page)
		return REFUSE(
			err,
			"layer %u, segment %u: %llu bytes per page do not divide the schema's "
			"%llu bytes per block",
			index, s, LL(page), LL(block));
	if (block / page > UINT32_MAX)
		return REFUSE(err, "layer %u, segment %u: %llu pages per block", index, s,
			      LL(block / page));
	*ret_pages = (uint32_t)(block / page);
	return 0;
}

/* Check that all segments of a group imply the same number of pages per block. */
static int agree_on_pages(struct oki_geometry *geometry, const struct oki_schema *schema,
			  uint32_t index, const struct okv_layer *layer, struct okv_error *err)
{
	const struct oki_schema_layer *known = &schema->layers[index];
	const struct oki_schema_group *group = &schema->groups[known->group];
	uint32_t *agreed = &geometry->pages_per_block[known->group];
	for (uint32_t s = 0; s < layer->segment_count; s++) {
		uint32_t pages = 0;
		int rc = check_segment(index, s, layer, known, &pages, err);
		if (rc)
			return rc;
		if (*agreed == 0)
			*agreed = pages;
		if (*agreed != pages)
			return REFUSE(
				err,
				"layer %u, segment %u: %llu bytes per page make %u page%s per "
				"block, but group %u has %u",
				index, s, LL(layer->segment_bytes[s]), pages, oki_plural(pages),
				known->group, *agreed);
	}
	/* A state has no tokens to divide, so its pages need not hold whole tokens. */
	if (group->kind != OKV_GROUP_STATE && group->block_tokens % *agreed)
		return REFUSE(err, "layer %u: %u pages per block of %u tokens split a token", index,
			      *agreed, group->block_tokens);
	return 0;
}

static void fill_map(struct oki_layer_map *map, const struct okv_layer *layer,
		     const struct oki_schema_layer *known)
{
	map->base = layer->base;
	map->page_stride = layer->page_stride;
	map->segment_count = layer->segment_count;
	map->page_count = layer->page_count;
	for (uint32_t s = 0; s < layer->segment_count; s++) {
		map->segments[s].page_offset = layer->segment_offset[s];
		map->segments[s].block_offset = known->block_offset[s];
		map->segments[s].bytes = layer->segment_bytes[s];
	}
}

static int check_span(uint32_t index, const struct oki_layer_map *map, uint64_t length,
		      struct okv_error *err)
{
	uint64_t span;
	if (!layer_span(map, &span))
		return REFUSE(err, "layer %u: %u pages of stride %llu overflow 64 bits", index,
			      map->page_count, LL(map->page_stride));
	if (span > length)
		return REFUSE(err,
			      "layer %u: %u page%s of stride %llu span %llu bytes, but length is "
			      "%llu",
			      index, map->page_count, oki_plural(map->page_count),
			      LL(map->page_stride), LL(span), LL(length));
	return 0;
}

static int add_layer(struct oki_geometry *geometry, const struct oki_schema *schema, uint32_t index,
		     const struct okv_layer *layer, struct okv_error *err)
{
	const struct oki_schema_layer *known = &schema->layers[index];
	uint32_t *page_count = &geometry->page_count[known->group];
	int rc = check_numbers(index, layer, known, err);
	if (!rc)
		rc = agree_on_pages(geometry, schema, index, layer, err);
	if (rc)
		return rc;
	fill_map(&geometry->maps[index], layer, known);
	geometry->lengths[index] = layer->length;
	if (*page_count == 0 || layer->page_count < *page_count)
		*page_count = layer->page_count;
	return check_span(index, &geometry->maps[index], layer->length, err);
}

static struct oki_comb comb_of(const struct oki_layer_map *map, uint32_t s)
{
	return (struct oki_comb){
		.start = (uintptr_t)map->base + map->segments[s].page_offset,
		.bytes = map->segments[s].bytes,
		.stride = map->page_stride,
		.count = map->page_count,
	};
}

/* Refuse two segments s and t of a layer that share bytes; say whether that is in one page, in
 * neighbouring pages, or in others. */
static int segments_meet(uint32_t index, const struct oki_layer_map *map, uint32_t t, uint32_t s,
			 struct okv_error *err)
{
	bool in_order = map->segments[t].page_offset < map->segments[s].page_offset;
	uint32_t low = in_order ? t : s, high = in_order ? s : t;
	uint64_t apart = map->segments[high].page_offset - map->segments[low].page_offset;
	uint64_t stride = map->page_stride;
	if (apart < map->segments[low].bytes)
		return REFUSE(err, "layer %u: segments %u and %u share bytes", index, t, s);
	/* The higher segment of a page overlaps the lower one of the next page. */
	if (stride < apart + map->segments[high].bytes && apart < stride + map->segments[low].bytes)
		return REFUSE(err,
			      "layer %u: page_stride %llu is too small: segment %u of a page and "
			      "%u of the next share bytes",
			      index, LL(stride), high, low);
	return REFUSE(err,
		      "layer %u: segments %u and %u of different pages share bytes at page_stride "
		      "%llu",
		      index, t, s, LL(stride));
}

static int check_within(uint32_t index, const struct oki_layer_map *map, struct okv_error *err)
{
	for (uint32_t s = 0; s < map->segment_count; s++) {
		struct oki_comb comb = comb_of(map, s);
		if (oki_comb_folds(&comb))
			return REFUSE(err,
				      "layer %u, segment %u: page_stride %llu is too small for "
				      "pages of %llu bytes",
				      index, s, LL(comb.stride), LL(comb.bytes));
		for (uint32_t t = 0; t < s; t++) {
			struct oki_comb other = comb_of(map, t);
			if (oki_combs_meet(&other, &comb))
				return segments_meet(index, map, t, s, err);
		}
	}
	return 0;
}

static bool spans_meet(const struct oki_layer_map *a, const struct oki_layer_map *b)
{
	uint64_t a_span, b_span;
	uint64_t a_base = (uintptr_t)a->base;
	uint64_t b_base = (uintptr_t)b->base;
	if (!layer_span(a, &a_span) || !layer_span(b, &b_span))
		return true;
	return a_base <= b_base ? b_base - a_base < a_span : a_base - b_base < b_span;
}

static bool layers_meet(const struct oki_layer_map *a, const struct oki_layer_map *b)
{
	if (!spans_meet(a, b))
		return false;
	for (uint32_t s = 0; s < a->segment_count; s++) {
		struct oki_comb x = comb_of(a, s);
		for (uint32_t t = 0; t < b->segment_count; t++) {
			struct oki_comb y = comb_of(b, t);
			if (oki_combs_meet(&x, &y))
				return true;
		}
	}
	return false;
}

/* Layers of different groups that share bytes start alike, so that pages with equal units do. */
static bool may_share(const struct oki_geometry *geometry, const struct oki_schema *schema,
		      uint32_t i, uint32_t j)
{
	return geometry->shared_groups && schema->layers[i].group != schema->layers[j].group &&
	       geometry->maps[i].base == geometry->maps[j].base;
}

static int check_between(const struct oki_geometry *geometry, const struct oki_schema *schema,
			 struct okv_error *err)
{
	for (uint32_t i = 0; i < geometry->layer_count; i++) {
		int rc = check_within(i, &geometry->maps[i], err);
		if (rc)
			return rc;
		for (uint32_t j = 0; j < i; j++)
			if (!may_share(geometry, schema, i, j) &&
			    layers_meet(&geometry->maps[j], &geometry->maps[i]))
				return REFUSE(err, "layers %u and %u share bytes (bases %p and %p)",
					      j, i, (void *)geometry->maps[j].base,
					      (void *)geometry->maps[i].base);
	}
	return 0;
}

/* All pages of a group are as far apart, by a multiple of the unit. */
static int count_units(struct oki_geometry *geometry, const struct oki_schema *schema,
		       struct okv_error *err)
{
	uint64_t unit = UINT64_MAX, stride[OKV_MAX_GROUPS] = {0};

	for (uint32_t g = 0; g < geometry->group_count; g++)
		geometry->page_units[g] = 1;
	if (!geometry->shared_groups)
		return 0;
	for (uint32_t i = 0; i < geometry->layer_count; i++) {
		uint32_t group = schema->layers[i].group;
		uint64_t own = geometry->maps[i].page_stride;
		if (own == 0)
			return REFUSE(err, "layer %u: page_stride 0 with shared groups", i);
		if (stride[group] && stride[group] != own)
			return REFUSE(err,
				      "layer %u: page_stride %llu, but %llu in other layers of "
				      "group %u, with shared groups",
				      i, LL(own), LL(stride[group]), group);
		stride[group] = own;
		unit = own < unit ? own : unit;
	}
	for (uint32_t g = 0; g < geometry->group_count; g++) {
		uint64_t units = stride[g] / unit;
		if (stride[g] % unit || units > UINT32_MAX ||
		    units * geometry->page_count[g] > UINT32_MAX)
			return REFUSE(err,
				      "group %u: page_stride %llu is no multiple of %llu, that of "
				      "another group, with shared groups",
				      g, LL(stride[g]), LL(unit));
		geometry->page_units[g] = (uint32_t)units;
	}
	return 0;
}

int oki_geometry_init(struct oki_geometry *geometry, const struct oki_schema *schema,
		      const struct okv_layer *layers, uint32_t layer_count, bool shared_groups,
		      struct okv_error *err)
{
	struct oki_geometry made = {.layer_count = layer_count,
				    .group_count = schema->group_count,
				    .shared_groups = shared_groups};
	int rc = 0;
	if (layer_count != schema->layer_count)
		return REFUSE(err, "%u layer%s given, but the schema has %u", layer_count,
			      oki_plural(layer_count), schema->layer_count);
	if (!layers)
		return REFUSE(err, "layer_count is %u and layers is NULL", layer_count);
	made.maps = calloc(layer_count, sizeof(made.maps[0]));
	made.lengths = calloc(layer_count, sizeof(made.lengths[0]));
	if (!made.maps || !made.lengths) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for %u layers",
			      layer_count);
		goto free_made;
	}
	for (uint32_t i = 0; !rc && i < layer_count; i++)
		rc = add_layer(&made, schema, i, &layers[i], err);
	if (!rc)
		rc = check_between(&made, schema, err);
	if (!rc)
		rc = count_units(&made, schema, err);
	if (rc)
		goto free_made;
	*geometry = made;
	return 0;
free_made:
	oki_geometry_fini(&made);
	return rc;
}

void oki_geometry_fini(struct oki_geometry *geometry)
{
	if (!geometry)
		return;
	free(geometry->maps);
	free(geometry->lengths);
	memset(geometry, 0, sizeof(*geometry));
}

bool oki_geometry_overlaps(const struct oki_geometry *a, const struct oki_geometry *b)
{
	for (uint32_t i = 0; i < a->layer_count; i++)
		for (uint32_t j = 0; j < b->layer_count; j++)
			if (layers_meet(&a->maps[i], &b->maps[j]))
				return true;
	return false;
}
