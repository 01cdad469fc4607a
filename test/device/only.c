/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One test of a program alone, where KV_ONLY names it: tools that make everything slow run many of
 * them side by side. Linked with --wrap, since Check selects whole cases only.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

/* NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker gives them. */
void __real__tcase_add_test(TCase *tc, const TTest *test, int signal, int status, int start,
			    int end);
void __wrap__tcase_add_test(TCase *tc, const TTest *test, int signal, int status, int start,
			    int end);

void __wrap__tcase_add_test(TCase *tc, const TTest *test, int signal, int status, int start,
			    int end)
{
	const char *only = getenv("KV_ONLY");
	if (!only || strcmp(only, test->name) == 0)
		__real__tcase_add_test(tc, test, signal, status, start, end);
}
/* NOLINTEND(bugprone-reserved-identifier) */
