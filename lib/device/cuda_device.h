/* [B] Between the files of the CUDA devices. */
#ifndef OKI_DEVICE_CUDA_DEVICE_H
#define OKI_DEVICE_CUDA_DEVICE_H

#include "device/cuda_api.h"
#include "device/device.h"

struct oki_device {
	const struct oki_cuda_api *api;
	int32_t index;
	CUdevice device;
	CUcontext context; /* the primary one, retained */
};

/*
 * Every driver call stands between these. The caller's current context comes back, and its thread
 * counts as relaxed meanwhile: another thread that captures a graph in global mode would
 * otherwise have its capture broken by our queries.
 */
struct oki_cuda_scope {
	const struct oki_cuda_api *api;
	CUstreamCaptureMode mode;
};

CUresult oki_cuda_enter(const struct oki_cuda_api *api, CUcontext context,
			struct oki_cuda_scope *ret_scope);
void oki_cuda_leave(struct oki_cuda_scope *scope);

/*
 * Register host memory for every context of the process, counted per base for the process: two
 * devices, or two bindings of one, may bring the same arena.
 */
int oki_cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		 struct okv_error *err);
void oki_cuda_unpin(void *base);

/* Queue one layer with as few operations as the rows allow. Inside a scope. */
int oki_cuda_copy(const struct oki_cuda_api *api, CUstream stream, enum oki_direction direction,
		  const struct oki_layer_map *map, const struct oki_run *runs, uint32_t run_count,
		  struct okv_error *err);

/* Both pitches of a 2-D copy: CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far. */
#define OKI_CUDA_MAX_PITCH 0x7fffffffu

#endif
