/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's thread on a made-up device whose copies are over once they were asked about often
 * enough. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "exec/exec_private.h"
#include "support/suite.h"

#define BYTES (2u << 20) /* of the one layer there is */
#define LOOKS 40

static int looks; /* left, the worker's */

static int open_device(const struct oki_device_config *config, struct oki_device **ret_device,
		       struct okv_error *err)
{
	(void)config, (void)err;
	*ret_device = NULL;
	return 0;
}

static void close_device(struct oki_device *device)
{
	(void)device;
}

static int mark_create(struct oki_device *device, struct oki_mark **ret_mark, struct okv_error *err)
{
	(void)device, (void)err;
	*ret_mark = (struct oki_mark *)&looks;
	return 0;
}

static void mark_destroy(struct oki_mark *mark)
{
	(void)mark;
}

static int copy(struct oki_stream *stream, enum oki_direction direction,
		const struct oki_layer_copy *layers, uint32_t layer_count, struct okv_error *err)
{
	(void)stream, (void)direction, (void)layers, (void)err;
	return (int)layer_count;
}

static int record(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err)
{
	(void)stream, (void)mark, (void)err;
	looks = LOOKS;
	return 0;
}

static int told_soon;
static bool end_when_told; /* else after LOOKS looks, however long these take */

static int query(struct oki_mark *mark, struct okv_error *err)
{
	(void)mark, (void)err;
	return (!end_when_told || told_soon) && looks-- == 0;
}

static bool is_idle(struct oki_stream *stream)
{
	(void)stream;
	return false;
}

static const struct oki_device_ops ops = {
	.name = "asked",
	.max_pitch = UINT32_MAX,
	.open = open_device,
	.close = close_device,
	.attach = close_device,
	.mark_create = mark_create,
	.mark_destroy = mark_destroy,
	.copy = copy,
	.record = record,
	.query = query,
	.is_idle = is_idle,
};

static uint8_t block[64];
static struct oki_pair pair = {.host = block};
static const uint32_t page[1] = {0};
static struct oki_schema schema;
static struct oki_geometry geometry;
static struct oki_worker *worker;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended_cond = PTHREAD_COND_INITIALIZER;
static bool has_ended;

static int claim(void *arg, bool *ret_empty)
{
	(void)arg;
	*ret_empty = false;
	return 1;
}

static int next(void *arg, struct oki_part *ret_part, struct okv_error *err)
{
	(void)arg, (void)err;
	memset(ret_part, 0, sizeof(*ret_part));
	ret_part->groups_done = 1;
	ret_part->last = true;
	ret_part->groups[0] = (struct oki_part_group){&pair, 1};
	return 1;
}

static void layer_enqueued(void *arg, uint32_t layer)
{
	(void)arg, (void)layer;
}

static void enqueued(void *arg)
{
	(void)arg;
}

/* While copies are on their way, as the transfer is told of the end later. */
static void soon(void *arg)
{
	(void)arg;
	ck_assert(!has_ended);
	ck_assert_int_ge(looks, 0);
	told_soon++;
}

static void ended(void *arg, int status, uint64_t bytes)
{
	(void)arg;
	ck_assert_int_eq(status, 0);
	ck_assert_uint_eq(bytes, BYTES);
	pthread_mutex_lock(&lock);
	has_ended = true;
	pthread_cond_signal(&ended_cond);
	pthread_mutex_unlock(&lock);
}

static const struct oki_transfer_source source = {
	.claim = claim,
	.next = next,
	.layer_enqueued = layer_enqueued,
	.layer_done = layer_enqueued,
	.enqueued = enqueued,
	.soon = soon,
	.ended = ended,
};

static void setup(void)
{
	struct okv_layer_schema ls = {0, 1, {BYTES}};
	struct okv_layer layer = {.base = (void *)(uintptr_t)BYTES,
				  .length = BYTES,
				  .page_stride = BYTES,
				  .page_count = 1,
				  .segment_count = 1,
				  .segment_bytes = {BYTES}};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = 16,
					 .layer_count = 1,
					 .layout_tag = "NHD",
					 .layers = &ls};
	struct okv_namespace_options ns = {.size = sizeof(ns),
					   .rank_slots = 1,
					   .model = "m",
					   .pipeline_stages = 1,
					   .group_count = 1,
					   .groups = &group};
	struct okv_error err;
	ck_assert_int_eq(oki_schema_init(&schema, &ns, &err), 0);
	ck_assert_int_eq(oki_geometry_init(&geometry, &schema, &layer, 1, false, &err), 0);
	struct oki_worker_config config = {
		.ops = &ops, .spin_us = 50, .schema = &schema, .geometry = &geometry};
	ck_assert_int_eq(oki_worker_create(&config, &worker, &err), 0);
}

static void teardown(void)
{
	oki_worker_destroy(worker);
	oki_geometry_fini(&geometry);
	oki_schema_fini(&schema);
}

static void run(struct oki_transfer *t)
{
	struct okv_error err;
	has_ended = false;
	t->source = &source;
	t->group_count = 1;
	t->groups[0] = (struct oki_transfer_group){0, 1, page};
	ck_assert_int_eq(oki_transfer_init(worker, t, &err), 0);
	oki_worker_submit(worker, t);
	pthread_mutex_lock(&lock);
	while (!has_ended)
		pthread_cond_wait(&ended_cond, &lock);
	pthread_mutex_unlock(&lock);
	oki_transfer_fini(worker, t);
}

/* When it last found copies on their way, so that the next transfer is looked at in time. */
START_TEST(a_worker_learns_when_copies_end)
{
	const struct oki_poll_times *times = &worker->poll_times[OKI_TO_PAGES][1];
	uint64_t start = oki_now_ns();
	struct oki_transfer first = {0}, second = {0};
	run(&first);
	ck_assert_uint_ge(first.started_ns, start);
	ck_assert_uint_ge(first.submitted_ns, first.started_ns);
	ck_assert_uint_gt(first.looked_ns, first.submitted_ns);
	ck_assert_uint_le(first.looked_ns, oki_now_ns());
	ck_assert_uint_eq(first.expected_ns, 0);
	ck_assert_uint_gt(times->due_ns, 0);
	ck_assert_uint_ge(times->seen_ns, times->due_ns);
	/* Who knows nothing tells nothing. */
	ck_assert_int_eq(told_soon, 0);
	end_when_told = true;
	run(&second);
	end_when_told = false;
	ck_assert_uint_gt(second.expected_ns, second.started_ns);
	ck_assert_int_eq(told_soon, 1);
}
END_TEST

/* Behind a stream of the caller's it learns nothing. */
START_TEST(a_worker_learns_nothing_of_fences)
{
	struct oki_transfer t = {.fenced = true};
	run(&t);
	ck_assert_uint_eq(worker->poll_times[OKI_TO_PAGES][1].seen_ns, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker");
	TCase *tc = tcase_create("worker");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_worker_learns_when_copies_end);
	tcase_add_test(tc, a_worker_learns_nothing_of_fences);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
