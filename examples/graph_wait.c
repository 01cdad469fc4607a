/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [E] Layer events inside a CUDA graph: the forward pass is captured once and replayed after every
 * restore, and each replay waits, layer by layer, for the restore that it was launched behind.
 * With a Manager inside, on GPU 0. Exit 77: there is none, or its driver cannot.
 *
 * - In the capture, the wait for a layer's event is an external one. It becomes a node that waits
 *   for what the event was last recorded behind when the graph is launched. Without that flag CUDA
 *   takes only events that were recorded in the same capture.
 * - Every restore is given the same events: the ones that the graph names.
 * - The library's worker records them some time after okv_restore_start() returned. A graph that is
 *   launched earlier meets the record of the restore before, which is long over, waits for nothing,
 *   and reads what was left in the pages. So okv_op_wait_enqueued() comes first, for each layer. It
 *   waits until copies are submitted, not until they ended: they go on under the running graph.
 * - The restore names the graph's stream as one to be ready, because a replay reads the pages that
 *   the next restore overwrites. It is started outside of captures: a capturing stream is refused.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <orbitkv/orbitkv.h>

#include "cuda_pages.h"

#define LAYERS 16u
#define PAGES 64u
#define BLOCKS 32u /* of one page each */
#define PAGE 65536u
#define WORDS (PAGE / 4)
#define TOKENS 16u
#define SKIP 77

/* cuda.h has these; this example is built without it. */
#define STREAM_NON_BLOCKING 1u
#define CAPTURE_THREAD_LOCAL 1
#define EVENT_WAIT_EXTERNAL 1u
#define CUDA_NOT_SUPPORTED 801

struct CUgraph_st;
struct CUgraphExec_st;

struct driver {
	int (*stream_create)(struct CUstream_st **ret_stream, unsigned flags);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*stream_synchronize)(struct CUstream_st *stream);
	int (*wait_event)(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags);
	int (*copy)(unsigned long long to, unsigned long long from, size_t bytes,
		    struct CUstream_st *stream);
	int (*capture_begin)(struct CUstream_st *stream, int mode);
	int (*capture_end)(struct CUstream_st *stream, struct CUgraph_st **ret_graph);
	int (*instantiate)(struct CUgraphExec_st **ret_exec, struct CUgraph_st *graph,
			   unsigned long long flags);
	int (*launch)(struct CUgraphExec_st *exec, struct CUstream_st *stream);
	int (*exec_destroy)(struct CUgraphExec_st *exec);
	int (*graph_destroy)(struct CUgraph_st *graph);
};

static const struct {
	const char *name;
	size_t offset;
} symbols[] = {
	{"cuStreamCreate", offsetof(struct driver, stream_create)},
	{"cuStreamDestroy_v2", offsetof(struct driver, stream_destroy)},
	{"cuStreamSynchronize", offsetof(struct driver, stream_synchronize)},
	{"cuStreamWaitEvent", offsetof(struct driver, wait_event)},
	{"cuMemcpyDtoDAsync_v2", offsetof(struct driver, copy)},
	{"cuStreamBeginCapture_v2", offsetof(struct driver, capture_begin)},
	{"cuStreamEndCapture", offsetof(struct driver, capture_end)},
	{"cuGraphInstantiateWithFlags", offsetof(struct driver, instantiate)},
	{"cuGraphLaunch", offsetof(struct driver, launch)},
	{"cuGraphExecDestroy", offsetof(struct driver, exec_destroy)},
	{"cuGraphDestroy", offsetof(struct driver, graph_destroy)},
};

static struct driver cu;
static struct okv_error err;
static struct cuda_pages *pages; /* the engine's KV cache, and an event for each layer */
static struct cuda_pages *seen;	 /* what the model read of it, of the same shape */
static struct okv_engine *engine;
static struct okv_namespace *ns;
static struct okv_binding *binding;
static struct CUstream_st *stream;
static struct CUgraphExec_st *forward;
static uint32_t words[PAGES * WORDS]; /* one layer */

static void must(int status)
{
	if (!status)
		return;
	fprintf(stderr, "graph_wait: %s: %s\n", okv_status_name(status), err.text);
	exit(status == OKV_E_UNSUPPORTED ? SKIP : 1);
}

/* Ended: pages and events are the engine's again. */
static void finish(struct okv_op *op)
{
	struct okv_op_result result;
	int status = okv_op_wait(op, -1, &result);

	if (status)
		snprintf(err.text, sizeof(err.text), "%s", result.text);
	must(status);
	okv_op_release(op);
}

static void must_cuda(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "graph_wait: %s says CUDA error %d\n", what, result);
	exit(result == CUDA_NOT_SUPPORTED ? SKIP : 1);
}

static void skip(const char *why)
{
	fprintf(stderr, "graph_wait: skipped: %s\n", why);
	exit(SKIP);
}

/* ---- the GPU ---- */

static void open_gpu(void)
{
	char reason[200];
	void *library;

	if (cuda_pages_create(0, LAYERS, sizeof(words), &pages, reason) ||
	    cuda_pages_create(0, LAYERS, sizeof(words), &seen, reason))
		skip(reason);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *call = library ? dlsym(library, symbols[i].name) : NULL;

		if (!call) {
			snprintf(reason, sizeof(reason), "the driver lacks %s", symbols[i].name);
			skip(reason);
		}
		memcpy((char *)&cu + symbols[i].offset, &call, sizeof(call));
	}
	must_cuda(cu.stream_create(&stream, STREAM_NON_BLOCKING), "cuStreamCreate");
}

static void close_gpu(void)
{
	cu.exec_destroy(forward);
	cu.stream_destroy(stream);
	cuda_pages_destroy(seen);
	cuda_pages_destroy(pages);
}

/* For each layer: wait until it is there, then use it. A model computes; this one takes a copy. */
static void capture_forward_pass(void)
{
	struct CUgraph_st *graph;

	must_cuda(cu.capture_begin(stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
	for (uint32_t l = 0; l < LAYERS; l++) {
		must_cuda(cu.wait_event(stream, cuda_pages_event(pages, l), EVENT_WAIT_EXTERNAL),
			  "cuStreamWaitEvent");
		must_cuda(cu.copy((uintptr_t)cuda_pages_base(seen, l),
				  (uintptr_t)cuda_pages_base(pages, l), sizeof(words), stream),
			  "cuMemcpyDtoDAsync");
	}
	must_cuda(cu.capture_end(stream, &graph), "cuStreamEndCapture");
	must_cuda(cu.instantiate(&forward, graph, 0), "cuGraphInstantiateWithFlags");
	cu.graph_destroy(graph);
}

/* ---- the cache ---- */

static void open_cache(void)
{
	struct okv_layer_schema shapes[LAYERS] = {0};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = TOKENS,
					 .layer_count = LAYERS,
					 .layout_tag = "NHD",
					 .layers = shapes};
	struct okv_layer layers[LAYERS] = {0};
	struct okv_manager_options manager_opts;
	struct okv_engine_options engine_opts;
	struct okv_namespace_options ns_opts;
	struct okv_binding_options binding_opts;

	for (uint32_t l = 0; l < LAYERS; l++) {
		shapes[l] = (struct okv_layer_schema){
			.order = l, .segment_count = 1, .segment_bytes = {PAGE}};
		layers[l] = (struct okv_layer){.base = cuda_pages_base(pages, l),
					       .length = sizeof(words),
					       .page_stride = PAGE,
					       .page_count = PAGES,
					       .segment_count = 1,
					       .segment_bytes = {PAGE}};
	}
	okv_manager_options_init(&manager_opts);
	manager_opts.memory_bytes = 128u << 20;
	okv_engine_options_init(&engine_opts);
	engine_opts.flags = OKV_ENGINE_EMBEDDED;
	engine_opts.embedded = &manager_opts;
	must(okv_engine_open(&engine_opts, &engine, &err));
	okv_namespace_options_init(&ns_opts);
	ns_opts.model = "graph-wait";
	ns_opts.group_count = 1;
	ns_opts.groups = &group;
	must(okv_namespace_open(engine, &ns_opts, &ns, &err));
	okv_binding_options_init(&binding_opts);
	binding_opts.device = OKV_DEVICE_CUDA;
	binding_opts.layer_count = LAYERS;
	binding_opts.layers = layers;
	must(okv_binding_register(ns, &binding_opts, &binding, &err));
}

/* ---- contents: no two words of any two are the same ---- */

static uint32_t word(char content, uint32_t layer, uint32_t block, uint32_t i)
{
	return (uint32_t)content << 25 | layer << 20 | block << 15 | i;
}

static struct okv_keys keys_of(char content, unsigned char buffer[BLOCKS][2])
{
	for (uint32_t b = 0; b < BLOCKS; b++) {
		buffer[b][0] = (unsigned char)content;
		buffer[b][1] = (unsigned char)b;
	}
	return (struct okv_keys){.count = BLOCKS, .key_bytes = 2, .keys = buffer};
}

/* The model's first pass over a prompt: pages 0, 1, … hold its blocks, and become the cache's. */
static void publish(char content)
{
	struct CUstream_st *const uploads[] = {NULL}; /* cuda_pages_upload() uses the null stream */
	struct okv_publish_options opts;
	struct okv_publish_group from;
	unsigned char keys[BLOCKS][2];
	uint32_t list[BLOCKS];
	struct okv_op *op;

	for (uint32_t l = 0; l < LAYERS; l++) {
		memset(words, 0, sizeof(words));
		for (uint32_t b = 0; b < BLOCKS; b++)
			for (uint32_t i = 0; i < WORDS; i++)
				words[b * WORDS + i] = word(content, l, b, i);
		must_cuda(cuda_pages_upload(pages, l, words), "cuMemcpyHtoD");
	}
	for (uint32_t b = 0; b < BLOCKS; b++)
		list[b] = b;
	from = (struct okv_publish_group){
		.keys = keys_of(content, keys), .tokens = BLOCKS * TOKENS, .pages = list};
	okv_publish_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &from;
	opts.ready = (struct okv_ready){.stream_count = 1, .streams = uploads};
	must(okv_publish_start(binding, &opts, &op, &err));
	finish(op);
}

/* ---- restore and replay ---- */

static struct okv_lease *look_up(char content)
{
	struct okv_lookup_options opts;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	unsigned char buffer[BLOCKS][2];
	struct okv_keys keys = keys_of(content, buffer);

	okv_lookup_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &keys;
	must(okv_lookup(ns, &opts, &found, &lease, &err));
	return lease;
}

static uint32_t page_of(uint32_t block)
{
	return PAGES - 1 - block; /* other pages than those it was published from */
}

static struct okv_op *start_restore(struct okv_lease *lease)
{
	struct CUstream_st *const last_users[] = {stream, NULL};
	struct okv_layer_event events[LAYERS] = {0};
	struct okv_restore_options opts;
	struct okv_restore_group to;
	uint32_t list[BLOCKS];
	struct okv_op *op;

	for (uint32_t b = 0; b < BLOCKS; b++)
		list[b] = page_of(b);
	for (uint32_t l = 0; l < LAYERS; l++)
		events[l] =
			(struct okv_layer_event){.layer = l, .event = cuda_pages_event(pages, l)};
	to = (struct okv_restore_group){.count = BLOCKS, .pages = list};
	okv_restore_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &to;
	opts.event_count = LAYERS;
	opts.events = events;
	opts.ready = (struct okv_ready){.stream_count = 2, .streams = last_users};
	must(okv_restore_start(binding, lease, &opts, &op, &err));
	return op;
}

static uint64_t count_wrong(char content)
{
	uint64_t wrong = 0;

	for (uint32_t l = 0; l < LAYERS; l++) {
		must_cuda(cuda_pages_download(seen, l, words), "cuMemcpyDtoH");
		for (uint32_t b = 0; b < BLOCKS; b++)
			for (uint32_t i = 0; i < WORDS; i++)
				wrong += words[page_of(b) * WORDS + i] != word(content, l, b, i);
	}
	return wrong;
}

static int replay(char content)
{
	struct okv_lease *lease = look_up(content);
	struct okv_op *op = start_restore(lease);

	for (uint32_t l = 0; l < LAYERS; l++)
		must(okv_op_wait_enqueued(op, l, -1));
	must_cuda(cu.launch(forward, stream), "cuGraphLaunch");
	int early = okv_op_poll(op, NULL) == OKV_E_RUNNING;
	must_cuda(cu.stream_synchronize(stream), "cuStreamSynchronize");
	uint64_t wrong = count_wrong(content);
	finish(op);
	printf("content %c: launched %s its restore had ended, %llu of %u words are wrong\n",
	       content, early ? "before" : "after", (unsigned long long)wrong,
	       LAYERS * BLOCKS * WORDS);
	okv_lease_release(lease);
	return wrong != 0;
}

int main(void)
{
	open_gpu();
	open_cache();
	publish('A');
	publish('B');
	capture_forward_pass();
	printf("one graph of %u layers is captured\n", LAYERS);
	int failed = replay('A');
	failed |= replay('B');
	printf("%s\n", failed ? "WRONG" : "each replay read the bytes of its own restore");
	okv_binding_unregister(binding);
	okv_namespace_close(ns);
	okv_engine_close(engine);
	close_gpu();
	return failed;
}
