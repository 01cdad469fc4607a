/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of order_model.h as the library sees it: its calls, and memory that nothing reads. */
#ifndef TEST_UNIT_ORDER_DRIVER_H
#define TEST_UNIT_ORDER_DRIVER_H

#include "test/unit/device/cuda/order_model.h"

static CUresult model_is_capturing(CUstream stream, CUstreamCaptureStatus *ret_status)
{
	(void)stream;
	*ret_status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

static CUresult model_context(CUstream stream, CUcontext *ret_context)
{
	(void)stream;
	*ret_context = NULL;
	return CUDA_SUCCESS;
}

static CUresult model_query(CUstream stream)
{
	(void)stream;
	return CUDA_ERROR_NOT_READY;
}

static CUresult model_alloc(CUdeviceptr *ret_at, size_t bytes)
{
	if (model.no_memory)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ret_at = TABLES_AT + model.next_table;
	model.next_table += bytes;
	return CUDA_SUCCESS;
}

static CUresult model_free(CUdeviceptr at)
{
	(void)at;
	return CUDA_SUCCESS;
}

static CUresult model_host_alloc(void **ret_at, size_t bytes, unsigned flags)
{
	(void)flags;
	*ret_at = malloc(bytes);
	return *ret_at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult model_host_free(void *at)
{
	free(at);
	return CUDA_SUCCESS;
}

static CUresult model_event_create(CUevent *ret_event, unsigned flags)
{
	(void)flags;
	*ret_event = EVENT(MARK);
	return CUDA_SUCCESS;
}

static CUresult model_event_destroy(CUevent event)
{
	(void)event;
	return CUDA_SUCCESS;
}

static CUresult model_register(void *at, size_t bytes, unsigned flags)
{
	(void)at, (void)bytes, (void)flags;
	return CUDA_SUCCESS;
}

static CUresult model_unregister(void *at)
{
	(void)at;
	return CUDA_SUCCESS;
}

static CUresult model_device_pointer(CUdeviceptr *ret_at, void *at, unsigned flags)
{
	(void)flags;
	*ret_at = (CUdeviceptr)(uintptr_t)at;
	return CUDA_SUCCESS;
}

static CUresult model_retain(CUcontext *ret_context, CUdevice device)
{
	(void)device;
	*ret_context = NULL;
	return CUDA_SUCCESS;
}

static CUresult model_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}

static CUresult model_text(CUresult result, const char **ret_text)
{
	(void)result;
	*ret_text = "MODEL";
	return CUDA_SUCCESS;
}

/* No context is named: the calling thread counts as attached to it. */
static struct oki_cuda_api model_api(bool batch)
{
	struct oki_cuda_api api = {
		.copy_to_device = model_to_device,
		.copy_to_host = model_to_host,
		.copy_2d = model_2d,
		.launch = model_launch,
		.event_create = model_event_create,
		.event_destroy = model_event_destroy,
		.event_record = model_record,
		.stream_wait_event = model_wait,
		.stream_wait_value = model_wait_value,
		.stream_is_capturing = model_is_capturing,
		.stream_context = model_context,
		.stream_query = model_query,
		.stream_synchronize = model_synchronize,
		.memory_alloc = model_alloc,
		.memory_free = model_free,
		.host_alloc = model_host_alloc,
		.host_free = model_host_free,
		.host_register = model_register,
		.host_unregister = model_unregister,
		.host_device_pointer = model_device_pointer,
		.primary_retain = model_retain,
		.primary_release = model_release,
		.error_name = model_text,
		.error_string = model_text,
	};
#if OKI_CUDA_HAS_BATCH
	if (batch)
		api.copy_batch = model_batch;
#else
	(void)batch;
#endif
	return api;
}

#endif
