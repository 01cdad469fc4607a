/* SPDX-License-Identifier: Apache-2.0 */
/* What calls return, and the words that explain it. */
#ifndef ORBITKV_STATUS_H
#define ORBITKV_STATUS_H

#include <stdint.h>
#include <orbitkv/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Every fallible call returns 0 or one of these. The groups say how much was damaged; a group's
 * codes lie in one decade range, see okv_status_group().
 */
enum okv_status {
	OKV_OK = 0,

	/* again: nothing happened; the same call may succeed later */
	OKV_E_AGAIN = -1,   /* a table, area or permit is used up for the moment */
	OKV_E_TIMEOUT = -2, /* the time given ran out; whatever was waited for goes on */
	OKV_E_BUSY = -3,    /* a page, event or object is in use by another operation */
	OKV_E_RUNNING = -4, /* okv_op_poll(): the operation has not ended */

	/* call: the arguments or the object's state; nothing changed */
	OKV_E_INVAL = -20,	 /* an argument is wrong */
	OKV_E_LIMIT = -21,	 /* above a fixed limit: never possible, do not retry */
	OKV_E_UNSUPPORTED = -22, /* this build, device or kernel cannot do that */
	OKV_E_EXISTS = -23,	 /* registered already */
	OKV_E_NOENT = -24,	 /* unknown, ended or expired */
	OKV_E_NOMEM = -25,	 /* memory or descriptors of this process ran out */
	OKV_E_CLOSED = -26,	 /* the object is closing or quiesced */
	OKV_E_FORKED = -27,	 /* called in a child of the process that opened it */
	OKV_E_PERM = -28,	 /* the peer may not do that */
	OKV_E_BUDGET = -29,	 /* a memory budget does not allow it; the text has the numbers */

	/* operation: it ended and is drained; destination pages hold undefined bytes */
	OKV_E_CANCELLED = -40, /* cancelled or expired before its copies were submitted in full */
	OKV_E_NOSPACE = -41,   /* no block could be stored: the pool is held or too small */
	OKV_E_COPY = -42,      /* the device reported an error */
	OKV_E_PLAN = -43,      /* the peer sent an invalid plan; nothing was copied */
	OKV_E_SPENT =
		-44, /* no room to plan it, and its share of the lease is gone; look up again */

	/* session: gone; close the engine, open a new one, treat the cache as empty */
	OKV_E_SESSION = -60,  /* the Manager is gone or dropped this session */
	OKV_E_PROTOCOL = -61, /* the peer sent what the protocol does not allow */
	OKV_E_CONNECT = -62,  /* no Manager answers at the socket */
	OKV_E_POISONED =
		-63, /* a copy's end cannot be known; pages must not be reused until exit */

	/* build: the two sides differ */
	OKV_E_VERSION = -80,
};

enum okv_status_group {
	OKV_STATUS_GROUP_OK,
	OKV_STATUS_GROUP_AGAIN,
	OKV_STATUS_GROUP_CALL,
	OKV_STATUS_GROUP_OPERATION,
	OKV_STATUS_GROUP_SESSION,
	OKV_STATUS_GROUP_BUILD,
};

/** Where in a call an error arose. */
enum okv_stage {
	OKV_STAGE_NONE = 0,
	OKV_STAGE_ARGUMENTS,
	OKV_STAGE_CONNECT,
	OKV_STAGE_REGISTER,
	OKV_STAGE_IMPORT,
	OKV_STAGE_READY,
	OKV_STAGE_REQUEST,
	OKV_STAGE_PREPARE,
	OKV_STAGE_CLAIM,
	OKV_STAGE_SUBMIT,
	OKV_STAGE_DRAIN,
	OKV_STAGE_RETIRE,
};

/**
 * Detail of a failure. Callers pass a pointer or NULL; it is written on failure only.
 * os_error is an errno value or 0, device_error a CUresult or 0.
 */
struct okv_error {
	int32_t status;
	int32_t stage;
	int32_t os_error;
	int32_t device_error;
	char text[240]; /* always terminated */
};

/** "OKV_E_AGAIN"; "OKV_E_?" for a number that is none of ours. */
OKV_EXPORT const char *okv_status_name(int status);
/** One short sentence. */
OKV_EXPORT const char *okv_status_text(int status);
/** The group by the number alone; numbers from 0 on are OKV_STATUS_GROUP_OK. */
OKV_EXPORT enum okv_status_group okv_status_group(int status);
/** "prepare" for OKV_STAGE_PREPARE, and so on. */
OKV_EXPORT const char *okv_stage_name(int stage);

/**
 * Log callback: one line without a newline. The library itself prints nothing, but for one line on
 * stderr before it aborts (OKV_ENGINE_POISON).
 * Called from any thread of the library; must not call back into it.
 */
enum okv_log_level { OKV_LOG_ERROR, OKV_LOG_WARN, OKV_LOG_INFO, OKV_LOG_DEBUG };
typedef void okv_log_fn(void *arg, enum okv_log_level level, const char *line);

#ifdef __cplusplus
}
#endif
#endif
