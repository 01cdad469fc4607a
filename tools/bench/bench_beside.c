/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The kinds of work beside a measurement, and the thread that keeps one of them going. */
#include "bench_beside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 16384u /* whose times are remembered: some seconds of short ones */
#define NO_THREAD (-1)

static const struct {
	const char *name;
	int (*open)(struct bench_cuda *cuda, unsigned size, struct bench_work *ret_work,
		    char *text);
	unsigned size;
} kinds[BENCH_KINDS] = {
	{"8192", bench_product_open, 8192},
	{"4096", bench_product_open, 4096},
	{"chain", bench_chain_open, 200},
};

struct bench_beside {
	struct bench_cuda *cuda; /* borrowed */
	struct bench_work work;
	uint32_t kind;
	bool running; /* the thread exists */
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t ended; /* one more unit, or a failure */
	bool stop;
	int failure;
	struct bench_beside_mark last;
	uint64_t turn_ns[TURNS];
	uint64_t sorted[TURNS]; /* scratch of the thread that asks; needs no lock */
};

/* ---- the kinds ---- */

static void destroy(struct bench_beside *beside)
{
	if (beside == NULL)
		return;
	bench_beside_stop(beside);
	if (beside->work.calls != NULL)
		beside->work.calls->close(beside->work.self);
	pthread_cond_destroy(&beside->ended);
	pthread_mutex_destroy(&beside->lock);
	free(beside);
}

/* One unit at once: what cannot run here says so before anything is measured. */
static int try_once(const struct bench_work *work, char *text)
{
	int result = work->calls->turn(work->self);
	int drained = work->calls->drain(work->self);

	if (result == 0)
		result = drained;
	if (result == 0)
		return TOOL_OK;
	snprintf(text, TOOL_TEXT, "it does not run on this GPU: error %d", result);
	return TOOL_SKIPPED;
}

static int create(struct bench_cuda *cuda, uint32_t kind, struct bench_beside **ret_beside,
		  char *text)
{
	struct bench_beside *beside = calloc(1, sizeof(*beside));
	int rc;

	if (beside == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	beside->cuda = cuda;
	beside->kind = kind;
	pthread_mutex_init(&beside->lock, NULL);
	pthread_cond_init(&beside->ended, NULL);
	rc = kinds[kind].open(cuda, kinds[kind].size, &beside->work, text);
	if (rc == TOOL_OK)
		rc = try_once(&beside->work, text);
	if (rc != TOOL_OK) {
		destroy(beside);
		return rc;
	}
	*ret_beside = beside;
	return TOOL_OK;
}

int bench_beside_open(struct bench_config *config, char *text)
{
	for (uint32_t k = 0; k < BENCH_KINDS; k++) {
		char *reason = config->beside_reason[k];
		int rc = TOOL_SKIPPED;

		if (config->cuda == NULL)
			snprintf(reason, TOOL_TEXT,
				 "it runs on a GPU, and this is the host device");
		else
			rc = create(config->cuda, k, &config->beside[k], reason);
		if (rc == TOOL_FAILED) {
			memcpy(text, reason, TOOL_TEXT);
			return rc;
		}
	}
	return TOOL_OK;
}

void bench_beside_close(struct bench_config *config)
{
	for (uint32_t k = BENCH_KINDS; k > 0; k--) {
		destroy(config->beside[k - 1]);
		config->beside[k - 1] = NULL;
	}
}

static bool same_reason(const struct bench_config *config, uint32_t a, uint32_t b)
{
	return config->beside[a] == NULL && config->beside[b] == NULL &&
	       strcmp(config->beside_reason[a], config->beside_reason[b]) == 0;
}

void bench_beside_report_missing(const struct bench_config *config, const char *suite)
{
	bool told[BENCH_KINDS] = {false};

	for (uint32_t k = 0; k < BENCH_KINDS; k++) {
		char names[32] = "";
		char why[TOOL_TEXT];

		for (uint32_t other = k; other < BENCH_KINDS; other++) {
			size_t length = strlen(names);

			if (told[other] || !same_reason(config, k, other))
				continue;
			told[other] = true;
			snprintf(names + length, sizeof(names) - length, "%s%s",
				 length > 0 ? ", " : "", kinds[other].name);
		}
		if (names[0] == '\0')
			continue;
		snprintf(why, sizeof(why), "beside %s: %.180s", names, config->beside_reason[k]);
		bench_report_skip(config->report, suite, why);
	}
}

static bool is_usual(const struct bench_config *config, const char *geometry)
{
	const struct tool_model *usual = tool_model_usual(config->specs, config->spec_count);

	return strcmp(usual->name, geometry) == 0;
}

struct bench_beside *bench_beside_next(const struct bench_config *config, const char *geometry,
				       const struct bench_beside *last)
{
	uint32_t k = last != NULL ? last->kind + 1 : 0;

	if (!config->busy || (last != NULL && config->quick && !is_usual(config, geometry)))
		return NULL;
	while (k < BENCH_KINDS && config->beside[k] == NULL)
		k++;
	return k < BENCH_KINDS ? config->beside[k] : NULL;
}

const char *bench_beside_name(const struct bench_beside *beside)
{
	return beside != NULL ? kinds[beside->kind].name : BENCH_NOTHING;
}

const struct bench_work *bench_beside_work(const struct bench_beside *beside)
{
	return &beside->work;
}

/* ---- the thread ---- */

/* Is one more wanted? */
static bool count_one(struct bench_beside *beside, uint64_t start, int result)
{
	uint64_t now = tool_now_ns();
	bool more;

	pthread_mutex_lock(&beside->lock);
	if (result == 0) {
		beside->turn_ns[beside->last.units++ % TURNS] = now - start;
		beside->last.ns = now;
	}
	beside->failure = result;
	more = !beside->stop && result == 0;
	pthread_cond_broadcast(&beside->ended);
	pthread_mutex_unlock(&beside->lock);
	return more;
}

static void fail(struct bench_beside *beside, int result)
{
	pthread_mutex_lock(&beside->lock);
	if (beside->failure == 0)
		beside->failure = result;
	pthread_mutex_unlock(&beside->lock);
}

static void *take_turns(void *arg)
{
	struct bench_beside *beside = arg;
	const struct bench_work *work = &beside->work;
	const struct tool_cuda_calls *cu = &beside->cuda->gpu.cu;
	int result = cu->context_set_current(beside->cuda->gpu.context);
	uint64_t start;

	if (result != 0) {
		count_one(beside, tool_now_ns(), result);
		return NULL;
	}
	do {
		start = tool_now_ns();
		result = work->calls->turn(work->self);
	} while (count_one(beside, start, result));
	fail(beside, work->calls->drain(work->self));
	fail(beside, cu->context_set_current(NULL));
	return NULL;
}

void bench_beside_start(struct bench_beside *beside)
{
	if (beside->running || bench_beside_failure(beside) != 0)
		return;
	beside->stop = false;
	beside->running = pthread_create(&beside->thread, NULL, take_turns, beside) == 0;
	if (!beside->running)
		fail(beside, NO_THREAD);
}

void bench_beside_stop(struct bench_beside *beside)
{
	if (!beside->running)
		return;
	pthread_mutex_lock(&beside->lock);
	beside->stop = true;
	pthread_mutex_unlock(&beside->lock);
	pthread_join(beside->thread, NULL);
	beside->running = false;
}

int bench_beside_failure(struct bench_beside *beside)
{
	int failure;

	pthread_mutex_lock(&beside->lock);
	failure = beside->failure;
	pthread_mutex_unlock(&beside->lock);
	return failure;
}

struct bench_beside_mark bench_beside_mark(struct bench_beside *beside)
{
	struct bench_beside_mark mark;
	uint64_t before;

	pthread_mutex_lock(&beside->lock);
	before = beside->last.units;
	while (beside->running && beside->last.units == before && beside->failure == 0)
		pthread_cond_wait(&beside->ended, &beside->lock);
	mark = beside->last;
	pthread_mutex_unlock(&beside->lock);
	return mark;
}

static double median_ns(struct bench_beside *beside, const struct bench_beside_mark *from,
			const struct bench_beside_mark *to)
{
	uint64_t units = to->units - from->units;
	uint32_t count = units < TURNS ? (uint32_t)units : TURNS;

	pthread_mutex_lock(&beside->lock);
	for (uint32_t i = 0; i < count; i++)
		beside->sorted[i] = beside->turn_ns[(to->units - 1 - i) % TURNS];
	pthread_mutex_unlock(&beside->lock);
	return tool_percentile_us(beside->sorted, count, 500) * 1e3;
}

double bench_beside_unit_ns(struct bench_beside *beside, const struct bench_beside_mark *from,
			    const struct bench_beside_mark *to)
{
	if (to->units <= from->units || to->ns <= from->ns)
		return 0;
	if (!beside->work.calls->overlap)
		return median_ns(beside, from, to);
	return (double)(to->ns - from->ns) / (double)(to->units - from->units);
}
