/* SPDX-License-Identifier: Apache-2.0 */
/* [M] First touch: pages of new files allocated and zeroed by many threads, near their node. */
#ifndef OKI_ARENA_TOUCH_H
#define OKI_ARENA_TOUCH_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/manager.h>

struct oki_touch_range {
	uint8_t *base; /* writable shared mapping of fd */
	uint64_t bytes;
	uint64_t page; /* its page size */
	int fd;
	int32_t node; /* -1: any */
};

/*
 * Returns when every page exists, or with the first error. Runs in its own threads; progress is
 * called in the caller's, with rising numbers and at last with the total.
 */
int oki_touch(const struct oki_touch_range *ranges, uint32_t count, uint32_t threads,
	      okv_progress_fn *progress, void *arg, struct okv_error *err);

#endif
