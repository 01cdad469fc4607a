/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Validation, block layout and canonical bytes of a namespace. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "schema/schema.h"
#include "wire/wire.h"
#include "support/suite.h"

#define LONGEST_STRING 4096

/* One valid namespace: K and V in 4 full layers, a window group of 2 between them. */
struct sample {
	struct okv_layer_schema full[4];
	struct okv_layer_schema window[2];
	struct okv_group_schema groups[2];
	struct okv_identity_field fields[3];
	struct okv_namespace_options opts;
};

static void sample_init(struct sample *s)
{
	memset(s, 0, sizeof(*s));
	for (uint32_t i = 0; i < 4; i++)
		s->full[i] = (struct okv_layer_schema){i * 3, 2, {1000, 520}};
	for (uint32_t i = 0; i < 2; i++)
		s->window[i] = (struct okv_layer_schema){i * 3 + 1, 1, {7}};
	s->groups[0] = (struct okv_group_schema){OKV_GROUP_FULL, 16, 0, 4, "NHD", s->full};
	s->groups[1] = (struct okv_group_schema){OKV_GROUP_WINDOW, 32, 4096, 2, "HND", s->window};
	s->fields[0] = (struct okv_identity_field){"tp", "x", 1};
	s->fields[1] = (struct okv_identity_field){"attention", "mla", 3};
	s->fields[2] = (struct okv_identity_field){"none", NULL, 0};
	s->opts = (struct okv_namespace_options){
		.size = sizeof(s->opts),
		.rank_slots = 2,
		.model = "model",
		.pipeline_stages = 1,
		.field_count = 3,
		.group_count = 2,
		.fields = s->fields,
		.groups = s->groups,
	};
}

static int init_status(const struct sample *s)
{
	struct oki_schema schema;
	struct okv_error err;
	int rc = oki_schema_init(&schema, &s->opts, &err);
	if (rc) {
		ck_assert_int_eq(rc, err.status);
		ck_assert_uint_gt(strlen(err.text), 0);
		return rc;
	}
	oki_schema_fini(&schema);
	return 0;
}

struct bytes {
	uint8_t *at;
	size_t size;
};

static struct bytes encode(const struct sample *s)
{
	struct bytes b;
	struct okv_error err;
	ck_assert_int_eq(oki_identity_encode(&s->opts, &b.at, &b.size, &err), 0);
	return b;
}

static bool equal(struct bytes a, struct bytes b)
{
	return a.size == b.size && !memcmp(a.at, b.at, a.size);
}

/* Encodes what changed and says whether it is another namespace than the plain sample's. */
static bool differs(const struct sample *changed)
{
	struct sample plain;
	sample_init(&plain);
	struct bytes a = encode(&plain);
	struct bytes b = encode(changed);
	bool same = equal(a, b);
	free(a.at);
	free(b.at);
	return !same;
}

START_TEST(layout_is_aligned_and_in_order)
{
	struct sample s;
	struct oki_schema schema;
	sample_init(&s);
	ck_assert_int_eq(oki_schema_init(&schema, &s.opts, NULL), 0);
	ck_assert_uint_eq(schema.rank_slots, 2);
	ck_assert_uint_eq(schema.layer_count, 6);
	ck_assert_uint_eq(schema.groups[0].payload_bytes, 4 * 1520);
	ck_assert_uint_eq(schema.groups[0].block_bytes, 4 * (1008 + 528));
	ck_assert_uint_eq(schema.groups[1].payload_bytes, 14);
	ck_assert_uint_eq(schema.groups[1].block_bytes, 32);
	ck_assert_uint_eq(schema.groups[1].first_layer, 4);
	ck_assert_uint_eq(schema.groups[1].window_tokens, 4096);
	ck_assert_str_eq(schema.groups[1].layout_tag, "HND");
	ck_assert_uint_eq(schema.layers[2].block_offset[1], 2 * 1536 + 1008);
	ck_assert_uint_eq(schema.layers[5].block_offset[0], 16);
	ck_assert_uint_eq(schema.layers[5].group, 1);
	oki_schema_fini(&schema);
	oki_schema_fini(&schema);
}
END_TEST

START_TEST(consumption_order_spans_groups)
{
	static const uint32_t want[6] = {0, 4, 1, 5, 2, 3};
	struct sample s;
	struct oki_schema schema;
	sample_init(&s);
	ck_assert_int_eq(oki_schema_init(&schema, &s.opts, NULL), 0);
	for (uint32_t i = 0; i < 6; i++)
		ck_assert_uint_eq(schema.by_order[i], want[i]);
	oki_schema_fini(&schema);
}
END_TEST

#define REFUSED(status, change)                            \
	do {                                               \
		struct sample s;                           \
		sample_init(&s);                           \
		ck_assert_int_eq(init_status(&s), 0);      \
		change;                                    \
		ck_assert_int_eq(init_status(&s), status); \
	} while (0)

START_TEST(bad_numbers_are_refused)
{
	REFUSED(OKV_E_INVAL, s.opts.size = 0);
	REFUSED(OKV_E_INVAL, s.opts.rank_slots = 0);
	REFUSED(OKV_E_LIMIT, s.opts.rank_slots = OKV_MAX_RANK_SLOTS + 1);
	REFUSED(OKV_E_INVAL, s.opts.pipeline_stage = 1);
	REFUSED(OKV_E_INVAL, s.opts.pipeline_stages = 0);
	REFUSED(OKV_E_INVAL, s.opts.group_count = 0);
	REFUSED(OKV_E_LIMIT, s.opts.group_count = OKV_MAX_GROUPS + 1);
	REFUSED(OKV_E_INVAL, s.opts.groups = NULL);
	REFUSED(OKV_E_INVAL, s.groups[0].kind = 0);
	REFUSED(OKV_E_INVAL, s.groups[0].kind = 4);
	REFUSED(OKV_E_INVAL, s.groups[0].block_tokens = 0);
	REFUSED(OKV_E_LIMIT, s.groups[0].block_tokens = UINT32_MAX / OKV_MAX_BLOCKS + 1);
	REFUSED(OKV_E_INVAL, s.groups[0].window_tokens = 1);
	REFUSED(OKV_E_INVAL, s.groups[1].window_tokens = 0);
	REFUSED(OKV_E_INVAL, s.groups[0].layer_count = 0);
	REFUSED(OKV_E_LIMIT, s.groups[0].layer_count = OKV_MAX_LAYERS + 1);
	REFUSED(OKV_E_LIMIT, s.groups[1].layer_count = UINT32_MAX);
	REFUSED(OKV_E_INVAL, s.groups[0].layers = NULL);
	REFUSED(OKV_E_INVAL, s.full[0].segment_count = 0);
	REFUSED(OKV_E_LIMIT, s.full[0].segment_count = OKV_MAX_SEGMENTS + 1);
	REFUSED(OKV_E_INVAL, s.full[3].segment_bytes[1] = 0);
}
END_TEST

START_TEST(orders_ascend_and_are_unique)
{
	REFUSED(OKV_E_INVAL, s.full[1].order = 0);
	REFUSED(OKV_E_INVAL, s.full[2].order = 1);
	REFUSED(OKV_E_INVAL, s.window[0].order = 3);
}
END_TEST

START_TEST(blocks_fit_plan_entries)
{
	REFUSED(OKV_E_LIMIT, s.full[0].segment_bytes[0] = UINT64_MAX);
	REFUSED(OKV_E_LIMIT, s.full[0].segment_bytes[0] = UINT64_MAX - 15);
	REFUSED(OKV_E_LIMIT, s.full[0].segment_bytes[0] = s.full[1].segment_bytes[0] = 1ull << 63);
	REFUSED(OKV_E_LIMIT, s.window[0].segment_bytes[0] = UINT32_MAX);
	REFUSED(OKV_E_LIMIT, s.window[0].segment_bytes[0] = (1ull << 32) - 16);
	REFUSED(0, s.window[0].segment_bytes[0] = (1ull << 32) - 32);
}
END_TEST

START_TEST(bad_strings_are_refused)
{
	char long_text[LONGEST_STRING + 2];
	memset(long_text, 'x', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = 0;
	REFUSED(OKV_E_INVAL, s.opts.model = NULL);
	REFUSED(OKV_E_INVAL, s.opts.model = "");
	REFUSED(OKV_E_LIMIT, s.opts.model = long_text);
	REFUSED(OKV_E_LIMIT, s.opts.salt = long_text);
	REFUSED(0, s.opts.salt = long_text + 1);
	REFUSED(OKV_E_INVAL, s.groups[0].layout_tag = NULL);
	REFUSED(OKV_E_INVAL, s.groups[0].layout_tag = "");
	REFUSED(OKV_E_INVAL, s.groups[0].layout_tag = "01234567890123456789012345678901");
	REFUSED(0, s.groups[0].layout_tag = "0123456789012345678901234567890");
	REFUSED(OKV_E_INVAL, s.opts.fields = NULL);
	REFUSED(OKV_E_LIMIT, s.opts.field_count = 257);
	REFUSED(OKV_E_INVAL, s.fields[1].name = NULL);
	REFUSED(OKV_E_INVAL, s.fields[1].name = "");
	REFUSED(OKV_E_INVAL, s.fields[1].name = long_text);
	REFUSED(OKV_E_INVAL, s.fields[1].name = s.fields[0].name);
	REFUSED(OKV_E_INVAL, s.fields[2].value_bytes = 1);
	REFUSED(OKV_E_LIMIT, s.fields[0].value_bytes = LONGEST_STRING + 1);
	ck_assert_int_eq(oki_schema_init(&(struct oki_schema){0}, NULL, NULL), OKV_E_INVAL);
}
END_TEST

START_TEST(longer_options_need_a_zero_tail)
{
	struct {
		struct okv_namespace_options opts;
		uint64_t tail;
	} longer = {.tail = 0};
	struct sample s;
	struct oki_schema schema;
	sample_init(&s);
	longer.opts = s.opts;
	longer.opts.size = sizeof(longer);
	ck_assert_int_eq(oki_schema_init(&schema, &longer.opts, NULL), 0);
	oki_schema_fini(&schema);
	longer.tail = 1;
	ck_assert_int_eq(oki_schema_init(&schema, &longer.opts, NULL), OKV_E_VERSION);
}
END_TEST

/* S5, S38, S39 */
START_TEST(every_field_is_identity)
{
#define DIFFERS(change)                  \
	do {                             \
		struct sample s;         \
		sample_init(&s);         \
		ck_assert(!differs(&s)); \
		change;                  \
		ck_assert(differs(&s));  \
	} while (0)
	DIFFERS(s.opts.model = "Model");
	DIFFERS(s.opts.revision = "");
	DIFFERS(s.opts.dtype = "");
	DIFFERS(s.opts.adapter = "");
	DIFFERS(s.opts.salt = "");
	DIFFERS(s.opts.rank_slots = 1);
	DIFFERS(s.opts.pipeline_stages = 2);
	DIFFERS(s.opts.pipeline_stages = 2; s.opts.pipeline_stage = 1);
	DIFFERS(s.opts.field_count = 2);
	DIFFERS(s.fields[0].name = "tq");
	DIFFERS(s.fields[0].value = "y");
	DIFFERS(s.fields[2].value = "z"; s.fields[2].value_bytes = 1);
	DIFFERS(s.opts.group_count = 1);
	DIFFERS(s.groups[0].kind = OKV_GROUP_STATE);
	DIFFERS(s.groups[0].block_tokens = 8);
	DIFFERS(s.groups[1].window_tokens = 4097);
	DIFFERS(s.groups[0].layer_count = 3);
	DIFFERS(s.groups[0].layout_tag = "HND");
	DIFFERS(s.full[3].order = 10);
	DIFFERS(s.full[0].segment_count = 1);
	DIFFERS(s.full[0].segment_bytes[0] = 520; s.full[0].segment_bytes[1] = 1000);
#undef DIFFERS
}
END_TEST

static bool pair_differs(struct sample *a, struct sample *b)
{
	struct bytes x = encode(a);
	struct bytes y = encode(b);
	bool same = equal(x, y);
	free(x.at);
	free(y.at);
	return !same;
}

/* S39: the same word in another place is another key, and words never run together. */
START_TEST(fields_do_not_mix)
{
	struct sample a, b;
	sample_init(&a);
	sample_init(&b);
	a.opts.salt = "X";
	b.opts.adapter = "X";
	ck_assert(pair_differs(&a, &b));
	a.opts.adapter = "ab";
	a.opts.salt = "c";
	b.opts.adapter = "a";
	b.opts.salt = "bc";
	ck_assert(pair_differs(&a, &b));
	sample_init(&a);
	sample_init(&b);
	a.fields[0] = (struct okv_identity_field){"ab", "c", 1};
	b.fields[0] = (struct okv_identity_field){"a", "bc", 2};
	ck_assert(pair_differs(&a, &b));
	sample_init(&a);
	sample_init(&b);
	a.fields[0] = (struct okv_identity_field){"salt", "X", 1};
	b.opts.field_count = 2;
	b.opts.fields = b.fields + 1;
	b.opts.salt = "X";
	ck_assert(pair_differs(&a, &b));
}
END_TEST

START_TEST(field_order_does_not_matter)
{
	struct sample a, b;
	sample_init(&a);
	sample_init(&b);
	b.fields[0] = a.fields[2];
	b.fields[2] = a.fields[0];
	/* nor does what lies beyond the counts */
	b.window[0].segment_bytes[1] = 99;
	ck_assert(!pair_differs(&a, &b));
}
END_TEST

static void assert_same_schema(const struct oki_schema *a, const struct oki_schema *b)
{
	ck_assert_uint_eq(a->rank_slots, b->rank_slots);
	ck_assert_uint_eq(a->group_count, b->group_count);
	ck_assert_uint_eq(a->layer_count, b->layer_count);
	ck_assert_mem_eq(a->groups, b->groups, sizeof(a->groups));
	ck_assert_mem_eq(a->layers, b->layers, a->layer_count * sizeof(a->layers[0]));
	ck_assert_mem_eq(a->by_order, b->by_order, a->layer_count * sizeof(a->by_order[0]));
}

START_TEST(decode_gives_the_schema_back)
{
	struct sample s;
	struct oki_schema direct, decoded;
	sample_init(&s);
	s.opts.revision = "";
	s.opts.salt = "pepper";
	struct bytes b = encode(&s);
	ck_assert_int_eq(oki_schema_init(&direct, &s.opts, NULL), 0);
	ck_assert_int_eq(oki_identity_decode(b.at, b.size, &decoded, NULL), 0);
	assert_same_schema(&direct, &decoded);
	oki_schema_fini(&direct);
	oki_schema_fini(&decoded);
	free(b.at);
}
END_TEST

/* The bytes in an allocation of exactly their size, so that a sanitizer sees any over-read. */
static int decode_exact(const uint8_t *bytes, size_t size)
{
	struct oki_schema schema;
	struct okv_error err = {0};
	uint8_t *copy = malloc(size ? size : 1);
	memcpy(copy, bytes, size);
	int rc = oki_identity_decode(copy, size, &schema, &err);
	free(copy);
	if (rc == 0)
		oki_schema_fini(&schema);
	else
		ck_assert_int_eq(err.status, rc);
	return rc;
}

START_TEST(truncated_and_extended_bytes_are_refused)
{
	struct sample s;
	sample_init(&s);
	struct bytes b = encode(&s);
	uint8_t *longer = calloc(1, b.size + 64);
	for (size_t size = 0; size < b.size; size++)
		ck_assert_int_eq(decode_exact(b.at, size), OKV_E_PROTOCOL);
	memcpy(longer, b.at, b.size);
	for (size_t more = 1; more <= 64; more++)
		ck_assert_int_eq(decode_exact(longer, b.size + more), OKV_E_PROTOCOL);
	free(longer);
	free(b.at);
	ck_assert_int_eq(oki_identity_decode(NULL, 0, &(struct oki_schema){0}, NULL),
			 OKV_E_PROTOCOL);
}
END_TEST

/* Whatever a flipped byte makes of it: refused, or another namespace that is itself canonical. */
START_TEST(flipped_bytes_never_break_the_decoder)
{
	struct sample s;
	sample_init(&s);
	struct bytes b = encode(&s);
	unsigned refused = 0;
	for (size_t i = 0; i < b.size; i++)
		for (unsigned bit = 0; bit < 8; bit++) {
			b.at[i] ^= (uint8_t)(1u << bit);
			int rc = decode_exact(b.at, b.size);
			ck_assert(rc == 0 || rc == OKV_E_PROTOCOL);
			refused += rc != 0;
			b.at[i] ^= (uint8_t)(1u << bit);
		}
	ck_assert_uint_gt(refused, 8 * 16);
	ck_assert_int_eq(decode_exact(b.at, b.size), 0);
	free(b.at);
}
END_TEST

static uint8_t *find(struct bytes b, const void *what, size_t size)
{
	uint8_t *at = memmem(b.at, b.size, what, size);
	ck_assert_ptr_nonnull(at);
	return at;
}

START_TEST(only_canonical_order_is_accepted)
{
	struct sample s;
	sample_init(&s);
	s.opts.dtype = "dtypeA";
	s.opts.salt = "saltBB";
	struct bytes b = encode(&s);
	/* the two fields have the same size: swapped whole, both are well formed */
	uint8_t *dtype = find(b, "dtypeA", 6) - 8;
	uint8_t *salt = find(b, "saltBB", 6) - 8;
	uint8_t kept[14];
	memcpy(kept, dtype, 14);
	memcpy(dtype, salt, 14);
	memcpy(salt, kept, 14);
	ck_assert_int_eq(decode_exact(b.at, b.size), OKV_E_PROTOCOL);
	/* the same field twice */
	memcpy(salt, dtype, 14);
	ck_assert_int_eq(decode_exact(b.at, b.size), OKV_E_PROTOCOL);
	memcpy(dtype, kept, 14);
	ck_assert_int_eq(decode_exact(b.at, b.size), 0);
	/* a string that ends early */
	dtype[10] = 0;
	ck_assert_int_eq(decode_exact(b.at, b.size), OKV_E_PROTOCOL);
	free(b.at);
}
END_TEST

START_TEST(extra_fields_must_be_sorted)
{
	struct sample s;
	sample_init(&s);
	s.fields[0] = (struct okv_identity_field){"aaa", "1", 1};
	s.fields[1] = (struct okv_identity_field){"bbb", "2", 1};
	struct bytes b = encode(&s);
	uint8_t *a = find(b, "aaa", 3);
	uint8_t *c = find(b, "bbb", 3);
	memcpy(a, "bbb2", 4);
	memcpy(c, "aaa1", 4);
	ck_assert_int_eq(decode_exact(b.at, b.size), OKV_E_PROTOCOL);
	memcpy(a, "aaa1", 4);
	memcpy(c, "aab2", 4);
	ck_assert_int_eq(decode_exact(b.at, b.size), 0);
	memcpy(c, "aaa2", 4);
	ck_assert_int_eq(decode_exact(b.at, b.size), OKV_E_PROTOCOL);
	free(b.at);
}
END_TEST

START_TEST(largest_schema_fits_one_message)
{
	struct sample s;
	struct oki_schema schema;
	struct okv_layer_schema *layers = calloc(OKV_MAX_LAYERS, sizeof(layers[0]));
	for (uint32_t i = 0; i < OKV_MAX_LAYERS; i++) {
		layers[i].order = i;
		layers[i].segment_count = i % 2 ? 4 : 12; /* 8 on average */
		for (uint32_t j = 0; j < OKV_MAX_SEGMENTS; j++)
			layers[i].segment_bytes[j] = 100;
	}
	sample_init(&s);
	s.opts.group_count = 1;
	s.groups[0].layer_count = OKV_MAX_LAYERS;
	s.groups[0].layers = layers;
	ck_assert_int_eq(OKV_MAX_SCHEMA_SEGMENTS, 8 * OKV_MAX_LAYERS);
	struct bytes b = encode(&s);
	ck_assert_uint_le(b.size, OKW_MSG_MAX_BYTES - sizeof(struct okw_msg));
	ck_assert_int_eq(oki_identity_decode(b.at, b.size, &schema, NULL), 0);
	ck_assert_uint_eq(schema.layer_count, OKV_MAX_LAYERS);
	oki_schema_fini(&schema);
	free(b.at);

	/* one segment more is refused as such */
	struct okv_error err;
	layers[1].segment_count++;
	ck_assert_int_eq(oki_identity_encode(&s.opts, &b.at, &b.size, &err), OKV_E_LIMIT);
	ck_assert_ptr_nonnull(strstr(err.text, "8193 segments"));
	layers[1].segment_count--;

	/* with too much identity beside it, it does not */
	char *big = calloc(1, LONGEST_STRING);
	struct okv_identity_field fields[16];
	char names[16][16];
	for (int i = 0; i < 16; i++) {
		snprintf(names[i], sizeof(names[i]), "f%d", i);
		fields[i] = (struct okv_identity_field){names[i], big, LONGEST_STRING};
	}
	s.opts.fields = fields;
	s.opts.field_count = 16;
	ck_assert_int_eq(oki_identity_encode(&s.opts, &b.at, &b.size, &err), OKV_E_LIMIT);
	ck_assert_int_eq(err.status, OKV_E_LIMIT);
	free(big);
	free(layers);
}
END_TEST

/* Counts that claim more than there is. */
START_TEST(huge_counts_in_bytes_are_refused)
{
	struct sample s;
	sample_init(&s);
	struct bytes b = encode(&s);
	static const uint32_t values[] = {0, 5, 1025, 0x7fffffff, 0x80000000, 0xffffffff};
	for (size_t at = 0; at + 4 <= b.size; at++)
		for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
			uint8_t kept[4];
			memcpy(kept, b.at + at, 4);
			memcpy(b.at + at, &values[v], 4);
			int rc = decode_exact(b.at, b.size);
			ck_assert(rc == 0 || rc == OKV_E_PROTOCOL);
			memcpy(b.at + at, kept, 4);
		}
	ck_assert_int_eq(decode_exact(b.at, b.size), 0);
	free(b.at);
}
END_TEST

/* Bytes that are all there, of more layers than a schema may have. */
START_TEST(too_many_layers_in_bytes_are_refused)
{
	enum { LAYERS = 8000, LAYER_BYTES = 16 };
	struct sample s;
	sample_init(&s);
	s.opts.group_count = 1;
	s.groups[0].layers = s.window;
	s.groups[0].layer_count = 1;
	struct bytes b = encode(&s);
	size_t size = b.size + (LAYERS - 1) * LAYER_BYTES;
	uint8_t *many = malloc(size);
	memcpy(many, b.at, b.size);
	for (size_t at = b.size; at < size; at += LAYER_BYTES)
		memcpy(many + at, b.at + b.size - LAYER_BYTES, LAYER_BYTES);
	/* behind the group's head of 5 numbers and its tag "NHD" comes the one layer */
	uint8_t *group = many + b.size - LAYER_BYTES - 3 - 7 * sizeof(uint32_t);
	uint32_t field = 5 * sizeof(uint32_t) + 3 + LAYERS * LAYER_BYTES;
	uint32_t layers = LAYERS, whole = (uint32_t)size;
	memcpy(group + 4, &field, sizeof(field));
	memcpy(group + 5 * sizeof(uint32_t), &layers, sizeof(layers));
	memcpy(many + 8, &whole, sizeof(whole));
	ck_assert_int_eq(decode_exact(many, size), OKV_E_PROTOCOL);
	free(many);
	free(b.at);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("schema");
	TCase *tc = tcase_create("schema");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, layout_is_aligned_and_in_order);
	tcase_add_test(tc, consumption_order_spans_groups);
	tcase_add_test(tc, bad_numbers_are_refused);
	tcase_add_test(tc, orders_ascend_and_are_unique);
	tcase_add_test(tc, blocks_fit_plan_entries);
	tcase_add_test(tc, bad_strings_are_refused);
	tcase_add_test(tc, longer_options_need_a_zero_tail);
	tcase_add_test(tc, every_field_is_identity);
	tcase_add_test(tc, fields_do_not_mix);
	tcase_add_test(tc, field_order_does_not_matter);
	tcase_add_test(tc, decode_gives_the_schema_back);
	tcase_add_test(tc, truncated_and_extended_bytes_are_refused);
	tcase_add_test(tc, flipped_bytes_never_break_the_decoder);
	tcase_add_test(tc, only_canonical_order_is_accepted);
	tcase_add_test(tc, extra_fields_must_be_sorted);
	tcase_add_test(tc, largest_schema_fits_one_message);
	tcase_add_test(tc, huge_counts_in_bytes_are_refused);
	tcase_add_test(tc, too_many_layers_in_bytes_are_refused);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
