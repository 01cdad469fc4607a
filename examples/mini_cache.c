/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The OrbitKV calls of mini_engine, in the order in which an engine makes them. */
#include "mini_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_MEMORY (256ull << 20) /* of the embedded Manager */

static int open_engine(struct mini_cache *c, const struct mini_cache_options *opts)
{
	struct okv_manager_options manager;
	struct okv_engine_options engine;

	okv_manager_options_init(&manager);
	manager.memory_bytes = CACHE_MEMORY;
	okv_engine_options_init(&engine);
	if (opts->embedded) {
		engine.flags = OKV_ENGINE_EMBEDDED;
		engine.embedded = &manager;
	} else {
		engine.socket_path = opts->socket;
	}
	return okv_engine_open(&engine, &c->engine, &c->err);
}

/* Everything that changes the cached bytes is in the identity, or a hit would be wrong. */
static int open_namespace(struct mini_cache *c, uint64_t seed)
{
	struct okv_layer_schema layers[MINI_LAYERS] = {0};
	struct okv_group_schema group = {
		.kind = OKV_GROUP_FULL,
		.block_tokens = MINI_BLOCK,
		.layer_count = MINI_LAYERS,
		.layout_tag = "NHD/f32",
		.layers = layers,
	};
	struct okv_namespace_options opts;
	char revision[32];

	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		layers[l].order = l;
		layers[l].segment_count = 2; /* K and V */
		layers[l].segment_bytes[0] = MINI_SEGMENT_BYTES;
		layers[l].segment_bytes[1] = MINI_SEGMENT_BYTES;
	}
	snprintf(revision, sizeof(revision), "seed-%llu", (unsigned long long)seed);
	okv_namespace_options_init(&opts);
	opts.model = "orbitkv-mini";
	opts.revision = revision;
	opts.dtype = "f32";
	opts.group_count = 1;
	opts.groups = &group;
	return okv_namespace_open(c->engine, &opts, &c->ns, &c->err);
}

static int open_binding(struct mini_cache *c)
{
	struct okv_layer layers[MINI_LAYERS] = {0};
	struct okv_binding_options opts;

	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		layers[l].base = c->gpu ? cuda_pages_base(c->gpu, l) : (void *)c->kv->layers[l];
		layers[l].length = mini_kv_layer_bytes(c->kv);
		layers[l].page_stride = MINI_PAGE_BYTES;
		layers[l].page_count = c->kv->page_count;
		layers[l].segment_count = 2;
		layers[l].segment_offset[1] = MINI_SEGMENT_BYTES;
		layers[l].segment_bytes[0] = MINI_SEGMENT_BYTES;
		layers[l].segment_bytes[1] = MINI_SEGMENT_BYTES;
	}
	okv_binding_options_init(&opts);
	opts.device = c->gpu ? OKV_DEVICE_CUDA : OKV_DEVICE_HOST;
	opts.layer_count = MINI_LAYERS;
	opts.layers = layers;
	return okv_binding_register(c->ns, &opts, &c->binding, &c->err);
}

static int fail(struct mini_cache *c, int status, const char *why)
{
	c->err.status = status;
	snprintf(c->err.text, sizeof(c->err.text), "%s", why);
	return status;
}

int mini_cache_open(struct mini_cache *c, const struct mini_cache_options *opts, struct mini_kv *kv)
{
	char reason[200];
	int r;

	memset(c, 0, sizeof(*c));
	c->kv = kv;
	if (opts->cuda &&
	    cuda_pages_create(0, MINI_LAYERS, mini_kv_layer_bytes(kv), &c->gpu, reason))
		return fail(c, MINI_NO_GPU, reason);
	r = mini_cache_upload(c);
	if (!r)
		r = open_engine(c, opts);
	if (!r)
		r = open_namespace(c, opts->seed);
	if (!r)
		r = open_binding(c);
	return r;
}

void mini_cache_close(struct mini_cache *c)
{
	okv_op_release(c->restore);
	okv_op_release(c->publish);
	okv_lease_release(c->lease);
	okv_binding_unregister(c->binding); /* drained from here on */
	okv_namespace_close(c->ns);
	okv_engine_close(c->engine);
	cuda_pages_destroy(c->gpu);
	memset(c, 0, sizeof(*c));
}

int mini_cache_upload(struct mini_cache *c)
{
	for (uint32_t l = 0; c->gpu && l < MINI_LAYERS; l++) {
		if (cuda_pages_upload(c->gpu, l, c->kv->layers[l]))
			return fail(c, OKV_E_COPY, "cannot copy the pages to the GPU");
	}
	return 0;
}

/* The copies to and from the mirror run on the null stream, so that is the one to wait for. */
static struct okv_ready ready(const struct mini_cache *c)
{
	static struct CUstream_st *const null_stream[1];

	return (struct okv_ready){.stream_count = c->gpu ? 1 : 0, .streams = null_stream};
}

int mini_cache_publish(struct mini_cache *c, const uint8_t *keys, uint32_t blocks)
{
	struct okv_publish_group group = {
		.keys = {.count = blocks, .key_bytes = MINI_KEY_BYTES, .keys = keys},
		.tokens = blocks * MINI_BLOCK,
		.pages = c->kv->table,
	};
	struct okv_publish_options opts;
	int r = mini_cache_upload(c);

	if (r)
		return r;
	okv_publish_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	opts.ready = ready(c);
	return okv_publish_start(c->binding, &opts, &c->publish, &c->err);
}

/* Ends the operation's handle as well. */
static int finish(struct mini_cache *c, struct okv_op **op, struct okv_op_result *ret_result)
{
	int r;

	memset(ret_result, 0, sizeof(*ret_result));
	r = okv_op_wait(*op, -1, ret_result);
	if (r)
		fail(c, r, ret_result->text);
	okv_op_release(*op);
	*op = NULL;
	return r;
}

int mini_cache_publish_wait(struct mini_cache *c, struct okv_op_result *ret_result)
{
	return finish(c, &c->publish, ret_result);
}

int mini_cache_find(struct mini_cache *c, const uint8_t *keys, uint32_t blocks,
		    uint32_t *ret_blocks)
{
	struct okv_keys group = {.count = blocks, .key_bytes = MINI_KEY_BYTES, .keys = keys};
	struct okv_lookup_result found;
	struct okv_lookup_options opts;
	int r;

	okv_lookup_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	r = okv_lookup(c->ns, &opts, &found, &c->lease, &c->err);
	if (r)
		return r;
	*ret_blocks = found.tokens ? found.groups[0].count : 0;
	return 0;
}

int mini_cache_restore(struct mini_cache *c, uint32_t blocks)
{
	struct okv_restore_group group = {.count = blocks, .pages = c->kv->table};
	struct okv_layer_event events[MINI_LAYERS] = {0};
	struct okv_restore_options opts;

	okv_restore_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	opts.ready = ready(c);
	for (uint32_t l = 0; c->gpu && l < MINI_LAYERS; l++) {
		events[l].layer = l;
		events[l].event = cuda_pages_event(c->gpu, l);
		opts.event_count = MINI_LAYERS;
		opts.events = events;
	}
	return okv_restore_start(c->binding, c->lease, &opts, &c->restore, &c->err);
}

int mini_cache_wait_layer(struct mini_cache *c, uint32_t layer)
{
	int r;

	if (!c->gpu)
		return okv_op_wait_layer(c->restore, layer, -1);
	/* An engine on the GPU makes its stream wait for the event; this model runs on the CPU. */
	r = okv_op_wait_enqueued(c->restore, layer, -1);
	if (r)
		return r;
	if (cuda_pages_wait_event(c->gpu, layer) ||
	    cuda_pages_download(c->gpu, layer, c->kv->layers[layer]))
		return OKV_E_COPY;
	return 0;
}

int mini_cache_restore_wait(struct mini_cache *c, struct okv_op_result *ret_result)
{
	int r = finish(c, &c->restore, ret_result);

	okv_lease_release(c->lease);
	c->lease = NULL;
	return r;
}
