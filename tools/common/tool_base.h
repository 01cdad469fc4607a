/* [E] What every call of the tools has in common: statuses and texts. */
#ifndef ORBITKV_TOOLS_TOOL_BASE_H
#define ORBITKV_TOOLS_TOOL_BASE_H

#define TOOL_TEXT 240 /* bytes of a reason, its end included */

/* Exit statuses, and what calls return that say why in a text unless it is 0. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2, TOOL_SKIPPED = 77 };

#endif
