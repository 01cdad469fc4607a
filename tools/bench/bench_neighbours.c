/* SPDX-License-Identifier: Apache-2.0 */
/* [E] One-page operations beside sessions that ask much of the Manager, and clients that pin. */
#include "bench_lookup.h"
#include "bench_neighbour.h"
#include "bench_rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUSY 8u /* sessions that pin and publish without a pause */
#define PINNED_KEYS 256u
#define MEMORY (256ull << 20)
#define SAMPLES (1u << 18)
#define WARM_UP 200u
/* Beyond every id of a rig, so that neighbours publish keys of their own. */
#define NEIGHBOUR_KEYS (1ull << 32)
#define END_MS 60000 /* longest that the end of a session may take */

struct neighbours {
	struct bench_rig *rig;
	struct bench_hold hold; /* what is restored */
	struct bench_rows rows; /* of a restore */
	uint32_t content;	/* of the pages that are restored */
	uint32_t stored;	/* content and key of what was published last */
	uint64_t next_keys;	/* first id of the next neighbour */
	uint64_t references;	/* that the one that died had */
	uint32_t count;		/* samples, of each kind */
	uint64_t longest_ns;	/* of all calls, start to return of the wait */
	uint64_t *restore_ns;	/* owned */
	uint64_t *publish_ns;	/* owned */
	double alone_p99_us[2]; /* restore, publish */
};

struct neighbour_child {
	pid_t pid;
	int to;
	int from;
};

/* ---- one-page operations ---- */

static int restore_one(struct neighbours *n, uint64_t *ret_ns, char *text)
{
	struct bench_sample sample = {.ns = {0}};
	uint64_t start = tool_now_ns();
	struct okv_op *op;
	int rc = bench_rig_restore_start(n->rig, BENCH_RESTORE_HALF, &n->hold, NULL, 0, &op, text);

	if (rc == TOOL_OK)
		rc = bench_rig_finish(op, n->rows.bytes, start, &sample, text);
	*ret_ns = sample.ns[BENCH_TOTAL];
	return rc;
}

static int publish_one(struct neighbours *n, uint64_t *ret_ns, char *text)
{
	struct bench_sample sample = {.ns = {0}};
	uint32_t key = bench_rig_ids(n->rig, 1);
	uint64_t start;
	struct okv_op *op;
	int rc;

	bench_rig_keys(n->rig, key, NULL, 1);
	start = tool_now_ns();
	rc = bench_rig_publish_start(n->rig, BENCH_PUBLISH_HALF, 1, &op, text);
	if (rc == TOOL_OK)
		rc = bench_rig_finish(op, n->rows.bytes, start, &sample, text);
	*ret_ns = sample.ns[BENCH_TOTAL];
	n->stored = key;
	return rc;
}

static int take_sample(struct neighbours *n, char *text)
{
	uint64_t restore = 0;
	uint64_t publish = 0;
	int rc = restore_one(n, &restore, text);

	if (rc == TOOL_OK)
		rc = publish_one(n, &publish, text);
	if (rc != TOOL_OK)
		return rc;
	if (n->count < SAMPLES) {
		n->restore_ns[n->count] = restore;
		n->publish_ns[n->count++] = publish;
	}
	n->longest_ns = restore > n->longest_ns ? restore : n->longest_ns;
	n->longest_ns = publish > n->longest_ns ? publish : n->longest_ns;
	return TOOL_OK;
}

static int sample_for(struct neighbours *n, uint64_t ns, char *text)
{
	uint64_t start = tool_now_ns();
	int rc = TOOL_OK;

	while (rc == TOOL_OK && tool_now_ns() - start < ns)
		rc = take_sample(n, text);
	return rc;
}

/* Warm up, for at most a tenth of the time: where a call takes long, it takes long when warm. */
static int begin_set(struct neighbours *n, uint64_t ns, char *text)
{
	int rc = bench_pages_poison(&n->rig->pages, BENCH_RESTORE_HALF, text);
	uint64_t start = tool_now_ns();

	n->count = 0;
	while (rc == TOOL_OK && n->count < WARM_UP && tool_now_ns() - start < ns / 10)
		rc = take_sample(n, text);
	n->count = 0;
	n->longest_ns = 0;
	return rc;
}

/* The restored page, and the page that was published last, restored over it. */
static int check_bytes(struct neighbours *n, char *text)
{
	struct bench_hold kept = n->hold;
	uint64_t ns;
	int rc = bench_pages_check(&n->rig->pages, &n->rows, n->rows.count, n->content, text);

	if (rc == TOOL_OK)
		rc = publish_one(n, &ns, text);
	if (rc == TOOL_OK)
		rc = bench_rig_hold(n->rig, n->stored, NULL, 1, &n->hold, text);
	if (rc == TOOL_OK) {
		rc = restore_one(n, &ns, text);
		bench_rig_drop(&n->hold);
	}
	n->hold = kept;
	if (rc == TOOL_OK)
		rc = bench_pages_check(&n->rig->pages, &n->rows, n->rows.count, n->content + 1,
				       text);
	return rc;
}

static void report(struct neighbours *n, const char *beside)
{
	struct bench_result result = {.suite = "neighbours"};
	double p99[2];
	bool alone;

	bench_label(&result, "beside", "%s", beside);
	bench_figure(&result, BENCH_COLUMN, "restore_us",
		     tool_percentile_us(n->restore_ns, n->count, 500));
	p99[0] = tool_percentile_us(n->restore_ns, n->count, 990);
	bench_figure(&result, BENCH_COLUMN, "restore_p99", p99[0]);
	bench_figure(&result, BENCH_COLUMN, "publish_us",
		     tool_percentile_us(n->publish_ns, n->count, 500));
	p99[1] = tool_percentile_us(n->publish_ns, n->count, 990);
	bench_figure(&result, BENCH_COLUMN, "publish_p99", p99[1]);
	bench_figure(&result, BENCH_COLUMN, "longest_us", (double)n->longest_ns / 1e3);
	alone = n->alone_p99_us[0] <= 0;
	for (int i = 0; i < 2 && alone; i++)
		n->alone_p99_us[i] = p99[i];
	bench_figure(&result, BENCH_DETAIL, "restore_p99_x_alone", p99[0] / n->alone_p99_us[0]);
	bench_figure(&result, BENCH_DETAIL, "publish_p99_x_alone", p99[1] / n->alone_p99_us[1]);
	bench_figure(&result, BENCH_DETAIL, "pairs", n->count);
	if (n->references > 0)
		bench_figure(&result, BENCH_DETAIL, "references", (double)n->references);
	bench_report_add(n->rig->config->report, &result);
}

/* ---- the neighbours ---- */

static int hear(struct neighbour_child *child, struct bench_neighbour_ready *ret_ready, char *text)
{
	if (!tool_receive(child->from, ret_ready, sizeof(*ret_ready))) {
		snprintf(text, TOOL_TEXT, "a neighbour died");
		return TOOL_FAILED;
	}
	if (ret_ready->status != TOOL_OK)
		memcpy(text, ret_ready->text, TOOL_TEXT);
	return ret_ready->status;
}

static int start_child(struct neighbours *n, const char *role, struct neighbour_child *ret_child,
		       char *text)
{
	struct bench_neighbour_ready ready;
	char first[24];
	const char *argv[] = {
		"orbitkv-bench", BENCH_CHILD_NEIGHBOUR, n->rig->manager.socket, role, first, NULL};

	snprintf(first, sizeof(first), "%llu", (unsigned long long)n->next_keys);
	n->next_keys += NEIGHBOUR_KEYS;
	ret_child->pid = tool_spawn(argv, &ret_child->to, &ret_child->from, text);
	if (ret_child->pid < 0)
		return TOOL_FAILED;
	int rc = hear(ret_child, &ready, text);
	n->references = rc == TOOL_OK ? ready.references : 0;
	return rc;
}

static void end_child(struct neighbour_child *child)
{
	if (child->pid <= 0)
		return;
	close(child->to);
	close(child->from);
	waitpid(child->pid, NULL, 0);
}

/* Each is told to go on, and is heard at its end: one that failed would leave us alone. */
static int beside_busy(struct neighbours *n, uint64_t ns, char *text)
{
	struct neighbour_child children[BUSY] = {{.pid = 0}};
	struct bench_neighbour_ready ready;
	int rc = TOOL_OK;

	for (uint32_t i = 0; i < BUSY && rc == TOOL_OK; i++)
		rc = start_child(n, "busy", &children[i], text);
	for (uint32_t i = 0; i < BUSY && rc == TOOL_OK; i++)
		rc = tool_send(children[i].to, "", 1) ? TOOL_OK : TOOL_FAILED;
	if (rc == TOOL_OK)
		rc = begin_set(n, ns, text);
	if (rc == TOOL_OK)
		rc = sample_for(n, ns, text);
	for (uint32_t i = 0; i < BUSY && children[i].pid > 0; i++)
		tool_send(children[i].to, "", 1);
	for (uint32_t i = 0; i < BUSY && rc == TOOL_OK; i++)
		rc = hear(&children[i], &ready, text);
	for (uint32_t i = 0; i < BUSY; i++)
		end_child(&children[i]);
	return rc;
}

/* Is this engine's session the only one? */
static int alone_again(struct neighbours *n, bool *ret_alone, char *text)
{
	struct okv_manager_status status;
	struct okv_error err = {.text = ""};
	int rc = okv_manager_status_query(n->rig->manager.socket, END_MS, &status, &err);

	if (rc != 0) {
		tool_explain(text, "okv_manager_status_query", rc, &err);
		return TOOL_FAILED;
	}
	*ret_alone = status.sessions + status.sessions_retained == 1;
	return TOOL_OK;
}

/* It dies after a tenth of the time; we go on until the Manager has forgotten it. */
static int beside_dying(struct neighbours *n, uint64_t ns, char *text)
{
	struct neighbour_child child = {.pid = 0};
	uint64_t start = tool_now_ns();
	bool alone = false;
	int rc = start_child(n, "holds", &child, text);

	if (rc == TOOL_OK)
		rc = begin_set(n, ns, text);
	if (rc == TOOL_OK)
		rc = sample_for(n, ns / 10, text);
	if (child.pid > 0)
		kill(child.pid, SIGKILL);
	if (rc == TOOL_OK)
		rc = sample_for(n, ns / 10 * 9, text);
	while (rc == TOOL_OK && !alone) {
		rc = sample_for(n, ns / 10, text);
		if (rc == TOOL_OK)
			rc = alone_again(n, &alone, text);
		if (rc == TOOL_OK && !alone && tool_now_ns() - start > END_MS * 1000000ull) {
			snprintf(text, TOOL_TEXT, "a dead session is still there");
			rc = TOOL_FAILED;
		}
	}
	end_child(&child);
	return rc;
}

static int beside_nobody(struct neighbours *n, uint64_t ns, char *text)
{
	int rc = begin_set(n, ns, text);

	return rc == TOOL_OK ? sample_for(n, ns, text) : rc;
}

/* ---- clients that pin ---- */

static int rate_of_clients(struct neighbours *n, uint32_t ms, char *text)
{
	struct bench_lookups lookups;
	double one = 0;
	int rc = TOOL_OK;

	for (uint32_t clients = 1; clients <= BENCH_MAX_CLIENTS && rc == TOOL_OK; clients *= 2) {
		const struct bench_clients what = {
			.count = clients, .keys = PINNED_KEYS, .ms = ms, .lease = true};
		struct bench_result result = {.suite = "neighbours"};
		double rate;

		rc = bench_clients_run(n->rig->manager.socket, &what, &lookups, text);
		if (rc != TOOL_OK)
			break;
		rate = (double)lookups.count * 1e9 / (double)lookups.elapsed_ns;
		one = clients == 1 ? rate : one;
		bench_label(&result, "clients that pin", "%u", clients);
		bench_label(&result, "keys", "%u", PINNED_KEYS);
		bench_figure(&result, BENCH_COLUMN, "p50_us", lookups.p50_us);
		bench_figure(&result, BENCH_COLUMN, "p99_us", lookups.p99_us);
		bench_figure(&result, BENCH_COLUMN, "leases/s", rate);
		bench_figure(&result, BENCH_COLUMN, "x_one", rate / one);
		bench_report_add(n->rig->config->report, &result);
	}
	return rc;
}

/* ---- the case ---- */

static int measure(struct neighbours *n, char *text)
{
	static const struct {
		const char *name;
		int (*run)(struct neighbours *n, uint64_t ns, char *text);
	} sets[] = {
		{"nobody", beside_nobody},
		{"8 that pin and publish 4,096", beside_busy},
		{"one that dies", beside_dying},
		{"nobody again", beside_nobody},
	};
	uint64_t ns = n->rig->config->quick ? 200000000u : 5000000000u;
	int rc = TOOL_OK;

	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && rc == TOOL_OK; i++) {
		n->references = 0;
		rc = sets[i].run(n, ns, text);
		if (rc == TOOL_OK)
			rc = check_bytes(n, text);
		if (rc == TOOL_OK)
			report(n, sets[i].name);
	}
	if (rc == TOOL_OK)
		rc = rate_of_clients(n, n->rig->config->quick ? 100 : 2000, text);
	return rc;
}

/* Stores the keys that the clients pin, one block to restore, and fills the page to publish. */
static int prepare(struct neighbours *n, char *text)
{
	struct bench_pages *pages = &n->rig->pages;
	struct bench_hold all;
	struct bench_rows publish;
	int rc = bench_rig_seed(n->rig, PINNED_KEYS, &n->content, &all, text);

	if (rc != TOOL_OK)
		return rc;
	bench_pages_arrange(pages, true, 1);
	rc = bench_rig_hold(n->rig, n->content, NULL, 1, &n->hold, text);
	if (rc != TOOL_OK)
		goto drop_all;
	rc = bench_rows_create(pages, BENCH_RESTORE_HALF, 1, NULL, &n->rows, text);
	if (rc == TOOL_OK)
		rc = bench_rows_create(pages, BENCH_PUBLISH_HALF, 1, NULL, &publish, text);
	if (rc == TOOL_OK) {
		rc = bench_pages_fill(pages, &publish, n->content + 1, text);
		bench_rows_fini(&publish);
	}
	if (rc == TOOL_OK)
		rc = measure(n, text);
	bench_rows_fini(&n->rows);
	bench_rig_drop(&n->hold);
drop_all:
	bench_rig_drop(&all);
	return rc;
}

int bench_case_neighbours(const struct bench_config *config, char *text)
{
	struct neighbours n = {.next_keys = NEIGHBOUR_KEYS};
	struct bench_config local = *config;
	struct tool_shape shape;
	char ignored[TOOL_TEXT];
	int rc = tool_shape_create(&bench_small_model, &shape, text);

	if (rc != TOOL_OK)
		return rc;
	local.device = OKV_DEVICE_HOST;
	local.cuda = NULL;
	local.copy_threads = 1;
	n.restore_ns = malloc(SAMPLES * sizeof(*n.restore_ns));
	n.publish_ns = malloc(SAMPLES * sizeof(*n.publish_ns));
	rc = n.restore_ns != NULL && n.publish_ns != NULL ? TOOL_OK : TOOL_FAILED;
	if (rc != TOOL_OK)
		snprintf(text, TOOL_TEXT, "out of memory");
	if (rc == TOOL_OK)
		rc = bench_rig_open(&local, &shape, PINNED_KEYS, MEMORY, &n.rig, text);
	if (rc == TOOL_OK) {
		rc = prepare(&n, text);
		bench_rig_close(n.rig, ignored);
	}
	free(n.restore_ns);
	free(n.publish_ns);
	tool_shape_fini(&shape);
	return rc;
}
