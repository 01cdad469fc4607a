/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The value of an option, or what was expected of it. */
#ifndef ORBITKV_TOOLS_TOOL_OPTION_H
#define ORBITKV_TOOLS_TOOL_OPTION_H

#include <stdbool.h>
#include <stdint.h>

/* An option as it was given. */
struct tool_option {
	const char *program;
	const char *name;
	const char *text;
};

/*
 * Each returns 0, or -1 after it printed "PROGRAM: --NAME 'TEXT': expected …; see --help" to the
 * error output.
 */

/* 1 byte to most, as tool_parse_size() reads them. */
int tool_take_size(const struct tool_option *given, uint64_t most, uint64_t *ret_bytes);
/* A whole number from 1 to most. */
int tool_take_count(const struct tool_option *given, uint32_t most, uint32_t *ret_count);
/* An enum okv_device_kind. */
int tool_take_device(const struct tool_option *given, uint32_t *ret_device);
/* Always -1. */
int tool_expected(const struct tool_option *given, const char *what);

/*
 * For getopt_long() with opterr 0, a ':' first in the list of letters and all `val`s above 255: say
 * why it returned '?' or ':', in the words of the above. True if it did.
 */
bool tool_bad_option(const char *program, int id, char **argv);
/* "PROGRAM 0.2.0", to the output. */
void tool_print_version(const char *program);

#endif
