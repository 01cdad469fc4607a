/* SPDX-License-Identifier: Apache-2.0 */
/* [M] A tool again in another process: a private Manager, or whatever else it is asked to be. */
#ifndef ORBITKV_TOOLS_TOOL_CHILD_H
#define ORBITKV_TOOLS_TOOL_CHILD_H

#include <stdint.h>
#include <sys/types.h>
#include <orbitkv/orbitkv.h>
#include "tool_base.h"

/*
 * The main() of a tool hands over to a child's as soon as argv[1] is TOOL_CHILD_MANAGER, and leaves
 * names that start so to children of its own.
 */
#define TOOL_CHILD '@'
#define TOOL_CHILD_MANAGER "@manager"

struct tool_manager {
	pid_t pid;
	uint64_t create_ns; /* what okv_manager_create() took */
	char directory[64];
	char socket[96];
};

/*
 * Returns when it listens. Of the options it takes sizes, flags and percentages. The program's name
 * is its argv[0]. TOOL_OK, or TOOL_FAILED and why in text.
 */
int tool_manager_start(const char *program, const struct okv_manager_options *opts,
		       struct tool_manager *ret_manager, char *text);
/* Stop it and wait. TOOL_OK when it drained and exited cleanly. */
int tool_manager_stop(struct tool_manager *manager);
/* The exit status. */
int tool_manager_main(int argc, char **argv);

/* This program again, with argv[0] as its name; it talks over its standard input and output. */
pid_t tool_spawn(const char *const argv[], int *ret_to, int *ret_from, char *text);
/* First thing in such a child: its parent stops it, and it ends when that dies. */
void tool_child_signals(void);

#endif
