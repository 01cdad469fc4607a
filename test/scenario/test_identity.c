/* SPDX-License-Identifier: Apache-2.0 */
/* R7: what differs in any field never shares a key, and what is equal always does. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/local.h"
#include "support/tensors.h"
#include "support/suite.h"

static struct kv_local manager;
static struct okv_engine *engine;

static void setup(void)
{
	const struct okv_manager_options o = kv_local_options(16u << 20);
	kv_local_start(&manager, &o, 0, &(struct kv_shape){0});
	engine = manager.engine;
}

static void teardown(void)
{
	kv_local_stop(&manager);
}

/* One identity with room for its own schema, so that any number of it can be changed. */
struct identity {
	struct okv_namespace_options opts;
	struct okv_layer_schema layers[2][3];
	struct okv_group_schema groups[2];
	struct okv_identity_field fields[3];
};

static void identity_init(struct identity *id)
{
	memset(id, 0, sizeof(*id));
	for (uint32_t g = 0; g < 2; g++) {
		for (uint32_t i = 0; i < 3; i++)
			id->layers[g][i] = (struct okv_layer_schema){
				.order = 2 * i + g, .segment_count = 2, .segment_bytes = {64, 64}};
		id->groups[g] = (struct okv_group_schema){.kind = OKV_GROUP_FULL,
							  .block_tokens = 16,
							  .layer_count = 2,
							  .layout_tag = "NHD",
							  .layers = id->layers[g]};
	}
	id->fields[0] = (struct okv_identity_field){"image", "ab", 2};
	id->fields[1] = (struct okv_identity_field){"rope", "yarn", 4};
	id->fields[2] = (struct okv_identity_field){"zero", "", 0};
	okv_namespace_options_init(&id->opts);
	id->opts.model = "m";
	id->opts.group_count = 1;
	id->opts.groups = id->groups;
	id->opts.fields = id->fields;
}

static struct okv_namespace *identity_open(const struct identity *id)
{
	struct okv_namespace *ns = NULL;
	kv_ok(okv_namespace_open(engine, &id->opts, &ns, kv_err));
	return ns;
}

static void tensors_open(struct kv_tensors *t, const struct identity *id, struct okv_namespace *ns)
{
	const uint32_t pages[2] = {4, 4}, per_block[2] = {1, 1};
	kv_tensors_place(t, id->groups, id->opts.group_count, 0, KV_PLACE_PAGES, pages, per_block,
			 0);
	kv_ok(kv_tensors_register(t, ns, kv_err));
}

static const uint32_t page0[1] = {0}, page3[1] = {3};
static const uint32_t one[2] = {1, 1};

static bool is_hit(struct okv_namespace *ns, uint32_t group_count)
{
	return kv_groups_lookup(ns, 1, one, group_count, 1, NULL, NULL) != 0;
}

/* Store the block under the common key with a mark of its own in every byte. */
static void store(struct kv_tensors *t, uint8_t mark)
{
	struct okv_op *op;
	struct okv_op_result r;
	const struct kv_blocks b[2] = {{.group = 0, .count = 1, .pages = page0},
				       {.group = 1, .count = 1, .pages = page0}};
	memset(t->memory, mark, t->bytes);
	kv_ok(kv_blocks_publish_start(t, 1, b, t->group_count, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.blocks, t->group_count);
	okv_op_release(op);
}

static void check_mark(struct kv_tensors *t, uint8_t mark)
{
	struct okv_op_result r;
	struct okv_lease *lease;
	const struct kv_blocks b[2] = {{.group = 0, .count = 1, .pages = page3},
				       {.group = 1, .count = 1, .pages = page3}};
	kv_tensors_canary(t);
	kv_groups_lookup(t->ns, 1, one, t->group_count, 1, NULL, &lease);
	ck_assert_ptr_nonnull(lease);
	ck_assert_int_eq(kv_blocks_restore(t, lease, b, t->group_count, &r), 0);
	okv_lease_release(lease);
	for (uint32_t i = 0; i < t->layer_count; i++) {
		const struct okv_layer *l = &t->layers[i];
		for (uint32_t s = 0; s < l->segment_count; s++)
			for (uint64_t o = 0; o < l->segment_bytes[s]; o++)
				ck_assert_uint_eq(((uint8_t *)l->base)[3 * l->page_stride +
								       l->segment_offset[s] + o],
						  mark);
	}
}

/* Each case changes one thing of the identity that identity_init() makes. */
static const char *const changes[] = {
	"nothing",
	"model is longer",
	"model is another",
	"revision is empty",
	"revision",
	"dtype is empty",
	"dtype",
	"adapter is empty",
	"adapter X",
	"salt is empty",
	"salt X",
	"salt XX",
	"adapter X and salt X",
	"dtype X",
	"revision X",
	"stage 0 of 2",
	"stage 1 of 2",
	"stage 1 of 3",
	"two rank slots",
	"field image",
	"fields image, rope",
	"field image is longer",
	"field imagea is b",
	"an empty field",
	"block tokens",
	"a window",
	"a longer window",
	"a state",
	"layout HND",
	"layout HND/fp8",
	"one layer",
	"three layers",
	"other order",
	"one segment of the same bytes",
	"three segments of the same bytes",
	"K and V of other sizes",
	"other bytes in layer 1",
	"two groups",
	"two groups, one a window",
	"two groups, the other a window",
};
#define CHANGES (sizeof(changes) / sizeof(changes[0]))

static bool change_name(struct identity *id, const char *c)
{
	struct okv_namespace_options *o = &id->opts;
	if (!strcmp(c, "nothing"))
		return true;
	if (!strcmp(c, "model is longer"))
		o->model = "mm";
	else if (!strcmp(c, "model is another"))
		o->model = "n";
	else if (!strncmp(c, "revision", 8))
		o->revision = strchr(c, 'X') ? "X" : strstr(c, "empty") ? "" : "r1";
	else if (!strncmp(c, "dtype", 5))
		o->dtype = strchr(c, 'X') ? "X" : strstr(c, "empty") ? "" : "fp8";
	else if (!strncmp(c, "adapter", 7))
		o->adapter = strchr(c, 'X') ? "X" : "";
	else if (!strncmp(c, "salt", 4))
		o->salt = strchr(c, 'X') ? strchr(c, 'X') : "";
	else
		return false;
	if (strstr(c, "and salt X"))
		o->salt = "X";
	return true;
}

static bool change_numbers(struct identity *id, const char *c)
{
	struct okv_namespace_options *o = &id->opts;
	if (!strncmp(c, "stage", 5)) {
		o->pipeline_stage = (uint32_t)(c[6] - '0');
		o->pipeline_stages = (uint32_t)(c[11] - '0');
	} else if (!strcmp(c, "two rank slots")) {
		o->rank_slots = 2;
	} else if (!strncmp(c, "field", 5)) {
		o->field_count = strstr(c, "rope") ? 2 : 1;
		if (strstr(c, "longer"))
			id->fields[0] = (struct okv_identity_field){"image", "abc", 3};
		if (strstr(c, "imagea"))
			id->fields[0] = (struct okv_identity_field){"imagea", "b", 1};
	} else if (!strcmp(c, "an empty field")) {
		o->field_count = 1;
		id->fields[0] = id->fields[2];
	} else {
		return false;
	}
	return true;
}

static void change_schema(struct identity *id, const char *c)
{
	struct okv_group_schema *g = id->groups;
	if (!strcmp(c, "block tokens")) {
		g->block_tokens = 32;
	} else if (strstr(c, "a window") || strstr(c, "longer window")) {
		struct okv_group_schema *w =
			strstr(c, "the other") ? g : g + id->opts.group_count - 1;
		w = strstr(c, "two groups, one") ? g + 1 : w;
		w->kind = OKV_GROUP_WINDOW;
		w->window_tokens = strstr(c, "longer") ? 17 : 16;
	} else if (!strcmp(c, "a state")) {
		g->kind = OKV_GROUP_STATE;
	} else if (!strncmp(c, "layout", 6)) {
		g->layout_tag = c + 7;
	} else if (strstr(c, "layers") || !strcmp(c, "one layer")) {
		g->layer_count = strstr(c, "three") ? 3 : 1;
	} else if (!strcmp(c, "other order")) {
		id->layers[0][1].order = 7;
	} else if (!strncmp(c, "one segment", 11)) {
		for (uint32_t i = 0; i < 2; i++)
			id->layers[0][i] = (struct okv_layer_schema){
				.order = 2 * i, .segment_count = 1, .segment_bytes = {128}};
	} else if (!strncmp(c, "three segments", 14)) {
		for (uint32_t i = 0; i < 2; i++)
			id->layers[0][i] = (struct okv_layer_schema){
				.order = 2 * i, .segment_count = 3, .segment_bytes = {64, 32, 32}};
	} else if (strstr(c, "of other sizes")) {
		for (uint32_t i = 0; i < 2; i++) {
			id->layers[0][i].segment_bytes[0] = 96;
			id->layers[0][i].segment_bytes[1] = 32;
		}
	} else if (!strcmp(c, "other bytes in layer 1")) {
		id->layers[0][1].segment_bytes[1] = 80;
	} else {
		ck_assert_msg(!strcmp(c, "two groups"), "%s", c);
	}
}

static void change(struct identity *id, const char *c)
{
	identity_init(id);
	if (!strncmp(c, "two groups", 10))
		id->opts.group_count = 2;
	if (!change_name(id, c) && !change_numbers(id, c))
		change_schema(id, c);
}

START_TEST(r7_s5_s38_s39_one_difference_is_a_miss)
{
	static struct identity ids[CHANGES];
	struct okv_namespace *ns[CHANGES];
	struct kv_tensors t[CHANGES];
	/* One more is there from the start. */
	for (uint32_t i = 0; i < CHANGES; i++) {
		change(&ids[i], changes[i]);
		ns[i] = identity_open(&ids[i]);
		ck_assert_uint_eq(kv_local_status(&manager).namespaces, i + 2);
		tensors_open(&t[i], &ids[i], ns[i]);
	}
	for (uint32_t i = 0; i < CHANGES; i++) {
		for (uint32_t k = i; k < CHANGES; k++)
			ck_assert_msg(!is_hit(ns[k], ids[k].opts.group_count),
				      "\"%s\" finds what an earlier one stored", changes[k]);
		store(&t[i], (uint8_t)(i + 1));
		/* Of two slots one is stored here: never visible. */
		ck_assert_msg(is_hit(ns[i], ids[i].opts.group_count) ==
				      (ids[i].opts.rank_slots == 1),
			      "\"%s\" finds not even its own", changes[i]);
	}
	for (uint32_t i = 0; i < CHANGES; i++)
		if (ids[i].opts.rank_slots == 1)
			check_mark(&t[i], (uint8_t)(i + 1));
	for (uint32_t i = 0; i < CHANGES; i++) {
		kv_tensors_close(&t[i]);
		okv_namespace_close(ns[i]);
	}
}
END_TEST

START_TEST(r7_equal_identities_share)
{
	struct identity a, b;
	struct kv_tensors t;
	identity_init(&a);
	identity_init(&b);
	/* The order of extra fields, and where strings lie, mean nothing. */
	a.opts.field_count = b.opts.field_count = 3;
	struct okv_identity_field first = b.fields[0];
	b.fields[0] = b.fields[2];
	b.fields[2] = first;
	char model[2] = "m", tag[4] = "NHD";
	b.opts.model = model;
	b.groups[0].layout_tag = tag;
	struct okv_namespace *x = identity_open(&a), *y = identity_open(&b);
	ck_assert_uint_eq(kv_local_status(&manager).namespaces, 2);
	tensors_open(&t, &a, x);
	store(&t, 77);
	ck_assert(is_hit(y, 1));
	/* Also after all handles went, and for another engine. */
	kv_tensors_close(&t);
	okv_namespace_close(x);
	okv_namespace_close(y);
	okv_namespace_close(manager.ns);
	okv_engine_close(engine);
	manager.ns = NULL;
	manager.engine = engine = kv_engine_connect(manager.socket_path, 0);
	y = identity_open(&b);
	ck_assert(is_hit(y, 1));
	tensors_open(&t, &b, y);
	check_mark(&t, 77);
	kv_tensors_close(&t);
	okv_namespace_close(y);
}
END_TEST

/* ---- keys ---- */

static uint64_t find_key(struct okv_namespace *ns, uint32_t group, const void *key, uint32_t bytes)
{
	struct okv_keys k = {.group = group, .count = 1, .key_bytes = bytes, .keys = key};
	struct okv_lookup_options o;
	struct okv_lookup_result r;
	okv_lookup_options_init(&o);
	o.flags = OKV_LOOKUP_PEEK;
	o.group_count = 1;
	o.groups = &k;
	kv_ok(okv_lookup(ns, &o, &r, NULL, kv_err));
	return r.tokens;
}

static void store_key(struct kv_tensors *t, uint32_t group, const void *key, uint32_t bytes)
{
	struct okv_publish_group g = {
		.keys = {.group = group, .count = 1, .key_bytes = bytes, .keys = key},
		.tokens = 16,
		.pages = page0};
	struct okv_publish_options o;
	struct okv_op *op;
	struct okv_op_result r;
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	kv_ok(okv_publish_start(t->binding, &o, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), 0);
	ck_assert_uint_eq(r.blocks, 1);
	okv_op_release(op);
}

START_TEST(r7_keys_are_compared_in_full)
{
	struct identity id;
	struct kv_tensors t;
	identity_init(&id);
	id.opts.group_count = 2;
	struct okv_namespace *ns = identity_open(&id);
	tensors_open(&t, &id, ns);
	/* Every length of one key is a key of its own; zeros at its end count. */
	uint8_t key[OKV_MAX_KEY_BYTES] = {0};
	for (uint32_t n = 1; n <= OKV_MAX_KEY_BYTES; n++) {
		for (uint32_t k = n; k <= OKV_MAX_KEY_BYTES; k++)
			ck_assert_uint_eq(find_key(ns, 0, key, k), 0);
		store_key(&t, 0, key, n);
		ck_assert_uint_eq(find_key(ns, 0, key, n), 16);
		ck_assert_uint_eq(find_key(ns, 1, key, n), 0);
	}
	/* So is each with one bit turned. */
	for (uint32_t bit = 0; bit < 8 * OKV_MAX_KEY_BYTES; bit++) {
		key[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert_uint_eq(find_key(ns, 0, key, OKV_MAX_KEY_BYTES), 0);
		key[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	ck_assert_uint_eq(find_key(ns, 0, key, OKV_MAX_KEY_BYTES), 16);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
}
END_TEST

/* ---- drop ---- */

START_TEST(a_dropped_namespace_is_a_miss_for_every_engine)
{
	const struct kv_shape shape = {0};
	struct okv_engine *second = kv_engine_connect(manager.socket_path, 0);
	struct okv_engine *reader = kv_engine_connect(manager.socket_path, OKV_ENGINE_RESTORE_ONLY);
	struct okv_namespace *ns[2] = {kv_namespace(engine, &shape), kv_namespace(second, &shape)};
	struct okv_namespace *readers = kv_namespace(reader, &shape);
	const uint32_t pages[4] = {9, 19, 29, 39};
	struct okv_error err = {0};
	struct okv_op_result r;
	struct okv_lease *lease;
	struct kv_rank rank;

	kv_rank_open(&rank, ns[0], &shape, 0);
	ck_assert_int_eq(kv_publish(&rank, 50, 0, 4, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns[0], 50, 4, 1, &lease), 4);
	ck_assert_int_eq(okv_namespace_drop(readers, &err), OKV_E_PERM);
	ck_assert_int_eq(okv_namespace_drop(NULL, &err), OKV_E_INVAL);
	ck_assert_uint_eq(kv_lookup(ns[1], 50, 4, 1, NULL), 4);
	kv_ok(okv_namespace_drop(ns[1], kv_err));
	for (uint32_t i = 0; i < 2; i++)
		ck_assert_uint_eq(kv_lookup(ns[i], 50, 4, 1, NULL), 0);
	kv_poison(&rank);
	ck_assert_int_eq(kv_restore(&rank, lease, 0, 4, pages, 0, &r), OKV_E_NOENT);
	for (uint32_t b = 0; b < 4; b++)
		ck_assert_uint_eq(kv_touched(&rank, pages[b]), 0);
	okv_lease_release(lease);

	ck_assert_int_eq(kv_publish(&rank, 50, 0, 4, NULL, &r), 0);
	ck_assert_uint_eq(r.blocks, 4);
	ck_assert_uint_eq(kv_lookup(ns[1], 50, 4, 1, &lease), 4);
	okv_lease_release(lease);
	kv_rank_close(&rank);
	okv_namespace_close(readers);
	okv_namespace_close(ns[1]);
	okv_namespace_close(ns[0]);
	okv_engine_close(reader);
	okv_engine_close(second);
}
END_TEST

/* ---- ranks ---- */

START_TEST(s40_two_ranks_get_the_minimum)
{
	const struct kv_shape shape = {.rank_slots = 2};
	struct okv_engine *second = kv_engine_connect(manager.socket_path, 0);
	struct okv_namespace *ns[2] = {kv_namespace(engine, &shape), kv_namespace(second, &shape)};
	struct okv_lease_id id;
	struct okv_op_result r;
	struct kv_rank rank[2];
	const uint32_t blocks[2] = {5, 4}, pages[5] = {9, 19, 29, 39, 49};
	for (uint32_t i = 0; i < 2; i++) {
		kv_rank_open(&rank[i], ns[i], &shape, i);
		ck_assert_int_eq(kv_publish(&rank[i], 40, 0, blocks[i], NULL, &r), 0);
		kv_poison(&rank[i]);
	}
	struct okv_lease *lease[2];
	ck_assert_uint_eq(kv_lookup(ns[0], 40, 5, 2, &lease[0]), 4);
	ck_assert_uint_eq(kv_lookup(ns[1], 40, 5, 1, NULL), 4);
	ck_assert_int_eq(okv_lease_id(lease[0], &id), 0);
	kv_ok(okv_lease_open(ns[1], &id, &lease[1], kv_err));
	for (uint32_t i = 0; i < 2; i++) {
		struct okv_op *op = NULL;
		struct okv_error err = {0};
		ck_assert_int_eq(kv_restore_start(&rank[i], lease[i], 0, 5, pages, 0, &op, &err),
				 OKV_E_INVAL);
		ck_assert_int_eq(kv_restore(&rank[i], lease[i], 0, 4, pages, 0, &r), 0);
		for (uint32_t b = 0; b < 4; b++)
			ck_assert_uint_eq(kv_wrong(&rank[i], 40, b, pages + b), 0);
		ck_assert_uint_eq(kv_touched(&rank[i], pages[4]), 0);
		okv_lease_release(lease[i]);
	}
	/* The missing part arrives: both see all. */
	ck_assert_int_eq(kv_publish(&rank[1], 40, 4, 1, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns[0], 40, 5, 1, NULL), 5);
	ck_assert_uint_eq(kv_lookup(ns[1], 40, 5, 1, NULL), 5);
	for (uint32_t i = 0; i < 2; i++) {
		kv_rank_close(&rank[i]);
		okv_namespace_close(ns[i]);
	}
	okv_engine_close(second);
}
END_TEST

/* ---- S41 ---- */

START_TEST(s41_counts_that_disagree_cost_nothing)
{
	const struct kv_shape shape = {.pages = 16};
	struct okv_namespace *ns = kv_namespace(engine, &shape);
	struct kv_rank a;
	struct okv_op *op = NULL;
	struct okv_op_result r;
	kv_rank_open(&a, ns, &shape, 0);
	uint8_t *keys = kv_keys(41, 0, 10);
	uint32_t *pages = kv_pages(&a, 10, 0, 1);
	struct okv_publish_group g = {
		.keys = {.count = 10, .key_bytes = KV_KEY_BYTES, .keys = keys},
		.tokens = 16, /* of one block */
		.pages = pages};
	struct okv_publish_options o;
	struct okv_error err = {0};
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	struct okv_manager_status before = kv_local_status(&manager);
	ck_assert_int_eq(okv_publish_start(a.binding, &o, &op, &err), OKV_E_INVAL);
	g.keys.count = 1;
	g.tokens = 160;
	ck_assert_int_eq(okv_publish_start(a.binding, &o, &op, &err), OKV_E_INVAL);
	ck_assert_ptr_null(op);
	struct okv_manager_status after = kv_local_status(&manager);
	ck_assert_uint_eq(before.bytes_used, after.bytes_used);
	ck_assert_uint_eq(before.ops_refused, after.ops_refused);
	/* One key ten times is found by the Manager, and nothing is stored. */
	memset(keys, 7, 10 * KV_KEY_BYTES);
	g.keys.count = 10;
	kv_ok(okv_publish_start(a.binding, &o, &op, kv_err));
	ck_assert_int_eq(okv_op_wait(op, 60000, &r), OKV_E_INVAL);
	ck_assert_uint_gt(strlen(r.text), 0);
	okv_op_release(op);
	ck_assert_uint_eq(kv_local_status(&manager).bytes_used, before.bytes_used);
	ck_assert_uint_eq(kv_local_status(&manager).blocks_partial, 0);
	ck_assert_int_eq(kv_publish(&a, 41, 0, 10, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 41, 10, 1, NULL), 10);
	free(pages);
	free(keys);
	kv_rank_close(&a);
	okv_namespace_close(ns);
}
END_TEST

struct racer {
	pthread_t thread;
	pthread_barrier_t *start;
	struct kv_rank *rank; /* registers it, or, when NULL, opens an engine */
	struct okv_namespace *ns;
	struct okv_engine *engine;
	struct okv_binding *binding;
	struct okv_error err;
	int rc;
};

static void *race(void *arg)
{
	struct racer *r = arg;
	pthread_barrier_wait(r->start);
	if (r->rank) {
		struct kv_rank mine = *r->rank;
		r->rc = kv_rank_register(&mine, r->ns, &r->err);
		r->binding = mine.binding;
		return NULL;
	}
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = manager.socket_path;
	r->rc = okv_engine_open(&o, &r->engine, &r->err);
	return NULL;
}

#define RACERS 8

static void run_race(struct racer *racers, struct kv_rank *rank, struct okv_namespace *ns)
{
	pthread_barrier_t start;
	pthread_barrier_init(&start, NULL, RACERS);
	for (uint32_t i = 0; i < RACERS; i++) {
		racers[i] = (struct racer){.start = &start, .rank = rank, .ns = ns};
		ck_assert_int_eq(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
	}
	for (uint32_t i = 0; i < RACERS; i++)
		pthread_join(racers[i].thread, NULL);
	pthread_barrier_destroy(&start);
}

START_TEST(s41_handshakes_at_once)
{
	struct racer racers[RACERS];
	run_race(racers, NULL, NULL);
	for (uint32_t i = 0; i < RACERS; i++)
		ck_assert_msg(racers[i].rc == 0, "%s", racers[i].err.text);
	kv_until(kv_local_status(&manager).sessions == RACERS + 1);
	for (uint32_t i = 0; i < RACERS; i++)
		okv_engine_close(racers[i].engine);
	/* The same bytes registered at once: one has them, the others are told. */
	struct okv_namespace *ns = kv_namespace(engine, &(struct kv_shape){0});
	struct kv_rank rank;
	struct okv_op_result r;
	kv_rank_init(&rank, &(struct kv_shape){0}, 0);
	run_race(racers, &rank, ns);
	uint32_t won = 0;
	for (uint32_t i = 0; i < RACERS; i++) {
		if (racers[i].rc == 0) {
			rank.binding = racers[i].binding;
			won++;
			continue;
		}
		ck_assert_int_eq(racers[i].rc, OKV_E_EXISTS);
		ck_assert_uint_gt(strlen(racers[i].err.text), 0);
	}
	ck_assert_uint_eq(won, 1);
	rank.ns = ns;
	ck_assert_int_eq(kv_publish(&rank, 2, 0, 3, NULL, &r), 0);
	ck_assert_uint_eq(kv_lookup(ns, 2, 3, 1, NULL), 3);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
}
END_TEST

/* ---- from another process ---- */

static struct okv_namespace *import(struct okv_engine *by, const struct okv_namespace *ns)
{
	uint8_t bytes[4096];
	uint64_t size;
	struct okv_namespace *made = NULL;
	kv_ok(okv_namespace_export(ns, bytes, sizeof(bytes), &size));
	kv_ok(okv_namespace_import(by, bytes, size, &made, kv_err));
	return made;
}

START_TEST(an_imported_namespace_is_the_same)
{
	struct identity id;
	struct kv_tensors t;
	identity_init(&id);
	id.opts.group_count = 2;
	id.opts.rank_slots = 1;
	id.opts.salt = "s";
	id.opts.field_count = 3;
	struct okv_namespace *ns = identity_open(&id);
	struct okv_namespace *same = import(engine, ns), *again = import(engine, same);
	tensors_open(&t, &id, ns);
	const struct kv_blocks b[2] = {{.group = 0, .count = 1, .pages = page0},
				       {.group = 1, .count = 1, .pages = page0}};
	struct okv_op_result r;
	kv_ok(kv_blocks_publish(&t, 1, b, 2, &r));
	ck_assert(is_hit(same, 2));
	ck_assert(is_hit(again, 2));

	uint32_t groups, layers, ranks;
	struct okv_group_info g;
	struct okv_layer_schema l;
	kv_ok(okv_namespace_shape(again, &groups, &layers, &ranks));
	ck_assert_uint_eq(groups, 2);
	ck_assert_uint_eq(layers, 4);
	ck_assert_uint_eq(ranks, 1);
	kv_ok(okv_namespace_group(again, 1, &g));
	ck_assert_uint_eq(g.block_tokens, 16);
	ck_assert_uint_eq(g.layer_count, 2);
	ck_assert_uint_eq(g.block_bytes, okv_namespace_block_bytes(ns, 1));
	ck_assert_str_eq(g.layout_tag, "NHD");
	kv_ok(okv_namespace_layer(again, 3, &l));
	ck_assert_uint_eq(l.order, 3);
	ck_assert_uint_eq(l.segment_count, 2);
	ck_assert_uint_eq(l.segment_bytes[1], 64);
	ck_assert_int_eq(okv_namespace_group(again, 2, &g), OKV_E_INVAL);
	ck_assert_int_eq(okv_namespace_layer(again, 4, &l), OKV_E_INVAL);
	kv_tensors_close(&t);
	okv_namespace_close(ns);
	okv_namespace_close(same);
	okv_namespace_close(again);
}
END_TEST

START_TEST(bytes_that_no_export_wrote_are_refused)
{
	struct identity id;
	uint8_t bytes[4096], bad[4096];
	uint64_t size, need;
	identity_init(&id);
	id.opts.field_count = 3;
	struct okv_namespace *ns = identity_open(&id), *made = NULL;
	struct okv_error err;
	ck_assert_int_eq(okv_namespace_export(ns, NULL, 0, &need), OKV_E_LIMIT);
	ck_assert_int_eq(okv_namespace_export(ns, bytes, need - 1, &size), OKV_E_LIMIT);
	kv_ok(okv_namespace_export(ns, bytes, need, &size));
	ck_assert_uint_eq(size, need);
	for (uint64_t cut = 0; cut < size; cut++)
		ck_assert_int_eq(okv_namespace_import(engine, bytes, cut, &made, &err),
				 OKV_E_INVAL);
	/* A flipped bit is another namespace or none, never a crash or the same one. */
	for (uint64_t bit = 0; bit < size * 8; bit++) {
		memcpy(bad, bytes, size);
		bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
		int rc = okv_namespace_import(engine, bad, size, &made, &err);
		if (rc) {
			ck_assert_msg(rc == OKV_E_INVAL || rc == OKV_E_LIMIT, "%s", err.text);
			continue;
		}
		uint8_t other[4096];
		kv_ok(okv_namespace_export(made, other, sizeof(other), &need));
		ck_assert_uint_eq(need, size);
		ck_assert_mem_eq(other, bad, size);
		okv_namespace_close(made);
	}
	okv_namespace_close(ns);
}
END_TEST

START_TEST(an_epoch_names_the_run_of_a_manager)
{
	const struct okv_manager_options o = kv_local_options(16u << 20);
	struct kv_local other;
	ck_assert_uint_ne(okv_engine_epoch(engine), 0);
	ck_assert_uint_eq(okv_engine_epoch(NULL), 0);
	kv_local_start(&other, &o, 0, &(struct kv_shape){0});
	ck_assert_uint_ne(okv_engine_epoch(engine), okv_engine_epoch(other.engine));
	kv_local_stop(&other);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("identity");
	TCase *t = tcase_create("keys");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, r7_s5_s38_s39_one_difference_is_a_miss);
	tcase_add_test(t, r7_equal_identities_share);
	tcase_add_test(t, r7_keys_are_compared_in_full);
	tcase_add_test(t, a_dropped_namespace_is_a_miss_for_every_engine);
	tcase_add_test(t, s40_two_ranks_get_the_minimum);
	tcase_add_test(t, s41_counts_that_disagree_cost_nothing);
	tcase_add_test(t, s41_handshakes_at_once);
	tcase_add_test(t, an_imported_namespace_is_the_same);
	tcase_add_test(t, bytes_that_no_export_wrote_are_refused);
	tcase_add_test(t, an_epoch_names_the_run_of_a_manager);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
