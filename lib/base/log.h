/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Where log lines go: the caller's function, or nowhere. */
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
