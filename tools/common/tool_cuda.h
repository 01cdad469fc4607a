/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The CUDA driver for the tools, loaded at run time; no CUDA header needed. */
#ifndef ORBITKV_TOOLS_TOOL_CUDA_H
#define ORBITKV_TOOLS_TOOL_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include "tool_base.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

typedef unsigned long long tool_device_address;

/* Driver calls; each returns a CUresult. */
struct tool_cuda_calls {
	int (*init)(unsigned flags);
	int (*driver_version)(int *ret_version);
	int (*device_get)(int *ret_device, int ordinal);
	int (*device_name)(char *name, int size, int device);
	int (*context_retain)(struct CUctx_st **ret_context, int device);
	int (*context_release)(int device);
	int (*context_set_current)(struct CUctx_st *context);
	int (*context_synchronize)(void);
	int (*memory_info)(size_t *ret_free, size_t *ret_total);
	int (*memory_alloc)(tool_device_address *ret_address, size_t bytes);
	int (*memory_free)(tool_device_address address);
	int (*memory_set)(tool_device_address to, unsigned char byte, size_t bytes);
	int (*host_register)(void *base, size_t bytes, unsigned flags);
	int (*host_unregister)(void *base);
	int (*to_device)(tool_device_address to, const void *from, size_t bytes);
	int (*to_host)(void *to, tool_device_address from, size_t bytes);
	int (*to_device_async)(tool_device_address to, const void *from, size_t bytes,
			       struct CUstream_st *stream);
	int (*to_host_async)(void *to, tool_device_address from, size_t bytes,
			     struct CUstream_st *stream);
	int (*stream_create)(struct CUstream_st **ret_stream, unsigned flags);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*event_create)(struct CUevent_st **ret_event, unsigned flags);
	int (*event_destroy)(struct CUevent_st *event);
	int (*event_record)(struct CUevent_st *event, struct CUstream_st *stream);
	int (*event_query)(struct CUevent_st *event);
	int (*event_synchronize)(struct CUevent_st *event);
};

struct tool_cuda {
	struct tool_cuda_calls cu;
	void *library;
	struct CUctx_st *context; /* the primary one of the first GPU */
	int device;
	int driver; /* 13000 and so on */
	char name[96];
};

/*
 * The context is current on the calling thread then. TOOL_SKIPPED with the reason in text
 * (TOOL_TEXT bytes) where there is no GPU.
 */
int tool_cuda_open(struct tool_cuda *ret_cuda, char *text);
/* Nothing of it may be in use any more. For one that is all zeros, too. */
void tool_cuda_close(struct tool_cuda *cuda);
/* TOOL_OK for 0; TOOL_SKIPPED, and who says which CUDA error, in text. */
int tool_cuda_said(int result, const char *what, char *text);

/* ---- calls of any library ---- */

struct tool_symbol {
	const char *name;
	size_t offset; /* of the pointer to the call */
};

/* Into ret_calls. The first name that the library lacks, or NULL. */
const char *tool_symbols_load(void *library, const struct tool_symbol *symbols, size_t count,
			      void *ret_calls);

#endif
