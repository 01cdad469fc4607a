/* SPDX-License-Identifier: Apache-2.0 */
/* One step of an engine: many requests, each with a stretch of every group, in one operation. */
#ifndef KV_STEP_H
#define KV_STEP_H

#include "support/tensors.h"

#define KV_STEP_BLOCKS 3u /* of the full group of each request */
#define KV_STEP_WINDOW 2u /* of the window group: the last ones */

/*
 * Group 0 is full, with two layers; group 1 is a window that needs KV_STEP_WINDOW blocks, with one
 * layer between those two in the consumption order.
 */
extern const struct okv_group_schema kv_step_groups[2];

struct kv_step {
	struct kv_tensors *t;
	uint64_t seq; /* of request 0; request r is sequence seq + r */
	uint32_t requests;
	uint32_t *pages[2]; /* of each group, request after request */
	/* 2 * requests stretches: both groups of request 0, then of request 1, and so on */
	struct okv_publish_group *publish;
	struct okv_restore_group *restore;
	uint8_t *keys;
	struct okv_lease **leases;
	struct okv_lease_id *ids;
};

/* Map tensors with room for the requests. */
void kv_step_tensors(struct kv_tensors *t, struct okv_namespace *ns, uint32_t requests);
/* Choose pages: scattered, and other ones with another `shuffle`. No leases yet. */
void kv_step_init(struct kv_step *s, struct kv_tensors *t, uint64_t seq, uint32_t requests,
		  uint32_t shuffle);
void kv_step_fini(struct kv_step *s);
void kv_step_fill(struct kv_step *s);
int kv_step_publish(struct kv_step *s, uint32_t flags, struct okv_op **ret_op,
		    struct okv_error *err);
/* A lease for each request. */
void kv_step_lookup(struct kv_step *s, uint32_t consumers);
/* Restore through handles (by_id false) or ids. */
int kv_step_restore(struct kv_step *s, bool by_id, uint32_t flags, struct okv_op **ret_op,
		    struct okv_error *err);
void kv_step_release(struct kv_step *s);
/* Bytes of one request that are not in place. */
uint64_t kv_step_wrong(const struct kv_step *s, uint32_t request);
/* The blocks of a request, by group. */
struct kv_blocks kv_step_blocks(const struct kv_step *s, uint32_t request, uint32_t group);

#endif
