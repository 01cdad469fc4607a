/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong arguments to open, register and manage: typed errors, and nothing changed. */
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/refused.h"
#include "support/suite.h"

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

/* ---- status, version ---- */

START_TEST(status_names_texts_and_groups)
{
	const char *seen[256];
	uint32_t count = 0;
	for (int status = -255; status <= 0; status++) {
		ck_assert_uint_gt(strlen(okv_status_text(status)), 0);
		const char *name = okv_status_name(status);
		if (!strcmp(name, "OKV_E_?"))
			continue;
		for (uint32_t i = 0; i < count; i++)
			ck_assert_str_ne(seen[i], name);
		seen[count++] = name;
	}
	ck_assert_uint_eq(count, 25);
	const int odd[] = {INT_MIN, INT_MAX, 1, -81, -1000};
	for (uint32_t i = 0; i < 5; i++) {
		ck_assert_str_eq(okv_status_name(odd[i]), "OKV_E_?");
		ck_assert_uint_gt(strlen(okv_status_text(odd[i])), 0);
		ck_assert_str_eq(okv_stage_name(odd[i] == 1 ? -1 : odd[i]), "?");
	}
	ck_assert_int_eq(okv_status_group(OKV_OK), OKV_STATUS_GROUP_OK);
	ck_assert_int_eq(okv_status_group(INT_MAX), OKV_STATUS_GROUP_OK);
	ck_assert_int_eq(okv_status_group(OKV_E_BUSY), OKV_STATUS_GROUP_AGAIN);
	ck_assert_int_eq(okv_status_group(OKV_E_BUDGET), OKV_STATUS_GROUP_CALL);
	ck_assert_int_eq(okv_status_group(OKV_E_SPENT), OKV_STATUS_GROUP_OPERATION);
	ck_assert_int_eq(okv_status_group(OKV_E_POISONED), OKV_STATUS_GROUP_SESSION);
	ck_assert_int_eq(okv_status_group(INT_MIN), OKV_STATUS_GROUP_BUILD);
	ck_assert_uint_eq(okv_version(),
			  OKV_VERSION_MAJOR << 16 | OKV_VERSION_MINOR << 8 | OKV_VERSION_PATCH);
	ck_assert_int_eq(strncmp(okv_devices(), "host", 4), 0);
}
END_TEST

/* ---- manager.h ---- */

static const struct kv_number manager_numbers[] = {
	KV_NUMBER(struct okv_manager_options, size, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, size, 3, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, size, 1u << 20, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, flags, 2, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, memory_bytes, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, memory_bytes, UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, memory_bytes, 1ull << 60, OKV_E_BUDGET),
	KV_NUMBER(struct okv_manager_options, shard_bytes, UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, numa, (uint32_t)-3, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, numa, (uint32_t)INT_MIN, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, touch_threads, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, allow_uid_count, 1, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, allow_uid_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, dispatchers, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, spin_us, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, lease_ttl_ms, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, reserve_percent, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, reserve_percent, 101, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, session_percent, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, session_percent, 101, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, restore_permits, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, max_sessions, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, max_sessions, 1025, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, part_bytes, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, part_bytes, (256u << 10) + 1, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, operation_plan_bytes, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_manager_options, session_plan_bytes, 0, OKV_E_INVAL),
};

START_TEST(manager_options_are_checked)
{
	uint32_t fds = kv_fd_count();
	okv_manager_options_init(NULL);
	for (size_t i = 0; i < sizeof(manager_numbers) / sizeof(manager_numbers[0]); i++) {
		struct okv_manager_options o;
		struct okv_manager *m = KV_UNTOUCHED(struct okv_manager);
		okv_manager_options_init(&o);
		o.memory_bytes = 1u << 20;
		o.numa = OKV_NUMA_OFF;
		kv_set_number(&o, &manager_numbers[i]);
		kv_refused(manager_numbers[i].status, okv_manager_create(&o, &m, kv_err));
		ck_assert_ptr_eq(m, KV_UNTOUCHED(struct okv_manager));
		/* The same options through embedded mode. */
		struct okv_engine_options e;
		struct okv_engine *engine = KV_UNTOUCHED(struct okv_engine);
		okv_engine_options_init(&e);
		e.flags = OKV_ENGINE_EMBEDDED;
		e.embedded = &o;
		kv_refused(manager_numbers[i].status, okv_engine_open(&e, &engine, kv_err));
		ck_assert_ptr_eq(engine, KV_UNTOUCHED(struct okv_engine));
	}
	struct okv_manager_options o;
	okv_manager_options_init(&o);
	kv_refused(OKV_E_INVAL, okv_manager_create(&o, NULL, kv_err));
	ck_assert_uint_eq(kv_fd_count(), fds);
}
END_TEST

START_TEST(options_of_another_size)
{
	/* Longer with a zero tail is the same; with a set tail it is another version's. */
	struct {
		struct okv_manager_options known;
		uint8_t tail[40];
	} o;
	struct okv_manager *m = KV_UNTOUCHED(struct okv_manager);
	memset(&o, 0, sizeof(o));
	okv_manager_options_init(&o.known);
	o.known.memory_bytes = 1u << 20;
	o.known.numa = OKV_NUMA_OFF;
	o.known.size = sizeof(o);
	o.tail[39] = 1;
	kv_refused(OKV_E_VERSION, okv_manager_create(&o.known, &m, kv_err));
	ck_assert_ptr_eq(m, KV_UNTOUCHED(struct okv_manager));
	o.tail[39] = 0;
	kv_ok(okv_manager_create(&o.known, &m, kv_err));
	okv_manager_destroy(m);

	struct {
		struct okv_lookup_options known;
		uint64_t tail;
	} l;
	struct okv_lookup_result result = {.tokens = 99};
	uint8_t *keys = kv_keys(1, 0, 1);
	struct okv_keys k = {.count = 1, .key_bytes = KV_KEY_BYTES, .keys = keys};
	okv_lookup_options_init(&l.known);
	l.known.size = sizeof(l);
	l.known.flags = OKV_LOOKUP_PEEK;
	l.known.group_count = 1;
	l.known.groups = &k;
	l.tail = 1ull << 63;
	kv_refused(OKV_E_VERSION, okv_lookup(scene.ns, &l.known, &result, NULL, kv_err));
	ck_assert_uint_eq(result.tokens, 99);
	/* Shorter: what lies behind it is not read. */
	l.known.size = offsetof(struct okv_lookup_options, timeout_ms);
	l.known.reserved = 77;
	kv_ok(okv_lookup(scene.ns, &l.known, &result, NULL, kv_err));
	ck_assert_uint_eq(result.tokens, 16);
	free(keys);
	/* The check at the end counts lookups. */
	kv_scene_look(&scene);
}
END_TEST

START_TEST(managers_sockets_and_status)
{
	struct okv_manager_options o;
	struct okv_manager *m;
	char long_path[300], buf[8] = "same";
	int pair[2], pipe_fds[2];
	okv_manager_options_init(&o);
	o.memory_bytes = 1u << 20;
	o.numa = OKV_NUMA_OFF;
	kv_ok(okv_manager_create(&o, &m, kv_err));
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = 0;

	kv_refused(OKV_E_INVAL, okv_manager_listen(NULL, "x", kv_err));
	kv_refused(OKV_E_LIMIT, okv_manager_listen(m, long_path, kv_err));
	kv_refused(OKV_E_LIMIT, okv_manager_listen(m, "", kv_err));
	kv_refused(OKV_E_CONNECT, okv_manager_listen(m, "/proc/at/all/m.sock", kv_err));
	kv_refused(OKV_E_EXISTS, okv_manager_listen(m, scene.local.socket_path, kv_err));
	kv_refused(OKV_E_EXISTS, okv_manager_listen(m, scene.local.dir, kv_err));
	kv_refused(OKV_E_BUSY, okv_manager_listen(scene.local.manager, "/tmp/other", kv_err));
	kv_refused(OKV_E_CLOSED, okv_manager_run(scene.local.manager, kv_err));
	kv_refused(OKV_E_INVAL, okv_manager_run(NULL, kv_err));

	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
	kv_refused(OKV_E_INVAL, okv_manager_attach(NULL, pair[0], kv_err));
	kv_refused(OKV_E_INVAL, okv_manager_attach(m, -1, kv_err));
	kv_refused(OKV_E_INVAL, okv_manager_attach(m, INT_MAX, kv_err));
	kv_refused(OKV_E_INVAL, okv_manager_attach(m, pair[0], kv_err));
	kv_refused(OKV_E_INVAL, okv_manager_attach(m, pipe_fds[0], kv_err));
	/* On failure the descriptor is still the caller's. */
	ck_assert_int_eq(close(pair[0]) | close(pair[1]), 0);
	ck_assert_int_eq(close(pipe_fds[0]) | close(pipe_fds[1]), 0);
	okv_manager_destroy(m);
	okv_manager_destroy(NULL);
	okv_manager_stop(NULL);

	struct okv_manager_status status = {.epoch = 5};
	ck_assert_int_eq(okv_manager_status_get(NULL, &status), OKV_E_INVAL);
	ck_assert_int_eq(okv_manager_status_get(scene.local.manager, NULL), OKV_E_INVAL);
	const char *path = scene.local.socket_path;
	kv_refused(OKV_E_INVAL, okv_manager_status_query(path, 1000, NULL, kv_err));
	kv_refused(OKV_E_LIMIT, okv_manager_status_query(long_path, 1000, &status, kv_err));
	kv_refused(OKV_E_CONNECT, okv_manager_status_query("/tmp/no.sock", 0, &status, kv_err));
	kv_refused(OKV_E_LIMIT, okv_manager_status_query("", 1000, &status, kv_err));
	ck_assert_uint_eq(status.epoch, 5);
	ck_assert_int_eq(okv_default_socket_path(NULL, 100), OKV_E_LIMIT);
	ck_assert_int_eq(okv_default_socket_path(buf, 0), OKV_E_LIMIT);
	ck_assert_int_eq(okv_default_socket_path(buf, sizeof(buf)), OKV_E_LIMIT);
	ck_assert_str_eq(buf, "same");
}
END_TEST

/* ---- engine.h, stats.h ---- */

static const struct kv_number engine_numbers[] = {
	KV_NUMBER(struct okv_engine_options, size, 0, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, size, 3, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, flags, 0x20, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, flags, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, spin_us, 1000001, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, spin_us, UINT32_MAX, OKV_E_INVAL),
	/* of no meaning without its flag */
	KV_NUMBER(struct okv_engine_options, trust_uid, 1, OKV_E_INVAL),
	KV_NUMBER(struct okv_engine_options, reserved, 1, OKV_E_INVAL),
};

START_TEST(engines_and_stats)
{
	struct okv_engine *e = KV_UNTOUCHED(struct okv_engine);
	struct okv_engine_options o;
	struct okv_manager_options m;
	struct okv_completion c;
	struct okv_engine_stats stats;
	char long_path[300];
	uint32_t n = 7, fds = kv_fd_count();
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = 0;
	okv_engine_options_init(NULL);
	for (size_t i = 0; i < sizeof(engine_numbers) / sizeof(engine_numbers[0]); i++) {
		okv_engine_options_init(&o);
		o.socket_path = scene.local.socket_path;
		kv_set_number(&o, &engine_numbers[i]);
		kv_refused(engine_numbers[i].status, okv_engine_open(&o, &e, kv_err));
	}
	okv_engine_options_init(&o);
	okv_manager_options_init(&m);
	kv_refused(OKV_E_INVAL, okv_engine_open(&o, NULL, kv_err));
	o.embedded = &m;
	kv_refused(OKV_E_INVAL, okv_engine_open(&o, &e, kv_err));
	o.embedded = NULL;
	o.socket_path = long_path;
	kv_refused(OKV_E_LIMIT, okv_engine_open(&o, &e, kv_err));
	o.socket_path = "/tmp/no-such-directory/m.sock";
	kv_refused(OKV_E_CONNECT, okv_engine_open(&o, &e, kv_err));
	o.socket_path = scene.local.dir;
	kv_refused(OKV_E_CONNECT, okv_engine_open(&o, &e, kv_err));
	o.socket_path = "";
	kv_refused(OKV_E_INVAL, okv_engine_open(&o, &e, kv_err));
	ck_assert_ptr_eq(e, KV_UNTOUCHED(struct okv_engine));
	ck_assert_uint_eq(kv_fd_count(), fds);
	okv_engine_close(NULL);
	ck_assert_int_eq(okv_engine_fd(NULL), -1);
	ck_assert_int_eq(okv_engine_state(NULL), OKV_E_INVAL);
	ck_assert_int_eq(okv_engine_poll(NULL, &c, 1, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_engine_poll(scene.engine, NULL, 1, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_engine_poll(scene.engine, &c, 0, &n), OKV_E_INVAL);
	ck_assert_int_eq(okv_engine_poll(scene.engine, &c, 1, NULL), OKV_E_INVAL);
	ck_assert_uint_eq(n, 7);
	ck_assert_int_eq(okv_stats_get(NULL, &stats), OKV_E_INVAL);
	ck_assert_int_eq(okv_stats_get(scene.engine, NULL), OKV_E_INVAL);
}
END_TEST

/* ---- binding.h: namespaces ---- */

struct ns_input {
	struct okv_namespace_options opts;
	struct okv_group_schema groups[OKV_MAX_GROUPS + 1];
	struct okv_layer_schema layers[2];
	struct okv_layer_schema layer1[2];
	struct okv_identity_field fields[2];
};

static void ns_input(struct ns_input *in)
{
	memset(in, 0, sizeof(*in));
	for (uint32_t i = 0; i < 2; i++) {
		in->layers[i] = (struct okv_layer_schema){
			.order = i, .segment_count = 1, .segment_bytes = {64}};
		in->layer1[i] = (struct okv_layer_schema){
			.order = i + 2, .segment_count = 1, .segment_bytes = {64}};
		in->fields[i] = (struct okv_identity_field){i ? "b" : "a", "v", 1};
	}
	for (uint32_t g = 0; g <= OKV_MAX_GROUPS; g++)
		in->groups[g] = (struct okv_group_schema){.kind = OKV_GROUP_FULL,
							  .block_tokens = 16,
							  .layer_count = 2,
							  .layout_tag = "NHD",
							  .layers = g ? in->layer1 : in->layers};
	okv_namespace_options_init(&in->opts);
	in->opts.model = "m";
	in->opts.group_count = 2;
	in->opts.groups = in->groups;
	in->opts.field_count = 2;
	in->opts.fields = in->fields;
}

static char long_text[8192];

static const struct kv_number ns_numbers[] = {
	KV_NUMBER(struct ns_input, opts.size, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.model, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.rank_slots, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.rank_slots, 65, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, opts.pipeline_stage, 1, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.pipeline_stages, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.field_count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, opts.fields, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.group_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, opts.group_count, OKV_MAX_GROUPS + 1, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, opts.group_count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, opts.groups, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, fields[0].name, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, fields[1].value, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, fields[1].value_bytes, 4097, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, groups[0].kind, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[1].kind, 4, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[0].kind, OKV_GROUP_WINDOW, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[0].window_tokens, 16, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[0].block_tokens, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[0].block_tokens, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, groups[0].layer_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[0].layer_count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, groups[1].layer_count, OKV_MAX_LAYERS - 1, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, groups[1].layout_tag, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, groups[1].layers, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, layers[0].order, 1, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, layers[0].order, 2, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, layers[0].segment_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, layers[1].segment_count, OKV_MAX_SEGMENTS + 1, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, layers[1].segment_count, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, layers[1].segment_bytes[0], 0, OKV_E_INVAL),
	KV_NUMBER(struct ns_input, layers[1].segment_bytes[0], UINT64_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, layers[1].segment_bytes[0], 1ull << 32, OKV_E_LIMIT),
	KV_NUMBER(struct ns_input, layer1[0].order, 0, OKV_E_INVAL), /* taken by group 0 */
};

static void refuse_namespace(const struct ns_input *in, int status)
{
	struct okv_namespace *ns = KV_UNTOUCHED(struct okv_namespace);
	kv_refused(status, okv_namespace_open(scene.engine, &in->opts, &ns, kv_err));
	ck_assert_ptr_eq(ns, KV_UNTOUCHED(struct okv_namespace));
}

START_TEST(namespaces)
{
	struct ns_input *in = kv_edge(sizeof(*in));
	struct okv_namespace *ns = KV_UNTOUCHED(struct okv_namespace);
	okv_namespace_options_init(NULL);
	ns_input(in);
	kv_refused(OKV_E_INVAL, okv_namespace_open(NULL, &in->opts, &ns, kv_err));
	kv_refused(OKV_E_INVAL, okv_namespace_open(scene.engine, NULL, &ns, kv_err));
	kv_refused(OKV_E_INVAL, okv_namespace_open(scene.engine, &in->opts, NULL, kv_err));
	for (size_t i = 0; i < sizeof(ns_numbers) / sizeof(ns_numbers[0]); i++) {
		ns_input(in);
		kv_set_number(in, &ns_numbers[i]);
		refuse_namespace(in, ns_numbers[i].status);
	}
	memset(long_text, 'x', sizeof(long_text) - 1);
	const char **strings[] = {&in->opts.model, &in->opts.revision, &in->opts.dtype,
				  &in->opts.adapter, &in->opts.salt};
	for (uint32_t i = 0; i < 5; i++) {
		ns_input(in);
		*strings[i] = long_text;
		refuse_namespace(in, OKV_E_LIMIT);
	}
	const char *const names[] = {"", "b", long_text};
	for (uint32_t i = 0; i < 3; i++) {
		ns_input(in);
		in->fields[0].name = names[i];
		refuse_namespace(in, OKV_E_INVAL);
		ns_input(in);
		in->groups[1].layout_tag = names[i];
		if (i != 1)
			refuse_namespace(in, OKV_E_INVAL);
	}
	ns_input(in);
	in->opts.model = "";
	refuse_namespace(in, OKV_E_INVAL);
	okv_namespace_close(NULL);
	ck_assert_uint_eq(okv_namespace_block_bytes(NULL, 0), 0);
	ck_assert_uint_eq(okv_namespace_block_bytes(scene.ns, 1), 0);
	ck_assert_uint_eq(okv_namespace_block_bytes(scene.ns, UINT32_MAX), 0);
	ck_assert_uint_gt(okv_namespace_block_bytes(scene.ns, 0), 0);
}
END_TEST

/* ---- binding.h: bindings ---- */

struct bind_input {
	struct okv_binding_options opts;
	struct okv_layer layers[4];
};

static uint8_t memory[4][8 * 512 + 1];
static int owned;

static void retain(void *object)
{
	(void)object;
	owned++;
}

static void release(void *object)
{
	(void)object;
	owned--;
}

static void bind_input(struct bind_input *in)
{
	okv_binding_options_init(&in->opts);
	in->opts.layer_count = 4;
	in->opts.layers = in->layers;
	in->opts.copy_threads = 1;
	for (uint32_t i = 0; i < 4; i++)
		in->layers[i] = (struct okv_layer){.base = memory[i] + 1, /* odd is fine */
						   .length = 8 * 512,
						   .page_stride = 512,
						   .page_count = 8,
						   .segment_count = 2,
						   .segment_offset = {0, 256},
						   .segment_bytes = {256, 256},
						   .owner = {NULL, retain, release}};
}

static const struct kv_number bind_numbers[] = {
	KV_NUMBER(struct bind_input, opts.size, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.size, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.device, 0, OKV_E_UNSUPPORTED),
	KV_NUMBER(struct bind_input, opts.device, UINT32_MAX, OKV_E_UNSUPPORTED),
	KV_NUMBER(struct bind_input, opts.rank_slot, 1, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.rank_slot, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.layer_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.layer_count, 3, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.layer_count, 5, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.layer_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, opts.copy_threads, UINT32_MAX, OKV_E_LIMIT),
	KV_NUMBER(struct bind_input, opts.layers, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].base, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].base, UINT64_MAX - 100, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].length, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].length, 8 * 512 - 1, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].length, UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_stride, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_stride, 511, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_stride, UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_stride, UINT64_MAX / 7 + 1, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_count, 9, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].page_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_count, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_count, 1, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_count, UINT32_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_offset[1], 255, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_offset[1], 257, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_offset[1], UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_bytes[1], 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_bytes[1], 255, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].segment_bytes[1], UINT64_MAX, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].owner.retain, 0, OKV_E_INVAL),
	KV_NUMBER(struct bind_input, layers[3].owner.release, 0, OKV_E_INVAL),
};

START_TEST(bindings)
{
	struct bind_input *in = kv_edge(sizeof(*in));
	struct okv_binding *b = KV_UNTOUCHED(struct okv_binding);
	uint32_t fds = kv_fd_count();
	okv_binding_options_init(NULL);
	bind_input(in);
	kv_refused(OKV_E_INVAL, okv_binding_register(NULL, &in->opts, &b, kv_err));
	kv_refused(OKV_E_INVAL, okv_binding_register(scene.ns, NULL, &b, kv_err));
	kv_refused(OKV_E_INVAL, okv_binding_register(scene.ns, &in->opts, NULL, kv_err));
	for (size_t i = 0; i < sizeof(bind_numbers) / sizeof(bind_numbers[0]); i++) {
		bind_input(in);
		kv_set_number(in, &bind_numbers[i]);
		kv_refused(bind_numbers[i].status,
			   okv_binding_register(scene.ns, &in->opts, &b, kv_err));
	}
	/* Bytes that a binding of this engine has, under the same and another namespace. */
	struct okv_namespace *salted = kv_namespace(scene.engine, &(struct kv_shape){.salt = "s"});
	bind_input(in);
	in->layers[2] = scene.rank.layers[1];
	kv_refused(OKV_E_EXISTS, okv_binding_register(scene.ns, &in->opts, &b, kv_err));
	kv_refused(OKV_E_EXISTS, okv_binding_register(salted, &in->opts, &b, kv_err));
	okv_namespace_close(salted);
	ck_assert_ptr_eq(b, KV_UNTOUCHED(struct okv_binding));
	ck_assert_int_eq(owned, 0);
	ck_assert_uint_eq(kv_fd_count(), fds);
	/* The input that each case changed is a good one. */
	bind_input(in);
	kv_ok(okv_binding_register(scene.ns, &in->opts, &b, kv_err));
	ck_assert_int_eq(owned, 4);
	okv_binding_unregister(b);
	ck_assert_int_eq(owned, 0);
	okv_binding_unregister(NULL);
	ck_assert_int_eq(okv_binding_quiesce(NULL, 0), OKV_E_INVAL);
	ck_assert_int_eq(okv_binding_resume(NULL), OKV_E_INVAL);
	/* Once more, once less: both are states, not counts. */
	ck_assert_int_eq(okv_binding_quiesce(scene.rank.binding, -1), 0);
	ck_assert_int_eq(okv_binding_quiesce(scene.rank.binding, 0), 0);
	ck_assert_int_eq(okv_binding_resume(scene.rank.binding), 0);
	ck_assert_int_eq(okv_binding_resume(scene.rank.binding), 0);
	scene.status.namespaces++; /* "s" stays known to the Manager */
}
END_TEST

int main(void)
{
	Suite *s = suite_create("bad_input");
	TCase *t = tcase_create("arguments");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, status_names_texts_and_groups);
	tcase_add_test(t, manager_options_are_checked);
	tcase_add_test(t, options_of_another_size);
	tcase_add_test(t, managers_sockets_and_status);
	tcase_add_test(t, engines_and_stats);
	tcase_add_test(t, namespaces);
	tcase_add_test(t, bindings);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
