/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine is killed with eight publishes of 1,000 blocks under way. How much of the pool is lost
 * until the Manager restarts, and what can another engine still store?
 */
#include "cases/case.h"

#define BLOCKS 1000u
static const struct case_group group = {OKV_GROUP_FULL, 16, 0, 2, 4096, NULL};

static void engine(const char *socket)
{
	struct case_rank r;
	uint32_t pages[BLOCKS];
	case_must(case_rank_open(&r, socket, &group, 1, 8 * BLOCKS));
	case_gate_close(case_page(&r, 0, 0, 0), 4096);
	for (uint32_t q = 0; q < 8; q++) {
		struct okv_op *op = NULL;
		for (uint32_t i = 0; i < BLOCKS; i++)
			pages[i] = q * BLOCKS + i;
		case_must(case_publish_start(&r, 0, case_keys(q, 0, BLOCKS), 0, BLOCKS, pages, 0,
					     &op));
	}
	case_until(case_gate_met() && case_status(socket).ops_active > 1, 2);
	case_show_status("eight publishes, one stopped in its copies", socket);
	kill(getpid(), SIGKILL);
}

int main(void)
{
	struct case_manager m;
	struct case_rank r;
	struct okv_op_result result = {0};
	case_manager_start(&m, "64M", NULL);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		engine(m.socket);
	waitpid(pid, NULL, 0);
	case_until(case_status(m.socket).ops_active == 0, 10);
	case_show_status("the engine was killed", m.socket);
	case_must(case_rank_open(&r, m.socket, &group, 1, 200));
	uint8_t *keys = case_keys(77, 0, 200);
	int rc = case_publish(&r, 0, keys, 0, 200, &result);
	printf("another engine publishes 200 blocks: %s, stored %" PRIu64 ", not stored %" PRIu64
	       "\n",
	       okv_status_name(rc), result.blocks, result.not_stored);
	printf("and finds %u\n", case_hit(r.ns, 0, keys, 200));
	struct okv_manager_status s = case_status(m.socket);
	printf("lost until the Manager restarts: %.0f %% of the pool\n",
	       100.0 * (double)s.bytes_quarantined / (double)s.bytes_total);
	case_rank_close(&r);
	case_manager_end(&m, SIGTERM);
	return s.bytes_quarantined != 0;
}
