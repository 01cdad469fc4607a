/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler looks up, a worker restores much later, and the pool turns over between. Is all that
 * was promised delivered, or an error, and never anything else?
 */
#include "cases/case.h"

#include <pthread.h>
#include <stdatomic.h>

#define N 48u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 4, 16384, NULL};
static struct case_manager m;
static _Atomic bool is_over;

static void *flood(void *arg)
{
	struct case_rank r;
	uint64_t sequence = (uint64_t)(uintptr_t)arg << 32;
	case_must(case_rank_open(&r, m.socket, &group, 1, 64));
	while (!is_over) {
		uint8_t *keys = case_keys(sequence++, 0, 64);
		case_publish(&r, 0, keys, 0, 64, NULL);
		free(keys);
	}
	case_rank_close(&r);
	return NULL;
}

int main(void)
{
	struct case_rank scheduler, worker;
	pthread_t threads[2];
	unsigned seed = 1;
	int whole = 0, less = 0, misses = 0, gone = 0, failed = 0;
	uint64_t wrong = 0;
	case_manager_start(&m, "96M", NULL);
	case_must(case_rank_open(&scheduler, m.socket, &group, 1, N));
	case_must(case_rank_open(&worker, m.socket, &group, 1, N));
	for (uintptr_t i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, flood, (void *)(i + 1));
	double end = case_now() + 12;
	for (uint64_t q = 0; case_now() < end; q++) {
		struct okv_lookup_result found;
		struct okv_lease *lease, *opened;
		struct okv_lease_id id;
		struct okv_op_result result = {0};
		uint8_t *keys = case_keys(7ull << 40 | q, 0, N);
		case_publish(&worker, 0, keys, 0, N, NULL);
		case_pause(rand_r(&seed) % 30 * 1e-3);
		case_must(case_find(scheduler.ns, keys, N, &found, &lease));
		if (!lease) {
			misses++;
			free(keys);
			continue;
		}
		case_must(okv_lease_id(lease, &id));
		case_pause(rand_r(&seed) % 60 * 1e-3);
		if (okv_lease_open(worker.ns, &id, &opened, &case_err)) {
			gone++;
		} else {
			case_wipe(&worker);
			if (case_restore(&worker, opened, &found, 0, &result)) {
				failed++;
			} else {
				uint32_t promised = found.groups[0].count;
				whole += result.blocks == promised;
				less += result.blocks != promised;
				for (uint32_t i = 0; i < promised; i++)
					wrong += case_wrong(&worker, 0, keys + i * CASE_KEY, i);
			}
			okv_lease_release(opened);
		}
		okv_lease_release(lease);
		free(keys);
	}
	is_over = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	struct okv_manager_status s = case_status(m.socket);
	printf("evictions %" PRIu64
	       "; restored as promised %d, less %d, misses %d, leases gone %d, "
	       "failed %d, wrong bytes %" PRIu64 "; leases left %" PRIu64 "\n",
	       s.evictions, whole, less, misses, gone, failed, wrong, s.leases);
	case_rank_close(&worker);
	case_rank_close(&scheduler);
	case_manager_end(&m, SIGTERM);
	return wrong || less;
}
