/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Memory for a stream's tables, and for the counters of its kernels. */
#include "device/cuda/cuda_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (64u << 10)
/* The start of a stream's first chunk holds the initial values of its counters. */
#define ZERO_BYTES 1024u
static_assert(OKI_CUDA_COUNTER_BYTES <= ZERO_BYTES, "counters");

static struct oki_cuda_chunk *chunk_new(struct oki_stream *stream, uint64_t bytes,
					CUresult *ret_result)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_chunk *chunk = calloc(1, sizeof(*chunk));
	*ret_result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!chunk)
		return NULL;
	void *host = NULL;
	*ret_result = api->host_alloc(&host, bytes, 0);
	if (*ret_result != CUDA_SUCCESS)
		goto undo_alloc;
	*ret_result = api->memory_alloc(&chunk->device, bytes);
	if (*ret_result != CUDA_SUCCESS)
		goto undo_host;
	chunk->host = host;
	chunk->bytes = bytes;
	chunk->next = stream->chunks;
	stream->chunks = chunk;
	return chunk;

undo_host:
	api->host_free(host);
undo_alloc:
	free(chunk);
	return NULL;
}

CUresult oki_cuda_chunks_init(struct oki_stream *stream)
{
	const struct oki_cuda_api *api = stream->device->api;
	CUresult result = CUDA_SUCCESS;
	if (!stream->device->module)
		return CUDA_SUCCESS;
	struct oki_cuda_chunk *chunk = chunk_new(stream, ZERO_BYTES + CHUNK_BYTES, &result);
	if (!chunk || !api->stream_wait_value || atomic_load(&stream->device->no_value_waits))
		return result;
	const size_t bytes = OKI_CUDA_COUNTER_BYTES;
	result = api->memory_alloc(&stream->counter_memory, bytes);
	if (result != CUDA_SUCCESS)
		return result;
	/* Do not wait for this copy and free nothing: work of others may delay the stream's
	 * hardware queue, and a caller's thread may run this. All users of the counters follow
	 * `stream`: kernels, and side from its first wait for a counter on. */
	memset(chunk->host, 0, bytes);
	chunk->kept = chunk->used = ZERO_BYTES;
	result = api->copy_to_device(stream->counter_memory, chunk->host, bytes, stream->stream);
	if (result != CUDA_SUCCESS)
		return result;
	/* Some drivers have the call but refuse it: then each stretch gets a kernel. */
	if (api->stream_wait_value(stream->stream, stream->counter_memory, 0,
				   CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS)
		stream->counters = stream->counter_memory;
	else
		atomic_store(&stream->device->no_value_waits, true);
	return CUDA_SUCCESS;
}

void oki_cuda_chunks_free(struct oki_stream *stream)
{
	const struct oki_cuda_api *api = stream->device->api;
	struct oki_cuda_chunk *chunk;
	if (stream->counter_memory)
		api->memory_free(stream->counter_memory);
	stream->counters = stream->counter_memory = 0;
	while ((chunk = stream->chunks)) {
		stream->chunks = chunk->next;
		api->memory_free(chunk->device);
		api->host_free(chunk->host);
		free(chunk);
	}
}

CUresult oki_cuda_chunk_take(struct oki_stream *stream, uint64_t bytes, void **ret_host,
			     CUdeviceptr *ret_device)
{
	CUresult result = CUDA_SUCCESS;
	struct oki_cuda_chunk *chunk = stream->chunks;
	while (chunk && chunk->bytes - chunk->used < bytes)
		chunk = chunk->next;
	if (!chunk)
		chunk = chunk_new(stream, bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES, &result);
	if (!chunk)
		return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
	*ret_host = chunk->host + chunk->used;
	*ret_device = chunk->device + chunk->used;
	chunk->used += bytes;
	return CUDA_SUCCESS;
}

void oki_cuda_chunks_empty(struct oki_stream *stream)
{
	for (struct oki_cuda_chunk *chunk = stream->chunks; chunk; chunk = chunk->next)
		chunk->used = chunk->kept;
}
