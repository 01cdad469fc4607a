/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Start threads that block the signals of the process. */
#include "base/thread.h"

#include <signal.h>

int oki_thread_start(pthread_t *ret_thread, void *(*body)(void *), void *arg)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
	sigset_t blocked, before;
	sigfillset(&blocked);
	for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	int rc = pthread_create(ret_thread, NULL, body, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}
