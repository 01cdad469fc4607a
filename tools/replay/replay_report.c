/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Totals of a replay: progress bar, table, JSON. */
#include "replay.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 32u
#define BAR_EVERY_NS 100000000u

int replay_report_init(const struct replay_config *config, struct replay_report *ret_report)
{
	uint32_t count = config->trace.request_count;
	struct replay_report report = {.config = config};

	report.lookup_ns = calloc(count, sizeof(uint64_t));
	report.restore_ns = calloc(count, sizeof(uint64_t));
	if (report.lookup_ns == NULL || report.restore_ns == NULL) {
		replay_report_fini(&report);
		return -1;
	}
	*ret_report = report;
	return 0;
}

void replay_report_fini(struct replay_report *report)
{
	free(report->lookup_ns);
	free(report->restore_ns);
	report->lookup_ns = NULL;
	report->restore_ns = NULL;
}

static double hit_ratio(const struct replay_report *report)
{
	return report->blocks > 0 ? (double)report->hit_blocks / (double)report->blocks : 0;
}

static void draw_progress(struct replay_report *report)
{
	uint32_t total = report->config->trace.request_count;
	uint32_t filled = (uint32_t)((uint64_t)report->requests * BAR_WIDTH / total);
	uint64_t now = tool_now_ns();
	char bar[BAR_WIDTH + 1];

	if (now - report->progress_ns < BAR_EVERY_NS)
		return;
	report->progress_ns = now;
	memset(bar, '.', BAR_WIDTH);
	memset(bar, '#', filled);
	bar[BAR_WIDTH] = '\0';
	fprintf(stderr, "\r[%s] %u/%u requests, hit ratio %.3f", bar, report->requests, total,
		hit_ratio(report));
	fflush(stderr);
}

static void clear_progress(const struct replay_report *report)
{
	if (report->progress_ns > 0)
		fprintf(stderr, "\r\033[K");
}

bool replay_report_add(void *arg, const struct replay_outcome *outcome)
{
	struct replay_report *report = arg;
	bool good = outcome->status == TOOL_OK && outcome->mismatched_bytes == 0;

	report->lookup_ns[report->requests] = outcome->lookup_ns;
	if (outcome->restore_ns > 0)
		report->restore_ns[report->restores++] = outcome->restore_ns;
	report->blocks += outcome->blocks;
	report->hit_blocks += outcome->hit_blocks;
	report->published_bytes += outcome->published_bytes;
	report->restored_bytes += outcome->restored_bytes;
	report->mismatched_bytes += outcome->mismatched_bytes;
	report->restore_total_ns += outcome->restore_ns;
	if (!good) {
		clear_progress(report);
		fprintf(stderr, "orbitkv-replay: request %u: %s\n", report->requests,
			outcome->text);
	}
	report->failures += outcome->status != TOOL_OK;
	report->requests++;
	if (isatty(STDERR_FILENO))
		draw_progress(report);
	return outcome->status == TOOL_OK;
}

const char *replay_device_name(uint32_t device)
{
	return device == OKV_DEVICE_CUDA ? "cuda" : "host";
}

static double restore_gbps(const struct replay_report *report)
{
	if (report->restore_total_ns == 0)
		return 0;
	return (double)report->restored_bytes / (double)report->restore_total_ns;
}

static void set_number(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

static void print_json(struct replay_report *r)
{
	const struct replay_config *config = r->config;
	json_t *out = json_object();

	json_object_set_new(out, "model", json_string(config->model.shape.model.name));
	json_object_set_new(out, "device", json_string(replay_device_name(config->device)));
	set_number(out, "engines", config->engines);
	set_number(out, "capacity_blocks", r->capacity_blocks);
	set_number(out, "requests", r->requests);
	set_number(out, "blocks", r->blocks);
	set_number(out, "hit_blocks", r->hit_blocks);
	json_object_set_new(out, "hit_ratio", json_real(hit_ratio(r)));
	set_number(out, "published_bytes", r->published_bytes);
	set_number(out, "restored_bytes", r->restored_bytes);
	json_object_set_new(out, "restore_gbps", json_real(restore_gbps(r)));
	json_object_set_new(out, "lookup_p50_us",
			    json_real(tool_percentile_us(r->lookup_ns, r->requests, 500)));
	json_object_set_new(out, "lookup_p99_us",
			    json_real(tool_percentile_us(r->lookup_ns, r->requests, 990)));
	json_object_set_new(out, "restore_p50_us",
			    json_real(tool_percentile_us(r->restore_ns, r->restores, 500)));
	json_object_set_new(out, "restore_p99_us",
			    json_real(tool_percentile_us(r->restore_ns, r->restores, 990)));
	json_object_set_new(out, "evictions",
			    r->evictions_known ? json_integer((json_int_t)r->evictions)
					       : json_null());
	set_number(out, "mismatched_bytes", r->mismatched_bytes);
	json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(out);
}

static void print_table(struct replay_report *r)
{
	const struct replay_config *config = r->config;

	printf("%-18s%s\n", "model", config->model.shape.model.name);
	printf("%-18s%s\n", "device", replay_device_name(config->device));
	printf("%-18s%u%s\n", "engines", config->engines,
	       config->embedded ? ", the Manager inside" : "");
	printf("%-18s%llu blocks\n", "capacity", (unsigned long long)r->capacity_blocks);
	printf("%-18s%u\n", "requests", r->requests);
	printf("%-18s%llu\n", "blocks", (unsigned long long)r->blocks);
	printf("%-18s%llu\n", "hit blocks", (unsigned long long)r->hit_blocks);
	printf("%-18s%.4f\n", "hit ratio", hit_ratio(r));
	printf("%-18s%.1f MB\n", "published", (double)r->published_bytes / 1e6);
	printf("%-18s%.1f MB\n", "restored", (double)r->restored_bytes / 1e6);
	printf("%-18s%.2f GB/s\n", "restore speed", restore_gbps(r));
	printf("%-18sp50 %.1f us, p99 %.1f us\n", "lookup",
	       tool_percentile_us(r->lookup_ns, r->requests, 500),
	       tool_percentile_us(r->lookup_ns, r->requests, 990));
	printf("%-18sp50 %.1f us, p99 %.1f us\n", "restore",
	       tool_percentile_us(r->restore_ns, r->restores, 500),
	       tool_percentile_us(r->restore_ns, r->restores, 990));
	if (r->evictions_known)
		printf("%-18s%llu\n", "evictions", (unsigned long long)r->evictions);
	else
		printf("%-18s%s\n", "evictions", "unknown");
	printf("%-18s%llu\n", "mismatched bytes", (unsigned long long)r->mismatched_bytes);
}

void replay_report_stop(const struct replay_report *report)
{
	clear_progress(report);
	fprintf(stderr, "orbitkv-replay: %u of %u requests were done\n", report->requests,
		report->config->trace.request_count);
}

int replay_report_print(struct replay_report *report)
{
	clear_progress(report);
	if (report->config->json)
		print_json(report);
	else
		print_table(report);
	if (fflush(stdout) != 0)
		return TOOL_FAILED;
	return report->failures > 0 || report->mismatched_bytes > 0 ? TOOL_FAILED : TOOL_OK;
}
