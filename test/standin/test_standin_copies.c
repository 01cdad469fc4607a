/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publish and restore on the stand-in driver, by every path and in many geometries, with delays at
 * random: every byte is right, no other one changes, and each layer is there when its event is.
 */
#include "standin/standin_case.h"

#include "device/cuda/cuda_api.h"

#include <stdlib.h>
#include <string.h>
#include "support/suite.h"

static const struct sim_geometry geometries[] = {
	{"K and V apart", KV_PLACE_HALVES, 1, {{6, 2, 1, 40, {4096, 4096}}}, 0, 0, 0},
	{"fused, four pages to a block", KV_PLACE_PAGES, 1, {{6, 1, 4, 12, {3000}}}, 24, 0, 0},
	{"odd sizes, a table", KV_PLACE_PAGES, 1, {{5, 3, 2, 51, {1003, 77, 2051}}}, 13, 0, 10},
	{"many columns", KV_PLACE_HALVES, 1, {{70, 3, 1, 9, {640, 640, 256}}}, 0, 0, 0},
#define MANY_COLUMNS 3
	{"many columns in parts",
	 KV_PLACE_HALVES,
	 1,
	 {{96, 3, 1, 9, {640, 96, 256}}},
	 16,
	 48 + 4 * 32,
	 0},
	{"all layers in a page", KV_PLACE_CROSS, 1, {{8, 2, 1, 90, {512, 512}}}, 0, 0, 45},
	{"in parts", KV_PLACE_HALVES, 1, {{5, 2, 1, 64, {2048, 2048}}}, 0, 48 + 5 * 32, 0},
	{"two groups in parts",
	 KV_PLACE_PAGES,
	 2,
	 {{6, 2, 1, 24, {1024, 1024}}, {4, 1, 2, 24, {4608}}},
	 8,
	 48 + 7 * 32,
	 0},
	{"long runs and short ones", KV_PLACE_HALVES, 1, {{4, 1, 1, 460, {4096}}}, 0, 0, 200},
	{"short early kernels", KV_PLACE_HALVES, 1, {{40, 2, 1, 30, {4096, 4096}}}, 0, 0, 0},
};
#define GEOMETRIES (sizeof(geometries) / sizeof(geometries[0]))
#define SEEDS 4u

/* However few hardware queues its streams have to share, an operation ends. */
static void publish_and_restore(uint32_t geometry, uint32_t path)
{
	static const uint32_t channels[SEEDS] = {0, 1, 2, 1};
	struct standin_counts before;
	sim.standin_seed(0);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&geometries[geometry], 32u << 20, 0);
	uint32_t seen = 0;
	kv_ok(sim_case_register(c, path, kv_err));
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		sim.standin_seed(seed * 77);
		sim.standin_channels(channels[seed]);
		c->gated = seed % 2;
		ck_assert_int_eq(sim_publish(c, seed + 1), 0);
		ck_assert_int_eq(sim_restore(c, seed + 1, &seen), 0);
		ck_assert_uint_eq(seen, c->image.layer_count);
	}
	sim.standin_channels(0);
	sim_case_close(c, &before);
}

START_TEST(by_copy_engines)
{
	struct standin_counts before, after;
	sim.standin_counts(&before);
	publish_and_restore((uint32_t)_i, OKV_COPY_DMA);
	sim.standin_counts(&after);
	ck_assert_uint_eq(after.launches, before.launches);
}
END_TEST

START_TEST(by_the_kernel)
{
	publish_and_restore((uint32_t)_i, OKV_COPY_KERNEL);
}
END_TEST

START_TEST(by_what_is_faster)
{
	publish_and_restore((uint32_t)_i, OKV_COPY_AUTO);
}
END_TEST

/* A GPU has few queues for the streams of a process, and a stream that waits keeps one from all
 * others: an operation behind a stream of its caller has work in few, however many kernels it is.
 */
static uint32_t few; /* without waits for a value it is one, whatever the way */

static void work_in_few_streams(struct sim_case *c, uint64_t seq, uint32_t busy)
{
	(void)c;
	(void)seq;
	ck_assert_uint_eq(busy, 1 + few);
}

START_TEST(an_operation_that_waits_has_few_streams)
{
	const uint32_t path = _i ? OKV_COPY_KERNEL : OKV_COPY_DMA;
	struct standin_counts held, before, after;
	uint32_t seen;
	sim.standin_seed(3);
	sim_held(&held);
	struct sim_case *c = sim_case_new(&geometries[MANY_COLUMNS], 0, 0);
	c->gated = true;
	kv_ok(sim_case_register(c, path, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	few = _i && !getenv("OKV_STANDIN_OLD") ? 3 : 1;
	c->look = work_in_few_streams;
	sim.standin_counts(&before);
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	sim.standin_counts(&after);
	ck_assert_uint_ge(after.launches - before.launches, _i ? 3 : 0);
	sim_case_close(c, &held);
}
END_TEST

/* A restore of the blocks from `first` on, behind the producer or not; it keeps the lease. */
static struct okv_op *start(struct sim_case *c, struct okv_lease *lease, uint32_t first,
			    uint32_t count, bool fenced)
{
	const struct okv_restore_group group = {
		.first = first, .count = count, .pages = c->to[0] + first};
	struct okv_restore_options o;
	struct okv_op *op;
	okv_restore_options_init(&o);
	o.flags = OKV_RESTORE_KEEP;
	o.group_count = 1;
	o.groups = &group;
	if (fenced)
		o.ready = (struct okv_ready){.stream_count = 1, .streams = &c->producer};
	kv_ok(okv_restore_start(c->image.binding, lease, &o, &op, kv_err));
	return op;
}

static struct okv_lease *found(struct sim_case *c, uint64_t seq, uint32_t count)
{
	struct okv_lease *lease = NULL;
	kv_groups_lookup(c->ns, seq, &count, 1, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	return lease;
}

static uint32_t refused; /* events of the restore that runs */

/* Each event is in use, whichever layer another restore wants it for; that restore has no pages. */
static void events_are_in_use(struct sim_case *c, uint64_t seq, uint32_t busy)
{
	uint32_t layers = c->image.layer_count;
	struct okv_lease *lease = found(c, seq, c->geometry->groups[0].blocks);
	(void)busy;
	for (uint32_t i = 0; i < layers; i++) {
		const struct okv_layer_event event = {.layer = (i + 1) % layers,
						      .event = c->events[i]};
		struct okv_restore_options o;
		struct okv_error err = {.text = ""};
		struct okv_op *op;
		okv_restore_options_init(&o);
		o.flags = OKV_RESTORE_KEEP;
		o.event_count = 1;
		o.events = &event;
		ck_assert_int_eq(okv_restore_start(c->image.binding, lease, &o, &op, &err),
				 OKV_E_BUSY);
		ck_assert_ptr_nonnull(strstr(err.text, "an event is in use"));
		refused++;
	}
	okv_lease_release(lease);
}

START_TEST(an_event_belongs_to_one_operation)
{
	struct standin_counts held;
	uint32_t seen;
	sim.standin_seed(4);
	sim_held(&held);
	struct sim_case *c = sim_case_new(&geometries[MANY_COLUMNS], 0, 0);
	c->gated = true;
	kv_ok(sim_case_register(c, OKV_COPY_DMA, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	c->look = events_are_in_use;
	refused = 0;
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	ck_assert_uint_ge(refused, c->image.layer_count);
	/* They are free again. */
	c->look = NULL;
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	sim_case_close(c, &held);
}
END_TEST

/* Scattered rows by copy engines: batched calls where the driver has them, by either name, and else
 * a call each. */
START_TEST(scattered_rows_go_in_batches)
{
	const bool old = getenv("OKV_STANDIN_OLD") || !OKI_CUDA_HAS_BATCH;
	struct standin_counts held, before, after;
	uint32_t seen;
	sim_held(&held);
	struct sim_case *c = sim_case_new(&geometries[0], 0, 0);
	kv_ok(sim_case_register(c, OKV_COPY_DMA, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	sim.standin_counts(&before);
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	sim.standin_counts(&after);
	ck_assert_uint_eq(after.batches > before.batches, !old);
	sim_case_close(c, &held);
}
END_TEST

/* The GPU's only queue stands behind the producer, for which the caller is to open the gate: start
 * calls return all the same, and none makes a stream, in which a driver may wait for that. */
START_TEST(start_calls_wait_for_no_queue)
{
	struct standin_counts held, before, after;
	struct okv_op *ops[4];
	sim.standin_seed(3);
	sim_held(&held);
	struct sim_case *c = sim_case_new(&geometries[MANY_COLUMNS], 0, 0);
	kv_ok(sim_case_register(c, _i ? OKV_COPY_KERNEL : OKV_COPY_DMA, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	struct okv_lease *lease = found(c, 1, 4);
	sim.standin_channels(1);
	struct standin_gate *gate = sim.standin_gate_close(c->producer);
	sim.standin_counts(&before);
	for (uint32_t i = 0; i < 4; i++)
		ops[i] = start(c, lease, i, 1, i < 2);
	sim.standin_counts(&after);
	for (uint32_t i = 0; i < 4; i++)
		ck_assert_int_eq(okv_op_poll(ops[i], NULL), OKV_E_RUNNING);
	sim.standin_gate_open(gate);
	ck_assert_uint_eq(after.streams, before.streams);
	ck_assert_uint_eq(after.pinned, before.pinned);
	ck_assert_uint_eq(after.allocations, before.allocations);
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_int_eq(okv_op_wait(ops[i], SIM_WAIT_MS, NULL), 0);
		okv_op_release(ops[i]);
	}
	okv_lease_release(lease);
	sim.standin_channels(0);
	sim_case_close(c, &held);
}
END_TEST

/* A restore of more than 64 MiB goes in pieces, and so does a layer of more. */
static const struct sim_geometry large[] = {
	{"above 64 MiB", KV_PLACE_PAGES, 1, {{4, 2, 1, 140, {65536, 65536}}}, 0, 0, 70},
	{"layers above 64 MiB", KV_PLACE_PAGES, 1, {{3, 1, 1, 70, {1u << 20}}}, 0, 0, 30},
};
#define LARGE (sizeof(large) / sizeof(large[0]))

START_TEST(in_pieces)
{
	const struct sim_geometry *geometry = &large[(uint32_t)_i % LARGE];
	const uint32_t path = (uint32_t)_i < LARGE ? OKV_COPY_DMA : OKV_COPY_KERNEL;
	struct standin_counts before;
	uint32_t seen;
	sim.standin_seed(5);
	sim_held(&before);
	struct sim_case *c = sim_case_new(geometry, 320u << 20, 0);
	/* No more than two pieces are queued behind the gate. */
	c->gated = geometry == &large[0];
	kv_ok(sim_case_register(c, path, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	ck_assert_uint_eq(seen, geometry->groups[0].layers);
	sim_case_close(c, &before);
}
END_TEST

/* Long runs of short rows, and a few rows anywhere, in each part and each group. */
static const struct sim_geometry mixed[] = {
	{"mixed parts", KV_PLACE_HALVES, 1, {{2, 1, 8, 3 * 84, {64}}}, 0, 48 + 84 * 32, 75},
	{"mixed, two groups",
	 KV_PLACE_PAGES,
	 2,
	 {{2, 1, 8, 140, {64}}, {3, 1, 8, 140, {96}}},
	 0,
	 0,
	 100},
	{"mixed, two groups in parts",
	 KV_PLACE_PAGES,
	 2,
	 {{2, 1, 8, 2 * 84, {64}}, {3, 1, 8, 2 * 84, {96}}},
	 0,
	 48 + 84 * 32,
	 75},
};
#define MIXED (sizeof(mixed) / sizeof(mixed[0]))

static struct sim_case *mixed_case(const struct sim_geometry *geometry, uint32_t path,
				   struct standin_counts *ret_before)
{
	sim.standin_seed(0);
	sim_held(ret_before);
	struct sim_case *c = sim_case_new(geometry, 0, 0);
	kv_ok(sim_case_register(c, path, kv_err));
	ck_assert_int_eq(sim_publish(c, 1), 0);
	return c;
}

/* All groups of a part go one way: one launch for each part, or none. */
START_TEST(a_part_goes_one_way)
{
	const struct sim_geometry *geometry = &mixed[_i];
	struct standin_counts held, before, after;
	struct sim_case *c = mixed_case(geometry, OKV_COPY_AUTO, &held);
	uint32_t seen, parts = 1;
	if (geometry->part_bytes) {
		parts = 0;
		for (uint32_t g = 0; g < geometry->group_count; g++)
			parts += geometry->groups[g].blocks / sim_part_blocks(geometry, g);
	}
	c->gated = true;
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		sim.standin_seed(seed * 77);
		sim.standin_counts(&before);
		ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
		sim.standin_counts(&after);
		uint32_t launches = after.launches - before.launches;
		ck_assert(launches == parts || launches == 0);
	}
	sim_case_close(c, &held);
}
END_TEST

static void nothing_is_copied_nor_ended(struct sim_case *c, uint64_t seq, uint32_t busy)
{
	(void)seq;
	ck_assert_uint_ge(busy, 1);
	ck_assert_uint_eq(kv_tensors_stray(&c->image, NULL, 0), 0);
	ck_assert_msg(c->early == OKV_E_TIMEOUT, "the end does not wait for copies");
}

/* By whichever way: what holds up all copies holds up the end. */
START_TEST(the_end_follows_all_copies)
{
	const bool kernel = (uint32_t)_i >= MIXED;
	struct standin_counts held;
	struct sim_case *c = mixed_case(&mixed[(uint32_t)_i % MIXED],
					kernel ? OKV_COPY_KERNEL : OKV_COPY_DMA, &held);
	uint32_t seen;
	c->held = kernel ? STANDIN_LAUNCHES : STANDIN_COPIES;
	c->look = nothing_is_copied_nor_ended;
	ck_assert_int_eq(sim_restore(c, 1, &seen), 0);
	sim_case_close(c, &held);
}
END_TEST

/* Every layer is there when its event is, though its blocks come in stretches. */
START_TEST(in_stretches)
{
	const uint32_t path = (uint32_t)_i / GEOMETRIES, geometry = (uint32_t)_i % GEOMETRIES;
	static const uint32_t paths[] = {OKV_COPY_DMA, OKV_COPY_AUTO, OKV_COPY_KERNEL};
	struct standin_counts before;
	uint32_t seen = 0;
	sim.standin_seed(0);
	sim_held(&before);
	struct sim_case *c = sim_case_new(&geometries[geometry], 32u << 20, 0);
	kv_ok(sim_case_register(c, paths[path], kv_err));
	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		sim.standin_seed(seed * 77);
		c->gated = seed % 2;
		c->stretches = 1 + (uint32_t)seed % SIM_STRETCHES;
		ck_assert_int_eq(sim_publish(c, seed + 1), 0);
		ck_assert_int_eq(sim_restore(c, seed + 1, &seen), 0);
		ck_assert_uint_eq(seen, c->image.layer_count);
	}
	sim_case_close(c, &before);
}
END_TEST

/* The link as measured on the stand-in: whatever it is, every byte is right. Last, as the process
 * keeps it. */
START_TEST(by_a_measured_link)
{
	sim.standin_pinned_limit(UINT64_MAX);
	publish_and_restore((uint32_t)_i, OKV_COPY_AUTO);
	publish_and_restore((uint32_t)_i + 1, OKV_COPY_AUTO);
}
END_TEST

int main(void)
{
	if (!sim_find())
		return 1;
	Suite *suite = suite_create("stand-in copies");
	TCase *tc = tcase_create("copies");
	tcase_set_timeout(tc, 300);
	suite_add_tcase(suite, tc);
	tcase_add_loop_test(tc, by_copy_engines, 0, (int)GEOMETRIES);
	tcase_add_loop_test(tc, by_what_is_faster, 0, (int)GEOMETRIES);
	if (SIM_HAS_KERNEL)
		tcase_add_loop_test(tc, by_the_kernel, 0, (int)GEOMETRIES);
	else
		kv_left_out(by_the_kernel, "built without nvcc");
	tcase_add_loop_test(tc, in_stretches, 0, (SIM_HAS_KERNEL ? 3 : 2) * (int)GEOMETRIES);
	tcase_add_loop_test(tc, in_pieces, 0, (SIM_HAS_KERNEL ? 2 : 1) * (int)LARGE);
	tcase_add_loop_test(tc, an_operation_that_waits_has_few_streams, 0, SIM_HAS_KERNEL ? 2 : 1);
	tcase_add_test(tc, scattered_rows_go_in_batches);
	tcase_add_loop_test(tc, start_calls_wait_for_no_queue, 0, SIM_HAS_KERNEL ? 2 : 1);
	tcase_add_loop_test(tc, the_end_follows_all_copies, 0,
			    (SIM_HAS_KERNEL ? 2 : 1) * (int)MIXED);
	if (!SIM_HAS_KERNEL)
		kv_left_out(a_part_goes_one_way, "built without nvcc");
	/* Without waits for values a kernel copies a stretch. */
	if (SIM_HAS_KERNEL && sim_symbol(SIM_NAME(cuStreamWaitValue32)))
		tcase_add_loop_test(tc, a_part_goes_one_way, 0, (int)MIXED);
	tcase_add_loop_test(tc, by_a_measured_link, 7, 8);
	TCase *events = tcase_create("events");
	suite_add_tcase(suite, events);
	tcase_add_test(events, an_event_belongs_to_one_operation);
	return kv_suite_run(suite);
}
