/* SPDX-License-Identifier: Apache-2.0 */
/* A gate in memory: whoever touches the range stops inside its own load or store until it opens. */
#ifndef TEST_SUPPORT_GATE_H
#define TEST_SUPPORT_GATE_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "support/kv.h"

/*
 * Built on userfaultfd(2): the whole memory pages of a range are taken away, a thread that needs
 * one sleeps in the kernel, and opening puts them back with what they held. Where that is
 * forbidden, or with KV_GATE=fault in the environment: the pages are made inaccessible and the
 * thread sleeps in a handler of SIGSEGV. The library under test knows nothing of either. System
 * calls on the range fail meanwhile, so only plain copies may meet it.
 */
struct kv_gate {
	uint8_t *at; /* whole memory pages */
	uint64_t bytes;
	_Atomic bool is_open;
	int fd;		/* of userfaultfd; -1: none */
	uint8_t *saved; /* what the pages held; userfaultfd only */
	uint32_t fault; /* its place in the handler's table; without userfaultfd only */
};

/* Close over the whole memory pages inside [at, at + bytes); there must be one. */
void kv_gate_close(struct kv_gate *gate, void *at, uint64_t bytes);
/* The same for one segment of one page; segment_bytes must be 8 KiB or more. */
void kv_gate_close_page(struct kv_gate *gate, const struct kv_rank *rank, uint32_t layer,
			uint32_t segment, uint32_t page);
/* Until some thread stands before the gate. */
void kv_gate_wait(struct kv_gate *gate);
/* Let everyone through and give everything back. */
void kv_gate_open(struct kv_gate *gate);
bool kv_gate_is_open(const struct kv_gate *gate);

#endif
