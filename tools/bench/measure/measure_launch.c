/* SPDX-License-Identifier: Apache-2.0 */
/* What the small kernels of a model wait for beside copies: one alone, and many in a row. */
#include <stdio.h>

#include "tools/bench/measure/measure_rig.h"

#define LAYERS 36
#define PAGES 64
#define KERNEL_4 4 /* of the ways */
#define TIMES 200
#define MANY 200

struct small_kernels {
	CUstream stream;
	CUevent from, to; /* with times */
};

static void launch(const struct small_kernels *k, int count)
{
	for (int i = 0; i < count; i++)
		tiny_launch(k->stream);
}

/* ns by the CPU's clock, until the last one is seen to have ended. */
static double timed(const struct small_kernels *k, int count)
{
	uint64_t start = oki_now_ns();
	must(api->event_record(k->from, k->stream));
	launch(k, count);
	must(api->event_record(k->to, k->stream));
	while (api->event_query(k->to) == CUDA_ERROR_NOT_READY)
		;
	return (double)(oki_now_ns() - start);
}

/* One operation after the other meanwhile; worker NULL: nothing. */
static void beside(const struct small_kernels *k, struct oki_worker *worker, const struct model *m,
		   enum oki_direction direction, const char *name)
{
	double one[TIMES], many[TIMES], inside[TIMES], taken[TIMES];
	struct job job;
	int ended = 0;
	if (worker)
		job_start(&job, worker, m, direction, 0, m->pages, NULL);
	for (int i = 0; i < 2 * TIMES; i++) {
		if (worker && atomic_load(&job.ended)) {
			taken[ended++ % TIMES] = job_wait(&job, worker);
			job_start(&job, worker, m, direction, 0, m->pages, NULL);
		}
		float ms;
		if (i >= TIMES) {
			many[i - TIMES] = timed(k, MANY);
			continue;
		}
		one[i] = timed(k, 1);
		must(api->event_elapsed(&ms, k->from, k->to));
		inside[i] = ms * 1e6;
	}
	if (worker)
		taken[ended++ % TIMES] = job_wait(&job, worker);
	median(one, TIMES), median(many, TIMES), median(inside, TIMES);
	printf("%-20s: one %.1f us, p90 %.1f, most %.1f; on the GPU %.1f, %.1f, %.1f; %d in a row "
	       "%.0f us, p90 %.0f, most %.0f",
	       name, one[TIMES / 2] / 1000, one[TIMES * 9 / 10] / 1000, one[TIMES - 1] / 1000,
	       inside[TIMES / 2] / 1000, inside[TIMES * 9 / 10] / 1000, inside[TIMES - 1] / 1000,
	       MANY, many[TIMES / 2] / 1000, many[TIMES * 9 / 10] / 1000, many[TIMES - 1] / 1000);
	if (worker)
		printf("; copies %.1f GB/s",
		       (double)model_bytes(m) / median(taken, ended < TIMES ? ended : TIMES));
	putchar('\n');
	fflush(stdout);
}

/* Publishes by the kernel, whose threads depend on how long rows are. */
static void by_rows(const struct small_kernels *k)
{
	static const uint64_t rows[] = {64, 256, 512, 656, 1024, 1152, 2048, 4096, 4112, 32768};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char name[64];
		struct model m;
		uint64_t pages = (150u << 20) / LAYERS / rows[i];
		model_init(&m, LAYERS, 1, rows[i], pages < 8192 ? (uint32_t)pages : 8192, true);
		struct oki_worker *worker = worker_for(&ways[KERNEL_4], &m);
		verify(worker, &m, OKI_TO_BLOCKS);
		snprintf(name, sizeof(name), "publish of %llu B", (unsigned long long)rows[i]);
		beside(k, worker, &m, OKI_TO_BLOCKS, name);
		worker_end(worker);
		model_fini(&m);
	}
}

void launches(void)
{
	struct small_kernels k;
	struct model m;
	tiny_init();
	must(api->stream_create(&k.stream, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&k.from, CU_EVENT_DEFAULT));
	must(api->event_create(&k.to, CU_EVENT_DEFAULT));
	model_init(&m, LAYERS, 2, 32768, PAGES, true);
	printf("\nkernels that do nothing beside operations of %d shuffled pages\n", PAGES);
	beside(&k, NULL, NULL, OKI_TO_PAGES, "nothing");
	for (int d = 0; d < 2; d++)
		for (int w = 0; w < WORKERS; w++) {
			char name[64];
			struct oki_worker *worker = worker_for(&ways[w], &m);
			snprintf(name, sizeof(name), "%s %s", names[d], ways[w].name);
			beside(&k, worker, &m, (enum oki_direction)d, name);
			worker_end(worker);
		}
	model_fini(&m);
	by_rows(&k);
	must(api->event_destroy(k.to));
	must(api->event_destroy(k.from));
	must(api->stream_destroy(k.stream));
	tiny_fini();
}
