/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A client process that looks the same keys up again and again. */
#ifndef ORBITKV_TOOLS_BENCH_LOOKUP_H
#define ORBITKV_TOOLS_BENCH_LOOKUP_H

#include <stdint.h>

/* keys of them, for ms after a byte arrives on standard input; the result goes to the output. */
int bench_client_main(const char *socket, uint32_t keys, uint32_t ms);

#endif
