/* SPDX-License-Identifier: Apache-2.0 */
/* Suites with tests that may be impossible on this machine: each is left out by name. */
#ifndef TEST_SUPPORT_SUITE_H
#define TEST_SUPPORT_SUITE_H

#include <check.h>

/* Say that a test that cannot run here is not in the suite, and why: a line "skipped: NAME: WHY",
 * which test/run.sh repeats in its summary. */
void kv_left_out(const TTest *test, const char *why);
/* Run and free a suite: what main returns. 0: what ran has passed, though something may have been
 * left out; 1: something failed; 77, a skip: nothing could run. */
int kv_suite_run(Suite *suite);
/* The same in this process alone: one that has used CUDA cannot fork and go on using it. */
int kv_suite_run_here(Suite *suite);

#endif
