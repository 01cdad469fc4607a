/* SPDX-License-Identifier: Apache-2.0 */
/* In what order the streams of an operation copy, for random operations: what follows what is
 * worked out by order_model.h. No GPU. */
#include <check.h>
#include <stdio.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "support/suite.h"
#include "test/device/copy_case.h"
#include "test/unit/device/cuda/order_driver.h"

#define SEEDS 5000u
#define GROUPS_MAX 3u
#define PARTS_MAX 3u
#define RUNS_MAX 257u

/* A block holds a row of each layer. Nothing is copied, so no memory is there. */
#define ROW 8192u
#define BLOCK (40ull * ROW)
#define PAGES 2304u
#define ARENA ((uint8_t *)(uintptr_t)(1ull << 46))
#define ARENA_BYTES (1ull << 30)

/* A device and a stream without a GPU. */
struct stage {
	struct oki_cuda_api api;
	struct oki_device device;
	struct oki_stream stream;
	struct oki_mark *mark;
	bool fresh; /* it was made just now */
};

/* A group's share of a part. */
struct share {
	struct oki_run runs[RUNS_MAX];
	uint32_t run_count;
	uint32_t path; /* enum okv_copy_path */
};

static struct operation {
	enum oki_direction direction;
	uint32_t layers, groups, parts;
	uint32_t group[MODEL_LAYERS]; /* of each layer */
	bool has_events;
	struct oki_layer_map maps[MODEL_LAYERS];
	struct share shares[PARTS_MAX][GROUPS_MAX];
} operation;

static uint64_t dice;

static uint32_t below(uint32_t limit)
{
	return case_below(&dice, limit);
}

/* ---- the device ---- */

/* Some seeds have the arena in pieces that cut blocks, in layers above a random one. */
static void stage_pin(struct stage *s)
{
	struct okv_error err = {0};
	s->device.pin_limit = 1ull << 38;
	if (below(4) == 0)
		s->device.pin_limit = 50 * BLOCK + (1ull + below(38)) * ROW;
	must(oki_cuda_pin(&s->device, ARENA, ARENA_BYTES, false, &err) == 0 &&
		     oki_cuda_mapping_add(&s->device, ARENA, ARENA_BYTES, &err) == 0,
	     "%s", err.text);
}

static void stage_init(struct stage *s)
{
	memset(s, 0, sizeof(*s));
	s->api = model_api(below(8) > 0);
	s->device.api = &s->api;
	s->device.sms = 4;
	s->device.link[0] = s->device.link[1] = 50;
	s->device.restores = &s->device.own_restores;
	for (uintptr_t i = 0; i < 3; i++)
		s->device.gather[i] = (CUfunction)((uintptr_t)8 << i);
	s->device.tensors[0] = (struct oki_cuda_tensor){LAYER_AT(0), LAYER_AT(MODEL_LAYERS)};
	s->device.tensor_count = below(4) == 0;
	stage_pin(s);
	must(oki_device_cuda.mark_create(&s->device, &s->mark, NULL) == 0, "no mark");
	s->stream = (struct oki_stream){
		.device = &s->device,
		.stream = STREAM(MAIN),
		.side = STREAM(SIDE),
		.lane = STREAM(LANE),
		.point = EVENT(POINT),
		.fork = EVENT(FORK),
	};
	/* Counters that most operations make wrap. */
	for (uint32_t i = 0; i < sizeof(s->stream.counts) / sizeof(uint32_t); i++)
		s->stream.counts[i] = model.counters[i] = UINT32_MAX - below(3000);
	s->fresh = true;
	if (below(10) > 0)
		s->stream.counters = (CUdeviceptr)(uintptr_t)model.counters;
}

static void stage_fini(struct stage *s)
{
	oki_device_cuda.mark_destroy(s->mark);
	oki_cuda_chunks_free(&s->stream);
	oki_cuda_mapping_remove(&s->device, ARENA);
	oki_cuda_unpin(ARENA);
	free(s->device.mappings);
}

static void check_counts(const struct stage *s)
{
	for (uint32_t i = 0; i < sizeof(s->stream.counts) / sizeof(uint32_t) && s->stream.counters;
	     i++)
		must(s->stream.counts[i] == model.counters[i], "counter %u is %u here, %u there", i,
		     s->stream.counts[i], model.counters[i]);
}

/* ---- random operations ---- */

/* Rows that suit the kernel, rows that suit copy engines, or both; with tables and without. */
static void make_runs(struct share *share)
{
	static const struct {
		uint32_t scattered, blocks; /* the latter of one long run */
		uint64_t pitch;
	} shapes[] = {
		{16, 0, 0},	 {256, 0, 0},	   {0, 256, BLOCK},
		{40, 2048, ROW}, {128, 2048, ROW}, {128, 2048, BLOCK},
	};
	uint32_t shape = below(6), n = 0;
	for (; n < shapes[shape].scattered; n++)
		share->runs[n] =
			(struct oki_run){.host = ARENA + n * 7ull % shapes[shape].scattered * BLOCK,
					 .blocks = 1,
					 .inner = 1,
					 .page = n * 11 % shapes[shape].scattered};
	if (shapes[shape].blocks)
		share->runs[n++] = (struct oki_run){.host = ARENA + 300 * BLOCK,
						    .host_pitch = shapes[shape].pitch,
						    .blocks = shapes[shape].blocks,
						    .page = 256,
						    .page_pitch = 1,
						    .inner = 1};
	share->run_count = n;
	share->path = OKV_COPY_AUTO;
	if (shapes[shape].blocks == 0 || below(6) == 0)
		share->path = OKV_COPY_KERNEL;
}

/* Segments lie in the other order in blocks, so that none can be joined. */
static void make_layer(uint32_t layer, uint32_t segments)
{
	struct oki_layer_map *map = &operation.maps[layer];
	uint32_t bytes = ROW / segments;
	*map = (struct oki_layer_map){.base = (uint8_t *)(uintptr_t)LAYER_AT(layer),
				      .page_stride = ROW,
				      .page_count = PAGES,
				      .segment_count = segments};
	for (uint32_t i = 0; i < segments; i++)
		map->segments[i] = (struct oki_segment_map){
			.page_offset = i * bytes,
			.block_offset = layer * ROW + (segments - 1 - i) * bytes,
			.bytes = bytes};
}

static void make_operation(void)
{
	uint32_t pattern = below(3), segments = below(4);
	operation.direction = below(2) ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	operation.has_events = below(3) > 0;
	operation.groups = 1 + below(GROUPS_MAX);
	operation.parts = 1 + below(PARTS_MAX);
	operation.layers = 4 + below(MODEL_LAYERS - 3);
	for (uint32_t l = 0; l < operation.layers; l++) {
		/* Groups in turn, three layers of each in turn, or as it comes. */
		uint32_t turn = pattern == 0 ? l : pattern == 1 ? l / 3 : below(GROUPS_MAX);
		operation.group[l] = turn % operation.groups;
		/* So many that a launch has no room for them, or few. */
		make_layer(l, segments == 0 ? 8 : segments < 3 ? segments : 1 + below(2));
	}
	for (uint32_t p = 0; p < operation.parts; p++)
		for (uint32_t g = 0; g < operation.groups; g++)
			make_runs(&operation.shares[p][g]);
}

/* ---- copying ---- */

static void count_call(const struct stage *s, bool last)
{
	seen.calls[s->stream.by_kernel]++;
	seen.turns += s->stream.by_kernel != last;
	seen.cut_calls +=
		s->device.arena_split && s->device.path == OKV_COPY_KERNEL && !s->stream.by_kernel;
}

/* A piece ends, whenever the worker likes. */
static bool mark(struct stage *s)
{
	struct okv_error err = {0};
	if (oki_device_cuda.record(&s->stream, s->mark, &err) == 0) {
		must_have_all(&model.events[MARK], "a mark");
		return true;
	}
	must(model.refused, "failed though nothing did: %s", err.text);
	return false;
}

static bool record(struct stage *s, CUevent event)
{
	struct okv_error err = {0};
	if (oki_device_cuda.record_event(&s->stream, event, &err) == 0)
		return true;
	must(model.refused, "failed though nothing did: %s", err.text);
	return false;
}

/* Until every one is taken. */
static bool copy_all(struct stage *s, const struct oki_layer_copy *layers, uint32_t count)
{
	for (uint32_t done = 0; done < count;) {
		struct okv_error err = {0};
		bool last = s->stream.by_kernel;
		int taken = oki_cuda_submit(&s->stream, operation.direction, layers + done,
					    count - done, &err);
		if (taken < 0) {
			must(model.refused, "failed though nothing did: %s", err.text);
			return false;
		}
		must(taken > 0 && (uint32_t)taken <= count - done, "%d of %u layers", taken,
		     count - done);
		count_call(s, last);
		done += (uint32_t)taken;
	}
	must(s->stream.pending.count == 0, "all is answered for, and something is pending");
	return true;
}

/* Above a piece: two slices of its runs, and then the event, which follows both. */
static bool copy_sliced(struct stage *s, const struct oki_layer_copy *layer)
{
	struct oki_layer_copy slices[2] = {*layer, *layer};
	slices[0].event = slices[1].event = NULL;
	slices[0].run_count /= 2;
	slices[1].runs += slices[0].run_count;
	slices[1].run_count -= slices[0].run_count;
	seen.sliced++;
	return copy_all(s, &slices[0], 1) && copy_all(s, &slices[1], 1) &&
	       (!layer->event || record(s, layer->event));
}

static bool copy_some(struct stage *s, uint32_t part, uint32_t first, uint32_t count,
		      const CUevent *events)
{
	struct oki_layer_copy layers[MODEL_LAYERS];
	s->device.path = OKV_COPY_AUTO;
	for (uint32_t i = 0; i < count; i++) {
		const struct share *share = &operation.shares[part][operation.group[first + i]];
		layers[i] = (struct oki_layer_copy){.map = &operation.maps[first + i],
						    .runs = share->runs,
						    .run_count = share->run_count,
						    .event = events ? events[i] : NULL};
		if (share->path == OKV_COPY_KERNEL)
			s->device.path = OKV_COPY_KERNEL;
	}
	/* Whichever way suits them, it may be the other one in the next piece. */
	if (below(8) == 0)
		s->device.path = OKV_COPY_DMA;
	for (uint32_t i = 0; i < sizeof(s->device.probe.waits) / sizeof(double); i++)
		s->device.probe.waits[i] = below(2) ? 1e8 : 0;
	model.no_memory = below(8) == 0;
	if (count == 1 && layers[0].run_count > 1 && below(3) == 0)
		return copy_sliced(s, &layers[0]);
	return copy_all(s, layers, count);
}

/* The layers from `first` on that one call may have, of one group or of any. */
static uint32_t layers_together(uint32_t first)
{
	uint32_t count = 1, most = 1 + below(12), any = below(3);
	while (count < most && first + count < operation.layers &&
	       (any || operation.group[first + count] == operation.group[first]))
		count++;
	return count;
}

/* The last part records the events of layers, but of a few that have none. */
static uint64_t make_events(uint32_t part, CUevent *ret_events)
{
	uint64_t wanted = 0;
	bool last = part + 1 == operation.parts;
	for (uint32_t l = 0; l < operation.layers; l++) {
		bool has_one = operation.has_events && last && below(9) > 0;
		ret_events[l] = has_one ? LAYER_EVENT(l) : NULL;
		wanted |= (uint64_t)has_one << l;
	}
	return wanted;
}

static bool copy_part(struct stage *s, uint32_t part)
{
	CUevent events[MODEL_LAYERS];
	uint64_t wanted = make_events(part, events);
	bool without = !wanted && below(2) == 0;
	model_start_part();
	for (uint32_t first = 0, count; first < operation.layers; first += count) {
		count = layers_together(first);
		if (below(6) == 0 && !record(s, EVENT(BARE)))
			return false;
		if (below(4) == 0 && !mark(s))
			return false;
		if (!copy_some(s, part, first, count, without ? NULL : events + first))
			return false;
	}
	must(model.ready == wanted, "events of layers %llx, not %llx",
	     (unsigned long long)model.ready, (unsigned long long)wanted);
	check_counts(s);
	/* The worker may put its mark behind some parts; behind the last one it does. */
	return (part + 1 < operation.parts && below(2) == 0) || mark(s);
}

/* What was accepted ends before anyone hears of it: a mark says when, or is refused as well.
 */
static void stop(struct stage *s)
{
	struct okv_error err = {0};
	if (below(2)) {
		must(mark(s), "no mark");
		return;
	}
	model.refuse_after = 0;
	must(!mark(s), "a call was to be refused");
	must(oki_device_cuda.drain(&s->stream, &err) == 0, "%s", err.text);
	must_have_all(&model.waited, "the drain");
	seen.drains++;
}

/* The stream's user from its fences until the stream is recycled. */
static void run_operation(struct stage *s)
{
	CUstream callers[] = {STREAM(CALLER_0), STREAM(CALLER_1)};
	struct okv_error err = {0};
	bool copied = true;
	model_start_operation();
	if (s->fresh)
		queue_zeros();
	s->fresh = false;
	make_operation();
	queue_work(callers[0]);
	queue_work(callers[1]);
	must(oki_device_cuda.fence(&s->stream, callers, 2, &err) >= 0, "%s", err.text);
	model.refuse_after = below(3) == 0 ? (int)below(150) : -1;
	for (uint32_t p = 0; p < operation.parts && copied; p++)
		copied = copy_part(s, p);
	model.refuse_after = -1;
	if (!copied) {
		stop(s);
		check_counts(s);
	}
	seen.failed_operations += !copied;
	seen.operations_without_counters += !s->stream.counters;
	oki_device_cuda.stream_recycle(&s->stream);
}

/* A test of many orders that never came to be would find nothing. */
static void check_seen(void)
{
	ck_assert_uint_gt(seen.engine_copies, SEEDS);
	ck_assert_uint_gt(seen.stacked_copies, SEEDS / 10);
	ck_assert_uint_gt(seen.tables, SEEDS);
	ck_assert_uint_gt(seen.kernels, SEEDS);
	ck_assert_uint_gt(seen.joint_kernels, SEEDS);
	ck_assert_uint_gt(seen.lane_kernels, SEEDS);
	ck_assert_uint_gt(seen.overlaps, SEEDS);
	ck_assert_uint_gt(seen.ends, SEEDS);
	ck_assert_uint_gt(seen.gates, SEEDS);
	ck_assert_uint_gt(seen.counter_waits, SEEDS);
	ck_assert_uint_gt(seen.layer_events, SEEDS);
	ck_assert_uint_gt(seen.sliced, SEEDS / 10);
	for (uint32_t way = 0; way < 2; way++)
		ck_assert_uint_gt(seen.calls[way], SEEDS);
	ck_assert_uint_gt(seen.turns, SEEDS);
	ck_assert_uint_gt(seen.cut_calls, SEEDS / 10);
	ck_assert_uint_gt(seen.failed_operations, SEEDS / 10);
	ck_assert_uint_gt(seen.drains, SEEDS / 20);
	ck_assert_uint_gt(seen.operations_without_counters, SEEDS / 10);
}

START_TEST(everything_follows_what_it_must)
{
	for (model.seed = 1; model.seed <= SEEDS; model.seed++) {
		struct stage s;
		dice = model.seed * 77777;
		below(2); /* the first one differs little from seed to seed */
		memset(model.recorded, 0, sizeof(model.recorded));
		model.part = 0;
		stage_init(&s);
		for (uint32_t left = 1 + below(4); left > 0; left--)
			run_operation(&s);
		stage_fini(&s);
	}
	check_seen();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda order");
	TCase *tc = tcase_create("order");
	tcase_set_timeout(tc, 240);
	tcase_add_test(tc, everything_follows_what_it_must);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
