/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Manager is killed while a restore and a publish copy, and another one takes its place. The
 * restore may end exact or as a lost session, the publish as a lost session; nothing of the old
 * Manager may reach the new one's blocks, and its memory goes.
 */
#include "cases/case.h"

#define N 32u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};

static int mapped_arenas(void)
{
	char line[512];
	int count = 0;
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(line, sizeof(line), f))
		count += strstr(line, "memfd:") != NULL;
	if (f)
		fclose(f);
	return count;
}

static uint64_t store_and_check(const char *socket)
{
	struct case_rank r;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	uint64_t wrong = 0;
	case_must(case_rank_open(&r, socket, &group, 1, 2 * N));
	for (uint64_t q = 40; q < 140; q++)
		case_must(case_publish(&r, 0, case_keys(q, 0, N), 0, N, NULL));
	for (uint64_t q = 40; q < 140; q++) {
		uint8_t *keys = case_keys(q, 0, N);
		case_must(case_find(r.ns, keys, N, &found, &lease));
		if (!lease)
			continue;
		case_must(case_restore(&r, lease, &found, 0, NULL));
		for (uint32_t i = 0; i < found.groups[0].count; i++)
			wrong += case_wrong(&r, 0, keys + i * CASE_KEY, i);
		okv_lease_release(lease);
	}
	printf("old publish visible in the new Manager: %u blocks\n",
	       case_hit(r.ns, 0, case_keys(2, 0, N), N));
	case_rank_close(&r);
	return wrong;
}

int main(void)
{
	struct case_manager m;
	struct case_rank r;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	struct okv_op *restore = NULL, *publish = NULL;
	struct okv_restore_options o;
	uint32_t to[N], from[N];
	uint8_t *keys = case_keys(1, 0, N), *others = case_keys(2, 0, N);
	case_manager_start(&m, "64M", NULL);
	case_must(case_rank_open(&r, m.socket, &group, 1, 256));
	case_must(case_publish(&r, 0, keys, 0, N, NULL));
	case_wipe(&r);
	for (uint32_t i = 0; i < N; i++) {
		to[i] = 100 + i;
		from[i] = 160 + i;
		case_fill(&r, 0, others + i * CASE_KEY, from[i]);
	}
	case_must(case_find(r.ns, keys, N, &found, &lease));
	case_gate_close(case_page(&r, 0, 0, 103), 4096);
	const struct okv_restore_group g = {.count = N, .pages = to};
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	case_must(okv_restore_start(r.binding, lease, &o, &restore, &case_err));
	case_until(case_gate_met(), 5);
	int rc = case_publish_start(&r, 0, others, 0, N, from, 0, &publish);
	printf("a publish beside it: %s\n", okv_status_name(rc));
	case_manager_kill(&m, SIGKILL);
	case_manager_again(&m, "64M", NULL);
	double start = case_now();
	case_until(okv_engine_state(r.engine) == OKV_E_SESSION, 5);
	printf("the loss is known after %.3f s; the copy goes on: %s\n", case_now() - start,
	       okv_status_name(okv_op_poll(restore, NULL)));
	uint64_t wrong = store_and_check(m.socket);
	printf("what the new Manager stored meanwhile: %" PRIu64 " wrong bytes\n", wrong);
	case_gate_open();
	int ended = case_end(restore, NULL);
	for (uint32_t i = 0; i < N && !ended; i++)
		wrong += case_wrong(&r, 0, keys + i * CASE_KEY, to[i]);
	printf("the restore: %s, %" PRIu64 " wrong bytes in all\n", okv_status_name(ended), wrong);
	if (!rc)
		printf("the publish: %s\n", okv_status_name(case_end(publish, NULL)));
	okv_lease_release(lease);
	case_rank_close(&r);
	printf("arenas still mapped here: %d\n", mapped_arenas());
	case_manager_end(&m, SIGTERM);
	return wrong != 0;
}
