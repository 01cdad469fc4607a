/* SPDX-License-Identifier: Apache-2.0 */
/* What beginners get wrong is named: the text says which argument, and what belongs there. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "support/refused.h"
#include "support/suite.h"

#define N KV_SCENE_BLOCKS

static struct kv_scene scene;
static struct okv_error said;

static void setup(void)
{
	kv_scene_open(&scene);
}

static void teardown(void)
{
	kv_scene_check(&scene);
	kv_scene_close(&scene);
}

static void names(int rc, int status, const char *words)
{
	ck_assert_msg(rc == status, "%s, not %s: %s", okv_status_name(rc), okv_status_name(status),
		      said.text);
	ck_assert_msg(strstr(said.text, words) != NULL, "'%s' says nothing of '%s'", said.text,
		      words);
}

/* ---- transfers ---- */

static void restore_says(struct okv_lease *lease, const struct okv_restore_options *o,
			 const char *words)
{
	struct okv_op *op = NULL;
	names(okv_restore_start(scene.rank.binding, lease, o, &op, &said), OKV_E_INVAL, words);
}

START_TEST(restores)
{
	uint32_t pages[N] = {10, 11, 12, 13};
	struct okv_restore_group group = {.count = N, .pages = pages};
	struct okv_restore_options o;
	struct okv_lookup_options lo;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	uint8_t *keys = kv_keys(999, 0, N);
	const struct okv_keys unknown = {.count = N, .key_bytes = KV_KEY_BYTES, .keys = keys};
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &group;
	/* A miss is no error, and gives nothing to restore. */
	okv_lookup_options_init(&lo);
	lo.group_count = 1;
	lo.groups = &unknown;
	kv_ok(okv_lookup(scene.ns, &lo, &found, &lease, kv_err));
	free(keys);
	ck_assert_uint_eq(found.tokens, 0);
	ck_assert_ptr_null(lease);
	restore_says(lease, &o, "lease is NULL, as after a lookup that found nothing");

	ck_assert_uint_eq(kv_lookup(scene.ns, 1, N, 1, &lease), N);
	group.first = 2;
	restore_says(lease, &o,
		     "4 blocks from block 2 of group 0 on; the lease holds 4 from block 0 on");
	group.first = 0;
	group.flags = 1;
	restore_says(lease, &o, "group 0: unknown flags 0x1");
	group.flags = 0;
	o.ready.reserved = 1;
	restore_says(lease, &o, "ready: reserved is not 0");
	o.ready.reserved = 0;
	o.ready.stream_count = 1;
	restore_says(lease, &o, "streams is NULL");
	okv_lease_release(lease);
	kv_scene_settle(&scene);
}
END_TEST

START_TEST(publishes)
{
	struct okv_publish_options o;
	struct okv_op *op = NULL;
	okv_publish_options_init(&o);
	o.reserved = 3;
	names(okv_publish_start(scene.rank.binding, &o, &op, &said), OKV_E_INVAL,
	      "publish options: reserved is not 0");
	o.reserved = 0;
	o.flags = 8;
	names(okv_publish_start(scene.rank.binding, &o, &op, &said), OKV_E_INVAL,
	      "unknown publish flags 0x8");
}
END_TEST

/* ---- opening, registering ---- */

START_TEST(engines)
{
	struct okv_engine_options o;
	struct okv_engine *engine = NULL;
	okv_engine_options_init(&o);
	o.flags = OKV_ENGINE_EMBEDDED;
	o.socket_path = "/tmp/somewhere";
	names(okv_engine_open(&o, &engine, &said), OKV_E_INVAL,
	      "socket_path with OKV_ENGINE_EMBEDDED");
	ck_assert_ptr_null(engine);
}
END_TEST

START_TEST(bindings)
{
	static const struct {
		int32_t index;
		uint32_t path, sms;
		const char *words;
	} wrong[] = {
		{.index = 3, .words = "the host device has index 0, not 3"},
		{.index = -3, .words = "the host device has index 0, not -3"},
		{.path = OKV_COPY_KERNEL + 1, .words = "copy path 3 is unknown"},
		{.sms = 65, .words = "copy_sms 65: a copy kernel takes 1 to 64 SMs"},
	};
	uint8_t memory[1];
	const struct okv_layer layers[8] = {{.base = memory, .length = 1}};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct okv_binding_options o;
		struct okv_binding *binding = NULL;
		okv_binding_options_init(&o);
		o.layer_count = scene.rank.shape.layers;
		ck_assert_uint_le(o.layer_count, 8);
		o.layers = layers;
		o.device_index = wrong[i].index;
		o.copy_path = wrong[i].path;
		o.copy_sms = wrong[i].sms;
		names(okv_binding_register(scene.ns, &o, &binding, &said), OKV_E_INVAL,
		      wrong[i].words);
	}
}
END_TEST

/* ---- what can never succeed ---- */

/* One percent of 4 MiB is less than a block, so no lease ever holds one: no call for patience. */
START_TEST(a_block_larger_than_leases_may_pin)
{
	const struct kv_shape shape = {.segment_bytes = 65536, .pages = 8};
	struct okv_manager_options o = kv_local_options(4u << 20);
	struct kv_local l;
	struct kv_rank rank;
	struct okv_lookup_options lo;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	uint8_t *keys = kv_keys(5, 0, 2);
	const struct okv_keys both = {.count = 2, .key_bytes = KV_KEY_BYTES, .keys = keys};
	o.reserve_percent = 1;
	kv_local_start(&l, &o, 0, &shape);
	kv_rank_open(&rank, l.ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&rank, 5, 0, 2, NULL, NULL), 0);
	okv_lookup_options_init(&lo);
	lo.group_count = 1;
	lo.groups = &both;
	names(okv_lookup(l.ns, &lo, &found, &lease, &said), OKV_E_LIMIT,
	      "leases may pin 41943, a session");
	lo.flags = OKV_LOOKUP_PEEK;
	kv_ok(okv_lookup(l.ns, &lo, &found, NULL, kv_err));
	ck_assert_uint_eq(found.groups[0].count, 2);
	free(keys);
	kv_rank_close(&rank);
	kv_local_stop(&l);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("messages");
	TCase *in_scene = tcase_create("scene"), *alone = tcase_create("alone");
	tcase_add_checked_fixture(in_scene, setup, teardown);
	tcase_set_timeout(in_scene, 60);
	tcase_set_timeout(alone, 60);
	tcase_add_test(in_scene, restores);
	tcase_add_test(in_scene, publishes);
	tcase_add_test(in_scene, engines);
	tcase_add_test(in_scene, bindings);
	tcase_add_test(alone, a_block_larger_than_leases_may_pin);
	suite_add_tcase(suite, in_scene);
	suite_add_tcase(suite, alone);
	return kv_suite_run(suite);
}
