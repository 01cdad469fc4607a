/* SPDX-License-Identifier: Apache-2.0 */
/* [E] GPU memory for KV layers, through the driver API loaded at run time. */
#ifndef CUDA_PAGES_H
#define CUDA_PAGES_H

#include <stddef.h>
#include <stdint.h>

struct CUevent_st;
struct cuda_pages;

/**
 * One allocation and one event per layer in the primary context of the device. Every call makes
 * that context current on its thread. Returns 0, or -1 with the reason in ret_reason (always
 * terminated).
 */
int cuda_pages_create(int device, uint32_t layers, size_t layer_bytes, struct cuda_pages **ret_p,
		      char ret_reason[200]);
/** NULL is allowed. Nothing may use the memory or the events any more. */
void cuda_pages_destroy(struct cuda_pages *p);

void *cuda_pages_base(const struct cuda_pages *p, uint32_t layer);
struct CUevent_st *cuda_pages_event(const struct cuda_pages *p, uint32_t layer);

/** Copy a whole layer, in the order of the null stream. 0 or a CUresult. */
int cuda_pages_upload(struct cuda_pages *p, uint32_t layer, const void *from);
int cuda_pages_download(struct cuda_pages *p, uint32_t layer, void *to);
/** Block until what the layer's event was recorded behind is done. 0 or a CUresult. */
int cuda_pages_wait_event(struct cuda_pages *p, uint32_t layer);

#endif
