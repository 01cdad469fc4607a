/* SPDX-License-Identifier: Apache-2.0 */
/* A gate in memory: whoever touches the range stops inside its own load or store until it opens. */
#include "support/gate.h"
#include "support/gate_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#define WAIT_S 60

static int open_uffd(void)
{
	const char *way = getenv("KV_GATE");
	if (way && !strcmp(way, "fault"))
		return -1;
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = {.api = UFFD_API};
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
		close(fd);
		return -1;
	}
	return fd;
}

void kv_gate_close(struct kv_gate *gate, void *at, uint64_t bytes)
{
	uint64_t unit = (uint64_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = ((uintptr_t)at + unit - 1) & ~(unit - 1);
	uintptr_t last = ((uintptr_t)at + bytes) & ~(unit - 1);
	ck_assert_msg(first < last, "no whole memory page to close");
	gate->at = (uint8_t *)at + (first - (uintptr_t)at);
	gate->bytes = last - first;
	atomic_init(&gate->is_open, false);
	gate->saved = NULL;
	gate->fd = open_uffd();
	if (gate->fd < 0) {
		gate->fault = kv_fault_close(gate->at, gate->bytes);
		return;
	}
	gate->saved = malloc(gate->bytes);
	ck_assert(gate->saved != NULL);
	memcpy(gate->saved, gate->at, gate->bytes);
	struct uffdio_register reg = {.range = {.start = first, .len = gate->bytes},
				      .mode = UFFDIO_REGISTER_MODE_MISSING};
	ck_assert_msg(ioctl(gate->fd, UFFDIO_REGISTER, &reg) == 0, "register: %s", strerror(errno));
	ck_assert_msg(madvise(gate->at, gate->bytes, MADV_DONTNEED) == 0, "madvise: %s",
		      strerror(errno));
}

void kv_gate_close_page(struct kv_gate *gate, const struct kv_rank *rank, uint32_t layer,
			uint32_t segment, uint32_t page)
{
	const struct okv_layer *l = &rank->layers[layer];
	ck_assert_uint_lt(page, l->page_count);
	kv_gate_close(gate, (uint8_t *)l->base + page * l->page_stride + l->segment_offset[segment],
		      l->segment_bytes[segment]);
}

void kv_gate_wait(struct kv_gate *gate)
{
	struct uffd_msg msg;
	struct pollfd p = {.fd = gate->fd, .events = POLLIN};
	if (gate->fd < 0) {
		ck_assert_msg(kv_fault_wait(gate->fault, WAIT_S), "nobody came to the gate");
		return;
	}
	do {
		int n = poll(&p, 1, WAIT_S * 1000);
		ck_assert_msg(n > 0 || (n < 0 && errno == EINTR), "nobody came to the gate");
	} while (read(gate->fd, &msg, sizeof(msg)) != sizeof(msg) ||
		 msg.event != UFFD_EVENT_PAGEFAULT);
}

void kv_gate_open(struct kv_gate *gate)
{
	atomic_store(&gate->is_open, true);
	if (gate->fd < 0) {
		kv_fault_open(gate->fault);
		return;
	}
	for (uint64_t done = 0; done < gate->bytes;) {
		struct uffdio_copy copy = {.dst = (uintptr_t)gate->at + done,
					   .src = (uintptr_t)gate->saved + done,
					   .len = gate->bytes - done};
		int rc = ioctl(gate->fd, UFFDIO_COPY, &copy);
		ck_assert_msg(rc == 0 || errno == EAGAIN, "copy: %s", strerror(errno));
		if (copy.copy > 0)
			done += (uint64_t)copy.copy;
	}
	/* Closing unregisters and wakes whoever is still asleep. */
	close(gate->fd);
	gate->fd = -1;
	free(gate->saved);
	gate->saved = NULL;
}

bool kv_gate_is_open(const struct kv_gate *gate)
{
	return atomic_load(&gate->is_open);
}
