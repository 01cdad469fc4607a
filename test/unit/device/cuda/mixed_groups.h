/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of several groups, and copying them until all are taken. */
#ifndef TEST_UNIT_MIXED_GROUPS_H
#define TEST_UNIT_MIXED_GROUPS_H

#include "test/device/copy_case.h"
#include "test/unit/device/cuda/fake_stage.h"

#define ROW 4096u
#define LAYERS 24u

/* Groups in turn, layer by layer. A block of a group has a row of each of its layers. */
struct mixed {
	uint32_t groups;
	uint32_t rows[OKV_MAX_GROUPS];
	uint8_t *host[OKV_MAX_GROUPS];
	struct oki_run *runs[OKV_MAX_GROUPS];
	uint32_t run_count[OKV_MAX_GROUPS];
	uint8_t *tensor;
	uint8_t *pages[LAYERS]; /* in it, at one distance */
	struct oki_layer_map maps[LAYERS];
	struct oki_layer_copy layers[LAYERS];
};

/* tidy has a bit for each group whose rows are one run. */
static void mixed_init(struct mixed *m, uint32_t groups, const uint32_t *rows, uint32_t tidy)
{
	uint64_t seed = groups;
	*m = (struct mixed){.groups = groups};
	for (uint32_t g = 0; g < groups; g++) {
		const uint64_t block = (uint64_t)LAYERS * ROW;
		m->rows[g] = rows[g];
		m->host[g] = malloc(rows[g] * block);
		case_noise(&seed, m->host[g], rows[g] * block);
		m->runs[g] = scattered(m->host[g], block, rows[g]);
		m->run_count[g] = rows[g];
		if (!(tidy >> g & 1))
			continue;
		m->runs[g][0] = (struct oki_run){.host = m->host[g],
						 .host_pitch = block,
						 .blocks = rows[g],
						 .page_pitch = 1,
						 .inner = 1};
		m->run_count[g] = 1;
	}
	uint32_t most = 0;
	for (uint32_t g = 0; g < groups; g++)
		most = rows[g] > most ? rows[g] : most;
	m->tensor = calloc((size_t)LAYERS * most, ROW);
	for (uint32_t l = 0; l < LAYERS; l++) {
		uint32_t g = l % groups;
		m->pages[l] = m->tensor + (size_t)l * most * ROW;
		m->maps[l] = (struct oki_layer_map){.base = m->pages[l],
						    .page_stride = ROW,
						    .page_count = m->rows[g],
						    .segment_count = 1,
						    .segments = {{0, (uint64_t)l * ROW, ROW}}};
		m->layers[l] = (struct oki_layer_copy){.map = &m->maps[l],
						       .runs = m->runs[g],
						       .run_count = m->run_count[g],
						       .event = (CUevent)(uintptr_t)(l + 1)};
	}
}

static void mixed_fini(struct mixed *m)
{
	for (uint32_t g = 0; g < m->groups; g++) {
		free(m->host[g]);
		free(m->runs[g]);
	}
	free(m->tensor);
}

/* Layers on a device whose kernels count. */
static void mixed_open(struct mixed *m, struct stage *s, uint32_t path, uint32_t groups,
		       const uint32_t *rows, uint32_t tidy)
{
	stage_init(s, path, true);
	stage_counters(s);
	mixed_init(m, groups, rows, tidy);
}

static void mixed_close(struct mixed *m, struct stage *s)
{
	stage_fini(s);
	mixed_fini(m);
}

/* Nobody waits for a layer. */
static inline void mixed_without_events(struct mixed *m)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		m->layers[l].event = NULL;
}

static void check_bytes(const struct mixed *m)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t i = 0; i < m->layers[l].run_count; i++) {
			const struct oki_run *run = &m->layers[l].runs[i];
			for (uint32_t o = 0; o < run->blocks; o++)
				ck_assert(
					memcmp(m->pages[l] +
						       (run->page + o * run->page_pitch) * ROW,
					       run->host + o * run->host_pitch + (uint64_t)l * ROW,
					       ROW) == 0);
		}
}

/* Until every layer is taken. Returns the launches. */
static int copy_layers(struct stage *s, const struct oki_layer_copy *layers, uint32_t count)
{
	int launches = calls.launches;
	stage_copy_layers(s, OKI_TO_PAGES, layers, count);
	return calls.launches - launches;
}

static int copy_all(struct stage *s, const struct mixed *m)
{
	int launches = copy_layers(s, m->layers, LAYERS);
	check_bytes(m);
	return launches;
}

#endif
