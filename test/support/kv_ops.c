/* SPDX-License-Identifier: Apache-2.0 */
/* Publish, look up and restore known blocks in one call each. */
#include "support/kv.h"

#include <check.h>
#include <dirent.h>
#include <stdlib.h>

uint32_t *kv_pages(const struct kv_rank *rank, uint32_t n, uint32_t start, uint32_t step)
{
	uint32_t *pages = malloc((size_t)(n + 1) * sizeof(*pages));
	ck_assert(pages != NULL);
	for (uint32_t i = 0; i < n; i++)
		pages[i] = (start + i * step) % rank->shape.pages;
	return pages;
}

int kv_publish_start(struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		     const uint32_t *pages, uint32_t flags, struct okv_op **ret_op,
		     struct okv_error *err)
{
	uint8_t parent[KV_KEY_BYTES];
	uint8_t *keys = kv_keys(seq, first, count);
	if (first)
		kv_key(seq, first - 1, parent);
	struct okv_publish_group g = {
		.keys = {.group = 0, .count = count, .key_bytes = KV_KEY_BYTES, .keys = keys},
		.first_position = first,
		.tokens = count * rank->shape.block_tokens,
		.parent = first ? parent : NULL,
		.pages = pages,
	};
	struct okv_publish_options o;
	okv_publish_options_init(&o);
	o.flags = flags;
	o.group_count = 1;
	o.groups = &g;
	int rc = okv_publish_start(rank->binding, &o, ret_op, err);
	free(keys);
	return rc;
}

int kv_publish(struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
	       const uint32_t *pages, struct okv_op_result *ret_result)
{
	uint32_t ppb = rank->shape.pages_per_block;
	uint32_t *own = pages ? NULL : kv_pages(rank, count * ppb, 0, 1);
	const uint32_t *use = pages ? pages : own;
	for (uint32_t i = 0; i < count; i++)
		kv_fill(rank, seq, first + i, use + (size_t)i * ppb);
	struct okv_op *op;
	struct okv_error err = {0};
	int rc = kv_publish_start(rank, seq, first, count, use, 0, &op, &err);
	if (!rc) {
		rc = okv_op_wait(op, 60000, ret_result);
		okv_op_release(op);
	}
	free(own);
	return rc;
}

uint32_t kv_lookup(struct okv_namespace *ns, uint64_t seq, uint32_t count, uint32_t consumers,
		   struct okv_lease **ret_lease)
{
	uint8_t *keys = kv_keys(seq, 0, count);
	struct okv_keys k = {.group = 0, .count = count, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	o.flags = ret_lease ? 0 : OKV_LOOKUP_PEEK;
	o.consumers = consumers;
	o.group_count = 1;
	o.groups = &k;
	o.timeout_ms = 60000;
	struct okv_lookup_result result;
	kv_ok(okv_lookup(ns, &o, &result, ret_lease, kv_err));
	free(keys);
	ck_assert_uint_eq(result.group_count, 1);
	ck_assert_uint_eq(result.groups[0].first, 0);
	return result.groups[0].count;
}

int kv_restore_start(struct kv_rank *rank, struct okv_lease *lease, uint32_t first, uint32_t count,
		     const uint32_t *pages, uint32_t flags, struct okv_op **ret_op,
		     struct okv_error *err)
{
	struct okv_restore_group g = {.first = first, .count = count, .pages = pages};
	struct okv_restore_options o;
	okv_restore_options_init(&o);
	o.flags = flags;
	o.group_count = 1;
	o.groups = &g;
	return okv_restore_start(rank->binding, lease, &o, ret_op, err);
}

int kv_restore(struct kv_rank *rank, struct okv_lease *lease, uint32_t first, uint32_t count,
	       const uint32_t *pages, uint32_t flags, struct okv_op_result *ret_result)
{
	struct okv_op *op;
	struct okv_error err = {0};
	int rc = kv_restore_start(rank, lease, first, count, pages, flags, &op, &err);
	if (rc)
		return rc;
	rc = okv_op_wait(op, 60000, ret_result);
	okv_op_release(op);
	return rc;
}

uint32_t kv_fd_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	ck_assert(dir != NULL);
	uint32_t n = 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 3; /* ".", ".." and the directory itself */
}
