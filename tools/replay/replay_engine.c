/* SPDX-License-Identifier: Apache-2.0 */
/* [E] One engine: look a request up, restore and check what is there, publish the rest. */
#include "replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_TRIES 5000 /* of one millisecond each, while the Manager says "again" */
#define LOOKUP_TRIES 3	 /* a pool too small for its leases is a miss */

/* Uploads may still run on the null stream when they return. */
static struct CUstream_st *const null_stream[] = {NULL};

static int connect_engine(struct replay_engine *e, const char *socket, char *text)
{
	struct okv_manager_options embedded;
	struct okv_engine_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_engine_options_init(&opts);
	opts.socket_path = socket;
	if (socket == NULL) {
		replay_manager_options(e->config, &embedded);
		opts.flags |= OKV_ENGINE_EMBEDDED;
		opts.embedded = &embedded;
	}
	rc = okv_engine_open(&opts, &e->engine, &err);
	if (rc != 0)
		tool_explain(text, "okv_engine_open", rc, &err);
	return rc;
}

static int open_namespace(struct replay_engine *e, char *text)
{
	const struct replay_model *model = &e->config->model;
	struct okv_namespace_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_namespace_options_init(&opts);
	opts.model = model->shape.model.name;
	opts.revision = "orbitkv-replay";
	opts.group_count = model->shape.model.group_count;
	opts.groups = model->shape.groups;
	rc = okv_namespace_open(e->engine, &opts, &e->ns, &err);
	if (rc != 0) {
		tool_explain(text, "okv_namespace_open", rc, &err);
		return rc;
	}
	for (uint32_t g = 0; g < model->shape.model.group_count; g++) {
		uint64_t bytes = replay_stored_bytes(okv_namespace_block_bytes(e->ns, g));

		if (bytes == model->stored_bytes[g])
			continue;
		snprintf(text, TOOL_TEXT, "a block of group %u takes %llu bytes, not %llu", g,
			 (unsigned long long)bytes, (unsigned long long)model->stored_bytes[g]);
		okv_namespace_close(e->ns);
		return -1;
	}
	return 0;
}

static int bind_pages(struct replay_engine *e, char *text)
{
	struct okv_binding_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_binding_options_init(&opts);
	opts.device = e->config->device;
	opts.layer_count = e->config->model.shape.layer_count;
	opts.layers = e->pages.layers;
	rc = okv_binding_register(e->ns, &opts, &e->binding, &err);
	if (rc != 0)
		tool_explain(text, "okv_binding_register", rc, &err);
	return rc;
}

int replay_engine_open(const struct replay_config *config, const char *socket,
		       struct replay_engine **ret_engine, char *text)
{
	uint32_t longest = config->trace.longest;
	struct replay_engine *e = calloc(1, sizeof(*e));
	int rc = TOOL_FAILED;

	if (e == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	e->config = config;
	e->keys = malloc((size_t)longest * TOOL_KEY_BYTES);
	if (e->keys == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		goto undo_engine;
	}
	rc = replay_pages_create(&config->model, config->device, longest, &e->pages, text);
	if (rc != TOOL_OK)
		goto undo_keys;
	rc = TOOL_FAILED;
	if (connect_engine(e, socket, text) != 0)
		goto undo_pages;
	if (open_namespace(e, text) != 0)
		goto undo_connection;
	if (bind_pages(e, text) != 0)
		goto undo_namespace;
	*ret_engine = e;
	return TOOL_OK;
undo_namespace:
	okv_namespace_close(e->ns);
undo_connection:
	okv_engine_close(e->engine);
undo_pages:
	replay_pages_destroy(&e->pages);
undo_keys:
	free(e->keys);
undo_engine:
	free(e);
	return rc;
}

void replay_engine_close(struct replay_engine *e)
{
	if (e == NULL)
		return;
	okv_binding_unregister(e->binding);
	okv_namespace_close(e->ns);
	okv_engine_close(e->engine);
	replay_pages_destroy(&e->pages);
	free(e->keys);
	free(e);
}

static struct okv_ready uploaded(const struct replay_engine *e)
{
	bool cuda = e->config->device == OKV_DEVICE_CUDA;

	return (struct okv_ready){.stream_count = cuda ? 1 : 0, .streams = null_stream};
}

static struct okv_keys keys_of(const struct replay_engine *e, uint32_t group, uint32_t first,
			       uint32_t count)
{
	return (struct okv_keys){.group = group,
				 .count = count,
				 .key_bytes = TOOL_KEY_BYTES,
				 .keys = e->keys + (size_t)first * TOOL_KEY_BYTES};
}

static bool plausible(const struct replay_engine *e, const struct okv_lookup_result *found,
		      uint32_t count)
{
	const struct replay_model *model = &e->config->model;

	if (found->group_count != model->shape.model.group_count ||
	    found->tokens % model->shape.model.block_tokens != 0 ||
	    found->tokens / model->shape.model.block_tokens > count)
		return false;
	if (found->tokens == 0)
		return true;
	for (uint32_t g = 0; g < model->shape.model.group_count; g++) {
		const struct okv_hit *hit = &found->groups[g];
		uint64_t end = (uint64_t)hit->first + hit->count;

		if (hit->group != g || end != found->tokens / model->shape.model.block_tokens)
			return false;
		if (model->shape.groups[g].kind == OKV_GROUP_FULL && hit->first != 0)
			return false;
	}
	return true;
}

/* A miss leaves *ret_lease NULL. */
static int look_up(struct replay_engine *e, uint32_t count, struct okv_lookup_result *ret_found,
		   struct okv_lease **ret_lease, struct replay_outcome *out)
{
	struct okv_keys groups[OKV_MAX_GROUPS];
	struct okv_lookup_options opts;
	struct okv_error err = {.text = ""};
	uint64_t start;
	int rc;

	okv_lookup_options_init(&opts);
	opts.group_count = e->config->model.shape.model.group_count;
	opts.groups = groups;
	for (uint32_t g = 0; g < opts.group_count; g++)
		groups[g] = keys_of(e, g, 0, count);
	for (int i = 0;; i++) {
		start = tool_now_ns();
		rc = okv_lookup(e->ns, &opts, ret_found, ret_lease, &err);
		out->lookup_ns = tool_now_ns() - start;
		if (rc != OKV_E_AGAIN)
			break;
		if (i == LOOKUP_TRIES) {
			memset(ret_found, 0, sizeof(*ret_found));
			*ret_lease = NULL;
			return 0;
		}
		tool_pause_1ms();
	}
	if (rc != 0) {
		tool_explain(out->text, "okv_lookup", rc, &err);
		return rc;
	}
	if (!plausible(e, ret_found, count) || (ret_found->tokens > 0) != (*ret_lease != NULL)) {
		snprintf(out->text, sizeof(out->text),
			 "okv_lookup: %llu tokens do not fit %u blocks asked for",
			 (unsigned long long)ret_found->tokens, count);
		return OKV_E_PROTOCOL;
	}
	return 0;
}

/* Wait for an operation's end and drop it. */
static int finish(struct okv_op *op, const char *what, struct okv_op_result *ret_result, char *text)
{
	struct okv_op_result result = {.status = 0};
	struct okv_error err = {.text = ""};
	int rc = okv_op_wait(op, REPLAY_WAIT_MS, &result);

	okv_op_release(op);
	if (rc != 0) {
		memcpy(err.text, result.text, sizeof(result.text));
		tool_explain(text, what, rc, &err);
		return rc;
	}
	*ret_result = result;
	return 0;
}

static int copy_restore(struct replay_engine *e, struct okv_lease *lease,
			const struct okv_restore_options *opts, struct replay_outcome *out)
{
	struct okv_op_result result;
	struct okv_error err = {.text = ""};
	struct okv_op *op;
	uint64_t start;
	int rc;

	for (int i = 0;; i++) {
		start = tool_now_ns();
		rc = okv_restore_start(e->binding, lease, opts, &op, &err);
		if (rc != OKV_E_AGAIN || i == START_TRIES)
			break;
		tool_pause_1ms();
	}
	if (rc != 0) {
		tool_explain(out->text, "okv_restore_start", rc, &err);
		return rc;
	}
	rc = finish(op, "restore", &result, out->text);
	if (rc != 0)
		return rc;
	out->restore_ns = tool_now_ns() - start;
	out->restored_bytes = result.bytes;
	return 0;
}

static int restore(struct replay_engine *e, const uint64_t *ids,
		   const struct okv_lookup_result *found, struct okv_lease *lease,
		   struct replay_outcome *out)
{
	struct okv_restore_group groups[OKV_MAX_GROUPS] = {{.group = 0}};
	struct replay_span spans[OKV_MAX_GROUPS];
	struct okv_restore_options opts;
	uint64_t expected = 0;

	okv_restore_options_init(&opts);
	opts.ready = uploaded(e);
	opts.group_count = found->group_count;
	opts.groups = groups;
	for (uint32_t g = 0; g < found->group_count; g++) {
		const struct okv_hit *hit = &found->groups[g];

		groups[g].group = g;
		groups[g].first = hit->first;
		groups[g].count = hit->count;
		groups[g].pages = e->pages.order + hit->first;
		spans[g] = (struct replay_span){g, hit->first, hit->count, ids};
		expected += e->config->model.payload_bytes[g] * hit->count;
		replay_pages_poison(&e->pages, &spans[g]);
	}
	if (replay_pages_upload(&e->pages, out->text) != 0 ||
	    copy_restore(e, lease, &opts, out) != 0 ||
	    replay_pages_download(&e->pages, out->text) != 0)
		return -1;
	for (uint32_t g = 0; g < found->group_count; g++)
		out->mismatched_bytes += replay_pages_check(&e->pages, &spans[g], out->text);
	if (out->restored_bytes != expected) {
		snprintf(out->text, sizeof(out->text), "restore: says %llu bytes, not %llu",
			 (unsigned long long)out->restored_bytes, (unsigned long long)expected);
		return -1;
	}
	return 0;
}

/* Blocks [first, count) of the request. */
static int publish(struct replay_engine *e, const uint64_t *ids, uint32_t first, uint32_t count,
		   struct replay_outcome *out)
{
	const struct replay_model *model = &e->config->model;
	struct okv_publish_group groups[OKV_MAX_GROUPS] = {{.tokens = 0}};
	struct okv_publish_options opts;
	struct okv_op_result result;
	struct okv_error err = {.text = ""};
	struct okv_op *op;
	int rc;

	okv_publish_options_init(&opts);
	opts.ready = uploaded(e);
	opts.group_count = model->shape.model.group_count;
	opts.groups = groups;
	for (uint32_t g = 0; g < model->shape.model.group_count; g++) {
		struct replay_span span = {g, first, count - first, ids};

		groups[g].keys = keys_of(e, g, first, count - first);
		groups[g].first_position = first;
		groups[g].tokens = (count - first) * model->shape.model.block_tokens;
		if (first > 0)
			groups[g].parent = e->keys + (size_t)(first - 1) * TOOL_KEY_BYTES;
		groups[g].pages = e->pages.order + first;
		replay_pages_fill(&e->pages, &span);
	}
	if (replay_pages_upload(&e->pages, out->text) != 0)
		return -1;
	for (int i = 0;; i++) {
		rc = okv_publish_start(e->binding, &opts, &op, &err);
		if (rc != OKV_E_AGAIN || i == START_TRIES)
			break;
		tool_pause_1ms();
	}
	if (rc != 0) {
		tool_explain(out->text, "okv_publish_start", rc, &err);
		return rc;
	}
	rc = finish(op, "publish", &result, out->text);
	if (rc == 0)
		out->published_bytes = result.bytes;
	return rc;
}

void replay_engine_run(struct replay_engine *e, uint32_t index, struct replay_outcome *ret_outcome)
{
	const struct replay_trace *trace = &e->config->trace;
	const uint64_t *ids = trace->ids + trace->starts[index];
	uint32_t count = (uint32_t)(trace->starts[index + 1] - trace->starts[index]);
	struct replay_outcome out = {.status = TOOL_FAILED, .blocks = count};
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	int rc;

	for (uint32_t i = 0; i < count; i++)
		tool_key(ids[i], e->keys + (size_t)i * TOOL_KEY_BYTES);
	replay_pages_choose(&e->pages, index, e->config->tidy);
	rc = look_up(e, count, &found, &lease, &out);
	if (rc != 0)
		goto out;
	out.hit_blocks = (uint32_t)(found.tokens / e->config->model.shape.model.block_tokens);
	if (lease != NULL)
		rc = restore(e, ids, &found, lease, &out);
	okv_lease_release(lease);
	if (rc == 0 && out.hit_blocks < count)
		rc = publish(e, ids, out.hit_blocks, count, &out);
	if (rc == 0)
		out.status = TOOL_OK;
out:
	*ret_outcome = out;
}
