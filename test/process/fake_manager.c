/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager of a few lines, served by a thread of the test, that can be wrong at any step. */
#include "process/fake_manager.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "grant/state.h"
#include "support/local.h"

void fake_say(struct fake *f, uint32_t kind, uint32_t serial, const void *body, size_t bytes,
	      const int *fds, uint32_t fd_count)
{
	oki_message_send(f->sock, kind, serial, 0, body, (uint32_t)bytes, fds, fd_count, NULL);
}

static void welcome(struct fake *f, uint32_t serial)
{
	struct okw_welcome body = {
		.epoch = 11,
		.token = 22,
		.arena_count = 1,
		.control_bytes = OKW_CONTROL_BYTES,
		.request_area_bytes = OKW_REQUEST_AREA_BYTES,
		.lease_ttl_ms = 1000,
		.part_bytes = OKW_PART_MAX_BYTES,
	};
	kv_ok(oki_channel_create(&f->channel, 11, 22, 0, kv_err));
	int fds[8] = {f->channel.request_fd, f->channel.control_fd, f->channel.engine_doorbell,
		      f->channel.manager_doorbell};
	if (f->welcome)
		f->welcome(f, serial, &body, fds);
	else
		fake_say(f, OKW_MSG_WELCOME, serial, &body, sizeof(body), fds, 4);
	oki_channel_sent(&f->channel);
}

void fake_answer(struct fake *f, const struct oki_message *ask)
{
	const struct okw_namespace_reply ns = {.namespace_id = 3};
	const struct okw_bind_reply bind = {.binding_id = 257};
	const struct okw_arena_reply arena = {
		.bytes = FAKE_ARENA_BYTES, .inode = f->inode, .node = -1, .writable = 1};
	uint32_t kind = ask->head.kind, serial = ask->head.serial;
	switch (kind) {
	case OKW_MSG_NAMESPACE: fake_say(f, kind, serial, &ns, sizeof(ns), NULL, 0); return;
	case OKW_MSG_ARENA: fake_say(f, kind, serial, &arena, sizeof(arena), &f->arena, 1); return;
	case OKW_MSG_BIND: fake_say(f, kind, serial, &bind, sizeof(bind), NULL, 0); return;
	default: fake_say(f, kind, serial, NULL, 0, NULL, 0); return;
	}
}

void fake_ring(struct fake *f, uint32_t i)
{
	oki_doorbell_ring(&f->channel.control->engine, f->channel.engine_doorbell, i);
}

/* Every submitted record goes to the test's own hand. */
static void look_at_records(struct fake *f)
{
	for (uint32_t i = 0; i < OKW_RECORDS && f->record; i++) {
		struct okw_record *record = &f->channel.control->records[i];
		uint64_t tag = oki_tag_load(record);
		if (OKI_TAG_STATE(tag) == OKW_DRAINED && !f->never_reaps) {
			record->status = record->engine_status;
			oki_move(record, &tag, OKW_REAPED, OKI_MOVER_MANAGER);
			fake_ring(f, i);
		}
		if (OKI_TAG_STATE(tag) == OKW_SUBMITTED &&
		    oki_move(record, &tag, OKW_PREPARING, OKI_MOVER_MANAGER))
			f->record(f, i, tag);
	}
}

static void serve(struct fake *f)
{
	for (;;) {
		struct oki_message m;
		struct okv_error err;
		int rc = oki_message_receive(f->sock, f->channel.control ? 1 : 20000, &m, &err);
		if (f->channel.control)
			look_at_records(f);
		if (rc == OKV_E_TIMEOUT)
			continue;
		if (rc)
			return;
		if (m.head.kind == OKW_MSG_HELLO)
			welcome(f, m.head.serial);
		else if (f->reply)
			f->reply(f, &m);
		else
			fake_answer(f, &m);
		oki_message_fini(&m);
	}
}

static void *fake_main(void *arg)
{
	struct fake *f = arg;
	f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
	if (f->sock < 0)
		return NULL;
	serve(f);
	oki_channel_fini(&f->channel);
	close(f->sock);
	return NULL;
}

void fake_keep(struct fake *f, uint32_t i, uint64_t tag)
{
	(void)tag;
	atomic_store(&f->kept, (int64_t)i + 1);
}

uint32_t fake_kept(struct fake *f)
{
	kv_until(atomic_load(&f->kept) > 0);
	return (uint32_t)(atomic_exchange(&f->kept, 0) - 1);
}

void fake_start(struct fake *f)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;
	strcpy(f->dir, "/tmp/orbitkv-test-XXXXXX");
	ck_assert(mkdtemp(f->dir) != NULL);
	snprintf(f->path, sizeof(f->path), "%s/fake", f->dir);
	strcpy(addr.sun_path, f->path);
	f->channel = (struct oki_channel){
		.request_fd = -1, .control_fd = -1, .engine_doorbell = -1, .manager_doorbell = -1};
	kv_ok(oki_shm_create("fake-arena", FAKE_ARENA_BYTES, &f->arena, kv_err));
	ck_assert_int_eq(fstat(f->arena, &st), 0);
	f->inode = st.st_ino;
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(f->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(f->listener, 4), 0);
	ck_assert_int_eq(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

void fake_end(struct fake *f)
{
	shutdown(f->listener, SHUT_RDWR);
	pthread_join(f->thread, NULL);
	close(f->listener);
	close(f->arena);
	unlink(f->path);
	rmdir(f->dir);
}

int fake_try_open(const struct fake *f, struct okv_engine **ret_engine, struct okv_error *err)
{
	struct okv_engine_options o;
	okv_engine_options_init(&o);
	o.socket_path = f->path;
	o.connect_timeout_ms = 2000;
	return okv_engine_open(&o, ret_engine, err);
}

bool is_known_failure(int rc)
{
	return rc < 0 && strcmp(okv_status_name(rc), "OKV_E_?") != 0;
}
