/* [B] Filling a caller's struct okv_error, and giving up when nothing else is safe. */
#ifndef OKI_BASE_ERROR_H
#define OKI_BASE_ERROR_H

#include <orbitkv/status.h>

/* Write status, stage and text into err (may be NULL) and return status. */
int oki_fail(struct okv_error *err, int status, int stage, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* The same with an errno value: appends ": " and its text. */
int oki_fail_os(struct okv_error *err, int status, int stage, int os_error, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));

/* A failure that a peer reports: its number if that is one of ours, else OKV_E_PROTOCOL. */
int oki_peer_status(int status);

/* One line to stderr and abort(): only where going on could corrupt memory. */
_Noreturn void oki_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
