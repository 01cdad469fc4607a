/* [B] From a checked part to device copies, layer by layer in consumption order. */
#include "exec/exec_private.h"

#include <stdlib.h>

#include "base/error.h"

static int record_layer(struct oki_worker *w, struct oki_transfer *t, uint32_t layer,
			struct okv_error *err)
{
	if (t->recorded[layer])
		return 0;
	int rc;
	if (t->events && t->events[layer]) {
		rc = w->ops->record_event(t->stream, t->events[layer], err);
		if (rc)
			return rc;
	}
	if (t->marks && t->marks[layer]) {
		rc = w->ops->record(t->stream, t->marks[layer], err);
		if (rc)
			return rc;
	}
	t->recorded[layer] = true;
	t->source->layer_enqueued(t->arg, layer);
	return 0;
}

/* Runs stay until the transfer ends: the device reads them while it copies. */
static int compile_group(struct oki_worker *w, struct oki_transfer *t, uint32_t g,
			 struct oki_part_group *pg, struct oki_runs *ret_runs,
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
	int rc =
		oki_compile(pg->pairs, pg->count, t->groups[g].pages, geometry->pages_per_block[sg],
			    schema->groups[sg].block_bytes, stride, w->ops->max_pitch, &runs, err);
	if (rc)
		return rc;
	t->kept[t->kept_count++] = runs;
	*ret_runs = runs;
	return 0;
}

int oki_submit_part(struct oki_worker *w, struct oki_transfer *t, struct oki_part *part,
		    struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	struct oki_runs by_group[OKV_MAX_GROUPS] = {{0}}; /* by schema group */
	uint32_t done = 0; /* schema groups complete with this part */
	uint32_t asked = 0;
	for (uint32_t g = 0; g < t->group_count; g++) {
		uint32_t sg = t->groups[g].group;
		asked |= 1u << sg;
		if (part->groups_done & 1u << g)
			done |= 1u << sg;
		if (!part->groups[g].count)
			continue;
		int rc = compile_group(w, t, g, &part->groups[g], &by_group[sg], err);
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < schema->layer_count; i++) {
		uint32_t layer = schema->by_order[i];
		uint32_t sg = schema->layers[layer].group;
		if (by_group[sg].count) {
			int rc = w->ops->copy(t->stream, t->direction,
					      &w->config.geometry->maps[layer], by_group[sg].runs,
					      by_group[sg].count, err);
			if (rc)
				return rc;
		}
		if (done & 1u << sg || !(asked & 1u << sg)) {
			int rc = record_layer(w, t, layer, err);
			if (rc)
				return rc;
		}
	}
	for (uint32_t g = 0; g < t->group_count; g++)
		t->bytes +=
			part->groups[g].count * schema->groups[t->groups[g].group].payload_bytes;
	return 0;
}

int oki_submit_end(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err)
{
	const struct oki_schema *schema = w->config.schema;
	for (uint32_t i = 0; i < schema->layer_count; i++) {
		int rc = record_layer(w, t, schema->by_order[i], err);
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
	bool told = false;
	while (t->next_done < schema->layer_count) {
		uint32_t layer = schema->by_order[t->next_done];
		if (!t->recorded[layer])
			break;
		if (!all && (!t->marks || w->ops->query(t->marks[layer], NULL) != 1))
			break;
		t->source->layer_done(t->arg, layer);
		t->next_done++;
		told = true;
	}
	return told;
}
