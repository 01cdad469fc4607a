/* SPDX-License-Identifier: Apache-2.0 */
/* A program of someone else's, built against the installed copy, as C and as C++. */
#include <orbitkv/orbitkv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES 8
#define BLOCK 4096

static struct okv_error err;

static int fail(const char *what, int rc)
{
	fprintf(stderr, "%s: %s: %s\n", what, okv_status_name(rc), err.text);
	return 1;
}

static int open_namespace(struct okv_engine *engine, struct okv_namespace **ret_ns)
{
	struct okv_layer_schema layer;
	struct okv_group_schema group;
	struct okv_namespace_options o;

	memset(&layer, 0, sizeof(layer));
	layer.segment_count = 1;
	layer.segment_bytes[0] = BLOCK;
	memset(&group, 0, sizeof(group));
	group.kind = OKV_GROUP_FULL;
	group.block_tokens = 16;
	group.layer_count = 1;
	group.layout_tag = "NHD";
	group.layers = &layer;
	okv_namespace_options_init(&o);
	o.model = "consumer";
	o.group_count = 1;
	o.groups = &group;
	return okv_namespace_open(engine, &o, ret_ns, &err);
}

static int register_pages(struct okv_namespace *ns, void *pages, struct okv_binding **ret_binding)
{
	struct okv_layer layer;
	struct okv_binding_options o;

	memset(&layer, 0, sizeof(layer));
	layer.base = pages;
	layer.length = PAGES * BLOCK;
	layer.page_stride = BLOCK;
	layer.page_count = PAGES;
	layer.segment_count = 1;
	layer.segment_bytes[0] = BLOCK;
	okv_binding_options_init(&o);
	o.layer_count = 1;
	o.layers = &layer;
	return okv_binding_register(ns, &o, ret_binding, &err);
}

/* Store page 2 under key. */
static int publish(struct okv_binding *binding, const struct okv_keys *key)
{
	struct okv_publish_group group;
	struct okv_publish_options o;
	struct okv_op *op;
	uint32_t page = 2;

	memset(&group, 0, sizeof(group));
	group.keys = *key;
	group.tokens = 16;
	group.pages = &page;
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &group;
	int rc = okv_publish_start(binding, &o, &op, &err);
	if (rc)
		return rc;
	rc = okv_op_wait(op, -1, NULL);
	okv_op_release(op);
	return rc;
}

/* Find key and get it back into page 5. */
static int restore(struct okv_namespace *ns, struct okv_binding *binding,
		   const struct okv_keys *key)
{
	struct okv_lookup_options look;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	struct okv_restore_group group;
	struct okv_restore_options o;
	struct okv_op *op;
	uint32_t page = 5;

	okv_lookup_options_init(&look);
	look.group_count = 1;
	look.groups = key;
	int rc = okv_lookup(ns, &look, &found, &lease, &err);
	if (rc)
		return rc;
	if (found.tokens != 16)
		return OKV_E_NOENT;
	memset(&group, 0, sizeof(group));
	group.count = 1;
	group.pages = &page;
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &group;
	rc = okv_restore_start(binding, lease, &o, &op, &err);
	if (!rc) {
		rc = okv_op_wait(op, -1, NULL);
		okv_op_release(op);
	}
	okv_lease_release(lease);
	return rc;
}

int main(void)
{
	struct okv_manager_options manager;
	struct okv_engine_options o;
	struct okv_engine *engine = NULL;
	struct okv_namespace *ns = NULL;
	struct okv_binding *binding = NULL;
	struct okv_keys key;
	unsigned char *pages = (unsigned char *)calloc(PAGES, BLOCK);

	if (okv_version() !=
	    (OKV_VERSION_MAJOR << 16 | OKV_VERSION_MINOR << 8 | OKV_VERSION_PATCH)) {
		fprintf(stderr, "headers and library are of two versions\n");
		return 1;
	}
	for (int i = 0; i < BLOCK; i++)
		pages[2 * BLOCK + i] = (unsigned char)(i * 7 + i / 256);
	okv_manager_options_init(&manager);
	manager.memory_bytes = 16u << 20;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.embedded = &manager;
	memset(&key, 0, sizeof(key));
	key.count = 1;
	key.key_bytes = 5;
	key.keys = "block";

	int rc = okv_engine_open(&o, &engine, &err);
	if (!rc)
		rc = open_namespace(engine, &ns);
	if (!rc)
		rc = register_pages(ns, pages, &binding);
	if (!rc)
		rc = publish(binding, &key);
	if (!rc)
		rc = restore(ns, binding, &key);
	okv_binding_unregister(binding);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	int differs = memcmp(pages + 2 * BLOCK, pages + 5 * BLOCK, BLOCK);
	free(pages);
	if (rc)
		return fail("consumer", rc);
	if (differs) {
		fprintf(stderr, "the restored bytes differ\n");
		return 1;
	}
	printf("exact\n");
	return 0;
}
