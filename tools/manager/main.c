/* [M] The orbitkv-manager program: serve, and status. Built on the public headers alone. */
#include <orbitkv/manager.h>
#include <orbitkv/version.h>
#include "tool_size.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_UIDS 64u
#define EXIT_USAGE 2
#define MAX_SPIN_US 1000000u
#define MAX_TTL_SECONDS 4000000u /* in a number of milliseconds */

static struct okv_manager *serving;
static _Atomic int stop_signal;

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
	"  --json            every counter, as one JSON object\n";

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
	case MEMORY: return tool_parse_size(value, &args->options.memory_bytes);
	case SHARD: return tool_parse_size(value, &args->options.shard_bytes);
	case HUGE_PAGES: args->options.flags |= OKV_MANAGER_HUGE_PAGES; return true;
	case NUMA: return parse_numa(value, &args->options.numa);
	case LEASE_TTL: return parse_ttl(value, &args->options.lease_ttl_ms);
	case RESERVE_PERCENT: return parse_range(value, 100, &args->options.reserve_percent);
	case SESSION_PERCENT: return parse_range(value, 100, &args->options.session_percent);
	case SPIN_US: return parse_spin(value, &args->options.spin_us);
	case ALLOW_UID: return add_uid(args, value);
	default: args->json = true; return true;
	}
}

static const char *expected(int id)
{
	switch (id) {
	case MEMORY:
	case SHARD: return "a size above 0 in bytes, or as " TOOL_SIZE_FORMS;
	case NUMA: return "auto, off, or a node number up to 4095";
	case LEASE_TTL: return "1 to 4000000 seconds";
	case RESERVE_PERCENT:
	case SESSION_PERCENT: return "1 to 100";
	case SPIN_US: return "0 to 1000000 microseconds";
	default: return "a numeric user id, and no more than 64 of them";
	}
}

/* -1: go on; else the exit code. */
static int parse(int argc, char **argv, const struct option *known, struct arguments *args)
{
	int id, which = 0;

	while ((id = getopt_long(argc, argv, "h", known, &which)) != -1) {
		if (id == HELP || id == 'h') {
			fputs(usage_text, stdout);
			return 0;
		}
		if (id == VERSION) {
			unsigned v = okv_version();
			printf("orbitkv-manager %u.%u.%u\n", v >> 16, v >> 8 & 255, v & 255);
			return 0;
		}
		if (id == '?') {
			fputs("Try orbitkv-manager --help.\n", stderr);
			return EXIT_USAGE;
		}
		if (!take_option(args, id, optarg)) {
			fprintf(stderr, "orbitkv-manager: --%s %s: expected %s; see --help\n",
				known[which].name, optarg, expected(id));
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

/* ---- serve ---- */

static void log_line(void *arg, enum okv_log_level level, const char *line)
{
	static const char *const words[] = {"error", "warning", "info", "debug"};
	struct timespec now;
	struct tm tm;
	char stamp[32];

	(void)arg;
	if (level == OKV_LOG_DEBUG)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
	fprintf(stderr, "%s.%03ldZ %s: %s\n", stamp, now.tv_nsec / 1000000, words[level], line);
}

/* Called from the threads that touch memory. */
static void show_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	static _Atomic uint64_t shown;
	uint64_t percent = total_bytes ? done_bytes * 100 / total_bytes : 100;
	uint64_t before = atomic_load(&shown);

	(void)arg;
	if (percent <= before || !atomic_compare_exchange_strong(&shown, &before, percent))
		return;
	fprintf(stderr, "\rpreparing memory: %3llu%%%s", (unsigned long long)percent,
		percent == 100 ? "\n" : "");
}

static void on_signal(int signal_number)
{
	atomic_store(&stop_signal, signal_number);
	okv_manager_stop(serving);
}

static void handle_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

static int fail(const struct okv_error *err)
{
	char line[320];

	snprintf(line, sizeof(line), "%s: %s", okv_status_name(err->status), err->text);
	log_line(NULL, OKV_LOG_ERROR, line);
	return EXIT_FAILURE;
}

static void say_ready(struct okv_manager *m, const char *socket_path)
{
	struct okv_manager_status st;
	char path[4096];

	if (!socket_path) {
		okv_default_socket_path(path, sizeof(path));
		socket_path = path;
	}
	okv_manager_status_get(m, &st);
	printf("ready: socket %s, %llu arenas, %llu bytes, control memory %llu bytes per session\n",
	       socket_path, (unsigned long long)st.arenas, (unsigned long long)st.bytes_total,
	       (unsigned long long)st.control_bytes);
	fflush(stdout);
}

static int serve(struct arguments *args)
{
	struct okv_error err;
	struct okv_manager *m;
	char line[96];

	/* A path that cannot be served is cheaper to learn of before the memory is touched. */
	if (okv_manager_check_socket(args->socket, &err))
		return fail(&err);
	args->options.log = log_line;
	if (isatty(STDERR_FILENO))
		args->options.progress = show_progress;
	/* A size without a unit, most likely. */
	if (args->options.memory_bytes < 1u << 20)
		log_line(NULL, OKV_LOG_WARN,
			 "--memory is in bytes, or with K, M, G or T: this is less than one MiB");
	snprintf(line, sizeof(line), "preparing %llu bytes of memory",
		 (unsigned long long)args->options.memory_bytes);
	log_line(NULL, OKV_LOG_INFO, line);
	if (okv_manager_create(&args->options, &m, &err))
		return fail(&err);
	serving = m;
	handle_signals();
	int rc = okv_manager_listen(m, args->socket, &err);
	if (!rc) {
		say_ready(m, args->socket);
		rc = okv_manager_run(m, &err);
	}
	/* From here on a signal has nothing left to stop. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	okv_manager_destroy(m);
	if (rc == OKV_E_BUSY && atomic_load(&stop_signal)) {
		fail(&err);
		return 128 + atomic_load(&stop_signal);
	}
	if (rc)
		return fail(&err);
	log_line(NULL, OKV_LOG_INFO, "drained");
	return EXIT_SUCCESS;
}

/* ---- status ---- */

struct field {
	const char *name;
	size_t offset;
	bool is_bytes;
};

#define FIELD(name, is_bytes)                                              \
	{                                                                  \
#name, offsetof(struct okv_manager_status, name), is_bytes \
	}

static const struct field fields[] = {
	FIELD(epoch, false),
	FIELD(uptime_ms, false),
	FIELD(sessions, false),
	FIELD(sessions_retained, false),
	FIELD(namespaces, false),
	FIELD(bindings, false),
	FIELD(arenas, false),
	FIELD(bytes_total, true),
	FIELD(bytes_free, true),
	FIELD(bytes_used, true),
	FIELD(bytes_quarantined, true),
	FIELD(bytes_pinned, true),
	FIELD(blocks, false),
	FIELD(blocks_partial, false),
	FIELD(leases, false),
	FIELD(lookups, false),
	FIELD(lookup_keys, false),
	FIELD(lookup_hits, false),
	FIELD(evictions, false),
	FIELD(published_blocks, false),
	FIELD(restored_blocks, false),
	FIELD(ops_preparing, false),
	FIELD(ops_granted, false),
	FIELD(ops_active, false),
	FIELD(ops_quarantined, false),
	FIELD(ops_done, false),
	FIELD(ops_reaped, false),
	FIELD(ops_revoked, false),
	FIELD(ops_refused, false),
	FIELD(control_bytes, true),
	FIELD(wakeups, false),
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))
_Static_assert(FIELD_COUNT * sizeof(uint64_t) == sizeof(struct okv_manager_status),
	       "every counter is shown");

static uint64_t value_of(const struct okv_manager_status *st, const struct field *field)
{
	uint64_t value;

	memcpy(&value, (const char *)st + field->offset, sizeof(value));
	return value;
}

static void print_json(const struct okv_manager_status *st)
{
	for (size_t k = 0; k < FIELD_COUNT; k++)
		printf("%s\"%s\": %llu", k ? ", " : "{", fields[k].name,
		       (unsigned long long)value_of(st, &fields[k]));
	puts("}");
}

static void print_table(const struct okv_manager_status *st)
{
	for (size_t k = 0; k < FIELD_COUNT; k++) {
		uint64_t value = value_of(st, &fields[k]);
		printf("%-18s %20llu", fields[k].name, (unsigned long long)value);
		if (fields[k].is_bytes && value >= 1u << 20)
			printf("  %.1f MiB", (double)value / (1 << 20));
		putchar('\n');
	}
}

static int status(const struct arguments *args)
{
	struct okv_manager_status st;
	struct okv_error err;

	if (okv_manager_status_query(args->socket, 5000, &st, &err)) {
		fprintf(stderr, "orbitkv-manager: %s: %s\n", okv_status_name(err.status), err.text);
		return EXIT_FAILURE;
	}
	if (args->json)
		print_json(&st);
	else
		print_table(&st);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct arguments args = {.socket = NULL};
	bool asks_status = argc > 1 && !strcmp(argv[1], "status");
	bool has_verb = asks_status || (argc > 1 && !strcmp(argv[1], "serve"));

	okv_manager_options_init(&args.options);
	if (has_verb) {
		argv[1] = argv[0];
		argc--;
		argv++;
	}
	int code = parse(argc, argv, asks_status ? options_status : options_serve, &args);
	if (code >= 0)
		return code;
	return asks_status ? status(&args) : serve(&args);
}
