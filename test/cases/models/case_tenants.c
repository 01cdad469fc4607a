/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A namespace per tenant, by its salt: how many tenants has a Manager in its life, and can one KV
 * pool serve two of them at a time?
 */
#include "cases/case.h"

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};

int main(void)
{
	struct case_rank first, second;
	struct okv_engine *engine;
	struct okv_namespace *a = NULL, *b = NULL;
	int tenant = 0, rc = 0;
	case_must(case_engine(NULL, 64u << 20, &engine));
	for (; tenant < 3000 && !rc; tenant++) {
		char salt[32];
		snprintf(salt, sizeof(salt), "user-%d", tenant);
		const struct case_identity id = {.model = "case", .salt = salt};
		rc = case_namespace(engine, &id, &group, 1, &a);
		if (!rc)
			okv_namespace_close(a);
	}
	printf("tenant %d: %s %s\n", tenant, okv_status_name(rc), rc ? case_err.text : "");
	const struct case_identity ids[] = {{.model = "case", .salt = "user-0"},
					    {.model = "case", .salt = "user-1"}};
	case_must(case_namespace(engine, &ids[0], &group, 1, &a));
	case_must(case_namespace(engine, &ids[1], &group, 1, &b));
	case_must(case_bind(&first, a, &group, 1, 0, 8, NULL));
	int shared = case_bind(&second, b, &group, 1, 0, 8, first.memory);
	printf("the same tensors for a second tenant: %s %s\n", okv_status_name(shared),
	       shared ? case_err.text : "");
	okv_engine_close(engine);
	return rc || shared;
}
