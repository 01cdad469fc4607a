/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that speaks the protocol by hand. */
#ifndef TEST_CASES_CASE_RAW_H
#define TEST_CASES_CASE_RAW_H

#include <stdint.h>

/* Connect and send a hello with these flags; a socket, or -1. */
int case_raw_hello(const char *socket, uint32_t flags);
/* Ask for an arena; -1 where it could not be sent. */
int case_raw_ask_arena(int s);
/* Read one message and the first descriptor that came with it; -1: none. */
int case_raw_descriptor(int s);

#endif
