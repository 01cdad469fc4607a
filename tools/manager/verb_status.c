/* SPDX-License-Identifier: Apache-2.0 */
/* [M] orbitkv-manager status: a running Manager's counters, for people or as JSON. */
#include "verbs.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct field {
	const char *name;
	size_t offset;
	bool is_bytes;
};

#define FIELD(name, is_bytes)                                              \
	{                                                                  \
#name, offsetof(struct okv_manager_status, name), is_bytes \
	}

static const struct field fields[] = {
	FIELD(epoch, false),
	FIELD(uptime_ms, false),
	FIELD(sessions, false),
	FIELD(sessions_retained, false),
	FIELD(namespaces, false),
	FIELD(bindings, false),
	FIELD(arenas, false),
	FIELD(bytes_total, true),
	FIELD(bytes_free, true),
	FIELD(bytes_used, true),
	FIELD(bytes_quarantined, true),
	FIELD(bytes_pinned, true),
	FIELD(blocks, false),
	FIELD(blocks_partial, false),
	FIELD(leases, false),
	FIELD(lookups, false),
	FIELD(lookup_keys, false),
	FIELD(lookup_hits, false),
	FIELD(evictions, false),
	FIELD(published_blocks, false),
	FIELD(restored_blocks, false),
	FIELD(ops_preparing, false),
	FIELD(ops_granted, false),
	FIELD(ops_active, false),
	FIELD(ops_quarantined, false),
	FIELD(ops_done, false),
	FIELD(ops_reaped, false),
	FIELD(ops_revoked, false),
	FIELD(ops_refused, false),
	FIELD(control_bytes, true),
	FIELD(wakeups, false),
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))
_Static_assert(FIELD_COUNT * sizeof(uint64_t) == sizeof(struct okv_manager_status),
	       "every counter is shown");

static uint64_t value_of(const struct okv_manager_status *st, const struct field *field)
{
	uint64_t value;

	memcpy(&value, (const char *)st + field->offset, sizeof(value));
	return value;
}

/*
 * Most readers of JSON keep numbers as doubles, and others refuse those beyond 63 bits. The epoch
 * is 64 random bits, and a string even when they are few, so that its type stays the same.
 */
static bool is_json_string(const struct field *field, uint64_t value)
{
	return field->offset == offsetof(struct okv_manager_status, epoch) || value > UINT64_C(1)
											      << 53;
}

static void print_json(const struct okv_manager_status *st)
{
	for (size_t k = 0; k < FIELD_COUNT; k++) {
		uint64_t value = value_of(st, &fields[k]);
		const char *quote = is_json_string(&fields[k], value) ? "\"" : "";
		printf("%s\"%s\": %s%llu%s", k ? ", " : "{", fields[k].name, quote,
		       (unsigned long long)value, quote);
	}
	puts("}");
}

static void print_table(const struct okv_manager_status *st)
{
	for (size_t k = 0; k < FIELD_COUNT; k++) {
		uint64_t value = value_of(st, &fields[k]);
		printf("%-18s %20llu", fields[k].name, (unsigned long long)value);
		if (fields[k].is_bytes && value >= 1u << 20)
			printf("  %.1f MiB", (double)value / (1 << 20));
		putchar('\n');
	}
}

int verb_status(const char *socket, bool as_json)
{
	struct okv_manager_status st;
	struct okv_error err;

	if (okv_manager_status_query(socket, 5000, &st, &err)) {
		fprintf(stderr, "orbitkv-manager: %s: %s\n", okv_status_name(err.status), err.text);
		return EXIT_FAILURE;
	}
	if (as_json)
		print_json(&st);
	else
		print_table(&st);
	return EXIT_SUCCESS;
}
