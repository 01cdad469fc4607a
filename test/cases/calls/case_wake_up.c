/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine sleeps: its pages go and come back, at first a part of them, later at other addresses.
 * What do leases and restores do meanwhile?
 */
#include "cases/case.h"

#include <sys/mman.h>

#define N 16u
static struct okv_lookup_result found;
static struct okv_lease *lease;

static uint64_t restore(struct case_rank *r, const char *when)
{
	uint8_t *keys = case_keys(1, 0, N);
	uint64_t wrong = 0;
	int rc = case_restore(r, lease, &found, 0, NULL);
	if (!rc) {
		wrong = case_wrong(r, 1, keys + (N - 1) * CASE_KEY, 0);
		for (uint32_t i = 0; i < N; i++)
			wrong += case_wrong(r, 0, keys + i * CASE_KEY, i);
	}
	printf("%s: restore %s, %" PRIu64 " wrong bytes\n", when, okv_status_name(rc), wrong);
	return wrong;
}

static void come_back(struct case_rank *r, uint32_t group)
{
	if (mmap(r->memory[group], case_group_bytes(r, group), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		case_die("mmap");
}

int main(void)
{
	const struct case_group groups[] = {{OKV_GROUP_FULL, 16, 0, 4, 65536, NULL},
					    {OKV_GROUP_STATE, 16, 0, 2, 65536, "state"}};
	struct case_rank r, moved = {0};
	uint8_t *keys = case_keys(1, 0, N);
	uint64_t wrong = 0;
	case_must(case_rank_open(&r, NULL, groups, 2, N));
	case_must(case_publish(&r, 0, keys, 0, N, NULL));
	case_must(case_publish(&r, 1, keys + (N - 1) * CASE_KEY, N - 1, 1, NULL));
	const struct case_ask asks[] = {{0, N, keys}, {1, N, keys}};
	case_must(case_lookup(r.ns, asks, 2, 0, 2, &found, &lease));
	case_must(okv_binding_quiesce(r.binding, 1000));
	for (uint32_t g = 0; g < 2; g++)
		munmap(r.memory[g], case_group_bytes(&r, g));
	restore(&r, "asleep");
	come_back(&r, 0);
	printf("resume with the state unmapped: %s\n",
	       okv_status_name(okv_binding_resume(r.binding)));
	restore(&r, "then");
	come_back(&r, 1);
	printf("resume with all: %s\n", okv_status_name(okv_binding_resume(r.binding)));
	wrong += restore(&r, "then");

	case_must(okv_binding_quiesce(r.binding, 1000));
	okv_binding_unregister(r.binding);
	moved.engine = r.engine;
	case_must(case_bind(&moved, r.ns, groups, 2, 0, N, NULL));
	wrong += restore(&moved, "at other addresses, with the lease from before");
	okv_lease_release(lease);
	okv_engine_close(r.engine);
	return wrong != 0;
}
