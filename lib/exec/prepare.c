/* SPDX-License-Identifier: Apache-2.0 */
/* [B] What a transfer needs before it may start: a stream of its own, marks, room for
 * results. */
#include "exec/exec_private.h"

#include <stdlib.h>

#include "base/error.h"

/* With stream_lock held: take a stream without pending fences out of the pool. */
static struct oki_stream_node *take_idle(struct oki_worker *worker, bool *ret_fenced)
{
	struct oki_stream_node **first = &worker->streams;
	uint32_t fenced = 0;
	for (struct oki_stream_node **p = first; *p; p = &(*p)->next) {
		struct oki_stream_node *node = *p;
		if (node->fenced && !worker->ops->is_idle(node->stream)) {
			fenced++;
			continue;
		}
		*p = node->next;
		return node;
	}
	if (fenced < OKI_FENCED_STREAMS)
		return NULL;
	/* Limit the number of streams: reuse the one that has waited longest. */
	struct oki_stream_node **last = first;
	while ((*last)->next)
		last = &(*last)->next;
	struct oki_stream_node *node = *last;
	*last = NULL;
	*ret_fenced = true;
	return node;
}

static int open_stream(struct oki_worker *worker, struct oki_stream **ret_stream,
		       struct okv_error *err)
{
	/* Make a node with every stream, so that returning one needs no memory. */
	struct oki_stream_node *node = calloc(1, sizeof(*node));
	if (!node)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_READY, "no memory for a stream");
	int rc = worker->ops->stream_create(worker->device, ret_stream, err);
	if (rc) {
		free(node);
		return rc;
	}
	pthread_mutex_lock(&worker->stream_lock);
	node->next = worker->spare;
	worker->spare = node;
	pthread_mutex_unlock(&worker->stream_lock);
	return 0;
}

int oki_worker_stream_get(struct oki_worker *worker, struct oki_stream **ret_stream,
			  struct okv_error *err)
{
	bool fenced = false;
	pthread_mutex_lock(&worker->stream_lock);
	struct oki_stream_node *node = take_idle(worker, &fenced);
	if (node) {
		*ret_stream = node->stream;
		node->stream = NULL;
		node->next = worker->spare;
		worker->spare = node;
	}
	pthread_mutex_unlock(&worker->stream_lock);
	if (node)
		return fenced;
	return open_stream(worker, ret_stream, err);
}

int oki_worker_streams_open(struct oki_worker *worker, uint32_t count, struct okv_error *err)
{
	for (uint32_t i = 0; i < count; i++) {
		struct oki_stream *stream;
		int rc = open_stream(worker, &stream, err);
		if (rc)
			return rc;
		oki_worker_stream_put(worker, stream, true);
	}
	return 0;
}

void oki_worker_stream_put(struct oki_worker *worker, struct oki_stream *stream, bool drained)
{
	worker->ops->stream_recycle(stream);
	pthread_mutex_lock(&worker->stream_lock);
	struct oki_stream_node *node = worker->spare;
	worker->spare = node->next;
	node->stream = stream;
	node->fenced = !drained;
	node->next = worker->streams;
	worker->streams = node;
	pthread_mutex_unlock(&worker->stream_lock);
}

static int mark_get(struct oki_worker *worker, struct oki_mark **ret_mark, struct okv_error *err)
{
	struct oki_mark *mark = NULL;
	pthread_mutex_lock(&worker->stream_lock);
	if (worker->mark_count)
		mark = worker->marks[--worker->mark_count];
	pthread_mutex_unlock(&worker->stream_lock);
	if (!mark)
		return worker->ops->mark_create(worker->device, ret_mark, err);
	*ret_mark = mark;
	return 0;
}

static void mark_put(struct oki_worker *worker, struct oki_mark **mark)
{
	if (!*mark)
		return;
	pthread_mutex_lock(&worker->stream_lock);
	bool keep = worker->mark_count < OKI_SPARE_MARKS;
	if (keep)
		worker->marks[worker->mark_count++] = *mark;
	pthread_mutex_unlock(&worker->stream_lock);
	if (!keep)
		worker->ops->mark_destroy(*mark);
	*mark = NULL;
}

static uint64_t transfer_bytes(const struct oki_worker *worker, const struct oki_transfer *transfer)
{
	const struct oki_schema *schema = worker->config.schema;
	uint64_t bytes = 0;
	for (uint32_t g = 0; g < transfer->group_count; g++)
		bytes += transfer->groups[g].count *
			 schema->groups[transfer->groups[g].group].payload_bytes;
	return bytes;
}

int oki_transfer_init(struct oki_worker *worker, struct oki_transfer *transfer,
		      struct okv_error *err)
{
	uint32_t layers = worker->config.schema->layer_count;
	transfer->recorded = calloc(layers, sizeof(bool));
	if (!transfer->recorded)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_READY, "no memory for an operation");
	int rc = mark_get(worker, &transfer->final_mark, err);
	if (rc)
		goto fail;
	if (!worker->ops->has_callbacks) {
		bool large = transfer_bytes(worker, transfer) > OKI_PIECE_BYTES;
		for (uint32_t i = 0; i < 2 && large && !rc; i++)
			rc = mark_get(worker, &transfer->pieces.marks[i], err);
		if (rc)
			goto fail;
		return 0;
	}
	transfer->marks = calloc(layers, sizeof(struct oki_mark *));
	if (!transfer->marks) {
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_READY, "no memory for an operation");
		goto fail;
	}
	for (uint32_t i = 0; i < layers; i++) {
		rc = mark_get(worker, &transfer->marks[i], err);
		if (rc)
			goto fail;
	}
	return 0;

fail:
	oki_transfer_fini(worker, transfer);
	return rc;
}

void oki_transfer_fini(struct oki_worker *worker, struct oki_transfer *transfer)
{
	for (uint32_t i = 0; transfer->marks && i < worker->config.schema->layer_count; i++)
		mark_put(worker, &transfer->marks[i]);
	free(transfer->marks);
	transfer->marks = NULL;
	for (uint32_t i = 0; i < 2; i++)
		mark_put(worker, &transfer->pieces.marks[i]);
	mark_put(worker, &transfer->final_mark);
	for (uint32_t i = 0; i < transfer->kept_count; i++)
		oki_runs_fini(&transfer->kept[i]);
	free(transfer->kept);
	transfer->kept = NULL;
	transfer->kept_count = 0;
	free(transfer->recorded);
	transfer->recorded = NULL;
}
