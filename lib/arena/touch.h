/* SPDX-License-Identifier: Apache-2.0 */
/* [M] First touch: threads allocate and zero the pages of new files, on the CPUs of their node. */
#ifndef OKI_ARENA_TOUCH_H
#define OKI_ARENA_TOUCH_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/manager.h>

struct oki_touch_range {
	uint8_t *base; /* writable shared mapping of fd */
	uint64_t bytes;
	uint64_t page; /* bytes of one page */
	int fd;
	int32_t node; /* -1: any */
};

/*
 * Returns when every page exists, or with the first error. It starts threads of its own (0: one per
 * CPU, at most 16; never more than 256). It calls progress in the caller's thread, with rising
 * numbers and, on success, with the total at last.
 */
int oki_touch(const struct oki_touch_range *ranges, uint32_t count, uint32_t threads,
	      okv_progress_fn *progress, void *arg, struct okv_error *err);

#endif
