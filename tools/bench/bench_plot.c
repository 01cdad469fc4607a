/* [E] A picture: how near to one contiguous copy, against the size of the fragments. */
#include "bench_beside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 860
#define HEIGHT 520
#define LEFT 70
#define RIGHT 230
#define TOP 56
#define BOTTOM 62
#define MIN_POWER 9  /* 512 B */
#define MAX_POWER 20 /* 1 MiB */
#define TARGET 0.9   /* of fragments of 2 KiB and more */
#define TARGET_1K 0.6
#define TARGET_512 0.5
#define TARGET_POWER 11

struct series {
	const char *name;
	const char *direction;
	const char *beside; /* label of the row */
	const char *figure;
	const char *color;
	const char *dash;
};

static const struct series all_series[] = {
	{"restore", "restore", BENCH_NOTHING, "ratio", "#1f6fb4", ""},
	{"publish", "publish", BENCH_NOTHING, "ratio", "#d1580a", ""},
	{"restore beside products", "restore", "8192", "ratio", "#1f6fb4", "7 4"},
	{"publish beside products", "publish", "8192", "ratio", "#d1580a", "7 4"},
	{"plain memcpy of the rows", "restore", BENCH_NOTHING, "memcpy_ratio", "#4a8f3c", ""},
	{"batched call", "restore", BENCH_NOTHING, "batch_ratio", "#4a8f3c", ""},
	{"batched call per layer", "restore", BENCH_NOTHING, "batch_layer_ratio", "#8a56ac", ""},
	{"loop of copies", "restore", BENCH_NOTHING, "loop_ratio", "#7a7a7a", ""},
};

#define SERIES (sizeof(all_series) / sizeof(all_series[0]))

static double log2_of(double bytes)
{
	double power = 0;

	while (bytes >= 2) {
		bytes /= 2;
		power++;
	}
	return power + (bytes - 1); /* fragments are powers of two, so the rest is 0 */
}

static double place_x(double power)
{
	return LEFT + (power - MIN_POWER) / (MAX_POWER - MIN_POWER) * (WIDTH - LEFT - RIGHT);
}

static double place_y(double ratio, double top)
{
	return HEIGHT - BOTTOM - ratio / top * (HEIGHT - TOP - BOTTOM);
}

static bool of_series(const struct series *series, const struct bench_result *result,
		      double *ret_power, double *ret_ratio)
{
	const struct bench_figure *fragment = bench_result_figure(result, "fragment_bytes");
	const struct bench_figure *ratio = bench_result_figure(result, series->figure);

	if (strcmp(result->suite, "fragments") != 0 || fragment == NULL || ratio == NULL ||
	    strcmp(bench_result_label(result, "direction"), series->direction) != 0 ||
	    strcmp(bench_result_label(result, "beside"), series->beside) != 0)
		return false;
	*ret_power = log2_of(fragment->value);
	*ret_ratio = ratio->value;
	return true;
}

/* The highest ratio, rounded up to a tick. */
static double choose_top(const struct bench_report *report)
{
	double top = 1;

	for (uint32_t i = 0; i < report->count; i++) {
		for (size_t s = 0; s < SERIES; s++) {
			double power;
			double ratio;

			if (of_series(&all_series[s], &report->results[i], &power, &ratio) &&
			    ratio > top)
				top = ratio;
		}
	}
	return (double)(int)(top * 10 + 1) / 10;
}

static void draw_axes(FILE *out, double top)
{
	double step = top > 3 ? 0.5 : 0.1;
	char size[24];

	for (int p = MIN_POWER; p <= MAX_POWER; p++) {
		fprintf(out,
			"<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n"
			"<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s"
			"</text>\n",
			place_x(p), place_x(p), TOP, HEIGHT - BOTTOM, place_x(p),
			HEIGHT - BOTTOM + 20, bench_size_text(1ull << p, size));
	}
	for (int i = 0; i * step <= top + 0.001; i++) {
		double y = place_y(i * step, top);

		fprintf(out,
			"<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n"
			"<text class=\"tick\" x=\"%d\" y=\"%.1f\" "
			"text-anchor=\"end\">%.1f</text>\n",
			LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, i * step);
	}
	fprintf(out,
		"<path class=\"axis\" d=\"M%d %d V%d H%d\"/>\n"
		"<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">fragment size (log scale)</text>\n"
		"<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">"
		"rate / rate of one contiguous copy</text>\n",
		LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2,
		HEIGHT - BOTTOM + 46, (TOP + HEIGHT - BOTTOM) / 2);
}

/* 0.5 at 512 B, 0.6 at 1 KiB, 0.9 above. */
static void draw_target(FILE *out, double top)
{
	double y = place_y(TARGET, top);

	fprintf(out,
		"<polyline points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f\" fill=\"none\" "
		"stroke=\"#b00020\" stroke-width=\"1.2\" stroke-dasharray=\"2 3\"/>\n"
		"<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" style=\"fill:#b00020\">target</text>\n",
		place_x(MIN_POWER), place_y(TARGET_512, top), place_x(MIN_POWER + 1),
		place_y(TARGET_1K, top), place_x(TARGET_POWER), y, place_x(MAX_POWER), y,
		place_x(TARGET_POWER) + 6, y - 6);
}

static uint32_t draw_series(FILE *out, const struct bench_report *report,
			    const struct series *series, double top)
{
	uint32_t points = 0;

	for (uint32_t i = 0; i < report->count; i++) {
		double power;
		double ratio;

		if (!of_series(series, &report->results[i], &power, &ratio))
			continue;
		if (points++ == 0)
			fprintf(out,
				"<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
				"stroke-dasharray=\"%s\" points=\"",
				series->color, series->dash);
		fprintf(out, "%.1f,%.1f ", place_x(power), place_y(ratio, top));
	}
	if (points == 0)
		return 0;
	fprintf(out, "\"/>\n");
	for (uint32_t i = 0; i < report->count; i++) {
		double power;
		double ratio;

		if (of_series(series, &report->results[i], &power, &ratio))
			fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
				place_x(power), place_y(ratio, top), series->color);
	}
	return points;
}

static void draw_legend(FILE *out, const struct series *series, uint32_t line)
{
	int x = WIDTH - RIGHT + 14;
	uint32_t y = TOP + 70 + line * 24;

	fprintf(out,
		"<line x1=\"%d\" x2=\"%d\" y1=\"%u\" y2=\"%u\" stroke=\"%s\" stroke-width=\"2\" "
		"stroke-dasharray=\"%s\"/>\n<text x=\"%d\" y=\"%u\">%s</text>\n",
		x, x + 28, y, y, series->color, series->dash, x + 36, y + 4, series->name);
}

static void draw(FILE *out, const struct bench_report *report, bool target)
{
	double top = choose_top(report);
	uint32_t line = 0;

	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"viewBox=\"0 0 %d %d\">\n<style>text{font:13px sans-serif;fill:#222}"
		".tick{font-size:11px;fill:#555}.grid{stroke:#e4e4e4}"
		".axis{stroke:#444;fill:none}</style>\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
		"<text x=\"%d\" y=\"28\" style=\"font-size:16px\">Scattered fragments, shuffled "
		"pages: how near to one contiguous copy</text>\n",
		WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
	draw_axes(out, top);
	if (target)
		draw_target(out, top);
	for (size_t s = SERIES; s > 0; s--)
		draw_series(out, report, &all_series[s - 1], top);
	for (size_t s = 0; s < SERIES; s++) {
		uint32_t points = 0;

		for (uint32_t i = 0; i < report->count; i++) {
			double power;
			double ratio;

			points += of_series(&all_series[s], &report->results[i], &power, &ratio);
		}
		if (points > 0)
			draw_legend(out, &all_series[s], line++);
	}
	fprintf(out, "</svg>\n");
}

int bench_plot_write(const struct bench_report *report, const char *file, char *text)
{
	bool target = false;
	bool any = false;
	FILE *out;

	for (uint32_t i = 0; i < report->count; i++) {
		const struct bench_result *result = &report->results[i];

		any |= strcmp(result->suite, "fragments") == 0 && result->figure_count > 0;
		target |= strcmp(bench_result_label(result, "beside"), BENCH_NOTHING) == 0 &&
			  bench_result_figure(result, "batch_ratio") != NULL;
	}
	if (!any) {
		snprintf(text, BENCH_TEXT, "--plot needs the case fragments");
		return BENCH_USAGE;
	}
	out = fopen(file, "we");
	if (out == NULL) {
		snprintf(text, BENCH_TEXT, "%s: %s", file, strerror(errno));
		return BENCH_FAILED;
	}
	draw(out, report, target);
	if (fclose(out) == 0)
		return BENCH_OK;
	snprintf(text, BENCH_TEXT, "%s: %s", file, strerror(errno));
	return BENCH_FAILED;
}
