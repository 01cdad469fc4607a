/* [E] The CUDA driver and cuBLAS for orbitkv-bench, loaded at run time; no CUDA header needed. */
#ifndef ORBITKV_TOOLS_BENCH_CUDA_H
#define ORBITKV_TOOLS_BENCH_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

/* As the driver lays it out; a batch of plain copies in stream order. */
struct bench_copy_attributes {
	int source_order; /* 1: in stream order */
	int source_hint[2];
	int target_hint[2];
	unsigned flags;
};

typedef unsigned long long bench_device_address;

/* Driver calls; each returns a CUresult. */
struct bench_cuda_calls {
	int (*init)(unsigned flags);
	int (*driver_version)(int *ret_version);
	int (*device_get)(int *ret_device, int ordinal);
	int (*device_name)(char *name, int size, int device);
	int (*context_retain)(struct CUctx_st **ret_context, int device);
	int (*context_release)(int device);
	int (*context_set_current)(struct CUctx_st *context);
	int (*context_synchronize)(void);
	int (*memory_info)(size_t *ret_free, size_t *ret_total);
	int (*memory_alloc)(bench_device_address *ret_address, size_t bytes);
	int (*memory_free)(bench_device_address address);
	int (*memory_set)(bench_device_address to, unsigned char byte, size_t bytes);
	int (*host_register)(void *base, size_t bytes, unsigned flags);
	int (*host_unregister)(void *base);
	int (*to_device)(bench_device_address to, const void *from, size_t bytes);
	int (*to_host)(void *to, bench_device_address from, size_t bytes);
	int (*to_device_async)(bench_device_address to, const void *from, size_t bytes,
			       struct CUstream_st *stream);
	int (*to_host_async)(void *to, bench_device_address from, size_t bytes,
			     struct CUstream_st *stream);
	int (*stream_create)(struct CUstream_st **ret_stream, unsigned flags);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*event_create)(struct CUevent_st **ret_event, unsigned flags);
	int (*event_destroy)(struct CUevent_st *event);
	int (*event_record)(struct CUevent_st *event, struct CUstream_st *stream);
	int (*event_query)(struct CUevent_st *event);
	int (*event_synchronize)(struct CUevent_st *event);
};

typedef int bench_batch_fn(bench_device_address *to, bench_device_address *from, size_t *sizes,
			   size_t count, struct bench_copy_attributes *attributes,
			   size_t *attribute_starts, size_t attribute_count,
			   struct CUstream_st *stream);

#define BENCH_EVENTS 1024 /* one per layer of the largest schema */

struct bench_cuda {
	struct bench_cuda_calls cu;
	bench_batch_fn *batch; /* NULL: a driver without the call */
	void *library;
	struct CUctx_st *context;
	int device;
	int driver; /* 13000 and so on */
	char name[96];
	struct CUstream_st *streams[2]; /* of the baselines: to the device, to the host */
	struct CUstream_st *user;	/* the caller's stream that every operation names ready */
	struct CUevent_st *done[2];
	struct CUevent_st *layers[BENCH_EVENTS];
	uint32_t layer_events;
};

struct bench_symbol {
	const char *name;
	size_t offset; /* of the pointer to the call */
};

/* Into ret_calls. The first name that the library lacks, or NULL. */
const char *bench_symbols_load(void *library, const struct bench_symbol *symbols, size_t count,
			       void *ret_calls);
/* TOOL_OK for 0; TOOL_SKIPPED, and who says which CUDA error, in text. */
int bench_cuda_said(int result, const char *what, char *text);

/* TOOL_SKIPPED with the reason in text (TOOL_TEXT bytes) where there is no GPU. */
int bench_cuda_open(struct bench_cuda **ret_cuda, char *text);
void bench_cuda_close(struct bench_cuda *cuda);
/* So that the events of at least count layers exist. */
int bench_cuda_events(struct bench_cuda *cuda, uint32_t count);
/* Poll until the event is reached, as a latency measurement wants. A CUresult. */
int bench_cuda_poll(struct bench_cuda *cuda, struct CUevent_st *event);

/* One batched call, where the driver has it. A CUresult. */
int bench_cuda_batch(struct bench_cuda *cuda, bench_device_address *to, bench_device_address *from,
		     size_t *sizes, size_t count, struct CUstream_st *stream);

#endif
