/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What the tools have in common: statuses, texts, clocks, pipes, and being told to stop. */
#ifndef ORBITKV_TOOLS_TOOL_BASE_H
#define ORBITKV_TOOLS_TOOL_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <orbitkv/orbitkv.h>

#define TOOL_TEXT 240 /* bytes of a reason, its end included */

/* Exit statuses, and what calls return that say why in a text unless it is 0. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2, TOOL_SKIPPED = 77 };

/* "what: OKV_E_… (stage) words", bounded. */
void tool_explain(char *text, const char *what, int status, const struct okv_error *err);

uint64_t tool_now_ns(void);
void tool_pause_1ms(void);
/* Sorts; permille 500 is the median. 0 of nothing. */
double tool_percentile_us(uint64_t *ns, uint32_t count, unsigned permille);

/*
 * From here on the first SIGINT or SIGTERM only ends what waits, and is told by tool_stopped(); the
 * second one ends the program.
 */
void tool_catch_stop(void);
/* The number of that signal, or 0. */
int tool_stopped(void);

/* Whole-object pipe transfers; false on end of file, error, or a signal to stop. */
bool tool_send(int fd, const void *bytes, size_t size);
bool tool_receive(int fd, void *bytes, size_t size);

#endif
