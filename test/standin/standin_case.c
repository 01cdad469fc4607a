/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the stand-in's tests. */
#include "standin/standin_case.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PINNED_LIMIT (1u << 20)
/* To look at events, to fence, for a stream and a mark. */
#define ENTERED_AT_START 8u
/* Of a plan's part. */
#define PLAN_HEAD_BYTES 48u
#define PLAN_ENTRY_BYTES 32u
/* So much of a restore is queued before its first copy ends: two pieces. */
#define QUEUED_BYTES (128u << 20)

struct sim_driver sim;
static void *library;

#define must(call)                                                                                \
	do {                                                                                      \
		CUresult must_rc_ = (call);                                                       \
		ck_assert_msg(must_rc_ == CUDA_SUCCESS, "%s: CUresult %d", #call, (int)must_rc_); \
	} while (0)

void *sim_symbol(const char *name)
{
	return dlsym(library, name);
}

bool sim_find(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	bool found = library;
#define LOAD(symbol)                                                     \
	do {                                                             \
		void *at_ = found ? sim_symbol(SIM_NAME(symbol)) : NULL; \
		found = at_;                                             \
		memcpy(&sim.symbol, &at_, sizeof(at_));                  \
	} while (0);
	STANDIN_CONTROLS(LOAD)
	SIM_CALLS(LOAD)
#undef LOAD
	if (!found) {
		printf("the stand-in driver is not what LD_LIBRARY_PATH leads to\n");
		return false;
	}
	sim.standin_pinned_limit(PINNED_LIMIT);
	return true;
}

void sim_held(struct standin_counts *ret_counts)
{
	sim.standin_counts(ret_counts);
}

void sim_nothing_held(const struct standin_counts *before)
{
	struct standin_counts now;
	sim.standin_counts(&now);
	ck_assert_uint_eq(now.registrations, before->registrations);
	ck_assert_uint_eq(now.pinned, before->pinned);
	ck_assert_uint_eq(now.allocations, before->allocations);
	ck_assert_uint_eq(now.streams, before->streams);
	ck_assert_uint_eq(now.events, before->events);
	ck_assert_uint_eq(now.modules, before->modules);
	ck_assert_uint_eq(now.contexts, before->contexts);
	ck_assert_uint_eq(sim.standin_pushed(), 0);
}

static void retain(void *object)
{
	atomic_fetch_add(&((struct sim_case *)object)->retained, 1);
}

static void release(void *object)
{
	atomic_fetch_add(&((struct sim_case *)object)->released, 1);
}

static struct okv_owner owner(struct sim_case *c)
{
	return (struct okv_owner){c, retain, release};
}

/* ---- setting up ---- */

static void set_schema(struct sim_case *c)
{
	for (uint32_t g = 0; g < c->geometry->group_count; g++) {
		const struct sim_group *group = &c->geometry->groups[g];
		ck_assert_uint_le(group->layers, SIM_LAYERS);
		for (uint32_t i = 0; i < group->layers; i++) {
			struct okv_layer_schema *layer = &c->schema[g][i];
			layer->order = i * c->geometry->group_count + g;
			layer->segment_count = group->segments;
			for (uint32_t s = 0; s < group->segments; s++)
				layer->segment_bytes[s] =
					(uint64_t)group->bytes[s] * group->per_block;
		}
		c->groups[g] = (struct okv_group_schema){
			.kind = OKV_GROUP_FULL,
			.block_tokens = 16,
			.layer_count = group->layers,
			.layout_tag = "NHD",
			.layers = c->schema[g],
		};
	}
}

uint32_t sim_part_blocks(const struct sim_geometry *geometry, uint32_t group)
{
	uint32_t blocks = geometry->groups[group].blocks;
	uint32_t most = (geometry->part_bytes - PLAN_HEAD_BYTES) / PLAN_ENTRY_BYTES;
	return geometry->part_bytes && most < blocks ? most : blocks;
}

/* Those in a row: so many blocks at the start of each part. */
static bool is_in_row(const struct sim_geometry *geometry, uint32_t group, uint32_t block)
{
	return block % sim_part_blocks(geometry, group) < geometry->in_row;
}

static uint32_t count_in_row(const struct sim_geometry *geometry, uint32_t group)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < geometry->groups[group].blocks; i++)
		count += is_in_row(geometry, group, i);
	return count;
}

/* Pages of a group's blocks: in a row, then scattered; a page is left out on each side. */
static uint32_t *set_pages(const struct sim_geometry *geometry, uint32_t g, uint32_t step)
{
	const struct sim_group *group = &geometry->groups[g];
	uint32_t per_block = group->per_block, n = group->blocks * per_block, in_row = 0,
		 others = 0;
	uint32_t row = count_in_row(geometry, g) * per_block;
	uint32_t *pages = malloc(n * sizeof(*pages)), rest = n - row;
	ck_assert(pages != NULL);
	for (uint32_t i = 0; i < n; i++)
		pages[i] =
			1 + (is_in_row(geometry, g, i / per_block) ? in_row++
								   : row + others++ * step % rest);
	return pages;
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
	return b ? gcd(b, a % b) : a;
}

static void set_blocks(struct sim_case *c)
{
	for (uint32_t g = 0; g < c->geometry->group_count; g++) {
		const struct sim_group *group = &c->geometry->groups[g];
		uint32_t row = count_in_row(c->geometry, g), step = 7;
		while (gcd(step, (group->blocks - row) * group->per_block) > 1)
			step++;
		c->from[g] = set_pages(c->geometry, g, 1);
		c->to[g] = set_pages(c->geometry, g, step);
		c->source[g] = (struct kv_blocks){g, 0, group->blocks, c->from[g]};
		c->target[g] = (struct kv_blocks){g, 0, group->blocks, c->to[g]};
	}
}

static void place(struct sim_case *c)
{
	uint32_t pages[SIM_GROUPS] = {0}, per_block[SIM_GROUPS] = {0};
	const struct sim_geometry *geometry = c->geometry;
	for (uint32_t g = 0; g < geometry->group_count; g++) {
		per_block[g] = geometry->groups[g].per_block;
		pages[g] = geometry->groups[g].blocks * per_block[g] + 2;
	}
	kv_tensors_place(&c->image, c->groups, geometry->group_count, 0, geometry->place, pages,
			 per_block, geometry->pad);
	c->seen = c->image;
	c->seen.layers = calloc(c->image.layer_count, sizeof(*c->seen.layers));
	ck_assert(c->seen.layers != NULL);
	must(sim.cuMemHostAlloc((void **)&c->seen.memory, c->image.bytes, 0));
	must(sim.cuMemAlloc(&c->memory, c->image.bytes));
	for (uint32_t i = 0; i < c->image.layer_count; i++) {
		c->seen.layers[i] = c->image.layers[i];
		c->seen.layers[i].base =
			c->seen.memory + ((uint8_t *)c->image.layers[i].base - c->image.memory);
		must(sim.cuEventCreate(&c->events[i], CU_EVENT_DISABLE_TIMING));
	}
	for (uint32_t i = 0; i < SIM_CONSUMERS; i++)
		must(sim.cuStreamCreateWithPriority(&c->consumers[i], CU_STREAM_NON_BLOCKING, 0));
	must(sim.cuStreamCreateWithPriority(&c->producer, CU_STREAM_NON_BLOCKING, 0));
}

struct sim_case *sim_case_new(const struct sim_geometry *geometry, uint64_t memory, uint32_t flags)
{
	struct okv_manager_options m;
	struct okv_engine_options o;
	struct sim_case *c = calloc(1, sizeof(*c));
	ck_assert(c != NULL);
	c->geometry = geometry;
	okv_manager_options_init(&m);
	m.memory_bytes = memory ? memory : 4u << 20;
	m.numa = OKV_NUMA_OFF;
	if (geometry->part_bytes)
		m.part_bytes = geometry->part_bytes;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED | flags;
	o.embedded = &m;
	kv_ok(okv_engine_open(&o, &c->engine, kv_err));
	set_schema(c);
	set_blocks(c);
	c->ns = kv_groups_open(c->engine, c->groups, geometry->group_count, 1);
	sim.standin_exempt(true);
	place(c);
	sim.standin_exempt(false);
	return c;
}

int sim_case_register(struct sim_case *c, uint32_t path, struct okv_error *err)
{
	struct okv_binding_options o;
	struct okv_layer *layers = calloc(c->image.layer_count, sizeof(*layers));
	ck_assert(layers != NULL);
	for (uint32_t i = 0; i < c->image.layer_count; i++) {
		const struct okv_layer *at = &c->image.layers[i];
		layers[i] = *at;
		layers[i].base = (void *)(uintptr_t)(c->memory + (uint64_t)((uint8_t *)at->base -
									    c->image.memory));
		layers[i].owner = owner(c);
	}
	okv_binding_options_init(&o);
	o.device = OKV_DEVICE_CUDA;
	o.copy_path = path;
	o.copy_sms = 1;
	o.layer_count = c->image.layer_count;
	o.layers = layers;
	int rc = okv_binding_register(c->ns, &o, &c->image.binding, err);
	free(layers);
	return rc;
}

void sim_case_close(struct sim_case *c, const struct standin_counts *before)
{
	bool poisoned = okv_engine_state(c->engine) == OKV_E_POISONED;
	okv_binding_unregister(c->image.binding);
	okv_namespace_close(c->ns);
	okv_engine_close(c->engine);
	if (poisoned)
		return;
	ck_assert_int_eq(atomic_load(&c->retained), atomic_load(&c->released));
	sim.standin_exempt(true);
	for (uint32_t i = 0; i < c->image.layer_count; i++)
		must(sim.cuEventDestroy(c->events[i]));
	for (uint32_t i = 0; i < SIM_CONSUMERS; i++)
		must(sim.cuStreamDestroy(c->consumers[i]));
	must(sim.cuStreamDestroy(c->producer));
	must(sim.cuMemFree(c->memory));
	must(sim.cuMemFreeHost(c->seen.memory));
	sim.standin_exempt(false);
	free(c->seen.layers);
	c->image.binding = NULL;
	kv_tensors_close(&c->image);
	for (uint32_t g = 0; g < SIM_GROUPS; g++) {
		free(c->from[g]);
		free(c->to[g]);
	}
	free(c);
	sim_nothing_held(before);
}

/* ---- operations ---- */

static void upload(struct sim_case *c)
{
	memcpy(sim.standin_see(c->memory, c->image.bytes), c->image.memory, c->image.bytes);
}

static void download(struct sim_case *c)
{
	memcpy(c->image.memory, sim.standin_see(c->memory, c->image.bytes), c->image.bytes);
}

/* The blocks of all groups in stretches: the first of each group, then the second, and so on. */
static uint32_t cut(const struct sim_case *c, const struct kv_blocks *whole,
		    struct kv_blocks ret_stretches[OKV_MAX_GROUPS])
{
	uint32_t parts = c->stretches ? c->stretches : 1, n = 0;
	for (uint32_t k = 0; k < parts; k++)
		for (uint32_t g = 0; g < c->geometry->group_count; g++) {
			uint32_t first = whole[g].count * k / parts;
			uint32_t end = whole[g].count * (k + 1) / parts;
			ret_stretches[n++] = (struct kv_blocks){
				.group = g,
				.first = whole[g].first + first,
				.count = end - first,
				.pages = whole[g].pages + first * c->geometry->groups[g].per_block,
			};
		}
	return n;
}

int sim_publish(struct sim_case *c, uint64_t seq)
{
	struct okv_op *op;
	struct okv_error err = {0};
	uint32_t n = c->geometry->group_count;
	kv_tensors_canary(&c->image);
	for (uint32_t g = 0; g < n; g++)
		kv_tensors_fill(&c->image, seq, &c->source[g]);
	upload(c);
	struct kv_blocks stretches[OKV_MAX_GROUPS];
	uint32_t count = cut(c, c->source, stretches);
	int rc = kv_blocks_publish_start(&c->image, seq, stretches, count, &op, &err);
	if (rc) {
		ck_assert(err.text[0] != 0);
		return rc;
	}
	struct okv_op_result result;
	rc = okv_op_wait(op, SIM_WAIT_MS, &result);
	okv_op_release(op);
	ck_assert(rc == 0 || result.text[0] != 0);
	if (rc != OKV_E_POISONED) {
		download(c);
		for (uint32_t g = 0; g < n; g++)
			ck_assert_uint_eq(kv_tensors_wrong(&c->image, seq, &c->source[g]), 0);
		ck_assert_uint_eq(kv_tensors_stray(&c->image, c->source, n), 0);
	}
	return rc;
}

bool sim_is_stored(struct sim_case *c, uint64_t seq)
{
	uint32_t counts[SIM_GROUPS], n = c->geometry->group_count;
	for (uint32_t g = 0; g < n; g++)
		counts[g] = c->geometry->groups[g].blocks;
	uint64_t tokens = kv_groups_lookup(c->ns, seq, counts, n, 1, NULL, NULL);
	ck_assert(tokens == 0 || tokens == counts[0] * 16u);
	return tokens;
}

/* The consumer copies what the layer holds, and nothing else of the tensor. */
static void consume(struct sim_case *c, uint32_t layer)
{
	CUstream stream = c->consumers[layer % SIM_CONSUMERS];
	const struct okv_layer *l = &c->seen.layers[layer];
	uint64_t offset = (uint64_t)((uint8_t *)l->base - c->seen.memory);
	must(sim.cuStreamWaitEvent(stream, c->events[layer], 0));
	for (uint32_t s = 0; s < l->segment_count; s++) {
		CUDA_MEMCPY2D copy = {
			.srcMemoryType = CU_MEMORYTYPE_DEVICE,
			.srcDevice = c->memory + offset + l->segment_offset[s],
			.srcPitch = l->page_stride,
			.dstMemoryType = CU_MEMORYTYPE_HOST,
			.dstHost = (uint8_t *)l->base + l->segment_offset[s],
			.dstPitch = l->page_stride,
			.WidthInBytes = l->segment_bytes[s],
			.Height = l->page_count,
		};
		must(sim.cuMemcpy2DAsync(&copy, stream));
	}
}

static int start(struct sim_case *c, uint64_t seq, struct okv_op **ret_op)
{
	struct okv_restore_group groups[OKV_MAX_GROUPS];
	struct kv_blocks stretches[OKV_MAX_GROUPS];
	struct okv_lease_id id;
	struct okv_layer_event *events = calloc(c->image.layer_count, sizeof(*events));
	struct okv_restore_options o;
	struct okv_lease *lease = NULL;
	struct okv_error err = {0};
	uint32_t counts[SIM_GROUPS], n = c->geometry->group_count;
	ck_assert(events != NULL);
	for (uint32_t g = 0; g < n; g++)
		counts[g] = c->geometry->groups[g].blocks;
	uint32_t stretch_count = cut(c, c->target, stretches);
	for (uint32_t i = 0; i < stretch_count; i++)
		groups[i] = (struct okv_restore_group){.group = stretches[i].group,
						       .first = stretches[i].first,
						       .count = stretches[i].count,
						       .pages = stretches[i].pages,
						       .lease_id = c->stretches ? &id : NULL};
	for (uint32_t i = 0; i < c->image.layer_count; i++)
		events[i] = (struct okv_layer_event){
			.layer = i, .event = c->events[i], .owner = owner(c)};
	kv_groups_lookup(c->ns, seq, counts, n, 1, NULL, &lease);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	okv_restore_options_init(&o);
	o.group_count = stretch_count;
	o.groups = groups;
	o.event_count = c->image.layer_count;
	o.events = events;
	o.ready = (struct okv_ready){.stream_count = 1, .streams = &c->producer};
	o.owner = owner(c);
	uint32_t entered = sim.standin_entered();
	int rc = okv_restore_start(c->image.binding, c->stretches ? NULL : lease, &o, ret_op, &err);
	/* However many events there are: the caller waits for this. */
	ck_assert_uint_le(sim.standin_entered() - entered, ENTERED_AT_START);
	ck_assert(rc == 0 || err.text[0] != 0);
	okv_lease_release(lease);
	free(events);
	return rc;
}

/* In consumption order. Returns how many layers were enqueued. */
static uint32_t consume_all(struct sim_case *c, struct okv_op *op, bool *ret_enqueued)
{
	uint32_t first = 0, seen = 0, most = 0;
	for (uint32_t g = 0; g < c->geometry->group_count; g++)
		if (c->geometry->groups[g].layers > most)
			most = c->geometry->groups[g].layers;
	sim.standin_exempt(true);
	for (uint32_t i = 0; i < most; i++) {
		first = 0;
		for (uint32_t g = 0; g < c->geometry->group_count; g++) {
			uint32_t layer = first + i;
			first += c->geometry->groups[g].layers;
			if (i >= c->geometry->groups[g].layers)
				continue;
			ret_enqueued[layer] = okv_op_wait_enqueued(op, layer, SIM_WAIT_MS) == 0;
			seen += ret_enqueued[layer];
			if (ret_enqueued[layer])
				consume(c, layer);
		}
	}
	for (uint32_t i = 0; i < SIM_CONSUMERS; i++)
		must(sim.cuStreamSynchronize(c->consumers[i]));
	sim.standin_exempt(false);
	return seen;
}

static void check_seen(const struct sim_case *c, uint64_t seq, const bool *enqueued)
{
	uint32_t layer = 0;
	for (uint32_t g = 0; g < c->geometry->group_count; g++)
		for (uint32_t i = 0; i < c->geometry->groups[g].layers; i++, layer++)
			if (enqueued[layer])
				ck_assert_msg(kv_layer_wrong(&c->seen, seq, &c->target[g], layer) ==
						      0,
					      "%s: layer %u was not ready when its event was",
					      c->geometry->name, layer);
}

/* All that can be queued is, and has set going what it could; the image is downloaded then. Returns
 * how many streams have work. */
static uint32_t wait_until_stuck(struct sim_case *c, struct okv_op *op)
{
	ck_assert_uint_le(c->image.bytes, QUEUED_BYTES);
	for (uint32_t i = 0; op && i < c->image.layer_count; i++)
		ck_assert_int_ne(okv_op_wait_enqueued(op, i, SIM_WAIT_MS), OKV_E_TIMEOUT);
	uint32_t busy = sim.standin_settle();
	download(c);
	return busy;
}

/* Its start, and what is copied while something holds it up. */
static int start_held_up(struct sim_case *c, uint64_t seq, struct okv_op **ret_op)
{
	struct standin_gate *gate = c->gated ? sim.standin_gate_close(c->producer) : NULL;
	uint32_t busy = 0;
	sim.standin_hold(c->held);
	int rc = start(c, seq, ret_op);
	bool stuck = gate || c->held;
	if (stuck)
		busy = wait_until_stuck(c, rc ? NULL : *ret_op);
	else if (rc)
		download(c);
	if (stuck && !rc)
		c->early = okv_op_wait(*ret_op, 5, NULL);
	/* Before the first check: a test that fails must not hold up the next one. */
	sim.standin_hold(STANDIN_NOTHING);
	if (gate)
		sim.standin_gate_open(gate);
	if (gate || rc)
		ck_assert_msg(kv_tensors_stray(&c->image, NULL, 0) == 0,
			      "%s: copied before its streams were ready", c->geometry->name);
	if (stuck && c->look && !rc)
		c->look(c, seq, busy);
	return rc;
}

int sim_restore(struct sim_case *c, uint64_t seq, uint32_t *ret_seen)
{
	bool enqueued[SIM_GROUPS * SIM_LAYERS] = {false};
	struct okv_op_result result;
	struct okv_op *op;
	uint32_t n = c->geometry->group_count;
	*ret_seen = 0;
	kv_tensors_canary(&c->image);
	upload(c);
	memset(c->seen.memory, KV_CANARY, c->image.bytes);
	int rc = start_held_up(c, seq, &op);
	if (rc)
		return rc;
	*ret_seen = consume_all(c, op, enqueued);
	rc = okv_op_wait(op, SIM_WAIT_MS, &result);
	okv_op_release(op);
	ck_assert(rc == 0 || result.text[0] != 0);
	check_seen(c, seq, enqueued);
	if (rc == OKV_E_POISONED)
		return rc;
	download(c);
	for (uint32_t g = 0; g < n && rc == 0; g++)
		ck_assert_msg(kv_tensors_wrong(&c->image, seq, &c->target[g]) == 0,
			      "%s: wrong bytes after a restore", c->geometry->name);
	ck_assert_msg(kv_tensors_stray(&c->image, c->target, n) == 0,
		      "%s: bytes changed that belong to nobody", c->geometry->name);
	return rc;
}
