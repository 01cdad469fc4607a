/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Log lines for the caller's log function. */
#ifndef OKI_BASE_LOG_H
#define OKI_BASE_LOG_H

#include <orbitkv/status.h>

struct oki_log {
	okv_log_fn *fn; /* NULL: silent */
	void *arg;
};

void oki_log(const struct oki_log *log, enum okv_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
