/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The session thread: record changes from the Manager, and the loss of the session. */
#include "engine/engine_private.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/thread.h"

static struct okv_op *op_at(struct okv_engine *e, uint32_t index)
{
	pthread_mutex_lock(&e->table_lock);
	struct okv_op *op = e->ops[index];
	if (op)
		oki_op_get(op);
	pthread_mutex_unlock(&e->table_lock);
	return op;
}

static bool serve_dirty(struct okv_engine *e)
{
	bool any = false;
	for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++) {
		uint64_t bits = oki_doorbell_take(&e->channel.control->engine, w);
		while (bits) {
			uint32_t index = w * 64 + (uint32_t)__builtin_ctzll(bits);
			bits &= bits - 1;
			struct okv_op *op = op_at(e, index);
			any = true;
			if (!op)
				continue;
			oki_record_advance(op);
			oki_op_put(op);
		}
	}
	return any;
}

/* End operations that can end without the Manager; copies that run continue to their end. */
static void end_waiting(struct okv_engine *e, int status, const char *why)
{
	for (uint32_t i = 0; i < OKW_RECORDS; i++) {
		struct okv_op *op = op_at(e, i);
		if (!op)
			continue;
		/* A reply that came before the loss counts. The worker of an active operation is
		 * woken and finds that no part follows. */
		oki_record_advance(op);
		oki_op_abandon(op, status, why);
		oki_op_put(op);
	}
}

void oki_session_lost(struct okv_engine *engine, const char *why)
{
	int usable = 0;
	/* A poisoned engine stays poisoned, but operations that wait for the Manager end. */
	atomic_compare_exchange_strong(&engine->state, &usable, OKV_E_SESSION);
	oki_log(&engine->log, OKV_LOG_WARN, "session lost: %s", why);
	end_waiting(engine, OKV_E_SESSION, why);
	oki_notify_session(engine);
}

static void drain_fd(int fd)
{
	uint64_t count;
	while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* poll() failed, perhaps for lack of memory: retry, but not in a busy loop. */
static void sleep_1ms(void)
{
	const struct timespec ms = {.tv_nsec = 1000000};
	nanosleep(&ms, NULL);
}

static bool is_stopped(const struct okv_engine *e)
{
	uint64_t count;
	return read(e->stop_fd, &count, sizeof(count)) == (ssize_t)sizeof(count);
}

static void *session_main(void *arg)
{
	struct okv_engine *e = arg;
	struct okw_doorbell *bell = &e->channel.control->engine;
	/* events 0 on the socket: the calling thread reads its replies; only the hang-up counts
	 * here. */
	struct pollfd fds[3] = {
		{.fd = e->stop_fd, .events = POLLIN},
		{.fd = e->channel.engine_doorbell, .events = POLLIN},
		{.fd = e->sock, .events = 0},
	};
	for (;;) {
		if (serve_dirty(e) || !oki_doorbell_sleep(bell))
			continue;
		int n = poll(fds, 3, -1);
		oki_doorbell_awake(bell);
		atomic_fetch_add_explicit(&e->counters.wakeups, 1, memory_order_relaxed);
		if (n < 0 && errno != EINTR) {
			sleep_1ms();
			if (is_stopped(e))
				return NULL;
		}
		if (n < 0)
			continue;
		if (fds[0].revents)
			return NULL;
		if (fds[1].revents)
			drain_fd(e->channel.engine_doorbell);
		if (fds[2].revents) {
			serve_dirty(e);
			oki_session_lost(e, "the Manager hung up");
			fds[2].fd = -1;
		}
	}
}

int oki_session_start(struct okv_engine *engine, struct okv_error *err)
{
	engine->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->stop_fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "eventfd");
	int os = oki_thread_start(&engine->session_thread, session_main, engine);
	if (os)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, os,
				   "cannot start a thread");
	engine->session_running = true;
	return 0;
}

/*
 * The session thread has ended, so end every operation left in the table. One that is reserved but
 * not submitted is taken out by the thread that starts it; one that may still copy (poisoned) keeps
 * its record.
 */
static void empty_table(struct okv_engine *e)
{
	pthread_mutex_lock(&e->table_lock);
	e->table_shut = true;
	pthread_mutex_unlock(&e->table_lock);
	end_waiting(e, OKV_E_CLOSED, "the engine was closed");
	for (uint32_t i = 0; i < OKW_RECORDS; i++) {
		struct okv_op *op = op_at(e, i);
		if (!op)
			continue;
		bool ours = false;
		pthread_mutex_lock(&op->lock);
		pthread_mutex_lock(&e->table_lock);
		if (op->submitted && op->phase != OKI_OP_ACTIVE && e->ops[i] == op) {
			e->ops[i] = NULL;
			ours = true;
		}
		pthread_mutex_unlock(&e->table_lock);
		if (ours)
			op->record = OKI_NO_RECORD;
		pthread_mutex_unlock(&op->lock);
		if (ours)
			oki_op_put(op);
		oki_op_put(op);
	}
}

void oki_session_stop(struct okv_engine *engine)
{
	if (engine->session_running) {
		uint64_t one = 1;
		while (write(engine->stop_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
		pthread_join(engine->session_thread, NULL);
		engine->session_running = false;
		empty_table(engine);
	}
	oki_fd_close(&engine->stop_fd);
}
