/* SPDX-License-Identifier: Apache-2.0 */
/* [E] orbitkv-bench: the cache beside the plainest ways to move the same bytes, in one run. */
#ifndef ORBITKV_TOOLS_BENCH_H
#define ORBITKV_TOOLS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <orbitkv/orbitkv.h>
#include "tool_child.h"
#include "tool_pattern.h"
#include "tool_pool.h"
#include "tool_shape.h"

#define BENCH_WAIT_MS 60000 /* longest any single operation may take */
#define BENCH_MAX_CASES 16

/* ---- bench_main.c ---- */

struct bench_beside;
struct bench_busy;
struct bench_cuda;
struct bench_report;

/* Kinds of work that may run beside a measurement. */
enum bench_kind { BENCH_SIDE_8192, BENCH_SIDE_4096, BENCH_CHAIN, BENCH_KINDS };

struct bench_config {
	bool quick;
	bool busy;
	bool json;
	bool spread;		/* this case draws pages from a GPU's large pool */
	uint32_t device;	/* enum okv_device_kind */
	uint32_t copy_threads;	/* of the host device in this case; 0: the library's default */
	uint64_t max_bytes;	/* of one operation */
	uint64_t max_memory;	/* of host memory that a case may take */
	uint32_t manager_flags; /* OKV_MANAGER_* */
	uint32_t max_runs;	/* of one timed set */
	uint64_t set_ns;	/* a set ends after this long, once it has MIN_RUNS */
	const char *models_file;
	const char *cases[BENCH_MAX_CASES];
	uint32_t case_count; /* 0: all */
	struct tool_model *specs;
	uint32_t spec_count;
	struct bench_cuda *cuda; /* NULL on the host device */
	/* Work that runs beside; NULL: there is none of this kind, and why. */
	struct bench_beside *beside[BENCH_KINDS];
	char beside_reason[BENCH_KINDS][TOOL_TEXT];
	struct bench_report *report;
};

/* Is this part of a case asked for? "geometry" selects all of "geometry/NAME" and vice versa. */
bool bench_selected(const struct bench_config *config, const char *suite, const char *part);

/* ---- bench_set.c: clocks, samples, medians ---- */

/* Consecutive stretches of one operation, nanoseconds. */
enum bench_stage {
	BENCH_TOTAL,   /* start call to the wait's return */
	BENCH_PREPARE, /* arguments checked, fences placed, request visible to the Manager */
	BENCH_QUEUE,   /* to the grant's arrival: the Manager's queue, plan and our wake-up */
	BENCH_CLAIM,
	BENCH_SUBMIT, /* last copy submitted */
	BENCH_COPY,   /* the rest of the copy, and the drain */
	BENCH_RETIRE, /* to the wait's return: wake-up, for a publish also until it is visible */
	BENCH_STAGES
};

struct bench_sample {
	uint64_t ns[BENCH_STAGES];
};

struct bench_set {
	struct bench_sample *samples; /* owned */
	uint32_t count;
	uint32_t capacity;
	uint64_t bytes;		/* of one run */
	uint64_t engine_cpu_ns; /* of all runs; this process */
	uint64_t manager_cpu_ns;
};

typedef int bench_run_fn(void *arg, struct bench_sample *ret_sample, char *text);

struct bench_plan {
	bench_run_fn *run;
	void *arg;
	uint32_t warm_up;
	uint32_t max_runs;
	uint64_t max_ns;
	pid_t manager;		 /* 0: none whose CPU time counts */
	struct bench_busy *busy; /* NULL, or the work to mark around the timed runs */
};

uint64_t bench_cpu_ns(pid_t pid); /* 0: this process */
/* Warm up, then run. The result is the caller's to bench_set_fini(), also on failure. */
int bench_set_run(const struct bench_plan *plan, struct bench_set *ret_set, char *text);
void bench_set_fini(struct bench_set *set);
double bench_set_us(const struct bench_set *set, enum bench_stage stage, unsigned permille);
double bench_set_gbps(const struct bench_set *set);
void bench_set_stages(const struct okv_stage_times *times, struct bench_sample *sample);

/* ---- bench_child.c: this program again, as a Manager or as a client ---- */

/* memory_bytes in one shard each of up to 16 GiB. flags are OKV_MANAGER_*. */
int bench_manager_start(uint64_t memory_bytes, uint32_t flags, struct tool_manager *ret_manager,
			char *text);
uint64_t bench_anonymous_bytes(pid_t pid); /* resident, not shared */
/* main() of a child, for argv[1] that starts with TOOL_CHILD. */
#define BENCH_CHILD_CLIENT "@client"
#define BENCH_CHILD_NEIGHBOUR "@neighbour"
int bench_child_main(int argc, char **argv);

/* ---- bench_report.c: what was measured ---- */

#define BENCH_MAX_LABELS 8
#define BENCH_MAX_FIGURES 48

/* Where a figure is shown: in the table, in a line below it, in JSON alone. */
enum bench_weight { BENCH_COLUMN, BENCH_DETAIL, BENCH_HIDDEN };

struct bench_figure {
	char key[32];
	double value;
	enum bench_weight weight;
};

struct bench_label {
	const char *key; /* a literal */
	char value[48];
};

struct bench_result {
	const char *suite; /* a literal */
	struct bench_label labels[BENCH_MAX_LABELS];
	struct bench_figure figures[BENCH_MAX_FIGURES];
	uint32_t label_count;
	uint32_t figure_count;
	char note[TOOL_TEXT];
};

void bench_label(struct bench_result *result, const char *key, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void bench_figure(struct bench_result *result, enum bench_weight weight, const char *key,
		  double value);

struct bench_report {
	bool json;
	struct bench_result *results; /* owned */
	uint32_t count;
	uint32_t capacity;
	uint32_t header; /* index of the result whose columns were printed last */
};

/* Prints the row at once (to stderr with json) and keeps it. */
void bench_report_add(struct bench_report *report, const struct bench_result *result);
/* A row that only says why nothing was measured. */
void bench_report_skip(struct bench_report *report, const char *suite, const char *why);
void bench_report_print_json(const struct bench_config *config);
void bench_report_fini(struct bench_report *report);
/* "32 KiB" */
const char *bench_size_text(uint64_t bytes, char buffer[24]);

/* ---- the cases; each reports its rows ---- */

int bench_case_geometry(const struct bench_config *config, char *text);
int bench_case_fragments(const struct bench_config *config, char *text);
int bench_case_cpu(const struct bench_config *config, char *text);
int bench_case_latency(const struct bench_config *config, char *text);
int bench_case_first_layer(const struct bench_config *config, char *text);
int bench_case_lookups(const struct bench_config *config, char *text);
int bench_case_index(const struct bench_config *config, char *text);
int bench_case_neighbours(const struct bench_config *config, char *text);
int bench_case_model(const struct bench_config *config, char *text);
int bench_case_arena(const struct bench_config *config, char *text);

/* The parts of a case that can be asked for: number i, perhaps in the buffer; NULL: no more. */
typedef const char *bench_part_name_fn(const struct bench_config *config, uint32_t i,
				       char buffer[24]);
bench_part_name_fn bench_part_geometry;
bench_part_name_fn bench_part_fragments;
bench_part_name_fn bench_part_first_layer;

#endif
