/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few tiny pins lie spread over the pool, and a block is published that fits nowhere between
 * them. How much is thrown away for nothing? Usage: case_pins_wipe_pool [EVERY]
 */
#include "cases/case.h"

int main(int argc, char **argv)
{
	const struct case_group small = {OKV_GROUP_FULL, 16, 0, 1, 16384, NULL};
	const struct case_group large = {OKV_GROUP_FULL, 784, 0, 1, 13u << 20, NULL};
	uint64_t every = argc > 1 ? strtoull(argv[1], NULL, 10) : 24;
	struct case_manager m;
	struct case_rank a, b;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	struct okv_op_result result = {0};
	int pins = 0;
	if (!every)
		case_die("every so many sequences a pin, at least 1");
	case_manager_start(&m, "256M", NULL);
	case_must(case_rank_open(&a, m.socket, &small, 1, 64));
	case_must(case_rank_open(&b, m.socket, &large, 1, 8));
	for (uint64_t q = 0; q < 512; q++) {
		uint8_t *keys = case_keys(5000 + q, 0, 32);
		case_must(case_publish(&a, 0, keys, 0, 32, NULL));
		if (q % every == 0) {
			case_must(case_find(a.ns, keys, 1, &found, &lease));
			pins += lease != NULL;
		}
		free(keys);
	}
	struct okv_manager_status s = case_status(m.socket);
	uint64_t before = s.evictions;
	printf("%" PRIu64 " blocks, %" PRIu64 " MiB used, %d pins: %.2f %% of the pool\n", s.blocks,
	       s.bytes_used >> 20, pins, 100.0 * (double)s.bytes_pinned / (double)s.bytes_total);
	double start = case_now();
	int rc = case_publish(&b, 0, case_keys(1, 0, 1), 0, 1, &result);
	double took = case_now() - start;
	s = case_status(m.socket);
	printf("publish of one block of 13 MiB: %s after %.1f ms, not stored %" PRIu64 " %s\n",
	       okv_status_name(rc), took * 1e3, result.not_stored, result.text);
	printf("evicted for it: %" PRIu64 " blocks; left are %" PRIu64 ", %" PRIu64 " MiB of 256\n",
	       s.evictions - before, s.blocks, s.bytes_used >> 20);
	case_rank_close(&b);
	case_rank_close(&a);
	case_manager_end(&m, SIGTERM);
	return rc != 0;
}
