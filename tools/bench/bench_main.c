/* SPDX-License-Identifier: Apache-2.0 */
/* [E] orbitkv-bench: options, cases, reports. */
#include "bench.h"
#include "bench_beside.h"
#include "bench_cuda.h"
#include "tool_option.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: orbitkv-bench [options]\n"
	"\n"
	"Restores, publishes and lookups, each beside the plainest alternatives in the same run.\n"
	"Destinations are poisoned before each timed set, and every byte is checked after it.\n"
	"Shuffled: blocks in random order, and on a GPU pages drawn from up to 64 GiB of its "
	"memory\n"
	"(16 with --quick), half of what is free at most.\n"
	"\n"
	"  --quick            everything small, under a minute in total; around three with --busy\n"
	"  --device KIND      where the pages are: host (default) or cuda\n"
	"  --busy             each figure also beside work on the GPU, one kind after the other\n"
	"  --case NAME        only this case, or this part of it as geometry/tiny; may be "
	"repeated\n"
	"  --list             the cases and their parts\n"
	"  --models FILE      JSON file of KV geometries instead of the built-in ones\n"
	"  --max-bytes SIZE   of one operation, as 64M or 1.5G (default 4G)\n"
	"  --max-memory SIZE  host memory that one case may take (default 70 % of what is free)\n"
	"  --runs N           most runs of one timed set\n"
	"  --json             JSON on the output; the table goes to the error output. From it,\n"
	"                     tools/bench/bench_plot.py draws rate against fragment size\n"
	"  -h, --help, --version\n"
	"\n"
	"Beside, in rows: nothing; 8192 or 4096, bf16 matrix products of that side by cuBLAS;\n"
	"chain, 200 kernels that do nothing, launched one after the other in one stream. What\n"
	"the model keeps of its speed is the time of one product, or of one chain from its first\n"
	"launch until its end is seen (median), alone / beside. With --quick the geometry\n"
	"qwen3-8b (without it the first one) is measured beside all three, others beside the\n"
	"first one that is there. The case model is measured beside them without --busy, too.\n"
	"\n"
	"Exit status: 0 good, 1 an operation failed or a byte is wrong, 2 usage, 77 no GPU.\n";

static const struct bench_case {
	const char *name;
	const char *about;
	int (*run)(const struct bench_config *config, char *text);
	bench_part_name_fn *part; /* NULL: it has none */
} cases[] = {
	{"geometry", "each model x tidy, shuffled x restore, publish, both x sizes",
	 bench_case_geometry, bench_part_geometry},
	{"fragments", "shuffled fragments of 512 B to 1 MiB", bench_case_fragments,
	 bench_part_fragments},
	{"latency", "one small operation, start to drained", bench_case_latency, NULL},
	{"first-layer", "when the first of many layers may be used", bench_case_first_layer,
	 bench_part_first_layer},
	{"lookups", "1, 32, 1,024 keys; 1, 4, 16 client processes", bench_case_lookups, NULL},
	{"model", "what products and small kernels keep of their speed beside copies",
	 bench_case_model, NULL},
	{"cpu", "processor time of engine and Manager for a restore", bench_case_cpu, NULL},
	{"arena", "first touch and pinning of host memory", bench_case_arena, NULL},
	{"neighbours", "one page beside sessions that ask much or die; clients that pin",
	 bench_case_neighbours, NULL},
	{"index", "millions of blocks: publish rate, lookup, memory", bench_case_index, NULL},
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

enum option_id {
	OPT_QUICK = 256,
	OPT_DEVICE,
	OPT_BUSY,
	OPT_CASE,
	OPT_LIST,
	OPT_MODELS,
	OPT_MAX_BYTES,
	OPT_MAX_MEMORY,
	OPT_RUNS,
	OPT_JSON,
	OPT_HELP,
	OPT_VERSION,
};

static const struct option options[] = {
	{"quick", no_argument, NULL, OPT_QUICK},
	{"device", required_argument, NULL, OPT_DEVICE},
	{"busy", no_argument, NULL, OPT_BUSY},
	{"case", required_argument, NULL, OPT_CASE},
	{"list", no_argument, NULL, OPT_LIST},
	{"models", required_argument, NULL, OPT_MODELS},
	{"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
	{"max-memory", required_argument, NULL, OPT_MAX_MEMORY},
	{"runs", required_argument, NULL, OPT_RUNS},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static int complain(const char *what, const char *value)
{
	fprintf(stderr, "orbitkv-bench: %s%s%s\n", what, value != NULL ? ": " : "",
		value != NULL ? value : "");
	return TOOL_USAGE;
}

static int add_case(struct bench_config *config, const struct tool_option *given)
{
	if (config->case_count == BENCH_MAX_CASES)
		return tool_expected(given, "at most 16 cases");
	config->cases[config->case_count++] = given->text;
	return 0;
}

static int take_option(struct bench_config *config, int id, const char *name)
{
	const struct tool_option given = {"orbitkv-bench", name, optarg};

	switch (id) {
	case OPT_QUICK: config->quick = true; return 0;
	case OPT_DEVICE: return tool_take_device(&given, &config->device);
	case OPT_BUSY: config->busy = true; return 0;
	case OPT_CASE: return add_case(config, &given);
	case OPT_MODELS: config->models_file = optarg; return 0;
	case OPT_MAX_BYTES: return tool_take_size(&given, 1ull << 40, &config->max_bytes);
	case OPT_MAX_MEMORY: return tool_take_size(&given, 1ull << 46, &config->max_memory);
	case OPT_RUNS: return tool_take_count(&given, 1u << 20, &config->max_runs);
	case OPT_JSON: config->json = true; return 0;
	default: return TOOL_USAGE;
	}
}

bool bench_selected(const struct bench_config *config, const char *suite, const char *part)
{
	size_t length = strlen(suite);

	for (uint32_t i = 0; i < config->case_count; i++) {
		const char *name = config->cases[i];

		if (strncmp(name, suite, length) != 0)
			continue;
		if (name[length] == '\0')
			return true;
		if (name[length] == '/' && (part == NULL || strcmp(name + length + 1, part) == 0))
			return true;
	}
	return config->case_count == 0;
}

static bool has_part(const struct bench_config *config, const struct bench_case *c,
		     const char *part)
{
	char buffer[24];

	for (uint32_t i = 0; c->part != NULL; i++) {
		const char *name = c->part(config, i, buffer);

		if (name == NULL)
			break;
		if (strcmp(name, part) == 0)
			return true;
	}
	return false;
}

static bool is_case(const struct bench_config *config, const char *name)
{
	size_t length = strcspn(name, "/");

	for (size_t i = 0; i < CASES; i++) {
		if (strlen(cases[i].name) == length && strncmp(cases[i].name, name, length) == 0)
			return name[length] == '\0' ||
			       has_part(config, &cases[i], name + length + 1);
	}
	return false;
}

/* A name that selects nothing would end well, with nothing measured. */
static int check_cases(const struct bench_config *config, char *text)
{
	for (uint32_t i = 0; i < config->case_count; i++) {
		if (is_case(config, config->cases[i]))
			continue;
		snprintf(text, TOOL_TEXT, "--case %.120s: there is no such case; see --list",
			 config->cases[i]);
		return TOOL_USAGE;
	}
	return TOOL_OK;
}

static void list(const struct bench_config *config)
{
	char buffer[24];

	for (size_t i = 0; i < CASES; i++)
		printf("%-12s %s\n", cases[i].name, cases[i].about);
	for (size_t i = 0; i < CASES; i++) {
		if (cases[i].part == NULL || cases[i].part(config, 0, buffer) == NULL)
			continue;
		printf("\nparts of %s:", cases[i].name);
		for (uint32_t part = 0; cases[i].part(config, part, buffer) != NULL; part++)
			printf(" %s", cases[i].part(config, part, buffer));
	}
	putchar('\n');
}

static uint64_t available_bytes(void)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			break;
	}
	if (f != NULL)
		fclose(f);
	return kib << 10;
}

static void settle(struct bench_config *config)
{
	if (config->max_bytes == 0)
		config->max_bytes = 4ull << 30;
	if (config->max_memory == 0)
		config->max_memory = available_bytes() / 10 * 7;
	if (config->max_runs == 0)
		config->max_runs = config->quick ? 15 : 31;
	config->set_ns = config->quick ? 20000000u : 150000000u;
}

static int open_gpu(struct bench_config *config, char *text)
{
	int rc = TOOL_OK;

	if (config->device == OKV_DEVICE_CUDA)
		rc = bench_cuda_open(&config->cuda, text);
	if (rc != TOOL_OK)
		return rc;
	if (config->cuda != NULL && bench_cuda_events(config->cuda, BENCH_EVENTS) != 0) {
		snprintf(text, TOOL_TEXT, "the GPU gives no events");
		return TOOL_FAILED;
	}
	if (!config->busy && !bench_selected(config, "model", NULL))
		return TOOL_OK;
	return bench_beside_open(config, text);
}

static void print_machine(const struct bench_config *config)
{
	FILE *out = config->json ? stderr : stdout;

	if (config->cuda != NULL)
		fprintf(out, "%s, CUDA driver %d.%d, batched copies: %s\n", config->cuda->gpu.name,
			config->cuda->gpu.driver / 1000, config->cuda->gpu.driver % 1000 / 10,
			config->cuda->batch != NULL ? "yes" : "no");
	else
		fprintf(out, "host device, %u copy threads\n", tool_pool_threads());
	fprintf(out,
		"GB/s of 10^9 bytes, start to drained; medians. ratio: to one contiguous copy; "
		"x_NAME: times as fast.\n");
}

static int run_cases(struct bench_config *config, char *text)
{
	int rc = open_gpu(config, text);

	if (rc != TOOL_OK)
		return rc;
	print_machine(config);
	if (config->busy)
		bench_beside_report_missing(config, "busy");
	for (size_t i = 0; i < CASES && rc == TOOL_OK; i++) {
		if (bench_selected(config, cases[i].name, NULL))
			rc = cases[i].run(config, text);
	}
	/* What was measured before a failure is still worth something. */
	if (config->json)
		bench_report_print_json(config);
	return rc;
}

int main(int argc, char **argv)
{
	struct bench_report report = {.json = false};
	struct bench_config config = {.device = OKV_DEVICE_HOST, .report = &report};
	char text[TOOL_TEXT] = "";
	bool listing = false;
	int which = 0;
	int rc;
	int id;

	if (argc > 1 && argv[1][0] == TOOL_CHILD)
		return bench_child_main(argc, argv);
	opterr = 0;
	while ((id = getopt_long(argc, argv, ":h", options, &which)) != -1) {
		if (id == OPT_HELP || id == 'h') {
			fputs(usage, stdout);
			return TOOL_OK;
		}
		if (id == OPT_VERSION) {
			tool_print_version("orbitkv-bench");
			return TOOL_OK;
		}
		if (tool_bad_option("orbitkv-bench", id, argv))
			return TOOL_USAGE;
		if (id == OPT_LIST)
			listing = true;
		else if (take_option(&config, id, options[which].name) != 0)
			return TOOL_USAGE;
	}
	if (optind < argc)
		return complain("unexpected argument; see --help", argv[optind]);
	signal(SIGPIPE, SIG_IGN);
	settle(&config);
	report.json = config.json;
	rc = tool_models_load(config.models_file, &config.specs, &config.spec_count, text);
	if (rc == TOOL_OK && !listing)
		rc = check_cases(&config, text);
	if (rc == TOOL_OK && listing)
		list(&config);
	else if (rc == TOOL_OK)
		rc = run_cases(&config, text);
	if (rc != TOOL_OK)
		complain(text, NULL);
	bench_beside_close(&config);
	bench_cuda_close(config.cuda);
	tool_pool_stop();
	bench_report_fini(&report);
	free(config.specs);
	return rc;
}
