/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Names and texts of status codes and stages. */
#include <orbitkv/status.h>
#include <orbitkv/version.h>

#include <stddef.h>

#include "base/error.h"

struct entry {
	int status;
	const char *name;
	const char *text;
};

#define ENTRY(code, sentence)         \
	{                             \
		code, #code, sentence \
	}

static const struct entry entries[] = {
	ENTRY(OKV_OK, "success"),
	ENTRY(OKV_E_AGAIN, "not possible at the moment; nothing happened"),
	ENTRY(OKV_E_TIMEOUT, "the time given ran out"),
	ENTRY(OKV_E_BUSY, "in use by another operation"),
	ENTRY(OKV_E_RUNNING, "the operation has not ended"),
	ENTRY(OKV_E_INVAL, "an argument is wrong"),
	ENTRY(OKV_E_LIMIT, "above a fixed limit"),
	ENTRY(OKV_E_UNSUPPORTED, "this build or device cannot do that"),
	ENTRY(OKV_E_EXISTS, "exists already"),
	ENTRY(OKV_E_NOENT, "unknown, ended or expired"),
	ENTRY(OKV_E_NOMEM, "this process is out of memory or descriptors"),
	ENTRY(OKV_E_CLOSED, "the object is closing or quiesced"),
	ENTRY(OKV_E_FORKED, "called in a forked child"),
	ENTRY(OKV_E_PERM, "not permitted"),
	ENTRY(OKV_E_BUDGET, "beyond the memory budget"),
	ENTRY(OKV_E_CANCELLED, "the operation was cancelled"),
	ENTRY(OKV_E_NOSPACE, "the pool has no space that may be reused"),
	ENTRY(OKV_E_COPY, "the device failed to copy"),
	ENTRY(OKV_E_PLAN, "the peer's plan is invalid"),
	ENTRY(OKV_E_SPENT, "refused after the lease was spent"),
	ENTRY(OKV_E_SESSION, "the session is lost"),
	ENTRY(OKV_E_PROTOCOL, "the peer broke the protocol"),
	ENTRY(OKV_E_CONNECT, "no Manager answers"),
	ENTRY(OKV_E_POISONED, "a copy's end is unknown; the engine object is poisoned"),
	ENTRY(OKV_E_VERSION, "the two sides were built from different versions"),
};

static const struct entry *find(int status)
{
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
		if (entries[i].status == status)
			return &entries[i];
	return NULL;
}

const char *okv_status_name(int status)
{
	const struct entry *e = find(status);
	return e ? e->name : "OKV_E_?";
}

const char *okv_status_text(int status)
{
	const struct entry *e = find(status);
	return e ? e->text : "not a status of this library";
}

int oki_peer_status(int status)
{
	return status < 0 && find(status) ? status : OKV_E_PROTOCOL;
}

enum okv_status_group okv_status_group(int status)
{
	if (status >= 0)
		return OKV_STATUS_GROUP_OK;
	if (status > -20)
		return OKV_STATUS_GROUP_AGAIN;
	if (status > -40)
		return OKV_STATUS_GROUP_CALL;
	if (status > -60)
		return OKV_STATUS_GROUP_OPERATION;
	if (status > -80)
		return OKV_STATUS_GROUP_SESSION;
	return OKV_STATUS_GROUP_BUILD;
}

const char *okv_stage_name(int stage)
{
	static const char *const names[] = {
		[OKV_STAGE_NONE] = "none",	 [OKV_STAGE_ARGUMENTS] = "arguments",
		[OKV_STAGE_CONNECT] = "connect", [OKV_STAGE_REGISTER] = "register",
		[OKV_STAGE_IMPORT] = "import",	 [OKV_STAGE_READY] = "ready",
		[OKV_STAGE_REQUEST] = "request", [OKV_STAGE_PREPARE] = "prepare",
		[OKV_STAGE_CLAIM] = "claim",	 [OKV_STAGE_SUBMIT] = "submit",
		[OKV_STAGE_DRAIN] = "drain",	 [OKV_STAGE_RETIRE] = "retire",
	};
	if (stage < 0 || (size_t)stage >= sizeof(names) / sizeof(names[0]))
		return "?";
	return names[stage];
}

unsigned okv_version(void)
{
	return OKV_VERSION_MAJOR << 16 | OKV_VERSION_MINOR << 8 | OKV_VERSION_PATCH;
}
