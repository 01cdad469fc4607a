/* SPDX-License-Identifier: Apache-2.0 */
/* An honest engine beside the ones that are not: it must notice nothing. */
#ifndef TEST_PROCESS_HONEST_H
#define TEST_PROCESS_HONEST_H

#include "process/child.h"

#define HONEST_SEQ 1u
#define HONEST_BLOCKS 16u

/* Its tensors, with every field given. */
extern const struct kv_shape honest_shape;

/* The role "honest" of each program: restores without a pause, and says so when asked. */
void honest_play(void);

/* A Manager with the honest engine at work. */
struct stage {
	struct kv_manager m;
	struct child honest;
	uint32_t fds;
};

void stage_open(struct stage *s);
/* One more exact restore. */
void stage_check(struct stage *s);
/*
 * The evil ones are gone: what they left is counted, and not more than this many operations; the
 * Manager's descriptors are back where they were; it drains and ends with 0.
 */
void stage_close(struct stage *s, uint64_t most_quarantined);
/* Run one evil role, until it says "done", beside the honest engine. */
void run_evil(const char *role, const char *arg, uint64_t most_quarantined);

#endif
