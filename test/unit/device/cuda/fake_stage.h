/* SPDX-License-Identifier: Apache-2.0 */
/* A device and a stream without a GPU, whose driver is fake_cuda.h. */
#ifndef TEST_UNIT_FAKE_STAGE_H
#define TEST_UNIT_FAKE_STAGE_H

#include "test/device/same_runs.h"
#include "test/unit/device/cuda/fake_cuda.h"

struct stage {
	struct oki_cuda_api api;
	struct oki_device device;
	struct oki_stream stream;
};

static void stage_init(struct stage *s, uint32_t path, bool batch)
{
	memset(s, 0, sizeof(*s));
	s->api = fake(batch);
	s->device.api = &s->api;
	s->device.path = path;
	s->device.sms = 4;
	s->device.link[0] = s->device.link[1] = 50;
	s->device.restores = &s->device.own_restores;
	s->stream.device = &s->device;
	s->stream.stream = STREAM;
	s->stream.side = SIDE;
	s->stream.fork = FORK;
	s->stream.lane = (CUstream)(uintptr_t)24;
	s->stream.point = POINT;
	for (uintptr_t i = 0; i < 3; i++)
		s->device.gather[i] = (CUfunction)((uintptr_t)8 << i);
}

/* Kernels count, and every counter that a test uses a few times wraps. */
static void stage_counters(struct stage *s)
{
	calls.counters = calloc(1, OKI_CUDA_COUNTER_BYTES);
	for (uint32_t i = 0; i < OKI_CUDA_COUNTERS; i++)
		s->stream.counts[i] = calls.counters[i] = UINT32_MAX - 10;
	s->stream.counter_memory = (CUdeviceptr)(uintptr_t)calls.counters;
	s->stream.counters = s->stream.counter_memory;
}

static void stage_fini(struct stage *s)
{
	oki_cuda_plans_forget(&s->stream);
	oki_cuda_chunks_free(&s->stream);
}

/* So long a kernel waits for an SM, or finds one at once. */
static inline void stage_wait(struct stage *s, double ns)
{
	for (uint32_t i = 0; i < sizeof(s->device.probe.waits) / sizeof(double); i++)
		s->device.probe.waits[i] = ns;
}

/* A piece ends here. */
static inline void stage_mark(struct stage *s)
{
	struct oki_mark *mark;
	ck_assert_int_eq(oki_device_cuda.mark_create(&s->device, &mark, NULL), 0);
	ck_assert_int_eq(oki_device_cuda.record(&s->stream, mark, NULL), 0);
	oki_device_cuda.mark_destroy(mark);
}

/* Until every layer is taken. */
static inline void stage_copy_layers(struct stage *s, enum oki_direction direction,
				     const struct oki_layer_copy *layers, uint32_t count)
{
	for (uint32_t done = 0; done < count;) {
		int taken =
			oki_cuda_submit(&s->stream, direction, layers + done, count - done, NULL);
		ck_assert_int_ge(taken, 1);
		done += (uint32_t)taken;
		ck_assert_uint_le(done, count);
	}
}

/* All layers have the same runs. */
static inline void stage_copy(struct stage *s, enum oki_direction direction,
			      const struct oki_layer_map *const *maps, CUevent const *events,
			      uint32_t map_count, const struct oki_run *runs, uint32_t run_count)
{
	struct oki_layer_copy layers[OKI_JOIN_MAX];
	same_runs(layers, maps, events, map_count, runs, run_count);
	stage_copy_layers(s, direction, layers, map_count);
}

/* Rows of so many blocks, one run each. */
static inline struct oki_run *scattered(uint8_t *host, uint64_t block, uint32_t count)
{
	struct oki_run *runs = calloc(count, sizeof(*runs));
	for (uint32_t i = 0; i < count; i++)
		runs[i] = (struct oki_run){.host = host + i * 7ull % count * block,
					   .blocks = 1,
					   .inner = 1,
					   .page = i * 11 % count};
	return runs;
}

#endif
