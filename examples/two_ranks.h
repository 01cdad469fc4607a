/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What the scheduler and the ranks of two_ranks share. */
#ifndef TWO_RANKS_H
#define TWO_RANKS_H

#include <orbitkv/orbitkv.h>

#define RANKS 2u
#define BLOCKS 8u
#define BLOCK_TOKENS 16u
#define KEY_BYTES 16u

enum verb { PUBLISH = 1, RESTORE = 2 };

/* What the scheduler sends to a rank and gets back, over pipes. */
struct command {
	uint32_t verb;
	uint32_t first;
	uint32_t count;
	struct okv_lease_id lease;
};

struct reply {
	int32_t status;
	uint32_t blocks;
	uint64_t wrong_bytes;
	char text[96];
};

/* One process's connection. */
struct side {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_error err;
};

/** Keys of all blocks of the one sequence that everybody knows, BLOCKS * KEY_BYTES. */
void make_keys(uint8_t *ret_keys);

/** Open engine and namespace. Close it in every case. */
int open_side(struct side *side, const char *socket, const char *salt);
void close_side(struct side *side);

/** A rank process: serve commands from stdin until its end. Returns the exit code. */
int rank_main(uint32_t slot, const char *socket, const char *salt);

#endif
