/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Log lines for the caller's log function. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void oki_log(const struct oki_log *log, enum okv_log_level level, const char *fmt, ...)
{
	if (!log || !log->fn)
		return;
	char line[512];
	va_list args;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	log->fn(log->arg, level, line);
}
