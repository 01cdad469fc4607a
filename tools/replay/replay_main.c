/* SPDX-License-Identifier: Apache-2.0 */
/* [E] orbitkv-replay: what the cache makes of a trace of real requests. */
#include "replay.h"
#include "tool_option.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEMORY (1ull << 30)
#define STATUS_MS 5000

static const char usage[] =
	"usage: orbitkv-replay --trace FILE [options]\n"
	"       orbitkv-replay --speed [--tidy] [--json]\n"
	"\n"
	"Replays a trace through the cache: restores what each request finds, checks every byte,\n"
	"publishes the rest. Starts a Manager of its own. A request is a line of JSON with\n"
	"\"hash_ids\", a list that has a number of up to 64 bits for each block, once.\n"
	"\n"
	"  --requests N     only the first N requests\n"
	"  --models FILE    JSON file of KV geometries\n"
	"  --model NAME     one of them, or of those built in (default tiny)\n"
	"  --memory SIZE    memory of the Manager, as 512M or 1.5G (default 1G)\n"
	"  --blocks N       memory for N blocks, in whole pages, instead\n"
	"  --device KIND    where the pages are: host (default) or cuda\n"
	"  --socket PATH    use the Manager that listens there\n"
	"  --embedded       run the Manager inside the engine\n"
	"  --engines N      engine processes that take turns (default 1)\n"
	"  --tidy           consecutive pages instead of shuffled ones\n"
	"  --json           print one JSON object\n"
	"  --speed          no trace: restores against plain memcpy, and lookup latency\n"
	"  -h, --help, --version\n"
	"\n"
	"Exit status: 0 good, 1 an operation failed or a byte is wrong, 2 usage, 77 no GPU,\n"
	"128 + its number after SIGINT or SIGTERM; a second one ends at once.\n";

enum option_id {
	OPT_TRACE = 256,
	OPT_REQUESTS,
	OPT_MODELS,
	OPT_MODEL,
	OPT_MEMORY,
	OPT_BLOCKS,
	OPT_DEVICE,
	OPT_SOCKET,
	OPT_EMBEDDED,
	OPT_ENGINES,
	OPT_TIDY,
	OPT_JSON,
	OPT_SPEED,
	OPT_HELP,
	OPT_VERSION,
};

static const struct option options[] = {
	{"trace", required_argument, NULL, OPT_TRACE},
	{"requests", required_argument, NULL, OPT_REQUESTS},
	{"models", required_argument, NULL, OPT_MODELS},
	{"model", required_argument, NULL, OPT_MODEL},
	{"memory", required_argument, NULL, OPT_MEMORY},
	{"blocks", required_argument, NULL, OPT_BLOCKS},
	{"device", required_argument, NULL, OPT_DEVICE},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"embedded", no_argument, NULL, OPT_EMBEDDED},
	{"engines", required_argument, NULL, OPT_ENGINES},
	{"tidy", no_argument, NULL, OPT_TIDY},
	{"json", no_argument, NULL, OPT_JSON},
	{"speed", no_argument, NULL, OPT_SPEED},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static int complain(const char *what, const char *value)
{
	fprintf(stderr, "orbitkv-replay: %s%s%s\n", what, value != NULL ? ": " : "",
		value != NULL ? value : "");
	return -1;
}

static int take_option(struct replay_config *config, int id, const char *name)
{
	const struct tool_option given = {"orbitkv-replay", name, optarg};

	switch (id) {
	case OPT_TRACE: config->trace_file = optarg; return 0;
	case OPT_REQUESTS: return tool_take_count(&given, UINT32_MAX, &config->requests);
	case OPT_MODELS: config->models_file = optarg; return 0;
	case OPT_MODEL: config->model_name = optarg; return 0;
	case OPT_MEMORY: return tool_take_size(&given, 1ull << 46, &config->memory_bytes);
	case OPT_BLOCKS: return tool_take_count(&given, 1u << 30, &config->blocks);
	case OPT_DEVICE: return tool_take_device(&given, &config->device);
	case OPT_SOCKET: config->socket = optarg; return 0;
	case OPT_EMBEDDED: config->embedded = true; return 0;
	case OPT_ENGINES: return tool_take_count(&given, 64, &config->engines);
	case OPT_TIDY: config->tidy = true; return 0;
	case OPT_JSON: config->json = true; return 0;
	case OPT_SPEED: config->speed = true; return 0;
	default: return -1;
	}
}

/* What a stop signal broke off is no failure of its own. */
static int fail(const char *text)
{
	if (!tool_stopped())
		complain(text, NULL);
	return TOOL_FAILED;
}

static int check_options(const struct replay_config *config)
{
	bool sized = config->memory_bytes != 0 || config->blocks != 0;

	if (config->speed) {
		if (config->trace_file != NULL || config->model_name != NULL || sized ||
		    config->socket != NULL || config->embedded || config->engines > 1 ||
		    config->device != OKV_DEVICE_HOST)
			return complain("--speed goes with --tidy and --json only", NULL);
		return 0;
	}
	if (config->trace_file == NULL)
		return complain("--trace FILE is missing", NULL);
	if (config->memory_bytes != 0 && config->blocks != 0)
		return complain("--memory and --blocks exclude each other", NULL);
	if (config->socket != NULL && (sized || config->embedded))
		return complain("--socket excludes --memory, --blocks and --embedded", NULL);
	if (config->embedded && config->engines > 1)
		return complain("--embedded has one engine", NULL);
	if (config->models_file != NULL && config->model_name == NULL)
		return complain("--models needs --model NAME", NULL);
	return 0;
}

static int ask_manager(const char *socket, struct okv_manager_status *ret_status)
{
	char text[TOOL_TEXT];
	struct okv_error err = {.text = ""};
	int rc = okv_manager_status_query(socket, STATUS_MS, ret_status, &err);

	if (rc == 0)
		return 0;
	tool_explain(text, "okv_manager_status_query", rc, &err);
	return complain(text, NULL);
}

/* The Manager's counters before and after, unless it is inside the engine. */
static int measure(struct replay_fleet *fleet, const char *socket, struct replay_report *report)
{
	const struct replay_config *config = report->config;
	struct okv_manager_status before;
	struct okv_manager_status after;
	char text[TOOL_TEXT] = "";

	report->capacity_blocks = config->blocks;
	if (config->embedded && config->blocks == 0)
		report->capacity_blocks = config->memory_bytes / config->model.block_bytes;
	if (!config->embedded) {
		if (ask_manager(socket, &before) != 0)
			return TOOL_FAILED;
		report->capacity_blocks = before.bytes_total / config->model.block_bytes;
	}
	if (replay_fleet_run(fleet, replay_report_add, report, text) != TOOL_OK)
		return fail(text);
	if (!config->embedded) {
		if (ask_manager(socket, &after) != 0)
			return TOOL_FAILED;
		report->evictions = after.evictions - before.evictions;
		report->evictions_known = true;
	}
	return TOOL_OK;
}

static int replay_on(const struct replay_config *config, const char *socket)
{
	char text[TOOL_TEXT] = "";
	struct replay_report report;
	struct replay_fleet *fleet;
	int rc;

	if (replay_report_init(config, &report) != 0)
		return fail("out of memory");
	rc = replay_fleet_start(config, socket, &fleet, text);
	if (rc != TOOL_OK) {
		fail(text);
		goto out;
	}
	rc = measure(fleet, socket, &report);
	if (replay_fleet_stop(fleet) != 0) {
		complain("an engine process did not end cleanly", NULL);
		rc = TOOL_FAILED;
	}
	if (tool_stopped()) {
		replay_report_stop(&report);
	} else {
		int verdict = replay_report_print(&report);

		rc = rc == TOOL_OK ? verdict : rc;
	}
out:
	replay_report_fini(&report);
	return rc;
}

static int replay(struct replay_config *config)
{
	struct tool_manager manager;
	char text[TOOL_TEXT] = "";
	int rc;

	if (config->memory_bytes == 0)
		config->memory_bytes = DEFAULT_MEMORY;
	if (config->embedded || config->socket != NULL)
		return replay_on(config, config->socket);
	if (replay_manager_start(config, &manager, text) != 0)
		return fail(text);
	rc = replay_on(config, manager.socket);
	if (tool_manager_stop(&manager) != 0) {
		complain("the Manager did not end cleanly", NULL);
		rc = rc == TOOL_OK ? TOOL_FAILED : rc;
	}
	return rc;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, struct replay_config *config)
{
	int which = 0;
	int id;

	opterr = 0;
	while ((id = getopt_long(argc, argv, ":h", options, &which)) != -1) {
		if (id == OPT_HELP || id == 'h') {
			fputs(usage, stdout);
			return TOOL_OK;
		}
		if (id == OPT_VERSION) {
			tool_print_version("orbitkv-replay");
			return TOOL_OK;
		}
		if (tool_bad_option("orbitkv-replay", id, argv))
			return TOOL_USAGE;
		if (take_option(config, id, options[which].name) != 0)
			return TOOL_USAGE;
	}
	if (optind < argc) {
		complain("unexpected argument; a trace is given as --trace FILE", argv[optind]);
		return TOOL_USAGE;
	}
	return check_options(config) != 0 ? TOOL_USAGE : -1;
}

static int run(struct replay_config *config)
{
	int rc = TOOL_USAGE;

	if (config->speed)
		return replay_speed(config);
	if (replay_model_load(config->models_file, config->model_name, &config->model) != 0)
		return TOOL_USAGE;
	if (replay_trace_load(config->trace_file, config->requests, &config->trace) == 0) {
		rc = replay(config);
		replay_trace_fini(&config->trace);
	}
	replay_model_fini(&config->model);
	return rc;
}

int main(int argc, char **argv)
{
	struct replay_config config = {.engines = 1, .device = OKV_DEVICE_HOST};
	int rc;

	if (argc > 1 && strcmp(argv[1], TOOL_CHILD_MANAGER) == 0)
		return tool_manager_main(argc, argv);
	rc = parse(argc, argv, &config);
	if (rc >= 0)
		return rc;
	/* A stop signal ends what waits, and everything is torn down from there. */
	tool_catch_stop();
	signal(SIGPIPE, SIG_IGN);
	rc = run(&config);
	if (!tool_stopped())
		return rc;
	complain(tool_stopped() == SIGINT ? "interrupted" : "terminated", NULL);
	return 128 + tool_stopped();
}
