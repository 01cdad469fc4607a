/* Suites whose tests may be impossible on this machine: left out by name, never counted as passed.
 */
#ifndef TEST_SUPPORT_SUITE_H
#define TEST_SUPPORT_SUITE_H

#include <check.h>

/* Say that a test that cannot run here is not in the suite, and why. */
void kv_left_out(const TTest *test, const char *why);
/* Run and free a suite: what main returns. 1: something failed; 77, a skip: nothing failed, but
 * something was left out. */
int kv_suite_run(Suite *suite);
/* The same in this process alone: one that has used CUDA cannot fork and go on using it. */
int kv_suite_run_here(Suite *suite);

#endif
