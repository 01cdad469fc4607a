/* SPDX-License-Identifier: Apache-2.0 */
/* [M] What orbitkv-manager does once its options are read. Each returns the exit code. */
#ifndef ORBITKV_TOOLS_MANAGER_VERBS_H
#define ORBITKV_TOOLS_MANAGER_VERBS_H

#include <stdbool.h>
#include <orbitkv/manager.h>

/* Hold the cache until SIGTERM or SIGINT. socket NULL: the default path. Sets options' log. */
int verb_serve(const char *socket, struct okv_manager_options *options);
/* Print the counters of the Manager at socket; NULL: the default path. */
int verb_status(const char *socket, bool as_json);

#endif
