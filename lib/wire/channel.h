/* SPDX-License-Identifier: Apache-2.0 */
/* [B] One session's shared memory and doorbells, for either side. */
#ifndef OKI_WIRE_CHANNEL_H
#define OKI_WIRE_CHANNEL_H

#include <stdbool.h>
#include <orbitkv/status.h>
#include "wire/shm.h"
#include "wire/wire.h"

/* What takes memory as far as it is used. */
enum oki_channel_part {
	OKI_CHANNEL_RECORDS,  /* [E] */
	OKI_CHANNEL_REQUESTS, /* [E] with the replies */
	OKI_CHANNEL_BANK,     /* [M] */
	OKI_CHANNEL_PARTS
};

struct oki_channel {
	struct okw_control *control;
	uint8_t *requests; /* OKW_REQUEST_AREA_BYTES */
	struct oki_shm control_shm;
	struct oki_shm request_shm;
	int request_fd; /* owned by the creator until sent; -1 in the importer */
	int control_fd;
	int engine_doorbell;		  /* eventfd M→E; each side owns its descriptor */
	int manager_doorbell;		  /* eventfd E→M */
	uint32_t used[OKI_CHANNEL_PARTS]; /* bytes from its start that this side took memory for */
};

/* [M] Create everything for a new session. */
int oki_channel_create(struct oki_channel *channel, uint64_t epoch, uint64_t token, uint32_t slot,
		       struct okv_error *err);
/* [E] Import the four fds of a welcome, in its order. Takes them on success and on failure. */
int oki_channel_import(struct oki_channel *channel, int fds[4], const struct okw_welcome *welcome,
		       struct okv_error *err);
/* [M] Call after the welcome: the memfds are mapped, so close their descriptors. */
void oki_channel_sent(struct oki_channel *channel);
/*
 * Before this side writes into [0, end) of a part; bytes, of the records too. Once memory is taken
 * it stays until the session ends. False: there is none. Not thread-safe.
 */
bool oki_channel_use(struct oki_channel *channel, enum oki_channel_part part, uint32_t end);
/* Unmap and close; a partly made channel is allowed. */
void oki_channel_fini(struct oki_channel *channel);

/*
 * Announce a change of record index: dirty bit, then the eventfd if the listener sleeps.
 * The state itself must have been stored before.
 */
void oki_doorbell_ring(struct okw_doorbell *bell, int eventfd, uint32_t index);
/* As above without a record: the listener also reads the side bitmaps. */
void oki_doorbell_wake(struct okw_doorbell *bell, int eventfd);

/* Take all dirty bits of word w. G1: the first load is relaxed; the test between declaring sleep
 * and sleeping finds what an old zero misses. */
static inline uint64_t oki_doorbell_take(struct okw_doorbell *bell, uint32_t w)
{
	if (!atomic_load_explicit(&bell->dirty[w], memory_order_relaxed))
		return 0;
	return atomic_exchange(&bell->dirty[w], 0);
}
/* Declare sleep; true if it may sleep (nothing pending), false if there is work. */
bool oki_doorbell_sleep(struct okw_doorbell *bell);
void oki_doorbell_awake(struct okw_doorbell *bell);

#endif
