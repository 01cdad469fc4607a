/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A client process that asks much of the Manager while others are measured. */
#ifndef ORBITKV_TOOLS_BENCH_NEIGHBOUR_H
#define ORBITKV_TOOLS_BENCH_NEIGHBOUR_H

#include <stdint.h>
#include "bench.h"

#define BENCH_NEIGHBOUR_REFERENCES 1000000u /* what the one that dies tries to hold */

/* One layer of 64 bytes: as good as no payload. */
extern const struct tool_model bench_small_model;

/* What it has to say once it is ready; it begins when a byte arrives on standard input. */
struct bench_neighbour_ready {
	int32_t status; /* TOOL_* */
	uint32_t reserved;
	uint64_t references; /* to blocks, by leases that it holds */
	char text[TOOL_TEXT];
};

/*
 * role "busy": publishes OKV_MAX_BLOCKS new blocks and pins them, over and over, under ids from
 * first_key on, until standard input ends. role "holds": takes leases of as many blocks, up to
 * BENCH_NEIGHBOUR_REFERENCES references or what the Manager grants, and waits to be killed.
 */
int bench_neighbour_main(const char *socket, const char *role, uint64_t first_key);

#endif
