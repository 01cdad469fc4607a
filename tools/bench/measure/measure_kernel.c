/* SPDX-License-Identifier: Apache-2.0 */
/* What the copy kernel takes on the GPU, and its plan on the CPU, apart from the rest. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "plan/compile.h"
#include "tools/bench/measure/measure_rig.h"

#define TIMES 11
#define LAYERS 36

static CUresult (*elapsed)(float *, CUevent, CUevent);

struct rig {
	struct oki_device *device;
	struct oki_stream *stream;
	CUevent from, first, to;
	struct oki_compile_scratch scratch;
	struct oki_runs runs;
	const struct oki_cuda_table *table;
};

static double us_between(CUevent from, CUevent to)
{
	float ms;
	must(elapsed(&ms, from, to));
	return 1000 * (double)ms;
}

static void layers_of(const struct model *m, const struct oki_layer_map **ret_maps)
{
	for (uint32_t i = 0; i < m->layers; i++)
		ret_maps[i] = &m->geometry.maps[i];
}

/* Makes the table that is used from now on, step by step as an operation does. */
static void plan(struct rig *r, const struct model *m, enum oki_direction d)
{
	enum { COMPILE, LOOK, CHOOSE, TABLE, STEPS };
	static const char *const steps[STEPS] = {"compile", "look", "choose", "table"};
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	double us[STEPS][TIMES];
	struct okv_error err;
	layers_of(m, maps);
	for (int n = 0; n < TIMES; n++) {
		struct oki_cuda_work work = {0};
		uint64_t at[STEPS + 1];
		oki_cuda_plans_forget(r->stream);
		oki_runs_give(&r->scratch, &r->runs);
		at[COMPILE] = oki_now_ns();
		okay(oki_compile(&r->scratch, m->pairs, m->pages, m->page, 1,
				 m->schema.groups[0].block_bytes, m->bytes, OKI_CUDA_MAX_PITCH,
				 &r->runs, &err),
		     &err);
		at[LOOK] = oki_now_ns();
		struct oki_cuda_plan *made =
			oki_cuda_plan_get(r->stream, r->runs.runs, r->runs.count);
		at[CHOOSE] = oki_now_ns();
		oki_cuda_plan_work(r->stream, d, made, maps, m->layers, 1, &work);
		at[TABLE] = oki_now_ns();
		must(oki_cuda_plan_table(r->stream, made, OKI_GATHER_INLINE_ROWS, &r->table));
		at[STEPS] = oki_now_ns();
		must(api->stream_synchronize(r->stream->stream));
		for (int i = 0; i < STEPS; i++)
			us[i][n] = (double)(at[i + 1] - at[i]) / 1000;
	}
	printf("  plan of %u blocks, %u runs:", m->pages, r->runs.count);
	for (int i = 0; i < STEPS; i++)
		printf(" %s %.1f", steps[i], median(us[i], TIMES));
	printf(" us\n");
}

/* All layers, 64 MiB to a launch as an operation has it. Returns us on the GPU, and until the first
 * layer's event. */
static double copy_all(struct rig *r, const struct model *m, enum oki_direction d,
		       double *ret_first)
{
	const struct oki_layer_map *maps[OKI_JOIN_MAX];
	const struct oki_cuda_table *tables[OKI_JOIN_MAX];
	struct oki_stream *stream = r->stream;
	const uint64_t layer = m->bytes * m->segments * m->pages;
	bool ends[OKI_JOIN_MAX];
	uint32_t most = (uint32_t)((64 << 20) / layer);
	layers_of(m, maps);
	for (uint32_t i = 0; i < m->layers; i++) {
		ends[i] = true;
		tables[i] = r->table;
	}
	/* As for any copy: what follows is behind none of the others yet. */
	stream->kernels = 0;
	stream->side_last = false;
	must(api->event_record(r->from, stream->stream));
	for (uint32_t at = 0, end; at < m->layers; at = end) {
		struct oki_cuda_signal signals[OKI_JOIN_MAX];
		uint32_t count;
		end = at + (most ? most : 1) < m->layers ? at + (most ? most : 1) : m->layers;
		must(oki_cuda_kernel_copy(stream, d, tables + at, maps + at, ends, end - at,
					  signals, &count));
		if (at > 0)
			continue;
		must(api->stream_wait_value(
			stream->side, stream->counters + signals[0].counter * sizeof(uint32_t),
			signals[0].count, CU_STREAM_WAIT_VALUE_GEQ));
		must(api->event_record(r->first, stream->side));
	}
	/* Behind the lane's as well, or the next round would begin with the wait for them. */
	must(oki_cuda_record(stream, r->to));
	must(api->stream_synchronize(stream->stream));
	must(api->stream_synchronize(stream->lane));
	must(api->stream_synchronize(stream->side));
	*ret_first = us_between(r->from, r->first);
	return us_between(r->from, r->to);
}

static void one_case(struct rig *r, enum oki_direction d, uint32_t layers, uint32_t segments,
		     uint64_t bytes, uint32_t pages, bool shuffled)
{
	struct model m;
	double whole[TIMES], first[TIMES];
	model_init(&m, layers, segments, bytes, pages, shuffled);
	printf("%s %u layers x %u x %llu B x %u %s\n", names[d], layers, segments,
	       (unsigned long long)bytes, pages, shuffled ? "shuffled" : "tidy");
	plan(r, &m, d);
	for (int n = 0; n < TIMES; n++)
		whole[n] = copy_all(r, &m, d, &first[n]);
	double us = median(whole, TIMES);
	printf("  kernel alone: %.1f us, %.1f GB/s; layer 0 after %.1f us (1/%u of all: %.1f)\n",
	       us, (double)model_bytes(&m) / us / 1000, median(first, TIMES), layers, us / layers);
	fflush(stdout);
	model_fini(&m);
}

void kernel_alone(void)
{
	static const uint64_t sizes[] = {512, 2048, 4096, 32768, 1 << 20};
	static const uint32_t pages[] = {1, 8, 64, 512};
	const uint64_t total = 256 << 20;
	struct oki_device_config config = {.copy_path = OKV_COPY_KERNEL};
	struct rig r = {0};
	struct okv_error err;
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	elapsed = (__typeof__(elapsed))dlsym(library, "cuEventElapsedTime");
	if (!elapsed)
		die("no cuEventElapsedTime");
	okay(oki_device_cuda.open(&config, &r.device, &err), &err);
	okay(oki_device_cuda.pin(r.device, arena, ARENA, false, &err), &err);
	okay(oki_device_cuda.stream_create(r.device, &r.stream, &err), &err);
	CUevent *events[] = {&r.from, &r.first, &r.to};
	for (int i = 0; i < 3; i++)
		must(api->event_create(events[i], 0));
	printf("\nthe copy kernel on %u SMs, timed on the GPU\n", r.device->sms);
	for (int d = 0; d < 2; d++) {
		for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
			one_case(&r, (enum oki_direction)d, LAYERS, 2, 32768, pages[i], true);
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			uint64_t rows = total / sizes[i] / 4;
			rows = rows < 8192 ? rows : 8192;
			one_case(&r, (enum oki_direction)d, (uint32_t)(total / sizes[i] / rows), 1,
				 sizes[i], (uint32_t)rows, true);
		}
	}
	for (int i = 0; i < 3; i++)
		must(api->event_destroy(*events[i]));
	oki_cuda_plans_forget(r.stream);
	oki_device_cuda.stream_destroy(r.stream);
	oki_device_cuda.unpin(r.device, arena);
	oki_device_cuda.close(r.device);
	oki_runs_fini(&r.runs);
	oki_compile_scratch_fini(&r.scratch);
}
