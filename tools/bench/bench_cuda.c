/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The baselines' streams and events on a GPU. */
#include "bench_cuda.h"
#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_DISABLE_TIMING 0x2u
#define STREAM_NON_BLOCKING 0x1u
#define NOT_READY 600

static int create_streams(struct bench_cuda *cuda, char *text)
{
	const struct tool_cuda_calls *cu = &cuda->gpu.cu;
	int result = cu->stream_create(&cuda->user, STREAM_NON_BLOCKING);

	for (int i = 0; i < 2 && result == 0; i++) {
		result = cu->stream_create(&cuda->streams[i], STREAM_NON_BLOCKING);
		if (result == 0)
			result = cu->event_create(&cuda->done[i], EVENT_DISABLE_TIMING);
	}
	return tool_cuda_said(result, "cuStreamCreate", text);
}

int bench_cuda_open(struct bench_cuda **ret_cuda, char *text)
{
	struct bench_cuda *cuda = calloc(1, sizeof(*cuda));
	void *batch;
	int rc;

	if (cuda == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	rc = tool_cuda_open(&cuda->gpu, text);
	if (rc == TOOL_OK) {
		/* The form of CUDA 13; the one of 12.8 takes one more argument. */
		batch = dlsym(cuda->gpu.library, "cuMemcpyBatchAsync_v2");
		memcpy(&cuda->batch, &batch, sizeof(batch));
		rc = create_streams(cuda, text);
	}
	if (rc != TOOL_OK) {
		bench_cuda_close(cuda);
		return rc;
	}
	*ret_cuda = cuda;
	return TOOL_OK;
}

void bench_cuda_close(struct bench_cuda *cuda)
{
	if (cuda == NULL)
		return;
	for (uint32_t l = 0; l < cuda->layer_events; l++)
		cuda->gpu.cu.event_destroy(cuda->layers[l]);
	for (int i = 0; i < 2; i++) {
		if (cuda->done[i] != NULL)
			cuda->gpu.cu.event_destroy(cuda->done[i]);
		if (cuda->streams[i] != NULL)
			cuda->gpu.cu.stream_destroy(cuda->streams[i]);
	}
	if (cuda->user != NULL)
		cuda->gpu.cu.stream_destroy(cuda->user);
	tool_cuda_close(&cuda->gpu);
	free(cuda);
}

int bench_cuda_events(struct bench_cuda *cuda, uint32_t count)
{
	while (cuda->layer_events < count) {
		int result = cuda->gpu.cu.event_create(&cuda->layers[cuda->layer_events],
						       EVENT_DISABLE_TIMING);

		if (result != 0)
			return result;
		cuda->layer_events++;
	}
	return 0;
}

int bench_cuda_poll(struct bench_cuda *cuda, struct CUevent_st *event)
{
	int result;

	do
		result = cuda->gpu.cu.event_query(event);
	while (result == NOT_READY);
	return result;
}

int bench_cuda_batch(struct bench_cuda *cuda, tool_device_address *to, tool_device_address *from,
		     size_t *sizes, size_t count, struct CUstream_st *stream)
{
	struct bench_copy_attributes attributes = {.source_order = 1};
	size_t start = 0;

	return count > 0 ? cuda->batch(to, from, sizes, count, &attributes, &start, 1, stream) : 0;
}
