/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After every weight update old values must not be found, so each update opens a namespace with a
 * new revision. How many updates does a Manager live through, and what do the old ones hold?
 */
#include "cases/case.h"

#define N 32u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};

int main(void)
{
	struct case_manager m;
	struct okv_engine *engine, *fresh;
	struct okv_namespace *ns;
	uint8_t *keys = case_keys(1, 0, N);
	int step = 0, rc = 0;
	case_manager_start(&m, "64M", NULL);
	case_must(case_engine(m.socket, 0, &engine));
	for (; step < 1500; step++) {
		char revision[32];
		snprintf(revision, sizeof(revision), "step-%d", step);
		const struct case_identity id = {.model = "policy", .revision = revision};
		rc = case_namespace(engine, &id, &group, 1, &ns);
		if (rc)
			break;
		if (step < 3) {
			struct case_rank r = {.engine = engine};
			case_must(case_bind(&r, ns, &group, 1, 0, N, NULL));
			printf("step %d: %u blocks found before its publish", step,
			       case_hit(ns, 0, keys, N));
			case_must(case_publish(&r, 0, keys, 0, N, NULL));
			printf(", %u after\n", case_hit(ns, 0, keys, N));
			okv_binding_unregister(r.binding);
		}
		okv_namespace_close(ns);
	}
	printf("weight update %d: %s %s\n", step, okv_status_name(rc), rc ? case_err.text : "");
	struct okv_manager_status s = case_status(m.socket);
	printf("namespaces %" PRIu64 ", bytes used by revisions of the past %" PRIu64 " of %" PRIu64
	       "\n",
	       s.namespaces, s.bytes_used, s.bytes_total);
	okv_engine_close(engine);
	case_must(case_engine(m.socket, 0, &fresh));
	const struct case_identity other = {.model = "another model"};
	int later = case_namespace(fresh, &other, &group, 1, &ns);
	printf("a new engine with another model: %s %s\n", okv_status_name(later),
	       later ? case_err.text : "");
	const struct case_identity old = {.model = "policy", .revision = "step-0"};
	if (!case_namespace(fresh, &old, &group, 1, &ns))
		printf("values of the first weights are found still: %u blocks\n",
		       case_hit(ns, 0, keys, N));
	okv_engine_close(fresh);
	case_manager_end(&m, SIGTERM);
	return rc || later;
}
