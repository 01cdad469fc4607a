/* SPDX-License-Identifier: Apache-2.0 */
/* The gate without userfaultfd: inaccessible pages, and whoever faults there sleeps in a handler.
 */
#ifndef TEST_SUPPORT_GATE_FAULT_H
#define TEST_SUPPORT_GATE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Close over whole memory pages; returns the gate's number. */
uint32_t kv_fault_close(void *at, uint64_t bytes);
/* Until another thread stands there; false: none came in time. */
bool kv_fault_wait(uint32_t number, int timeout_s);
void kv_fault_open(uint32_t number);

#endif
