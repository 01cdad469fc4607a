/* SPDX-License-Identifier: Apache-2.0 */
/* [E] One descriptor and a batch poll for event loops. */
#include "engine/engine_private.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"

int oki_notify_init(struct okv_engine *engine, struct okv_error *err)
{
	engine->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->notify_fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "eventfd");
	return 0;
}

static void signal_fd(struct okv_engine *engine)
{
	uint64_t one = 1;
	/* EAGAIN: at its maximum, so readable already. */
	while (write(engine->notify_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void oki_notify_push(struct okv_op *op)
{
	struct okv_engine *e = op->engine;
	pthread_mutex_lock(&e->notify_lock);
	/* NULL: another thread has closed the engine meanwhile. */
	if (e->notify_tail) {
		oki_op_get(op);
		op->notify_next = NULL;
		*e->notify_tail = op;
		e->notify_tail = &op->notify_next;
		signal_fd(e);
	}
	pthread_mutex_unlock(&e->notify_lock);
}

void oki_notify_session(struct okv_engine *engine)
{
	pthread_mutex_lock(&engine->notify_lock);
	signal_fd(engine);
	pthread_mutex_unlock(&engine->notify_lock);
}

void oki_notify_drop(struct okv_engine *engine)
{
	pthread_mutex_lock(&engine->notify_lock);
	struct okv_op *op = engine->notify_head;
	engine->notify_head = NULL;
	engine->notify_tail = NULL;
	pthread_mutex_unlock(&engine->notify_lock);
	while (op) {
		struct okv_op *next = op->notify_next;
		oki_op_put(op);
		op = next;
	}
}

int okv_engine_fd(struct okv_engine *engine)
{
	return engine && !oki_forked(engine) ? engine->notify_fd : -1;
}

int okv_engine_poll(struct okv_engine *engine, struct okv_completion *completions, uint32_t max,
		    uint32_t *ret_count)
{
	if (!engine || !completions || !ret_count || !max)
		return OKV_E_INVAL;
	if (oki_forked(engine))
		return OKV_E_FORKED;
	uint32_t n = 0;
	struct okv_op *taken = NULL, **tail = &taken;
	pthread_mutex_lock(&engine->notify_lock);
	while (n < max && engine->notify_head) {
		struct okv_op *op = engine->notify_head;
		engine->notify_head = op->notify_next;
		op->notify_next = NULL;
		completions[n++] = (struct okv_completion){
			.op = op, .user_data = op->user_data, .status = op->result.status};
		*tail = op;
		tail = &op->notify_next;
	}
	int lost = atomic_load(&engine->state);
	if (!engine->notify_head) {
		engine->notify_tail = &engine->notify_head;
		uint64_t count;
		/* The descriptor stays readable after session loss, so that callers poll and get
		 * the error. */
		if (!lost && read(engine->notify_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
			oki_log(&engine->log, OKV_LOG_WARN, "cannot reset the notify descriptor");
	}
	pthread_mutex_unlock(&engine->notify_lock);
	while (taken) {
		struct okv_op *op = taken;
		taken = op->notify_next;
		oki_op_put(op);
	}
	*ret_count = n;
	return n == 0 && lost ? lost : 0;
}
