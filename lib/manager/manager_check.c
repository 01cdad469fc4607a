/* SPDX-License-Identifier: Apache-2.0 */
/* [M] May a call of the API use this Manager? */
#include "manager/manager_private.h"

#include "base/error.h"
#include "base/fork.h"

int oki_mgr_check(const struct okv_manager *m, struct okv_error *err)
{
	if (!m)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "no Manager");
	if (oki_forked_since(m->fork_generation))
		return oki_fail(err, OKV_E_FORKED, OKV_STAGE_ARGUMENTS,
				"the Manager was created before a fork and is the parent's");
	return 0;
}
