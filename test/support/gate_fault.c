/* SPDX-License-Identifier: Apache-2.0 */
/* The gate without userfaultfd: inaccessible pages, and whoever faults there sleeps in a handler.
 */
#include "support/gate_fault.h"

#include <check.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GATES 16u

/* Never given back: a handler may still look at one that opened. */
static struct fault_gate {
	_Atomic uintptr_t at;
	_Atomic uint64_t bytes;
	_Atomic uint32_t turn;	  /* odd while closed; futex */
	_Atomic uint32_t arrived; /* futex */
	uint32_t seen;
} gates[GATES];
static struct sigaction previous;

static void futex_wait(_Atomic uint32_t *word, uint32_t value, const struct timespec *timeout)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void pass_on(int number, siginfo_t *info, void *context)
{
	if (previous.sa_flags & SA_SIGINFO)
		previous.sa_sigaction(number, info, context);
	else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
		previous.sa_handler(number);
	else
		sigaction(number, &previous, NULL); /* the fault comes again */
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	int os = errno;
	for (uint32_t i = 0; i < GATES; i++) {
		struct fault_gate *g = &gates[i];
		if ((uintptr_t)info->si_addr - atomic_load(&g->at) >= atomic_load(&g->bytes))
			continue;
		/* Even: opened since the fault, and the instruction is only tried again. */
		uint32_t turn = atomic_load(&g->turn);
		if (turn & 1) {
			atomic_fetch_add(&g->arrived, 1);
			futex_wake(&g->arrived);
		}
		while (turn & 1 && atomic_load(&g->turn) == turn)
			futex_wait(&g->turn, turn, NULL);
		errno = os;
		return;
	}
	pass_on(number, info, context);
}

static void handle_faults(void)
{
	struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &act, &previous);
}

uint32_t kv_fault_close(void *at, uint64_t bytes)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, handle_faults);
	uint32_t i = 0;
	while (i < GATES && atomic_load(&gates[i].turn) & 1)
		i++;
	ck_assert_msg(i < GATES, "too many gates");
	struct fault_gate *g = &gates[i];
	atomic_store(&g->bytes, 0);
	atomic_store(&g->at, (uintptr_t)at);
	atomic_store(&g->arrived, 0);
	g->seen = 0;
	atomic_fetch_add(&g->turn, 1);
	atomic_store(&g->bytes, bytes);
	ck_assert_int_eq(mprotect(at, bytes, PROT_NONE), 0);
	return i;
}

bool kv_fault_wait(uint32_t number, int timeout_s)
{
	struct fault_gate *g = &gates[number];
	time_t end = time(NULL) + timeout_s;
	while (atomic_load(&g->arrived) == g->seen) {
		if (time(NULL) >= end)
			return false;
		futex_wait(&g->arrived, g->seen, &(struct timespec){.tv_sec = 1});
	}
	g->seen++;
	return true;
}

void kv_fault_open(uint32_t number)
{
	struct fault_gate *g = &gates[number];
	ck_assert_int_eq(mprotect((void *)atomic_load(&g->at), atomic_load(&g->bytes),
				  PROT_READ | PROT_WRITE),
			 0);
	atomic_fetch_add(&g->turn, 1);
	futex_wake(&g->turn);
}
