/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Fill a caller's struct okv_error; abort when nothing else is safe. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void oki_describe(struct okv_error *err, int status, int stage, int os_error, const char *fmt, ...)
{
	if (!err)
		return;
	memset(err, 0, sizeof(*err));
	err->status = status;
	err->stage = stage;
	err->os_error = os_error;
	va_list args;
	va_start(args, fmt);
	int used = vsnprintf(err->text, sizeof(err->text), fmt, args);
	va_end(args);
	if (os_error && used >= 0 && (size_t)used < sizeof(err->text)) {
		char buf[96];
		const char *text = strerror_r(os_error, buf, sizeof(buf));
		snprintf(err->text + used, sizeof(err->text) - (size_t)used, ": %s", text);
	}
}

void oki_die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	fputs("orbitkv: fatal: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	va_end(args);
	abort();
}
