/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The shared memory of a session takes memory as far as it is used. */
#include "wire/channel.h"
#include "support/suite.h"

#include <check.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRAIN 16384u

static uint64_t file_bytes(int fd)
{
	struct stat st;
	ck_assert_int_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static uint64_t channel_bytes(const struct oki_channel *c)
{
	return file_bytes(c->control_fd) + file_bytes(c->request_fd);
}

START_TEST(a_session_that_does_nothing_takes_a_page)
{
	struct oki_channel c;
	struct okv_error err;
	ck_assert_int_eq(oki_channel_create(&c, 1, 2, 3, &err), 0);
	ck_assert_uint_le(channel_bytes(&c), (uint64_t)sysconf(_SC_PAGESIZE));
	ck_assert_uint_eq(c.control->records_used, 0);
	oki_channel_fini(&c);
}
END_TEST

START_TEST(each_part_grows_with_its_use_and_never_twice)
{
	static const uint32_t sizes[OKI_CHANNEL_PARTS] = {OKW_RECORDS * sizeof(struct okw_record),
							  OKW_REQUEST_AREA_BYTES,
							  OKW_PLAN_BANK_BYTES};
	for (uint32_t part = 0; part < OKI_CHANNEL_PARTS; part++) {
		struct oki_channel c;
		struct okv_error err;
		ck_assert_int_eq(oki_channel_create(&c, 1, 2, 3, &err), 0);
		uint64_t idle = channel_bytes(&c);
		ck_assert(oki_channel_use(&c, part, 100));
		uint64_t little = channel_bytes(&c);
		ck_assert_uint_gt(little, idle);
		ck_assert_uint_le(little, idle + GRAIN + 4096);
		ck_assert(oki_channel_use(&c, part, GRAIN));
		ck_assert_uint_eq(channel_bytes(&c), little);
		ck_assert(oki_channel_use(&c, part, GRAIN + 1));
		ck_assert_uint_gt(channel_bytes(&c), little);
		ck_assert(oki_channel_use(&c, part, sizes[part]));
		uint64_t all = channel_bytes(&c);
		ck_assert_uint_ge(all, sizes[part]);
		ck_assert_uint_le(all, idle + sizes[part] + 4096);
		ck_assert(oki_channel_use(&c, part, sizes[part]));
		ck_assert_uint_eq(channel_bytes(&c), all);
		oki_channel_fini(&c);
	}
}
END_TEST

START_TEST(records_below_the_hint_cover_those_in_use)
{
	struct oki_channel c;
	struct okv_error err;
	ck_assert_int_eq(oki_channel_create(&c, 1, 2, 3, &err), 0);
	for (uint32_t i = 0; i < OKW_RECORDS; i++) {
		ck_assert(oki_channel_use(&c, OKI_CHANNEL_RECORDS,
					  (i + 1) * (uint32_t)sizeof(struct okw_record)));
		ck_assert_uint_gt(c.control->records_used, i);
		ck_assert_uint_le(c.control->records_used, i + 1 + GRAIN / 192 + 1);
		ck_assert_uint_le(c.control->records_used, OKW_RECORDS);
	}
	oki_channel_fini(&c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("channel");
	TCase *t = tcase_create("channel");
	tcase_add_test(t, a_session_that_does_nothing_takes_a_page);
	tcase_add_test(t, each_part_grows_with_its_use_and_never_twice);
	tcase_add_test(t, records_below_the_hint_cover_those_in_use);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
