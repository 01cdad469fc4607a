/* SPDX-License-Identifier: Apache-2.0 */
/* [M] orbitkv-manager serve: hold the cache until a signal ends it. */
#include "verbs.h"
#include "tool_size.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct okv_manager *_Atomic serving;
static _Atomic int stop_signal;

static _Atomic unsigned asked; /* bit n: signal n came */
static sem_t questions;
static pthread_t answerer;
static bool answering;
static _Atomic bool ending;

/* Until the log has room, as nobody may be reading it. That must not keep the Manager from ending:
 * false after a second of it once a signal stopped the Manager, and from then on at once. */
static bool await_log(void)
{
	static _Atomic bool given_up;
	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	int tries = 0;

	for (;;) {
		int n = poll(&p, 1, atomic_load(&given_up) ? 0 : 100);
		if (n > 0 || (n < 0 && errno != EINTR))
			return true;
		if (atomic_load(&given_up) || (atomic_load(&stop_signal) && ++tries >= 10)) {
			atomic_store(&given_up, true);
			return false;
		}
	}
}

static void log_line(void *arg, enum okv_log_level level, const char *line)
{
	static const char *const words[] = {"error", "warning", "info", "debug"};
	struct timespec now;
	struct tm tm;
	char stamp[32];

	(void)arg;
	if (level == OKV_LOG_DEBUG || !await_log())
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
	okv_manager_stop(atomic_load(&serving));
}

static void handle_stop_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

static void log_status(void)
{
	struct okv_manager *m = atomic_load(&serving);
	struct okv_manager_status st;
	char line[256];

	if (okv_manager_status_get(m, &st)) {
		log_line(NULL, OKV_LOG_INFO, "status: memory is being prepared");
		return;
	}
	snprintf(line, sizeof(line),
		 "status: bytes_used %llu of %llu, bytes_pinned %llu, bytes_quarantined %llu, "
		 "blocks %llu, sessions %llu, sessions_retained %llu, ops_active %llu",
		 (unsigned long long)st.bytes_used, (unsigned long long)st.bytes_total,
		 (unsigned long long)st.bytes_pinned, (unsigned long long)st.bytes_quarantined,
		 (unsigned long long)st.blocks, (unsigned long long)st.sessions,
		 (unsigned long long)st.sessions_retained, (unsigned long long)st.ops_active);
	log_line(NULL, OKV_LOG_INFO, line);
}

static void on_question(int signal_number)
{
	int saved = errno;

	atomic_fetch_or(&asked, 1u << signal_number);
	sem_post(&questions);
	errno = saved;
}

/* Signals that stop nothing. A thread answers them, for no handler may write to the log. */
static void *answer_signals(void *arg)
{
	(void)arg;
	for (;;) {
		while (sem_wait(&questions))
			;
		if (atomic_load(&ending))
			return NULL;
		unsigned now = atomic_exchange(&asked, 0);
		if (now & 1u << SIGHUP)
			log_line(NULL, OKV_LOG_INFO, "SIGHUP: there is nothing to reload");
		if (now & (1u << SIGUSR1 | 1u << SIGUSR2))
			log_status();
	}
}

/* First of all: memory may take minutes to prepare. */
static void start_answering(void)
{
	static const int signals[] = {SIGHUP, SIGUSR1, SIGUSR2};
	/* Handlers, not a mask for sigwait(): liburcu's threads unblock SIGUSR1. */
	struct sigaction action = {.sa_handler = on_question, .sa_flags = SA_RESTART};

	/* A log that nobody reads any more is no reason to end the cache. */
	signal(SIGPIPE, SIG_IGN);
	sem_init(&questions, 0, 0);
	sigemptyset(&action.sa_mask);
	for (size_t k = 0; k < sizeof(signals) / sizeof(signals[0]); k++)
		sigaction(signals[k], &action, NULL);
	answering = !pthread_create(&answerer, NULL, answer_signals, NULL);
	if (!answering)
		log_line(NULL, OKV_LOG_WARN, "SIGHUP, SIGUSR1 and SIGUSR2 get no answer");
}

static void stop_answering(void)
{
	atomic_store(&ending, true);
	sem_post(&questions);
	if (answering)
		pthread_join(answerer, NULL);
}

/* option: what the user may change; NULL: none. */
static int fail(const struct okv_error *err, const char *option)
{
	char line[400];

	snprintf(line, sizeof(line), "%s%s%s: %s", option ? option : "", option ? ": " : "",
		 okv_status_name(err->status), err->text);
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
	printf("ready: socket %s, %llu arena%s, %llu bytes, control memory %llu bytes per "
	       "session\n",
	       socket_path, (unsigned long long)st.arenas, st.arenas == 1 ? "" : "s",
	       (unsigned long long)st.bytes_total, (unsigned long long)st.control_bytes);
	fflush(stdout);
}

/* Each session takes up to four descriptors. The soft limit is for programs that use select(). */
static void use_all_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int verb_serve(const char *socket, struct okv_manager_options *options)
{
	struct okv_error err;
	struct okv_manager *m;
	char line[96];
	char memory[64];

	start_answering();
	use_all_descriptors();
	/* A path that cannot be served is cheaper to learn of before the memory is touched. */
	if (okv_manager_check_socket(socket, &err))
		return fail(&err, NULL);
	options->log = log_line;
	if (isatty(STDERR_FILENO))
		options->progress = show_progress;
	tool_write_size(options->memory_bytes, "--memory ", memory, sizeof(memory));
	snprintf(line, sizeof(line), "preparing %llu bytes of memory",
		 (unsigned long long)options->memory_bytes);
	log_line(NULL, OKV_LOG_INFO, line);
	if (okv_manager_create(options, &m, &err))
		return fail(&err, err.status == OKV_E_BUDGET ? memory : NULL);
	atomic_store(&serving, m);
	handle_stop_signals();
	int rc = okv_manager_listen(m, socket, &err);
	if (!rc) {
		say_ready(m, socket);
		rc = okv_manager_run(m, &err);
	}
	/* From here on a signal has nothing left to stop. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	stop_answering();
	okv_manager_destroy(m);
	if (rc == OKV_E_BUSY && atomic_load(&stop_signal)) {
		fail(&err, NULL);
		return 128 + atomic_load(&stop_signal);
	}
	if (rc)
		return fail(&err, NULL);
	log_line(NULL, OKV_LOG_INFO, "drained");
	return EXIT_SUCCESS;
}
