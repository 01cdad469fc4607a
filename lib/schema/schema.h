/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Cache identity and schema: checked options, the layout of blocks, and canonical bytes. */
#ifndef OKI_SCHEMA_SCHEMA_H
#define OKI_SCHEMA_SCHEMA_H

#include <stddef.h>
#include <orbitkv/binding.h>

/* Segments start at multiples of this inside a block. */
#define OKI_SEGMENT_ALIGN 16u
/* Limits that the public header does not name; it only says that all must fit one message. */
#define OKI_MAX_IDENTITY_STRING 4096u
#define OKI_MAX_IDENTITY_FIELDS 256u
/* count * block_tokens of one publish must fit 32 bits. */
#define OKI_MAX_BLOCK_TOKENS (UINT32_MAX / OKV_MAX_BLOCKS)

struct oki_schema_layer {
	uint32_t order;
	uint32_t group;
	uint32_t segment_count;
	uint64_t segment_bytes[OKV_MAX_SEGMENTS]; /* per block */
	uint64_t block_offset[OKV_MAX_SEGMENTS];  /* aligned, in consumption order */
};

struct oki_schema_group {
	uint32_t kind;
	uint32_t block_tokens;
	uint32_t window_tokens;
	uint32_t first_layer; /* index in layers */
	uint32_t layer_count;
	uint64_t payload_bytes; /* sum of all segments: what is copied */
	uint64_t block_bytes;	/* with alignment gaps: what is allocated */
	char layout_tag[32];
};

struct oki_schema {
	uint32_t rank_slots;
	uint32_t group_count;
	uint32_t layer_count;
	struct oki_schema_group groups[OKV_MAX_GROUPS];
	struct oki_schema_layer *layers; /* owned; group after group */
	uint32_t *by_order;		 /* owned; layer indexes in consumption order */
};

/*
 * Read opts over the defaults and check every number, string and pointer. ret_full borrows what
 * opts points to. OKV_E_INVAL, OKV_E_LIMIT; OKV_E_VERSION for a field this library does not know.
 */
int oki_namespace_check(const struct okv_namespace_options *opts,
			struct okv_namespace_options *ret_full, struct okv_error *err);

/* Check options and compute the layout of blocks. On failure there is nothing to free. */
int oki_schema_init(struct oki_schema *schema, const struct okv_namespace_options *opts,
		    struct okv_error *err);
void oki_schema_fini(struct oki_schema *schema);

/*
 * Identity and schema as one canonical byte string: tagged, length-prefixed fields in a fixed
 * order. Two inputs are equal exactly when their strings are. Returns owned (free). OKV_E_LIMIT
 * when it does not fit one message.
 */
int oki_identity_encode(const struct okv_namespace_options *opts, uint8_t **ret_bytes,
			size_t *ret_size, struct okv_error *err);
/*
 * Read the schema from such a string, which is not trusted: only bytes that encode itself would
 * have written are accepted. OKV_E_PROTOCOL, OKV_E_NOMEM.
 */
int oki_identity_decode(const uint8_t *bytes, size_t size, struct oki_schema *ret_schema,
			struct okv_error *err);

#endif
