/* A gate in memory: whoever touches the range stops inside its own load or store until it opens. */
#ifndef TEST_SUPPORT_GATE_H
#define TEST_SUPPORT_GATE_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "support/kv.h"

/*
 * Built on userfaultfd(2): the whole memory pages of a range are taken away, a thread that needs
 * one sleeps in the kernel, and opening puts them back with what they held. The library under
 * test knows nothing of it. System calls on the range fail meanwhile, so only plain copies may
 * meet it.
 */
struct kv_gate {
	int fd;
	uint8_t *at; /* whole memory pages */
	uint64_t bytes;
	uint8_t *saved;
	_Atomic bool is_open;
};

/* Does this kernel allow it? Else *ret_why (may be NULL) says why not. */
bool kv_gate_possible(const char **ret_why);
/* Run and free a suite: what main returns. Where gates are not possible its tests that need one
 * were left out, and success is a skip that says so. */
int kv_gate_run(Suite *suite);

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
