/* SPDX-License-Identifier: Apache-2.0 */
/* What measure_copy's cases stand on. */
#include "tools/bench/measure/measure_rig.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct way ways[WORKERS] = {
	{"dma", OKV_COPY_DMA, 0, false},	   {"dma/one", OKV_COPY_DMA, 0, true},
	{"auto", OKV_COPY_AUTO, 0, false},	   {"auto/one", OKV_COPY_AUTO, 0, true},
	{"kernel/4", OKV_COPY_KERNEL, 4, false},   {"kernel/2", OKV_COPY_KERNEL, 2, false},
	{"kernel/1", OKV_COPY_KERNEL, 1, false},   {"kernel/8", OKV_COPY_KERNEL, 8, false},
	{"kernel/16", OKV_COPY_KERNEL, 16, false},
};

const struct oki_cuda_api *api;
uint8_t *arena, *shadow;
CUdeviceptr gpu;
CUstream plain;
CUevent plain_event;

void die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

void must(CUresult result)
{
	if (result != CUDA_SUCCESS)
		die("CUresult %d", (int)result);
}

void okay(int rc, const struct okv_error *err)
{
	if (rc < 0)
		die("%s", err->text);
}

/* ---- a model: a schema, a geometry, blocks and pages ---- */

static uint32_t rng = 12345;
static uint32_t below(uint32_t n)
{
	rng = rng * 1664525u + 1013904223u;
	return (uint32_t)((uint64_t)rng * n >> 32);
}

static void shuffle(uint32_t *a, uint32_t n, bool really)
{
	for (uint32_t i = 0; i < n; i++)
		a[i] = i;
	for (uint32_t i = n; really && i > 1; i--) {
		uint32_t j = below(i), x = a[j];
		a[j] = a[i - 1];
		a[i - 1] = x;
	}
}

static uint64_t block_bytes(const struct model *m)
{
	return m->schema.groups[0].block_bytes;
}

/* Segments split, as K and V are; tensors one after the other. */
void model_init_in(struct model *m, uint32_t layers, uint32_t segments, uint64_t bytes,
		   uint32_t pages, uint32_t pool, bool shuffled)
{
	struct okv_error err;
	*m = (struct model){.layers = layers,
			    .segments = segments,
			    .pages = pages,
			    .pool = pool,
			    .bytes = bytes};
	struct okv_layer_schema *ls = calloc(layers, sizeof(*ls));
	struct okv_layer *l = calloc(layers, sizeof(*l));
	for (uint32_t i = 0; i < layers; i++) {
		ls[i].order = i;
		ls[i].segment_count = l[i].segment_count = segments;
		l[i].length = (uint64_t)segments * pool * bytes;
		l[i].base = (uint8_t *)gpu + i * l[i].length;
		l[i].page_stride = bytes;
		l[i].page_count = pool;
		for (uint32_t s = 0; s < segments; s++) {
			ls[i].segment_bytes[s] = l[i].segment_bytes[s] = bytes;
			l[i].segment_offset[s] = (uint64_t)s * pool * bytes;
		}
	}
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = 16,
					 .layer_count = layers,
					 .layout_tag = "measured",
					 .layers = ls};
	struct okv_namespace_options ns = {.size = sizeof(ns),
					   .rank_slots = 1,
					   .model = "measured",
					   .pipeline_stages = 1,
					   .group_count = 1,
					   .groups = &group};
	okay(oki_schema_init(&m->schema, &ns, &err), &err);
	okay(oki_geometry_init(&m->geometry, &m->schema, l, layers, false, &err), &err);
	free(ls);
	free(l);
	m->page = malloc(pool * sizeof(*m->page));
	m->slot = malloc(pool * sizeof(*m->slot));
	shuffle(m->page, pool, shuffled);
	shuffle(m->slot, pool, shuffled);
	if ((uint64_t)pool * block_bytes(m) > ARENA)
		die("the arena is too small");
	m->pairs = malloc(pages * sizeof(*m->pairs));
	for (uint32_t i = 0; i < pages; i++)
		m->pairs[i] = (struct oki_pair){.host = arena + m->slot[i] * block_bytes(m),
						.ordinal = i};
}

void model_init(struct model *m, uint32_t layers, uint32_t segments, uint64_t bytes, uint32_t pages,
		bool shuffled)
{
	model_init_in(m, layers, segments, bytes, pages, pages, shuffled);
}

void model_fini(struct model *m)
{
	oki_geometry_fini(&m->geometry);
	oki_schema_fini(&m->schema);
	free(m->page);
	free(m->slot);
	free(m->pairs);
}

uint64_t model_bytes(const struct model *m)
{
	return (uint64_t)m->layers * m->segments * m->bytes * m->pages;
}

/* ---- one operation ---- */

static int job_claim(void *arg, bool *ret_empty)
{
	(void)arg;
	*ret_empty = false;
	return 1;
}

static int job_next(void *arg, struct oki_part *ret_part, struct okv_error *err)
{
	struct job *j = arg;
	(void)err;
	if (j->offered)
		return 0;
	j->offered = true;
	*ret_part = (struct oki_part){.groups_done = 1, .last = true};
	ret_part->groups[0].pairs = j->m->pairs + j->first;
	ret_part->groups[0].count = j->count;
	return 1;
}

static void job_layer_enqueued(void *arg, uint32_t layer)
{
	struct job *j = arg;
	if (layer == 0)
		atomic_store(&j->first_enqueued, true);
}

static void job_failing(void *arg, const struct okv_error *why)
{
	(void)arg;
	die("an operation failed: %s", why->text);
}

static void job_enqueued(void *arg)
{
	struct job *j = arg;
	j->enqueued = oki_now_ns() - j->started;
}

static void job_layer_done(void *arg, uint32_t layer)
{
	(void)arg, (void)layer;
}

static void job_ended(void *arg, int status, uint64_t bytes)
{
	struct job *j = arg;
	(void)bytes;
	uint64_t now = oki_now_ns();
	if (status < 0)
		die("an operation ended with %d", status);
	oki_transfer_fini(j->worker, &j->t);
	atomic_store(&j->ended, now);
}

static const struct oki_transfer_source source = {
	.claim = job_claim,
	.next = job_next,
	.layer_enqueued = job_layer_enqueued,
	.failing = job_failing,
	.enqueued = job_enqueued,
	.layer_done = job_layer_done,
	.ended = job_ended,
};

void job_start(struct job *j, struct oki_worker *w, const struct model *m,
	       enum oki_direction direction, uint32_t first, uint32_t count,
	       struct CUevent_st **events)
{
	struct okv_error err;
	memset(j, 0, sizeof(*j));
	j->worker = w;
	j->m = m;
	j->first = first;
	j->count = count;
	j->t = (struct oki_transfer){.source = &source,
				     .arg = j,
				     .direction = direction,
				     .group_count = 1,
				     .groups = {{0, count, m->page}},
				     .events = events};
	okay(oki_worker_stream_get(w, &j->t.stream, &err), &err);
	j->started = oki_now_ns();
	okay(oki_transfer_init(w, &j->t, &err), &err);
	oki_worker_submit(w, &j->t);
}

double job_wait(struct job *j, struct oki_worker *w)
{
	while (!atomic_load(&j->ended))
		oki_relax();
	oki_worker_stream_put(w, j->t.stream, true);
	return (double)(j->ended - j->started);
}

/* ---- workers ---- */

/* A worker borrows its schema and geometry: one for each case. */
struct oki_worker *worker_for(const struct way *way, const struct model *m)
{
	struct oki_worker *w;
	struct okv_error err;
	struct oki_worker_config config = {.ops = &oki_device_cuda,
					   .copy_path = way->path,
					   .copy_sms = way->sms,
					   .spin_us = 1000,
					   .schema = &m->schema,
					   .geometry = &m->geometry};
	okay(oki_worker_create(&config, &w, &err), &err);
	okay(oki_device_cuda.pin(oki_worker_device(w), arena, ARENA, false, &err), &err);
	if (way->one)
		okay(oki_device_cuda.check_memory(oki_worker_device(w), (void *)gpu, GPU_BYTES,
						  &err),
		     &err);
	return w;
}

void worker_end(struct oki_worker *w)
{
	oki_device_cuda.unpin(oki_worker_device(w), arena);
	oki_worker_destroy(w);
}

/* ---- a small kernel ---- */

static CUmodule tiny_module;
static CUfunction tiny;

void tiny_init(void)
{
	static const char ptx[] = ".version 7.0\n.target sm_75\n.address_size 64\n"
				  ".visible .entry tiny()\n{\n\tret;\n}\n";
	must(api->module_load(&tiny_module, ptx));
	must(api->module_function(&tiny, tiny_module, "tiny"));
}

void tiny_launch(CUstream stream)
{
	must(api->launch(tiny, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

void tiny_fini(void)
{
	must(api->module_unload(tiny_module));
}

/* ---- medians, plain copies ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(*values), by_value);
	return values[n / 2];
}

double plain_copy(enum oki_direction direction, uint64_t bytes)
{
	uint64_t start = oki_now_ns();
	must(direction == OKI_TO_PAGES ? api->copy_to_device(gpu, arena, bytes, plain)
				       : api->copy_to_host(arena, gpu, bytes, plain));
	must(api->event_record(plain_event, plain));
	while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY)
		;
	return (double)(oki_now_ns() - start);
}

double plain_median(enum oki_direction direction, uint64_t bytes, int n)
{
	double ns[512];
	for (int i = 0; i < n; i++)
		ns[i] = plain_copy(direction, bytes);
	return median(ns, n);
}

/* ---- bytes ---- */

void noise(uint8_t *at, uint64_t bytes)
{
	uint64_t *w = (uint64_t *)(void *)at, x = 88172645463325252ull + rng;
	for (uint64_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		w[i] = x;
	}
}

/* Row of the arena and of an image of the GPU's memory, for block i. */
static bool rows_match(const struct model *m)
{
	for (uint32_t l = 0; l < m->layers; l++)
		for (uint32_t s = 0; s < m->segments; s++)
			for (uint32_t i = 0; i < m->pages; i++) {
				const uint8_t *h = arena + m->slot[i] * block_bytes(m) +
						   m->schema.layers[l].block_offset[s];
				const uint8_t *d =
					shadow +
					(((uint64_t)l * m->segments + s) * m->pool + m->page[i]) *
						m->bytes;
				if (memcmp(h, d, m->bytes) != 0)
					return false;
			}
	return true;
}

static void sync_copy(bool up, uint64_t bytes)
{
	must(up ? api->copy_to_device(gpu, shadow, bytes, plain)
		: api->copy_to_host(shadow, gpu, bytes, plain));
	must(api->stream_synchronize(plain));
}

void verify(struct oki_worker *w, const struct model *m, enum oki_direction direction)
{
	struct job j;
	uint64_t bytes = (uint64_t)m->layers * m->segments * m->bytes * m->pool;
	if (direction == OKI_TO_PAGES) {
		noise(arena, m->pool * block_bytes(m));
		memset(shadow, 0xee, bytes);
		sync_copy(true, bytes);
	} else {
		noise(shadow, bytes);
		sync_copy(true, bytes);
		memset(arena, 0xee, m->pool * block_bytes(m));
	}
	job_start(&j, w, m, direction, 0, m->pages, NULL);
	job_wait(&j, w);
	if (direction == OKI_TO_PAGES)
		sync_copy(false, bytes);
	if (!rows_match(m))
		die("bytes differ");
}

const char *const names[2] = {"restore", "publish"};
