/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Timed sets: warm-up, runs, medians, processor time. */
#include "bench.h"
#include "bench_busy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIN_RUNS 3u

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	if (clock_gettime(clock, &now) != 0)
		return 0;
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bench_cpu_ns(pid_t pid)
{
	clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;

	if (pid != 0 && clock_getcpuclockid(pid, &clock) != 0)
		return 0;
	return read_clock(clock);
}

static int warm_up(const struct bench_plan *plan, char *text)
{
	struct bench_sample sample;
	uint64_t start = tool_now_ns();

	for (uint32_t i = 0; i < plan->warm_up; i++) {
		int rc = plan->run(plan->arg, &sample, text);

		if (rc != TOOL_OK)
			return rc;
		/* A slow contestant is as warm after one run as after three. */
		if (tool_now_ns() - start > plan->max_ns / 2)
			break;
	}
	return TOOL_OK;
}

static int grow(struct bench_set *set, uint32_t max_runs, char *text)
{
	uint32_t capacity = set->capacity == 0 ? 16 : 2 * set->capacity;
	struct bench_sample *samples;

	if (capacity > max_runs)
		capacity = max_runs;
	samples = realloc(set->samples, capacity * sizeof(*samples));
	if (samples == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	set->samples = samples;
	set->capacity = capacity;
	return TOOL_OK;
}

int bench_set_run(const struct bench_plan *plan, struct bench_set *ret_set, char *text)
{
	struct bench_set *set = ret_set;
	uint64_t start;
	uint64_t cpu;
	uint64_t manager_cpu;
	int rc;

	memset(set, 0, sizeof(*set));
	rc = warm_up(plan, text);
	if (rc != TOOL_OK)
		return rc;
	if (plan->busy != NULL)
		bench_busy_again(plan->busy);
	start = tool_now_ns();
	cpu = bench_cpu_ns(0);
	manager_cpu = plan->manager != 0 ? bench_cpu_ns(plan->manager) : 0;
	while (set->count < plan->max_runs) {
		if (set->count >= MIN_RUNS && tool_now_ns() - start > plan->max_ns)
			break;
		if (set->count == set->capacity) {
			rc = grow(set, plan->max_runs, text);
			if (rc != TOOL_OK)
				return rc;
		}
		struct bench_sample *sample = &set->samples[set->count];

		memset(sample, 0, sizeof(*sample));
		rc = plan->run(plan->arg, sample, text);
		if (rc != TOOL_OK)
			return rc;
		set->count++;
	}
	set->engine_cpu_ns = bench_cpu_ns(0) - cpu;
	if (plan->manager != 0)
		set->manager_cpu_ns = bench_cpu_ns(plan->manager) - manager_cpu;
	if (plan->busy != NULL)
		bench_busy_mark(plan->busy);
	return TOOL_OK;
}

void bench_set_fini(struct bench_set *set)
{
	free(set->samples);
	set->samples = NULL;
	set->count = 0;
}

double bench_set_us(const struct bench_set *set, enum bench_stage stage, unsigned permille)
{
	uint64_t *ns = malloc((set->count + 1u) * sizeof(*ns));
	double us;

	if (ns == NULL)
		return 0;
	for (uint32_t i = 0; i < set->count; i++)
		ns[i] = set->samples[i].ns[stage];
	us = tool_percentile_us(ns, set->count, permille);
	free(ns);
	return us;
}

double bench_set_gbps(const struct bench_set *set)
{
	double us = bench_set_us(set, BENCH_TOTAL, 500);

	return us > 0 ? (double)set->bytes / us / 1e3 : 0;
}

static uint64_t since(uint64_t later, uint64_t earlier)
{
	return later > earlier ? later - earlier : 0;
}

void bench_set_stages(const struct okv_stage_times *times, struct bench_sample *sample)
{
	sample->ns[BENCH_PREPARE] = times->dispatched;
	sample->ns[BENCH_QUEUE] = since(times->dequeued, times->dispatched);
	sample->ns[BENCH_CLAIM] = since(times->claimed, times->dequeued);
	sample->ns[BENCH_SUBMIT] = since(times->enqueued, times->claimed);
	sample->ns[BENCH_COPY] = since(times->drained, times->enqueued);
	sample->ns[BENCH_RETIRE] = since(sample->ns[BENCH_TOTAL], times->drained);
}
