/* SPDX-License-Identifier: Apache-2.0 */
/* A restore and a publish at once: how much of both directions of the link they get. */
#include <stdio.h>

#include "tools/bench/measure/measure_rig.h"

/* ns for one contiguous copy each way at once. */
static double plain_both(uint64_t bytes, CUstream other, CUevent event)
{
	double ns[9];
	for (int i = 0; i < 9; i++) {
		uint64_t start = oki_now_ns();
		must(api->copy_to_device(gpu, arena, bytes, plain));
		must(api->copy_to_host(arena + bytes, gpu + bytes, bytes, other));
		must(api->event_record(plain_event, plain));
		must(api->event_record(event, other));
		while (api->event_query(plain_event) == CUDA_ERROR_NOT_READY ||
		       api->event_query(event) == CUDA_ERROR_NOT_READY)
			;
		ns[i] = (double)(oki_now_ns() - start);
	}
	return median(ns, 9);
}

static double ours(struct oki_worker *ins, struct oki_worker *outs, const struct model *m,
		   CUevent *events)
{
	const uint32_t half = m->pages / 2;
	double ns[11];
	for (int i = 0; i < 11; i++) {
		struct job in, out;
		uint64_t start = oki_now_ns();
		job_start(&out, outs, m, OKI_TO_BLOCKS, half, half, NULL);
		job_start(&in, ins, m, OKI_TO_PAGES, 0, half, events);
		job_wait(&in, ins);
		job_wait(&out, outs);
		ns[i] = (double)(oki_now_ns() - start);
	}
	return median(ns, 11);
}

void both(void)
{
	static const uint32_t counts[] = {1, 28, 112};
	/* Of the restore, of the publish. */
	static const uint32_t pairs[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {4, 5},
					    {4, 6}, {5, 5}, {0, 4}, {0, 5}, {0, 6}, {4, 0}};
	CUevent events[36], event;
	CUstream other;
	must(api->stream_create(&other, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < 36; i++)
		must(api->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
	printf("\na restore and a publish at once, each of so many pages of 36 x (K, V) x 32 KiB; "
	       "sum of both, and the share of one contiguous copy each way at once\n");
	for (int n = 0; n < 3; n++)
		for (int shuffled = 0; shuffled < 2; shuffled++) {
			struct model m;
			model_init(&m, 36, 2, 32768, 2 * counts[n], shuffled);
			double bytes = (double)model_bytes(&m);
			double top = plain_both(model_bytes(&m) / 2, other, event);
			printf("%3u pages %-8s contiguous %.1f us %.2f GB/s:", counts[n],
			       shuffled ? "shuffled" : "tidy", top / 1000, bytes / top);
			for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
				const struct way *in = &ways[pairs[p][0]],
						 *out = &ways[pairs[p][1]];
				struct oki_worker *ins = worker_for(in, &m), *outs = ins;
				if (in != out)
					outs = worker_for(out, &m);
				verify(ins, &m, OKI_TO_PAGES);
				verify(outs, &m, OKI_TO_BLOCKS);
				double took = ours(ins, outs, &m, events);
				printf("\n    %-9s %-9s %8.1f us %6.2f GB/s (%.2f)", in->name,
				       out->name, took / 1000, bytes / took, top / took);
				if (in != out)
					worker_end(outs);
				worker_end(ins);
			}
			putchar('\n');
			fflush(stdout);
			model_fini(&m);
		}
	for (int i = 0; i < 36; i++)
		must(api->event_destroy(events[i]));
	must(api->event_destroy(event));
	must(api->stream_destroy(other));
}
