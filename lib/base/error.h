/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Fill a caller's struct okv_error; abort when nothing else is safe. */
#ifndef OKI_BASE_ERROR_H
#define OKI_BASE_ERROR_H

#include <stdint.h>
#include <orbitkv/status.h>

/* The ending of a noun after a count: "%u block%s". */
static inline const char *oki_plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Write a failure into err, which may be NULL. The text of os_error is appended unless it is 0. */
void oki_describe(struct okv_error *err, int status, int stage, int os_error, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/*
 * Write a failure into err, which may be NULL; the value of the macro is status. It is a macro so
 * that compilers and analyzers see that status is not 0.
 */
#define oki_fail(err, status, stage, ...) oki_fail_os(err, status, stage, 0, __VA_ARGS__)

/* The same with an errno value. */
#define oki_fail_os(err, status, stage, os_error, ...)                       \
	__extension__({                                                      \
		const int oki_status = (status);                             \
		oki_describe(err, oki_status, stage, os_error, __VA_ARGS__); \
		oki_status;                                                  \
	})

/* The status of a failure that a peer reports: OKV_E_PROTOCOL if the number is no error code. */
int oki_peer_status(int status);

/* Write one line to stderr and abort(). Only for states that could corrupt memory. */
void oki_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
