/* SPDX-License-Identifier: Apache-2.0 */
/* [B] From a checked part to device copies, layer by layer in consumption order. */
#include "exec/exec_private.h"

#include <stdlib.h>

#include "base/error.h"
#include "device/rect.h"

/* event_recorded: the device recorded the layer's event with its copy. */
static int record_layer(struct oki_worker *w, struct oki_transfer *t, uint32_t layer,
			bool event_recorded, struct okv_error *err)
{
	if (t->recorded[layer])
		return 0;
	int rc;
	if (t->events && t->events[layer] && !event_recorded) {
		rc = w->ops->record_event(t->stream, t->events[layer], err);
		if (rc)
			return rc;
	}
	if (t->marks && t->marks[layer]) {
		rc = w->ops->record(t->stream, t->marks[layer], err);
		if (rc)
			return rc;
	}
	/* G8: report last. An event that was never recorded reads as complete. */
	t->recorded[layer] = true;
	t->source->layer_enqueued(t->arg, layer);
	return 0;
}

static uint64_t block_bytes(const struct oki_schema_layer *layer)
{
	uint64_t bytes = 0;
	for (uint32_t s = 0; s < layer->segment_count; s++)
		bytes += layer->segment_bytes[s];
	return bytes;
}

/* Rows of a slice: equal slices of the group's largest layer, none above a piece; 0: no layer is
 * larger than a piece. */
static uint64_t slice_rows(const struct oki_worker *w, uint32_t group, uint32_t blocks)
{
	const struct oki_schema *schema = w->config.schema;
	const struct oki_schema_group *g = &schema->groups[group];
	uint64_t largest = 0, pages = w->config.geometry->pages_per_block[group];
	for (uint32_t i = 0; i < g->layer_count; i++) {
		uint64_t bytes = block_bytes(&schema->layers[g->first_layer + i]);
		largest = bytes > largest ? bytes : largest;
	}
	if (largest * blocks <= OKI_PIECE_BYTES)
		return 0;
	uint64_t rows = pages * blocks, most = OKI_PIECE_BYTES / (largest / pages);
	if (most <= 1)
		return 1;
	uint64_t slices = (rows + most - 1) / most;
	return (rows + slices - 1) / slices;
}

/* Keep the runs until the transfer ends: the device reads them while it copies. */
static int compile_group(struct oki_worker *w, struct oki_transfer *t, uint32_t g,
			 struct oki_part_group *pg, uint64_t rows, struct oki_runs *ret_runs,
			 struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	const struct oki_geometry *geometry = w->config.geometry;
	uint32_t sg = t->groups[g].group;
	uint64_t stride = 0;
	for (uint32_t i = 0; i < schema->groups[sg].layer_count; i++) {
		uint64_t s = geometry->maps[schema->groups[sg].first_layer + i].page_stride;
		stride = s > stride ? s : stride;
	}
	struct oki_runs *kept = realloc(t->kept, (t->kept_count + 1) * sizeof(*kept));
	if (!kept)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_SUBMIT, "no memory for a plan");
	t->kept = kept;
	struct oki_runs runs = {0};
	int rc = oki_compile(&w->scratch, pg->pairs, pg->count, t->groups[g].pages,
			     geometry->pages_per_block[sg], schema->groups[sg].block_bytes, stride,
			     w->ops->max_pitch, &runs, err);
	if (rc)
		return rc;
	if (rows && !oki_runs_cut(&w->scratch, &runs, rows)) {
		oki_runs_give(&w->scratch, &runs);
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_SUBMIT, "no memory for a plan");
	}
	t->kept[t->kept_count++] = runs;
	*ret_runs = runs;
	return 0;
}

int oki_submit_begin(struct oki_worker *w, struct oki_transfer *t, struct oki_part *part,
		     struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	struct oki_submission next = {.in_hand = true, .last = part->last};
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < t->group_count; g++) {
		uint32_t sg = t->groups[g].group;
		if (t->groups[g].count)
			next.asked |= 1u << sg;
		if (part->groups_done & 1u << g)
			next.done |= 1u << sg;
		next.blocks[sg] = part->groups[g].count;
		if (!part->groups[g].count)
			continue;
		if (t->pieces.marks[0])
			next.slice_rows[sg] = slice_rows(w, sg, part->groups[g].count);
		int rc = compile_group(w, t, g, &part->groups[g], next.slice_rows[sg],
				       &next.runs[sg], err);
		if (rc)
			return rc;
		bytes += part->groups[g].count * schema->groups[sg].payload_bytes;
	}
	/* Before the first copy is queued: does a caller's stream still delay it? */
	if (t->fenced && !t->bytes)
		t->fenced = !w->ops->is_idle(t->stream);
	t->bytes += bytes;
	t->part = next;
	return 0;
}

static uint64_t layer_bytes(const struct oki_worker *w, const struct oki_submission *part,
			    uint32_t layer)
{
	const struct oki_schema_layer *l = &w->config.schema->layers[layer];
	return block_bytes(l) * part->blocks[l->group];
}

/* Do later parts have no blocks of this layer? */
static bool is_done(const struct oki_worker *w, const struct oki_submission *part, uint32_t layer)
{
	uint32_t bit = 1u << w->config.schema->layers[layer].group;
	return part->done & bit || !(part->asked & bit);
}

/* Layers for one copy call, from part->place on. Layers without blocks in between are passed
 * over. */
struct layer_batch {
	uint32_t count;
	uint32_t places[OKI_JOIN_MAX + 1]; /* of each layer, then of the next batch */
	uint32_t at_run;		   /* first run of the next batch: not 0 after a slice */
	uint64_t bytes[OKI_JOIN_MAX];
	struct oki_layer_copy layers[OKI_JOIN_MAX];
};

/* The rest of a layer, or its next slice; all layers of a group have the same slices. */
static uint64_t next_slice(const struct oki_worker *w, const struct oki_submission *part,
			   uint32_t layer, uint32_t at_run, uint32_t *ret_run_count)
{
	uint32_t group = w->config.schema->layers[layer].group;
	const struct oki_runs *runs = &part->runs[group];
	uint64_t bytes = layer_bytes(w, part, layer), rows = 0;
	uint32_t end = at_run;
	*ret_run_count = runs->count - at_run;
	if (!part->slice_rows[group] || bytes <= OKI_PIECE_BYTES)
		return bytes;
	while (end < runs->count &&
	       (end == at_run || rows + oki_run_rows(&runs->runs[end]) <= part->slice_rows[group]))
		rows += oki_run_rows(&runs->runs[end++]);
	*ret_run_count = end - at_run;
	uint64_t pages = w->config.geometry->pages_per_block[group];
	return rows * (bytes / (pages * part->blocks[group]));
}

/* The device records the events of whole layers with their copies. Slices may end out of order, so
 * the event of a sliced layer is recorded behind all copies. */
static struct CUevent_st *event_of(const struct oki_worker *w, const struct oki_transfer *t,
				   uint32_t layer, uint32_t run_count)
{
	bool whole = run_count == t->part.runs[w->config.schema->layers[layer].group].count;
	return t->events && whole && is_done(w, &t->part, layer) ? t->events[layer] : NULL;
}

/* As many layers as fit in the piece, or one if it is empty. A slice is a batch of its own, so that
 * there are no more kinds of runs than groups, and no layer waits for the event of a sliced one. */
static void next_layer_batch(const struct oki_worker *w, const struct oki_transfer *t,
			     struct layer_batch *ret_batch)
{
	const struct oki_schema *schema = w->config.schema;
	const struct oki_submission *part = &t->part;
	const uint64_t taken = t->pieces.bytes;
	uint64_t left = taken < OKI_PIECE_BYTES ? OKI_PIECE_BYTES - taken : 0;
	if (!t->pieces.marks[0])
		left = UINT64_MAX;
	struct layer_batch *st = ret_batch;
	uint32_t end = part->place, at_run = part->at_run;
	st->count = 0;
	bool sliced = false;
	while (end < schema->layer_count && !sliced) {
		uint32_t layer = schema->by_order[end], i = st->count, run_count;
		const struct oki_runs *runs = &part->runs[schema->layers[layer].group];
		if (!runs->count) {
			end++;
			continue;
		}
		uint64_t bytes = next_slice(w, part, layer, at_run, &run_count);
		sliced = run_count < runs->count;
		if (i == OKI_JOIN_MAX || (i > 0 && sliced) || (bytes > left && (taken || i > 0)))
			break;
		left -= bytes < left ? bytes : left;
		st->places[i] = end;
		st->bytes[i] = bytes;
		st->layers[i] = (struct oki_layer_copy){
			.map = &w->config.geometry->maps[layer],
			.runs = runs->runs + at_run,
			.run_count = run_count,
			.event = event_of(w, t, layer, run_count),
		};
		st->count++;
		at_run += run_count;
		if (at_run == runs->count) {
			at_run = 0;
			end++;
		}
	}
	st->places[st->count] = end;
	st->at_run = at_run;
}

/* Layers without bytes need no copy: record their events before all copies of the part. */
static int record_empty_layers(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	for (uint32_t at = 0; at < schema->layer_count; at++) {
		uint32_t layer = schema->by_order[at];
		if (t->part.runs[schema->layers[layer].group].count || !is_done(w, &t->part, layer))
			continue;
		int rc = record_layer(w, t, layer, false, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* Copy the next layers, as many as the device takes at once. 0: none fits in the piece. */
static int copy_some(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	struct oki_submission *part = &t->part;
	struct layer_batch st;
	if (part->place == 0 && part->at_run == 0) {
		int rc = record_empty_layers(w, t, err);
		if (rc)
			return rc;
	}
	next_layer_batch(w, t, &st);
	int taken = 0;
	if (!st.count && st.places[0] < schema->layer_count)
		return 0;
	if (st.count)
		taken = w->ops->copy(t->stream, t->direction, st.layers, st.count, err);
	if (taken < 0)
		return taken;
	for (int i = 0; i < taken; i++)
		t->pieces.bytes += st.bytes[i];
	bool sliced = part->at_run > 0;
	part->at_run = st.at_run;
	for (uint32_t end = st.places[taken]; part->place < end; part->place++, sliced = false) {
		uint32_t layer = schema->by_order[part->place];
		if (!is_done(w, part, layer))
			continue;
		int rc = record_layer(w, t, layer, !sliced, err);
		if (rc)
			return rc;
	}
	return 1;
}

/* Is a transfer without pieces still being copied? One that waited for a caller's stream when it
 * was queued does not count: it may take long. */
static bool small_in_flight(const struct oki_worker *w, uint64_t up_to)
{
	for (const struct oki_transfer *t = w->active; t; t = t->next)
		if (!t->pieces.marks[0] && t->phase == OKI_PHASE_DRAIN && !t->fenced &&
		    t->sequence <= up_to)
			return true;
	return false;
}

/* 0: both pieces are queued and the older one is still copied, or smaller transfers go first. */
static int may_submit(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	struct oki_pieces *p = &t->pieces;
	if (p->busy[p->filling]) {
		int rc = w->ops->query(p->marks[p->filling], err);
		if (rc != 1)
			return rc;
		p->busy[p->filling] = false;
		p->deferred = true;
		p->defer_sequence = w->arrived;
	}
	if (p->deferred && small_in_flight(w, p->defer_sequence))
		return 0;
	p->deferred = false;
	return 1;
}

static int end_piece(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	struct oki_pieces *p = &t->pieces;
	int rc = w->ops->record(t->stream, p->marks[p->filling], err);
	if (rc)
		return rc;
	p->busy[p->filling] = true;
	p->filling ^= 1;
	p->bytes = 0;
	return 0;
}

int oki_submit_some(struct oki_worker *w, struct oki_transfer *t, bool *ret_moved,
		    struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	struct oki_submission *part = &t->part;
	*ret_moved = false;
	int rc = may_submit(w, t, err);
	if (rc <= 0)
		return rc;
	while (part->place < schema->layer_count) {
		rc = copy_some(w, t, err);
		if (rc < 0)
			return rc;
		*ret_moved = true;
		if (rc == 0)
			return end_piece(w, t, err);
	}
	part->in_hand = false;
	return 1;
}

int oki_submit_end(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	for (uint32_t i = 0; i < schema->layer_count; i++) {
		int rc = record_layer(w, t, schema->by_order[i], false, err);
		if (rc)
			return rc;
	}
	if (t->final_event) {
		int rc = w->ops->record_event(t->stream, t->final_event, err);
		if (rc)
			return rc;
	}
	return w->ops->record(t->stream, t->final_mark, err);
}

bool oki_layers_report(struct oki_worker *w, struct oki_transfer *t, bool all)
{
	const struct oki_schema *schema = w->config.schema;
	bool reported = false;
	while (t->next_done < schema->layer_count) {
		uint32_t layer = schema->by_order[t->next_done];
		if (!t->recorded[layer])
			break;
		if (!all && (!t->marks || w->ops->query(t->marks[layer], NULL) != 1))
			break;
		t->source->layer_done(t->arg, layer);
		t->next_done++;
		reported = true;
	}
	return reported;
}
