/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Page numbers of a caller: each below the page count, none twice. */
#include <check.h>
#include <string.h>

#include "plan/page_check.h"
#include "support/suite.h"

START_TEST(pages_are_checked)
{
	struct okv_error err;
	uint32_t pages[] = {0, 64, 127, 63, 1};
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 128, &err), 0);
	ck_assert_int_eq(oki_pages_check(3, NULL, 0, 128, &err), 0);
	ck_assert_int_eq(oki_pages_check(3, NULL, 1, 128, &err), OKV_E_INVAL);
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 127, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "group 3: pages[2] is 127, not below 127"));
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 0, &err), OKV_E_INVAL);
	pages[4] = 64;
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 128, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "group 3: pages[4] is 64, which is named twice"));
	ck_assert_int_eq(oki_pages_check(3, pages, 4, 128, &err), 0);
	/* Of several bad ones the first is named. */
	pages[1] = 127;
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 127, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "pages[1] is 127, not below 127"));
	ck_assert_int_eq(oki_pages_check(3, pages, 5, 128, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "pages[2] is 127, which is named twice"));
	pages[0] = UINT32_MAX;
	ck_assert_int_eq(oki_pages_check(3, pages, 1, 128, NULL), OKV_E_INVAL);
}
END_TEST

/* Few pages of many are kept in a table, others in bits: the same answers, for pages that share
 * places too. */
START_TEST(pages_are_checked_however_many_there_are)
{
	static const uint32_t totals[] = {1u << 10, 1u << 16, 1u << 22, UINT32_MAX};
	static uint32_t pages[5000];
	struct okv_error err;
	uint32_t total = totals[_i];
	for (uint32_t count = 1; count <= 5000 && count < total; count = count * 3 + 1) {
		uint32_t step = total / count;
		for (uint32_t i = 0; i < count; i++)
			pages[i] = i * step;
		ck_assert_int_eq(oki_pages_check(3, pages, count, total, &err), 0);
		for (uint32_t i = 1; i < count; i += count / 7 + 1) {
			uint32_t held = pages[i];
			pages[i] = pages[i / 2];
			ck_assert_int_eq(oki_pages_check(3, pages, count, total, &err),
					 OKV_E_INVAL);
			ck_assert_ptr_nonnull(strstr(err.text, "is named twice"));
			pages[i] = total;
			ck_assert_int_eq(oki_pages_check(3, pages, count, total, &err),
					 OKV_E_INVAL);
			ck_assert_ptr_nonnull(strstr(err.text, "not below"));
			pages[i] = held;
		}
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("page_check");
	TCase *tc = tcase_create("page_check");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, pages_are_checked);
	tcase_add_loop_test(tc, pages_are_checked_however_many_there_are, 0, 4);
	suite_add_tcase(suite, tc);
	return kv_suite_run(suite);
}
