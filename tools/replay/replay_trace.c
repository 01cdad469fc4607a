/* [E] Read a trace: JSON lines, each with the hash ids of one request's blocks. */
#include "replay.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct growing {
	struct replay_trace trace;
	uint64_t id_room;
	uint32_t request_room;
};

/* Make room for one more request of `count` ids. */
static int grow(struct growing *g, uint64_t count)
{
	if (g->trace.request_count + 2 > g->request_room) {
		uint32_t room = g->request_room * 2 + 1024;
		uint64_t *starts = realloc(g->trace.starts, room * sizeof(*starts));

		if (starts == NULL)
			return -1;
		g->trace.starts = starts;
		g->request_room = room;
	}
	if (g->trace.block_count + count > g->id_room) {
		uint64_t room = (g->id_room + count) * 2 + 4096;
		uint32_t *ids = realloc(g->trace.ids, room * sizeof(*ids));

		if (ids == NULL)
			return -1;
		g->trace.ids = ids;
		g->id_room = room;
	}
	return 0;
}

/* Returns NULL or what is wrong. */
static const char *add_request(struct growing *g, const json_t *request, uint64_t *cut)
{
	const json_t *ids = json_object_get(request, "hash_ids");
	size_t count = json_array_size(ids);

	if (!json_is_array(ids) || count == 0)
		return "\"hash_ids\" is not a list of at least one number";
	if (count > OKV_MAX_BLOCKS) {
		*cut += count - OKV_MAX_BLOCKS;
		count = OKV_MAX_BLOCKS;
	}
	if (grow(g, count) != 0)
		return "out of memory";
	struct replay_trace *trace = &g->trace;

	for (size_t i = 0; i < count; i++) {
		const json_t *id = json_array_get(ids, i);
		json_int_t value = json_integer_value(id);

		if (!json_is_integer(id) || value < 0 || value > TOOL_MAX_ID)
			return "a hash id is not a whole number from 0 to 67108863";
		trace->ids[trace->block_count + i] = (uint32_t)value;
	}
	trace->starts[trace->request_count] = trace->block_count;
	trace->block_count += count;
	trace->request_count++;
	trace->starts[trace->request_count] = trace->block_count;
	if (count > trace->longest)
		trace->longest = (uint32_t)count;
	return NULL;
}

static const char *add_line(struct growing *g, const char *line, size_t size, uint64_t *cut)
{
	json_error_t error;
	json_t *request;

	if (strspn(line, " \t\r\n") == size)
		return NULL;
	request = json_loadb(line, size, 0, &error);
	if (request == NULL)
		return "not a JSON object on one line";
	const char *why = add_request(g, request, cut);
	json_decref(request);
	return why;
}

int replay_trace_load(const char *file, uint32_t max_requests, struct replay_trace *ret_trace)
{
	struct growing g = {.id_room = 0};
	const char *why = NULL;
	size_t line_room = 0;
	char *line = NULL;
	uint64_t number = 0;
	uint64_t cut = 0;
	ssize_t size;
	FILE *stream = fopen(file, "re");

	if (stream == NULL) {
		fprintf(stderr, "orbitkv-replay: %s: %s\n", file, strerror(errno));
		return -1;
	}
	while ((max_requests == 0 || g.trace.request_count < max_requests) && why == NULL &&
	       (size = getline(&line, &line_room, stream)) > 0) {
		number++;
		why = add_line(&g, line, (size_t)size, &cut);
	}
	if (why == NULL && ferror(stream))
		why = "cannot be read";
	if (why == NULL && g.trace.request_count == 0)
		why = "has no request";
	free(line);
	fclose(stream);
	if (why != NULL) {
		fprintf(stderr, "orbitkv-replay: %s:%llu: %s\n", file, (unsigned long long)number,
			why);
		replay_trace_fini(&g.trace);
		return -1;
	}
	if (cut > 0)
		fprintf(stderr, "orbitkv-replay: %llu blocks past the %d-block limit left out\n",
			(unsigned long long)cut, OKV_MAX_BLOCKS);
	*ret_trace = g.trace;
	return 0;
}

void replay_trace_fini(struct replay_trace *trace)
{
	free(trace->ids);
	free(trace->starts);
	memset(trace, 0, sizeof(*trace));
}
