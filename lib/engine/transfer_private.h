/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Shared by publish and restore: starting a transfer. */
#ifndef OKI_ENGINE_TRANSFER_PRIVATE_H
#define OKI_ENGINE_TRANSFER_PRIVATE_H

#include "engine/engine_private.h"

/*
 * Keep a binding's worker from being stopped while a start call uses it: OKV_E_CLOSED when the
 * binding is not open. Counts as running until oki_binding_leave().
 */
int oki_binding_enter(struct okv_binding *b, struct okv_error *err);
void oki_binding_leave(struct okv_binding *b);

/* A new operation over a binding, with room for its layers. NULL with err filled. */
struct okv_op *oki_transfer_op(struct okv_binding *b, uint32_t kind, uint32_t flags,
			       uint64_t user_data, const struct okv_owner *owner,
			       struct okv_error *err);
int oki_transfer_check_ready(const struct okv_binding *b, const struct okv_ready *ready,
			     bool has_events, struct okv_error *err);
int oki_transfer_check_owner(const struct okv_owner *owner, struct okv_error *err);

/*
 * Admission, owners, stream, fences, record. On failure everything is undone and the caller only
 * puts the op. On 0 the caller writes the request, then calls oki_transfer_go().
 */
int oki_transfer_begin(struct okv_op *op, const struct okv_ready *ready, uint32_t request_bytes,
		       uint8_t **ret_request, struct okv_error *err);
void oki_transfer_go(struct okv_op *op, struct okw_request *head, uint32_t request_bytes);

#endif
