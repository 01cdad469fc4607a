/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that copies nothing. It keeps, for each stream and event, the past: what has ended for
 * certain once the stream has come there, however slow or fast the GPU does anything else. Every
 * call is looked at as it is made: what it queues must have in its past what it depends on. For one
 * test program each: model is its own.
 */
#ifndef TEST_UNIT_ORDER_MODEL_H
#define TEST_UNIT_ORDER_MODEL_H

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_device.h"

#define MODEL_LAYERS 24u
#define MODEL_STEPS 2048u /* of one operation */
#define RAISES 32u
#define NO_STEP MODEL_STEPS

/* Layer l's pages lie at LAYER_AT(l), tables above all layers. */
#define LAYER_BYTES (1ull << 28)
#define LAYER_AT(layer) (((layer) + 1ull) * LAYER_BYTES)
#define TABLES_AT (1ull << 40)

enum model_stream { MAIN = 1, SIDE, LANE, CALLER_0, CALLER_1, STREAMS };
#define STREAM(number) ((CUstream)(uintptr_t)((number)*8u))

enum model_event { POINT = 1, FORK, MARK, BARE, FIRST_LAYER_EVENT };
#define EVENTS (FIRST_LAYER_EVENT + MODEL_LAYERS)
#define EVENT(number) ((CUevent)(uintptr_t)(number))
#define LAYER_EVENT(layer) EVENT(FIRST_LAYER_EVENT + (layer))

/* Steps that have ended. */
struct past {
	uint64_t bits[MODEL_STEPS / 64];
};

/*
 * Something that ends: a caller's work, the copy of a table, a layer's bytes by copy engines, a
 * kernel, one of its columns, which ends before the kernel does, or the record of a layer's event.
 */
struct step {
	struct past before;	 /* what has ended when it starts */
	CUdeviceptr table;	 /* it writes, or 0 */
	size_t table_bytes;	 /* of it */
	const uint32_t *tickets; /* a kernel draws */
	const uint64_t *until;	 /* where it says when it ends */
};

/* What a counter says: a kernel that raises it, how far, and what has ended by then. */
struct raise {
	uint32_t kernel;
	uint32_t count;
	struct past then;
};

static struct {
	uint64_t seed;
	uint32_t part; /* over all operations of a seed */
	struct step steps[MODEL_STEPS];
	uint32_t step_count;
	struct past streams[STREAMS];
	struct past events[EVENTS];
	bool recorded[EVENTS];
	struct past fences;
	struct past waited; /* for, by the thread itself */
	struct past zeros;  /* the counters' first values, of a stream that was made just now */
	struct past kernels;
	struct past copies[MODEL_LAYERS];  /* of each layer */
	struct past earlier[MODEL_LAYERS]; /* those of earlier parts */
	uint64_t ready;			   /* layers whose event was recorded */
	uint64_t copying;		   /* layers that the last call copied, by engines */
	CUstream copying_in;
	/* Of each counter the last ones, the latest first. Of a layer's counter each follows all
	 * of the one behind it. */
	struct raise raises[OKI_CUDA_COUNTERS][RAISES];
	/* In the GPU's memory, and what is behind them. */
	uint32_t counters[OKI_CUDA_COUNTER_BYTES / sizeof(uint32_t)] __attribute__((aligned(8)));
	CUdeviceptr next_table;
	bool no_memory;
	int refuse_after; /* accept this many calls; negative: all */
	bool refused;	  /* one call was */
} model;

/* What happened in all seeds. */
static struct {
	uint32_t engine_copies, stacked_copies, tables;
	uint32_t kernels, joint_kernels, lane_kernels, overlaps, ends, gates, counter_waits,
		layer_events;
	uint32_t calls[2]; /* by copy engines, by the kernel */
	uint32_t turns;	   /* from one to the other within a part */
	uint32_t cut_calls, sliced, failed_operations, drains, operations_without_counters;
} seen;

__attribute__((format(printf, 2, 3))) static void must(bool holds, const char *format, ...)
{
	char text[200];
	va_list arguments;
	if (holds)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	ck_abort_msg("seed %llu, part %u: %s", (unsigned long long)model.seed, model.part, text);
}

/* ---- pasts ---- */

static void past_add(struct past *past, uint32_t step)
{
	past->bits[step / 64] |= 1ull << step % 64;
}

static bool past_has(const struct past *past, uint32_t step)
{
	return past->bits[step / 64] >> step % 64 & 1;
}

static void past_join(struct past *past, const struct past *other)
{
	for (uint32_t i = 0; i < MODEL_STEPS / 64; i++)
		past->bits[i] |= other->bits[i];
}

/* The first step from `from` on of those wanted that the past does not have, or NO_STEP. */
static uint32_t past_lacks(const struct past *past, const struct past *wanted, uint32_t from)
{
	for (uint32_t step = from; step < model.step_count; step++) {
		if (!(wanted->bits[step / 64] & ~past->bits[step / 64]))
			step |= 63;
		else if (past_has(wanted, step) && !past_has(past, step))
			return step;
	}
	return NO_STEP;
}

static uint32_t stream_number(CUstream stream)
{
	uintptr_t number = (uintptr_t)stream / 8;
	must(number >= MAIN && number < STREAMS, "stream %p is none of ours", (void *)stream);
	return (uint32_t)number;
}

static struct past *past_of(CUstream stream)
{
	return &model.streams[stream_number(stream)];
}

/* ---- operations, parts ---- */

/* All that was queued ended: later steps need not follow it. */
static void model_start_operation(void)
{
	model.step_count = 0;
	memset(model.streams, 0, sizeof(model.streams));
	memset(model.events, 0, sizeof(model.events));
	memset(model.copies, 0, sizeof(model.copies));
	memset(&model.fences, 0, sizeof(model.fences));
	memset(&model.waited, 0, sizeof(model.waited));
	memset(&model.zeros, 0, sizeof(model.zeros));
	memset(&model.kernels, 0, sizeof(model.kernels));
	for (uint32_t i = 0; i < OKI_CUDA_COUNTERS; i++)
		for (uint32_t k = 0; k < RAISES; k++)
			model.raises[i][k].kernel = NO_STEP;
	model.ready = 0;
	model.no_memory = model.refused = false;
	model.refuse_after = -1;
}

static void model_start_part(void)
{
	model.part++;
	model.copying = 0;
	memcpy(model.earlier, model.copies, sizeof(model.earlier));
}

static void must_have_all(const struct past *past, const char *what)
{
	struct past all;
	memset(&all, 0xff, sizeof(all));
	uint32_t step = past_lacks(past, &all, 0);
	must(step == NO_STEP, "%s does not follow step %u", what, step);
}

/* Of every call that queues something. */
static bool refuses(void)
{
	model.copying = 0;
	if (model.refuse_after < 0 || model.refuse_after-- > 0)
		return false;
	model.refused = true;
	return true;
}

/* ---- steps ---- */

/* Its end is in no past but by what is queued behind it. */
static uint32_t add_step(CUstream stream)
{
	must(model.step_count < MODEL_STEPS, "more steps than the model has room for");
	struct step *step = &model.steps[model.step_count];
	*step = (struct step){.before = *past_of(stream)};
	return model.step_count++;
}

/* A caller's work, before the operation. */
static void queue_work(CUstream stream)
{
	uint32_t step = add_step(stream);
	past_add(&model.fences, step);
	past_add(past_of(stream), step);
}

/* Queued as the stream was made. */
static void queue_zeros(void)
{
	uint32_t step = add_step(STREAM(MAIN));
	past_add(&model.zeros, step);
	past_add(past_of(STREAM(MAIN)), step);
}

/* Some bytes of a layer start to be copied behind `before`. */
static void check_copy(uint32_t step, uint32_t layer, const struct past *before)
{
	must(layer < MODEL_LAYERS, "step %u copies layer %u", step, layer);
	uint32_t fence = past_lacks(before, &model.fences, 0);
	must(fence == NO_STEP, "step %u, a copy of layer %u, does not follow fence %u", step, layer,
	     fence);
	uint32_t earlier = past_lacks(before, &model.earlier[layer], 0);
	must(earlier == NO_STEP, "step %u, a copy of layer %u, does not follow the part before: %u",
	     step, layer, earlier);
	must(!(model.ready >> layer & 1), "step %u copies layer %u, whose event was recorded", step,
	     layer);
	past_add(&model.copies[layer], step);
}

static uint32_t layer_at(CUdeviceptr at)
{
	return (uint32_t)(at / LAYER_BYTES) - 1;
}

/* A call for each row is one step as long as nothing comes between, or there would be too many. */
static CUresult copy_layers(uint64_t layers, CUstream stream)
{
	struct past before = *past_of(stream);
	bool goes_on = layers == model.copying && stream == model.copying_in;
	must(stream == STREAM(MAIN), "a copy in stream %u", stream_number(stream));
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	for (uint32_t layer = 0; layer < 64 && !goes_on; layer++) {
		if (!(layers >> layer & 1))
			continue;
		uint32_t step = add_step(stream);
		check_copy(step, layer, &before);
		past_add(past_of(stream), step);
	}
	model.copying = layers;
	model.copying_in = stream;
	seen.engine_copies += !goes_on;
	seen.stacked_copies += !goes_on && (layers & (layers - 1)) != 0;
	return CUDA_SUCCESS;
}

static CUresult copy_table(CUdeviceptr to, size_t bytes, CUstream stream)
{
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	uint32_t step = add_step(stream);
	model.steps[step].table = to;
	model.steps[step].table_bytes = bytes;
	past_add(past_of(stream), step);
	seen.tables++;
	return CUDA_SUCCESS;
}

/* ---- kernels ---- */

/* The rows that a kernel reads were copied last by a step that it follows. */
static void check_table(uint32_t kernel, const struct oki_gather_table *table)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)table->rows;
	uint32_t step = kernel;
	if (!at)
		return;
	while (step-- > 0)
		if (at >= model.steps[step].table &&
		    at < model.steps[step].table + model.steps[step].table_bytes)
			break;
	must(step < kernel, "kernel %u reads a table that nobody copied", kernel);
	must(past_has(&model.steps[kernel].before, step), "kernel %u does not follow its table, %u",
	     kernel, step);
}

/* Of those it does not follow each follows the one before, so that no two are there with it; and it
 * shares its tickets with none of them. */
static void check_others(uint32_t kernel)
{
	const struct step *own = &model.steps[kernel];
	uint32_t last = NO_STEP, other = 0;
	while ((other = past_lacks(&own->before, &model.kernels, other)) != NO_STEP) {
		must(own->tickets != model.steps[other].tickets,
		     "kernel %u takes the tickets of kernel %u", kernel, other);
		must(last == NO_STEP || past_has(&model.steps[other].before, last),
		     "kernels %u, %u and %u may be there at once", last, other, kernel);
		last = other++;
	}
	seen.overlaps += last != NO_STEP;
}

/* A kernel brings its counter up to here once all that has ended. */
static void raise_counter(uint32_t counter, uint32_t kernel, uint32_t by, const struct past *then)
{
	struct raise *raise = model.raises[counter];
	/* Two that raise one meanwhile would be taken for each other. */
	must(counter == 0 || raise->kernel == NO_STEP ||
		     past_has(&model.steps[kernel].before, raise->kernel),
	     "kernels %u and %u raise counter %u at once", raise->kernel, kernel, counter);
	model.counters[counter] += by;
	memmove(raise + 1, raise, (RAISES - 1) * sizeof(*raise));
	*raise = (struct raise){kernel, model.counters[counter], *then};
}

/* Where it says when it will be through is read by the next kernel alone, and written again by none
 * that may be there with that one. */
static void check_until(uint32_t kernel, const struct oki_gather *g)
{
	const struct step *own = &model.steps[kernel];
	uint32_t other = 0;
	if (!g->until)
		return;
	must((void *)g->until >= (void *)&model.counters[OKI_CUDA_COUNTERS] &&
		     (void *)(g->until + 1) <= (void *)(&model.counters + 1),
	     "kernel %u writes its end elsewhere", kernel);
	while ((other = past_lacks(&own->before, &model.kernels, other)) != NO_STEP) {
		must(g->until != model.steps[other].until, "kernels %u and %u write one end", other,
		     kernel);
		must(g->until_before == model.steps[other].until,
		     "kernel %u does not heed kernel %u, which may be there", kernel, other);
		other++;
	}
	seen.ends += g->until_before != NULL;
}

static void draw_tickets(uint32_t kernel, const struct oki_gather *g, uint32_t groups)
{
	must(g->counters == model.counters, "kernel %u has other counters", kernel);
	must(*g->tickets == g->first_ticket, "kernel %u expects ticket %u, not %u", kernel,
	     g->first_ticket, *g->tickets);
	*g->tickets += groups;
	for (uint32_t c = 0; c < g->column_count; c++)
		*g->tickets += g->tables[g->columns[c].table].count *
			       ((g->columns[c].bytes - 1) / g->tile + 1);
}

/* Its columns, each of which ends no later than the next one's signal. */
static void copy_columns(uint32_t kernel, const struct oki_gather *g, uint32_t blocks,
			 CUstream stream)
{
	struct past then = model.steps[kernel].before;
	for (uint32_t c = 0; c < g->column_count; c++) {
		uint32_t step = add_step(stream);
		check_copy(step, layer_at(g->columns[c].page0), &model.steps[kernel].before);
		past_add(&then, step);
		if (g->columns[c].signal)
			raise_counter(g->columns[c].signal, kernel, blocks, &then);
	}
	past_add(&then, kernel);
	past_join(past_of(stream), &then);
}

/* The entry points are the numbers of their lanes. */
static CUresult model_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
			     unsigned bx, unsigned by, unsigned bz, unsigned shared,
			     CUstream stream, void **parameters, void **extra)
{
	(void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)extra;
	const struct oki_gather *g = parameters[0];
	uint32_t groups = gx * (bx / (uint32_t)(uintptr_t)function);
	must(gx > 0, "a launch without blocks");
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	uint32_t kernel = add_step(stream);
	model.steps[kernel].tickets = g->tickets;
	model.steps[kernel].until = g->until;
	for (uint32_t c = 0; c < g->column_count; c++)
		check_table(kernel, &g->tables[g->columns[c].table]);
	if (g->counters) {
		must(past_lacks(&model.steps[kernel].before, &model.zeros, 0) == NO_STEP,
		     "kernel %u counts from no value", kernel);
		check_others(kernel);
		check_until(kernel, g);
		draw_tickets(kernel, g, groups);
		raise_counter(0, kernel, groups, &model.steps[kernel].before);
	}
	past_add(&model.kernels, kernel);
	copy_columns(kernel, g, gx, stream);
	seen.kernels++;
	/* Of several groups. */
	seen.joint_kernels += g->columns[0].table != g->columns[g->column_count - 1].table;
	seen.lane_kernels += stream != STREAM(MAIN);
	return CUDA_SUCCESS;
}

/* ---- copy engines ---- */

static CUresult model_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)from;
	if (to >= TABLES_AT)
		return copy_table(to, bytes, stream);
	return copy_layers(1ull << layer_at(to), stream);
}

static CUresult model_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)to, (void)bytes;
	return copy_layers(1ull << layer_at(from), stream);
}

/* One row in many layers, or many rows of one. */
static CUresult model_2d(const CUDA_MEMCPY2D *copy, CUstream stream)
{
	bool to_device = copy->dstMemoryType == CU_MEMORYTYPE_DEVICE;
	CUdeviceptr at = to_device ? copy->dstDevice : copy->srcDevice;
	size_t pitch = to_device ? copy->dstPitch : copy->srcPitch;
	uint64_t layers = 0;
	for (size_t y = 0; y < copy->Height; y++)
		layers |= 1ull << layer_at(at + y * pitch);
	return copy_layers(layers, stream);
}

#if OKI_CUDA_HAS_BATCH
static CUresult model_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			    CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
			    CUstream stream)
{
	(void)bytes, (void)attributes, (void)first, (void)attribute_count;
	uint64_t layers = 0;
	for (size_t i = 0; i < count; i++)
		layers |= 1ull << layer_at(to[i] < TABLES_AT ? to[i] : from[i]);
	return copy_layers(layers, stream);
}
#endif

/* ---- events and counters ---- */

static uint32_t event_number(CUevent event)
{
	uintptr_t number = (uintptr_t)event;
	must(number >= POINT && number < EVENTS, "event %p is none of ours", (void *)event);
	return (uint32_t)number;
}

/* Whoever waits for it finds all bytes of the layer. It is a step of its own: a mark that
 * covers everything comes behind it. */
static void record_layer(uint32_t layer, CUstream stream)
{
	uint32_t missing = past_lacks(past_of(stream), &model.copies[layer], 0);
	must(missing == NO_STEP, "the event of layer %u does not follow step %u", layer, missing);
	past_add(past_of(stream), add_step(stream));
	model.ready |= 1ull << layer;
	seen.layer_events++;
}

static CUresult model_record(CUevent event, CUstream stream)
{
	uint32_t number = event_number(event);
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	if (number >= FIRST_LAYER_EVENT)
		record_layer(number - FIRST_LAYER_EVENT, stream);
	/* Of a layer without bytes: all that it needs is a mark behind it. */
	if (number == BARE)
		past_add(past_of(stream), add_step(stream));
	model.events[number] = *past_of(stream);
	model.recorded[number] = true;
	return CUDA_SUCCESS;
}

static CUresult model_wait(CUstream stream, CUevent event, unsigned flags)
{
	(void)flags;
	uint32_t number = event_number(event);
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	must(model.recorded[number], "a wait for event %u, which nobody recorded", number);
	past_join(past_of(stream), &model.events[number]);
	return CUDA_SUCCESS;
}

/* Too low a count comes before what it stands for, too high a one never. */
static CUresult model_wait_value(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)
{
	uint32_t counter = (uint32_t)((const uint32_t *)(uintptr_t)at - model.counters);
	const struct raise *raise = model.raises[counter], *last = raise;
	ck_assert_int_eq(flags, CU_STREAM_WAIT_VALUE_GEQ);
	if (refuses())
		return CUDA_ERROR_LAUNCH_FAILED;
	must(raise->kernel != NO_STEP, "a wait for counter %u, which nobody raises", counter);
	must(past_lacks(past_of(stream), &model.zeros, 0) == NO_STEP,
	     "stream %u looks at counters without a value", stream_number(stream));
	/* A gate is for the kernel before. */
	while (counter > 0 && raise < last + RAISES - 1 && raise->kernel != NO_STEP &&
	       raise->count != value)
		raise++;
	must(raise->kernel != NO_STEP && raise->count == value,
	     "a wait for %u of counter %u, which kernel %u brings to %u", value, counter,
	     last->kernel, last->count);
	must((counter > 0) == (stream == STREAM(SIDE)), "stream %u waits for counter %u",
	     stream_number(stream), counter);
	past_join(past_of(stream), &raise->then);
	seen.gates += counter == 0;
	seen.counter_waits += counter > 0;
	return CUDA_SUCCESS;
}

static CUresult model_synchronize(CUstream stream)
{
	past_join(&model.waited, past_of(stream));
	return CUDA_SUCCESS;
}

#endif
