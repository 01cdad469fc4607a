/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Rows of labels and figures: a table as they come, JSON at the end. */
#include "bench.h"
#include "bench_cuda.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDE 22	  /* the first label of a row */
#define NARROW 11 /* the others, and figures */
#define DETAIL_LINE 92u

void bench_label(struct bench_result *result, const char *key, const char *fmt, ...)
{
	struct bench_label *label = &result->labels[result->label_count];
	va_list args;

	if (result->label_count == BENCH_MAX_LABELS)
		return;
	result->label_count++;
	label->key = key;
	va_start(args, fmt);
	vsnprintf(label->value, sizeof(label->value), fmt, args);
	va_end(args);
}

void bench_figure(struct bench_result *result, enum bench_weight weight, const char *key,
		  double value)
{
	struct bench_figure *figure = &result->figures[result->figure_count];

	if (result->figure_count == BENCH_MAX_FIGURES)
		return;
	result->figure_count++;
	snprintf(figure->key, sizeof(figure->key), "%s", key);
	figure->value = value;
	figure->weight = weight;
}

/* NULL when there is none. */
static const struct bench_figure *find_figure(const struct bench_result *result, const char *key)
{
	for (uint32_t i = 0; i < result->figure_count; i++) {
		if (strcmp(result->figures[i].key, key) == 0)
			return &result->figures[i];
	}
	return NULL;
}

const char *bench_size_text(uint64_t bytes, char buffer[24])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
	double value = (double)bytes;
	int unit = 0;

	while (value >= 1024 && unit < 3) {
		value /= 1024;
		unit++;
	}
	snprintf(buffer, 24, value == (double)(uint64_t)value ? "%.0f %s" : "%.1f %s", value,
		 units[unit]);
	return buffer;
}

/* ---- table ---- */

/* Does the printed header have a column for everything in this row? */
static bool fits(const struct bench_result *header, const struct bench_result *result)
{
	if (strcmp(header->suite, result->suite) != 0 || header->label_count != result->label_count)
		return false;
	for (uint32_t i = 0; i < result->figure_count; i++) {
		if (result->figures[i].weight == BENCH_COLUMN &&
		    find_figure(header, result->figures[i].key) == NULL)
			return false;
	}
	return true;
}

static void print_header(FILE *out, const struct bench_result *result)
{
	fprintf(out, "\n== %s\n", result->suite);
	if (result->label_count == 0)
		return;
	for (uint32_t i = 0; i < result->label_count; i++)
		fprintf(out, "%-*s ", i == 0 ? WIDE : NARROW, result->labels[i].key);
	for (uint32_t i = 0; i < result->figure_count; i++) {
		if (result->figures[i].weight == BENCH_COLUMN)
			fprintf(out, "%*s ", NARROW, result->figures[i].key);
	}
	fputc('\n', out);
}

static void format_value(double value, char text[24])
{
	double size = value < 0 ? -value : value;

	snprintf(text, 24, size >= 1000 || size == (double)(uint64_t)size ? "%.0f" : "%.3g", value);
	if (size >= 10 && size < 1000 && size != (double)(uint64_t)size)
		snprintf(text, 24, "%.1f", value);
}

static void print_details(FILE *out, const struct bench_result *result)
{
	uint32_t column = 0;

	for (uint32_t i = 0; i < result->figure_count; i++) {
		char value[24];
		int n;

		if (result->figures[i].weight != BENCH_DETAIL)
			continue;
		format_value(result->figures[i].value, value);
		if (column == 0)
			fprintf(out, "   ");
		n = fprintf(out, " %s %s,", result->figures[i].key, value);
		column += n > 0 ? (uint32_t)n : 0;
		if (column > DETAIL_LINE) {
			fputc('\n', out);
			column = 0;
		}
	}
	if (column > 0)
		fputc('\n', out);
}

static void print_row(FILE *out, const struct bench_result *header,
		      const struct bench_result *result)
{
	for (uint32_t i = 0; i < result->label_count; i++)
		fprintf(out, "%-*s ", i == 0 ? WIDE : NARROW, result->labels[i].value);
	for (uint32_t i = 0; i < header->figure_count; i++) {
		const struct bench_figure *figure;
		char value[24] = "-";

		if (header->figures[i].weight != BENCH_COLUMN)
			continue;
		figure = find_figure(result, header->figures[i].key);
		if (figure != NULL)
			format_value(figure->value, value);
		fprintf(out, "%*s ", NARROW, value);
	}
	if (result->label_count > 0)
		fputc('\n', out);
	print_details(out, result);
	if (result->note[0] != '\0')
		fprintf(out, "    %s\n", result->note);
}

static void grow(struct bench_report *report)
{
	uint32_t capacity = report->capacity == 0 ? 64 : 2 * report->capacity;
	struct bench_result *results = realloc(report->results, capacity * sizeof(*results));

	if (results == NULL) {
		fprintf(stderr, "orbitkv-bench: out of memory\n");
		exit(TOOL_FAILED);
	}
	report->results = results;
	report->capacity = capacity;
}

void bench_report_add(struct bench_report *report, const struct bench_result *result)
{
	FILE *out = report->json ? stderr : stdout;

	if (report->count == report->capacity)
		grow(report);
	report->results[report->count++] = *result;
	if (report->count == 1 || !fits(&report->results[report->header], result)) {
		report->header = report->count - 1;
		print_header(out, result);
	}
	print_row(out, &report->results[report->header], result);
	fflush(out);
}

void bench_report_skip(struct bench_report *report, const char *suite, const char *why)
{
	struct bench_result result = {.suite = suite};

	snprintf(result.note, sizeof(result.note), "not measured: %.200s", why);
	bench_report_add(report, &result);
}

/* ---- JSON ---- */

static json_t *result_json(const struct bench_result *result)
{
	json_t *object = json_object();
	json_t *figures = json_object();

	json_object_set_new(object, "case", json_string(result->suite));
	for (uint32_t i = 0; i < result->label_count; i++)
		json_object_set_new(object, result->labels[i].key,
				    json_string(result->labels[i].value));
	for (uint32_t i = 0; i < result->figure_count; i++)
		json_object_set_new(figures, result->figures[i].key,
				    json_real(result->figures[i].value));
	json_object_set_new(object, "figures", figures);
	if (result->note[0] != '\0')
		json_object_set_new(object, "note", json_string(result->note));
	return object;
}

void bench_report_print_json(const struct bench_config *config)
{
	const struct bench_cuda *cuda = config->cuda;
	json_t *results = json_array();
	json_t *root = json_object();

	for (uint32_t i = 0; i < config->report->count; i++)
		json_array_append_new(results, result_json(&config->report->results[i]));
	json_object_set_new(root, "device",
			    json_string(config->device == OKV_DEVICE_CUDA ? "cuda" : "host"));
	json_object_set_new(root, "version", json_integer((json_int_t)okv_version()));
	json_object_set_new(root, "copy_threads", json_integer(tool_pool_threads()));
	if (cuda != NULL) {
		json_object_set_new(root, "gpu", json_string(cuda->gpu.name));
		json_object_set_new(root, "cuda_driver", json_integer(cuda->gpu.driver));
	}
	json_object_set_new(root, "quick", json_boolean(config->quick));
	json_object_set_new(root, "busy", json_boolean(config->busy));
	json_object_set_new(root, "results", results);
	json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(root);
}

void bench_report_fini(struct bench_report *report)
{
	free(report->results);
	memset(report, 0, sizeof(*report));
}
