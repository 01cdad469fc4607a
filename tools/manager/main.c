/* SPDX-License-Identifier: Apache-2.0 */
/* [M] The orbitkv-manager program: its options and verbs. Built on the public headers alone. */
#include <orbitkv/manager.h>
#include "tool_option.h"
#include "tool_size.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

#define MAX_UIDS 64u
#define EXIT_USAGE 2
/* A size without a unit is hardly ever meant in bytes. */
#define LEAST_MEMORY (UINT64_C(1) << 20)
#define MAX_SPIN_US 1000000u
#define MAX_TTL_SECONDS 4000000u /* in a number of milliseconds */

static const char usage_text[] =
	"Usage: orbitkv-manager [serve] [options]     hold the cache of this host\n"
	"       orbitkv-manager status [options]      ask a running one for its counters\n"
	"\n"
	"Both:\n"
	"  --socket PATH     Unix socket; default $ORBITKV_SOCKET, else\n"
	"                    $XDG_RUNTIME_DIR/orbitkv/manager.sock, /run/orbitkv/manager.sock for\n"
	"                    root, else /tmp/orbitkv-UID/manager.sock\n"
	"  -h, --help, --version\n"
	"\n"
	"serve:\n"
	"  --memory SIZE     host memory for blocks, K M G T for powers of 1024; default 1G\n"
	"  --shard SIZE      bytes per arena; default memory / 48, at least 64M\n"
	"  --huge-pages      from reserved huge pages, or not at all\n"
	"  --numa WHICH      auto (nodes with memory and CPUs), off, or a node number; default "
	"auto\n"
	"  --lease-ttl SECONDS   leases end when nobody used them for so long; default 600\n"
	"  --reserve-percent N   share of the memory that all leases may pin; default 75\n"
	"  --session-percent N   the same for the leases of one engine; default 75\n"
	"  --max-sessions N  engines at a time; default 1024, which is the most. Control memory\n"
	"                    takes 6 MiB for each, of 64 at most\n"
	"  --spin-us N       a thread that was busy looks for more work for so long before it "
	"sleeps;\n"
	"                    default 50; 0: never\n"
	"  --allow-uid UID   serve this user's processes too, who is then trusted with every byte\n"
	"                    of the cache; may be given again. Its engines must trust this user\n"
	"                    in turn (OKV_ENGINE_TRUST_UID), unless that is root\n"
	"The first SIGTERM or SIGINT drains running copies and ends with 0; a second one ends at "
	"once\n"
	"with 128 + its number.\n"
	"\n"
	"status:\n"
	"  --json            every counter, as one JSON object; numbers above 2^53 as strings\n";

/* ---- arguments ---- */

struct arguments {
	const char *socket;
	bool json;
	uid_t uids[MAX_UIDS];
	struct okv_manager_options options;
};

static bool parse_number(const char *text, unsigned long most, unsigned long *ret_number)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || *end || value > most)
		return false;
	*ret_number = value;
	return true;
}

static bool parse_numa(const char *text, int32_t *ret_numa)
{
	unsigned long node;

	if (!strcmp(text, "auto"))
		*ret_numa = OKV_NUMA_AUTO;
	else if (!strcmp(text, "off"))
		*ret_numa = OKV_NUMA_OFF;
	else if (parse_number(text, 4095, &node))
		*ret_numa = (int32_t)node;
	else
		return false;
	return true;
}

static bool parse_range(const char *text, unsigned long most, uint32_t *ret_number)
{
	unsigned long number;

	if (!parse_number(text, most, &number) || !number)
		return false;
	*ret_number = (uint32_t)number;
	return true;
}

static bool parse_spin(const char *text, uint32_t *ret_us)
{
	unsigned long us;

	if (!parse_number(text, MAX_SPIN_US, &us))
		return false;
	*ret_us = (uint32_t)us;
	return true;
}

static bool parse_ttl(const char *text, uint32_t *ret_ms)
{
	uint32_t seconds;

	if (!parse_range(text, MAX_TTL_SECONDS, &seconds))
		return false;
	*ret_ms = seconds * 1000u;
	return true;
}

static bool add_uid(struct arguments *args, const char *text)
{
	unsigned long uid;

	if (args->options.allow_uid_count == MAX_UIDS || !parse_number(text, UINT32_MAX - 1, &uid))
		return false;
	args->uids[args->options.allow_uid_count++] = (uid_t)uid;
	args->options.allow_uids = args->uids;
	return true;
}

enum option_id {
	SOCKET = 256,
	MEMORY,
	SHARD,
	HUGE_PAGES,
	NUMA,
	LEASE_TTL,
	RESERVE_PERCENT,
	SESSION_PERCENT,
	MAX_SESSIONS,
	SPIN_US,
	ALLOW_UID,
	JSON,
	HELP,
	VERSION
};

static const struct option options_serve[] = {
	{"socket", required_argument, NULL, SOCKET},
	{"memory", required_argument, NULL, MEMORY},
	{"shard", required_argument, NULL, SHARD},
	{"huge-pages", no_argument, NULL, HUGE_PAGES},
	{"numa", required_argument, NULL, NUMA},
	{"lease-ttl", required_argument, NULL, LEASE_TTL},
	{"reserve-percent", required_argument, NULL, RESERVE_PERCENT},
	{"session-percent", required_argument, NULL, SESSION_PERCENT},
	{"max-sessions", required_argument, NULL, MAX_SESSIONS},
	{"spin-us", required_argument, NULL, SPIN_US},
	{"allow-uid", required_argument, NULL, ALLOW_UID},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{NULL, 0, NULL, 0},
};

static const struct option options_status[] = {
	{"socket", required_argument, NULL, SOCKET},
	{"json", no_argument, NULL, JSON},
	{"help", no_argument, NULL, HELP},
	{"version", no_argument, NULL, VERSION},
	{NULL, 0, NULL, 0},
};

static bool take_option(struct arguments *args, int id, const char *value)
{
	switch (id) {
	case SOCKET: args->socket = value; return true;
	case MEMORY:
		return tool_parse_size(value, &args->options.memory_bytes) &&
		       args->options.memory_bytes >= LEAST_MEMORY;
	case SHARD: return tool_parse_size(value, &args->options.shard_bytes);
	case HUGE_PAGES: args->options.flags |= OKV_MANAGER_HUGE_PAGES; return true;
	case NUMA: return parse_numa(value, &args->options.numa);
	case LEASE_TTL: return parse_ttl(value, &args->options.lease_ttl_ms);
	case RESERVE_PERCENT: return parse_range(value, 100, &args->options.reserve_percent);
	case SESSION_PERCENT: return parse_range(value, 100, &args->options.session_percent);
	case MAX_SESSIONS: return parse_range(value, 1024, &args->options.max_sessions);
	case SPIN_US: return parse_spin(value, &args->options.spin_us);
	case ALLOW_UID: return add_uid(args, value);
	default: args->json = true; return true;
	}
}

static const char *expected(int id)
{
	switch (id) {
	case MEMORY: return "a size of at least 1M in bytes, or as " TOOL_SIZE_FORMS;
	case SHARD: return "a size above 0 in bytes, or as " TOOL_SIZE_FORMS;
	case NUMA: return "auto, off, or a node number up to 4095";
	case LEASE_TTL: return "1 to 4000000 seconds";
	case RESERVE_PERCENT:
	case SESSION_PERCENT: return "1 to 100";
	case MAX_SESSIONS: return "1 to 1024";
	case SPIN_US: return "0 to 1000000 microseconds";
	default: return "a user id from 0 to 4294967294, at most 64 times";
	}
}

/* -1: go on; else the exit code. */
static int parse(int argc, char **argv, const struct option *known, struct arguments *args)
{
	int id, which = 0;

	opterr = 0;
	while ((id = getopt_long(argc, argv, ":h", known, &which)) != -1) {
		if (id == HELP || id == 'h') {
			fputs(usage_text, stdout);
			return 0;
		}
		if (id == VERSION) {
			tool_print_version("orbitkv-manager");
			printf("devices: %s\n", okv_devices());
			return 0;
		}
		if (tool_bad_option("orbitkv-manager", id, argv))
			return EXIT_USAGE;
		if (!take_option(args, id, optarg)) {
			const struct tool_option given = {"orbitkv-manager", known[which].name,
							  optarg};
			tool_expected(&given, expected(id));
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "orbitkv-manager: unexpected argument %s; see --help\n",
			argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

/* A file opened later would take the place of one that is closed, and get the log written to it. */
static bool open_standard_files(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		int lowest = open("/dev/null", O_RDWR);
		if (lowest != fd)
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct arguments args = {.socket = NULL};
	bool asks_status = argc > 1 && !strcmp(argv[1], "status");
	bool has_verb = asks_status || (argc > 1 && !strcmp(argv[1], "serve"));

	if (!open_standard_files()) {
		perror("orbitkv-manager: /dev/null");
		return EXIT_FAILURE;
	}
	okv_manager_options_init(&args.options);
	if (has_verb) {
		argv[1] = argv[0];
		argc--;
		argv++;
	}
	int code = parse(argc, argv, asks_status ? options_status : options_serve, &args);
	if (code >= 0)
		return code;
	return asks_status ? verb_status(args.socket, args.json)
			   : verb_serve(args.socket, &args.options);
}
