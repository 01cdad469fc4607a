/*
 * What the CUDA device and the executor reach, beside plain copies in the same run. No test: it
 * prints figures. Every case verifies each byte once, over poisoned destinations, before it is
 * timed; figures are medians.
 *
 * measure_copy [ceilings] [fragments] [model] [overlap] [small] [fair] [busy]
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "device/cuda_device.h"
#include "exec/worker.h"

#define ARENA (5ull << 30)
#define SHADOW (5ull << 30)
#define WORKERS 7

struct way {
	const char *name;
	uint32_t path, sms;
	struct oki_worker *worker;
};

static struct way ways[WORKERS] = {
	{"dma", OKV_COPY_DMA, 0, NULL},		  {"auto", OKV_COPY_AUTO, 0, NULL},
	{"kernel/2", OKV_COPY_KERNEL, 2, NULL},	  {"kernel/4", OKV_COPY_KERNEL, 4, NULL},
	{"kernel/1", OKV_COPY_KERNEL, 1, NULL},	  {"kernel/8", OKV_COPY_KERNEL, 8, NULL},
	{"kernel/16", OKV_COPY_KERNEL, 16, NULL},
};

static const struct oki_cuda_api *api;
static uint8_t *arena, *shadow;
static CUdeviceptr gpu;
static CUstream plain;
static CUevent plain_event;

static void die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static void must(CUresult result)
{
	if (result != CUDA_SUCCESS)
		die("CUresult %d", (int)result);
}

static void okay(int rc, const struct okv_error *err)
{
	if (rc < 0)
		die("%s", err->text);
}

/* ---- a model: a schema, a geometry, blocks and pages ---- */

struct model {
	uint32_t layers, segments, pages;
	uint64_t bytes; /* of a segment of a page */
	struct oki_schema schema;
	struct oki_geometry geometry;
	uint32_t *page; /* of block i */
	uint32_t *slot; /* in the arena, of block i */
};

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
static void model_init(struct model *m, uint32_t layers, uint32_t segments, uint64_t bytes,
		       uint32_t pages, bool shuffled)
{
	struct okv_error err;
	*m = (struct model){.layers = layers, .segments = segments, .pages = pages, .bytes = bytes};
	struct okv_layer_schema *ls = calloc(layers, sizeof(*ls));
	struct okv_layer *l = calloc(layers, sizeof(*l));
	for (uint32_t i = 0; i < layers; i++) {
		ls[i].order = i;
		ls[i].segment_count = l[i].segment_count = segments;
		l[i].length = (uint64_t)segments * pages * bytes;
		l[i].base = (uint8_t *)gpu + i * l[i].length;
		l[i].page_stride = bytes;
		l[i].page_count = pages;
		for (uint32_t s = 0; s < segments; s++) {
			ls[i].segment_bytes[s] = l[i].segment_bytes[s] = bytes;
			l[i].segment_offset[s] = (uint64_t)s * pages * bytes;
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
	okay(oki_geometry_init(&m->geometry, &m->schema, l, layers, &err), &err);
	free(ls);
	free(l);
	m->page = malloc(pages * sizeof(*m->page));
	m->slot = malloc(pages * sizeof(*m->slot));
	shuffle(m->page, pages, shuffled);
	shuffle(m->slot, pages, shuffled);
	if ((uint64_t)pages * block_bytes(m) > ARENA)
		die("the arena is too small");
}

static void model_fini(struct model *m)
{
	oki_geometry_fini(&m->geometry);
	oki_schema_fini(&m->schema);
	free(m->page);
	free(m->slot);
}

static uint64_t model_bytes(const struct model *m)
{
	return (uint64_t)m->layers * m->segments * m->bytes * m->pages;
}

/* ---- one operation ---- */

struct job {
	struct oki_transfer t;
	struct oki_worker *worker;
	const struct model *m;
	uint32_t count;
	bool offered;
	struct oki_pair *pairs;
	uint64_t started, enqueued;
	_Atomic bool first_enqueued;
	_Atomic uint64_t ended;
};

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
	j->pairs = malloc(j->count * sizeof(*j->pairs));
	for (uint32_t i = 0; i < j->count; i++)
		j->pairs[i] = (struct oki_pair){.host = arena + j->m->slot[i] * block_bytes(j->m),
						.ordinal = i};
	ret_part->groups[0].pairs = j->pairs;
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
	free(j->pairs);
	oki_transfer_fini(j->worker, &j->t);
	atomic_store(&j->ended, now);
}

static const struct oki_transfer_source source = {
	job_claim,   job_next,	   job_layer_enqueued,
	job_failing, job_enqueued, job_layer_done,
	job_ended,   NULL,	   NULL,
};

static void job_start(struct job *j, struct oki_worker *w, const struct model *m,
		      enum oki_direction direction, uint32_t count, struct CUevent_st **events)
{
	struct okv_error err;
	memset(j, 0, sizeof(*j));
	j->worker = w;
	j->m = m;
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

static double job_wait(struct job *j, struct oki_worker *w)
{
	while (!atomic_load(&j->ended))
		oki_relax();
	oki_worker_stream_put(w, j->t.stream, true);
	return (double)(j->ended - j->started);
}

/* ---- workers ---- */

/* A worker borrows its schema and geometry: one for each case. */
static struct oki_worker *worker_for(const struct way *way, const struct model *m)
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
	return w;
}

static void worker_end(struct oki_worker *w)
{
	oki_device_cuda.unpin(oki_worker_device(w), arena);
	oki_worker_destroy(w);
}

/* ---- medians, plain copies ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(*values), by_value);
	return values[n / 2];
}

static double plain_copy(enum oki_direction direction, uint64_t bytes)
{
	uint64_t start = oki_now_ns();
	must(direction == OKI_TO_PAGES ? api->copy_to_device(gpu, arena, bytes, plain)
				       : api->copy_to_host(arena, gpu, bytes, plain));
	must(api->event_record(plain_event, plain));
	while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY)
		;
	return (double)(oki_now_ns() - start);
}

static double plain_median(enum oki_direction direction, uint64_t bytes, int n)
{
	double ns[512];
	for (int i = 0; i < n; i++)
		ns[i] = plain_copy(direction, bytes);
	return median(ns, n);
}

/* ---- bytes ---- */

static void noise(uint8_t *at, uint64_t bytes)
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
					(((uint64_t)l * m->segments + s) * m->pages + m->page[i]) *
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

static void verify(struct oki_worker *w, const struct model *m, enum oki_direction direction)
{
	struct job j;
	uint64_t bytes = model_bytes(m);
	if (direction == OKI_TO_PAGES) {
		noise(arena, m->pages * block_bytes(m));
		memset(shadow, 0xee, bytes);
		sync_copy(true, bytes);
	} else {
		noise(shadow, bytes);
		sync_copy(true, bytes);
		memset(arena, 0xee, m->pages * block_bytes(m));
	}
	job_start(&j, w, m, direction, m->pages, NULL);
	job_wait(&j, w);
	if (direction == OKI_TO_PAGES)
		sync_copy(false, bytes);
	if (!rows_match(m))
		die("bytes differ");
}

/* ---- cases ---- */

static const char *const names[] = {"restore", "publish"};

/* 72 2-D copies of 64 rows of 32 KiB, in one stream or in turns in two. */
static double two_d(uint32_t streams, CUstream other)
{
	uint64_t start = oki_now_ns();
	for (uint64_t i = 0; i < 72; i++) {
		CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
				      .srcHost = arena + i * 65536,
				      .srcPitch = 72 * 65536,
				      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
				      .dstDevice = gpu + i * (2 << 20),
				      .dstPitch = 32768,
				      .WidthInBytes = 32768,
				      .Height = 64};
		must(api->copy_2d(&copy, i % streams ? other : plain));
	}
	must(api->stream_synchronize(plain));
	must(api->stream_synchronize(other));
	return (double)(oki_now_ns() - start);
}

/* What the calls of a joined copy and its events cost the CPU, one by one. */
static void calls(CUstream other)
{
	enum { TIMES = 200 };
	CUevent event;
	uint64_t at[5];
	must(api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	must(api->stream_synchronize(plain));
	at[0] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->event_record(event, plain));
	at[1] = oki_now_ns();
	must(api->stream_synchronize(plain));
	at[2] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->stream_wait_event(other, event, 0));
	at[3] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->copy_to_device(gpu, arena, 64 << 10, plain));
	at[4] = oki_now_ns();
	must(api->stream_synchronize(plain));
	must(api->stream_synchronize(other));
	printf("CPU per call: event record %.2f us (%.2f with its end on the GPU), wait for event "
	       "%.2f us, 64 KiB copy %.2f us\n",
	       (double)(at[1] - at[0]) / TIMES / 1000, (double)(at[2] - at[0]) / TIMES / 1000,
	       (double)(at[3] - at[2]) / TIMES / 1000, (double)(at[4] - at[3]) / TIMES / 1000);
	must(api->event_destroy(event));
}

static void ceilings(void)
{
	CUstream other;
	must(api->stream_create(&other, CU_STREAM_NON_BLOCKING, 0));
	for (uint32_t streams = 1; streams <= 2; streams++) {
		double ns[15];
		for (int i = 0; i < 15; i++)
			ns[i] = two_d(streams, other);
		printf("72 2-D copies of 2 MiB in %u streams: %.2f GB/s\n", streams,
		       72. * (2 << 20) / median(ns, 15));
	}
	calls(other);
	must(api->stream_destroy(other));
	for (int d = 0; d < 2; d++)
		printf("contiguous %s: 256 MiB %.2f GB/s, 1 GiB %.2f GB/s; 4 KiB %.2f us\n",
		       names[d], (256 << 20) / plain_median((enum oki_direction)d, 256 << 20, 11),
		       (1 << 30) / plain_median((enum oki_direction)d, 1 << 30, 5),
		       plain_median((enum oki_direction)d, 4096, 301) / 1000);
	struct oki_device_config config = {0};
	struct oki_device *device;
	struct okv_error err;
	uint64_t start = oki_now_ns();
	okay(oki_device_cuda.open(&config, &device, &err), &err);
	printf("open and calibrate: %.1f ms\n", (double)(oki_now_ns() - start) / 1e6);
	for (int d = 0; d < 2; d++) {
		char text[256];
		oki_cuda_rates_print(&device->rates[d], text, sizeof(text));
		printf("  %s: %s\n", names[d], text);
	}
	oki_device_cuda.close(device);
}

static void fragments(void)
{
	static const uint64_t sizes[] = {512, 1024, 2048, 4096, 32768, 65536, 262144, 1048576};
	const uint64_t total = 256 << 20;
	printf("\n256 MiB in 4 layers or more of up to 8,192 rows, scattered, GB/s and share of "
	       "one contiguous copy\n");
	for (int d = 0; d < 2; d++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
			struct model m;
			uint64_t rows = total / sizes[k] / 4;
			rows = rows < 8192 ? rows : 8192;
			model_init(&m, (uint32_t)(total / sizes[k] / rows), 1, sizes[k],
				   (uint32_t)rows, true);
			double top = (double)total / plain_median((enum oki_direction)d, total, 7);
			printf("%s %7llu B (ceiling %.1f):", names[d], (unsigned long long)sizes[k],
			       top);
			for (int w = 0; w < WORKERS; w++) {
				double ns[5];
				struct oki_worker *worker = worker_for(&ways[w], &m);
				verify(worker, &m, (enum oki_direction)d);
				for (int i = 0; i < 5; i++) {
					struct job j;
					job_start(&j, worker, &m, (enum oki_direction)d, m.pages,
						  NULL);
					ns[i] = job_wait(&j, worker);
				}
				double rate = (double)total / median(ns, 5);
				printf(" %s %.1f (%.2f)", ways[w].name, rate, rate / top);
				worker_end(worker);
			}
			putchar('\n');
			fflush(stdout);
			model_fini(&m);
		}
}

/* Until the first layer's bytes are there. */
static double first_layer(struct oki_worker *w, const struct model *m, enum oki_direction d,
			  struct CUevent_st **events)
{
	double ns[15];
	for (int i = 0; i < 15; i++) {
		struct job j;
		job_start(&j, w, m, d, m->pages, events);
		while (!atomic_load(&j.first_enqueued))
			oki_relax();
		while (api->event_query(events[0]) == CUDA_ERROR_NOT_READY)
			;
		ns[i] = (double)(oki_now_ns() - j.started);
		job_wait(&j, w);
	}
	return median(ns, 15);
}

static void model(void)
{
	static const uint32_t counts[] = {1, 8, 64, 512};
	struct CUevent_st *events[64];
	for (int i = 0; i < 36; i++)
		must(api->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
	printf("\n36 layers x (K, V) x 32 KiB per page, an event per layer: us, GB/s, share of one "
	       "contiguous copy; us to submit; us until layer 0 is there\n");
	for (int d = 0; d < 2; d++)
		for (int n = 0; n < 4; n++)
			for (int shuffled = 0; shuffled < 2; shuffled++) {
				struct model m;
				if (counts[n] == 1 && shuffled)
					continue;
				model_init(&m, 36, 2, 32768, counts[n], shuffled);
				double bytes = (double)model_bytes(&m);
				double top =
					plain_median((enum oki_direction)d, model_bytes(&m), 9);
				printf("%s %3u pages %-8s contiguous %.1f us %.2f GB/s\n", names[d],
				       counts[n], shuffled ? "shuffled" : "tidy", top / 1000,
				       bytes / top);
				for (int w = 0; w < 4; w++) {
					double ns[21], sub[21];
					struct oki_worker *worker = worker_for(&ways[w], &m);
					verify(worker, &m, (enum oki_direction)d);
					for (int i = 0; i < 21; i++) {
						struct job j;
						job_start(&j, worker, &m, (enum oki_direction)d,
							  m.pages, events);
						ns[i] = job_wait(&j, worker);
						sub[i] = (double)j.enqueued;
					}
					double took = median(ns, 21);
					printf("    %-9s %9.1f us %6.2f GB/s (%.3f)  submit %8.1f  "
					       "layer 0 %8.1f\n",
					       ways[w].name, took / 1000, bytes / took, top / took,
					       median(sub, 21) / 1000,
					       first_layer(worker, &m, (enum oki_direction)d,
							   events) /
						       1000);
					fflush(stdout);
					worker_end(worker);
				}
				model_fini(&m);
			}
}

/* The worst case alone: layers of 4 MiB in pieces, one kernel after the other. */
static void overlap(void)
{
	struct CUevent_st *events[36];
	struct model m;
	for (int i = 0; i < 36; i++)
		must(api->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
	model_init(&m, 36, 2, 32768, 64, true);
	for (int n = 0; n < 4; n++) {
		double ns[31];
		int d = n / 2;
		const struct way *way = &ways[2 + n % 2];
		struct oki_worker *worker = worker_for(way, &m);
		verify(worker, &m, (enum oki_direction)d);
		for (int i = 0; i < 31; i++) {
			struct job j;
			job_start(&j, worker, &m, (enum oki_direction)d, m.pages, events);
			ns[i] = job_wait(&j, worker);
		}
		double took = median(ns, 31);
		printf("%s 64 pages shuffled, %s: %.1f us, %.2f GB/s, layer 0 after "
		       "%.1f us\n",
		       names[d], way->name, took / 1000, (double)model_bytes(&m) / took,
		       first_layer(worker, &m, (enum oki_direction)d, events) / 1000);
		worker_end(worker);
	}
	model_fini(&m);
}

static void small(void)
{
	printf("\nsmall operations, submit to ended, us (a bare copy, record and poll beside "
	       "it)\n");
	static const uint64_t sizes[] = {4096, 65536, 1 << 20};
	for (int d = 0; d < 2; d++)
		for (int k = 0; k < 3; k++) {
			struct model m;
			model_init(&m, 1, 1, sizes[k], 16, false);
			printf("%s %7llu B: bare %.2f", names[d], (unsigned long long)sizes[k],
			       plain_median((enum oki_direction)d, sizes[k], 301) / 1000);
			for (int w = 0; w < 3; w++) {
				double ns[301];
				struct oki_worker *worker = worker_for(&ways[w], &m);
				for (int i = 0; i < 301; i++) {
					struct job j;
					job_start(&j, worker, &m, (enum oki_direction)d, 1, NULL);
					ns[i] = job_wait(&j, worker);
				}
				printf("  %s %.2f", ways[w].name, median(ns, 301) / 1000);
				worker_end(worker);
			}
			putchar('\n');
			model_fini(&m);
		}
}

/* One page behind many, and a bare copy behind one queued long copy after another. */
static void fair(void)
{
	printf("\na small restore behind a 4 GiB one\n");
	for (int tidy = 0; tidy < 2; tidy++) {
		struct model m;
		model_init(&m, 32, 2, 32768, 2048, !tidy);
		for (int w = 0; w < 3; w++) {
			double ns[5], alone[5], whole[5];
			struct oki_worker *worker = worker_for(&ways[w], &m);
			for (int i = 0; i < 5; i++) {
				struct job big, one;
				job_start(&one, worker, &m, OKI_TO_PAGES, 1, NULL);
				alone[i] = job_wait(&one, worker);
				job_start(&big, worker, &m, OKI_TO_PAGES, m.pages, NULL);
				while (!atomic_load(&big.first_enqueued))
					oki_relax();
				job_start(&one, worker, &m, OKI_TO_PAGES, 1, NULL);
				ns[i] = job_wait(&one, worker);
				whole[i] = job_wait(&big, worker);
			}
			printf("%s %s: one page alone %.0f us, behind %.0f us; the large one %.1f "
			       "ms\n",
			       tidy ? "tidy" : "shuffled", ways[w].name, median(alone, 5) / 1000,
			       median(ns, 5) / 1000, median(whole, 5) / 1e6);
			worker_end(worker);
		}
		model_fini(&m);
	}
	CUstream other;
	must(api->stream_create(&other, CU_STREAM_NON_BLOCKING, 0));
	for (uint64_t piece = 4 << 20; piece <= 64 << 20; piece *= 4)
		for (uint64_t bytes = 4096; bytes <= 1 << 20; bytes *= 256) {
			double ns[5];
			for (int i = 0; i < 5; i++) {
				for (uint64_t at = 0; at < 1 << 30; at += piece)
					must(api->copy_to_device(gpu + (1ull << 30) + at,
								 arena + at, piece, other));
				ns[i] = plain_copy(OKI_TO_PAGES, bytes);
				must(api->stream_synchronize(other));
			}
			printf("bare copy of %4llu KiB behind 1 GiB queued in copies of %llu MiB: "
			       "%.0f us\n",
			       (unsigned long long)(bytes >> 10), (unsigned long long)(piece >> 20),
			       median(ns, 5) / 1000);
		}
	must(api->stream_destroy(other));
}

/* ---- a matrix product beside the copies ---- */

static int (*blas_create)(void **);
static int (*blas_stream)(void *, CUstream);
static int (*blas_gemm)(void *, int, int, int, int, int, const void *, const void *, int, int,
			const void *, int, int, const void *, void *, int, int, int, int);

static bool blas_load(void)
{
	static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
	void *library = NULL;
	for (int i = 0; i < 3 && !library; i++)
		library = dlopen(files[i], RTLD_NOW);
	if (!library)
		return false;
	blas_create = (__typeof__(blas_create))dlsym(library, "cublasCreate_v2");
	blas_stream = (__typeof__(blas_stream))dlsym(library, "cublasSetStream_v2");
	blas_gemm = (__typeof__(blas_gemm))dlsym(library, "cublasGemmEx");
	return blas_create && blas_stream && blas_gemm;
}

#define SIDE 8192
#define PRODUCTS 60

/* Products from start to end; meanwhile one restore after the other, unless worker is NULL. */
static double products(void *blas, CUstream stream, struct oki_worker *worker,
		       const struct model *m, double *ret_rate)
{
	const uint64_t matrix = (uint64_t)SIDE * SIDE * 2;
	CUdeviceptr at = gpu + (6ull << 30);
	float one = 1, zero = 0;
	struct job job;
	double copied = 0;
	if (worker)
		job_start(&job, worker, m, OKI_TO_PAGES, m->pages, NULL);
	uint64_t start = oki_now_ns();
	for (int i = 0; i < PRODUCTS; i++)
		if (blas_gemm(blas, 0, 0, SIDE, SIDE, SIDE, &one, (void *)at, 14, SIDE,
			      (void *)(at + matrix), 14, SIDE, &zero, (void *)(at + 2 * matrix), 14,
			      SIDE, 68, 99))
			die("a matrix product failed");
	must(api->event_record(plain_event, stream));
	while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY) {
		if (!worker || !atomic_load(&job.ended))
			continue;
		job_wait(&job, worker);
		copied += (double)model_bytes(m);
		job_start(&job, worker, m, OKI_TO_PAGES, m->pages, NULL);
	}
	uint64_t end = oki_now_ns();
	if (worker) {
		double last = job_wait(&job, worker);
		if (job.started < end)
			copied += (double)model_bytes(m) * (double)(end - job.started) / last;
		*ret_rate = copied / (double)(end - start);
	}
	return (double)(end - start);
}

static void busy(void)
{
	void *blas;
	CUstream stream;
	if (!blas_load()) {
		printf("\nno cuBLAS here: no model beside the copies\n");
		return;
	}
	must(api->stream_create(&stream, CU_STREAM_NON_BLOCKING, 0));
	if (blas_create(&blas) || blas_stream(blas, stream))
		die("cuBLAS does not start");
	/* Random bf16 numbers of ordinary size: zeros would run faster. */
	noise(shadow, 3ull * SIDE * SIDE * 2);
	for (uint64_t i = 0; i < 3ull * SIDE * SIDE; i++) {
		uint16_t *number = (uint16_t *)(void *)shadow + i;
		*number = (uint16_t)((*number & 0x807f) | 0x3f00);
	}
	must(api->copy_to_device(gpu + (6ull << 30), shadow, 3ull * SIDE * SIDE * 2, plain));
	must(api->stream_synchronize(plain));
	products(blas, stream, NULL, NULL, NULL);
	printf("\nbf16 products of side %d beside restores of 512 pages of 36 x (K, V) x 32 KiB\n",
	       SIDE);
	for (int shuffled = 0; shuffled < 2; shuffled++) {
		struct model m;
		model_init(&m, 36, 2, 32768, 512, shuffled);
		for (int w = 0; w < WORKERS; w++) {
			struct oki_worker *worker = worker_for(&ways[w], &m);
			double alone[5], beside[5], rates[5];
			for (int i = 0; i < 5; i++) {
				alone[i] = products(blas, stream, NULL, NULL, NULL);
				beside[i] = products(blas, stream, worker, &m, &rates[i]);
			}
			double a = median(alone, 5), b = median(beside, 5);
			printf("%-8s %-9s: product %.0f TFLOP/s alone, keeps %.1f %%; copies %.1f "
			       "GB/s\n",
			       shuffled ? "shuffled" : "tidy", ways[w].name,
			       2.0 * SIDE * SIDE * SIDE * PRODUCTS / a / 1000, 100 * a / b,
			       median(rates, 5));
			fflush(stdout);
			worker_end(worker);
		}
		model_fini(&m);
	}
	must(api->stream_destroy(stream));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"ceilings", ceilings}, {"fragments", fragments}, {"model", model},
		     {"overlap", overlap},   {"small", small},	       {"fair", fair},
		     {"busy", busy}};
	struct oki_device_config config = {.copy_path = OKV_COPY_DMA};
	struct oki_device *device;
	struct okv_error err;
	okay(oki_device_cuda.open(&config, &device, &err), &err);
	api = device->api;
	struct oki_cuda_scope scope;
	must(oki_cuda_enter(api, device->context, &scope));
	arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shadow = mmap(NULL, SHADOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED || shadow == MAP_FAILED)
		die("no memory");
	madvise(arena, ARENA, MADV_HUGEPAGE);
	madvise(shadow, SHADOW, MADV_HUGEPAGE);
	okay(oki_device_cuda.pin(device, arena, ARENA, false, &err), &err);
	must(api->memory_alloc(&gpu, 7ull << 30));
	must(api->stream_create(&plain, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&plain_event, CU_EVENT_DISABLE_TIMING));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int k = 1; k < argc || argc == 1; k++) {
			if (argc == 1 || strcmp(argv[k], cases[i].name) == 0)
				cases[i].run();
			if (argc == 1)
				break;
		}
	api->event_destroy(plain_event);
	api->stream_destroy(plain);
	api->memory_free(gpu);
	oki_device_cuda.unpin(device, arena);
	oki_cuda_leave(&scope);
	oki_device_cuda.close(device);
	return 0;
}
