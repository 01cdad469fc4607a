/* SPDX-License-Identifier: Apache-2.0 */
/* [E] This program again in another process: a Manager, or a client. */
#include "bench.h"
#include "bench_lookup.h"
#include "bench_neighbour.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES (16ull << 30)
#define SHARD_GRAIN (2ull << 20) /* a huge page */

/* Few shards, so that no shard's tail is wasted and long runs stay whole. */
static void choose_memory(uint64_t memory_bytes, struct okv_manager_options *opts)
{
	uint64_t shards = (memory_bytes + SHARD_BYTES - 1) / SHARD_BYTES;
	uint64_t shard = (memory_bytes + shards - 1) / shards;

	opts->shard_bytes = (shard + SHARD_GRAIN - 1) / SHARD_GRAIN * SHARD_GRAIN;
	opts->memory_bytes = opts->shard_bytes * shards;
}

int bench_manager_start(uint64_t memory_bytes, uint32_t flags, struct tool_manager *ret_manager,
			char *text)
{
	struct okv_manager_options opts;

	okv_manager_options_init(&opts);
	opts.flags = flags;
	opts.reserve_percent = 100;
	opts.session_percent = 100;
	choose_memory(memory_bytes, &opts);
	return tool_manager_start("orbitkv-bench", &opts, ret_manager, text);
}

uint64_t bench_anonymous_bytes(pid_t pid)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
	f = fopen(line, "re");
	if (f == NULL)
		return 0;
	while (fgets(line, sizeof(line), f) != NULL) {
		if (sscanf(line, "RssAnon: %llu", &kib) == 1)
			break;
	}
	fclose(f);
	return kib << 10;
}

int bench_child_main(int argc, char **argv)
{
	if (strcmp(argv[1], TOOL_CHILD_MANAGER) == 0)
		return tool_manager_main(argc, argv);
	tool_child_signals();
	if (strcmp(argv[1], BENCH_CHILD_CLIENT) == 0 && argc == 6)
		return bench_client_main(argv[2], (uint32_t)strtoul(argv[3], NULL, 10),
					 (uint32_t)strtoul(argv[4], NULL, 10),
					 strcmp(argv[5], "lease") == 0);
	if (strcmp(argv[1], BENCH_CHILD_NEIGHBOUR) == 0 && argc == 5)
		return bench_neighbour_main(argv[2], argv[3], strtoull(argv[4], NULL, 10));
	return TOOL_USAGE;
}
