/* [B] Rows to copy-engine operations: few long ones first, one batched call for what is left. */
#include "device/cuda_device.h"

#include "base/error.h"
#include "device/rect.h"

/* Longer batches take more time for each entry. */
#define BATCH_MAX 64u

/*
 * Measured on an H200, as bytes at the link's rate: a 2-D copy costs 166 KiB beside its bytes; an
 * entry of a batched call costs 4 to 8 KiB beside its bytes, and 30 to 50 KiB at least.
 */
#define COPY_2D_COST (166u << 10)
#define ENTRY_COST (8u << 10)
#define ENTRY_LEAST (40u << 10)

struct emitter {
	const struct oki_cuda_api *api;
	CUstream stream;
	enum oki_direction direction;
	uint32_t count;
	CUdeviceptr to[BATCH_MAX];
	CUdeviceptr from[BATCH_MAX];
	size_t bytes[BATCH_MAX];
};

static CUresult emit_1d(struct emitter *e, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	if (e->direction == OKI_TO_PAGES)
		return e->api->copy_to_device(to, (const void *)(uintptr_t)from, bytes, e->stream);
	return e->api->copy_to_host((void *)(uintptr_t)to, from, bytes, e->stream);
}

static bool has_batch(const struct emitter *e)
{
#if OKI_CUDA_HAS_BATCH
	return e->api->copy_batch != NULL;
#else
	(void)e;
	return false;
#endif
}

static CUresult flush(struct emitter *e)
{
	CUresult result = CUDA_SUCCESS;
	uint32_t done = 0;
#if OKI_CUDA_HAS_BATCH
	if (e->count > 1 && has_batch(e)) {
		CUmemcpyAttributes attributes = {
			.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
		};
		size_t first = 0;
		result = e->api->copy_batch(e->to, e->from, e->bytes, e->count, &attributes, &first,
					    1, e->stream);
		done = e->count;
	}
#endif
	for (; done < e->count && result == CUDA_SUCCESS; done++)
		result = emit_1d(e, e->to[done], e->from[done], e->bytes[done]);
	e->count = 0;
	return result;
}

static CUresult add_row(struct emitter *e, uint8_t *host, uint8_t *device, uint64_t bytes)
{
	bool to_pages = e->direction == OKI_TO_PAGES;
	e->to[e->count] = (CUdeviceptr)(to_pages ? device : host);
	e->from[e->count] = (CUdeviceptr)(to_pages ? host : device);
	e->bytes[e->count] = bytes;
	return ++e->count == BATCH_MAX ? flush(e) : CUDA_SUCCESS;
}

/* Rows at one constant distance. */
struct rows {
	uint8_t *host;
	uint8_t *device;
	uint64_t width;
	uint64_t count;
	uint64_t host_pitch;
	uint64_t device_pitch;
};

static bool fits_2d(const struct rows *rows)
{
	return rows->host_pitch >= rows->width && rows->device_pitch >= rows->width &&
	       rows->host_pitch <= OKI_CUDA_MAX_PITCH && rows->device_pitch <= OKI_CUDA_MAX_PITCH;
}

static CUresult emit_2d(struct emitter *e, const struct rows *rows)
{
	CUDA_MEMCPY2D copy = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = rows->host,
		.srcPitch = rows->host_pitch,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = (CUdeviceptr)rows->device,
		.dstPitch = rows->device_pitch,
		.WidthInBytes = rows->width,
		.Height = rows->count,
	};
	if (e->direction == OKI_TO_BLOCKS) {
		copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
		copy.srcHost = NULL;
		copy.srcDevice = (CUdeviceptr)rows->device;
		copy.srcPitch = rows->device_pitch;
		copy.dstMemoryType = CU_MEMORYTYPE_HOST;
		copy.dstDevice = 0;
		copy.dstHost = rows->host;
		copy.dstPitch = rows->host_pitch;
	}
	return e->api->copy_2d(&copy, e->stream);
}

/* Would entries of a batch cost more than one 2-D copy? */
static bool pays_2d(const struct emitter *e, const struct rows *rows)
{
	if (!has_batch(e))
		return rows->count > 1;
	uint64_t entry = rows->width + ENTRY_COST;
	if (entry < ENTRY_LEAST)
		entry = ENTRY_LEAST;
	return rows->count * (entry - rows->width) > COPY_2D_COST;
}

static CUresult add_rows(struct emitter *e, const struct rows *rows)
{
	if (pays_2d(e, rows) && fits_2d(rows))
		return emit_2d(e, rows);
	for (uint64_t i = 0; i < rows->count; i++) {
		CUresult result = add_row(e, rows->host + i * rows->host_pitch,
					  rows->device + i * rows->device_pitch, rows->width);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

/* Two loops make as many 2-D copies as the shorter one has rounds. */
static CUresult add_rect(struct emitter *e, const struct oki_rect *r)
{
	bool by_outer = r->outer <= r->inner;
	uint64_t rounds = by_outer ? r->outer : r->inner;
	for (uint64_t i = 0; i < rounds; i++) {
		struct rows rows = {
			.host = r->host + i * (by_outer ? r->host_outer : r->host_inner),
			.device = r->device + i * (by_outer ? r->device_outer : r->device_inner),
			.width = r->width,
			.count = by_outer ? r->inner : r->outer,
			.host_pitch = by_outer ? r->host_inner : r->host_outer,
			.device_pitch = by_outer ? r->device_inner : r->device_outer,
		};
		CUresult result = add_rows(e, &rows);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

static CUresult add_run(struct emitter *e, const struct oki_layer_map *map,
			const struct oki_run *run)
{
	for (uint32_t s = 0; s < map->segment_count; s++) {
		struct oki_rect rect = oki_rect(map, run, s);
		CUresult result = add_rect(e, &rect);
		if (result != CUDA_SUCCESS)
			return result;
	}
	return CUDA_SUCCESS;
}

int oki_cuda_copy(const struct oki_cuda_api *api, CUstream stream, enum oki_direction direction,
		  const struct oki_layer_map *map, const struct oki_run *runs, uint32_t run_count,
		  struct okv_error *err)
{
	struct emitter e;
	e.api = api;
	e.stream = stream;
	e.direction = direction;
	e.count = 0;
	struct oki_layer_map joined;
	oki_join_segments(map, &joined);
	CUresult result = CUDA_SUCCESS;
	for (uint32_t i = 0; i < run_count && result == CUDA_SUCCESS; i++)
		result = add_run(&e, oki_run_is_joinable(&runs[i]) ? &joined : map, &runs[i]);
	if (result == CUDA_SUCCESS)
		result = flush(&e);
	if (result == CUDA_SUCCESS)
		return 0;
	return oki_cuda_fail(err, OKV_E_COPY, OKV_STAGE_SUBMIT, api, result,
			     "the GPU did not accept a copy");
}
