/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The smallest whole use of OrbitKV: publish two blocks, wipe the pages, get them back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <orbitkv/orbitkv.h>

#define PAGE 4096u

static unsigned char pages[4][PAGE]; /* this engine's KV cache: one layer of four pages */
static struct okv_error err;

static void must(int status)
{
	if (!status)
		return;
	fprintf(stderr, "%s: %s\n", okv_status_name(status), err.text);
	exit(1);
}

/* An operation that was started says in its result why it failed. */
static void must_end_well(struct okv_op *op)
{
	struct okv_op_result result;
	int status = okv_op_wait(op, -1, &result);
	if (!status)
		return;
	fprintf(stderr, "%s: %s\n", okv_status_name(status), result.text);
	exit(1);
}

int main(void)
{
	struct okv_manager_options manager_opts;
	okv_manager_options_init(&manager_opts);
	manager_opts.memory_bytes = 64u << 20;
	struct okv_engine_options engine_opts;
	okv_engine_options_init(&engine_opts);
	engine_opts.flags = OKV_ENGINE_EMBEDDED; /* no Manager process: the cache ends with us */
	engine_opts.embedded = &manager_opts;
	struct okv_engine *engine;
	must(okv_engine_open(&engine_opts, &engine, &err));

	/* What is cached: blocks of 16 tokens, one layer, 4,096 bytes each. */
	struct okv_layer_schema shape = {.segment_count = 1, .segment_bytes = {PAGE}};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = 16,
					 .layer_count = 1,
					 .layout_tag = "NHD",
					 .layers = &shape};
	struct okv_namespace_options ns_opts;
	okv_namespace_options_init(&ns_opts);
	ns_opts.model = "example";
	ns_opts.group_count = 1;
	ns_opts.groups = &group;
	struct okv_namespace *ns;
	must(okv_namespace_open(engine, &ns_opts, &ns, &err));

	/* Where this engine keeps it. */
	struct okv_layer layer = {.base = pages,
				  .length = sizeof(pages),
				  .page_stride = PAGE,
				  .page_count = 4,
				  .segment_count = 1,
				  .segment_bytes = {PAGE}};
	struct okv_binding_options binding_opts;
	okv_binding_options_init(&binding_opts);
	binding_opts.device = OKV_DEVICE_HOST;
	binding_opts.layer_count = 1;
	binding_opts.layers = &layer;
	struct okv_binding *binding;
	must(okv_binding_register(ns, &binding_opts, &binding, &err));

	/* The model fills pages 0 and 1; they become two blocks. */
	memset(pages[0], 'a', PAGE);
	memset(pages[1], 'b', PAGE);
	struct okv_keys keys = {.count = 2, .key_bytes = 8, .keys = "prefix-Aprefix-B"};
	struct okv_publish_group from = {.keys = keys, .tokens = 32, .pages = (uint32_t[]){0, 1}};
	struct okv_publish_options publish_opts;
	okv_publish_options_init(&publish_opts);
	publish_opts.group_count = 1;
	publish_opts.groups = &from;
	struct okv_op *publish;
	must(okv_publish_start(binding, &publish_opts, &publish, &err));
	must_end_well(publish);

	/* The engine forgets, finds the prefix again, and brings it back into pages 3 and 2. */
	memset(pages, 0, sizeof(pages));
	struct okv_lookup_options lookup_opts;
	okv_lookup_options_init(&lookup_opts);
	lookup_opts.group_count = 1;
	lookup_opts.groups = &keys;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	must(okv_lookup(ns, &lookup_opts, &found, &lease, &err));

	if (!lease) { /* a miss is no error: an engine computes */
		fprintf(stderr, "nothing of the prefix is there\n");
		return 1;
	}
	struct okv_restore_group to = {.count = found.groups[0].count, .pages = (uint32_t[]){3, 2}};
	struct okv_restore_options restore_opts;
	okv_restore_options_init(&restore_opts);
	restore_opts.group_count = 1;
	restore_opts.groups = &to;
	struct okv_op *restore;
	must(okv_restore_start(binding, lease, &restore_opts, &restore, &err));
	if (okv_op_wait_layer(restore, 0, -1) == 0)
		printf("layer 0 is there\n"); /* and may be read: they come one by one */
	must_end_well(restore);

	int wrong = 0;
	for (unsigned i = 0; i < PAGE; i++)
		wrong |= pages[3][i] != 'a' || pages[2][i] != 'b' || pages[0][i] || pages[1][i];
	printf("%d tokens found, %s\n", (int)found.tokens, wrong ? "wrong bytes" : "bytes intact");

	okv_op_release(restore);
	okv_op_release(publish);
	okv_lease_release(lease);
	okv_binding_unregister(binding);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	return wrong;
}
