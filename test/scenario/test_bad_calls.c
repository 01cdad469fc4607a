/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong arguments to look up and move blocks, foreign and closed handles: nothing changes. */
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

#include "support/refused.h"
#include "support/suite.h"

#define N KV_SCENE_BLOCKS

#define COUNT(array) (sizeof(array) / sizeof(array[0]))

static struct kv_scene scene;

static void setup(void)
{
	kv_scene_open(&scene);
}

static void teardown(void)
{
	kv_scene_check(&scene);
	kv_scene_close(&scene);
}

static void retain(void *object)
{
	(*(int *)object)++;
}

static int owned;

static struct okv_owner half(bool second)
{
	struct okv_owner o = {&owned, second ? NULL : retain, second ? retain : NULL};
	return o;
}

/* ---- lookup.h ---- */

struct look_input {
	struct okv_lookup_options opts;
	struct okv_keys keys[2];
	uint8_t bytes[N * KV_KEY_BYTES];
};

static void look_input(struct look_input *in)
{
	uint8_t *keys = kv_keys(1, 0, N);
	memcpy(in->bytes, keys, sizeof(in->bytes));
	free(keys);
	for (uint32_t i = 0; i < 2; i++)
		in->keys[i] =
			(struct okv_keys){.count = N, .key_bytes = KV_KEY_BYTES, .keys = in->bytes};
	okv_lookup_options_init(&in->opts);
	in->opts.group_count = 1;
	in->opts.groups = in->keys;
}

static const struct kv_number look_numbers[] = {
	KV_NUMBER(struct look_input, opts.size, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.flags, 2, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.consumers, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.group_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.group_count, 2, OKV_E_INVAL), /* the same group twice */
	KV_NUMBER(struct look_input, opts.group_count, OKV_MAX_GROUPS + 1, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.group_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.groups, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, opts.reserved, 1, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].group, 1, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].group, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].count, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].count, OKV_MAX_BLOCKS + 1, OKV_E_LIMIT),
	KV_NUMBER(struct look_input, keys[0].count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct look_input, keys[0].key_bytes, 0, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].key_bytes, OKV_MAX_KEY_BYTES + 1, OKV_E_LIMIT),
	KV_NUMBER(struct look_input, keys[0].key_bytes, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct look_input, keys[0].reserved, 1, OKV_E_INVAL),
	KV_NUMBER(struct look_input, keys[0].keys, 0, OKV_E_INVAL),
};

START_TEST(lookups)
{
	struct look_input *in = kv_edge(sizeof(*in));
	struct okv_lookup_result r = {.tokens = 99};
	struct okv_lease *lease = KV_UNTOUCHED(struct okv_lease);
	okv_lookup_options_init(NULL);
	for (size_t i = 0; i < COUNT(look_numbers); i++) {
		look_input(in);
		kv_set_number(in, &look_numbers[i]);
		kv_refused(look_numbers[i].status,
			   okv_lookup(scene.ns, &in->opts, &r, &lease, kv_err));
		in->opts.flags |= OKV_LOOKUP_PEEK;
		if (in->opts.consumers)
			kv_refused(look_numbers[i].status,
				   okv_lookup(scene.ns, &in->opts, &r, NULL, kv_err));
	}
	look_input(in);
	kv_refused(OKV_E_INVAL, okv_lookup(NULL, &in->opts, &r, &lease, kv_err));
	kv_refused(OKV_E_INVAL, okv_lookup(scene.ns, NULL, &r, &lease, kv_err));
	kv_refused(OKV_E_INVAL, okv_lookup(scene.ns, &in->opts, NULL, &lease, kv_err));
	kv_refused(OKV_E_INVAL, okv_lookup(scene.ns, &in->opts, &r, NULL, kv_err));
	ck_assert_ptr_eq(lease, KV_UNTOUCHED(struct okv_lease));
	ck_assert_uint_eq(r.tokens, 99);
}
END_TEST

START_TEST(the_largest_lookup_is_answered)
{
	struct okv_layer_schema layers[OKV_MAX_GROUPS];
	struct okv_group_schema groups[OKV_MAX_GROUPS];
	struct okv_keys keys[OKV_MAX_GROUPS];
	struct okv_namespace_options no;
	struct okv_lookup_options o;
	struct okv_lookup_result r;
	struct okv_namespace *ns;
	const size_t bytes = (size_t)OKV_MAX_BLOCKS * OKV_MAX_KEY_BYTES;
	uint8_t *all = calloc(1, bytes);
	for (uint32_t i = 0; i < OKV_MAX_BLOCKS; i++)
		memcpy(all + i * OKV_MAX_KEY_BYTES, &i, sizeof(i));
	for (uint32_t g = 0; g < OKV_MAX_GROUPS; g++) {
		layers[g] = (struct okv_layer_schema){
			.order = g, .segment_count = 1, .segment_bytes = {16}};
		groups[g] = (struct okv_group_schema){.kind = OKV_GROUP_FULL,
						      .block_tokens = 16,
						      .layer_count = 1,
						      .layout_tag = "NHD",
						      .layers = &layers[g]};
		keys[g] = (struct okv_keys){.group = g,
					    .count = OKV_MAX_BLOCKS,
					    .key_bytes = OKV_MAX_KEY_BYTES,
					    .keys = all};
	}
	okv_namespace_options_init(&no);
	no.model = "largest";
	no.group_count = OKV_MAX_GROUPS;
	no.groups = groups;
	kv_ok(okv_namespace_open(scene.engine, &no, &ns, kv_err));
	okv_lookup_options_init(&o);
	o.flags = OKV_LOOKUP_PEEK;
	o.group_count = OKV_MAX_GROUPS;
	o.groups = keys;
	kv_ok(okv_lookup(ns, &o, &r, NULL, kv_err));
	ck_assert_uint_eq(r.tokens, 0);
	okv_namespace_close(ns);
	free(all);
	kv_scene_look(&scene);
}
END_TEST

START_TEST(leases)
{
	struct okv_lease *lease, *untouched = KV_UNTOUCHED(struct okv_lease);
	struct okv_namespace *salted = kv_namespace(scene.engine, &(struct kv_shape){.salt = "x"});
	struct okv_lookup_result r = {.tokens = 99};
	struct okv_lease_id id, zero = {{0}};
	ck_assert_uint_eq(kv_lookup(scene.ns, 1, N, 1, &lease), N);
	kv_scene_look(&scene);
	memset(&id, 7, sizeof(id));
	ck_assert_int_eq(okv_lease_id(NULL, &id), OKV_E_INVAL);
	ck_assert_int_eq(okv_lease_id(lease, NULL), OKV_E_INVAL);
	ck_assert_int_eq(okv_lease_result(NULL, &r), OKV_E_INVAL);
	ck_assert_int_eq(okv_lease_result(lease, NULL), OKV_E_INVAL);
	ck_assert_uint_eq(r.tokens, 99);
	kv_refused(OKV_E_INVAL, okv_lease_open(NULL, &id, &untouched, kv_err));
	kv_refused(OKV_E_INVAL, okv_lease_open(scene.ns, NULL, &untouched, kv_err));
	kv_refused(OKV_E_INVAL, okv_lease_open(scene.ns, &id, NULL, kv_err));
	/* Unknown ones, and one of another namespace: the Manager says no. */
	kv_refused(OKV_E_NOENT, okv_lease_open(scene.ns, &id, &untouched, kv_err));
	kv_refused(OKV_E_NOENT, okv_lease_open(scene.ns, &zero, &untouched, kv_err));
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	kv_refused(OKV_E_NOENT, okv_lease_open(salted, &id, &untouched, kv_err));
	ck_assert_ptr_eq(untouched, KV_UNTOUCHED(struct okv_lease));
	scene.status.ops_refused += 6;
	kv_scene_check(&scene);

	/* Two handles of one lease: each is released once, and the last one ends it. */
	struct okv_lease *again;
	kv_ok(okv_lease_open(scene.ns, &id, &again, kv_err));
	okv_lease_release(lease);
	okv_lease_release(NULL);
	kv_ok(okv_lease_open(scene.ns, &id, &lease, kv_err));
	okv_lease_release(again);
	okv_lease_release(lease);
	kv_until(kv_local_status(&scene.local).leases == 0);
	kv_refused(OKV_E_NOENT, okv_lease_open(scene.ns, &id, &untouched, kv_err));
	okv_namespace_close(salted);
	kv_scene_settle(&scene);
}
END_TEST

/* ---- transfer.h ---- */

static const struct okv_ready odd_ready[] = {
	{.reserved = 1}, {.stream_count = 1}, {.stream_count = UINT32_MAX}};

struct restore_input {
	struct okv_restore_options opts;
	struct okv_restore_group groups[2];
	struct okv_layer_event events[1];
	uint32_t pages[8];
};

static void restore_input(struct restore_input *in)
{
	memset(in, 0, sizeof(*in));
	okv_restore_options_init(&in->opts);
	in->opts.group_count = 1;
	in->opts.groups = in->groups;
	for (uint32_t i = 0; i < 8; i++)
		in->pages[i] = 10 + i;
	for (uint32_t i = 0; i < 2; i++)
		in->groups[i] = (struct okv_restore_group){.count = N, .pages = in->pages};
}

static const struct kv_number restore_numbers[] = {
	KV_NUMBER(struct restore_input, opts.size, 0, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.flags, 4, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.group_count, 2, OKV_E_INVAL), /* pages twice */
	KV_NUMBER(struct restore_input, opts.group_count, OKV_MAX_STRETCHES + 1, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.group_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.groups, 0, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, opts.event_count, 1, OKV_E_UNSUPPORTED),
	KV_NUMBER(struct restore_input, opts.event_count, UINT32_MAX, OKV_E_UNSUPPORTED),
	KV_NUMBER(struct restore_input, groups[0].group, 1, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].group, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].first, 1, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].first, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].count, N + 1, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].count, OKV_MAX_BLOCKS + 1, OKV_E_LIMIT),
	KV_NUMBER(struct restore_input, groups[0].count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct restore_input, groups[0].flags, OKV_OP_NOTIFY, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, groups[0].pages, 0, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, pages[0], 64, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, pages[3], UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct restore_input, pages[3], 10, OKV_E_INVAL),
};

static struct okv_op *const no_op = KV_UNTOUCHED(struct okv_op);

static void refuse_restore(struct okv_binding *b, struct okv_lease *l,
			   const struct okv_restore_options *o, int status)
{
	struct okv_op *op = no_op;
	kv_refused(status, okv_restore_start(b, l, o, &op, kv_err));
	ck_assert_ptr_eq(op, no_op);
}

START_TEST(restores)
{
	struct restore_input *in = kv_edge(sizeof(*in));
	struct okv_binding *b = scene.rank.binding;
	struct okv_lease *lease;
	struct okv_op_result r;
	okv_restore_options_init(NULL);
	ck_assert_uint_eq(kv_lookup(scene.ns, 1, N, 1, &lease), N);
	kv_poison(&scene.rank);
	kv_scene_look(&scene);
	for (size_t i = 0; i < COUNT(restore_numbers); i++) {
		restore_input(in);
		kv_set_number(in, &restore_numbers[i]);
		refuse_restore(b, lease, &in->opts, restore_numbers[i].status);
	}
	for (size_t i = 0; i < COUNT(odd_ready); i++) {
		restore_input(in);
		in->opts.ready = odd_ready[i];
		refuse_restore(b, lease, &in->opts, OKV_E_INVAL);
	}
	restore_input(in);
	struct CUstream_st *stream = NULL;
	in->opts.ready = (struct okv_ready){.stream_count = 1, .streams = &stream};
	refuse_restore(b, lease, &in->opts, OKV_E_UNSUPPORTED);
	for (int i = 0; i < 2; i++) {
		restore_input(in);
		in->opts.owner = half(i);
		refuse_restore(b, lease, &in->opts, OKV_E_INVAL);
	}
	restore_input(in);
	refuse_restore(NULL, lease, &in->opts, OKV_E_INVAL);
	refuse_restore(b, NULL, &in->opts, OKV_E_INVAL);
	refuse_restore(b, lease, NULL, OKV_E_INVAL);
	kv_refused(OKV_E_INVAL, okv_restore_start(b, lease, &in->opts, NULL, kv_err));
	ck_assert_int_eq(owned, 0);
	for (uint32_t p = 0; p < scene.rank.shape.pages; p++)
		ck_assert_uint_eq(kv_touched(&scene.rank, p), 0);
	kv_scene_check(&scene);
	/* None of it spent the lease's one share. */
	ck_assert_int_eq(kv_restore(&scene.rank, lease, 0, N, in->pages, 0, &r), 0);
	ck_assert_uint_eq(r.lease_spent, 1);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(kv_wrong(&scene.rank, 1, i, in->pages + i), 0);
	okv_lease_release(lease);
	kv_scene_settle(&scene);
}
END_TEST

struct publish_input {
	struct okv_publish_options opts;
	struct okv_publish_group groups[2];
	uint8_t keys[N * KV_KEY_BYTES];
	uint32_t pages[8];
};

static void publish_input(struct publish_input *in)
{
	uint8_t *keys = kv_keys(999, 0, N);
	memset(in, 0, sizeof(*in));
	memcpy(in->keys, keys, sizeof(in->keys));
	free(keys);
	okv_publish_options_init(&in->opts);
	in->opts.group_count = 1;
	in->opts.groups = in->groups;
	for (uint32_t i = 0; i < 8; i++)
		in->pages[i] = 10 + i;
	for (uint32_t i = 0; i < 2; i++)
		in->groups[i] = (struct okv_publish_group){
			.keys = {.count = N, .key_bytes = KV_KEY_BYTES, .keys = in->keys},
			.tokens = N * 16,
			.pages = in->pages};
}

static const struct kv_number publish_numbers[] = {
	KV_NUMBER(struct publish_input, opts.size, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.flags, OKV_RESTORE_KEEP, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.group_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.group_count, OKV_MAX_STRETCHES + 1, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.group_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.reserved, 1, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.groups, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, opts.read_done_event, 0x1000, OKV_E_UNSUPPORTED),
	KV_NUMBER(struct publish_input, groups[0].keys.group, 1, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].keys.group, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].keys.count, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].keys.count, N + 1, OKV_E_INVAL), /* tokens */
	KV_NUMBER(struct publish_input, groups[0].keys.count, OKV_MAX_BLOCKS + 1, OKV_E_LIMIT),
	KV_NUMBER(struct publish_input, groups[0].keys.count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct publish_input, groups[0].keys.key_bytes, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].keys.key_bytes, OKV_MAX_KEY_BYTES + 1,
		  OKV_E_LIMIT),
	KV_NUMBER(struct publish_input, groups[0].keys.key_bytes, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct publish_input, groups[0].keys.reserved, 1, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].keys.keys, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].first_position, 1, OKV_E_INVAL), /* no parent */
	KV_NUMBER(struct publish_input, groups[0].first_position, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].tokens, N * 16 - 1, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].tokens, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, groups[0].pages, 0, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, pages[0], 64, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, pages[3], UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct publish_input, pages[3], 10, OKV_E_INVAL),
};

static void refuse_publish(struct okv_binding *b, const struct okv_publish_options *o, int status)
{
	struct okv_op *op = no_op;
	kv_refused(status, okv_publish_start(b, o, &op, kv_err));
	ck_assert_ptr_eq(op, no_op);
}

START_TEST(publishes)
{
	struct publish_input *in = kv_edge(sizeof(*in));
	struct okv_binding *b = scene.rank.binding;
	okv_publish_options_init(NULL);
	for (size_t i = 0; i < COUNT(publish_numbers); i++) {
		publish_input(in);
		kv_set_number(in, &publish_numbers[i]);
		refuse_publish(b, &in->opts, publish_numbers[i].status);
	}
	for (size_t i = 0; i < COUNT(odd_ready); i++) {
		publish_input(in);
		in->opts.ready = odd_ready[i];
		refuse_publish(b, &in->opts, OKV_E_INVAL);
	}
	for (int i = 0; i < 2; i++) {
		publish_input(in);
		in->opts.owner = half(i);
		refuse_publish(b, &in->opts, OKV_E_INVAL);
	}
	publish_input(in);
	in->groups[0].parent = in->keys; /* at position 0 */
	refuse_publish(b, &in->opts, OKV_E_INVAL);
	in->groups[0].first_position = UINT32_MAX - N + 1;
	refuse_publish(b, &in->opts, OKV_E_INVAL);
	publish_input(in);
	refuse_publish(NULL, &in->opts, OKV_E_INVAL);
	refuse_publish(b, NULL, OKV_E_INVAL);
	kv_refused(OKV_E_INVAL, okv_publish_start(b, &in->opts, NULL, kv_err));
	ck_assert_int_eq(owned, 0);
	kv_scene_check(&scene);
	/* Nothing of it became visible, and the input that each case changed is a good one. */
	struct okv_op *op;
	struct okv_op_result r;
	ck_assert_uint_eq(kv_lookup(scene.ns, 999, N, 1, NULL), 0);
	publish_input(in);
	kv_ok(okv_publish_start(b, &in->opts, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.blocks, N);
	okv_op_release(op);
	kv_scene_settle(&scene);
}
END_TEST

START_TEST(operations)
{
	struct okv_op *op;
	struct okv_op_result r = {.blocks = 99}, again;
	struct okv_lease *lease;
	const uint32_t pages[N] = {9, 8, 7, 6};
	ck_assert_int_eq(okv_op_wait_enqueued(NULL, 0, 0), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait_layer(NULL, 0, 0), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_poll(NULL, &r), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait(NULL, 0, &r), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_cancel(NULL), OKV_E_INVAL);
	okv_op_release(NULL);
	ck_assert_uint_eq(r.blocks, 99);
	kv_scene_check(&scene);

	ck_assert_uint_eq(kv_lookup(scene.ns, 1, N, 1, &lease), N);
	kv_ok(kv_restore_start(&scene.rank, lease, 0, N, pages, 0, &op, kv_err));
	ck_assert_int_eq(okv_op_wait_layer(op, 4, -1), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait_layer(op, UINT32_MAX, -1), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait_enqueued(op, 4, -1), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait(op, -1, NULL), 0);
	/* What ended stays as it ended, however often it is cancelled or asked. */
	ck_assert_int_eq(okv_op_poll(op, &r), 0);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(okv_op_cancel(op), 0);
		ck_assert_int_eq(okv_op_poll(op, NULL), 0);
		ck_assert_int_eq(okv_op_wait(op, 0, &again), 0);
		ck_assert_mem_eq(&r, &again, sizeof(r));
		ck_assert_int_eq(okv_op_wait_layer(op, 3, 0), 0);
	}
	okv_op_release(op);
	okv_lease_release(lease);

	struct okv_op *publish;
	uint32_t *from = kv_pages(&scene.rank, N, 0, 1);
	kv_ok(kv_publish_start(&scene.rank, 77, 0, N, from, 0, &publish, kv_err));
	ck_assert_int_eq(okv_op_wait_layer(publish, 0, 0), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait_enqueued(publish, 0, 60000), 0);
	ck_assert_int_eq(okv_op_wait_enqueued(publish, 4, 0), OKV_E_INVAL);
	ck_assert_int_eq(okv_op_wait(publish, 60000, &r), 0);
	okv_op_release(publish);
	free(from);
	kv_scene_settle(&scene);
}
END_TEST

/* ---- handles of someone else, and of what is closed ---- */

START_TEST(foreign_handles)
{
	struct okv_namespace *salted = kv_namespace(scene.engine, &(struct kv_shape){.salt = "f"});
	struct restore_input *in = kv_edge(sizeof(*in));
	struct kv_rank theirs, ours;
	struct okv_lease *lease, *foreign;
	struct okv_op_result r;
	kv_rank_open(&theirs, scene.other_ns, &(struct kv_shape){0}, 0);
	kv_rank_open(&ours, salted, &(struct kv_shape){.salt = "f"}, 0);
	ck_assert_uint_eq(kv_lookup(scene.ns, 1, N, 1, &lease), N);
	ck_assert_uint_eq(kv_lookup(scene.other_ns, 1, N, 1, &foreign), N);
	kv_scene_look(&scene);
	restore_input(in);
	refuse_restore(theirs.binding, lease, &in->opts, OKV_E_INVAL);
	refuse_restore(scene.rank.binding, foreign, &in->opts, OKV_E_INVAL);
	refuse_restore(ours.binding, lease, &in->opts, OKV_E_INVAL);
	refuse_restore(ours.binding, foreign, &in->opts, OKV_E_INVAL);
	for (uint32_t p = 0; p < 64; p++)
		ck_assert_uint_eq(kv_touched(&theirs, p) + kv_touched(&ours, p), 0);
	kv_scene_check(&scene);
	ck_assert_int_eq(kv_restore(&theirs, foreign, 0, N, in->pages, 0, &r), 0);
	ck_assert_int_eq(kv_restore(&scene.rank, lease, 0, N, in->pages, 0, &r), 0);
	for (uint32_t i = 0; i < N; i++) {
		ck_assert_uint_eq(kv_wrong(&theirs, 1, i, in->pages + i), 0);
		ck_assert_uint_eq(kv_wrong(&scene.rank, 1, i, in->pages + i), 0);
	}
	okv_lease_release(lease);
	okv_lease_release(foreign);
	kv_rank_close(&theirs);
	kv_rank_close(&ours);
	okv_namespace_close(salted);
	kv_scene_settle(&scene);
}
END_TEST

START_TEST(an_engine_that_restores_only)
{
	struct okv_engine *e = kv_engine_connect(scene.local.socket_path, OKV_ENGINE_RESTORE_ONLY);
	struct okv_namespace *ns = kv_namespace(e, &(struct kv_shape){0});
	struct publish_input *in = kv_edge(sizeof(*in));
	struct okv_lease *lease;
	struct okv_op_result r;
	struct kv_rank rank;
	kv_rank_open(&rank, ns, &(struct kv_shape){0}, 0);
	publish_input(in);
	refuse_publish(rank.binding, &in->opts, OKV_E_PERM);
	ck_assert_uint_eq(kv_lookup(ns, 999, N, 1, NULL), 0);
	ck_assert_uint_eq(kv_lookup(ns, 1, N, 1, &lease), N);
	ck_assert_int_eq(kv_restore(&rank, lease, 0, N, in->pages, 0, &r), 0);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(kv_wrong(&rank, 1, i, in->pages + i), 0);
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
	kv_until(kv_local_status(&scene.local).sessions == 2);
	kv_scene_settle(&scene);
}
END_TEST

START_TEST(closed_and_quiesced_handles)
{
	struct restore_input *ri = kv_edge(sizeof(*ri));
	struct publish_input *pi = kv_edge(sizeof(*pi));
	struct look_input *li = kv_edge(sizeof(*li));
	struct okv_lease *lease, *untouched = KV_UNTOUCHED(struct okv_lease);
	struct okv_binding *none = KV_UNTOUCHED(struct okv_binding);
	struct okv_binding_options bo;
	struct okv_lookup_result r = {.tokens = 99};
	struct okv_op_result result;
	struct okv_lease_id id;
	struct okv_op *op;
	struct kv_rank rank;
	restore_input(ri);
	publish_input(pi);
	look_input(li);
	kv_rank_open(&rank, scene.other_ns, &(struct kv_shape){0}, 0);
	ck_assert_uint_eq(kv_lookup(scene.other_ns, 1, N, 2, &lease), N);
	ck_assert_int_eq(okv_lease_id(lease, &id), 0);
	ck_assert_int_eq(okv_binding_quiesce(rank.binding, -1), 0);
	refuse_restore(rank.binding, lease, &ri->opts, OKV_E_CLOSED);
	refuse_publish(rank.binding, &pi->opts, OKV_E_CLOSED);
	ck_assert_int_eq(okv_binding_resume(rank.binding), 0);
	kv_ok(okv_restore_start(rank.binding, lease, &ri->opts, &op, kv_err));

	/* The engine goes first; it drains what was started. */
	okv_engine_close(scene.other);
	scene.other = NULL;
	refuse_restore(rank.binding, lease, &ri->opts, OKV_E_CLOSED);
	refuse_publish(rank.binding, &pi->opts, OKV_E_CLOSED);
	kv_refused(OKV_E_CLOSED, okv_lookup(scene.other_ns, &li->opts, &r, &untouched, kv_err));
	kv_refused(OKV_E_CLOSED, okv_lease_open(scene.other_ns, &id, &untouched, kv_err));
	okv_binding_options_init(&bo);
	bo.layer_count = 4;
	bo.layers = rank.layers;
	kv_refused(OKV_E_CLOSED, okv_binding_register(scene.other_ns, &bo, &none, kv_err));
	ck_assert_int_eq(okv_binding_quiesce(rank.binding, 0), OKV_E_CLOSED);
	ck_assert_int_eq(okv_binding_resume(rank.binding), OKV_E_CLOSED);
	ck_assert_uint_eq(r.tokens, 99);
	ck_assert_int_eq(okv_op_poll(op, &result), 0);
	ck_assert_uint_eq(result.blocks, N);
	for (uint32_t i = 0; i < N; i++)
		ck_assert_uint_eq(kv_wrong(&rank, 1, i, ri->pages + i), 0);
	/* In the least fitting order. */
	okv_namespace_close(scene.other_ns);
	scene.other_ns = NULL;
	kv_rank_close(&rank);
	okv_lease_release(lease);
	okv_op_release(op);
	kv_until(kv_local_status(&scene.local).sessions == 1);
	kv_scene_settle(&scene);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("bad_calls");
	TCase *t = tcase_create("arguments");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, lookups);
	tcase_add_test(t, the_largest_lookup_is_answered);
	tcase_add_test(t, leases);
	tcase_add_test(t, restores);
	tcase_add_test(t, publishes);
	tcase_add_test(t, operations);
	tcase_add_test(t, foreign_handles);
	tcase_add_test(t, an_engine_that_restores_only);
	tcase_add_test(t, closed_and_quiesced_handles);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
