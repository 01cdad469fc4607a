/* [E] How much memory the Manager of a replay gets. */
#include "replay.h"

/* Up to this much one shard holds all blocks, so that no shard's tail is wasted. */
#define ONE_SHARD_BYTES (16ull << 30)
#define SHARDS 32u
#define PAGE 4096u

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

void replay_manager_options(const struct replay_config *config, struct okv_manager_options *opts)
{
	uint64_t block = config->model.block_bytes;
	uint64_t unit = block / greatest_divisor(block, PAGE) * PAGE;

	okv_manager_options_init(opts);
	if (config->blocks == 0) {
		opts->memory_bytes = config->memory_bytes;
		return;
	}
	opts->memory_bytes = (config->blocks * block + PAGE - 1) / PAGE * PAGE;
	opts->shard_bytes = opts->memory_bytes;
	if (opts->memory_bytes > ONE_SHARD_BYTES) {
		uint64_t share = opts->memory_bytes / SHARDS;

		opts->shard_bytes = (share + unit - 1) / unit * unit;
	}
}

int replay_manager_start(const struct replay_config *config, struct tool_manager *ret_manager,
			 char *text)
{
	struct okv_manager_options opts;

	replay_manager_options(config, &opts);
	return tool_manager_start("orbitkv-replay", &opts, ret_manager, text);
}
