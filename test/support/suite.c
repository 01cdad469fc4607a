/* SPDX-License-Identifier: Apache-2.0 */
/* Suites with tests that may be impossible on this machine: each is left out by name. */
#include "support/suite.h"

#include <stdbool.h>
#include <stdio.h>

static bool has_left_out;

void kv_left_out(const TTest *test, const char *why)
{
	has_left_out = true;
	printf("skipped: %s: %s\n", test->name, why);
	/* Forked tests inherit what is buffered, and would say it again. */
	fflush(stdout);
}

static int run(SRunner *r)
{
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r), ran = srunner_ntests_run(r);
	srunner_free(r);
	if (failed)
		return 1;
	return has_left_out && ran == 0 ? 77 : 0;
}

int kv_suite_run(Suite *suite)
{
	return run(srunner_create(suite));
}

int kv_suite_run_here(Suite *suite)
{
	SRunner *r = srunner_create(suite);
	srunner_set_fork_status(r, CK_NOFORK);
	return run(r);
}
