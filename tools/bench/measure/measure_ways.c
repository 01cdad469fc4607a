/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each way to copy and the chosen one, over geometries, sizes and layouts: on an idle GPU, beside
 * matrix products and beside a chain of small kernels. Shuffled pages and blocks lie anywhere in
 * 4 GiB. A line for each case; medians.
 */
#include <stdio.h>
#include <string.h>

#include "tools/bench/measure/measure_rig.h"

#define POOL (4ull << 30)
#define CHAIN 200 /* kernels */
#define CHAINS 40 /* in a window */
#define WAYS 4

/* Of all in measure_rig.c: by copy engines, the kernel, chosen. */
static const uint32_t compared[WAYS] = {0, 1, 4, 3};

static const struct {
	const char *name;
	uint32_t layers, segments;
	uint64_t bytes;
} shapes[] = {
	{"36 x 2 x 32 KiB", 36, 2, 32768}, {"61 x 72 KiB", 61, 1, 73728},
	{"24 x 2 x 16 KiB", 24, 2, 16384}, {"80 x 2 x 4 KiB", 80, 2, 4096},
	{"80 x 2 x 2 KiB", 80, 2, 2048},   {"36 x 1 KiB", 36, 1, 1024},
};
/* 0: one page */
static const uint64_t sizes[] = {0, 4 << 20, 16 << 20, 60 << 20, 256 << 20};

enum background { IDLE, LARGE, MIDDLE, SMALL, BACKGROUNDS };
static const char *const background_names[] = {"idle", "8192", "4096", "chain"};

static struct product product;
static CUstream chain_stream;
static CUevent chain_end;
static double alone[BACKGROUNDS];

static double chain(struct beside *b, double *ret_rate)
{
	double took[CHAINS];
	beside_begin(b);
	for (int i = 0; i < CHAINS; i++) {
		uint64_t from = oki_now_ns();
		for (int k = 0; k < CHAIN; k++) {
			tiny_launch(chain_stream);
			beside_go_on(b);
		}
		must(api->event_record(chain_end, chain_stream));
		while (api->event_query(chain_end) == CUDA_ERROR_NOT_READY)
			beside_go_on(b);
		took[i] = (double)(oki_now_ns() - from);
	}
	beside_end(b, ret_rate);
	return median(took, CHAINS);
}

static double window(enum background what, struct beside *b, double *ret_rate)
{
	if (what == SMALL)
		return chain(b, ret_rate);
	product.side = what == LARGE ? 8192 : 4096;
	product.times = what == LARGE ? 30 : 200;
	return products(&product, b, ret_rate);
}

static void one_way(const struct way *way, const struct model *m, enum oki_direction d, bool busy)
{
	double ns[15];
	struct beside b = {.worker = worker_for(way, m), .m = m, .direction = d};
	int times = model_bytes(m) > 100 << 20 ? 5 : 15;
	for (int i = -2; i < times; i++) {
		struct job j;
		job_start(&j, b.worker, m, d, 0, m->pages, NULL);
		double took = job_wait(&j, b.worker);
		if (i >= 0)
			ns[i] = took;
	}
	printf(" | %s %.2f", way->name, (double)model_bytes(m) / median(ns, times));
	for (int what = LARGE; busy && what < BACKGROUNDS; what++) {
		double keeps[3], rates[3];
		window((enum background)what, &b, &rates[0]);
		for (int i = 0; i < 3; i++)
			keeps[i] = 100 * alone[what] / window((enum background)what, &b, &rates[i]);
		printf(" %s %.1f %.1f%%", background_names[what], median(rates, 3),
		       median(keeps, 3));
	}
	worker_end(b.worker);
}

void ways_compared(void)
{
	tiny_init();
	must(api->stream_create(&chain_stream, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&chain_end, CU_EVENT_DISABLE_TIMING));
	bool products_too = product_init(&product);
	for (int what = LARGE; what < BACKGROUNDS && products_too; what++) {
		double ns[7];
		window((enum background)what, NULL, NULL);
		for (int i = 0; i < 7; i++)
			ns[i] = window((enum background)what, NULL, NULL);
		alone[what] = median(ns, 7);
		printf("%s alone: %.3f ms\n", background_names[what], alone[what] / 1e6);
	}
	for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
			for (int n = 0; n < 4; n++) {
				struct model m;
				uint64_t page =
					shapes[s].bytes * shapes[s].layers * shapes[s].segments;
				uint32_t pages = (uint32_t)(sizes[k] / page);
				bool shuffled = n % 2;
				enum oki_direction d = (enum oki_direction)(n / 2);
				if ((pages < 2 && (sizes[k] || shuffled)) || pages > 8192)
					continue;
				pages = pages ? pages : 1;
				model_init_in(&m, shapes[s].layers, shapes[s].segments,
					      shapes[s].bytes, pages, (uint32_t)(POOL / page),
					      shuffled);
				printf("%s, %u pages %s, %s", shapes[s].name, pages,
				       shuffled ? "shuffled" : "tidy", names[d]);
				for (int w = 0; w < WAYS; w++)
					one_way(&ways[compared[w]], &m, d,
						products_too && k != 1 && k != 4);
				putchar('\n');
				fflush(stdout);
				model_fini(&m);
			}
	product_fini(&product);
	must(api->event_destroy(chain_end));
	must(api->stream_destroy(chain_stream));
	tiny_fini();
}
