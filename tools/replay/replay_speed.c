/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Restores on the host device against plain memcpy of the same rows, and lookup latency. */
#include "replay.h"
#include "tool_pool.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPEED_BYTES (256ull << 20)  /* of each restore, rounded up to whole blocks */
#define SPEED_MEMORY (512ull << 20) /* of the Manager: leases may pin three quarters of it */
#define WARM_UP 2u
#define RUNS 11u /* odd: the median is one of them */
#define TAKE_ROWS 16u
#define LOOKUP_WARM_UP 1000u
#define LOOKUPS 20000u

/* The rows of a restore, in a memory file of their own. */
struct plain {
	const struct replay_pages *pages; /* borrowed */
	uint8_t *source;
	uint64_t source_bytes;
	uint32_t blocks;
	uint32_t rows_per_block;
	uint64_t row_bytes;
};

struct speed {
	struct replay_config *config; /* borrowed */
	struct replay_engine *engine;
	struct plain plain;
	struct okv_lease *lease;
	uint32_t blocks;
	uint64_t restore_ns[RUNS];
	uint64_t plain_ns[RUNS];
	uint64_t lookup_ns[LOOKUPS];
	uint64_t mismatched_bytes;
};

static void copy_row(const struct plain *plain, uint32_t row)
{
	uint32_t segments = plain->pages->layers[0].segment_count;
	uint32_t block = row % plain->blocks;
	uint32_t place = row / plain->blocks; /* layer and segment, as in a block */
	uint64_t offset = (uint64_t)block * plain->rows_per_block + place;

	memcpy(replay_pages_row(plain->pages, place / segments, place % segments,
				plain->pages->order[block]),
	       plain->source + offset * plain->row_bytes, plain->row_bytes);
}

static void copy_rows(void *arg, uint64_t first, uint64_t last)
{
	for (uint64_t row = first; row < last; row++)
		copy_row(arg, (uint32_t)row);
}

static uint64_t time_plain(struct plain *plain)
{
	uint64_t rows = (uint64_t)plain->blocks * plain->rows_per_block;
	uint64_t start = tool_now_ns();

	tool_pool_run(copy_rows, plain, rows, TAKE_ROWS);
	return tool_now_ns() - start;
}

static int map_source(struct plain *plain)
{
	int fd = memfd_create("orbitkv-replay", MFD_CLOEXEC);
	void *memory = MAP_FAILED;

	if (fd < 0)
		return -1;
	if (ftruncate(fd, (off_t)plain->source_bytes) == 0)
		memory = mmap(NULL, plain->source_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		return -1;
	memset(memory, 0x5a, plain->source_bytes);
	plain->source = memory;
	return 0;
}

static int plain_start(struct plain *plain, const struct replay_pages *pages, uint32_t blocks)
{
	plain->pages = pages;
	plain->blocks = blocks;
	plain->rows_per_block = pages->model->shape.layer_count * pages->layers[0].segment_count;
	plain->row_bytes = pages->layers[0].segment_bytes[0];
	plain->source_bytes = plain->row_bytes * plain->rows_per_block * blocks;
	return map_source(plain);
}

static void plain_stop(struct plain *plain)
{
	tool_pool_stop();
	munmap(plain->source, plain->source_bytes);
}

static int fail(const char *text)
{
	if (!tool_stopped())
		fprintf(stderr, "orbitkv-replay: %s\n", text);
	return TOOL_FAILED;
}

static int fail_call(const char *what, int status, const struct okv_error *err)
{
	char text[TOOL_TEXT];

	tool_explain(text, what, status, err);
	return fail(text);
}

/* One request that names all blocks: published by its first run, restored by each later one. */
static int run_checked(struct speed *speed, uint32_t expected_hit)
{
	struct replay_outcome outcome;

	replay_engine_run(speed->engine, 0, &outcome);
	speed->mismatched_bytes += outcome.mismatched_bytes;
	if (outcome.status != TOOL_OK || outcome.mismatched_bytes > 0)
		return fail(outcome.text);
	if (outcome.hit_blocks != expected_hit)
		return fail("the blocks just published are not all found");
	return TOOL_OK;
}

static int take_lease(struct speed *speed)
{
	struct okv_keys keys = {
		.count = speed->blocks, .key_bytes = TOOL_KEY_BYTES, .keys = speed->engine->keys};
	struct okv_lookup_options opts;
	struct okv_lookup_result found;
	struct okv_error err = {.text = ""};
	int rc;

	okv_lookup_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &keys;
	rc = okv_lookup(speed->engine->ns, &opts, &found, &speed->lease, &err);
	if (rc != 0)
		return fail_call("okv_lookup", rc, &err);
	if (found.groups[0].count != speed->blocks)
		return fail("the lease holds too few blocks");
	return TOOL_OK;
}

static int time_restore(struct speed *speed, uint64_t *ret_ns)
{
	struct okv_restore_group group = {.count = speed->blocks,
					  .pages = speed->engine->pages.order};
	struct okv_restore_options opts;
	struct okv_error err = {.text = ""};
	struct okv_op *op;
	uint64_t start;
	int rc;

	okv_restore_options_init(&opts);
	opts.flags = OKV_RESTORE_KEEP;
	opts.group_count = 1;
	opts.groups = &group;
	start = tool_now_ns();
	rc = okv_restore_start(speed->engine->binding, speed->lease, &opts, &op, &err);
	if (rc != 0)
		return fail_call("okv_restore_start", rc, &err);
	rc = okv_op_wait(op, REPLAY_WAIT_MS, NULL);
	*ret_ns = tool_now_ns() - start;
	okv_op_release(op);
	if (rc != 0)
		return fail_call("restore", rc, NULL);
	return TOOL_OK;
}

/* Alternating, so that whatever else the machine does strikes both. */
static int time_copies(struct speed *speed)
{
	for (uint32_t i = 0; i < WARM_UP + RUNS; i++) {
		uint64_t restore_ns = 0;
		uint64_t plain_ns;

		if (tool_stopped() != 0)
			return TOOL_FAILED;
		if (time_restore(speed, &restore_ns) != TOOL_OK)
			return TOOL_FAILED;
		plain_ns = time_plain(&speed->plain);
		if (i < WARM_UP)
			continue;
		speed->restore_ns[i - WARM_UP] = restore_ns;
		speed->plain_ns[i - WARM_UP] = plain_ns;
	}
	return TOOL_OK;
}

static int time_lookups(struct speed *speed)
{
	struct okv_keys keys = {
		.count = 1, .key_bytes = TOOL_KEY_BYTES, .keys = speed->engine->keys};
	struct okv_lookup_options opts;
	struct okv_lookup_result found;
	struct okv_error err = {.text = ""};

	okv_lookup_options_init(&opts);
	opts.flags = OKV_LOOKUP_PEEK;
	opts.group_count = 1;
	opts.groups = &keys;
	for (uint32_t i = 0; i < LOOKUP_WARM_UP + LOOKUPS; i++) {
		uint64_t start = tool_now_ns();
		int rc = okv_lookup(speed->engine->ns, &opts, &found, NULL, &err);
		uint64_t took = tool_now_ns() - start;

		if (rc != 0)
			return fail_call("okv_lookup", rc, &err);
		if (found.tokens == 0)
			return fail("a stored key is not found");
		if (i >= LOOKUP_WARM_UP)
			speed->lookup_ns[i - LOOKUP_WARM_UP] = took;
	}
	return TOOL_OK;
}

static int measure(struct speed *speed)
{
	int rc = run_checked(speed, 0);

	if (rc == TOOL_OK)
		rc = run_checked(speed, speed->blocks);
	if (rc == TOOL_OK)
		rc = take_lease(speed);
	if (rc != TOOL_OK)
		return rc;
	if (plain_start(&speed->plain, &speed->engine->pages, speed->blocks) != 0)
		return fail("no memory for the plain copy");
	rc = time_copies(speed);
	okv_lease_release(speed->lease);
	if (rc == TOOL_OK)
		rc = time_lookups(speed);
	if (rc == TOOL_OK)
		rc = run_checked(speed, speed->blocks);
	plain_stop(&speed->plain);
	return rc;
}

static const char *pages_word(const struct speed *speed)
{
	return speed->config->tidy ? "consecutive" : "shuffled";
}

static void print_json(const struct speed *speed, double restore, double plain, double p50,
		       double p99)
{
	json_t *out = json_pack(
		"{s:s, s:s, s:s, s:I, s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:I}", "model",
		speed->config->model.shape.model.name, "device", "host", "pages", pages_word(speed),
		"bytes", (json_int_t)speed->plain.source_bytes, "threads", (int)tool_pool_threads(),
		"runs", (int)RUNS, "restore_gbps", restore, "memcpy_gbps", plain, "ratio",
		restore / plain, "lookups", (int)LOOKUPS, "lookup_p50_us", p50, "lookup_p99_us",
		p99, "mismatched_bytes", (json_int_t)speed->mismatched_bytes);

	json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(out);
}

static void print(struct speed *speed)
{
	double bytes = (double)speed->plain.source_bytes;
	double restore = bytes / (tool_percentile_us(speed->restore_ns, RUNS, 500) * 1000);
	double plain = bytes / (tool_percentile_us(speed->plain_ns, RUNS, 500) * 1000);
	double p50 = tool_percentile_us(speed->lookup_ns, LOOKUPS, 500);
	double p99 = tool_percentile_us(speed->lookup_ns, LOOKUPS, 990);

	if (speed->config->json) {
		print_json(speed, restore, plain, p50, p99);
		return;
	}
	printf("%s, %u blocks, %.1f MB in rows of %llu bytes, %s pages, %u threads, median of %u\n",
	       speed->config->model.shape.model.name, speed->blocks, bytes / 1e6,
	       (unsigned long long)speed->plain.row_bytes, pages_word(speed), tool_pool_threads(),
	       RUNS);
	printf("%-18s%.2f GB/s\n", "restore", restore);
	printf("%-18s%.2f GB/s\n", "plain memcpy", plain);
	printf("%-18s%.3f\n", "ratio", restore / plain);
	printf("%-18sp50 %.2f us, p99 %.2f us (one key, hot, %u times)\n", "lookup", p50, p99,
	       LOOKUPS);
	printf("%-18s%llu\n", "mismatched bytes", (unsigned long long)speed->mismatched_bytes);
}

/* A trace of one request. */
static int one_request(uint32_t blocks, struct replay_trace *trace)
{
	trace->ids = calloc(blocks, sizeof(*trace->ids));
	trace->starts = calloc(2, sizeof(*trace->starts));
	if (trace->ids == NULL || trace->starts == NULL)
		return -1;
	for (uint32_t i = 0; i < blocks; i++)
		trace->ids[i] = i;
	trace->starts[1] = blocks;
	trace->request_count = 1;
	trace->longest = blocks;
	trace->block_count = blocks;
	return 0;
}

static int measure_on(struct speed *speed, const char *socket)
{
	char text[TOOL_TEXT] = "";
	int rc = replay_engine_open(speed->config, socket, &speed->engine, text);

	if (rc != TOOL_OK) {
		fail(text);
		return rc;
	}
	rc = measure(speed);
	replay_engine_close(speed->engine);
	return rc;
}

int replay_speed(struct replay_config *config)
{
	struct speed *speed = calloc(1, sizeof(*speed));
	char text[TOOL_TEXT] = "out of memory";
	struct tool_manager manager;
	int rc = TOOL_FAILED;

	if (speed == NULL)
		return fail(text);
	speed->config = config;
	config->memory_bytes = SPEED_MEMORY;
	if (replay_model_load(NULL, "qwen3-8b", &config->model) != 0)
		goto out;
	speed->blocks = (uint32_t)((SPEED_BYTES + config->model.block_bytes - 1) /
				   config->model.block_bytes);
	if (one_request(speed->blocks, &config->trace) != 0 ||
	    replay_manager_start(config, &manager, text) != 0) {
		fail(text);
		goto out;
	}
	rc = measure_on(speed, manager.socket);
	if (tool_manager_stop(&manager) != 0)
		rc = fail("the Manager did not end cleanly");
	if (rc == TOOL_OK)
		print(speed);
out:
	replay_trace_fini(&config->trace);
	replay_model_fini(&config->model);
	free(speed);
	return rc;
}
