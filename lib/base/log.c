/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Log lines, for the caller's log function or ring. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "base/log_ring.h"
#include "base/thread.h"

/* logging.h says so. */
#define WAITING_LINES 256u

static void *call_fn(void *arg)
{
	const struct oki_log *log = arg;
	struct okv_log_line line;
	while (oki_log_ring_wait(log->ring, &line)) {
		if (line.lost) {
			char text[64];
			snprintf(text, sizeof(text), "%llu log line%s lost",
				 (unsigned long long)line.lost, line.lost == 1 ? " was" : "s were");
			log->fn(log->arg, OKV_LOG_WARN, text);
		}
		log->fn(log->arg, (enum okv_log_level)line.level, line.text);
	}
	return NULL;
}

int oki_log_open(struct oki_log *log, okv_log_fn *fn, void *arg, struct okv_log_ring *ring,
		 struct okv_error *err)
{
	*log = (struct oki_log){0};
	if (fn && ring)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"both log and log_ring are set");
	if (ring && oki_log_ring_forked(ring))
		return oki_fail(err, OKV_E_FORKED, OKV_STAGE_ARGUMENTS,
				"log_ring was created before a fork");
	if (ring) {
		oki_log_ring_get(ring);
		log->ring = ring;
	}
	if (!fn)
		return 0;
	ring = oki_log_ring_new(WAITING_LINES);
	if (!ring)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for a log");
	*log = (struct oki_log){.ring = ring, .fn = fn, .arg = arg};
	int os = oki_thread_start(&log->thread, call_fn, log);
	if (!os)
		return 0;
	oki_log_ring_put(ring);
	*log = (struct oki_log){0};
	return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, os,
			   "cannot start a thread for the log");
}

void oki_log_stop(struct oki_log *log)
{
	/* A fork left the thread to the parent. */
	if (!log->fn || oki_log_ring_forked(log->ring))
		return;
	oki_log_ring_end(log->ring);
	pthread_join(log->thread, NULL);
	log->fn = NULL;
}

void oki_log_fini(struct oki_log *log)
{
	if (log->ring)
		oki_log_ring_put(log->ring);
	log->ring = NULL;
}

void oki_log(const struct oki_log *log, enum okv_log_level level, const char *fmt, ...)
{
	if (!log || !log->ring)
		return;
	struct okv_log_line line;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	line.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	line.level = level;
	line.lost = 0;
	va_list args;
	va_start(args, fmt);
	vsnprintf(line.text, sizeof(line.text), fmt, args);
	va_end(args);
	oki_log_ring_write(log->ring, &line);
}
