/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Log lines, for the caller's log function or ring. */
#ifndef OKI_BASE_LOG_H
#define OKI_BASE_LOG_H

#include <pthread.h>
#include <orbitkv/logging.h>

/* Lines go into a ring: the caller's, or that of the thread that calls the caller's function. So
 * whoever holds a lock, or must not wait, may log. */
struct oki_log {
	struct okv_log_ring *ring; /* NULL: silent */
	okv_log_fn *fn;		   /* NULL: the caller reads the ring */
	void *arg;
	pthread_t thread; /* calls fn */
};

/* At most one of fn and ring, else OKV_E_INVAL. Keeps the ring. The log must stay where it is until
 * it is closed. */
int oki_log_open(struct oki_log *log, okv_log_fn *fn, void *arg, struct okv_log_ring *ring,
		 struct okv_error *err);
/* Give fn the lines that wait, and call it no more: later lines are dropped. */
void oki_log_stop(struct oki_log *log);
/* After oki_log_stop(), when nobody logs any more. A zeroed log is allowed for both. */
void oki_log_fini(struct oki_log *log);

void oki_log(const struct oki_log *log, enum okv_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
