/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Checks every number, string and pointer of a namespace's options before any use. */
#include "schema/schema.h"

#include <string.h>

#include "base/error.h"
#include "base/options.h"

#define REFUSE(err, ...) oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, __VA_ARGS__)
#define EXCEEDS(err, ...) oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS, __VA_ARGS__)

static int check_string(const char *what, const char *text, struct okv_error *err)
{
	if (text && strnlen(text, OKI_MAX_IDENTITY_STRING + 1) > OKI_MAX_IDENTITY_STRING)
		return EXCEEDS(err, "namespace: %s is longer than %u bytes", what,
			       OKI_MAX_IDENTITY_STRING);
	return 0;
}

static int check_strings(const struct okv_namespace_options *opts, struct okv_error *err)
{
	const struct {
		const char *what;
		const char *text;
	} strings[] = {
		{"model", opts->model},	    {"revision", opts->revision}, {"dtype", opts->dtype},
		{"adapter", opts->adapter}, {"salt", opts->salt},
	};
	if (!opts->model || !opts->model[0])
		return REFUSE(err, "namespace: model is required");
	for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
		int rc = check_string(strings[i].what, strings[i].text, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_field(const struct okv_identity_field *fields, uint32_t index,
		       struct okv_error *err)
{
	const struct okv_identity_field *field = &fields[index];
	if (!field->name || !field->name[0] || strnlen(field->name, 64) > 63)
		return REFUSE(err, "namespace: the name of field %u is not 1 to 63 characters",
			      index);
	if (field->value_bytes > OKI_MAX_IDENTITY_STRING)
		return EXCEEDS(err, "namespace: field %s has %u bytes; %u are allowed", field->name,
			       field->value_bytes, OKI_MAX_IDENTITY_STRING);
	if (field->value_bytes && !field->value)
		return REFUSE(err, "namespace: field %s has %u byte%s at NULL", field->name,
			      field->value_bytes, oki_plural(field->value_bytes));
	for (uint32_t i = 0; i < index; i++)
		if (!strcmp(fields[i].name, field->name))
			return REFUSE(err, "namespace: fields %u and %u are both named %s", i,
				      index, field->name);
	return 0;
}

static int check_fields(const struct okv_namespace_options *opts, struct okv_error *err)
{
	if (opts->field_count > OKI_MAX_IDENTITY_FIELDS)
		return EXCEEDS(err, "namespace: %u fields; %u are allowed", opts->field_count,
			       OKI_MAX_IDENTITY_FIELDS);
	if (opts->field_count && !opts->fields)
		return REFUSE(err, "namespace: field_count is %u and fields is NULL",
			      opts->field_count);
	for (uint32_t i = 0; i < opts->field_count; i++) {
		int rc = check_field(opts->fields, i, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_ranks(const struct okv_namespace_options *opts, struct okv_error *err)
{
	if (opts->rank_slots == 0)
		return REFUSE(err, "namespace: rank_slots is 0");
	if (opts->rank_slots > OKV_MAX_RANK_SLOTS)
		return EXCEEDS(err, "namespace: %u rank slots; %u are allowed", opts->rank_slots,
			       OKV_MAX_RANK_SLOTS);
	if (opts->pipeline_stage >= opts->pipeline_stages)
		return REFUSE(err, "namespace: pipeline stage %u of %u", opts->pipeline_stage,
			      opts->pipeline_stages);
	return 0;
}

static int check_layer(uint32_t g, uint32_t index, const struct okv_layer_schema *layers,
		       struct okv_error *err)
{
	const struct okv_layer_schema *layer = &layers[index];
	if (layer->segment_count == 0)
		return REFUSE(err, "group %u, layer %u: no segments", g, index);
	if (layer->segment_count > OKV_MAX_SEGMENTS)
		return EXCEEDS(err, "group %u, layer %u: %u segments; %u are allowed", g, index,
			       layer->segment_count, OKV_MAX_SEGMENTS);
	for (uint32_t s = 0; s < layer->segment_count; s++)
		if (layer->segment_bytes[s] == 0)
			return REFUSE(err, "group %u, layer %u: segment %u has 0 bytes", g, index,
				      s);
	if (index > 0 && layer->order <= layers[index - 1].order)
		return REFUSE(err, "group %u, layer %u: order %u does not follow order %u", g,
			      index, layer->order, layers[index - 1].order);
	return 0;
}

static int check_group_numbers(uint32_t g, const struct okv_group_schema *group,
			       struct okv_error *err)
{
	if (group->kind < OKV_GROUP_FULL || group->kind > OKV_GROUP_STATE)
		return REFUSE(err, "group %u: kind %u is unknown", g, group->kind);
	if (group->block_tokens == 0)
		return REFUSE(err, "group %u: block_tokens is 0", g);
	if (group->block_tokens > OKI_MAX_BLOCK_TOKENS)
		return EXCEEDS(err, "group %u: %u tokens per block; %u are allowed", g,
			       group->block_tokens, OKI_MAX_BLOCK_TOKENS);
	if ((group->kind == OKV_GROUP_WINDOW) != (group->window_tokens != 0))
		return REFUSE(err, "group %u: kind %u with window_tokens %u", g, group->kind,
			      group->window_tokens);
	if (!group->layout_tag || !group->layout_tag[0] || strnlen(group->layout_tag, 32) > 31)
		return REFUSE(err, "group %u: the layout tag is not 1 to 31 characters", g);
	return 0;
}

static int check_group(uint32_t g, const struct okv_group_schema *group, uint32_t layers_before,
		       struct okv_error *err)
{
	int rc = check_group_numbers(g, group, err);
	if (rc)
		return rc;
	if (group->layer_count == 0 || !group->layers)
		return REFUSE(err, "group %u: no layers", g);
	if (group->layer_count > OKV_MAX_LAYERS - layers_before)
		return EXCEEDS(err, "group %u: %u layer%s after %u other%s; %u in all are allowed",
			       g, group->layer_count, oki_plural(group->layer_count), layers_before,
			       oki_plural(layers_before), OKV_MAX_LAYERS);
	for (uint32_t i = 0; i < group->layer_count; i++) {
		rc = check_layer(g, i, group->layers, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_segments(const struct okv_namespace_options *opts, struct okv_error *err)
{
	uint64_t segments = 0;
	for (uint32_t g = 0; g < opts->group_count; g++)
		for (uint32_t i = 0; i < opts->groups[g].layer_count; i++)
			segments += opts->groups[g].layers[i].segment_count;
	if (segments > OKV_MAX_SCHEMA_SEGMENTS)
		return EXCEEDS(err, "namespace: %llu segments in all layers; %u are allowed",
			       (unsigned long long)segments, OKV_MAX_SCHEMA_SEGMENTS);
	return 0;
}

static int check_groups(const struct okv_namespace_options *opts, struct okv_error *err)
{
	uint32_t layers = 0;
	if (opts->group_count == 0 || !opts->groups)
		return REFUSE(err, "namespace: no groups");
	if (opts->group_count > OKV_MAX_GROUPS)
		return EXCEEDS(err, "namespace: %u groups; %u are allowed", opts->group_count,
			       OKV_MAX_GROUPS);
	for (uint32_t g = 0; g < opts->group_count; g++) {
		int rc = check_group(g, &opts->groups[g], layers, err);
		if (rc)
			return rc;
		layers += opts->groups[g].layer_count;
	}
	return check_segments(opts, err);
}

int oki_namespace_check(const struct okv_namespace_options *opts,
			struct okv_namespace_options *ret_full, struct okv_error *err)
{
	struct okv_namespace_options full = {.rank_slots = 1, .pipeline_stages = 1};
	int rc = oki_options_take(&full, sizeof(full), opts, "namespace", err);
	if (!rc)
		rc = check_strings(&full, err);
	if (!rc)
		rc = check_ranks(&full, err);
	if (!rc)
		rc = check_fields(&full, err);
	if (!rc)
		rc = check_groups(&full, err);
	if (!rc)
		*ret_full = full;
	return rc;
}
