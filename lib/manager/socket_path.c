/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The default path of the Manager's socket. */
#include <orbitkv/manager.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int print_default(char *buf, size_t size)
{
	const char *named = getenv("ORBITKV_SOCKET");
	const char *runtime = getenv("XDG_RUNTIME_DIR");

	if (named && *named)
		return snprintf(buf, size, "%s", named);
	if (runtime && *runtime)
		return snprintf(buf, size, "%s/orbitkv/manager.sock", runtime);
	if (geteuid() == 0)
		return snprintf(buf, size, "/run/orbitkv/manager.sock");
	return snprintf(buf, size, "/tmp/orbitkv-%u/manager.sock", (unsigned)geteuid());
}

int okv_default_socket_path(char *buf, size_t size)
{
	char path[4096];
	int used = print_default(path, sizeof(path));

	if (!buf || used < 0 || (size_t)used >= sizeof(path) || (size_t)used >= size)
		return OKV_E_LIMIT;
	snprintf(buf, size, "%s", path);
	return 0;
}
