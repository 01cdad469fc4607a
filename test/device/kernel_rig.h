/* SPDX-License-Identifier: Apache-2.0 */
/* One device with a stream, pinned host memory and memory of the GPU, and what both must hold. */
#ifndef TEST_DEVICE_KERNEL_RIG_H
#define TEST_DEVICE_KERNEL_RIG_H

#include <stdlib.h>
#include <sys/mman.h>

#include "device/cuda/cuda_device.h"
#include "test/device/copy_case.h"
#include "test/device/cuda_fixture.h"
#include "test/device/same_runs.h"

#define ROOM (48u << 20)

/* One device, pinned host memory, memory of the GPU, and images of both. */
struct rig {
	struct oki_device *device;
	struct oki_stream *stream;
	uint8_t *host, *want_host;
	CUdeviceptr pages;
	uint8_t *want_pages, *got_pages;
};

static inline void rig_init(struct rig *r, uint32_t path, uint32_t sms)
{
	struct oki_device_config config = {.copy_path = path, .copy_sms = sms};
	OKAY(ops->open(&config, &r->device, &problem));
	MUST(cu.cuCtxSetCurrent(r->device->context));
	OKAY(ops->stream_create(r->device, &r->stream, &problem));
	r->host = host_memory(ROOM);
	r->want_host = malloc(ROOM);
	r->want_pages = malloc(ROOM);
	r->got_pages = malloc(ROOM);
	MUST(r->device->api->memory_alloc(&r->pages, ROOM));
	OKAY(ops->pin(r->device, r->host, ROOM, false, &problem));
}

static inline void rig_fini(struct rig *r)
{
	ops->unpin(r->device, r->host);
	ops->stream_destroy(r->stream);
	MUST(r->device->api->memory_free(r->pages));
	MUST(cu.cuCtxSetCurrent(NULL));
	ops->close(r->device);
	munmap(r->host, ROOM);
	free(r->want_host);
	free(r->want_pages);
	free(r->got_pages);
}

/* Fill both memories and their images alike. */
static inline void rig_noise(struct rig *r, uint64_t *seed, uint64_t host_bytes,
			     uint64_t pages_bytes)
{
	ck_assert_uint_le(host_bytes, ROOM);
	ck_assert_uint_le(pages_bytes, ROOM);
	case_noise(seed, r->want_host, host_bytes);
	case_noise(seed, r->want_pages, pages_bytes);
	memcpy(r->host, r->want_host, host_bytes);
	/* From pageable memory it may return before the bytes are there, and our streams do not
	 * wait for the null stream. */
	MUST(cu.cuMemcpyHtoD(r->pages, r->want_pages, pages_bytes));
	MUST(r->device->api->stream_synchronize(NULL));
}

static inline void rig_copy(struct rig *r, enum oki_direction direction,
			    const struct oki_layer_map *const *maps, uint32_t map_count,
			    const struct oki_run *runs, uint32_t run_count)
{
	for (uint32_t done = 0; done < map_count;) {
		uint32_t most = map_count - done < OKI_JOIN_MAX ? map_count - done : OKI_JOIN_MAX;
		int taken = copy_same(ops, r->stream, direction, maps + done, NULL, most, runs,
				      run_count, &problem);
		ck_assert_msg(taken > 0, "%s", problem.text);
		done += (uint32_t)taken;
	}
	OKAY(ops->drain(r->stream, &problem));
	ops->stream_recycle(r->stream);
}

/* Queue layers, however many the device takes at a time. */
static inline void rig_queue(struct rig *r, enum oki_direction direction,
			     const struct oki_layer_copy *layers, uint32_t count)
{
	for (uint32_t done = 0; done < count;) {
		int taken = ops->copy(r->stream, direction, layers + done, count - done, &problem);
		ck_assert_msg(taken > 0, "%s", problem.text);
		done += (uint32_t)taken;
	}
}

static inline bool rig_is_right(struct rig *r, uint64_t host_bytes, uint64_t pages_bytes)
{
	MUST(cu.cuMemcpyDtoH(r->got_pages, r->pages, pages_bytes));
	return memcmp(r->host, r->want_host, host_bytes) == 0 &&
	       memcmp(r->got_pages, r->want_pages, pages_bytes) == 0;
}

#endif
