/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The canonical byte string of a namespace. */
/*
 *   magic, version, bytes of all u32; then fields: tag u32, bytes u32, value; ascending tags
 *   model … salt   the string without its zero byte; NULL has no field, an empty one has 0 bytes
 *   stage, ranks   u32 each
 *   extra          name bytes u32, name, value; one field each, ascending names
 *   group          kind, block tokens, window tokens, layers u32; layout tag bytes u32, layout tag;
 *                  per layer: order, segments u32; bytes u64 of each; one field each, in order
 *
 * All numbers are little-endian. Every value has its length before it, so different inputs have
 * different bytes.
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "schema/schema.h"
#include "wire/wire.h"

#define IDENTITY_MAGIC 0x49564b4fu /* "OKVI" */
#define IDENTITY_VERSION 1u
#define SIZE_AT 8u /* offset of "bytes of all" */
#define IDENTITY_MAX (OKW_MSG_MAX_BYTES - sizeof(struct okw_msg))

enum {
	TAG_MODEL = 1,
	TAG_REVISION,
	TAG_DTYPE,
	TAG_ADAPTER,
	TAG_SALT,
	TAG_STAGE,
	TAG_STAGES,
	TAG_RANK_SLOTS,
	TAG_EXTRA,
	TAG_GROUP,
};

/* ---- writing ---- */

struct writer {
	uint8_t *bytes;
	size_t used;
	bool full; /* a value did not fit into IDENTITY_MAX */
};

static void put(struct writer *w, const void *bytes, size_t size)
{
	if (w->full || size > IDENTITY_MAX - w->used) {
		w->full = true;
		return;
	}
	if (size)
		memcpy(w->bytes + w->used, bytes, size);
	w->used += size;
}

static void put_u32(struct writer *w, uint32_t value)
{
	value = htole32(value);
	put(w, &value, sizeof(value));
}

static void put_u64(struct writer *w, uint64_t value)
{
	value = htole64(value);
	put(w, &value, sizeof(value));
}

static void put_string(struct writer *w, uint32_t tag, const char *text)
{
	if (!text)
		return;
	size_t length = strlen(text);
	put_u32(w, tag);
	put_u32(w, (uint32_t)length);
	put(w, text, length);
}

static void put_number(struct writer *w, uint32_t tag, uint32_t value)
{
	put_u32(w, tag);
	put_u32(w, sizeof(value));
	put_u32(w, value);
}

static int compare_names(const void *a, const void *b)
{
	const struct okv_identity_field *x = *(const struct okv_identity_field *const *)a;
	const struct okv_identity_field *y = *(const struct okv_identity_field *const *)b;
	return strcmp(x->name, y->name);
}

static void put_extras(struct writer *w, const struct okv_namespace_options *opts)
{
	const struct okv_identity_field *sorted[OKI_MAX_IDENTITY_FIELDS];
	for (uint32_t i = 0; i < opts->field_count; i++)
		sorted[i] = &opts->fields[i];
	if (opts->field_count)
		qsort(sorted, opts->field_count, sizeof(sorted[0]), compare_names);
	for (uint32_t i = 0; i < opts->field_count; i++) {
		uint32_t name_bytes = (uint32_t)strlen(sorted[i]->name);
		put_u32(w, TAG_EXTRA);
		put_u32(w, (uint32_t)sizeof(uint32_t) + name_bytes + sorted[i]->value_bytes);
		put_u32(w, name_bytes);
		put(w, sorted[i]->name, name_bytes);
		put(w, sorted[i]->value, sorted[i]->value_bytes);
	}
}

static uint32_t group_bytes(const struct okv_group_schema *group)
{
	size_t bytes = 5 * sizeof(uint32_t) + strlen(group->layout_tag);
	for (uint32_t i = 0; i < group->layer_count; i++)
		bytes += 2 * sizeof(uint32_t) + group->layers[i].segment_count * sizeof(uint64_t);
	return (uint32_t)bytes;
}

static void put_group(struct writer *w, const struct okv_group_schema *group)
{
	uint32_t tag_bytes = (uint32_t)strlen(group->layout_tag);
	put_u32(w, TAG_GROUP);
	put_u32(w, group_bytes(group));
	put_u32(w, group->kind);
	put_u32(w, group->block_tokens);
	put_u32(w, group->window_tokens);
	put_u32(w, group->layer_count);
	put_u32(w, tag_bytes);
	put(w, group->layout_tag, tag_bytes);
	for (uint32_t i = 0; i < group->layer_count; i++) {
		const struct okv_layer_schema *layer = &group->layers[i];
		put_u32(w, layer->order);
		put_u32(w, layer->segment_count);
		for (uint32_t s = 0; s < layer->segment_count; s++)
			put_u64(w, layer->segment_bytes[s]);
	}
}

static void put_all(struct writer *w, const struct okv_namespace_options *opts)
{
	put_u32(w, IDENTITY_MAGIC);
	put_u32(w, IDENTITY_VERSION);
	put_u32(w, 0); /* the size, once it is known */
	put_string(w, TAG_MODEL, opts->model);
	put_string(w, TAG_REVISION, opts->revision);
	put_string(w, TAG_DTYPE, opts->dtype);
	put_string(w, TAG_ADAPTER, opts->adapter);
	put_string(w, TAG_SALT, opts->salt);
	put_number(w, TAG_STAGE, opts->pipeline_stage);
	put_number(w, TAG_STAGES, opts->pipeline_stages);
	put_number(w, TAG_RANK_SLOTS, opts->rank_slots);
	put_extras(w, opts);
	for (uint32_t g = 0; g < opts->group_count; g++)
		put_group(w, &opts->groups[g]);
}

int oki_identity_encode(const struct okv_namespace_options *opts, uint8_t **ret_bytes,
			size_t *ret_size, struct okv_error *err)
{
	struct okv_namespace_options full;
	int rc = oki_namespace_check(opts, &full, err);
	if (rc)
		return rc;
	struct writer w = {.bytes = malloc(IDENTITY_MAX)};
	if (!w.bytes)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for an identity");
	put_all(&w, &full);
	if (w.full) {
		free(w.bytes);
		return oki_fail(err, OKV_E_LIMIT, OKV_STAGE_ARGUMENTS,
				"identity and schema do not fit into %zu bytes", IDENTITY_MAX);
	}
	uint32_t size = htole32((uint32_t)w.used);
	memcpy(w.bytes + SIZE_AT, &size, sizeof(size));
	uint8_t *shrunk = realloc(w.bytes, w.used);
	*ret_bytes = shrunk ? shrunk : w.bytes;
	*ret_size = w.used;
	return 0;
}

/* ---- reading ---- */

struct reader {
	const uint8_t *bytes;
	size_t left;
};

static bool get(struct reader *r, size_t size, const uint8_t **ret_bytes)
{
	if (size > r->left)
		return false;
	*ret_bytes = r->bytes;
	r->bytes += size;
	r->left -= size;
	return true;
}

static bool get_u32(struct reader *r, uint32_t *ret_value)
{
	const uint8_t *at;
	uint32_t value;
	if (!get(r, sizeof(value), &at))
		return false;
	memcpy(&value, at, sizeof(value));
	*ret_value = le32toh(value);
	return true;
}

static bool get_u64(struct reader *r, uint64_t *ret_value)
{
	const uint8_t *at;
	uint64_t value;
	if (!get(r, sizeof(value), &at))
		return false;
	memcpy(&value, at, sizeof(value));
	*ret_value = le64toh(value);
	return true;
}

/* The options that a byte string encodes. Each string has a length of 4 bytes before it, so all of
 * them, with their terminators, fit into as many bytes as the input has. */
struct parsed {
	uint32_t layer_count;
	size_t text_used;
	struct okv_namespace_options opts;
	struct okv_identity_field fields[OKI_MAX_IDENTITY_FIELDS];
	struct okv_group_schema groups[OKV_MAX_GROUPS];
	struct okv_layer_schema layers[OKV_MAX_LAYERS];
	char text[];
};

static bool get_text(struct reader *r, struct parsed *p, size_t size, const char **ret_text)
{
	const uint8_t *at;
	if (!get(r, size, &at))
		return false;
	char *text = p->text + p->text_used;
	if (size)
		memcpy(text, at, size);
	text[size] = 0;
	p->text_used += size + 1;
	*ret_text = text;
	return true;
}

static bool get_extra(struct reader *r, struct parsed *p)
{
	uint32_t name_bytes;
	const uint8_t *value;
	if (p->opts.field_count == OKI_MAX_IDENTITY_FIELDS)
		return false;
	struct okv_identity_field *field = &p->fields[p->opts.field_count++];
	if (!get_u32(r, &name_bytes) || !get_text(r, p, name_bytes, &field->name))
		return false;
	field->value_bytes = (uint32_t)r->left;
	if (!get(r, r->left, &value))
		return false;
	field->value = value;
	return true;
}

static bool get_layer(struct reader *r, struct okv_layer_schema *layer)
{
	if (!get_u32(r, &layer->order) || !get_u32(r, &layer->segment_count) ||
	    layer->segment_count > OKV_MAX_SEGMENTS)
		return false;
	for (uint32_t s = 0; s < layer->segment_count; s++)
		if (!get_u64(r, &layer->segment_bytes[s]))
			return false;
	return true;
}

static bool get_group(struct reader *r, struct parsed *p)
{
	uint32_t tag_bytes;
	if (p->opts.group_count == OKV_MAX_GROUPS)
		return false;
	struct okv_group_schema *group = &p->groups[p->opts.group_count++];
	if (!get_u32(r, &group->kind) || !get_u32(r, &group->block_tokens) ||
	    !get_u32(r, &group->window_tokens) || !get_u32(r, &group->layer_count) ||
	    !get_u32(r, &tag_bytes) || !get_text(r, p, tag_bytes, &group->layout_tag))
		return false;
	if (group->layer_count > OKV_MAX_LAYERS - p->layer_count)
		return false;
	group->layers = &p->layers[p->layer_count];
	for (uint32_t i = 0; i < group->layer_count; i++)
		if (!get_layer(r, &p->layers[p->layer_count++]))
			return false;
	return true;
}

static bool get_value(struct reader *r, struct parsed *p, uint32_t tag)
{
	switch (tag) {
	case TAG_MODEL: return get_text(r, p, r->left, &p->opts.model);
	case TAG_REVISION: return get_text(r, p, r->left, &p->opts.revision);
	case TAG_DTYPE: return get_text(r, p, r->left, &p->opts.dtype);
	case TAG_ADAPTER: return get_text(r, p, r->left, &p->opts.adapter);
	case TAG_SALT: return get_text(r, p, r->left, &p->opts.salt);
	case TAG_STAGE: return get_u32(r, &p->opts.pipeline_stage);
	case TAG_STAGES: return get_u32(r, &p->opts.pipeline_stages);
	case TAG_RANK_SLOTS: return get_u32(r, &p->opts.rank_slots);
	case TAG_EXTRA: return get_extra(r, p);
	case TAG_GROUP: return get_group(r, p);
	default: return false;
	}
}

static bool get_all(struct reader *r, struct parsed *p)
{
	uint32_t magic, version, size;
	size_t whole = r->left;
	if (!get_u32(r, &magic) || magic != IDENTITY_MAGIC || !get_u32(r, &version) ||
	    version != IDENTITY_VERSION || !get_u32(r, &size) || size != whole)
		return false;
	while (r->left) {
		struct reader value;
		uint32_t tag, bytes;
		if (!get_u32(r, &tag) || !get_u32(r, &bytes) || !get(r, bytes, &value.bytes))
			return false;
		value.left = bytes;
		if (!get_value(&value, p, tag) || value.left)
			return false;
	}
	return true;
}

/* Refuse what encode would have written otherwise: wrong order, repeated fields, zero bytes inside
 * strings. */
static int check_canonical(const struct parsed *p, const uint8_t *bytes, size_t size,
			   struct okv_error *err)
{
	uint8_t *again;
	size_t again_size;
	int rc = oki_identity_encode(&p->opts, &again, &again_size, err);
	if (rc)
		return rc;
	bool same = again_size == size && !memcmp(again, bytes, size);
	free(again);
	return same ? 0
		    : oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
			       "namespace bytes are not in canonical form");
}

/* Every error but OKV_E_NOMEM becomes a protocol error: an honest peer checked the options before
 * it sent them. */
static int blame_peer(int status, struct okv_error *err)
{
	if (status == 0 || status == OKV_E_NOMEM)
		return status;
	if (err) {
		err->status = OKV_E_PROTOCOL;
		err->stage = OKV_STAGE_REGISTER;
	}
	return OKV_E_PROTOCOL;
}

int oki_identity_decode(const uint8_t *bytes, size_t size, struct oki_schema *ret_schema,
			struct okv_error *err)
{
	struct reader r = {.bytes = bytes, .left = size};
	int rc;
	if (!bytes || size > IDENTITY_MAX)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
				"namespace bytes: %zu are too many", size);
	struct parsed *p = calloc(1, sizeof(*p) + size);
	if (!p)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for an identity");
	p->opts.size = sizeof(p->opts);
	p->opts.fields = p->fields;
	p->opts.groups = p->groups;
	if (get_all(&r, p))
		rc = check_canonical(p, bytes, size, err);
	else
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_REGISTER,
			      "namespace bytes do not parse");
	if (!rc)
		rc = oki_schema_init(ret_schema, &p->opts, err);
	free(p);
	return blame_peer(rc, err);
}
