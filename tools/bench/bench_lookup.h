/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A client process that looks the same keys up again and again. */
#ifndef ORBITKV_TOOLS_BENCH_LOOKUP_H
#define ORBITKV_TOOLS_BENCH_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>
#include "bench.h"

#define BENCH_MAX_CLIENTS 16

struct bench_lookups {
	int32_t status;
	uint32_t count;
	uint64_t elapsed_ns;
	double p50_us;
	double p99_us;
	char text[TOOL_TEXT];
};

struct bench_clients {
	uint32_t count; /* processes, up to BENCH_MAX_CLIENTS */
	uint32_t keys;	/* of each lookup: the first ids of a fresh rig, up to 1,024 */
	uint32_t ms;
	bool lease; /* pin and release, instead of peek */
};

/* All clients at once. *ret_all: their sum, the mean of their medians, the largest p99. */
int bench_clients_run(const char *socket, const struct bench_clients *what,
		      struct bench_lookups *ret_all, char *text);
/* The client: for ms after a byte arrives on standard input; the result goes to the output. */
int bench_client_main(const char *socket, uint32_t keys, uint32_t ms, bool lease);

#endif
