/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA device and the executor reach, beside plain copies in the same run. No test: it
 * prints figures. Cases of whole models verify each byte once, over poisoned destinations, before
 * it is timed; figures are medians.
 *
 * measure_copy [ceilings] [fragments] [model] [overlap] [small] [fair] [both] [busy] [launches]
 * [kernel] [ways]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/bench/measure/measure_rig.h"

/* 72 2-D copies of 64 rows of 32 KiB, in one stream or in turns in two. */
static double two_d(uint32_t streams, CUstream other)
{
	uint64_t start = oki_now_ns();
	for (uint64_t i = 0; i < 72; i++) {
		CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
				      .srcHost = arena + i * 65536,
				      .srcPitch = 72 * 65536,
				      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
				      .dstDevice = gpu + i * (2 << 20),
				      .dstPitch = 32768,
				      .WidthInBytes = 32768,
				      .Height = 64};
		must(api->copy_2d(&copy, i % streams ? other : plain));
	}
	must(api->stream_synchronize(plain));
	must(api->stream_synchronize(other));
	return (double)(oki_now_ns() - start);
}

/* What the calls of a joined copy and its events cost the CPU, one by one. */
static void calls(CUstream other)
{
	enum { TIMES = 200 };
	CUevent event;
	uint64_t at[5];
	must(api->event_create(&event, CU_EVENT_DISABLE_TIMING));
	must(api->stream_synchronize(plain));
	at[0] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->event_record(event, plain));
	at[1] = oki_now_ns();
	must(api->stream_synchronize(plain));
	at[2] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->stream_wait_event(other, event, 0));
	at[3] = oki_now_ns();
	for (int i = 0; i < TIMES; i++)
		must(api->copy_to_device(gpu, arena, 64 << 10, plain));
	at[4] = oki_now_ns();
	must(api->stream_synchronize(plain));
	must(api->stream_synchronize(other));
	printf("CPU per call: event record %.2f us (%.2f with its end on the GPU), wait for event "
	       "%.2f us, 64 KiB copy %.2f us\n",
	       (double)(at[1] - at[0]) / TIMES / 1000, (double)(at[2] - at[0]) / TIMES / 1000,
	       (double)(at[3] - at[2]) / TIMES / 1000, (double)(at[4] - at[3]) / TIMES / 1000);
	must(api->event_destroy(event));
}

static void ceilings(void)
{
	CUstream other;
	must(api->stream_create(&other, CU_STREAM_NON_BLOCKING, 0));
	for (uint32_t streams = 1; streams <= 2; streams++) {
		double ns[15];
		for (int i = 0; i < 15; i++)
			ns[i] = two_d(streams, other);
		printf("72 2-D copies of 2 MiB in %u streams: %.2f GB/s\n", streams,
		       72. * (2 << 20) / median(ns, 15));
	}
	calls(other);
	must(api->stream_destroy(other));
	for (int d = 0; d < 2; d++)
		printf("contiguous %s: 256 MiB %.2f GB/s, 1 GiB %.2f GB/s; 4 KiB %.2f us\n",
		       names[d], (256 << 20) / plain_median((enum oki_direction)d, 256 << 20, 11),
		       (1 << 30) / plain_median((enum oki_direction)d, 1 << 30, 5),
		       plain_median((enum oki_direction)d, 4096, 301) / 1000);
	struct oki_device_config config = {0};
	struct oki_device *device;
	struct okv_error err;
	uint64_t start = oki_now_ns();
	okay(oki_device_cuda.open(&config, &device, &err), &err);
	printf("open and measure the link: %.1f ms\n", (double)(oki_now_ns() - start) / 1e6);
	for (int d = 0; d < 2; d++)
		printf("  %s: link %.1f GB/s\n", names[d], device->link[d]);
	oki_device_cuda.close(device);
}

static void fragments(void)
{
	static const uint64_t sizes[] = {512, 1024, 2048, 4096, 32768, 65536, 262144, 1048576};
	const uint64_t total = 256 << 20;
	printf("\n256 MiB in 4 layers or more of up to 8,192 rows, scattered, GB/s and share of "
	       "one contiguous copy\n");
	for (int d = 0; d < 2; d++)
		for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
			struct model m;
			uint64_t rows = total / sizes[k] / 4;
			rows = rows < 8192 ? rows : 8192;
			model_init(&m, (uint32_t)(total / sizes[k] / rows), 1, sizes[k],
				   (uint32_t)rows, true);
			double top = (double)total / plain_median((enum oki_direction)d, total, 7);
			printf("%s %7llu B (ceiling %.1f):", names[d], (unsigned long long)sizes[k],
			       top);
			for (int w = 0; w < WORKERS; w++) {
				double ns[5];
				struct oki_worker *worker = worker_for(&ways[w], &m);
				verify(worker, &m, (enum oki_direction)d);
				for (int i = 0; i < 5; i++) {
					struct job j;
					job_start(&j, worker, &m, (enum oki_direction)d, 0, m.pages,
						  NULL);
					ns[i] = job_wait(&j, worker);
				}
				double rate = (double)total / median(ns, 5);
				printf(" %s %.1f (%.2f)", ways[w].name, rate, rate / top);
				worker_end(worker);
			}
			putchar('\n');
			fflush(stdout);
			model_fini(&m);
		}
}

/* Until the first layer's bytes are there. */
static double first_layer(struct oki_worker *w, const struct model *m, enum oki_direction d,
			  struct CUevent_st **events)
{
	double ns[15];
	for (int i = 0; i < 15; i++) {
		struct job j;
		job_start(&j, w, m, d, 0, m->pages, events);
		while (!atomic_load(&j.first_enqueued))
			oki_relax();
		while (api->event_query(events[0]) == CUDA_ERROR_NOT_READY)
			;
		ns[i] = (double)(oki_now_ns() - j.started);
		job_wait(&j, w);
	}
	return median(ns, 15);
}

static void model(void)
{
	static const uint32_t counts[] = {1, 8, 64, 512};
	struct CUevent_st *events[64];
	for (int i = 0; i < 36; i++)
		must(api->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
	printf("\n36 layers x (K, V) x 32 KiB per page, an event per layer: us, GB/s, share of one "
	       "contiguous copy; us to submit; us until layer 0 is there\n");
	for (int d = 0; d < 2; d++)
		for (int n = 0; n < 4; n++)
			for (int shuffled = 0; shuffled < 2; shuffled++) {
				struct model m;
				if (counts[n] == 1 && shuffled)
					continue;
				model_init(&m, 36, 2, 32768, counts[n], shuffled);
				double bytes = (double)model_bytes(&m);
				double top =
					plain_median((enum oki_direction)d, model_bytes(&m), 9);
				printf("%s %3u pages %-8s contiguous %.1f us %.2f GB/s\n", names[d],
				       counts[n], shuffled ? "shuffled" : "tidy", top / 1000,
				       bytes / top);
				for (int w = 0; w < FEW; w++) {
					double ns[21], sub[21];
					struct oki_worker *worker = worker_for(&ways[w], &m);
					verify(worker, &m, (enum oki_direction)d);
					for (int i = 0; i < 21; i++) {
						struct job j;
						job_start(&j, worker, &m, (enum oki_direction)d, 0,
							  m.pages, events);
						ns[i] = job_wait(&j, worker);
						sub[i] = (double)j.enqueued;
					}
					double took = median(ns, 21);
					printf("    %-9s %9.1f us %6.2f GB/s (%.3f)  submit %8.1f  "
					       "layer 0 %8.1f\n",
					       ways[w].name, took / 1000, bytes / took, top / took,
					       median(sub, 21) / 1000,
					       first_layer(worker, &m, (enum oki_direction)d,
							   events) /
						       1000);
					fflush(stdout);
					worker_end(worker);
				}
				model_fini(&m);
			}
}

/* The worst case alone: layers of 4 MiB in pieces, one kernel after the other. */
static void overlap(void)
{
	struct CUevent_st *events[36];
	struct model m;
	for (int i = 0; i < 36; i++)
		must(api->event_create(&events[i], CU_EVENT_DISABLE_TIMING));
	model_init(&m, 36, 2, 32768, 64, true);
	for (int n = 0; n < 4; n++) {
		double ns[31];
		int d = n / 2;
		const struct way *way = &ways[4 + n % 2];
		struct oki_worker *worker = worker_for(way, &m);
		verify(worker, &m, (enum oki_direction)d);
		for (int i = 0; i < 31; i++) {
			struct job j;
			job_start(&j, worker, &m, (enum oki_direction)d, 0, m.pages, events);
			ns[i] = job_wait(&j, worker);
		}
		double took = median(ns, 31);
		printf("%s 64 pages shuffled, %s: %.1f us, %.2f GB/s, layer 0 after "
		       "%.1f us\n",
		       names[d], way->name, took / 1000, (double)model_bytes(&m) / took,
		       first_layer(worker, &m, (enum oki_direction)d, events) / 1000);
		worker_end(worker);
	}
	model_fini(&m);
}

static void small(void)
{
	printf("\nsmall operations, submit to ended, us (a bare copy, record and poll beside "
	       "it)\n");
	static const uint64_t sizes[] = {4096, 65536, 1 << 20};
	for (int d = 0; d < 2; d++)
		for (int k = 0; k < 3; k++) {
			struct model m;
			model_init(&m, 1, 1, sizes[k], 16, false);
			printf("%s %7llu B: bare %.2f", names[d], (unsigned long long)sizes[k],
			       plain_median((enum oki_direction)d, sizes[k], 301) / 1000);
			for (int w = 0; w < FEW; w += 2) {
				double ns[301];
				struct oki_worker *worker = worker_for(&ways[w], &m);
				for (int i = 0; i < 301; i++) {
					struct job j;
					job_start(&j, worker, &m, (enum oki_direction)d, 0, 1,
						  NULL);
					ns[i] = job_wait(&j, worker);
				}
				printf("  %s %.2f", ways[w].name, median(ns, 301) / 1000);
				worker_end(worker);
			}
			putchar('\n');
			model_fini(&m);
		}
}

/* One page behind many, and a bare copy behind one queued long copy after another. */
static void fair(void)
{
	printf("\na small restore behind a 4 GiB one\n");
	for (int tidy = 0; tidy < 2; tidy++) {
		struct model m;
		model_init(&m, 32, 2, 32768, 2048, !tidy);
		for (int w = 0; w < FEW; w += 2) {
			double ns[5], alone[5], whole[5];
			struct oki_worker *worker = worker_for(&ways[w], &m);
			for (int i = 0; i < 5; i++) {
				struct job big, one;
				job_start(&one, worker, &m, OKI_TO_PAGES, 0, 1, NULL);
				alone[i] = job_wait(&one, worker);
				job_start(&big, worker, &m, OKI_TO_PAGES, 0, m.pages, NULL);
				while (!atomic_load(&big.first_enqueued))
					oki_relax();
				job_start(&one, worker, &m, OKI_TO_PAGES, 0, 1, NULL);
				ns[i] = job_wait(&one, worker);
				whole[i] = job_wait(&big, worker);
			}
			printf("%s %s: one page alone %.0f us, behind %.0f us; the large one %.1f "
			       "ms\n",
			       tidy ? "tidy" : "shuffled", ways[w].name, median(alone, 5) / 1000,
			       median(ns, 5) / 1000, median(whole, 5) / 1e6);
			worker_end(worker);
		}
		model_fini(&m);
	}
	CUstream other;
	must(api->stream_create(&other, CU_STREAM_NON_BLOCKING, 0));
	for (uint64_t piece = 4 << 20; piece <= 64 << 20; piece *= 4)
		for (uint64_t bytes = 4096; bytes <= 1 << 20; bytes *= 256) {
			double ns[5];
			for (int i = 0; i < 5; i++) {
				for (uint64_t at = 0; at < 1 << 30; at += piece)
					must(api->copy_to_device(gpu + (1ull << 30) + at,
								 arena + at, piece, other));
				ns[i] = plain_copy(OKI_TO_PAGES, bytes);
				must(api->stream_synchronize(other));
			}
			printf("bare copy of %4llu KiB behind 1 GiB queued in copies of %llu MiB: "
			       "%.0f us\n",
			       (unsigned long long)(bytes >> 10), (unsigned long long)(piece >> 20),
			       median(ns, 5) / 1000);
		}
	must(api->stream_destroy(other));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {{"ceilings", ceilings},   {"fragments", fragments}, {"model", model},
		     {"overlap", overlap},     {"small", small},	 {"fair", fair},
		     {"both", both},	       {"busy", busy},		 {"launches", launches},
		     {"kernel", kernel_alone}, {"ways", ways_compared}};
	struct oki_device_config config = {.copy_path = OKV_COPY_DMA};
	struct oki_device *device;
	struct okv_error err;
	okay(oki_device_cuda.open(&config, &device, &err), &err);
	api = device->api;
	struct oki_cuda_scope scope;
	must(oki_cuda_enter(api, device->context, &scope));
	arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	shadow = mmap(NULL, SHADOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena == MAP_FAILED || shadow == MAP_FAILED)
		die("no memory");
	madvise(arena, ARENA, MADV_HUGEPAGE);
	madvise(shadow, SHADOW, MADV_HUGEPAGE);
	okay(oki_device_cuda.pin(device, arena, ARENA, false, &err), &err);
	must(api->memory_alloc(&gpu, GPU_BYTES));
	must(api->stream_create(&plain, CU_STREAM_NON_BLOCKING, 0));
	must(api->event_create(&plain_event, CU_EVENT_DISABLE_TIMING));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int k = 1; k < argc || argc == 1; k++) {
			if (argc == 1 || strcmp(argv[k], cases[i].name) == 0)
				cases[i].run();
			if (argc == 1)
				break;
		}
	api->event_destroy(plain_event);
	api->stream_destroy(plain);
	api->memory_free(gpu);
	oki_device_cuda.unpin(device, arena);
	oki_cuda_leave(&scope);
	oki_device_cuda.close(device);
	return 0;
}
