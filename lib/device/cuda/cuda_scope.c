/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Makes the GPU's context current for some driver calls. */
#include "device/cuda/cuda_device.h"

/* The context of a thread that belongs to the library; set once, never replaced. */
static __thread CUcontext attached;

void oki_cuda_attach(const struct oki_cuda_api *api, CUcontext context)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	if (!attached && api->context_push(context) == CUDA_SUCCESS &&
	    api->capture_mode_exchange(&mode) == CUDA_SUCCESS)
		attached = context;
}

CUresult oki_cuda_enter(const struct oki_cuda_api *api, CUcontext context,
			struct oki_cuda_scope *ret_scope)
{
	if (attached == context) {
		ret_scope->api = NULL;
		return CUDA_SUCCESS;
	}
	CUresult result = api->context_push(context);
	if (result != CUDA_SUCCESS)
		return result;
	ret_scope->api = api;
	ret_scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	result = api->capture_mode_exchange(&ret_scope->mode);
	if (result != CUDA_SUCCESS)
		api->context_pop(&context);
	return result;
}

void oki_cuda_leave(struct oki_cuda_scope *scope)
{
	CUcontext ours;
	if (!scope->api)
		return;
	scope->api->capture_mode_exchange(&scope->mode);
	scope->api->context_pop(&ours);
}
