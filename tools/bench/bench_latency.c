/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Small operations, and how soon the first layer may be used. */
#include "bench_rig.h"
#include "bench_busy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_MEMORY (256ull << 20)
#define MAX_RUNS 4000u

struct small {
	struct bench_rig *rig;
	struct bench_hold hold;
	struct bench_rows rows;
	uint32_t content;
	uint32_t count;
	bool poll; /* okv_op_poll() in a loop instead of okv_op_wait() */
	/* Of the first-layer case: */
	struct okv_layer_event *events; /* owned; NULL on the host device */
	uint64_t first_ns[MAX_RUNS];
	uint32_t first_count;
};

static int run_small(void *arg, struct bench_sample *ret_sample, char *text)
{
	struct small *s = arg;
	uint64_t start = tool_now_ns();
	uint64_t drained = 0;
	struct okv_op *op;
	int rc = bench_rig_restore_start(s->rig, BENCH_RESTORE_HALF, &s->hold, NULL, 0, &op, text);

	if (rc != TOOL_OK)
		return rc;
	if (s->poll) {
		while (okv_op_poll(op, NULL) == OKV_E_RUNNING)
			;
		drained = tool_now_ns() - start;
	}
	rc = bench_rig_finish(op, s->rows.bytes, start, ret_sample, text);
	if (s->poll)
		ret_sample->ns[BENCH_TOTAL] = drained;
	return rc;
}

static int time_small(struct small *s, bench_run_fn *run, struct bench_busy *busy,
		      struct bench_set *ret_set, char *text)
{
	const struct bench_config *config = s->rig->config;
	struct bench_plan plan = {.run = run,
				  .arg = s,
				  .warm_up = 100,
				  .max_runs = config->max_runs,
				  .max_ns = config->set_ns,
				  .manager = s->rig->manager.pid,
				  .busy = busy};
	int rc;

	memset(ret_set, 0, sizeof(*ret_set));
	rc = bench_pages_poison(&s->rig->pages, BENCH_RESTORE_HALF, text);
	if (rc == TOOL_OK)
		rc = bench_set_run(&plan, ret_set, text);
	ret_set->bytes = s->rows.bytes;
	if (rc == TOOL_OK)
		rc = bench_pages_check(&s->rig->pages, &s->rows, s->rows.count, s->content, text);
	return rc;
}

static void label_small(const struct small *s, const char *suite, const struct bench_beside *beside,
			struct bench_result *result)
{
	char size[24];

	memset(result, 0, sizeof(*result));
	result->suite = suite;
	bench_label(result, "geometry", "%s", s->rig->shape->model.name);
	bench_label(result, "fragment", "%s", bench_size_text(s->rig->shape->segment_bytes, size));
	bench_label(result, "operation", "%s", bench_size_text(s->rows.bytes, size));
	bench_label(result, "beside", "%s", bench_beside_name(beside));
}

static void report_stages(const struct bench_set *set, struct bench_result *result)
{
	static const char *const stages[] = {"",	  "prepare_us", "queue_us", "claim_us",
					     "submit_us", "copy_us",	"retire_us"};

	for (int i = BENCH_PREPARE; i < BENCH_STAGES; i++)
		bench_figure(result, BENCH_DETAIL, stages[i],
			     bench_set_us(set, (enum bench_stage)i, 500));
	bench_figure(result, BENCH_DETAIL, "runs", set->count);
	bench_figure(result, BENCH_DETAIL, "engine_cpu_us_per_op",
		     (double)set->engine_cpu_ns / 1e3 / set->count);
	bench_figure(result, BENCH_DETAIL, "manager_cpu_us_per_op",
		     (double)set->manager_cpu_ns / 1e3 / set->count);
}

/* wait() and poll() of ours, and the bare copies of the same rows. */
static int measure_latency(struct small *s, struct bench_beside *beside, char *text)
{
	const struct bench_config *config = s->rig->config;
	struct bench_set sets[3];
	struct bench_result result;
	struct bench_busy busy;
	int rc;

	memset(sets, 0, sizeof(sets));
	bench_busy_begin(beside, &busy);
	s->poll = false;
	rc = time_small(s, run_small, &busy, &sets[0], text);
	s->poll = true;
	if (rc == TOOL_OK)
		rc = time_small(s, run_small, &busy, &sets[1], text);
	if (rc == TOOL_OK)
		rc = bench_baseline_run(&s->rig->pages, &s->rows, BENCH_RESTORE, BENCH_LOOP,
					bench_rig_ids(s->rig, s->count), &sets[2], text);
	rc = bench_busy_end(&busy, rc, text);
	if (rc == TOOL_OK) {
		double wait = bench_set_us(&sets[0], BENCH_TOTAL, 500);
		double bare = bench_set_us(&sets[2], BENCH_TOTAL, 500);

		label_small(s, "latency", beside, &result);
		bench_figure(&result, BENCH_COLUMN, "wait_us", wait);
		bench_figure(&result, BENCH_COLUMN, "wait_p99",
			     bench_set_us(&sets[0], BENCH_TOTAL, 990));
		bench_figure(&result, BENCH_COLUMN, "poll_us",
			     bench_set_us(&sets[1], BENCH_TOTAL, 500));
		bench_figure(&result, BENCH_COLUMN, "poll_p99",
			     bench_set_us(&sets[1], BENCH_TOTAL, 990));
		bench_figure(&result, BENCH_COLUMN, "bare_us", bare);
		bench_figure(&result, BENCH_COLUMN, "bare_p99",
			     bench_set_us(&sets[2], BENCH_TOTAL, 990));
		bench_figure(&result, BENCH_COLUMN, "over_us", wait - bare);
		report_stages(&sets[0], &result);
		bench_busy_report(&busy, &result);
		bench_report_add(config->report, &result);
	}
	for (int i = 0; i < 3; i++)
		bench_set_fini(&sets[i]);
	return rc;
}

typedef int small_fn(struct small *s, struct bench_beside *beside, char *text);

static int with_rows(struct small *s, uint32_t count, bool tidy, small_fn *fn, char *text)
{
	const struct bench_config *config = s->rig->config;
	struct bench_beside *beside = NULL;
	int rc;

	s->count = count;
	bench_pages_arrange(&s->rig->pages, tidy, count);
	rc = bench_rig_hold(s->rig, s->content, s->rig->pages.contents[BENCH_RESTORE_HALF], count,
			    &s->hold, text);
	if (rc != TOOL_OK)
		return rc;
	rc = bench_rows_create(&s->rig->pages, BENCH_RESTORE_HALF, count, s->hold.found.groups,
			       &s->rows, text);
	if (rc != TOOL_OK)
		goto undo_hold;
	do {
		rc = fn(s, beside, text);
		beside = bench_beside_next(config, s->rig->shape->model.name, beside);
	} while (rc == TOOL_OK && beside != NULL);
	bench_rows_fini(&s->rows);
undo_hold:
	bench_rig_drop(&s->hold);
	return rc;
}

/* Store `blocks`, then call each() on a rig that holds them. */
static int with_rig(const struct bench_config *config, const struct tool_model *spec,
		    uint32_t blocks, int (*each)(struct small *s, char *text), char *text)
{
	struct tool_shape shape;
	struct bench_hold pin;
	struct small *s;
	char ignored[TOOL_TEXT];
	int rc = tool_shape_create(spec, &shape, text);

	if (rc != TOOL_OK)
		return rc;
	s = calloc(1, sizeof(*s));
	if (s == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		rc = TOOL_FAILED;
		goto undo_shape;
	}
	rc = bench_rig_open(config, &shape, blocks, 2 * blocks * shape.block_bytes + SMALL_MEMORY,
			    &s->rig, text);
	if (rc != TOOL_OK)
		goto undo_small;
	s->count = blocks;
	rc = bench_rig_seed(s->rig, blocks, &s->content, &pin, text);
	if (rc == TOOL_OK) {
		rc = each(s, text);
		bench_rig_drop(&pin);
	}
	bench_rig_close(s->rig, ignored);
undo_small:
	free(s->events);
	free(s);
undo_shape:
	tool_shape_fini(&shape);
	return rc;
}

static int latency_of_rig(struct small *s, char *text)
{
	return with_rows(s, 1, true, measure_latency, text);
}

int bench_case_latency(const struct bench_config *config, char *text)
{
	const struct tool_model *model =
		tool_model_find(config->specs, config->spec_count, "qwen3-8b");
	const struct tool_model specs[] = {
		{"one 4 KiB page", 1, 256, 16, 1, {{OKV_GROUP_FULL, 1, 0}}},
		{"one 32 KiB page", 1, 2048, 16, 1, {{OKV_GROUP_FULL, 1, 0}}},
		{"one 4 MiB page", 1, 262144, 16, 1, {{OKV_GROUP_FULL, 1, 0}}},
		{"36 x 512 KiB", 1, 32768, 16, 1, {{OKV_GROUP_FULL, 36, 0}}},
	};
	struct bench_config local = *config;
	int rc = TOOL_OK;

	local.max_runs = config->quick ? 1000 : MAX_RUNS;
	local.set_ns = config->quick ? 100000000u : 1000000000u;
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]) && rc == TOOL_OK; i++)
		rc = with_rig(&local, &specs[i], 4, latency_of_rig, text);
	if (rc == TOOL_OK && model != NULL)
		rc = with_rig(&local, model, 4, latency_of_rig, text);
	return rc;
}

/* ---- first layer ---- */

static int wait_first(struct small *s, struct okv_op *op)
{
	struct bench_cuda *cuda = s->rig->config->cuda;

	if (s->events == NULL)
		return okv_op_wait_layer(op, 0, BENCH_WAIT_MS);
	if (okv_op_wait_enqueued(op, 0, BENCH_WAIT_MS) != 0)
		return -1;
	return bench_cuda_poll(cuda, cuda->layers[0]);
}

static int run_first(void *arg, struct bench_sample *ret_sample, char *text)
{
	struct small *s = arg;
	uint32_t events = s->events != NULL ? s->rig->shape->layer_count : 0;
	uint64_t start = tool_now_ns();
	struct okv_op *op;
	int rc = bench_rig_restore_start(s->rig, BENCH_RESTORE_HALF, &s->hold, s->events, events,
					 &op, text);
	int waited;

	if (rc != TOOL_OK)
		return rc;
	waited = wait_first(s, op);
	s->first_ns[s->first_count++ % MAX_RUNS] = tool_now_ns() - start;
	rc = bench_rig_finish(op, s->rows.bytes, start, ret_sample, text);
	if (rc == TOOL_OK && waited != 0) {
		snprintf(text, TOOL_TEXT, "waiting for layer 0 says %d", waited);
		rc = TOOL_FAILED;
	}
	return rc;
}

static int measure_first(struct small *s, struct bench_beside *beside, char *text)
{
	const struct bench_config *config = s->rig->config;
	uint32_t layers = s->rig->shape->layer_count;
	bool tidy = s->rig->pages.tidy;
	struct bench_result result;
	struct bench_busy busy;
	struct bench_set set;
	int rc;

	s->first_count = 0;
	bench_busy_begin(beside, &busy);
	rc = time_small(s, run_first, &busy, &set, text);
	rc = bench_busy_end(&busy, rc, text);
	if (rc == TOOL_OK) {
		uint32_t warm = s->first_count - set.count; /* the samples before the set's */
		double all = bench_set_us(&set, BENCH_TOTAL, 500);
		double first = tool_percentile_us(s->first_ns + warm, set.count, 500);

		label_small(s, "first-layer", beside, &result);
		bench_label(&result, "pages", "%s", tidy ? "tidy" : "shuffled");
		bench_figure(&result, BENCH_COLUMN, "layers", layers);
		bench_figure(&result, BENCH_COLUMN, "first_us", first);
		bench_figure(&result, BENCH_COLUMN, "first_p99",
			     tool_percentile_us(s->first_ns + warm, set.count, 990));
		bench_figure(&result, BENCH_COLUMN, "all_us", all);
		bench_figure(&result, BENCH_COLUMN, "all/layers", all / layers);
		bench_figure(&result, BENCH_COLUMN, "over_us", first - all / layers);
		report_stages(&set, &result);
		bench_busy_report(&busy, &result);
		bench_report_add(config->report, &result);
	}
	bench_set_fini(&set);
	return rc;
}

static int name_events(struct small *s, char *text)
{
	struct bench_cuda *cuda = s->rig->config->cuda;
	uint32_t layers = s->rig->shape->layer_count;

	if (cuda == NULL)
		return TOOL_OK;
	s->events = calloc(layers, sizeof(*s->events));
	if (s->events == NULL || bench_cuda_events(cuda, layers) != 0) {
		snprintf(text, TOOL_TEXT, "no memory for %u events", layers);
		return TOOL_FAILED;
	}
	for (uint32_t l = 0; l < layers; l++) {
		s->events[l].layer = l;
		s->events[l].event = cuda->layers[l];
	}
	return TOOL_OK;
}

static int first_of_rig(struct small *s, char *text)
{
	uint32_t most = s->count;
	int rc = name_events(s, text);

	for (uint32_t count = 1; count <= most && rc == TOOL_OK; count *= 8) {
		rc = with_rows(s, count, true, measure_first, text);
		if (rc == TOOL_OK && count > 1)
			rc = with_rows(s, count, false, measure_first, text);
	}
	return rc;
}

/* Those that are among the models. */
const char *bench_part_first_layer(const struct bench_config *config, uint32_t i, char buffer[24])
{
	static const char *const names[] = {"qwen3-8b", "deepseek-v3-mla", "llama-3.1-70b-tp8"};

	(void)buffer;
	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		if (tool_model_find(config->specs, config->spec_count, names[n]) != NULL &&
		    i-- == 0)
			return names[n];
	}
	return NULL;
}

int bench_case_first_layer(const struct bench_config *config, char *text)
{
	const char *name;
	struct bench_config local = *config;
	uint32_t blocks = config->quick && config->cuda == NULL ? 8 : 64;
	int rc = TOOL_OK;

	if (bench_part_first_layer(config, 0, NULL) == NULL)
		bench_report_skip(config->report, "first-layer", "none of its models is there");
	local.spread = true;
	local.max_runs = MAX_RUNS - 200;
	local.set_ns = config->quick ? 30000000u : 500000000u;
	for (uint32_t i = 0; rc == TOOL_OK; i++) {
		name = bench_part_first_layer(config, i, NULL);
		if (name == NULL)
			break;
		if (bench_selected(config, "first-layer", name))
			rc = with_rig(&local,
				      tool_model_find(config->specs, config->spec_count, name),
				      blocks, first_of_rig, text);
	}
	return rc;
}
