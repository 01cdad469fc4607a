/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A client process that asks much of the Manager while others are measured. */
#include "bench_neighbour.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES 64u
#define LEASES (BENCH_NEIGHBOUR_REFERENCES / OKV_MAX_BLOCKS + 1)

const struct tool_model bench_small_model = {"64-byte blocks",	      1, 4, 16, 1,
					     {{OKV_GROUP_FULL, 1, 0}}};

struct neighbour {
	struct tool_shape shape;
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	struct okv_lease *leases[LEASES];
	uint64_t next_key;
	uint32_t pages[OKV_MAX_BLOCKS];
	uint8_t keys[OKV_MAX_BLOCKS * TOOL_KEY_BYTES];
	uint8_t memory[OKV_MAX_BLOCKS * BLOCK_BYTES];
};

static int explain(char *text, const char *what, int rc, const struct okv_error *err)
{
	if (rc != 0)
		tool_explain(text, what, rc, err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

static int bind_pages(struct neighbour *n, char *text)
{
	const struct okv_layer layer = {.base = n->memory,
					.length = sizeof(n->memory),
					.page_stride = BLOCK_BYTES,
					.page_count = OKV_MAX_BLOCKS,
					.segment_count = 1,
					.segment_bytes = {BLOCK_BYTES}};
	struct okv_binding_options opts;
	struct okv_error err = {.text = ""};

	okv_binding_options_init(&opts);
	opts.device = OKV_DEVICE_HOST;
	opts.copy_threads = 1;
	opts.layer_count = 1;
	opts.layers = &layer;
	int rc = okv_binding_register(n->ns, &opts, &n->binding, &err);
	return explain(text, "okv_binding_register", rc, &err);
}

static int open_all(struct neighbour *n, const char *socket, char *text)
{
	struct okv_engine_options engine_opts;
	struct okv_namespace_options opts;
	struct okv_error err = {.text = ""};
	int rc = tool_shape_create(&bench_small_model, &n->shape, text);

	if (rc != TOOL_OK)
		return rc;
	okv_engine_options_init(&engine_opts);
	engine_opts.socket_path = socket;
	rc = okv_engine_open(&engine_opts, &n->engine, &err);
	if (rc != 0)
		return explain(text, "okv_engine_open", rc, &err);
	okv_namespace_options_init(&opts);
	opts.model = n->shape.model.name;
	opts.revision = "orbitkv-bench";
	opts.group_count = 1;
	opts.groups = n->shape.groups;
	rc = okv_namespace_open(n->engine, &opts, &n->ns, &err);
	if (rc != 0)
		return explain(text, "okv_namespace_open", rc, &err);
	return bind_pages(n, text);
}

/* OKV_MAX_BLOCKS blocks that nobody published before. */
static int publish(struct neighbour *n, char *text)
{
	struct okv_publish_group group = {.pages = n->pages};
	struct okv_publish_options opts;
	struct okv_op_result result = {.status = 0};
	struct okv_error err = {.text = ""};
	struct okv_op *op;

	for (uint32_t i = 0; i < OKV_MAX_BLOCKS; i++)
		tool_key(n->next_key++, n->keys + (size_t)i * TOOL_KEY_BYTES);
	group.keys = (struct okv_keys){
		.count = OKV_MAX_BLOCKS, .key_bytes = TOOL_KEY_BYTES, .keys = n->keys};
	group.tokens = OKV_MAX_BLOCKS * n->shape.model.block_tokens;
	okv_publish_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	int rc = okv_publish_start(n->binding, &opts, &op, &err);
	if (rc != 0)
		return explain(text, "okv_publish_start", rc, &err);
	rc = okv_op_wait(op, BENCH_WAIT_MS, &result);
	okv_op_release(op);
	memcpy(err.text, result.text, sizeof(result.text));
	return explain(text, "a publish", rc, &err);
}

/* Pin what was published last, as far as it is still there and a session may pin it. *ret_lease
 * NULL: nothing was. */
static int pin(struct neighbour *n, struct okv_lease **ret_lease, uint32_t *ret_count, char *text)
{
	const struct okv_keys keys = {
		.count = OKV_MAX_BLOCKS, .key_bytes = TOOL_KEY_BYTES, .keys = n->keys};
	struct okv_lookup_result found;
	struct okv_lookup_options opts;
	struct okv_error err = {.text = ""};

	okv_lookup_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &keys;
	*ret_lease = NULL;
	int rc = okv_lookup(n->ns, &opts, &found, ret_lease, &err);
	*ret_count = rc == 0 && *ret_lease != NULL ? found.groups[0].count : 0;
	return explain(text, "okv_lookup", rc, &err);
}

/* A refusal ends it, too: what a session may hold is the Manager's to say. */
static uint64_t hold(struct neighbour *n, char *text)
{
	uint64_t references = 0;

	for (uint32_t i = 0; i < LEASES && references < BENCH_NEIGHBOUR_REFERENCES; i++) {
		uint32_t count;

		if (pin(n, &n->leases[i], &count, text) != TOOL_OK || count == 0)
			break;
		references += count;
	}
	return references;
}

static bool told_to_end(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	return poll(&input, 1, 0) != 0;
}

static int keep_busy(struct neighbour *n, char *text)
{
	int rc = TOOL_OK;

	while (rc == TOOL_OK && !told_to_end()) {
		struct okv_lease *lease = NULL;
		uint32_t count;

		rc = publish(n, text);
		if (rc == TOOL_OK)
			rc = pin(n, &lease, &count, text);
		okv_lease_release(lease);
	}
	return rc;
}

int bench_neighbour_main(const char *socket, const char *role, uint64_t first_key)
{
	struct bench_neighbour_ready ready = {.status = TOOL_FAILED, .text = "out of memory"};
	struct neighbour *n = calloc(1, sizeof(*n));
	bool holds = strcmp(role, "holds") == 0;
	char go = 0;

	if (n != NULL) {
		n->next_key = first_key;
		for (uint32_t i = 0; i < OKV_MAX_BLOCKS; i++)
			n->pages[i] = i;
		ready.status = open_all(n, socket, ready.text);
	}
	if (ready.status == TOOL_OK)
		ready.status = publish(n, ready.text);
	if (ready.status == TOOL_OK && holds)
		ready.references = hold(n, ready.text);
	tool_send(STDOUT_FILENO, &ready, sizeof(ready));
	if (ready.status != TOOL_OK || !tool_receive(STDIN_FILENO, &go, 1))
		goto close_all;
	if (holds)
		tool_receive(STDIN_FILENO, &go, 1); /* for ever: it is killed */
	else
		ready.status = keep_busy(n, ready.text);
	tool_send(STDOUT_FILENO, &ready, sizeof(ready));

close_all:
	if (n != NULL) {
		for (uint32_t i = 0; i < LEASES; i++)
			okv_lease_release(n->leases[i]);
		okv_binding_unregister(n->binding);
		okv_namespace_close(n->ns);
		okv_engine_close(n->engine);
		tool_shape_fini(&n->shape);
	}
	free(n);
	return ready.status;
}
