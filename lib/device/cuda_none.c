/* [B] The CUDA device of a build without CUDA headers: open says so, nothing else is reached. */
#include "device/device.h"

#include <string.h>

#include "base/error.h"

static int unsupported(struct okv_error *err)
{
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
			"this library was built without CUDA");
}

static int none_open(const struct oki_device_config *config, struct oki_device **ret_device,
		     struct okv_error *err)
{
	(void)config, (void)ret_device;
	return unsupported(err);
}

static void none_close(struct oki_device *device)
{
	(void)device;
}

static void none_attach(struct oki_device *device)
{
	(void)device;
}

static void none_identify(struct oki_device *device, uint8_t ret_id[16], int32_t *ret_node)
{
	(void)device;
	memset(ret_id, 0, 16);
	*ret_node = -1;
}

static int none_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		    struct okv_error *err)
{
	(void)device, (void)base, (void)bytes, (void)read_only;
	return unsupported(err);
}

static void none_unpin(struct oki_device *device, void *base)
{
	(void)device, (void)base;
}

static int none_check_memory(struct oki_device *device, const void *base, uint64_t bytes,
			     struct okv_error *err)
{
	(void)device, (void)base, (void)bytes;
	return unsupported(err);
}

static int none_check_event(struct oki_device *device, struct CUevent_st *event,
			    struct okv_error *err)
{
	(void)device, (void)event;
	return unsupported(err);
}

static int none_stream_create(struct oki_device *device, struct oki_stream **ret_stream,
			      struct okv_error *err)
{
	(void)device, (void)ret_stream;
	return unsupported(err);
}

static void none_stream_destroy(struct oki_stream *stream)
{
	(void)stream;
}

static void none_stream_recycle(struct oki_stream *stream)
{
	(void)stream;
}

static int none_fence(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		      struct okv_error *err)
{
	(void)stream, (void)ready, (void)count;
	return unsupported(err);
}

static int none_copy(struct oki_stream *stream, enum oki_direction direction,
		     const struct oki_layer_map *const *maps, uint32_t map_count,
		     const struct oki_run *runs, uint32_t run_count, struct okv_error *err)
{
	(void)stream, (void)direction, (void)maps, (void)map_count, (void)runs, (void)run_count;
	return unsupported(err);
}

static int none_record_event(struct oki_stream *stream, struct CUevent_st *event,
			     struct okv_error *err)
{
	(void)stream, (void)event;
	return unsupported(err);
}

static int none_mark_create(struct oki_device *device, struct oki_mark **ret_mark,
			    struct okv_error *err)
{
	(void)device, (void)ret_mark;
	return unsupported(err);
}

static void none_mark_destroy(struct oki_mark *mark)
{
	(void)mark;
}

static int none_record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	(void)stream, (void)mark;
	return unsupported(err);
}

static int none_query(struct oki_mark *mark, struct okv_error *err)
{
	(void)mark;
	return unsupported(err);
}

static int none_drain(struct oki_stream *stream, struct okv_error *err)
{
	(void)stream;
	return unsupported(err);
}

const struct oki_device_ops oki_device_cuda = {
	.name = "cuda",
	.kind = OKV_DEVICE_CUDA,
	.has_callbacks = false,
	.has_gpu_streams = true,
	.max_pitch = UINT64_MAX,
	.open = none_open,
	.close = none_close,
	.attach = none_attach,
	.identify = none_identify,
	.pin = none_pin,
	.unpin = none_unpin,
	.check_memory = none_check_memory,
	.check_event = none_check_event,
	.stream_create = none_stream_create,
	.stream_destroy = none_stream_destroy,
	.stream_recycle = none_stream_recycle,
	.fence = none_fence,
	.copy = none_copy,
	.record_event = none_record_event,
	.mark_create = none_mark_create,
	.mark_destroy = none_mark_destroy,
	.record = none_record,
	.query = none_query,
	.drain = none_drain,
};
