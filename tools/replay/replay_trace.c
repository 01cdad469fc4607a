/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Read a trace: JSON lines, each with the hash ids of one request's blocks. */
#include "replay.h"
#include "replay_ids.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHERE 40 /* ":LINE:COLUMN" */

struct growing {
	struct replay_trace trace;
	uint64_t cut; /* blocks past the limit of a request */
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
		uint64_t *ids = realloc(g->trace.ids, room * sizeof(*ids));

		if (ids == NULL)
			return -1;
		g->trace.ids = ids;
		g->id_room = room;
	}
	return 0;
}

static int add_request(struct growing *g, const struct replay_ids *ids, char *text)
{
	struct replay_trace *trace = &g->trace;

	if (grow(g, ids->count) != 0) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return -1;
	}
	memcpy(trace->ids + trace->block_count, ids->ids, ids->count * sizeof(*ids->ids));
	trace->starts[trace->request_count] = trace->block_count;
	trace->block_count += ids->count;
	trace->request_count++;
	trace->starts[trace->request_count] = trace->block_count;
	if (ids->count > trace->longest)
		trace->longest = ids->count;
	g->cut += ids->cut;
	return 0;
}

/* Where in the line something is wrong; 0 when no column says so. */
static int add_line(struct growing *g, char *line, size_t size, int *ret_column, char *text)
{
	struct replay_ids ids;
	json_error_t error;
	json_t *request;

	*ret_column = 0;
	while (size > 0 && strchr(" \t\r\n", line[size - 1]) != NULL)
		size--;
	if (size == 0)
		return 0;
	line[size] = '\0';
	/* For what is wrong with it: no number of a library holds the ids. */
	request = json_loadb(line, size, JSON_DECODE_INT_AS_REAL, &error);
	if (request == NULL) {
		*ret_column = error.column;
		snprintf(text, TOOL_TEXT, "%.200s", error.text);
		return -1;
	}
	json_decref(request);
	if (replay_ids_read(line, &ids, text) != 0)
		return -1;
	return add_request(g, &ids, text);
}

static int read_lines(FILE *stream, struct growing *g, uint32_t max_requests, char *where,
		      char *text)
{
	size_t line_room = 0;
	char *line = NULL;
	uint64_t number = 0;
	int column = 0;
	ssize_t size;
	int rc = 0;

	while (!tool_stopped() && (max_requests == 0 || g->trace.request_count < max_requests) &&
	       rc == 0 && (size = getline(&line, &line_room, stream)) > 0) {
		number++;
		rc = add_line(g, line, (size_t)size, &column, text);
	}
	if (rc != 0 && column > 0)
		snprintf(where, WHERE, ":%llu:%d", (unsigned long long)number, column);
	else if (rc != 0)
		snprintf(where, WHERE, ":%llu", (unsigned long long)number);
	if (tool_stopped()) {
		rc = -1;
	} else if (rc == 0 && ferror(stream)) {
		snprintf(text, TOOL_TEXT, "%s", strerror(errno));
		rc = -1;
	} else if (rc == 0 && g->trace.request_count == 0) {
		snprintf(text, TOOL_TEXT, "has no request");
		rc = -1;
	}
	free(line);
	return rc;
}

int replay_trace_load(const char *file, uint32_t max_requests, struct replay_trace *ret_trace)
{
	struct growing g = {.id_room = 0};
	char where[WHERE] = "";
	char text[TOOL_TEXT];
	FILE *stream = fopen(file, "re");

	if (stream == NULL) {
		fprintf(stderr, "orbitkv-replay: %s: %s\n", file, strerror(errno));
		return -1;
	}
	int rc = read_lines(stream, &g, max_requests, where, text);

	fclose(stream);
	if (rc != 0) {
		if (!tool_stopped())
			fprintf(stderr, "orbitkv-replay: %s%s: %s\n", file, where, text);
		replay_trace_fini(&g.trace);
		return -1;
	}
	if (g.cut > 0)
		fprintf(stderr, "orbitkv-replay: %llu blocks past the %d-block limit left out\n",
			(unsigned long long)g.cut, OKV_MAX_BLOCKS);
	*ret_trace = g.trace;
	return 0;
}

void replay_trace_fini(struct replay_trace *trace)
{
	free(trace->ids);
	free(trace->starts);
	memset(trace, 0, sizeof(*trace));
}
