/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease as a pin with a lifetime: does opening it again renew it, what does its handle say when
 * it expired while its owner lives, and what do many pins do to everybody's lookups?
 */
#include "cases/case.h"

#define N 64u

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};
	struct case_manager m;
	struct case_rank r;
	struct okv_lookup_result found, kept;
	struct okv_lease *lease, *pins[12];
	struct okv_lease_id id;
	uint8_t *hot = case_keys(1, 0, N);
	int held = 0;
	case_manager_start(&m, "64M", CASE_OPTIONS("--lease-ttl", "2"));
	case_must(case_rank_open(&r, m.socket, &group, 1, 1000));
	case_must(case_publish(&r, 0, hot, 0, N, NULL));
	case_must(case_find(r.ns, hot, N, &found, &lease));
	case_must(okv_lease_id(lease, &id));
	for (int i = 0; i < 4; i++) {
		struct okv_lease *again;
		case_pause(1);
		int rc = okv_lease_open(r.ns, &id, &again, &case_err);
		if (rc)
			printf("renewal: %s\n", okv_status_name(rc));
		else
			okv_lease_release(again);
	}
	case_show_status("a lease of 2 s, opened again each second for 4 s", m.socket);
	case_pause(3);
	case_must(case_publish(&r, 0, case_keys(2, 0, 1000), 0, 1000, NULL));
	printf("3 s later and after a flood: %u of 64 blocks\n", case_hit(r.ns, 0, hot, N));
	int rc = okv_lease_result(lease, &kept);
	printf("its handle says: %s, %" PRIu64 " tokens\n", okv_status_name(rc), kept.tokens);
	rc = case_restore(&r, lease, &found, 0, NULL);
	printf("a restore from it: %s %s\n", okv_status_name(rc), rc ? case_err.text : "");
	okv_lease_release(lease);
	for (uint64_t i = 0; i < 12; i++) {
		uint8_t *keys = case_keys(100 + i, 0, N);
		case_must(case_publish(&r, 0, keys, 0, N, NULL));
		if (case_find(r.ns, keys, N, &found, &pins[held]))
			break;
		held += pins[held] != NULL;
	}
	case_must(case_publish(&r, 0, hot, 0, N, NULL));
	rc = case_find(r.ns, hot, N, &found, &lease);
	printf("%d prefixes pinned, an ordinary lookup: %s %s\n", held, okv_status_name(rc),
	       rc ? case_err.text : "");
	case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
