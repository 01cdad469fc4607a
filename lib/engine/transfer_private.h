/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What publish and restore share on their way to the Manager. */
#ifndef OKI_ENGINE_TRANSFER_PRIVATE_H
#define OKI_ENGINE_TRANSFER_PRIVATE_H

#include "engine/engine_private.h"

/*
 * Keep a binding's worker from being stopped while a start call looks at it: OKV_E_CLOSED when it
 * is not open. Counts as running until unhold.
 */
int oki_binding_enter(struct okv_binding *b, struct okv_error *err);
void oki_binding_leave(struct okv_binding *b);

/* A new operation over a binding, with room for its layers. NULL with err filled. */
struct okv_op *oki_transfer_op(struct okv_binding *b, uint32_t kind, uint32_t flags,
			       uint64_t user_data, const struct okv_owner *owner,
			       struct okv_error *err);
/* Add a group after checking its pages; pages stay the caller's until keep_pages copied them. */
int oki_transfer_group(struct okv_op *op, uint32_t group, uint32_t count, const uint32_t *pages,
		       uint64_t *page_total, struct okv_error *err);
int oki_transfer_keep_pages(struct okv_op *op, uint64_t page_total, struct okv_error *err);

int oki_transfer_check_ready(const struct okv_binding *b, const struct okv_ready *ready,
			     bool has_events, struct okv_error *err);
int oki_transfer_check_owner(const struct okv_owner *owner, struct okv_error *err);

/*
 * Admission, owners, stream, fences, record. On failure everything is undone and the op is only
 * to be put. On 0 the request is to be written and oki_transfer_go() called.
 */
int oki_transfer_begin(struct okv_op *op, const struct okv_ready *ready, uint32_t request_bytes,
		       uint8_t **ret_request, struct okv_error *err);
void oki_transfer_go(struct okv_op *op, struct okw_request *head, uint32_t request_bytes);

#endif
