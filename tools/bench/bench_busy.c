/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Work beside a measurement, timed before, during and after it. */
#include "bench_busy.h"

#include <stdio.h>
#include <string.h>

#define SETTLE_NS 250000000u /* until the clocks have found what the power allows */
#define ALONE_UNITS 48u
#define ALONE_NS 40000000u
#define ENOUGH_UNITS 8u /* fewer say nothing */

static double time_alone(struct bench_beside *beside)
{
	struct bench_beside_mark from = bench_beside_mark(beside);
	struct bench_beside_mark to = from;

	while ((to.units < from.units + ALONE_UNITS || to.ns < from.ns + ALONE_NS) &&
	       bench_beside_failure(beside) == 0)
		to = bench_beside_mark(beside);
	return bench_beside_unit_ns(beside, &from, &to);
}

void bench_busy_begin(struct bench_beside *beside, struct bench_busy *ret_busy)
{
	uint64_t start = tool_now_ns();

	memset(ret_busy, 0, sizeof(*ret_busy));
	if (beside == NULL)
		return;
	ret_busy->beside = beside;
	bench_beside_start(beside);
	while (tool_now_ns() - start < SETTLE_NS && bench_beside_failure(beside) == 0)
		bench_beside_mark(beside);
	ret_busy->before_ns = time_alone(beside);
}

void bench_busy_again(struct bench_busy *busy)
{
	if (busy->beside != NULL)
		busy->from = bench_beside_mark(busy->beside);
}

void bench_busy_mark(struct bench_busy *busy)
{
	struct bench_beside_mark to;

	if (busy->beside == NULL)
		return;
	to = bench_beside_mark(busy->beside);
	busy->units = to.units - busy->from.units;
	busy->beside_ns = bench_beside_unit_ns(busy->beside, &busy->from, &to);
	busy->after_ns = time_alone(busy->beside);
}

int bench_busy_end(struct bench_busy *busy, int rc, char *text)
{
	int failure;

	if (busy->beside == NULL)
		return rc;
	bench_beside_stop(busy->beside);
	failure = bench_beside_failure(busy->beside);
	if (rc != TOOL_OK || failure == 0)
		return rc;
	snprintf(text, TOOL_TEXT, "the work beside (%s) ended with error %d",
		 bench_beside_name(busy->beside), failure);
	return TOOL_FAILED;
}

static void report_one(const struct bench_work *work, const char *when, double unit_ns,
		       enum bench_weight weight, struct bench_result *result)
{
	char key[32];

	snprintf(key, sizeof(key), "%s_%s_%s", work->calls->name, when, work->calls->terms);
	bench_figure(result, weight, key, work->calls->figure(work->self, unit_ns));
}

void bench_busy_report(const struct bench_busy *busy, struct bench_result *result)
{
	double alone_ns = (busy->before_ns + busy->after_ns) / 2;
	const struct bench_work *work;

	if (busy->beside == NULL || busy->before_ns <= 0 || busy->after_ns <= 0)
		return;
	work = bench_beside_work(busy->beside);
	report_one(work, "alone", alone_ns, BENCH_DETAIL, result);
	report_one(work, "alone_before", busy->before_ns, BENCH_HIDDEN, result);
	report_one(work, "alone_after", busy->after_ns, BENCH_HIDDEN, result);
	bench_figure(result, BENCH_HIDDEN, "beside_units", (double)busy->units);
	if (busy->units < ENOUGH_UNITS || busy->beside_ns <= 0)
		return;
	report_one(work, "beside", busy->beside_ns, BENCH_DETAIL, result);
	bench_figure(result, BENCH_COLUMN, "model keeps", alone_ns / busy->beside_ns);
}
