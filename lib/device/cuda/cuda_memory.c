/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Is this memory the GPU's? */
#include "device/cuda/cuda_device.h"

#include "base/checked.h"
#include "base/error.h"

/* An allocation of this GPU, or managed memory. */
struct range {
	uint64_t start;
	uint64_t size;
	bool mapped; /* of several mappings (cuMemMap), maybe with holes */
};

static bool find_range(struct oki_device *device, CUdeviceptr at, struct range *ret_range)
{
	const struct oki_cuda_api *api = device->api;
	CUdeviceptr start = 0;
	CUmemorytype type = (CUmemorytype)0;
	CUcontext context = NULL;
	int ordinal = -1, managed = 0;
	size_t size = 0;
	if (api->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS)
		return false;
	api->pointer_attribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
	if (type != CU_MEMORYTYPE_DEVICE && !managed)
		return false;
	api->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
	if (ordinal != device->device && !managed)
		return false;
	if (api->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) !=
		    CUDA_SUCCESS ||
	    api->pointer_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at) != CUDA_SUCCESS)
		return false;
	/* Memory without a context was mapped by cuMemMap or comes from a pool. */
	api->pointer_attribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
	*ret_range = (struct range){start, size, !context && !managed};
	return true;
}

/* Is each byte of [at, end) mapped? The range of such memory is only what is reserved. */
static bool is_mapped(struct oki_device *device, uint64_t at, uint64_t end)
{
	const struct oki_cuda_api *api = device->api;
	while (at < end) {
		CUdeviceptr start = 0;
		size_t size = 0;
		int mapped = 0, ordinal = -1;
		api->pointer_attribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at);
		api->pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
		if (!mapped || ordinal != device->device)
			return false;
		if (api->pointer_attribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at) !=
			    CUDA_SUCCESS ||
		    api->pointer_attribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at) !=
			    CUDA_SUCCESS ||
		    start + size <= at)
			return false;
		at = start + size;
	}
	return true;
}

/* Known allocations that this one overlaps are gone: their memory was freed and reused. */
static void remember(struct oki_device *device, uint64_t from, uint64_t to)
{
	for (uint32_t i = 0; i < device->tensor_count;) {
		const struct oki_cuda_tensor *known = &device->tensors[i];
		if (known->from == from && known->to == to)
			return;
		if (known->from < to && from < known->to)
			device->tensors[i] = device->tensors[--device->tensor_count];
		else
			i++;
	}
	if (device->tensor_count < OKI_CUDA_TENSORS)
		device->tensors[device->tensor_count++] = (struct oki_cuda_tensor){from, to};
}

int oki_cuda_check_range(struct oki_device *device, uint64_t base, uint64_t bytes,
			 struct okv_error *err)
{
	struct range range;
	if (!find_range(device, base, &range))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%#llx is no memory of GPU %d", (unsigned long long)base,
				device->index);
	if (bytes == 0 || base < range.start || !oki_within(base - range.start, bytes, range.size))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%llu bytes at %#llx do not lie in one allocation: GPU %d has "
				"%llu bytes at %#llx",
				(unsigned long long)bytes, (unsigned long long)base, device->index,
				(unsigned long long)range.size, (unsigned long long)range.start);
	if (range.mapped && !is_mapped(device, base, base + bytes))
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_REGISTER,
				"%llu bytes at %#llx are reserved on GPU %d, but not all mapped",
				(unsigned long long)bytes, (unsigned long long)base, device->index);
	/* Not for several mappings: the driver refuses a copy that spans two with a hole between.
	 */
	if (!range.mapped)
		remember(device, range.start, range.start + range.size);
	return 0;
}

const struct oki_cuda_tensor *oki_cuda_tensor_of(const struct oki_device *device, const void *at)
{
	for (uint32_t i = 0; i < device->tensor_count; i++)
		if (oki_cuda_is_in(&device->tensors[i], at))
			return &device->tensors[i];
	return NULL;
}
