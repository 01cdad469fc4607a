/* SPDX-License-Identifier: Apache-2.0 */
/* The host device: bytes against a plain loop, marks, threads, and no wakeups when idle. */
#include <check.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "device/rect.h"
#include "test/device/copy_case.h"
#include "support/suite.h"
#include "test/device/same_runs.h"

static const struct oki_device_ops *const ops = &oki_device_host;

struct bell {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint64_t rings;
};

static struct bell bell = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void ring(void *arg)
{
	struct bell *b = arg;
	pthread_mutex_lock(&b->lock);
	b->rings++;
	pthread_cond_broadcast(&b->cond);
	pthread_mutex_unlock(&b->lock);
}

/* Sleep until notify was called for this mark. */
static void wait_mark(struct oki_mark *mark)
{
	pthread_mutex_lock(&bell.lock);
	while (ops->query(mark, NULL) == 0)
		pthread_cond_wait(&bell.cond, &bell.lock);
	pthread_mutex_unlock(&bell.lock);
}

static struct oki_device *open_device(uint32_t threads)
{
	struct oki_device_config config = {.threads = threads, .notify = ring, .arg = &bell};
	struct oki_device *device = NULL;
	ck_assert_int_eq(ops->open(&config, &device, NULL), 0);
	return device;
}

static struct oki_stream *open_stream(struct oki_device *device)
{
	struct oki_stream *stream = NULL;
	ck_assert_int_eq(ops->stream_create(device, &stream, NULL), 0);
	return stream;
}

static struct oki_mark *open_mark(struct oki_device *device)
{
	struct oki_mark *mark = NULL;
	ck_assert_int_eq(ops->mark_create(device, &mark, NULL), 0);
	return mark;
}

/* A placed case with its two memories and what they must become. */
struct scene {
	struct copy_case c;
	enum oki_direction direction;
	uint8_t *host, *pages, *want_host, *want_pages;
};

static uint8_t *image(uint64_t *seed, uint64_t bytes, uint8_t **ret_copy)
{
	uint8_t *p = malloc(bytes);
	*ret_copy = malloc(bytes);
	ck_assert(p && *ret_copy);
	case_noise(seed, p, bytes);
	memcpy(*ret_copy, p, bytes);
	return p;
}

static void scene_init(struct scene *s, uint64_t *seed, uint32_t scale)
{
	case_generate(&s->c, seed, scale);
	s->direction = case_below(seed, 2) ? OKI_TO_PAGES : OKI_TO_BLOCKS;
	s->host = image(seed, s->c.host_bytes, &s->want_host);
	s->pages = image(seed, s->c.pages_bytes, &s->want_pages);
	case_place(&s->c, s->host, s->pages);
	case_expect(&s->c, s->host, s->direction, s->want_host, s->want_pages);
}

static void scene_copy(struct scene *s, struct oki_stream *stream)
{
	const struct oki_layer_map *map = &s->c.map;
	ck_assert_int_eq(copy_same(ops, stream, s->direction, &map, NULL, 1, s->c.runs,
				   s->c.run_count, NULL),
			 1);
}

static bool scene_is_right(const struct scene *s)
{
	return memcmp(s->host, s->want_host, s->c.host_bytes) == 0 &&
	       memcmp(s->pages, s->want_pages, s->c.pages_bytes) == 0;
}

static void scene_fini(struct scene *s)
{
	free(s->host);
	free(s->pages);
	free(s->want_host);
	free(s->want_pages);
}

START_TEST(bytes_as_a_plain_loop)
{
	uint64_t seed = 0x5eed + (uint64_t)_i;
	struct oki_device *device = open_device(1 + (uint32_t)_i);
	struct oki_stream *stream = open_stream(device);
	for (int n = 0; n < 150; n++) {
		struct scene s;
		scene_init(&s, &seed, n % 5 == 4 ? 40 : 1);
		scene_copy(&s, stream);
		ck_assert_int_eq(ops->drain(stream, NULL), 0);
		ck_assert_msg(scene_is_right(&s), "case %d of seed %d", n, _i);
		scene_fini(&s);
	}
	ops->stream_destroy(stream);
	ops->close(device);
}
END_TEST

/* Rows far longer than a chunk, and so many bytes that stores go around the cache. */
START_TEST(long_rows)
{
	uint64_t seed = 77, width = (5u << 20) + 13;
	uint8_t *want, *pages_want;
	uint8_t *host = image(&seed, 3 * width + 7, &want);
	uint8_t *pages = image(&seed, 3 * width + 64, &pages_want);
	struct oki_layer_map map = {
		.base = pages + 3,
		.page_stride = width + 11,
		.segment_count = 1,
		.page_count = 3,
		.segments = {{.bytes = width}},
	};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {
		.host = host + 5,
		.host_pitch = width,
		.blocks = 3,
		.page_pitch = 1,
		.inner = 1,
	};
	for (uint32_t o = 0; o < 3; o++)
		memcpy(pages_want + 3 + o * map.page_stride, host + 5 + o * width, width);
	struct oki_device *device = open_device(3);
	struct oki_stream *stream = open_stream(device);
	ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, maps, NULL, 1, &run, 1, NULL), 1);
	ck_assert_int_eq(ops->drain(stream, NULL), 0);
	ck_assert(memcmp(pages, pages_want, 3 * width + 64) == 0);
	ck_assert(memcmp(host, want, 3 * width + 7) == 0);
	ops->stream_destroy(stream);
	ops->close(device);
	free(host);
	free(pages);
	free(want);
	free(pages_want);
}
END_TEST

/* When mark k is complete, the copies before it are done, and so are all earlier marks.
 */
START_TEST(marks_follow_their_copies)
{
	enum { LAYERS = 24 };
	static struct scene scenes[LAYERS];
	struct oki_mark *marks[LAYERS];
	uint64_t seed = 99;
	struct oki_device *device = open_device(4);
	struct oki_stream *stream = open_stream(device);
	for (int l = 0; l < LAYERS; l++) {
		scene_init(&scenes[l], &seed, l % 3 ? 30 : 1);
		marks[l] = open_mark(device);
		ck_assert_int_eq(ops->query(marks[l], NULL), 1);
	}
	for (int round = 0; round < 3; round++) {
		for (int l = 0; l < LAYERS; l++) {
			scene_copy(&scenes[l], stream);
			ck_assert_int_eq(ops->record(stream, marks[l], NULL), 0);
		}
		for (int l = LAYERS - 1; l >= 0; l -= 5) {
			wait_mark(marks[l]);
			for (int k = 0; k <= l; k++) {
				ck_assert_int_eq(ops->query(marks[k], NULL), 1);
				ck_assert(scene_is_right(&scenes[k]));
			}
		}
	}
	for (int l = 0; l < LAYERS; l++) {
		ops->mark_destroy(marks[l]);
		scene_fini(&scenes[l]);
	}
	ops->stream_destroy(stream);
	ops->close(device);
}
END_TEST

/* What the last mark covers may be freed at once, the stream and the mark too. */
START_TEST(nothing_is_touched_after_the_mark)
{
	uint64_t seed = 5;
	struct oki_device *device = open_device(3);
	for (int n = 0; n < 60; n++) {
		struct scene s;
		struct oki_stream *stream = open_stream(device);
		struct oki_mark *mark = open_mark(device);
		scene_init(&s, &seed, 30);
		scene_copy(&s, stream);
		ck_assert_int_eq(ops->record(stream, mark, NULL), 0);
		while (ops->query(mark, NULL) == 0)
			sched_yield();
		ck_assert(scene_is_right(&s));
		ops->mark_destroy(mark);
		ops->stream_destroy(stream);
		scene_fini(&s);
	}
	ops->close(device);
}
END_TEST

/* One call with several layers is one call for each. */
START_TEST(layers_of_one_call)
{
	enum { LAYERS = 5 };
	uint64_t seed = 41;
	uint8_t *want[LAYERS], *pages[LAYERS], *host, *host_want;
	struct oki_layer_map layers[LAYERS];
	const struct oki_layer_map *maps[LAYERS];
	struct oki_run runs[2];
	host = image(&seed, 64u << 10, &host_want);
	for (uint32_t i = 0; i < 2; i++)
		runs[i] = (struct oki_run){.host = host + i * 20000,
					   .host_pitch = 5000,
					   .blocks = 4,
					   .page = 1 + i * 5,
					   .page_pitch = 1,
					   .inner = 1};
	for (uint64_t l = 0; l < LAYERS; l++) {
		pages[l] = image(&seed, 10 * 700, &want[l]);
		layers[l] = (struct oki_layer_map){
			.base = pages[l],
			.page_stride = 700,
			.segment_count = 1,
			.page_count = 10,
			.segments = {{3, l * 600, 600}},
		};
		maps[l] = &layers[l];
		for (uint32_t b = 0; b < 8; b++)
			memcpy(want[l] + (1 + b % 4 + b / 4 * 5) * 700 + 3,
			       host + b * 5000 + l * 600, 600);
	}
	struct oki_device *device = open_device(2);
	struct oki_stream *stream = open_stream(device);
	/* A mark follows each layer, so it takes one at a time. */
	for (uint32_t i = 0; i < LAYERS; i++)
		ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, maps + i, NULL, LAYERS - i,
					   runs, 2, NULL),
				 1);
	ck_assert_int_eq(ops->drain(stream, NULL), 0);
	ops->stream_recycle(stream);
	for (int l = 0; l < LAYERS; l++) {
		ck_assert(memcmp(pages[l], want[l], 10 * 700) == 0);
		free(pages[l]);
		free(want[l]);
	}
	free(host);
	free(host_want);
	ops->stream_destroy(stream);
	ops->close(device);
}
END_TEST

static void *one_caller(void *arg)
{
	struct oki_device *device = arg;
	uint64_t seed = (uint64_t)(uintptr_t)&seed;
	struct oki_stream *stream = open_stream(device);
	struct oki_mark *mark = open_mark(device);
	for (int n = 0; n < 12; n++) {
		struct scene s[3];
		for (int k = 0; k < 3; k++) {
			scene_init(&s[k], &seed, k == 1 ? 20 : 2);
			scene_copy(&s[k], stream);
		}
		ck_assert_int_eq(ops->record(stream, mark, NULL), 0);
		wait_mark(mark);
		for (int k = 0; k < 3; k++) {
			ck_assert(scene_is_right(&s[k]));
			scene_fini(&s[k]);
		}
	}
	ops->mark_destroy(mark);
	ops->stream_destroy(stream);
	return NULL;
}

START_TEST(streams_of_several_threads)
{
	pthread_t callers[5];
	struct oki_device *device = open_device(2);
	for (int i = 0; i < 5; i++)
		ck_assert_int_eq(pthread_create(&callers[i], NULL, one_caller, device), 0);
	for (int i = 0; i < 5; i++)
		pthread_join(callers[i], NULL);
	ops->close(device);
}
END_TEST

/* Switches of the copy threads so far; *ret_asleep says whether all of them sleep. */
static long copier_switches(int *ret_asleep, int *ret_threads)
{
	DIR *tasks = opendir("/proc/self/task");
	ck_assert_ptr_nonnull(tasks);
	struct dirent *entry;
	long sum = 0;
	*ret_asleep = 1;
	*ret_threads = 0;
	while ((entry = readdir(tasks))) {
		char path[300], line[128];
		bool ours = false;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		FILE *f = fopen(path, "r");
		while (f && fgets(line, sizeof(line), f)) {
			long n;
			if (strcmp(line, "Name:\tokv-copy\n") == 0) {
				ours = true;
				++*ret_threads;
			}
			if (ours && strncmp(line, "State:\t", 7) == 0 && line[7] != 'S')
				*ret_asleep = 0;
			if (ours && sscanf(line, "voluntary_ctxt_switches: %ld", &n) == 1)
				sum += n;
		}
		if (f)
			fclose(f);
	}
	closedir(tasks);
	return sum;
}

START_TEST(idle_threads_never_wake)
{
	uint64_t seed = 3;
	struct oki_device *device = open_device(3);
	struct oki_stream *stream = open_stream(device);
	struct scene s;
	scene_init(&s, &seed, 60);
	scene_copy(&s, stream);
	ck_assert_int_eq(ops->drain(stream, NULL), 0);

	int asleep, threads;
	long before, after;
	do {
		sched_yield();
		before = copier_switches(&asleep, &threads);
	} while (!asleep || threads != 3);
	/* Not a wait for something: the time in which nothing may happen. */
	struct timespec quiet = {.tv_nsec = 100000000};
	nanosleep(&quiet, NULL);
	after = copier_switches(&asleep, &threads);
	ck_assert_int_eq(threads, 3);
	ck_assert_int_eq(before, after);

	scene_fini(&s);
	ops->stream_destroy(stream);
	ops->close(device);
}
END_TEST

START_TEST(empty_and_small_work)
{
	uint8_t host[16] = "0123456789abcde", pages[16] = {0}, id[16];
	int32_t node;
	struct oki_layer_map map = {
		.base = pages,
		.page_stride = 8,
		.segment_count = 1,
		.page_count = 2,
		.segments = {{.bytes = 8}},
	};
	const struct oki_layer_map *maps[] = {&map};
	struct oki_run run = {.host = host, .blocks = 1, .inner = 1, .page = 1};
	struct oki_device *device = open_device(0);
	struct oki_stream *stream = open_stream(device);
	struct oki_mark *mark = open_mark(device);
	ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, maps, NULL, 1, &run, 0, NULL), 1);
	ck_assert_int_eq(copy_same(ops, stream, OKI_TO_PAGES, maps, NULL, 1, &run, 1, NULL), 1);
	ck_assert_int_eq(ops->record(stream, mark, NULL), 0);
	wait_mark(mark);
	ck_assert(memcmp(pages + 8, host, 8) == 0);
	ck_assert_int_eq(pages[7], 0);
	ops->identify(device, id, &node);
	ck_assert_int_eq(node, -1);
	ck_assert_int_eq(ops->pin(device, host, sizeof(host), true, NULL), 0);
	ops->unpin(device, host);
	ops->mark_destroy(mark);
	ops->mark_destroy(NULL);
	ops->stream_destroy(stream);
	ops->stream_destroy(NULL);
	ops->close(device);
	ops->close(NULL);
}
END_TEST

START_TEST(refusals)
{
	struct okv_error err = {0};
	struct CUstream_st *none = NULL;
	struct oki_device_config config = {.threads = 100000};
	struct oki_device *device = NULL;
	ck_assert_int_eq(ops->open(&config, &device, &err), OKV_E_LIMIT);
	ck_assert_ptr_null(device);
	device = open_device(1);
	struct oki_stream *stream = open_stream(device);
	ck_assert_int_eq(ops->fence(stream, NULL, 0, &err), 0);
	ck_assert_int_eq(ops->fence(stream, &none, 1, &err), OKV_E_UNSUPPORTED);
	ck_assert_int_eq(ops->check_events(device, NULL, 0, &err), OKV_E_UNSUPPORTED);
	ck_assert_int_eq(ops->record_event(stream, NULL, &err), OKV_E_UNSUPPORTED);
	ck_assert_int_eq(ops->check_memory(device, NULL, 8, &err), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, &err, UINT64_MAX, &err), OKV_E_INVAL);
	ck_assert_int_eq(ops->check_memory(device, &err, sizeof(err), &err), 0);
	ops->stream_destroy(stream);
	ops->close(device);

	ck_assert_ptr_eq(oki_device_find(OKV_DEVICE_HOST), &oki_device_host);
	ck_assert_ptr_eq(oki_device_find(OKV_DEVICE_CUDA), &oki_device_cuda);
	ck_assert_ptr_null(oki_device_find(0));
}
END_TEST

/* A fused tensor: K and V touch in page and block, pages and blocks are neighbours. */
START_TEST(rows_merge)
{
	struct oki_layer_map map = {
		.page_stride = 200,
		.segment_count = 2,
		.page_count = 64,
		.segments = {{0, 0, 100}, {100, 100, 100}},
	};
	struct oki_layer_map joined;
	struct oki_run run = {.host_pitch = 200, .blocks = 4, .page_pitch = 1, .inner = 1};
	oki_join_segments(&map, &joined);
	ck_assert_uint_eq(joined.segment_count, 1);
	struct oki_rect r = oki_rect(&joined, &run, 0);
	ck_assert_uint_eq(r.width, 800);
	ck_assert_uint_eq(r.outer * r.inner, 1);

	run.host_pitch = 1000; /* other layers lie between: one 2-D copy */
	r = oki_rect(&joined, &run, 0);
	ck_assert_uint_eq(r.width, 200);
	ck_assert_uint_eq(r.outer, 4);
	ck_assert_uint_eq(r.inner, 1);

	/* Two pages per block: K of both pages, then V of both. */
	map.segments[1].block_offset = 200;
	oki_join_segments(&map, &joined);
	ck_assert_uint_eq(joined.segment_count, 2);
	run = (struct oki_run){
		.host_pitch = 400, .blocks = 4, .page_pitch = 2, .inner = 2, .inner_step = 1};
	r = oki_rect(&map, &run, 1);
	ck_assert_uint_eq(r.width, 100);
	ck_assert_uint_eq(r.inner, 2);
	ck_assert_uint_eq(r.outer, 4);

	/* One segment, woven at one distance through all blocks. */
	map.segment_count = 1;
	run.host_pitch = 200;
	r = oki_rect(&map, &run, 0);
	ck_assert_uint_eq(r.inner, 8);
	ck_assert_uint_eq(r.outer, 1);
	map.page_stride = 100;
	r = oki_rect(&map, &run, 0);
	ck_assert_uint_eq(r.width, 800);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("host device");
	TCase *tc = tcase_create("host");
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, bytes_as_a_plain_loop, 0, 4);
	tcase_add_test(tc, long_rows);
	tcase_add_test(tc, marks_follow_their_copies);
	tcase_add_test(tc, nothing_is_touched_after_the_mark);
	tcase_add_test(tc, layers_of_one_call);
	tcase_add_test(tc, streams_of_several_threads);
	tcase_add_test(tc, idle_threads_never_wake);
	tcase_add_test(tc, empty_and_small_work);
	tcase_add_test(tc, refusals);
	tcase_add_test(tc, rows_merge);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
