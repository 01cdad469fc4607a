/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Restores and publishes of whole operations, beside the alternatives. */
#include "bench_rig.h"
#include "bench_busy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIZES 8
#define FRAGMENT_MIN_POWER 9u  /* 512 B */
#define FRAGMENT_MAX_POWER 20u /* 1 MiB */
#define PER_GIB_BYTES (16ull << 20)
#define MEMORY_SLACK (32ull << 20)
#define MANAGER_PARTS 6ull /* the Manager's memory per byte of the largest operation */
#define MEMORY_PARTS 10	   /* all host memory likewise: our pages and staging, two halves each */

static const char *const directions[] = {"restore", "publish", "both"};

/* What to run on one geometry. */
struct work {
	const char *suite;
	uint64_t sizes[MAX_SIZES]; /* bytes, ascending; 0: one block */
	uint32_t size_count;
	unsigned directions; /* 1 << enum bench_direction, … */
	bool tidy;
	bool shuffled;
};

/* One direction of one size in one placement. */
struct transfer {
	struct bench_rig *rig;
	struct bench_hold hold;
	struct bench_rows in;  /* of the restore */
	struct bench_rows out; /* of the publish */
	uint32_t count;	       /* blocks */
	uint32_t restored;     /* first content id of the blocks that the lease holds */
	uint32_t published;    /* first content id of the publish half's pages */
	uint32_t last_key;     /* of the latest publish */
	enum bench_direction direction;
};

static uint64_t bytes_of(const struct transfer *t)
{
	switch (t->direction) {
	case BENCH_RESTORE: return t->in.bytes;
	case BENCH_PUBLISH: return t->out.bytes;
	default: return t->in.bytes + t->out.bytes;
	}
}

static int run_once(void *arg, struct bench_sample *ret_sample, char *text)
{
	struct transfer *t = arg;
	struct bench_sample other;
	struct okv_op *publish = NULL;
	struct okv_op *restore = NULL;
	uint64_t start;
	int rc = TOOL_OK;
	int rc_publish = TOOL_OK;

	if (t->direction != BENCH_RESTORE) {
		t->last_key = bench_rig_ids(t->rig, t->count);
		bench_rig_keys(t->rig, t->last_key, NULL, t->count);
	}
	start = tool_now_ns();
	if (t->direction != BENCH_RESTORE)
		rc = bench_rig_publish_start(t->rig, BENCH_PUBLISH_HALF, t->count, &publish, text);
	if (rc == TOOL_OK && t->direction != BENCH_PUBLISH)
		rc = bench_rig_restore_start(t->rig, BENCH_RESTORE_HALF, &t->hold, NULL, 0,
					     &restore, text);
	if (restore != NULL)
		rc = bench_rig_finish(restore, t->in.bytes, start, ret_sample, text);
	if (publish != NULL)
		rc_publish = bench_rig_finish(publish, t->out.bytes, start,
					      restore != NULL ? &other : ret_sample, text);
	if (restore != NULL && publish != NULL) {
		/* The stages of two operations do not add up. */
		memset(ret_sample, 0, sizeof(*ret_sample));
		ret_sample->ns[BENCH_TOTAL] = tool_now_ns() - start;
	}
	return rc != TOOL_OK ? rc : rc_publish;
}

/* What the latest publish stored, back into its own pages. */
static int check_published(struct transfer *t, char *text)
{
	struct bench_sample sample;
	struct bench_hold hold;
	struct bench_rows rows;
	struct okv_op *op;
	int rc = bench_rig_hold(t->rig, t->last_key, NULL, t->count, &hold, text);

	if (rc != TOOL_OK)
		return rc;
	rc = bench_rows_create(&t->rig->pages, BENCH_PUBLISH_HALF, t->count, hold.found.groups,
			       &rows, text);
	if (rc != TOOL_OK)
		goto undo_hold;
	rc = bench_pages_poison(&t->rig->pages, BENCH_PUBLISH_HALF, text);
	if (rc == TOOL_OK)
		rc = bench_rig_restore_start(t->rig, BENCH_PUBLISH_HALF, &hold, NULL, 0, &op, text);
	if (rc == TOOL_OK)
		rc = bench_rig_finish(op, rows.bytes, tool_now_ns(), &sample, text);
	if (rc == TOOL_OK)
		rc = bench_pages_check(&t->rig->pages, &rows, rows.count, t->published, text);
	bench_rows_fini(&rows);
undo_hold:
	bench_rig_drop(&hold);
	return rc;
}

static int time_ours(struct transfer *t, struct bench_busy *busy, struct bench_set *ret_set,
		     char *text)
{
	const struct bench_config *config = t->rig->config;
	struct bench_pages *pages = &t->rig->pages;
	struct bench_plan plan = {.run = run_once,
				  .arg = t,
				  .warm_up = 2,
				  .max_runs = config->max_runs,
				  .max_ns = config->set_ns,
				  .manager = t->rig->manager.pid,
				  .busy = busy};
	int rc = TOOL_OK;

	memset(ret_set, 0, sizeof(*ret_set));
	if (t->direction != BENCH_PUBLISH)
		rc = bench_pages_poison(pages, BENCH_RESTORE_HALF, text);
	if (rc == TOOL_OK && t->direction != BENCH_RESTORE) {
		t->published = bench_rig_ids(t->rig, t->count);
		rc = bench_pages_fill(pages, &t->out, t->published, text);
	}
	if (rc == TOOL_OK)
		rc = bench_set_run(&plan, ret_set, text);
	ret_set->bytes = bytes_of(t);
	if (rc == TOOL_OK && t->direction != BENCH_PUBLISH)
		rc = bench_pages_check(pages, &t->in, t->in.count, t->restored, text);
	if (rc == TOOL_OK && t->direction != BENCH_RESTORE)
		rc = check_published(t, text);
	return rc;
}

static void report_ours(const struct bench_set *set, bool stages_too, struct bench_result *result)
{
	static const char *const stages[] = {"us",	  "prepare_us", "queue_us", "claim_us",
					     "submit_us", "copy_us",	"retire_us"};
	double gib = (double)set->bytes / (1ull << 30);
	double engine = (double)set->engine_cpu_ns / 1e3 / set->count;
	double manager = (double)set->manager_cpu_ns / 1e3 / set->count;
	/* Of a small operation the figure per operation says it all. */
	enum bench_weight weight = set->bytes >= PER_GIB_BYTES ? BENCH_DETAIL : BENCH_HIDDEN;

	for (int s = BENCH_TOTAL; s < (stages_too ? BENCH_STAGES : BENCH_PREPARE); s++)
		bench_figure(result, BENCH_DETAIL, stages[s],
			     bench_set_us(set, (enum bench_stage)s, 500));
	bench_figure(result, BENCH_DETAIL, "p99_us", bench_set_us(set, BENCH_TOTAL, 990));
	bench_figure(result, BENCH_DETAIL, "runs", set->count);
	bench_figure(result, BENCH_DETAIL, "engine_cpu_us_per_op", engine);
	bench_figure(result, BENCH_DETAIL, "manager_cpu_us_per_op", manager);
	bench_figure(result, weight, "engine_cpu_us_per_gib", engine / gib);
	bench_figure(result, weight, "manager_cpu_us_per_gib", manager / gib);
}

static int report_baselines(struct transfer *t, double ours, struct bench_result *result,
			    char *text)
{
	const struct bench_config *config = t->rig->config;
	const struct bench_rows *rows = t->direction == BENCH_PUBLISH ? &t->out : &t->in;
	int last = t->direction == BENCH_BOTH ? BENCH_CONTIGUOUS : BENCH_BATCH_LAYER;
	double contiguous = 0;
	int rc = TOOL_OK;

	for (int kind = BENCH_CONTIGUOUS; kind <= last && rc == TOOL_OK; kind++) {
		const char *name = bench_baseline_name(config, (enum bench_baseline_kind)kind);
		struct bench_set set;
		char key[32];
		double gbps;

		rc = bench_baseline_run(&t->rig->pages, rows, t->direction,
					(enum bench_baseline_kind)kind,
					bench_rig_ids(t->rig, rows->blocks), &set, text);
		gbps = rc == TOOL_OK ? bench_set_gbps(&set) : 0;
		bench_set_fini(&set);
		if (rc == TOOL_SKIPPED) {
			rc = TOOL_OK;
			continue;
		}
		if (kind == BENCH_CONTIGUOUS)
			contiguous = gbps;
		bench_figure(result, BENCH_COLUMN, name, gbps);
		snprintf(key, sizeof(key), kind == BENCH_CONTIGUOUS ? "ratio" : "x_%s", name);
		bench_figure(result, BENCH_COLUMN, key, gbps > 0 ? ours / gbps : 0);
		if (kind == BENCH_CONTIGUOUS)
			continue;
		snprintf(key, sizeof(key), "%s_ratio", name);
		bench_figure(result, BENCH_HIDDEN, key, contiguous > 0 ? gbps / contiguous : 0);
	}
	return rc;
}

/* One row of the report; beside NULL: on an idle GPU. */
static int measure(struct transfer *t, const char *suite, struct bench_beside *beside, char *text)
{
	const struct bench_config *config = t->rig->config;
	const struct tool_shape *shape = t->rig->shape;
	struct bench_result result = {.suite = suite};
	struct bench_busy busy;
	struct bench_set set;
	char size[24];
	double ours;
	int rc;

	bench_label(&result, "geometry", "%s", shape->model.name);
	bench_label(&result, "fragment", "%s", bench_size_text(shape->segment_bytes, size));
	bench_label(&result, "operation", "%s", bench_size_text(bytes_of(t), size));
	bench_label(&result, "pages", "%s", t->rig->pages.tidy ? "tidy" : "shuffled");
	bench_label(&result, "direction", "%s", directions[t->direction]);
	bench_label(&result, "beside", "%s", bench_beside_name(beside));
	bench_busy_begin(beside, &busy);
	rc = time_ours(t, &busy, &set, text);
	ours = bench_set_gbps(&set);
	bench_figure(&result, BENCH_COLUMN, "GB/s", ours);
	if (rc == TOOL_OK)
		rc = report_baselines(t, ours, &result, text);
	rc = bench_busy_end(&busy, rc, text);
	if (rc == TOOL_OK) {
		bench_figure(&result, BENCH_HIDDEN, "fragment_bytes", (double)shape->segment_bytes);
		bench_figure(&result, BENCH_HIDDEN, "blocks", t->count);
		bench_figure(&result, BENCH_HIDDEN, "bytes", (double)bytes_of(t));
		report_ours(&set, t->direction != BENCH_BOTH, &result);
		bench_busy_report(&busy, &result);
		bench_report_add(config->report, &result);
	}
	bench_set_fini(&set);
	return rc;
}

/* On an idle GPU, then beside each kind of work. */
static int measure_each(struct transfer *t, const char *suite, char *text)
{
	const struct bench_config *config = t->rig->config;
	struct bench_beside *beside = NULL;
	int rc;

	do {
		rc = measure(t, suite, beside, text);
		beside = bench_beside_next(config, t->rig->shape->model.name, beside);
	} while (rc == TOOL_OK && beside != NULL);
	return rc;
}

/* Blocks that hold has leased, with contents first_content, …, into the pages as they are arranged.
 */
static int transfer(struct bench_rig *rig, const struct bench_hold *hold, uint32_t first_content,
		    const struct work *work, uint32_t count, char *text)
{
	struct transfer t = {.rig = rig, .hold = *hold, .count = count, .restored = first_content};
	int rc;

	rc = bench_rows_create(&rig->pages, BENCH_RESTORE_HALF, count, t.hold.found.groups, &t.in,
			       text);
	if (rc == TOOL_OK)
		rc = bench_rows_create(&rig->pages, BENCH_PUBLISH_HALF, count, NULL, &t.out, text);
	for (int d = BENCH_RESTORE; d <= BENCH_BOTH && rc == TOOL_OK; d++) {
		if ((work->directions & 1u << d) == 0)
			continue;
		t.direction = (enum bench_direction)d;
		rc = measure_each(&t, work->suite, text);
	}
	bench_rows_fini(&t.in);
	bench_rows_fini(&t.out);
	return rc;
}

static uint64_t largest(const struct bench_config *config)
{
	uint64_t most = config->max_memory / MEMORY_PARTS;

	return config->max_bytes < most ? config->max_bytes : most;
}

static uint32_t blocks_for(const struct bench_config *config, const struct tool_shape *shape,
			   uint64_t bytes)
{
	uint64_t limit = largest(config);
	uint64_t blocks = (bytes < limit ? bytes : limit) / shape->block_bytes;

	if (blocks > OKV_MAX_BLOCKS)
		return OKV_MAX_BLOCKS;
	return blocks > 0 ? (uint32_t)blocks : 1;
}

/* Publish until all the Manager's memory was written once: the first touch by a process costs. */
static int warm_arenas(struct bench_rig *rig, uint32_t blocks, char *text)
{
	int rc = TOOL_OK;

	for (uint64_t i = 0; i < MANAGER_PARTS && rc == TOOL_OK; i++)
		rc = bench_rig_store(rig, BENCH_PUBLISH_HALF, bench_rig_ids(rig, blocks), blocks,
				     text);
	return rc;
}

/* What it restores is stored side by side, and leased before the first publish of new blocks may
 * evict some of it. */
static int seeded_transfer(struct bench_rig *rig, const struct work *work, uint32_t count,
			   bool tidy, char *text)
{
	struct bench_hold all, hold;
	uint32_t first;
	int rc;

	bench_pages_arrange(&rig->pages, tidy, count);
	rc = bench_rig_seed(rig, rig->pages.block_span, &first, &all, text);
	if (rc != TOOL_OK)
		return rc;
	bench_pages_arrange(&rig->pages, tidy, count);
	rc = bench_rig_hold(rig, first, rig->pages.contents[BENCH_RESTORE_HALF], count, &hold,
			    text);
	if (rc == TOOL_OK) {
		rc = transfer(rig, &hold, first, work, count, text);
		bench_rig_drop(&hold);
	}
	bench_rig_drop(&all);
	return rc;
}

static int transfers(struct bench_rig *rig, const struct work *work, uint32_t blocks, char *text)
{
	uint32_t before = 0;
	int rc = warm_arenas(rig, blocks, text);

	for (uint32_t i = 0; i < work->size_count && rc == TOOL_OK; i++) {
		uint32_t count = blocks_for(rig->config, rig->shape, work->sizes[i]);

		if (count == before)
			continue;
		before = count;
		if (work->tidy)
			rc = seeded_transfer(rig, work, count, true, text);
		if (work->shuffled && rc == TOOL_OK)
			rc = seeded_transfer(rig, work, count, false, text);
	}
	return rc;
}

static int run_work(const struct bench_config *config, const struct tool_model *spec,
		    const struct work *work, char *text)
{
	struct bench_config local = *config;
	struct tool_shape shape;
	struct bench_rig *rig;
	uint32_t blocks;
	uint64_t memory;
	char why[TOOL_TEXT];
	int rc = tool_shape_create(spec, &shape, text);
	int rc_close;

	if (rc != TOOL_OK)
		return rc;
	local.spread = work->shuffled;
	blocks = blocks_for(config, &shape, work->sizes[work->size_count - 1]);
	memory = MANAGER_PARTS * blocks * shape.block_bytes + MEMORY_SLACK;
	rc = bench_rig_open(&local, &shape, blocks, memory, &rig, text);
	if (rc == TOOL_OK) {
		rc = transfers(rig, work, blocks, text);
		rc_close = bench_rig_close(rig, why);
		if (rc == TOOL_OK && rc_close != TOOL_OK) {
			memcpy(text, why, TOOL_TEXT);
			rc = rc_close;
		}
	}
	tool_shape_fini(&shape);
	return rc;
}

static uint64_t quick_bytes(const struct bench_config *config)
{
	return config->cuda != NULL ? 64ull << 20 : 16ull << 20;
}

const char *bench_part_geometry(const struct bench_config *config, uint32_t i, char buffer[24])
{
	(void)buffer;
	return i < config->spec_count ? config->specs[i].name : NULL;
}

int bench_case_geometry(const struct bench_config *config, char *text)
{
	struct work work = {.suite = "geometry",
			    .sizes = {0, 4ull << 20, 16ull << 20, 64ull << 20, 256ull << 20,
				      1ull << 30, 4ull << 30},
			    .size_count = 7,
			    .directions = 7,
			    .tidy = true,
			    .shuffled = true};

	if (config->quick) {
		work.sizes[1] = quick_bytes(config);
		work.size_count = 2;
	}
	for (uint32_t i = 0; i < config->spec_count; i++) {
		int rc;

		if (!bench_selected(config, "geometry", config->specs[i].name))
			continue;
		rc = run_work(config, &config->specs[i], &work, text);
		if (rc != TOOL_OK)
			return rc;
	}
	return TOOL_OK;
}

const char *bench_part_fragments(const struct bench_config *config, uint32_t i, char buffer[24])
{
	(void)config;
	if (i > FRAGMENT_MAX_POWER - FRAGMENT_MIN_POWER)
		return NULL;
	snprintf(buffer, 24, "%u", 1u << (FRAGMENT_MIN_POWER + i));
	return buffer;
}

int bench_case_fragments(const struct bench_config *config, char *text)
{
	uint64_t bytes = config->quick ? quick_bytes(config) : 256ull << 20;
	struct work work = {.suite = "fragments",
			    .sizes = {bytes},
			    .size_count = 1,
			    .directions = 1u << BENCH_RESTORE | 1u << BENCH_PUBLISH,
			    .shuffled = true};

	char part[24];

	for (uint32_t i = 0; bench_part_fragments(config, i, part) != NULL; i++) {
		uint32_t fragment = 1u << (FRAGMENT_MIN_POWER + i);
		uint64_t rows = bytes / fragment;
		uint64_t blocks = rows / 8 < 2048 ? rows / 8 : 2048;
		struct tool_model spec = {.segments = 2,
					  .token_bytes = fragment / 16,
					  .block_tokens = 16,
					  .group_count = 1};
		int rc;

		if (blocks == 0)
			break;
		if (!bench_selected(config, "fragments", part))
			continue;
		spec.groups[0].kind = OKV_GROUP_FULL;
		spec.groups[0].layers = (uint32_t)(rows / blocks / 2);
		snprintf(spec.name, sizeof(spec.name), "%u layers", spec.groups[0].layers);
		rc = run_work(config, &spec, &work, text);
		if (rc != TOOL_OK)
			return rc;
	}
	return TOOL_OK;
}

int bench_case_cpu(const struct bench_config *config, char *text)
{
	const struct tool_model *spec = tool_model_usual(config->specs, config->spec_count);
	struct work work = {.suite = "cpu",
			    .sizes = {0, config->quick ? quick_bytes(config) : 1ull << 30},
			    .size_count = 2,
			    .directions = 1u << BENCH_RESTORE,
			    .tidy = true,
			    .shuffled = true};

	return run_work(config, spec, &work, text);
}

int bench_case_model(const struct bench_config *config, char *text)
{
	const struct tool_model *spec = tool_model_usual(config->specs, config->spec_count);
	struct bench_config local = *config;
	struct work work = {.suite = "model",
			    .sizes = {256ull << 20},
			    .size_count = 1,
			    .directions = 7,
			    .tidy = true,
			    .shuffled = true};

	bench_beside_report_missing(config, "model");
	local.busy = true;
	if (bench_beside_next(&local, spec->name, NULL) == NULL)
		return TOOL_OK;
	/* Three kinds of work within what --quick may take. */
	if (config->quick) {
		work.sizes[0] = 128ull << 20;
		work.directions = 1u << BENCH_RESTORE | 1u << BENCH_PUBLISH;
		work.tidy = false;
	}
	local.max_runs = UINT32_MAX;
	local.set_ns = config->quick ? 60000000u : 250000000u;
	return run_work(&local, spec, &work, text);
}
