/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The CUDA device: copy engines, and a kernel on a few SMs for what copy engines do slowly. */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/exit.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"

struct oki_mark {
	struct oki_device *device;
	CUevent event;
};

static CUresult enter(const struct oki_device *device, struct oki_cuda_scope *ret_scope)
{
	return oki_cuda_enter(device->api, device->context, ret_scope);
}

static int read_pin_limit(struct oki_device *device, struct okv_error *err)
{
	const char *limit = getenv("ORBITKV_PIN_LIMIT");
	device->pin_limit = OKI_CUDA_PIN_LIMIT;
	if (!limit || !*limit || oki_cuda_pin_limit(limit, &device->pin_limit))
		return 0;
	return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
			"ORBITKV_PIN_LIMIT=%.32s: a multiple of 2M, in bytes, or with K, M, G or T",
			limit);
}

/* The environment overrides the binding's options, so that an operator decides. */
static int read_copy_path(struct oki_device *device, const struct oki_device_config *config,
			  struct okv_error *err)
{
	static const char *const names[] = {"auto", "dma", "kernel"};
	const char *path = getenv("ORBITKV_COPY"), *sms = getenv("ORBITKV_COPY_SMS");
	device->path = config->copy_path;
	device->sms = config->copy_sms ? config->copy_sms : OKI_DEFAULT_SMS;
	if (path && *path) {
		device->path = 0;
		while (device->path < 3 && strcmp(names[device->path], path) != 0)
			device->path++;
		if (device->path == 3)
			return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
					"ORBITKV_COPY=%.32s: auto, dma or kernel", path);
	}
	if (sms && *sms) {
		char *end;
		unsigned long count = strtoul(sms, &end, 10);
		device->sms = *end || count > OKI_MAX_SMS ? 0 : (uint32_t)count;
	}
	if (device->path > OKV_COPY_KERNEL)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER, "copy path %u is unknown",
				device->path);
	if (device->sms == 0 || device->sms > OKI_MAX_SMS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"a copy kernel takes 1 to %u SMs", OKI_MAX_SMS);
	return read_pin_limit(device, err);
}

/* Inside a scope. */
static int prepare(struct oki_device *device, const struct oki_log *log, struct okv_error *err)
{
	int least = 0;
	struct okv_error why;
	device->link[0] = device->link[1] = OKI_CUDA_LEAST_LINK;
	device->restores = &device->own_restores;
	if (device->api->priority_range(&least, &device->priority) != CUDA_SUCCESS)
		device->priority = 0;
	oki_cuda_link_measure(device);
	oki_log(log, OKV_LOG_DEBUG, "GPU %d, %u SMs: link %.1f GB/s to the GPU, %.1f from it",
		device->index, device->sms, device->link[OKI_TO_PAGES],
		device->link[OKI_TO_BLOCKS]);
	if (device->path == OKV_COPY_DMA)
		return 0;
	int rc = oki_cuda_kernel_load(device, &why);
	if (rc < 0 && device->path == OKV_COPY_KERNEL) {
		if (err)
			*err = why;
		return rc;
	}
	if (rc < 0) {
		device->path = OKV_COPY_DMA;
		oki_log(log, OKV_LOG_INFO, "copy engines only: %s", why.text);
		return 0;
	}
	if (device->path == OKV_COPY_KERNEL)
		return 0;
	oki_cuda_probe_init(device);
	if (!device->probe.works)
		oki_log(log, OKV_LOG_DEBUG, "GPU %d: nothing says whether kernels wait for SMs",
			device->index);
	return 0;
}

static int cuda_open(const struct oki_device_config *config, struct oki_device **ret_device,
		     struct okv_error *err)
{
	const struct oki_cuda_api *api;
	int rc = oki_cuda_api_get(&api, err);
	if (rc < 0)
		return rc;
	int count = 0;
	CUresult result = api->device_count(&count);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
				     "no GPU can be counted");
	if (config->index < 0 || config->index >= count)
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
				"no GPU %d: this process sees %d", config->index, count);
	struct oki_device *device = calloc(1, sizeof(*device));
	if (!device)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a device");
	device->api = api;
	device->index = config->index;
	rc = read_copy_path(device, config, err);
	if (rc < 0)
		goto undo_alloc;
	struct oki_cuda_scope scope;
	result = api->device_get(&device->device, config->index);
	if (result == CUDA_SUCCESS)
		result = api->primary_retain(&device->context, device->device);
	if (result != CUDA_SUCCESS) {
		rc = oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
				   "GPU %d has no context", config->index);
		goto undo_alloc;
	}
	result = enter(device, &scope);
	if (result != CUDA_SUCCESS) {
		rc = oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, api, result,
				   "GPU %d cannot be used", config->index);
		goto undo_retain;
	}
	rc = prepare(device, config->log, err);
	oki_cuda_leave(&scope);
	if (rc < 0)
		goto undo_retain;
	*ret_device = device;
	return 0;

undo_retain:
	api->primary_release(device->device);
undo_alloc:
	free(device);
	return rc;
}

static void cuda_close(struct oki_device *device)
{
	if (!device)
		return;
	struct oki_cuda_scope scope;
	if (enter(device, &scope) == CUDA_SUCCESS) {
		if (oki_cuda_probe_fini(device))
			oki_cuda_kernel_unload(device);
		oki_cuda_leave(&scope);
	}
	device->api->primary_release(device->device);
	free(device->mappings);
	free(device);
}

static void cuda_attach(struct oki_device *device)
{
	oki_cuda_attach(device->api, device->context);
}

static void cuda_identify(struct oki_device *device, uint8_t ret_id[16], int32_t *ret_node)
{
	CUuuid uuid = {{0}};
	int node = -1;
	device->api->device_uuid(&uuid, device->device);
	memcpy(ret_id, uuid.bytes, 16);
	/* Drivers before 12.2 do not know this attribute. */
	if (device->api->device_attribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
					  device->device) != CUDA_SUCCESS)
		node = -1;
	*ret_node = node;
}

static int cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		    struct okv_error *err)
{
	int rc = oki_cuda_pin(device, base, bytes, read_only, err);
	if (rc < 0)
		return rc;
	rc = oki_cuda_mapping_add(device, base, bytes, err);
	if (rc < 0)
		oki_cuda_unpin(base);
	return rc;
}

static void cuda_unpin(struct oki_device *device, void *base)
{
	oki_cuda_mapping_remove(device, base);
	oki_cuda_unpin(base);
}

static int cuda_check_memory(struct oki_device *device, const void *base, uint64_t bytes,
			     struct okv_error *err)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(device, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER, device->api, result,
				     "GPU %d cannot look at memory", device->index);
	int rc = oki_cuda_check_range(device, (uint64_t)(uintptr_t)base, bytes, err);
	oki_cuda_leave(&scope);
	return rc;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Free what a stream has, also a partly created one. Inside a scope. */
static void free_cuda_objects(struct oki_stream *stream)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUstream streams[] = {stream->stream, stream->side, stream->lane};
	CUevent events[] = {stream->point, stream->fork};
	oki_cuda_chunks_free(stream);
	for (uint32_t i = 0; i < COUNT(events); i++)
		if (events[i])
			api->event_destroy(events[i]);
	for (uint32_t i = 0; i < COUNT(streams); i++)
		if (streams[i])
			api->stream_destroy(streams[i]);
}

static int cuda_stream_create(struct oki_device *device, struct oki_stream **ret_stream,
			      struct okv_error *err)
{
	const struct oki_cuda_api *api = device->api;
	struct oki_cuda_scope scope;
	struct oki_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a stream");
	stream->device = device;
	CUresult result = enter(device, &scope);
	if (result != CUDA_SUCCESS)
		goto undo_alloc;
	/* The highest priority: a copy's few blocks must not queue behind a model's many. */
	CUstream *streams[] = {&stream->stream, &stream->side, &stream->lane};
	CUevent *events[] = {&stream->point, &stream->fork};
	for (uint32_t i = 0; i < COUNT(streams) && result == CUDA_SUCCESS; i++)
		result = api->stream_create(streams[i], CU_STREAM_NON_BLOCKING, device->priority);
	for (uint32_t i = 0; i < COUNT(events) && result == CUDA_SUCCESS; i++)
		result = api->event_create(events[i], CU_EVENT_DISABLE_TIMING);
	if (result == CUDA_SUCCESS)
		result = oki_cuda_chunks_init(stream);
	if (result != CUDA_SUCCESS)
		goto undo_parts;
	oki_cuda_leave(&scope);
	*ret_stream = stream;
	return 0;

undo_parts:
	free_cuda_objects(stream);
	oki_cuda_leave(&scope);
undo_alloc:
	free(stream);
	return oki_cuda_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, api, result,
			     "GPU %d gives no stream", device->index);
}

static void cuda_stream_recycle(struct oki_stream *stream)
{
	oki_cuda_plans_forget(stream);
}

static void cuda_stream_destroy(struct oki_stream *stream)
{
	if (!stream)
		return;
	struct oki_cuda_scope scope;
	oki_cuda_plans_forget(stream);
	if (enter(stream->device, &scope) == CUDA_SUCCESS) {
		free_cuda_objects(stream);
		oki_cuda_leave(&scope);
	}
	free(stream);
}

static int cuda_copy(struct oki_stream *stream, enum oki_direction direction,
		     const struct oki_layer_copy *layers, uint32_t layer_count,
		     struct okv_error *err)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result != CUDA_SUCCESS)
		return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, api, result,
				     "GPU %d cannot be used", stream->device->index);
	int rc = oki_cuda_submit(stream, direction, layers, layer_count, err);
	oki_cuda_leave(&scope);
	return rc;
}

static int cuda_record_event(struct oki_stream *stream, struct CUevent_st *event,
			     struct okv_error *err)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result == CUDA_SUCCESS) {
		result = oki_cuda_record(stream, event);
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, api, result,
			     "an event cannot be recorded on GPU %d", stream->device->index);
}

static int cuda_mark_create(struct oki_device *device, struct oki_mark **ret_mark,
			    struct okv_error *err)
{
	struct oki_cuda_scope scope;
	struct oki_mark *mark = calloc(1, sizeof(*mark));
	if (!mark)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, "no memory for a mark");
	mark->device = device;
	CUresult result = enter(device, &scope);
	if (result == CUDA_SUCCESS) {
		result = device->api->event_create(&mark->event, CU_EVENT_DISABLE_TIMING);
		oki_cuda_leave(&scope);
	}
	if (result != CUDA_SUCCESS) {
		free(mark);
		return oki_cuda_fail(err, OKV_E_NOMEM, OKV_STAGE_REGISTER, device->api, result,
				     "GPU %d gives no event", device->index);
	}
	*ret_mark = mark;
	return 0;
}

static void cuda_mark_destroy(struct oki_mark *mark)
{
	if (!mark)
		return;
	struct oki_cuda_scope scope;
	if (enter(mark->device, &scope) == CUDA_SUCCESS) {
		mark->device->api->event_destroy(mark->event);
		oki_cuda_leave(&scope);
	}
	free(mark);
}

/* A mark ends a piece or the operation; the next piece chooses its copy path anew, since the GPU's
 * load may have changed. */
static int cuda_record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	stream->chosen = false;
	return cuda_record_event(stream, mark->event, err);
}

/*
 * An asynchronous error is sticky in its context, and after one the driver says nothing more about
 * copies in flight. So no error that a query returns proves that the copies ended.
 */
static int unknown_end(const struct oki_device *device, CUresult result, struct okv_error *err)
{
	if (result == CUDA_ERROR_DEINITIALIZED)
		oki_exit_begins();
	return oki_cuda_fail(err, OKV_E_POISONED, OKV_STAGE_DRAIN, device->api, result,
			     "completion unknown on GPU %d", device->index);
}

static int cuda_query(struct oki_mark *mark, struct okv_error *err)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(mark->device, &scope);
	if (result == CUDA_SUCCESS) {
		result = mark->device->api->event_query(mark->event);
		if (result == CUDA_ERROR_NOT_READY && mark->device->probe.works)
			oki_cuda_probe_look(mark->device, oki_now_ns());
		oki_cuda_leave(&scope);
	}
	if (result == CUDA_SUCCESS)
		return 1;
	return result == CUDA_ERROR_NOT_READY ? 0 : unknown_end(mark->device, result, err);
}

/* An error counts as idle: the next copy meets it again and reports it. */
static bool cuda_is_idle(struct oki_stream *stream)
{
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result != CUDA_SUCCESS)
		return true;
	result = stream->device->api->stream_query(stream->stream);
	oki_cuda_leave(&scope);
	return result != CUDA_ERROR_NOT_READY;
}

/* Waits for all three CUDA streams: they wait for each other only where a record was accepted. */
static int cuda_drain(struct oki_stream *stream, struct okv_error *err)
{
	CUstream streams[] = {stream->stream, stream->side, stream->lane};
	struct oki_cuda_scope scope;
	CUresult result = enter(stream->device, &scope);
	if (result != CUDA_SUCCESS)
		return unknown_end(stream->device, result, err);
	for (uint32_t i = 0; i < COUNT(streams) && result == CUDA_SUCCESS; i++)
		result = stream->device->api->stream_synchronize(streams[i]);
	oki_cuda_leave(&scope);
	return result == CUDA_SUCCESS ? 0 : unknown_end(stream->device, result, err);
}

const struct oki_device_ops oki_device_cuda = {
	.name = "cuda",
	.kind = OKV_DEVICE_CUDA,
	.has_callbacks = false,
	.has_gpu_streams = true,
	.max_pitch = OKI_CUDA_MAX_PITCH,
	.open = cuda_open,
	.close = cuda_close,
	.attach = cuda_attach,
	.identify = cuda_identify,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.check_memory = cuda_check_memory,
	.check_events = oki_cuda_check_events,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.stream_recycle = cuda_stream_recycle,
	.fence = oki_cuda_fence,
	.copy = cuda_copy,
	.record_event = cuda_record_event,
	.mark_create = cuda_mark_create,
	.mark_destroy = cuda_mark_destroy,
	.record = cuda_record,
	.query = cuda_query,
	.is_idle = cuda_is_idle,
	.drain = cuda_drain,
};
