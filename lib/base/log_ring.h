/* SPDX-License-Identifier: Apache-2.0 */
/* [B] A bounded ring of log lines: the newest are kept, the lost are counted. */
#ifndef OKI_BASE_LOG_RING_H
#define OKI_BASE_LOG_RING_H

#include <stdbool.h>
#include <orbitkv/logging.h>

/* One that is waited for in this process; okv_log_ring_create() makes one with a descriptor. */
struct okv_log_ring *oki_log_ring_new(uint32_t max_lines);
void oki_log_ring_get(struct okv_log_ring *ring);
void oki_log_ring_put(struct okv_log_ring *ring);
/* Does it belong to the parent of a fork? Then its lock may be held for ever. */
bool oki_log_ring_forked(const struct okv_log_ring *ring);
/* Never waits for a reader. lost, reserved and all of text behind its 0 are ignored. */
void oki_log_ring_write(struct okv_log_ring *ring, const struct okv_log_line *line);
/* Take one line, waiting for it. False: the ring has ended, and no line is left. */
bool oki_log_ring_wait(struct okv_log_ring *ring, struct okv_log_line *ret_line);
/* Drop later lines. */
void oki_log_ring_end(struct okv_log_ring *ring);

#endif
