/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Lookups by client processes, and an index of millions of blocks. */
#include "bench_lookup.h"
#include "bench_neighbour.h"
#include "bench_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_KEY 1u /* the first id of a fresh rig */
#define KEYS 1024u
#define MEMORY (64ull << 20)
#define SAMPLES (1u << 20)
#define WARM_UP 1000u

/* ---- one process ---- */

/* Peek, or take a lease and drop it. The keys must all be there. */
static int look_up(struct okv_namespace *ns, const struct okv_keys *keys, bool lease, char *text)
{
	struct okv_lookup_result found;
	struct okv_lookup_options opts;
	struct okv_lease *held = NULL;
	struct okv_error err = {.text = ""};
	int rc;

	okv_lookup_options_init(&opts);
	opts.flags = lease ? 0 : OKV_LOOKUP_PEEK;
	opts.group_count = 1;
	opts.groups = keys;
	rc = okv_lookup(ns, &opts, &found, &held, &err);
	okv_lease_release(held);
	if (rc != 0) {
		tool_explain(text, "okv_lookup", rc, &err);
		return TOOL_FAILED;
	}
	if (found.groups[0].count == keys->count)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "only %u of %u keys are found", found.groups[0].count,
		 keys->count);
	return TOOL_FAILED;
}

/* `bytes` holds `groups` runs of keys->count keys; they are asked for in random order. */
static int time_lookups(struct okv_namespace *ns, struct okv_keys *keys, const uint8_t *bytes,
			uint32_t groups, bool lease, uint64_t limit_ns,
			struct bench_lookups *ret_lookups)
{
	uint64_t *ns_samples = malloc(SAMPLES * sizeof(*ns_samples));
	uint64_t random = 0x9e3779b97f4a7c15ull;
	uint64_t begin = tool_now_ns();
	uint64_t before = begin;
	int rc = ns_samples != NULL ? TOOL_OK : TOOL_FAILED;

	ret_lookups->count = 0;
	while (rc == TOOL_OK && before - begin < limit_ns) {
		uint64_t after;

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		keys->keys = bytes + (random >> 32) % groups * keys->count * TOOL_KEY_BYTES;
		before = tool_now_ns();
		rc = look_up(ns, keys, lease, ret_lookups->text);
		after = tool_now_ns();
		ns_samples[ret_lookups->count++ % SAMPLES] = after - before;
		before = after;
	}
	ret_lookups->elapsed_ns = before - begin;
	ret_lookups->status = rc;
	if (rc == TOOL_OK) {
		uint32_t kept = ret_lookups->count < SAMPLES ? ret_lookups->count : SAMPLES;

		ret_lookups->p50_us = tool_percentile_us(ns_samples, kept, 500);
		ret_lookups->p99_us = tool_percentile_us(ns_samples, kept, 990);
	}
	free(ns_samples);
	return rc;
}

static int open_client(const char *socket, struct tool_shape *shape, struct okv_engine **ret_engine,
		       struct okv_namespace **ret_ns, char *text)
{
	struct okv_engine_options engine_opts;
	struct okv_namespace_options opts;
	struct okv_error err = {.text = ""};
	int rc;

	okv_engine_options_init(&engine_opts);
	engine_opts.socket_path = socket;
	rc = okv_engine_open(&engine_opts, ret_engine, &err);
	if (rc == 0) {
		okv_namespace_options_init(&opts);
		opts.model = shape->model.name;
		opts.revision = "orbitkv-bench";
		opts.group_count = 1;
		opts.groups = shape->groups;
		rc = okv_namespace_open(*ret_engine, &opts, ret_ns, &err);
	}
	if (rc != 0)
		tool_explain(text, "a client", rc, &err);
	return rc == 0 ? TOOL_OK : TOOL_FAILED;
}

int bench_client_main(const char *socket, uint32_t keys, uint32_t ms, bool lease)
{
	struct bench_lookups lookups = {.status = TOOL_FAILED};
	struct tool_shape shape = {.layer_count = 0};
	struct okv_engine *engine = NULL;
	struct okv_namespace *ns = NULL;
	uint8_t bytes[KEYS * TOOL_KEY_BYTES];
	struct okv_keys asked = {.count = keys, .key_bytes = TOOL_KEY_BYTES, .keys = bytes};
	char go = 0;
	int rc = tool_shape_create(&bench_small_model, &shape, lookups.text);

	for (uint32_t i = 0; i < KEYS; i++)
		tool_key(FIRST_KEY + i, bytes + (size_t)i * TOOL_KEY_BYTES);
	if (rc == TOOL_OK)
		rc = open_client(socket, &shape, &engine, &ns, lookups.text);
	for (uint32_t i = 0; i < WARM_UP && rc == TOOL_OK; i++)
		rc = look_up(ns, &asked, lease, lookups.text);
	tool_send(STDOUT_FILENO, &go, 1); /* ready, or not */
	if (rc == TOOL_OK && tool_receive(STDIN_FILENO, &go, 1))
		rc = time_lookups(ns, &asked, bytes, 1, lease, (uint64_t)ms * 1000000, &lookups);
	tool_send(STDOUT_FILENO, &lookups, sizeof(lookups));
	okv_namespace_close(ns);
	okv_engine_close(engine);
	tool_shape_fini(&shape);
	return rc;
}

/* ---- many processes ---- */

struct client {
	pid_t pid;
	int to;
	int from;
};

static int start_client(const char *socket, const struct bench_clients *what,
			struct client *ret_client, char *text)
{
	char key_text[16];
	char ms_text[16];
	const char *argv[] = {"orbitkv-bench",
			      BENCH_CHILD_CLIENT,
			      socket,
			      key_text,
			      ms_text,
			      what->lease ? "lease" : "peek",
			      NULL};

	snprintf(key_text, sizeof(key_text), "%u", what->keys);
	snprintf(ms_text, sizeof(ms_text), "%u", what->ms);
	ret_client->pid = tool_spawn(argv, &ret_client->to, &ret_client->from, text);
	return ret_client->pid > 0 ? TOOL_OK : TOOL_FAILED;
}

static int collect(struct client *clients, uint32_t count, struct bench_lookups *ret_all,
		   char *text)
{
	double p50[BENCH_MAX_CLIENTS] = {0};
	int rc = TOOL_OK;

	memset(ret_all, 0, sizeof(*ret_all));
	for (uint32_t i = 0; i < count; i++) {
		struct bench_lookups one = {.status = TOOL_FAILED};

		if (!tool_receive(clients[i].from, &one, sizeof(one)))
			snprintf(one.text, sizeof(one.text), "a client died");
		if (one.status != TOOL_OK && rc == TOOL_OK) {
			memcpy(text, one.text, TOOL_TEXT);
			rc = TOOL_FAILED;
		}
		p50[i] = one.p50_us;
		ret_all->count += one.count;
		if (one.p99_us > ret_all->p99_us)
			ret_all->p99_us = one.p99_us;
		if (one.elapsed_ns > ret_all->elapsed_ns)
			ret_all->elapsed_ns = one.elapsed_ns;
	}
	for (uint32_t i = 0; i < count; i++)
		ret_all->p50_us += p50[i] / count;
	return rc;
}

int bench_clients_run(const char *socket, const struct bench_clients *what,
		      struct bench_lookups *ret_all, char *text)
{
	struct client clients[BENCH_MAX_CLIENTS];
	uint32_t started = 0;
	char go = 1;
	int rc = TOOL_OK;

	while (started < what->count && rc == TOOL_OK) {
		rc = start_client(socket, what, &clients[started], text);
		if (rc == TOOL_OK)
			started++;
	}
	for (uint32_t i = 0; i < started; i++)
		tool_receive(clients[i].from, &go, 1);
	for (uint32_t i = 0; i < started; i++)
		tool_send(clients[i].to, &go, 1);
	if (rc == TOOL_OK)
		rc = collect(clients, started, ret_all, text);
	for (uint32_t i = 0; i < started; i++) {
		close(clients[i].to);
		close(clients[i].from);
		waitpid(clients[i].pid, NULL, 0);
	}
	return rc;
}

static void report_lookups(const struct bench_config *config, const char *kind, uint32_t keys,
			   uint32_t clients, const struct bench_lookups *lookups)
{
	struct bench_result result = {.suite = "lookups"};

	bench_label(&result, "kind", "%s", kind);
	bench_label(&result, "keys", "%u", keys);
	bench_label(&result, "clients", "%u", clients);
	bench_figure(&result, BENCH_COLUMN, "p50_us", lookups->p50_us);
	bench_figure(&result, BENCH_COLUMN, "p99_us", lookups->p99_us);
	bench_figure(&result, BENCH_COLUMN, "lookups/s",
		     (double)lookups->count * 1e9 / (double)lookups->elapsed_ns);
	bench_figure(&result, BENCH_COLUMN, "keys/s",
		     (double)lookups->count * keys * 1e9 / (double)lookups->elapsed_ns);
	bench_report_add(config->report, &result);
}

static int lookups_of_rig(struct bench_rig *rig, uint32_t keys, uint32_t ms, char *text)
{
	static const uint32_t clients[] = {1, 4, BENCH_MAX_CLIENTS};
	struct okv_keys asked = {.count = keys, .key_bytes = TOOL_KEY_BYTES};
	struct bench_lookups lookups = {.status = 0};
	int rc;

	for (size_t c = 0; c < sizeof(clients) / sizeof(clients[0]); c++) {
		const struct bench_clients what = {.count = clients[c], .keys = keys, .ms = ms};

		rc = bench_clients_run(rig->manager.socket, &what, &lookups, text);
		if (rc != TOOL_OK)
			return rc;
		report_lookups(rig->config, "peek", keys, clients[c], &lookups);
	}
	bench_rig_keys(rig, FIRST_KEY, NULL, KEYS);
	rc = time_lookups(rig->ns, &asked, rig->keys, 1, true, (uint64_t)ms * 1000000, &lookups);
	if (rc == TOOL_OK)
		report_lookups(rig->config, "lease", keys, 1, &lookups);
	else
		memcpy(text, lookups.text, TOOL_TEXT);
	return rc;
}

int bench_case_lookups(const struct bench_config *config, char *text)
{
	static const uint32_t keys[] = {1, 32, KEYS};
	uint32_t ms = config->quick ? 100 : 1000;
	struct bench_config local = *config;
	struct tool_shape shape;
	struct bench_hold pin;
	struct bench_rig *rig;
	char ignored[TOOL_TEXT];
	uint32_t first;
	int rc = tool_shape_create(&bench_small_model, &shape, text);

	if (rc != TOOL_OK)
		return rc;
	local.device = OKV_DEVICE_HOST; /* no page is touched */
	local.cuda = NULL;
	rc = bench_rig_open(&local, &shape, KEYS, MEMORY, &rig, text);
	if (rc == TOOL_OK) {
		rc = bench_rig_seed(rig, KEYS, &first, &pin, text);
		if (rc == TOOL_OK)
			bench_rig_drop(&pin);
		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]) && rc == TOOL_OK; k++)
			rc = lookups_of_rig(rig, keys[k], ms, text);
		bench_rig_close(rig, ignored);
	}
	tool_shape_fini(&shape);
	return rc;
}

/* ---- index ---- */

/* The payload of what was stored last, to show that the index leads to it. */
static int check_last(struct bench_rig *rig, uint32_t key, uint32_t content, char *text)
{
	struct bench_sample sample;
	struct bench_hold hold;
	struct bench_rows rows = {.rows = NULL};
	struct okv_op *op;
	int rc = bench_rig_hold(rig, key, NULL, OKV_MAX_BLOCKS, &hold, text);

	if (rc != TOOL_OK)
		return rc;
	rc = bench_rows_create(&rig->pages, BENCH_RESTORE_HALF, OKV_MAX_BLOCKS, NULL, &rows, text);
	if (rc == TOOL_OK)
		rc = bench_pages_poison(&rig->pages, BENCH_RESTORE_HALF, text);
	if (rc == TOOL_OK)
		rc = bench_rig_restore_start(rig, BENCH_RESTORE_HALF, &hold, NULL, 0, &op, text);
	if (rc == TOOL_OK)
		rc = bench_rig_finish(op, rows.bytes, tool_now_ns(), &sample, text);
	if (rc == TOOL_OK)
		rc = bench_pages_check(&rig->pages, &rows, rows.count, content, text);
	bench_rows_fini(&rows);
	bench_rig_drop(&hold);
	return rc;
}

static int index_lookups(struct bench_rig *rig, uint32_t operations, uint32_t keys,
			 struct bench_result *result, char *text)
{
	struct okv_keys asked = {.count = keys, .key_bytes = TOOL_KEY_BYTES};
	struct bench_lookups lookups = {.status = 0};
	uint8_t *bytes = malloc((size_t)operations * keys * TOOL_KEY_BYTES);
	char key[32];
	int rc;

	if (bytes == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	/* Sequences start where an operation started. */
	for (uint32_t o = 0; o < operations; o++) {
		for (uint32_t k = 0; k < keys; k++)
			tool_key(FIRST_KEY + o * OKV_MAX_BLOCKS + k,
				 bytes + ((size_t)o * keys + k) * TOOL_KEY_BYTES);
	}
	rc = time_lookups(rig->ns, &asked, bytes, operations, false,
			  rig->config->quick ? 100000000u : 1000000000u, &lookups);
	free(bytes);
	if (rc != TOOL_OK) {
		memcpy(text, lookups.text, TOOL_TEXT);
		return rc;
	}
	snprintf(key, sizeof(key), "%uk_p50_us", keys);
	bench_figure(result, BENCH_COLUMN, key, lookups.p50_us);
	snprintf(key, sizeof(key), "%uk_p99_us", keys);
	bench_figure(result, BENCH_COLUMN, key, lookups.p99_us);
	return TOOL_OK;
}

static int fill_index(struct bench_rig *rig, uint32_t operations, char *text)
{
	uint64_t blocks = (uint64_t)operations * OKV_MAX_BLOCKS;
	uint64_t before = bench_anonymous_bytes(rig->manager.pid);
	uint64_t cpu = bench_cpu_ns(rig->manager.pid);
	struct bench_result result = {.suite = "index"};
	struct bench_rows rows;
	uint64_t start;
	uint64_t ns;
	int rc = bench_rows_create(&rig->pages, BENCH_RESTORE_HALF, OKV_MAX_BLOCKS, NULL, &rows,
				   text);

	if (rc != TOOL_OK)
		return rc;
	rc = bench_pages_fill(&rig->pages, &rows, FIRST_KEY, text);
	bench_rows_fini(&rows);
	start = tool_now_ns();
	for (uint32_t o = 0; o < operations && rc == TOOL_OK; o++)
		rc = bench_rig_store(rig, BENCH_RESTORE_HALF, FIRST_KEY + o * OKV_MAX_BLOCKS,
				     OKV_MAX_BLOCKS, text);
	ns = tool_now_ns() - start;
	cpu = bench_cpu_ns(rig->manager.pid) - cpu;
	if (rc == TOOL_OK)
		rc = check_last(rig, FIRST_KEY + (operations - 1) * OKV_MAX_BLOCKS, FIRST_KEY,
				text);
	bench_label(&result, "blocks", "%llu", (unsigned long long)blocks);
	bench_figure(&result, BENCH_COLUMN, "publish/s", (double)blocks * 1e9 / (double)ns);
	bench_figure(&result, BENCH_COLUMN, "manager_ns", (double)cpu / (double)blocks);
	bench_figure(&result, BENCH_COLUMN, "bytes/block",
		     (double)(bench_anonymous_bytes(rig->manager.pid) - before) / (double)blocks);
	for (uint32_t keys = 1; keys <= KEYS && rc == TOOL_OK; keys *= 32)
		rc = index_lookups(rig, operations, keys, &result, text);
	snprintf(result.note, sizeof(result.note),
		 "blocks of 64 bytes, %d a publish; manager_ns: processor time a block; bytes: of "
		 "the Manager's own memory, payload apart",
		 OKV_MAX_BLOCKS);
	if (rc == TOOL_OK)
		bench_report_add(rig->config->report, &result);
	return rc;
}

int bench_case_index(const struct bench_config *config, char *text)
{
	uint32_t operations = config->quick ? 64 : 10000000 / OKV_MAX_BLOCKS + 1;
	uint64_t blocks = (uint64_t)operations * OKV_MAX_BLOCKS;
	struct bench_config local = *config;
	struct tool_shape shape;
	struct bench_rig *rig;
	char ignored[TOOL_TEXT];
	int rc = tool_shape_create(&bench_small_model, &shape, text);

	if (rc != TOOL_OK)
		return rc;
	local.device = OKV_DEVICE_HOST;
	local.cuda = NULL;
	rc = bench_rig_open(&local, &shape, OKV_MAX_BLOCKS, blocks * 64 + MEMORY, &rig, text);
	if (rc == TOOL_OK) {
		rc = fill_index(rig, operations, text);
		bench_rig_close(rig, ignored);
	}
	tool_shape_fini(&shape);
	return rc;
}
