/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The hash ids of one request, as they stand in its line of JSON. */
#include "replay_ids.h"
#include "tool_base.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMBER "\"hash_ids\""
#define SHOWN 40 /* characters of an id that is none */
#define BLANKS " \t\r\n"

/* Behind a string that starts here. */
static const char *skip_string(const char *at)
{
	for (at++; *at != '"'; at++)
		at += *at == '\\';
	return at + 1;
}

static bool is_member(const char *at)
{
	if (strncmp(at, MEMBER, strlen(MEMBER)) != 0)
		return false;
	at += strlen(MEMBER);
	return at[strspn(at, BLANKS)] == ':';
}

/* Where the value of the last such member of the outermost object starts; NULL: there is none. */
static const char *find_member(const char *line)
{
	const char *value = NULL;
	unsigned depth = 0;
	const char *at = line;

	while (*at != '\0') {
		if (*at == '"') {
			if (depth == 1 && is_member(at)) {
				value = strchr(at + strlen(MEMBER), ':') + 1;
				value += strspn(value, BLANKS);
			}
			at = skip_string(at);
			continue;
		}
		depth += *at == '{' || *at == '[';
		depth -= *at == '}' || *at == ']';
		at++;
	}
	return value;
}

/* Behind the number, or NULL. */
static const char *read_id(const char *at, uint32_t index, uint64_t *ret_id, char *text)
{
	size_t length = strcspn(at, ",]" BLANKS);
	char *end = NULL;

	errno = 0;
	if (*at >= '0' && *at <= '9')
		*ret_id = strtoull(at, &end, 10);
	if (end == at + length && errno == 0)
		return end;
	snprintf(text, TOOL_TEXT,
		 "hash_ids[%u] is %.*s%s, not a whole number from 0 to 18446744073709551615", index,
		 length < SHOWN ? (int)length : SHOWN, at, length <= SHOWN ? "" : "...");
	return NULL;
}

struct place {
	uint64_t id;
	uint32_t index;
};

static int compare(const void *a, const void *b)
{
	const struct place *x = a;
	const struct place *y = b;

	if (x->id != y->id)
		return x->id < y->id ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

/* A block that stands at two places of a prompt has two keys, or the cache would mix them up. */
static int refuse_repeated(const struct replay_ids *ids, char *text)
{
	struct place places[OKV_MAX_BLOCKS];
	uint32_t last = 0;

	do
		places[last] = (struct place){ids->ids[last], last};
	while (++last < ids->count);
	qsort(places, ids->count, sizeof(*places), compare);
	for (uint32_t i = 1; i < ids->count; i++) {
		if (places[i].id != places[i - 1].id)
			continue;
		snprintf(text, TOOL_TEXT,
			 "hash_ids[%u] is %llu, as hash_ids[%u]: a request names a block once",
			 places[i].index, (unsigned long long)places[i].id, places[i - 1].index);
		return -1;
	}
	return 0;
}

int replay_ids_read(const char *line, struct replay_ids *ret_ids, char *text)
{
	const char *at = find_member(line);
	struct replay_ids *ids = ret_ids;
	uint32_t index = 0;
	uint64_t id;

	bool listed = at != NULL && *at == '[';

	if (listed)
		at += 1 + strspn(at + 1, BLANKS);
	if (!listed || *at == ']') {
		snprintf(text, TOOL_TEXT, "\"hash_ids\" is not a list of at least one number");
		return -1;
	}
	for (;; index++) {
		at = read_id(at, index, &id, text);
		if (at == NULL)
			return -1;
		if (index < OKV_MAX_BLOCKS)
			ids->ids[index] = id;
		at += strspn(at, BLANKS);
		if (*at == ']')
			break;
		at += 1 + strspn(at + 1, BLANKS);
	}
	index++;
	ids->count = index < OKV_MAX_BLOCKS ? index : OKV_MAX_BLOCKS;
	ids->cut = index - ids->count;
	return refuse_repeated(ids, text);
}
