/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes that calls return, and their names and texts. */
#ifndef ORBITKV_STATUS_H
#define ORBITKV_STATUS_H

#include <stdint.h>
#include <orbitkv/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A call that can fail returns 0 or one of these. The codes of one status group, which says how
 * much was damaged, lie in one range of numbers: okv_status_group().
 */
enum okv_status {
	OKV_OK = 0,

	/* again: nothing happened; the same call may succeed later */
	OKV_E_AGAIN = -1,   /* a table, an area or the permits are used up now */
	OKV_E_TIMEOUT = -2, /* the time is over; what the call waited for goes on */
	OKV_E_BUSY = -3,    /* a page, event or object is in use by another operation */
	OKV_E_RUNNING = -4, /* okv_op_poll(): the operation has not ended */

	/* call: the arguments or the object's state do not allow it; nothing changed */
	OKV_E_INVAL = -20,	 /* an argument is wrong */
	OKV_E_LIMIT = -21,	 /* above a fixed limit; a retry cannot succeed */
	OKV_E_UNSUPPORTED = -22, /* this build, device or kernel cannot do that */
	OKV_E_EXISTS = -23,	 /* registered already */
	OKV_E_NOENT = -24,	 /* unknown, ended or expired */
	OKV_E_NOMEM = -25,	 /* this process is out of memory or descriptors */
	OKV_E_CLOSED = -26,	 /* the object is closing or quiesced */
	OKV_E_FORKED = -27,	 /* the object was opened before a fork, by the parent process */
	OKV_E_PERM = -28,	 /* not permitted */
	OKV_E_BUDGET = -29,	 /* not enough memory on the host; the text has the numbers */

	/* operation: it ended and is drained; destination pages have undefined contents */
	OKV_E_CANCELLED = -40, /* cancelled or expired before all its copies were submitted */
	OKV_E_NOSPACE = -41,   /* no block fits: the pool is too small or nothing can be evicted */
	OKV_E_COPY = -42,      /* the device reported an error */
	OKV_E_PLAN = -43,      /* the Manager sent an invalid plan; nothing was copied */
	/* Plans of other operations fill session_plan_bytes, and the share of the lease is spent;
	 * look up again. */
	OKV_E_SPENT = -44,

	/* session: lost; close the engine, open a new one, treat the cache as empty */
	OKV_E_SESSION = -60,  /* the Manager ended or dropped this session */
	OKV_E_PROTOCOL = -61, /* the peer sent what the protocol does not allow */
	OKV_E_CONNECT = -62,  /* no Manager answers at the socket */
	/* The end of a copy cannot be known: its pages must not be reused until the process
	 * exits. */
	OKV_E_POISONED = -63,

	/* build */
	OKV_E_VERSION = -80, /* library and Manager, or library and header, do not match */
};

enum okv_status_group {
	OKV_STATUS_GROUP_OK,
	OKV_STATUS_GROUP_AGAIN,
	OKV_STATUS_GROUP_CALL,
	OKV_STATUS_GROUP_OPERATION,
	OKV_STATUS_GROUP_SESSION,
	OKV_STATUS_GROUP_BUILD,
};

/** The stage of a call or an operation in which an error occurred. */
enum okv_stage {
	OKV_STAGE_NONE = 0,
	OKV_STAGE_ARGUMENTS, /* check of the arguments */
	OKV_STAGE_CONNECT,   /* connection to a Manager */
	OKV_STAGE_REGISTER,  /* namespace or binding */
	OKV_STAGE_IMPORT,    /* mapping of the arenas */
	OKV_STAGE_READY,     /* pages, streams and fences, before the request */
	OKV_STAGE_REQUEST,   /* a record and space for the request */
	OKV_STAGE_PREPARE,   /* the Manager's answer */
	OKV_STAGE_CLAIM,     /* claim of the grant, check of its plan */
	OKV_STAGE_SUBMIT,    /* submission of the copies */
	OKV_STAGE_DRAIN,     /* until the last copy ended */
	OKV_STAGE_RETIRE,    /* the Manager's release of the grant */
};

/** Detail of a failure. Callers pass a pointer or NULL; calls write it on failure only. */
struct okv_error {
	int32_t status;	      /* enum okv_status, as returned */
	int32_t stage;	      /* enum okv_stage */
	int32_t os_error;     /* errno value, or 0 */
	int32_t device_error; /* CUresult, or 0 */
	char text[240];	      /* always terminated */
};

/** "OKV_E_AGAIN" and so on; "OKV_E_?" for a number that is no status. */
OKV_EXPORT const char *okv_status_name(int status);
/** One short phrase that explains the status. */
OKV_EXPORT const char *okv_status_text(int status);
/** The status group, from the number alone; OKV_STATUS_GROUP_OK for 0 and above. */
OKV_EXPORT enum okv_status_group okv_status_group(int status);
/** "prepare" for OKV_STAGE_PREPARE and so on; "?" for a number that is no stage. */
OKV_EXPORT const char *okv_stage_name(int stage);

#ifdef __cplusplus
}
#endif
#endif
