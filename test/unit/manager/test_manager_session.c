/* SPDX-License-Identifier: Apache-2.0 */
/* The Manager's sessions: hello, registration, bad peers, loss, quarantine. */
#include "fake_engine.h"
#include "support/suite.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct fixture f;
static struct fake e;

static void setup(void)
{
	struct okv_manager_options opts;
	fixture_options(&opts);
	fixture_start(&f, &opts);
	fake_open(&e, &f);
}

static void teardown(void)
{
	fake_close(&e);
	fixture_end(&f, 0);
}

/* ---- options ---- */

START_TEST(impossible_options_are_named)
{
	struct okv_manager_options opts;
	struct okv_manager *m = NULL;
	struct okv_error err;
	fixture_options(&opts);
	opts.part_bytes = OKW_PART_MAX_BYTES + 1;
	ck_assert_int_eq(okv_manager_create(&opts, &m, &err), OKV_E_INVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "part_bytes"));
	fixture_options(&opts);
	opts.max_sessions = 1025;
	ck_assert_int_eq(okv_manager_create(&opts, &m, &err), OKV_E_INVAL);
	fixture_options(&opts);
	opts.allow_uid_count = 1;
	ck_assert_int_eq(okv_manager_create(&opts, &m, &err), OKV_E_INVAL);
	ck_assert_ptr_null(m);
}
END_TEST

/* S34 */
START_TEST(a_budget_beyond_the_host_is_refused_with_numbers)
{
	struct okv_manager_options opts;
	struct okv_manager *m = NULL;
	struct okv_error err;
	fixture_options(&opts);
	opts.memory_bytes = 1ull << 46;
	ck_assert_int_eq(okv_manager_create(&opts, &m, &err), OKV_E_BUDGET);
	ck_assert_ptr_nonnull(strstr(err.text, "requested 64.0 TiB"));
}
END_TEST

/* ---- hello and registration ---- */

START_TEST(another_version_is_refused_with_a_reason)
{
	struct okw_hello hello;
	struct oki_message m;
	struct fake other;
	setup();
	fake_attach(&other, &f);
	oki_hello_init(&hello, "old", 0);
	hello.protocol_version++;
	ck_assert_int_eq(fake_call(&other, OKW_MSG_HELLO, &hello, sizeof(hello), &m),
			 OKV_E_VERSION);
	ck_assert_ptr_nonnull(memmem(m.body, m.body_bytes, "protocol version", 16));
	oki_message_fini(&m);
	expect_hangup(&other);
	fake_close(&other);
	teardown();
}
END_TEST

START_TEST(what_is_not_hello_first_is_refused)
{
	struct oki_message m;
	struct fake other;
	setup();
	fake_attach(&other, &f);
	ck_assert_int_eq(fake_call(&other, OKW_MSG_NAMESPACE, "x", 1, &m), OKV_E_PROTOCOL);
	oki_message_fini(&m);
	expect_hangup(&other);
	fake_close(&other);
	teardown();
}
END_TEST

START_TEST(a_message_that_brings_descriptors_costs_the_session)
{
	setup();
	uint32_t before = count_fds() - 4; /* its socket, bells and process */
	const struct okw_arena_ask ask = {.index = 0};
	int fd = 0;
	struct oki_message m;
	ck_assert_int_eq(
		oki_message_send(e.sock, OKW_MSG_ARENA, 1, 0, &ask, sizeof(ask), &fd, 1, NULL), 0);
	ck_assert_int_eq(oki_message_receive(e.sock, PATIENCE_MS, &m, NULL), 0);
	ck_assert_int_eq(m.head.status, OKV_E_PROTOCOL);
	oki_message_fini(&m);
	expect_hangup(&e);
	wait_fds(before);
	teardown();
}
END_TEST

/* S41 */
START_TEST(garbage_on_the_socket_costs_that_peer_only)
{
	struct fake other;
	setup();
	fake_attach(&other, &f);
	ck_assert_int_eq(send(other.sock, "garbage", 7, 0), 7);
	expect_hangup(&other);
	do_lookup(&e, 1, 1, 0);
	fake_close(&other);
	teardown();
}
END_TEST

START_TEST(registration_checks_what_it_is_given)
{
	struct okw_bind_reply bound;
	setup();
	struct okw_bind ask = {.namespace_id = e.namespace_id, .rank_slot = 1};
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_BIND, &ask, sizeof(ask), &bound, sizeof(bound)),
			 OKV_E_INVAL);
	ask = (struct okw_bind){.namespace_id = e.namespace_id + 1};
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_BIND, &ask, sizeof(ask), &bound, sizeof(bound)),
			 OKV_E_NOENT);
	bound = (struct okw_bind_reply){.binding_id = e.binding_id + 1};
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_UNBIND, &bound, sizeof(bound), NULL, 0),
			 OKV_E_NOENT);
	bound.binding_id = e.binding_id;
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_UNBIND, &bound, sizeof(bound), NULL, 0), 0);
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_UNBIND, &bound, sizeof(bound), NULL, 0),
			 OKV_E_NOENT);
	ck_assert_uint_eq(fixture_status(&f).bindings, 0);
	/* None of that cost the session; bytes that are no identity do. */
	do_lookup(&e, 1, 1, 0);
	struct okw_namespace_reply ns;
	ck_assert_int_eq(fake_simple(&e, OKW_MSG_NAMESPACE, "\1\2\3", 3, &ns, sizeof(ns)),
			 OKV_E_PROTOCOL);
	expect_hangup(&e);
	teardown();
}
END_TEST

static int ask_arena(struct fake *who, uint32_t index, struct okw_arena_reply *ret, int *ret_fd)
{
	const struct okw_arena_ask ask = {.index = index};
	struct oki_message m;
	int status = fake_call(who, OKW_MSG_ARENA, &ask, sizeof(ask), &m);
	if (!status) {
		ck_assert_uint_eq(m.head.fd_count, 1);
		ck_assert_uint_eq(m.body_bytes, sizeof(*ret));
		memcpy(ret, m.body, sizeof(*ret));
		*ret_fd = m.fds[0];
		m.fds[0] = -1;
	}
	oki_message_fini(&m);
	return status;
}

START_TEST(arenas_come_as_they_are_and_read_only_to_those_that_only_restore)
{
	struct okw_arena_reply arena;
	struct fake reader;
	struct stat st;
	int fd = -1;
	setup();
	ck_assert_uint_eq(e.welcome.arena_count, 1);
	ck_assert_int_eq(ask_arena(&e, 0, &arena, &fd), 0);
	ck_assert_uint_eq(arena.writable, 1);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_uint_eq(arena.bytes, (uint64_t)st.st_size);
	ck_assert_uint_eq(arena.inode, st.st_ino);
	close(fd);
	ck_assert_int_eq(ask_arena(&e, 1, &arena, &fd), OKV_E_NOENT);

	fake_attach(&reader, &f);
	ck_assert_int_eq(fake_hello(&reader, OKW_HELLO_RESTORE_ONLY), 0);
	fake_bind(&reader, "model", 1);
	ck_assert_int_eq(ask_arena(&reader, 0, &arena, &fd), 0);
	ck_assert_uint_eq(arena.writable, 0);
	ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	close(fd);
	send_publish(&reader, 3, 1, 1);
	wait_one(&reader, 3, OKW_DONE);
	ck_assert_int_eq(rec(&reader, 3)->status, OKV_E_PERM);
	free_record(&reader, 3);
	fake_close(&reader);
	teardown();
}
END_TEST

START_TEST(one_session_too_many_is_told_to_come_back)
{
	struct okv_manager_options opts;
	struct fake other;
	fixture_options(&opts);
	opts.max_sessions = 1;
	fixture_start(&f, &opts);
	fake_open(&e, &f);
	fake_attach(&other, &f);
	ck_assert_int_eq(fake_hello(&other, 0), OKV_E_AGAIN);
	fake_close(&other);
	fake_close(&e);
	WAIT_STATUS(&f, sessions, 0);
	fake_open(&e, &f);
	teardown();
}
END_TEST

/* ---- requests that break the protocol ---- */

static void spoil(int how, struct request *r)
{
	switch (how) {
	case 0: r->head.token++; break;
	case 1: r->head.epoch++; break;
	case 2: r->head.tag = OKI_TAG(77, OKW_SUBMITTED); break;
	case 3: r->head.bytes = 8; break;
	case 4: r->head.group_count = 2; break;
	case 5: r->head.group_count = 9; break;
	case 6: r->head.namespace_id = 99; break;
	case 7: r->head.flags = 0x80; break;
	case 8: r->head.binding_id = 99; break;
	case 9: r->capacity = 8; break;
	case 10: request_keys(r, 1, 1); break; /* 1 key announced, 2 sent */
	case 11: ((struct okw_request_group *)(void *)r->body)->count = 10; break;
	case 12: ((struct okw_request_group *)(void *)r->body)->key_bytes = 0; break;
	case 13: ((struct okw_request_group *)(void *)r->body)->count = UINT32_MAX; break;
	case 14: ((struct okw_request_group *)(void *)r->body)->parent_bytes = 8; break;
	case 15: r->head.kind = 9; break;
	default: r->capacity = UINT32_MAX; break;
	}
}
#define SPOILS 17

/* R8, S41 */
START_TEST(a_request_that_does_not_hold_costs_that_session_only)
{
	struct fake bad;
	struct request r;
	setup();
	fake_open(&bad, &f);
	request_init(&r, &bad, OKW_OP_LOOKUP);
	request_group(&r, 0, 0, 1, 8);
	request_keys(&r, 1, 1);
	spoil(_i, &r);
	submit(&bad, 3, &r);
	expect_hangup(&bad);
	/* Its record says why. */
	ck_assert_uint_eq(state_of(&bad, 3), OKW_DONE);
	ck_assert_int_eq(rec(&bad, 3)->status, OKV_E_PROTOCOL);
	do_lookup(&e, 1, 1, 0);
	WAIT_STATUS(&f, sessions, 1);
	ck_assert_uint_eq(fixture_status(&f).sessions_retained, 0);
	fake_close(&bad);
	teardown();
}
END_TEST

START_TEST(a_record_that_lies_about_draining_is_quarantined)
{
	struct fake bad;
	setup();
	fake_open(&bad, &f);
	send_publish(&bad, 3, 1, 4);
	wait_one(&bad, 3, OKW_GRANTED);
	uint64_t used = fixture_status(&f).bytes_used;
	claim(&bad, 3);
	drain(&bad, 3, 0); /* "all copied", and the part was never claimed */
	expect_hangup(&bad);
	WAIT_STATUS(&f, sessions_retained, 1);
	struct okv_manager_status st = fixture_status(&f);
	ck_assert_uint_eq(st.ops_quarantined, 1);
	ck_assert_uint_eq(st.bytes_quarantined, used);
	ck_assert_uint_eq(do_lookup(&e, 1, 4, 0).tokens, 0);
	fake_close(&bad);
	teardown();
}
END_TEST

/* R6: every offered part drained is not every part. */
START_TEST(a_publish_is_not_sealed_with_parts_still_to_come)
{
	struct okv_manager_options opts;
	uint32_t part;
	fixture_options(&opts);
	opts.part_bytes = sizeof(struct okw_plan_head) + sizeof(struct okw_plan_entry);
	fixture_start(&f, &opts);
	fake_open(&e, &f);
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	while (oki_parts_claim(rec(&e, 3), &part))
		;
	ck_assert_uint_eq(part, 1);
	drain(&e, 3, 0);
	expect_hangup(&e);
	WAIT_STATUS(&f, ops_quarantined, 1);
	ck_assert_uint_eq(fixture_status(&f).blocks, 0);
	teardown();
}
END_TEST

START_TEST(a_granted_record_freed_by_force_is_quarantined)
{
	struct fake bad;
	setup();
	fake_open(&bad, &f);
	send_publish(&bad, 3, 1, 4);
	wait_one(&bad, 3, OKW_GRANTED);
	atomic_store(&rec(&bad, 3)->tag, OKI_TAG(500, OKW_FREE));
	ring_retire(&bad, 3);
	expect_hangup(&bad);
	WAIT_STATUS(&f, ops_quarantined, 1);
	fake_close(&bad);
	teardown();
}
END_TEST

START_TEST(an_unknown_end_is_quarantined_and_the_session_goes_on)
{
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	uint64_t tag = oki_tag_load(rec(&e, 3));
	ck_assert(oki_move(rec(&e, 3), &tag, OKW_UNKNOWN, OKI_MOVER_ENGINE));
	ring_retire(&e, 3);
	WAIT_STATUS(&f, ops_quarantined, 1);
	ck_assert_uint_gt(fixture_status(&f).bytes_quarantined, 0);
	do_publish(&e, 100, 2);
	ck_assert_uint_eq(do_lookup(&e, 100, 2, 0).tokens, 32);
	fake_close(&e);
	WAIT_STATUS(&f, sessions_retained, 1);
	fixture_end(&f, 0);
}
END_TEST

/* ---- loss ---- */

START_TEST(a_hangup_takes_unclaimed_grants_back)
{
	setup();
	fake_close(&e);
	fake_open(&e, &f);
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	shutdown(e.sock, SHUT_WR);
	wait_one(&e, 3, OKW_REVOKED);
	ck_assert_int_eq(rec(&e, 3)->status, OKV_E_SESSION);
	WAIT_STATUS(&f, sessions, 0);
	ck_assert_uint_eq(fixture_status(&f).bytes_used, 0);
	ck_assert_uint_eq(fixture_status(&f).sessions_retained, 0);
	teardown();
}
END_TEST

/* R3: a hang-up proves nothing about copies. */
START_TEST(an_active_operation_outlives_the_hangup_until_it_drains)
{
	struct okw_plan_head head;
	setup();
	send_publish(&e, 3, 1, 4);
	wait_one(&e, 3, OKW_GRANTED);
	claim(&e, 3);
	free(take_part(&e, 3, &head));
	shutdown(e.sock, SHUT_WR);
	WAIT_STATUS(&f, sessions_retained, 1);
	ck_assert_uint_eq(fixture_status(&f).ops_active, 1);
	ck_assert_uint_gt(fixture_status(&f).bytes_used, 0);
	/* No bell: the retained table is re-read. */
	uint64_t tag = oki_tag_load(rec(&e, 3));
	atomic_store(&rec(&e, 3)->drained, 1);
	rec(&e, 3)->engine_status = 0;
	ck_assert(oki_move(rec(&e, 3), &tag, OKW_DRAINED, OKI_MOVER_ENGINE));
	wait_one(&e, 3, OKW_REAPED);
	WAIT_STATUS(&f, sessions_retained, 0);
	ck_assert_uint_eq(fixture_status(&f).blocks, 4);
	teardown();
}
END_TEST

START_TEST(leases_end_with_the_last_session_that_knows_them)
{
	setup();
	do_publish(&e, 1, 2);
	do_lookup(&e, 1, 2, 0);
	ck_assert_uint_eq(fixture_status(&f).leases, 1);
	fake_close(&e);
	WAIT_STATUS(&f, leases, 0);
	teardown();
}
END_TEST

/* ---- many at once ---- */

struct churn {
	pthread_t thread;
	uint32_t number;
};

static void *churn_main(void *arg)
{
	struct churn *c = arg;
	for (uint32_t round = 0; round < 20; round++) {
		struct fake one;
		uint64_t key = ((uint64_t)c->number << 32) + round * 16 + 1;
		fake_open(&one, &f);
		do_publish(&one, key, 3);
		struct okw_lookup_reply hit = do_lookup(&one, key, 3, 0);
		ck_assert_uint_eq(hit.tokens, 48);
		send_restore(&one, 7, &hit, 3, 0);
		if (round % 2)
			run_to_end(&one, 7, 0);
		fake_close(&one); /* half of them with a request or a grant left behind */
	}
	return NULL;
}

/* S29 */
START_TEST(sessions_come_and_go_side_by_side)
{
	struct churn churns[4];
	struct okv_manager_options opts;
	fixture_options(&opts);
	opts.dispatchers = 2;
	opts.spin_us = 20;
	fixture_start(&f, &opts);
	for (uint32_t k = 0; k < 4; k++) {
		churns[k].number = k;
		ck_assert_int_eq(pthread_create(&churns[k].thread, NULL, churn_main, &churns[k]),
				 0);
	}
	for (uint32_t k = 0; k < 4; k++)
		pthread_join(churns[k].thread, NULL);
	WAIT_STATUS(&f, sessions, 0);
	struct okv_manager_status st = fixture_status(&f);
	ck_assert_uint_eq(st.sessions_retained, 0);
	ck_assert_uint_eq(st.leases, 0);
	ck_assert_uint_eq(st.bytes_pinned, 0);
	ck_assert_uint_eq(st.blocks, 4 * 20 * 3);
	fixture_end(&f, 0);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("manager sessions");
	TCase *t = tcase_create("sessions");
	tcase_set_timeout(t, 120);
	ADD(t, impossible_options_are_named);
	ADD(t, a_budget_beyond_the_host_is_refused_with_numbers);
	ADD(t, another_version_is_refused_with_a_reason);
	ADD(t, what_is_not_hello_first_is_refused);
	ADD(t, a_message_that_brings_descriptors_costs_the_session);
	ADD(t, garbage_on_the_socket_costs_that_peer_only);
	ADD(t, registration_checks_what_it_is_given);
	ADD(t, arenas_come_as_they_are_and_read_only_to_those_that_only_restore);
	ADD(t, one_session_too_many_is_told_to_come_back);
	tcase_add_loop_test(t, a_request_that_does_not_hold_costs_that_session_only, 0, SPOILS);
	ADD(t, a_record_that_lies_about_draining_is_quarantined);
	ADD(t, a_publish_is_not_sealed_with_parts_still_to_come);
	ADD(t, a_granted_record_freed_by_force_is_quarantined);
	ADD(t, an_unknown_end_is_quarantined_and_the_session_goes_on);
	ADD(t, a_hangup_takes_unclaimed_grants_back);
	ADD(t, an_active_operation_outlives_the_hangup_until_it_drains);
	ADD(t, leases_end_with_the_last_session_that_knows_them);
	ADD(t, sessions_come_and_go_side_by_side);
	suite_add_tcase(s, t);
	return s;
}

int main(void)
{
	return kv_suite_run(suite());
}
