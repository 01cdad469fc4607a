/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager is stopped by SIGSTOP. How long does each call take, does anything run out while
 * lookups time out, and is all as it was when it goes on?
 */
#include "cases/case.h"

static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};
static struct case_rank r;

static int timed_lookup(const uint8_t *key, int timeout_ms)
{
	struct okv_lookup_options o;
	struct okv_lookup_result found;
	struct okv_lease *lease = NULL;
	const struct okv_keys keys = {.count = 1, .key_bytes = CASE_KEY, .keys = key};
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &keys;
	o.timeout_ms = timeout_ms;
	int rc = okv_lookup(r.ns, &o, &found, &lease, &case_err);
	if (!rc)
		okv_lease_release(lease);
	return rc;
}

int main(void)
{
	struct case_manager m;
	struct okv_op *op = NULL;
	struct okv_engine *late = NULL;
	struct okv_engine_options o;
	const uint32_t pages[8] = {0, 1, 2, 3, 4, 5, 6, 7};
	uint8_t *stored = case_keys(1, 0, 32);
	int again = 0, timeouts = 0;
	case_manager_start(&m, "64M", NULL);
	case_must(case_rank_open(&r, m.socket, &group, 1, 64));
	case_must(case_publish(&r, 0, stored, 0, 32, NULL));
	kill(m.pid, SIGSTOP);
	double start = case_now();
	int rc = timed_lookup(stored, 200);
	printf("lookup with 200 ms: %s after %.3f s\n", okv_status_name(rc), case_now() - start);
	start = case_now();
	case_must(case_publish_start(&r, 0, case_keys(5, 0, 8), 0, 8, pages, 0, &op));
	printf("start of a publish: %.3f s\n", case_now() - start);
	okv_engine_options_init(&o);
	o.socket_path = m.socket;
	o.connect_timeout_ms = 1000;
	start = case_now();
	rc = okv_engine_open(&o, &late, &case_err);
	printf("a new engine with 1 s: %s after %.2f s\n", okv_status_name(rc), case_now() - start);
	for (int i = 0; i < 2000; i++) {
		rc = timed_lookup(stored, 1);
		again += rc == OKV_E_AGAIN;
		timeouts += rc == OKV_E_TIMEOUT;
	}
	printf("2,000 lookups with 1 ms: %d timeouts, %d refused\n", timeouts, again);
	kill(m.pid, SIGCONT);
	printf("after SIGCONT the publish: %s\n", okv_status_name(case_end(op, NULL)));
	rc = timed_lookup(stored, 5000);
	printf("and a lookup: %s\n", okv_status_name(rc));
	case_until(case_status(m.socket).leases == 0, 5);
	case_show_status("in the end", m.socket);

	kill(m.pid, SIGSTOP);
	case_must(case_publish_start(&r, 0, case_keys(6, 0, 8), 0, 8, pages, 0, &op));
	start = case_now();
	okv_engine_close(r.engine);
	printf("close under a stopped Manager: %.2f s; its publish: %s\n", case_now() - start,
	       okv_status_name(case_end(op, NULL)));
	kill(m.pid, SIGCONT);
	case_until(case_status(m.socket).sessions == 0, 5);
	case_show_status("after SIGCONT", m.socket);
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
