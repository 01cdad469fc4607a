/* What orbitkv-manager makes of its surroundings: signals and a log unread. */
#include <check.h>
#include <signal.h>
#include <unistd.h>

#include "process/child.h"

static const char *const small[] = {"--memory", "64M", "--numa", "off", NULL};

START_TEST(signals_that_stop_nothing_get_a_line_or_none)
{
	struct kv_manager m;
	kv_manager_start(&m, small);
	ck_assert_int_eq(kill(m.pid, SIGPIPE), 0);
	ck_assert_int_eq(kill(m.pid, SIGHUP), 0);
	ck_assert(kv_manager_wait_line(&m, "SIGHUP: there is nothing to reload"));
	ck_assert_int_eq(kill(m.pid, SIGUSR1), 0);
	ck_assert(kv_manager_wait_line(&m, "status: bytes_used 0 of 67108864,"));
	ck_assert_int_eq(kill(m.pid, SIGUSR2), 0);
	ck_assert(kv_manager_wait_line(&m, "status: bytes_used 0 of 67108864,"));
	ck_assert_uint_eq(kv_manager_status(&m).arenas, 1);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

START_TEST(a_log_that_nobody_reads_ends_nothing)
{
	struct kv_manager m;
	kv_manager_start(&m, small);
	close(m.out);
	m.out = -1;
	/* Each session is a line or two. */
	for (int i = 0; i < 3; i++)
		okv_engine_close(kv_engine_connect(m.socket_path, 0));
	ck_assert_uint_eq(kv_manager_status(&m).arenas, 1);
	ck_assert_int_eq(kv_manager_kill(&m, SIGTERM), 0);
	kv_manager_clean(&m);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon");
	TCase *t = tcase_create("daemon");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, signals_that_stop_nothing_get_a_line_or_none);
	tcase_add_test(t, a_log_that_nobody_reads_ends_nothing);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
