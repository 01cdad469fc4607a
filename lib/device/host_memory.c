/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this memory of the process, for reading and writing? */
#include "device/host_pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* One line of /proc/self/maps. */
struct mapping {
	uint64_t from, to;
	char may[5]; /* permissions, such as rw-p */
};

static int refuse(struct okv_error *err, uint64_t base, uint64_t bytes, uint64_t at,
		  const char *what)
{
	return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
			"%#" PRIx64 " with %" PRIu64 " bytes: at %#" PRIx64 " %s", base, bytes, at,
			what);
}

/* 1: the next mapping; 0: there is none. */
static int next_mapping(FILE *maps, char **line, size_t *size, struct mapping *ret_mapping)
{
	struct mapping *m = ret_mapping;
	if (getline(line, size, maps) < 0)
		return 0;
	return sscanf(*line, "%" SCNx64 "-%" SCNx64 " %4s", &m->from, &m->to, m->may) == 3;
}

int oki_host_check_memory(const void *base, uint64_t bytes, struct okv_error *err)
{
	uint64_t start = (uint64_t)(uintptr_t)base, at = start, end;
	if (!base || bytes == 0 || __builtin_add_overflow(start, bytes, &end))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%p with %llu bytes is no host memory", base,
				(unsigned long long)bytes);
	FILE *maps = fopen("/proc/self/maps", "re");
	/* Without /proc the check is impossible; accept the memory. */
	if (!maps)
		return 0;
	char *line = NULL;
	size_t size = 0;
	int rc = 0;
	struct mapping m;
	while (at < end && !rc && next_mapping(maps, &line, &size, &m)) {
		if (m.to <= at)
			continue;
		if (m.from > at)
			break;
		if (m.may[0] != 'r' || m.may[1] != 'w')
			rc = refuse(err, start, bytes, at, "it may not be read and written");
		at = m.to;
	}
	free(line);
	fclose(maps);
	if (!rc && at < end)
		rc = refuse(err, start, bytes, at, "nothing is mapped");
	return rc;
}
