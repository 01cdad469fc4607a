/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager that does not keep to the protocol: the engine gets a typed error and lives. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process/child.h"
#include "process/fake_manager.h"
#include "process/raw_session.h"

static const struct kv_shape shape = {.pages = 64};

/* ---- the welcome ---- */

static int memfd(uint64_t bytes, bool seal)
{
	int fd = oki_shm_memfd("odd", 0);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seal)
		ck_assert_int_eq(oki_shm_seal(fd), 0);
	return fd;
}

static void swap(int *a, int *b)
{
	int c = *a;
	*a = *b;
	*b = c;
}

enum {
	W_SILENT_HANGUP,
	W_REQUEST_SHORT,
	W_REQUEST_LONG,
	W_REQUEST_EMPTY,
	W_REQUEST_UNSEALED,
	W_CONTROL_UNSEALED,
	W_CONTROL_SHORT,
	W_CONTROL_EVENTFD,
	W_CONTROL_READ_ONLY,
	W_CONTROL_ZEROS,
	W_FILES_SWAPPED,
	W_BELLS_FIRST,
	W_NO_FDS,
	W_THREE_FDS,
	W_FIVE_FDS,
	W_FEWER_THAN_SAID,
	W_MORE_THAN_SAID,
	W_BODY_SHORT,
	W_BODY_NONE,
	W_CONTROL_BYTES,
	W_REQUEST_BYTES,
	W_EPOCH,
	W_TOKEN,
	W_SLOT,
	W_KIND,
	W_STATUS_POSITIVE,
	W_STATUS_UNKNOWN,
	W_NOISE,
	W_HUGE,
	W_BELL_IS_A_FILE,
	W_BELL_IS_A_PIPE,
	WELCOMES,
};

/* Send this instead of fds[at]. */
static void replaced(struct fake *f, uint32_t serial, const struct okw_welcome *body, int fds[8],
		     int at, int fd)
{
	fds[at] = fd;
	fake_say(f, OKW_MSG_WELCOME, serial, body, sizeof(*body), fds, 4);
	close(fd);
}

static void by_hand(struct fake *f, const struct okw_msg *head, const struct okw_welcome *body,
		    const int *fds, uint32_t fd_count)
{
	uint8_t bytes[sizeof(*head) + sizeof(*body)];
	memcpy(bytes, head, sizeof(*head));
	memcpy(bytes + sizeof(*head), body, sizeof(*body));
	raw_send(f->sock, bytes, sizeof(bytes), fds, fd_count);
}

static void odd_files(struct fake *f, uint32_t serial, struct okw_welcome *body, int fds[8])
{
	int pipes[2];
	char path[64];
	switch (f->which) {
	case W_REQUEST_SHORT:
		replaced(f, serial, body, fds, 0, memfd(OKW_REQUEST_AREA_BYTES - 4096, true));
		return;
	case W_REQUEST_LONG:
		replaced(f, serial, body, fds, 0, memfd(OKW_REQUEST_AREA_BYTES + 4096, true));
		return;
	case W_REQUEST_EMPTY: replaced(f, serial, body, fds, 0, memfd(0, true)); return;
	case W_REQUEST_UNSEALED:
		replaced(f, serial, body, fds, 0, memfd(OKW_REQUEST_AREA_BYTES, false));
		return;
	case W_CONTROL_UNSEALED:
		replaced(f, serial, body, fds, 1, memfd(OKW_CONTROL_BYTES, false));
		return;
	case W_CONTROL_SHORT: replaced(f, serial, body, fds, 1, memfd(4096, true)); return;
	case W_CONTROL_ZEROS:
		replaced(f, serial, body, fds, 1, memfd(OKW_CONTROL_BYTES, true));
		return;
	case W_CONTROL_EVENTFD: replaced(f, serial, body, fds, 1, eventfd(0, EFD_CLOEXEC)); return;
	case W_CONTROL_READ_ONLY:
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[1]);
		replaced(f, serial, body, fds, 1, open(path, O_RDONLY | O_CLOEXEC));
		return;
	case W_BELL_IS_A_FILE: replaced(f, serial, body, fds, 2, memfd(4096, true)); return;
	default:
		ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
		replaced(f, serial, body, fds, 3, pipes[1]);
		close(pipes[0]);
	}
}

static void odd_welcome(struct fake *f, uint32_t serial, struct okw_welcome *body, int fds[8])
{
	static uint8_t noise[OKW_MSG_MAX_BYTES + 1000];
	uint32_t n = 4, bytes = sizeof(*body), kind = OKW_MSG_WELCOME;
	struct okw_msg head = {.magic = OKW_MAGIC,
			       .kind = kind,
			       .bytes = sizeof(head) + sizeof(*body),
			       .fd_count = 4,
			       .serial = serial};
	switch (f->which) {
	case W_SILENT_HANGUP: shutdown(f->sock, SHUT_RDWR); return;
	case W_FILES_SWAPPED: swap(&fds[0], &fds[1]); break;
	case W_BELLS_FIRST:
		swap(&fds[0], &fds[2]);
		swap(&fds[1], &fds[3]);
		break;
	case W_NO_FDS: n = 0; break;
	case W_THREE_FDS: n = 3; break;
	case W_FIVE_FDS:
		fds[4] = fds[2];
		head.fd_count = 5;
		by_hand(f, &head, body, fds, 5);
		return;
	case W_FEWER_THAN_SAID: by_hand(f, &head, body, fds, 2); return;
	case W_MORE_THAN_SAID:
		fds[4] = fds[5] = fds[6] = fds[2];
		by_hand(f, &head, body, fds, 7);
		return;
	case W_BODY_SHORT: bytes -= 8; break;
	case W_BODY_NONE: bytes = 0; break;
	case W_CONTROL_BYTES: body->control_bytes += 4096; break;
	case W_REQUEST_BYTES: body->request_area_bytes = 0; break;
	case W_EPOCH: body->epoch++; break;
	case W_TOKEN: body->token++; break;
	case W_SLOT: body->slot++; break;
	case W_KIND: kind = OKW_MSG_ARENA; break;
	case W_STATUS_POSITIVE:
		head.status = 5;
		by_hand(f, &head, body, fds, 4);
		return;
	case W_STATUS_UNKNOWN:
		head.status = -12345;
		by_hand(f, &head, body, fds, 4);
		return;
	case W_NOISE: raw_send(f->sock, "not a message at all", 20, fds, 4); return;
	case W_HUGE:
		head.bytes = sizeof(noise);
		memcpy(noise, &head, sizeof(head));
		raw_send(f->sock, noise, sizeof(noise), fds, 4);
		return;
	default: odd_files(f, serial, body, fds); return;
	}
	fake_say(f, kind, serial, body, bytes, fds, n);
}

START_TEST(r8_welcome_that_does_not_hold)
{
	uint32_t fds = kv_fd_count();
	struct fake f = {.welcome = odd_welcome, .which = _i};
	struct okv_engine *e = NULL;
	struct okv_error err = {.status = 0};
	fake_start(&f);
	int rc = fake_try_open(&f, &e, &err);
	ck_assert_msg(is_known_failure(rc), "welcome %d: %d %s", _i, rc, okv_status_name(rc));
	ck_assert(e == NULL);
	ck_assert_int_eq(err.status, rc);
	ck_assert(memchr(err.text, 0, sizeof(err.text)) != NULL);
	fake_end(&f);
	ck_assert_uint_eq(kv_fd_count(), fds);
	ck_assert_uint_eq(process_maps(getpid(), "orbitkv-"), 0);
}
END_TEST

static void no_welcome(struct fake *f, uint32_t serial, struct okw_welcome *body, int fds[8])
{
	(void)f;
	(void)serial;
	(void)body;
	(void)fds;
}

START_TEST(manager_that_never_answers_is_a_timeout)
{
	struct fake f = {.welcome = no_welcome};
	struct okv_engine *e = NULL;
	struct okv_engine_options o;
	fake_start(&f);
	okv_engine_options_init(&o);
	o.socket_path = f.path;
	o.connect_timeout_ms = 50;
	ck_assert_int_eq(okv_engine_open(&o, &e, NULL), OKV_E_TIMEOUT);
	fake_end(&f);
}
END_TEST

/* ---- registration ---- */

enum {
	R_NAMESPACE_SHORT,
	R_NAMESPACE_LONG,
	R_NAMESPACE_KIND,
	R_NAMESPACE_FD,
	R_NAMESPACE_STATUS,
	R_NAMESPACE_HANGUP,
	R_ARENA_OTHER,
	R_ARENA_SHORT_FILE,
	R_ARENA_UNSEALED,
	R_ARENA_INODE,
	R_ARENA_INODE_ZERO,
	R_FAKE_ARENA_BYTES_ZERO,
	R_FAKE_ARENA_BYTES_MORE,
	R_ARENA_NO_FD,
	R_ARENA_TWO_FDS,
	R_ARENA_EVENTFD,
	R_ARENA_BODY,
	R_ARENA_HANGUP,
	R_BIND_SHORT,
	R_BIND_STATUS,
	REGISTRATIONS,
};

static void odd_arena(struct fake *f, const struct oki_message *ask)
{
	struct okw_arena_reply arena = {
		.bytes = FAKE_ARENA_BYTES, .inode = f->inode, .node = -1, .writable = 1};
	int fds[2] = {f->arena, f->arena}, fd = -1;
	uint32_t n = 1, bytes = sizeof(arena);
	struct stat st;
	switch (f->which) {
	case R_ARENA_OTHER: arena.arena = 7; break;
	case R_ARENA_SHORT_FILE: fd = memfd(FAKE_ARENA_BYTES / 2, true); break;
	case R_ARENA_UNSEALED: fd = memfd(FAKE_ARENA_BYTES, false); break;
	case R_ARENA_EVENTFD: fd = eventfd(0, EFD_CLOEXEC); break;
	case R_ARENA_INODE: arena.inode++; break;
	case R_ARENA_INODE_ZERO: arena.inode = 0; break;
	case R_FAKE_ARENA_BYTES_ZERO: arena.bytes = 0; break;
	case R_FAKE_ARENA_BYTES_MORE: arena.bytes *= 2; break;
	case R_ARENA_NO_FD: n = 0; break;
	case R_ARENA_TWO_FDS: n = 2; break;
	case R_ARENA_BODY: bytes -= 4; break;
	case R_ARENA_HANGUP: shutdown(f->sock, SHUT_RDWR); return;
	default: break;
	}
	if (fd >= 0) {
		ck_assert_int_eq(fstat(fd, &st), 0);
		arena.inode = st.st_ino;
		fds[0] = fd;
	}
	fake_say(f, OKW_MSG_ARENA, ask->head.serial, &arena, bytes, fds, n);
	if (fd >= 0)
		close(fd);
}

static void odd_reply(struct fake *f, const struct oki_message *ask)
{
	const uint32_t body[4] = {3, 0, 0, 0};
	uint32_t kind = ask->head.kind, serial = ask->head.serial;
	bool names = kind == OKW_MSG_NAMESPACE;
	if (kind == OKW_MSG_ARENA)
		odd_arena(f, ask);
	else if (f->which == R_NAMESPACE_SHORT && names)
		fake_say(f, kind, serial, body, 4, NULL, 0);
	else if (f->which == R_NAMESPACE_LONG && names)
		fake_say(f, kind, serial, body, 16, NULL, 0);
	else if (f->which == R_NAMESPACE_KIND && names)
		fake_say(f, OKW_MSG_BIND, serial, body, 8, NULL, 0);
	else if (f->which == R_NAMESPACE_FD && names)
		fake_say(f, kind, serial, body, 8, &f->arena, 1);
	else if (f->which == R_NAMESPACE_STATUS && names)
		oki_message_send(f->sock, kind, serial, 1, "%s%n", 4, NULL, 0, NULL);
	else if (f->which == R_NAMESPACE_HANGUP && names)
		shutdown(f->sock, SHUT_RDWR);
	else if (f->which == R_BIND_SHORT && kind == OKW_MSG_BIND)
		fake_say(f, kind, serial, body, 0, NULL, 0);
	else if (f->which == R_BIND_STATUS && kind == OKW_MSG_BIND)
		oki_message_send(f->sock, kind, serial, -777, "?", 1, NULL, 0, NULL);
	else
		fake_answer(f, ask);
}

static int open_namespace(struct okv_engine *e, struct okv_namespace **ret_ns,
			  struct okv_error *err)
{
	const struct okv_layer_schema layer = {.segment_count = 1, .segment_bytes = {64}};
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = 1,
					       .layout_tag = "x",
					       .layers = &layer};
	struct okv_namespace_options o;
	okv_namespace_options_init(&o);
	o.model = "test";
	o.group_count = 1;
	o.groups = &group;
	return okv_namespace_open(e, &o, ret_ns, err);
}

START_TEST(r8_registration_replies_that_do_not_hold)
{
	uint32_t fds = kv_fd_count();
	struct fake f = {.reply = odd_reply, .which = _i};
	struct okv_engine *e = NULL;
	struct okv_namespace *ns = NULL;
	struct okv_error err = {.status = 0};
	struct kv_rank rank;
	fake_start(&f);
	ck_assert_int_eq(fake_try_open(&f, &e, &err), 0);
	if (_i <= R_NAMESPACE_HANGUP) {
		int rc = open_namespace(e, &ns, &err);
		ck_assert_msg(is_known_failure(rc), "reply %d: %d", _i, rc);
		ck_assert(ns == NULL);
	} else {
		ns = kv_namespace(e, &shape);
		kv_rank_init(&rank, &shape, 0);
		int rc = kv_rank_register(&rank, ns, &err);
		ck_assert_msg(is_known_failure(rc), "reply %d: %d", _i, rc);
		ck_assert(rank.binding == NULL);
		ck_assert_uint_eq(kv_canaries_broken(&rank), 0);
		kv_rank_close(&rank);
		okv_namespace_close(ns);
	}
	ck_assert_int_eq(err.status != 0, 1);
	okv_engine_close(e);
	fake_end(&f);
	ck_assert_uint_eq(kv_fd_count(), fds);
	ck_assert_uint_eq(process_maps(getpid(), "fake-arena"), 0);
}
END_TEST

static void many_arenas(struct fake *f, uint32_t serial, struct okw_welcome *body, int fds[8])
{
	static const uint32_t counts[] = {0, 65, 0xffffffffu};
	body->arena_count = counts[f->which];
	fake_say(f, OKW_MSG_WELCOME, serial, body, sizeof(*body), fds, 4);
}

START_TEST(r8_arena_counts_out_of_range)
{
	struct fake f = {.welcome = many_arenas, .which = _i};
	struct okv_engine *e = NULL;
	struct kv_rank rank;
	fake_start(&f);
	ck_assert_int_eq(fake_try_open(&f, &e, NULL), 0);
	struct okv_namespace *ns = kv_namespace(e, &shape);
	kv_rank_init(&rank, &shape, 0);
	ck_assert(is_known_failure(kv_rank_register(&rank, ns, NULL)));
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
	fake_end(&f);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("bad manager");
	TCase *t = tcase_create("bad manager");
	tcase_set_timeout(t, 120);
	tcase_add_loop_test(t, r8_welcome_that_does_not_hold, 0, WELCOMES);
	tcase_add_test(t, manager_that_never_answers_is_a_timeout);
	tcase_add_loop_test(t, r8_registration_replies_that_do_not_hold, 0, REGISTRATIONS);
	tcase_add_loop_test(t, r8_arena_counts_out_of_range, 0, 3);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
