/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The rate of the link, measured when a GPU is first opened. It comes from the difference of a
 * long and a short copy, so that the constant cost of a copy cancels out; and from the fastest of a
 * few tries, since only other work makes a copy slower.
 */
#include "device/cuda/cuda_device.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"

#define LONG_BYTES (8u << 20)
#define SHORT_BYTES (2u << 20)
#define TRIES 5
/* Time limit of one direction: copies may be slow beside a model. */
#define MOST_NS 40000000u
#define DEVICES_MAX 16u

struct bench {
	const struct oki_cuda_api *api;
	CUstream stream;
	void *host;
	CUdeviceptr memory;
	enum oki_direction direction;
	CUresult result; /* of the first call that failed */
};

static double copy_ns(struct bench *b, uint64_t bytes)
{
	uint64_t start = oki_now_ns();
	CUresult result = b->direction == OKI_TO_PAGES
				  ? b->api->copy_to_device(b->memory, b->host, bytes, b->stream)
				  : b->api->copy_to_host(b->host, b->memory, bytes, b->stream);
	if (result == CUDA_SUCCESS)
		result = b->api->stream_synchronize(b->stream);
	if (b->result == CUDA_SUCCESS)
		b->result = result;
	return (double)(oki_now_ns() - start);
}

static double measure_direction(struct bench *b)
{
	const uint64_t end = oki_now_ns() + MOST_NS;
	double longer = copy_ns(b, LONG_BYTES), shorter = copy_ns(b, SHORT_BYTES);
	for (int i = 1; i < TRIES && oki_now_ns() < end; i++) {
		double l = copy_ns(b, LONG_BYTES), s = copy_ns(b, SHORT_BYTES);
		longer = l < longer ? l : longer;
		shorter = s < shorter ? s : shorter;
	}
	return longer > shorter ? (LONG_BYTES - SHORT_BYTES) / (longer - shorter) : 0;
}

static bool measure(const struct oki_device *device, double ret_link[2])
{
	struct bench b = {.api = device->api};
	b.result = b.api->stream_create(&b.stream, CU_STREAM_NON_BLOCKING, device->priority);
	if (b.result != CUDA_SUCCESS)
		return false;
	b.result = b.api->host_alloc(&b.host, LONG_BYTES, 0);
	if (b.result != CUDA_SUCCESS)
		goto undo_stream;
	b.result = b.api->memory_alloc(&b.memory, LONG_BYTES);
	if (b.result != CUDA_SUCCESS)
		goto undo_host;
	memset(b.host, 0x5a, LONG_BYTES);
	for (int d = 0; d < 2; d++) {
		b.direction = (enum oki_direction)d;
		double link = measure_direction(&b);
		/* An implausible rate comes from other work on the link. */
		ret_link[d] =
			link > OKI_CUDA_LEAST_LINK && link < 2000 ? link : OKI_CUDA_LEAST_LINK;
	}
	b.api->memory_free(b.memory);
undo_host:
	b.api->host_free(b.host);
undo_stream:
	b.api->stream_destroy(b.stream);
	return b.result == CUDA_SUCCESS;
}

void oki_cuda_link_measure(struct oki_device *device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		CUuuid id;
		double link[2];
	} known[DEVICES_MAX];
	static uint32_t known_count;
	CUuuid id = {{0}};
	double link[2];
	uint32_t i = 0;
	device->api->device_uuid(&id, device->device);
	pthread_mutex_lock(&lock);
	while (i < known_count && memcmp(&known[i].id, &id, sizeof(id)) != 0)
		i++;
	if (i < known_count) {
		memcpy(device->link, known[i].link, sizeof(device->link));
	} else if (measure(device, link)) {
		memcpy(device->link, link, sizeof(link));
		if (known_count < DEVICES_MAX) {
			known[known_count].id = id;
			memcpy(known[known_count++].link, link, sizeof(link));
		}
	}
	pthread_mutex_unlock(&lock);
}
