/* SPDX-License-Identifier: Apache-2.0 */
/* [E] One engine beside a Manager of its own: store, hold, restore, publish. */
#include "bench_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_TRIES 5000 /* of one millisecond each, while the library says "again" */

static int connect_engine(struct bench_rig *rig, char *text)
{
	struct okv_engine_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_engine_options_init(&opts);
	opts.socket_path = rig->manager.socket;
	opts.flags = OKV_ENGINE_STAGE_TIMES;
	rc = okv_engine_open(&opts, &rig->engine, &err);
	if (rc != 0)
		tool_explain(text, "okv_engine_open", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

static int open_namespace(struct bench_rig *rig, char *text)
{
	struct okv_namespace_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_namespace_options_init(&opts);
	opts.model = rig->shape->model.name;
	opts.revision = "orbitkv-bench";
	opts.group_count = rig->shape->model.group_count;
	opts.groups = rig->shape->groups;
	rc = okv_namespace_open(rig->engine, &opts, &rig->ns, &err);
	if (rc != 0)
		tool_explain(text, "okv_namespace_open", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

static int bind_pages(struct bench_rig *rig, char *text)
{
	struct okv_binding_options opts;
	struct okv_error err = {.text = ""};
	uint64_t start = tool_now_ns();
	int rc;

	okv_binding_options_init(&opts);
	opts.device = rig->config->device;
	opts.copy_threads = rig->config->copy_threads;
	opts.layer_count = rig->shape->layer_count;
	opts.layers = rig->pages.layers;
	rc = okv_binding_register(rig->ns, &opts, &rig->binding, &err);
	rig->register_ns = tool_now_ns() - start;
	if (rc != 0)
		tool_explain(text, "okv_binding_register", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_rig_open(const struct bench_config *config, const struct tool_shape *shape,
		   uint32_t blocks, uint64_t memory_bytes, struct bench_rig **ret_rig, char *text)
{
	struct bench_rig *rig = calloc(1, sizeof(*rig));
	char ignored[TOOL_TEXT];
	int rc;

	if (rig == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	rig->config = config;
	rig->shape = shape;
	rig->manager.pid = -1;
	rig->next_id = 1;
	rig->keys = malloc((size_t)OKV_MAX_BLOCKS * TOOL_KEY_BYTES);
	rc = rig->keys != NULL ? TOOL_OK : TOOL_FAILED;
	if (rc == TOOL_OK)
		rc = bench_pages_create(config, shape, blocks, &rig->pages, text);
	if (rc == TOOL_OK)
		rc = bench_manager_start(memory_bytes, config->manager_flags, &rig->manager, text);
	if (rc == TOOL_OK)
		rc = connect_engine(rig, text);
	if (rc == TOOL_OK)
		rc = open_namespace(rig, text);
	if (rc == TOOL_OK)
		rc = bind_pages(rig, text);
	if (rc != TOOL_OK) {
		bench_rig_close(rig, ignored);
		return rc;
	}
	*ret_rig = rig;
	return TOOL_OK;
}

int bench_rig_close(struct bench_rig *rig, char *text)
{
	int rc = TOOL_OK;

	if (rig == NULL)
		return TOOL_OK;
	okv_binding_unregister(rig->binding);
	okv_namespace_close(rig->ns);
	okv_engine_close(rig->engine);
	if (rig->manager.pid > 0 && tool_manager_stop(&rig->manager) != TOOL_OK) {
		snprintf(text, TOOL_TEXT, "the Manager did not end cleanly");
		rc = TOOL_FAILED;
	}
	bench_pages_destroy(&rig->pages);
	free(rig->keys);
	free(rig);
	return rc;
}

uint32_t bench_rig_ids(struct bench_rig *rig, uint32_t count)
{
	uint32_t first;

	if (rig->next_id > TOOL_MAX_ID - count)
		rig->next_id = 1;
	first = rig->next_id;
	rig->next_id += count;
	return first;
}

void bench_rig_keys(struct bench_rig *rig, uint32_t first_key, const uint32_t *contents,
		    uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		tool_key(first_key + (contents != NULL ? contents[i] : i),
			 rig->keys + (size_t)i * TOOL_KEY_BYTES);
}

/* A stream that is idle, as an engine between two steps would name it. */
static struct okv_ready ready(const struct bench_rig *rig)
{
	struct bench_cuda *cuda = rig->config->cuda;

	if (cuda == NULL)
		return (struct okv_ready){.stream_count = 0};
	return (struct okv_ready){.stream_count = 1, .streams = &cuda->user};
}

int bench_rig_publish_start(struct bench_rig *rig, enum bench_half half, uint32_t count,
			    struct okv_op **ret_op, char *text)
{
	struct okv_publish_group groups[OKV_MAX_GROUPS] = {{.tokens = 0}};
	struct okv_publish_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_publish_options_init(&opts);
	opts.ready = ready(rig);
	opts.group_count = rig->shape->model.group_count;
	opts.groups = groups;
	for (uint32_t g = 0; g < opts.group_count; g++) {
		groups[g].keys = (struct okv_keys){
			.group = g, .count = count, .key_bytes = TOOL_KEY_BYTES, .keys = rig->keys};
		groups[g].tokens = count * rig->shape->model.block_tokens;
		groups[g].pages = rig->pages.order[half];
	}
	for (int i = 0;; i++) {
		rc = okv_publish_start(rig->binding, &opts, ret_op, &err);
		if (rc != OKV_E_AGAIN || i == START_TRIES)
			break;
		tool_pause_1ms();
	}
	if (rc != 0)
		tool_explain(text, "okv_publish_start", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_rig_restore_start(struct bench_rig *rig, enum bench_half half,
			    const struct bench_hold *hold, const struct okv_layer_event *events,
			    uint32_t event_count, struct okv_op **ret_op, char *text)
{
	struct okv_restore_group groups[OKV_MAX_GROUPS] = {{.group = 0}};
	struct okv_restore_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_restore_options_init(&opts);
	opts.flags = OKV_RESTORE_KEEP;
	opts.ready = ready(rig);
	opts.group_count = hold->found.group_count;
	opts.groups = groups;
	opts.event_count = event_count;
	opts.events = events;
	for (uint32_t g = 0; g < opts.group_count; g++) {
		const struct okv_hit *hit = &hold->found.groups[g];

		groups[g].group = hit->group;
		groups[g].first = hit->first;
		groups[g].count = hit->count;
		groups[g].pages = rig->pages.order[half] + hit->first;
	}
	for (int i = 0;; i++) {
		rc = okv_restore_start(rig->binding, hold->lease, &opts, ret_op, &err);
		if (rc != OKV_E_AGAIN || i == START_TRIES)
			break;
		tool_pause_1ms();
	}
	if (rc != 0)
		tool_explain(text, "okv_restore_start", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_rig_finish(struct okv_op *op, uint64_t bytes, uint64_t start_ns,
		     struct bench_sample *ret_sample, char *text)
{
	struct okv_op_result result = {.status = 0};
	struct okv_error err = {.text = ""};
	int rc = okv_op_wait(op, BENCH_WAIT_MS, &result);

	ret_sample->ns[BENCH_TOTAL] = tool_now_ns() - start_ns;
	okv_op_release(op);
	if (rc != 0) {
		memcpy(err.text, result.text, sizeof(result.text));
		tool_explain(text, "an operation", rc, &err);
		return TOOL_FAILED;
	}
	if (result.bytes != bytes) {
		snprintf(text, TOOL_TEXT, "an operation copied %llu bytes, not %llu",
			 (unsigned long long)result.bytes, (unsigned long long)bytes);
		return TOOL_FAILED;
	}
	bench_set_stages(&result.times, ret_sample);
	return TOOL_OK;
}

int bench_rig_store(struct bench_rig *rig, enum bench_half half, uint32_t first_key, uint32_t count,
		    char *text)
{
	struct bench_sample sample;
	struct okv_op *op;
	int rc;

	bench_rig_keys(rig, first_key, NULL, count);
	rc = bench_rig_publish_start(rig, half, count, &op, text);
	if (rc != TOOL_OK)
		return rc;
	return bench_rig_finish(op, rig->shape->block_bytes * count, tool_now_ns(), &sample, text);
}

int bench_rig_hold(struct bench_rig *rig, uint32_t first_key, const uint32_t *contents,
		   uint32_t count, struct bench_hold *ret_hold, char *text)
{
	struct okv_keys groups[OKV_MAX_GROUPS];
	struct okv_lookup_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	bench_rig_keys(rig, first_key, contents, count);
	okv_lookup_options_init(&opts);
	opts.group_count = rig->shape->model.group_count;
	opts.groups = groups;
	for (uint32_t g = 0; g < opts.group_count; g++)
		groups[g] = (struct okv_keys){
			.group = g, .count = count, .key_bytes = TOOL_KEY_BYTES, .keys = rig->keys};
	rc = okv_lookup(rig->ns, &opts, &ret_hold->found, &ret_hold->lease, &err);
	if (rc != 0) {
		tool_explain(text, "okv_lookup", rc, &err);
		return TOOL_FAILED;
	}
	if (ret_hold->found.tokens == (uint64_t)count * rig->shape->model.block_tokens)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "only %llu of %llu tokens are found",
		 (unsigned long long)ret_hold->found.tokens,
		 (unsigned long long)count * rig->shape->model.block_tokens);
	bench_rig_drop(ret_hold);
	return TOOL_FAILED;
}

void bench_rig_drop(struct bench_hold *hold)
{
	okv_lease_release(hold->lease);
	hold->lease = NULL;
}

int bench_rig_seed(struct bench_rig *rig, uint32_t count, uint32_t *ret_first_key,
		   struct bench_hold *ret_hold, char *text)
{
	uint32_t first_key = bench_rig_ids(rig, count);
	struct bench_rows rows;
	int rc;

	bench_pages_arrange(&rig->pages, true, count);
	rc = bench_rows_create(&rig->pages, BENCH_RESTORE_HALF, count, NULL, &rows, text);
	if (rc != TOOL_OK)
		return rc;
	rc = bench_pages_fill(&rig->pages, &rows, first_key, text);
	bench_rows_fini(&rows);
	if (rc == TOOL_OK)
		rc = bench_rig_store(rig, BENCH_RESTORE_HALF, first_key, count, text);
	if (rc == TOOL_OK)
		rc = bench_rig_hold(rig, first_key, NULL, count, ret_hold, text);
	if (rc == TOOL_OK)
		*ret_first_key = first_key;
	return rc;
}
