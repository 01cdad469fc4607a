/* SPDX-License-Identifier: Apache-2.0 */
/* In which order a part goes to the device: copies, events, pieces. The device only writes down. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec_private.h"
#include "support/suite.h"

#define LAYERS 6u
#define MIB (1ull << 20)

/* What the device was told: "c" and how many layers, "e" and which event, "m" for a mark. */
static char story[256];
static uint32_t takes; /* layers of one copy call at most */
static bool idle;      /* what a stream says */
static struct oki_mark *complete;

static void tell(char what, uint64_t number)
{
	size_t at = strlen(story);
	snprintf(story + at, sizeof(story) - at, "%c%llu ", what, (unsigned long long)number);
}

static void check_runs(const struct oki_layer_copy *layer);

static int copy(struct oki_stream *stream, enum oki_direction direction,
		const struct oki_layer_copy *layers, uint32_t layer_count, struct okv_error *err)
{
	(void)stream, (void)direction, (void)err;
	uint32_t taken = layer_count < takes ? layer_count : takes;
	tell('c', taken);
	for (uint32_t i = 0; i < taken; i++)
		if (layers[i].event)
			tell('E', (uintptr_t)layers[i].event);
	for (uint32_t i = 0; i < layer_count; i++)
		check_runs(&layers[i]);
	return (int)taken;
}

static int record_event(struct oki_stream *stream, struct CUevent_st *event, struct okv_error *err)
{
	(void)stream, (void)err;
	tell('e', (uintptr_t)event);
	return 0;
}

static int record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	(void)stream, (void)mark, (void)err;
	tell('m', 0);
	return 0;
}

static int query(struct oki_mark *mark, struct okv_error *err)
{
	(void)err;
	return mark == complete;
}

static bool is_idle(struct oki_stream *stream)
{
	(void)stream;
	return idle;
}

static uintptr_t streams_made;

static int stream_create(struct oki_device *device, struct oki_stream **ret_stream,
			 struct okv_error *err)
{
	(void)device, (void)err;
	*ret_stream = (struct oki_stream *)++streams_made;
	return 0;
}

static void stream_recycle(struct oki_stream *stream)
{
	(void)stream;
}

static const struct oki_device_ops ops = {
	.name = "diary",
	.max_pitch = UINT32_MAX,
	.copy = copy,
	.record_event = record_event,
	.record = record,
	.query = query,
	.is_idle = is_idle,
	.stream_create = stream_create,
	.stream_recycle = stream_recycle,
};

static void layer_enqueued(void *arg, uint32_t layer)
{
	(void)arg, (void)layer;
}

static const struct oki_transfer_source source = {.layer_enqueued = layer_enqueued};

/* Two groups whose layers take turns in the model's order. */
static struct oki_schema schema;
static struct oki_geometry geometry;
static struct oki_worker w;
static bool recorded[LAYERS];
static struct CUevent_st *events[LAYERS];
static uint8_t block[64];
static const uint32_t page[1] = {0};
static const struct oki_pair pair = {.host = block};

static const struct oki_submission *in_hand;

static void check_runs(const struct oki_layer_copy *layer)
{
	ptrdiff_t at = layer->map - geometry.maps;
	uint32_t group = schema.layers[at].group;
	const struct oki_runs *runs = &in_hand->runs[group];
	ck_assert_ptr_eq(layer->runs, runs->runs + in_hand->at_run);
	if (layer->run_count != runs->count)
		ck_assert(in_hand->slice_rows[group] > 0);
}

static void setup(void)
{
	struct okv_layer_schema ls[2][3];
	struct okv_group_schema groups[2];
	struct okv_layer layers[LAYERS];
	struct okv_error err;
	memset(ls, 0, sizeof(ls));
	memset(groups, 0, sizeof(groups));
	memset(layers, 0, sizeof(layers));
	for (uint32_t g = 0; g < 2; g++) {
		for (uint32_t i = 0; i < 3; i++) {
			ls[g][i] = (struct okv_layer_schema){2 * i + g, 1, {32 * MIB}};
			layers[g * 3 + i] = (struct okv_layer){
				.base = (void *)(uintptr_t)((1 + g * 3 + i) * 64 * MIB),
				.length = 32 * MIB,
				.page_stride = 32 * MIB,
				.page_count = 1,
				.segment_count = 1,
				.segment_bytes = {32 * MIB}};
		}
		groups[g] = (struct okv_group_schema){.kind = OKV_GROUP_FULL,
						      .block_tokens = 16,
						      .layer_count = 3,
						      .layout_tag = "NHD",
						      .layers = ls[g]};
	}
	struct okv_namespace_options ns = {.size = sizeof(ns),
					   .rank_slots = 1,
					   .model = "m",
					   .pipeline_stages = 1,
					   .group_count = 2,
					   .groups = groups};
	ck_assert_int_eq(oki_schema_init(&schema, &ns, &err), 0);
	ck_assert_int_eq(oki_geometry_init(&geometry, &schema, layers, LAYERS, false, &err), 0);
	w = (struct oki_worker){.ops = &ops, .config = {.schema = &schema, .geometry = &geometry}};
	memset(recorded, 0, sizeof(recorded));
	for (uint32_t i = 0; i < LAYERS; i++)
		events[schema.by_order[i]] = (struct CUevent_st *)(uintptr_t)(i + 1);
	story[0] = 0;
	takes = 1000;
	complete = NULL;
}

static void teardown(void)
{
	oki_compile_scratch_fini(&w.scratch);
	oki_geometry_fini(&geometry);
	oki_schema_fini(&schema);
}

/* A block of each of so many groups from `group` on. */
static void begin_groups(struct oki_transfer *t, uint32_t group, uint32_t count)
{
	struct okv_error err;
	struct oki_part part = {.groups_done = (1u << count) - 1, .last = true};
	for (uint32_t i = 0; i < count; i++) {
		part.groups[i].pairs = (struct oki_pair *)(uintptr_t)&pair;
		part.groups[i].count = 1;
		t->groups[i] = (struct oki_transfer_group){group + i, 1, page};
	}
	t->source = &source;
	t->group_count = count;
	t->events = events;
	t->recorded = recorded;
	ck_assert_int_eq(oki_submit_begin(&w, t, &part, &err), 0);
}

static void begin(struct oki_transfer *t, uint32_t group)
{
	begin_groups(t, group, 1);
}

static int some(struct oki_transfer *t)
{
	struct okv_error err;
	bool moved;
	in_hand = &t->part;
	int rc = oki_submit_some(&w, t, &moved, &err);
	ck_assert_int_ge(rc, 0);
	return rc;
}

static void end(struct oki_transfer *t)
{
	while (t->kept_count)
		oki_runs_fini(&t->kept[--t->kept_count]);
	free(t->kept);
}

/* Events of layers without bytes wait for no copy of the layers around them. */
START_TEST(layers_without_bytes_come_first)
{
	struct oki_transfer t = {0};
	begin(&t, 0);
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, "e2 e4 e6 c3 E1 E3 E5 ");
	end(&t);
}
END_TEST

/* Layers of both groups in one call, in the model's order and each with its group's runs. */
START_TEST(groups_go_together)
{
	struct oki_transfer t = {0};
	begin_groups(&t, 0, 2);
	ck_assert_ptr_ne(t.part.runs[0].runs, t.part.runs[1].runs);
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, "c6 E1 E2 E3 E4 E5 E6 ");
	end(&t);
}
END_TEST

/* A device that takes one layer at a time is asked again; nothing is recorded twice. */
START_TEST(what_was_not_taken_follows)
{
	struct oki_transfer t = {0};
	takes = 1;
	begin(&t, 1);
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, "e1 e3 e5 c1 E2 c1 E4 c1 E6 ");
	end(&t);
}
END_TEST

/* A group that has blocks in a later part has its events there, and nobody hears of it before. */
START_TEST(events_are_of_the_last_part)
{
	struct oki_transfer t = {0};
	begin(&t, 0);
	t.part.done = 0;
	/* The other one, which has none in this part, is nobody's or comes later too. */
	if (_i)
		t.part.asked |= 2;
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, _i ? "c3 " : "e2 e4 e6 c3 ");
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert(recorded[schema.by_order[i]] == (i % 2 && !_i));
	end(&t);
}
END_TEST

static void in_pieces(struct oki_transfer *t)
{
	t->pieces.marks[0] = (struct oki_mark *)&story[0];
	t->pieces.marks[1] = (struct oki_mark *)&story[1];
}

/* Of a large transfer no more than 64 MiB are in one call, and two pieces ahead. */
START_TEST(pieces_end_in_marks)
{
	static const char *const first[] = {"e2 e4 e6 c2 E1 E3 m0 ", "e1 e3 e5 c2 E2 E4 m0 "};
	static const char *const both[] = {"e2 e4 e6 c2 E1 E3 m0 c1 E5 ",
					   "e1 e3 e5 c2 E2 E4 m0 c1 E6 "};
	struct oki_transfer t = {0};
	in_pieces(&t);
	begin(&t, (uint32_t)_i);
	ck_assert_int_eq(some(&t), 0);
	ck_assert_str_eq(story, first[_i]);
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, both[_i]);
	end(&t);
}
END_TEST

/* What the device did not take is not in the piece yet. */
START_TEST(pieces_count_what_was_taken)
{
	struct oki_transfer t = {0};
	in_pieces(&t);
	takes = 1;
	begin(&t, 0);
	ck_assert_int_eq(some(&t), 0);
	ck_assert_str_eq(story, "e2 e4 e6 c1 E1 c1 E3 m0 ");
	end(&t);
}
END_TEST

/* Each layer by its own bytes, and a call has no more than the piece has room for. */
START_TEST(pieces_have_layers_of_any_size)
{
	static const uint32_t mib[LAYERS] = {8, 24, 40, 24, 56, 8};
	struct oki_transfer t = {0};
	in_pieces(&t);
	for (uint32_t i = 0; i < LAYERS; i++)
		schema.layers[schema.by_order[i]].segment_bytes[0] = mib[i] * MIB;
	begin_groups(&t, 0, 2);
	/* 32 MiB, as the next one has no room; then 64 and 64. */
	ck_assert_int_eq(some(&t), 0);
	ck_assert_str_eq(story, "c2 E1 E2 m0 ");
	story[0] = 0;
	ck_assert_int_eq(some(&t), 0);
	ck_assert_str_eq(story, "c2 E3 E4 m0 ");
	story[0] = 0;
	complete = t.pieces.marks[0];
	ck_assert_int_eq(some(&t), 1);
	ck_assert_str_eq(story, "c2 E5 E6 ");
	end(&t);
}
END_TEST

/* So many blocks of one group, one after the other. */
static void begin_blocks(struct oki_transfer *t, uint32_t count)
{
	const uint64_t blocks = 1ull << 40; /* nobody reads them */
	static struct oki_pair pairs[32];
	static uint32_t pages[32];
	struct okv_error err;
	struct oki_part part = {.groups_done = 1, .last = true};
	for (uint32_t i = 0; i < count; i++) {
		const uint64_t at = blocks + i * schema.groups[0].block_bytes;
		pairs[i] = (struct oki_pair){.host = (uint8_t *)(uintptr_t)at, .ordinal = i};
		pages[i] = i;
	}
	part.groups[0].pairs = pairs;
	part.groups[0].count = count;
	t->groups[0] = (struct oki_transfer_group){0, count, pages};
	t->source = &source;
	t->group_count = 1;
	t->events = events;
	t->recorded = recorded;
	ck_assert_int_eq(oki_submit_begin(&w, t, &part, &err), 0);
}

/* Turn after turn, each piece copied as soon as it is asked for. */
static void all_turns(struct oki_transfer *t)
{
	for (int turns = 0; some(t) == 0; turns++) {
		ck_assert_int_lt(turns, 20);
		complete = t->pieces.marks[t->pieces.filling];
	}
}

/* A layer of 320 MiB is no piece: it goes in five, and its event comes behind the last one. */
START_TEST(large_layers_go_in_slices)
{
	static const char layer[][40] = {"m0 c1 m0 c1 m0 c1 m0 c1 e1 ",
					 "m0 c1 m0 c1 m0 c1 m0 c1 e3 ",
					 "m0 c1 m0 c1 m0 c1 m0 c1 e5 "};
	struct oki_transfer t = {0};
	char expected[256];
	in_pieces(&t);
	begin_blocks(&t, 10);
	ck_assert_uint_eq(t.part.slice_rows[0], 2);
	ck_assert_uint_eq(t.part.runs[0].count, 5);
	snprintf(expected, sizeof(expected), "e2 e4 e6 c1 %sm0 c1 %sm0 c1 %s", layer[0], layer[1],
		 layer[2]);
	all_turns(&t);
	ck_assert_str_eq(story, expected);
	end(&t);
}
END_TEST

/* Nothing shares a call with a slice, which has runs of its own. */
START_TEST(slices_go_alone)
{
	struct oki_transfer t = {0};
	in_pieces(&t);
	for (uint32_t i = 2; i < LAYERS; i++)
		schema.layers[schema.by_order[i]].segment_bytes[0] = MIB;
	begin_blocks(&t, 3);
	ck_assert_uint_eq(t.part.slice_rows[0], 2);
	all_turns(&t);
	ck_assert_str_eq(story, "e2 e4 e6 c1 m0 c1 e1 c2 E3 E5 ");
	end(&t);
}
END_TEST

/* A row is never cut: a piece of its own, and the next one is as large as ever. */
START_TEST(rows_above_a_piece)
{
	struct oki_transfer t = {0};
	in_pieces(&t);
	schema.layers[schema.by_order[0]].segment_bytes[0] = 100 * MIB;
	begin_blocks(&t, 2);
	ck_assert_uint_eq(t.part.slice_rows[0], 1);
	all_turns(&t);
	ck_assert_str_eq(story, "e2 e4 e6 c1 m0 c1 e1 m0 c1 E3 m0 c1 E5 ");
	end(&t);
}
END_TEST

/* Every row once, whatever has to be cut: blocks from each other, or pages of one block. */
START_TEST(runs_are_cut_into_rows)
{
	uint8_t *const host = (uint8_t *)(uintptr_t)(1ull << 40);
	for (uint32_t rows = 1; rows < 40; rows++) {
		struct oki_compile_scratch scratch = {0};
		struct oki_runs runs;
		uint32_t at = 0;
		ck_assert(oki_runs_take(&scratch, 3, &runs));
		runs.runs[0] = (struct oki_run){host, 1000, 5, 7, 100, 6, 2, 3};
		runs.runs[1] = (struct oki_run){host + 90000, 0, 1, 0, 900, 1, 0, 0};
		runs.runs[2] = (struct oki_run){host + 95000, 50, 30, 1, 2000, 1, 0, 0};
		runs.count = 3;
		ck_assert(oki_runs_cut(&scratch, &runs, rows));
		for (uint32_t r = 0; r < runs.count; r++) {
			const struct oki_run *run = &runs.runs[r];
			ck_assert_uint_le(run->blocks * run->inner, rows);
			ck_assert(run->blocks > 1 || (!run->host_pitch && !run->page_pitch));
			ck_assert(run->inner > 1 || !run->inner_step);
			for (uint32_t o = 0; o < run->blocks; o++)
				for (uint32_t j = 0; j < run->inner; j++, at++) {
					uint32_t k = at < 30 ? at / 6 : at - 31;
					uint64_t base = at < 30	   ? k * 1000
							: at == 30 ? 90000
								   : 95000 + k * 50;
					uint32_t in_page = at < 30    ? 100 + k * 7 + at % 6 * 3
							   : at == 30 ? 900
								      : 2000 + k;
					ck_assert_ptr_eq(run->host + o * run->host_pitch,
							 host + base);
					ck_assert_uint_eq(run->page + o * run->page_pitch +
								  j * run->inner_step,
							  in_page);
					ck_assert_uint_eq(run->inner_first + j,
							  at < 30 ? 2 + at % 6 : 0);
				}
		}
		ck_assert_uint_eq(at, 61);
		oki_runs_give(&scratch, &runs);
		oki_compile_scratch_fini(&scratch);
	}
}
END_TEST

/* A large transfer lets small ones end, but not those that wait for a stream of the caller's. */
START_TEST(nobody_waits_for_the_fenced)
{
	struct oki_transfer large = {0}, small = {.phase = OKI_PHASE_DRAIN};
	in_pieces(&large);
	begin(&large, 0);
	ck_assert_int_eq(some(&large), 0);
	/* Its second piece was on its way too, and the first one is complete. */
	large.pieces.busy[1] = true;
	large.pieces.filling = 0;
	complete = large.pieces.marks[0];
	idle = _i;
	small.fenced = true;
	memset(recorded, 0, sizeof(recorded));
	begin(&small, 1);
	ck_assert(small.fenced == !_i);
	w.active = &small;
	ck_assert_int_eq(some(&large), !_i);
	end(&small);
	end(&large);
}
END_TEST

static void free_nodes(struct oki_stream_node *node)
{
	while (node) {
		struct oki_stream_node *next = node->next;
		free(node);
		node = next;
	}
}

/* Streams that wait for fences of operations before are left alone, as long as they are few; who
 * gets one all the same is told. */
START_TEST(a_stream_that_waits_says_so)
{
	enum { FEW = 8, MOST = 200 };
	struct oki_stream *taken[MOST], *got;
	uint32_t count = 0;
	int waits = 0;
	pthread_mutex_init(&w.stream_lock, NULL);
	streams_made = 0;
	idle = false;
	for (uint32_t i = 0; i < FEW; i++)
		ck_assert_int_eq(oki_worker_stream_get(&w, &taken[i], NULL), 0);
	for (uint32_t i = 1; i < FEW; i++)
		oki_worker_stream_put(&w, taken[i], false);
	/* One that was drained, and then new ones. */
	oki_worker_stream_put(&w, taken[0], true);
	ck_assert_int_eq(oki_worker_stream_get(&w, &got, NULL), 0);
	ck_assert_ptr_eq(got, taken[0]);
	ck_assert_uint_eq(streams_made, FEW);
	oki_worker_stream_put(&w, got, false);
	for (count = FEW; count < MOST && !waits; count++) {
		waits = oki_worker_stream_get(&w, &taken[count], NULL);
		ck_assert_uint_eq(streams_made, count + !waits);
		if (!waits)
			oki_worker_stream_put(&w, taken[count], false);
	}
	/* Too many: the one that waits longest. */
	ck_assert_int_eq(waits, 1);
	ck_assert_ptr_eq(taken[count - 1], taken[1]);
	idle = true;
	ck_assert_int_eq(oki_worker_stream_get(&w, &got, NULL), 0);
	ck_assert_uint_eq(streams_made, count - 1);
	free_nodes(w.streams);
	free_nodes(w.spare);
	pthread_mutex_destroy(&w.stream_lock);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("submit");
	TCase *tc = tcase_create("submit");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, layers_without_bytes_come_first);
	tcase_add_test(tc, groups_go_together);
	tcase_add_test(tc, what_was_not_taken_follows);
	tcase_add_loop_test(tc, events_are_of_the_last_part, 0, 2);
	tcase_add_loop_test(tc, pieces_end_in_marks, 0, 2);
	tcase_add_test(tc, pieces_count_what_was_taken);
	tcase_add_test(tc, pieces_have_layers_of_any_size);
	tcase_add_test(tc, large_layers_go_in_slices);
	tcase_add_test(tc, slices_go_alone);
	tcase_add_test(tc, rows_above_a_piece);
	tcase_add_test(tc, runs_are_cut_into_rows);
	tcase_add_loop_test(tc, nobody_waits_for_the_fenced, 0, 2);
	tcase_add_test(tc, a_stream_that_waits_says_so);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
