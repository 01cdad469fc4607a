/* SPDX-License-Identifier: Apache-2.0 */
/* A Manager of a few lines, served by a thread of the test, that can be wrong at any step. */
#ifndef TEST_PROCESS_FAKE_MANAGER_H
#define TEST_PROCESS_FAKE_MANAGER_H

#include <pthread.h>
#include <stdatomic.h>

#include "support/kv.h"
#include "wire/bootstrap.h"
#include "wire/channel.h"
#include "wire/shm.h"

#define FAKE_ARENA_BYTES (1u << 20)

/* One connection of a fake Manager; every test spoils one step of it. */
struct fake {
	char dir[64];
	char path[96];
	int listener;
	pthread_t thread;
	int sock;
	struct oki_channel channel;
	int arena;
	uint64_t inode;
	/* What is wrong; NULL or 0: nothing. */
	void (*welcome)(struct fake *f, uint32_t serial, struct okw_welcome *body, int fds[8]);
	void (*reply)(struct fake *f, const struct oki_message *ask);
	void (*record)(struct fake *f, uint32_t i, uint64_t tag);
	bool never_reaps;     /* that is left to the test */
	_Atomic int64_t kept; /* by fake_keep(): one more than the record's index; 0: none */
	int which;
};

void fake_start(struct fake *f);
/* For record: leave it in Preparing, for the test's own hand. */
void fake_keep(struct fake *f, uint32_t i, uint64_t tag);
/* Wait for a kept one and take it. Returns its index. */
uint32_t fake_kept(struct fake *f);
void fake_end(struct fake *f);
/* Open an engine on it, with 2 s for each call. */
int fake_try_open(const struct fake *f, struct okv_engine **ret_engine, struct okv_error *err);

/* Its own hand: a reply, the right reply to a registration call, a doorbell. */
void fake_say(struct fake *f, uint32_t kind, uint32_t serial, const void *body, size_t bytes,
	      const int *fds, uint32_t fd_count);
void fake_answer(struct fake *f, const struct oki_message *ask);
void fake_ring(struct fake *f, uint32_t i);

/* One of the negative codes of status.h. */
bool is_known_failure(int rc);

#endif
