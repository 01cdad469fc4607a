/* SPDX-License-Identifier: Apache-2.0 */
/* A session of the wire protocol without the library's engine: for peers that do not keep to it. */
#ifndef TEST_PROCESS_RAW_SESSION_H
#define TEST_PROCESS_RAW_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "support/kv.h"
#include "wire/bootstrap.h"
#include "wire/channel.h"
#include "wire/wire.h"

#define RAW_REPLY_ROOM 256u /* behind each request */

struct raw {
	int sock;
	uint32_t serial;
	struct okw_welcome welcome;
	struct oki_channel channel;
	uint32_t namespace_id;
	uint32_t binding_id;
};

/* A connected socket. */
int raw_dial(const char *socket_path);
/* One message as it is, with descriptors that the head need not mention. errno on failure. */
int raw_send(int sock, const void *bytes, size_t size, const int *fds, uint32_t fd_count);
/* Read until the other side hangs up; the status of the last refusal that came, or 0. */
int raw_until_closed(int sock);

/* Hello and welcome. */
void raw_open(struct raw *r, const char *socket_path);
/* Namespace and binding, as kv_namespace() and kv_rank_open() would; slot 0. */
void raw_register(struct raw *r, const struct kv_shape *shape);
void raw_close(struct raw *r);
/* Send a message and take the reply's status; -1 when the Manager hung up. */
int raw_call(struct raw *r, uint32_t kind, const void *body, uint32_t bytes, void *ret_reply,
	     uint32_t reply_bytes);
/* Identity and schema as sent over the socket; free() it. */
uint8_t *raw_identity(const struct kv_shape *shape, size_t *ret_size);

/* A right request about blocks [0, count) of seq; its size. tag and extent are raw_submit's. */
uint32_t raw_request(const struct raw *r, uint32_t kind, uint64_t seq, uint32_t count,
		     uint8_t *bytes);
#define RAW_REQUEST_BYTES 4096u

/* Where record i's request lies. */
uint32_t raw_extent(uint32_t i);
/* Write it for record i, which must be free, and submit. fix: fill in epoch, token and tag. */
void raw_submit(struct raw *r, uint32_t i, const void *request, uint32_t bytes, bool fix);
/* Only reserve; then the caller writes fields and raw_announce()s. */
struct okw_record *raw_reserve(struct raw *r, uint32_t i);
void raw_announce(struct raw *r, uint32_t i);
void raw_ring(struct raw *r, uint32_t i);
/* Wait until record i is past Preparing: its state, or OKW_STATES when the Manager hung up. */
uint32_t raw_await(struct raw *r, uint32_t i);
bool raw_dropped(const struct raw *r);
/* Wait for the hang-up. */
void raw_await_drop(const struct raw *r);

static inline struct okw_record *raw_record(const struct raw *r, uint32_t i)
{
	return &r->channel.control->records[i];
}

/* A cheap pseudo-random sequence. */
static inline uint32_t raw_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

#endif
