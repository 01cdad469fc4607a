/* SPDX-License-Identifier: Apache-2.0 */
/* [E] How fast a Manager's memory becomes usable: first touch, import, pin. */
#include "bench_rig.h"

#include <stdio.h>

#define QUICK_BYTES (512ull << 20)
#define FULL_BYTES (16ull << 30)

static const struct tool_model spec = {"one 4 KiB page", 1, 256, 16, 1, {{OKV_GROUP_FULL, 1, 0}}};

/* Bytes of reserved huge pages that nobody uses. */
static uint64_t free_huge_bytes(void)
{
	unsigned long long pages = 0;
	unsigned long long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "HugePages_Free: %llu", &pages) == 1)
			continue;
		if (sscanf(line, "Hugepagesize: %llu", &kib) == 1)
			break;
	}
	fclose(f);
	return pages * kib << 10;
}

static int measure(const struct bench_config *config, uint64_t bytes, bool huge, char *text)
{
	struct bench_config local = *config;
	struct bench_result result = {.suite = "arena"};
	struct tool_shape shape;
	struct bench_rig *rig;
	double gib = (double)bytes / (1ull << 30);
	char size[24];
	int rc = tool_shape_create(&spec, &shape, text);

	if (rc != TOOL_OK)
		return rc;
	local.manager_flags = huge ? OKV_MANAGER_HUGE_PAGES : 0;
	rc = bench_rig_open(&local, &shape, 1, bytes, &rig, text);
	if (rc == TOOL_OK) {
		double touch = (double)rig->manager.create_ns / 1e9;
		double pin = (double)rig->register_ns / 1e9;

		bench_label(&result, "memory", "%s", bench_size_text(bytes, size));
		bench_label(&result, "pages", "%s", huge ? "2 MiB" : "4 KiB");
		bench_figure(&result, BENCH_COLUMN, "touch_s", touch);
		bench_figure(&result, BENCH_COLUMN, "touch GiB/s", gib / touch);
		bench_figure(&result, BENCH_COLUMN, "pin_s", pin);
		bench_figure(&result, BENCH_COLUMN, "pin GiB/s", gib / pin);
		bench_figure(&result, BENCH_COLUMN, "both GiB/s", gib / (touch + pin));
		rc = bench_rig_close(rig, text);
		if (config->cuda == NULL)
			snprintf(result.note, sizeof(result.note),
				 "the host device maps arenas and pins nothing");
		bench_report_add(config->report, &result);
	}
	tool_shape_fini(&shape);
	return rc;
}

int bench_case_arena(const struct bench_config *config, char *text)
{
	uint64_t bytes = config->quick ? QUICK_BYTES : FULL_BYTES;
	uint64_t huge = free_huge_bytes();
	int rc;

	if (bytes > config->max_memory)
		bytes = config->max_memory;
	rc = measure(config, bytes, false, text);
	if (rc != TOOL_OK)
		return rc;
	if (huge >= bytes)
		return measure(config, bytes, true, text);
	bench_report_skip(config->report, "arena, huge pages",
			  huge == 0 ? "this machine has reserved none"
				    : "this machine has reserved too few");
	return TOOL_OK;
}
