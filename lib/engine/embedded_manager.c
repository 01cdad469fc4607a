/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A Manager inside the engine process: same protocol, no daemon. */
#include "engine/engine_private.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/options.h"
#include "base/thread.h"

static void *embedded_main(void *arg)
{
	okv_manager_run(arg, NULL);
	return NULL;
}

int oki_embedded_start(struct okv_engine *engine, const struct okv_manager_options *opts,
		       struct okv_error *err)
{
	struct okv_manager_options alone;
	okv_manager_options_init(&alone);
	int rc = opts ? oki_options_take(&alone, sizeof(alone), opts, "Manager", err) : 0;
	if (rc)
		return rc;
	/* No other session can connect, so reserve memory for one. */
	if (alone.max_sessions > 1 && alone.max_sessions <= OKW_MAX_SESSIONS)
		alone.max_sessions = 1;
	struct okv_manager *m;
	rc = okv_manager_create(&alone, &m, err);
	if (rc)
		return rc;
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "socketpair");
		goto destroy;
	}
	rc = okv_manager_attach(m, pair[1], err);
	if (rc) {
		oki_fd_close(&pair[1]);
		goto close_pair;
	}
	int os = oki_thread_start(&engine->embedded_thread, embedded_main, m);
	if (os) {
		rc = oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, os, "cannot start a thread");
		goto close_pair;
	}
	engine->embedded = m;
	engine->sock = pair[0];
	return 0;

close_pair:
	oki_fd_close(&pair[0]);
destroy:
	okv_manager_destroy(m);
	return rc;
}

void oki_embedded_stop(struct okv_engine *engine)
{
	if (!engine->embedded)
		return;
	okv_manager_stop(engine->embedded);
	pthread_join(engine->embedded_thread, NULL);
	okv_manager_destroy(engine->embedded);
	engine->embedded = NULL;
}
