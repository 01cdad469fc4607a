/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Check and decode a private copy of a request. */
#include "manager/manager_private.h"

#include <string.h>

#include "base/error.h"

static int invalid(struct okv_error *err, const char *what)
{
	return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_PREPARE, "request: %s", what);
}

uint32_t oki_mgr_reply_bytes(uint32_t kind)
{
	switch (kind) {
	case OKW_OP_LOOKUP:
	case OKW_OP_LEASE_OPEN: return sizeof(struct okw_lookup_reply);
	case OKW_OP_RESTORE:
	case OKW_OP_PUBLISH: return sizeof(struct okw_transfer_reply);
	default: return 0;
	}
}

uint32_t oki_mgr_whole_reply_bytes(const struct oki_mgr_request *request)
{
	const struct okw_request *head = &request->head;
	uint32_t bytes = oki_mgr_reply_bytes(head->kind);

	if (head->kind == OKW_OP_RESTORE || head->kind == OKW_OP_PUBLISH)
		bytes += head->group_count * (uint32_t)sizeof(struct okw_stretch_reply);
	return bytes;
}

static bool has_keys(uint32_t kind)
{
	return kind == OKW_OP_LOOKUP || kind == OKW_OP_PUBLISH;
}

/* Flags that this kind of request may have. */
static uint32_t known_flags(uint32_t kind)
{
	return kind == OKW_OP_LOOKUP ? OKW_REQUEST_PEEK : 0;
}

static uint32_t most_entries(uint32_t kind)
{
	return kind == OKW_OP_RESTORE || kind == OKW_OP_PUBLISH ? OKW_MAX_STRETCHES
								: OKW_MAX_GROUPS;
}

static int check_head(const struct okw_request *head, uint32_t size, struct okv_error *err)
{
	if (head->bytes != size)
		return invalid(err, "its size is not the record's");
	if (!oki_mgr_reply_bytes(head->kind))
		return invalid(err, "unknown kind");
	if (head->group_count > most_entries(head->kind))
		return invalid(err, "too many groups");
	if (head->kind == OKW_OP_LEASE_OPEN && head->group_count)
		return invalid(err, "a lease open names groups");
	if (has_keys(head->kind) && !head->group_count)
		return invalid(err, "no groups");
	if (head->flags & ~known_flags(head->kind))
		return invalid(err, "unknown flags");
	if ((head->kind == OKW_OP_RESTORE || head->kind == OKW_OP_PUBLISH) != !!head->binding_id)
		return invalid(err, "binding where none belongs, or none where one does");
	return 0;
}

static int check_group(const struct okw_request_group *group, uint32_t kind, struct okv_error *err)
{
	if (group->count > OKW_MAX_BLOCKS)
		return invalid(err, "too many blocks in a group");
	if (!group->count)
		return invalid(err, "a group without keys");
	if (!group->key_bytes || group->key_bytes > OKW_MAX_KEY_BYTES)
		return invalid(err, "key size");
	if (group->parent_bytes &&
	    (kind != OKW_OP_PUBLISH || group->parent_bytes != group->key_bytes))
		return invalid(err, "parent key");
	return 0;
}

/* The group table and the keys of a lookup or a publish. */
static int decode_groups(const uint8_t *bytes, uint32_t size, struct oki_mgr_request *request,
			 struct okv_error *err)
{
	uint32_t count = request->head.group_count;
	uint32_t at = (uint32_t)sizeof(request->head);
	uint32_t table_bytes = count * (uint32_t)sizeof(request->groups[0]);

	if (table_bytes > size - at)
		return invalid(err, "group table past its end");
	memcpy(request->groups, bytes + at, table_bytes);
	at += table_bytes;
	for (uint32_t g = 0; g < count; g++) {
		const struct okw_request_group *group = &request->groups[g];
		int rc = check_group(group, request->head.kind, err);
		if (rc)
			return rc;
		/* count and key_bytes are bounded: this cannot overflow */
		uint32_t need = group->parent_bytes + group->count * group->key_bytes;
		if (need > size - at)
			return invalid(err, "keys past its end");
		request->parents[g] = group->parent_bytes ? bytes + at : NULL;
		request->keys[g] = bytes + at + group->parent_bytes;
		at += need;
		request->blocks += group->count;
	}
	return at == size ? 0 : invalid(err, "bytes that nothing announces");
}

static int decode_parts(const uint8_t *bytes, uint32_t size, struct oki_mgr_request *request,
			struct okv_error *err)
{
	uint32_t count = request->head.group_count;

	if (count * sizeof(request->parts[0]) != size - sizeof(request->head))
		return invalid(err, "its size is not that of its stretches");
	memcpy(request->parts, bytes + sizeof(request->head), count * sizeof(request->parts[0]));
	for (uint32_t i = 0; i < count; i++) {
		const struct okw_restore_part *part = &request->parts[i];
		if (part->count > OKW_MAX_BLOCKS)
			return invalid(err, "too many blocks in a group");
		if (part->flags & ~OKW_PART_KEEP)
			return invalid(err, "unknown flags of a stretch");
		if (part->lease_slot > OKW_LEASES)
			return invalid(err, "no such lease slot");
		request->blocks += part->count;
	}
	return 0;
}

int oki_mgr_request_decode(const uint8_t *bytes, uint32_t size, struct oki_mgr_request *ret_request,
			   struct okv_error *err)
{
	if (size < sizeof(ret_request->head) || size > OKI_MGR_REQUEST_MAX)
		return invalid(err, "size");
	memcpy(&ret_request->head, bytes, sizeof(ret_request->head));
	ret_request->blocks = 0;
	int rc = check_head(&ret_request->head, size, err);
	if (rc)
		return rc;
	rc = ret_request->head.kind == OKW_OP_RESTORE
		     ? decode_parts(bytes, size, ret_request, err)
		     : decode_groups(bytes, size, ret_request, err);
	if (rc)
		return rc;
	if (ret_request->blocks > OKW_MAX_OPERATION_BLOCKS)
		return invalid(err, "too many blocks");
	return 0;
}
