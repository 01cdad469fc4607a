/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The threads of plain memcpy, filling and checking. */
#ifndef ORBITKV_TOOLS_TOOL_POOL_H
#define ORBITKV_TOOLS_TOOL_POOL_H

#include <stdint.h>

typedef void tool_part_fn(void *arg, uint64_t first, uint64_t last);

uint32_t tool_pool_threads(void);
/* fn over [0, count) in parts of at most grain, on as many threads as the host device uses. */
void tool_pool_run(tool_part_fn *fn, void *arg, uint64_t count, uint64_t grain);
void tool_pool_stop(void);

#endif
