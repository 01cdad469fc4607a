/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager hangs, and a request that waits for it is aborted by its client. When are its pages
 * free again, how long do quiesce and close take?
 */
#include "cases/case.h"

#define N 32u

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};
	struct case_manager m;
	struct case_rank r;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	struct okv_op *op = NULL, *second = NULL;
	struct okv_restore_options o;
	const struct case_ask ask = {0, N, case_keys(1, 0, N)};
	uint32_t pages[N];
	case_manager_start(&m, "64M", NULL);
	case_must(case_rank_open(&r, m.socket, &group, 1, 64));
	case_must(case_publish(&r, 0, ask.keys, 0, N, NULL));
	case_must(case_lookup(r.ns, &ask, 1, 0, 4, &found, &lease));
	kill(m.pid, SIGSTOP);
	for (uint32_t i = 0; i < N; i++)
		pages[i] = i;
	const struct okv_restore_group g = {.count = N, .pages = pages};
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	case_must(okv_restore_start(r.binding, lease, &o, &op, &case_err));
	okv_op_cancel(op);
	double start = case_now();
	int rc = okv_op_wait(op, 10000, NULL);
	printf("a restore cancelled before it was granted: %s after %.1f s\n", okv_status_name(rc),
	       case_now() - start);
	int again = okv_restore_start(r.binding, lease, &o, &second, &case_err);
	printf("another use of its pages: %s\n", okv_status_name(again));
	start = case_now();
	again = okv_binding_quiesce(r.binding, 3000);
	printf("quiesce with 3 s: %s after %.1f s\n", okv_status_name(again), case_now() - start);
	start = case_now();
	okv_engine_close(r.engine);
	printf("close: %.1f s; the restore: %s\n", case_now() - start,
	       okv_status_name(okv_op_wait(op, 0, NULL)));
	kill(m.pid, SIGCONT);
	case_manager_end(&m, SIGTERM);
	return rc == OKV_E_TIMEOUT;
}
