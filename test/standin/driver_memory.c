/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's memory: who may touch which bytes by which address. */
#include "standin/standin_driver.h"

#include <stdlib.h>
#include <string.h>

/* What drivers refuse to register at once. */
#define REGISTER_LIMIT (1ull << 39)
/* From the CPU's address to the GPU's: no address of one is ever one of the other. Registrations
 * lie further away, and each at a distance of its own. */
#define DEVICE_SHIFT (1ull << 44)
#define PINNED_SHIFT (1ull << 45)
#define PINNED_STEP (1ull << 40)
#define PINNED_STEPS 8u
#define FRESH 0xee /* what new memory holds */

enum kind { MEMORY, REGISTERED, ALLOCATED };

struct region {
	struct region *next;
	enum kind kind;
	uint8_t *host;
	uint64_t bytes;
	CUdeviceptr at;
	bool read_only;
};

static pthread_rwlock_t regions_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct region *regions;
static uint32_t steps;
static uint64_t pinned_limit = UINT64_MAX;

void standin_pinned_limit(uint64_t bytes)
{
	pthread_rwlock_wrlock(&regions_lock);
	pinned_limit = bytes;
	pthread_rwlock_unlock(&regions_lock);
}

static bool holds(uint64_t from, uint64_t bytes, uint64_t at)
{
	return at >= from && at - from < bytes;
}

static uint32_t *count_of(enum kind kind)
{
	if (kind == MEMORY)
		return &standin_now.allocations;
	return kind == REGISTERED ? &standin_now.registrations : &standin_now.pinned;
}

/* With the lock held. */
static bool is_taken(CUdeviceptr at, uint64_t bytes)
{
	for (const struct region *r = regions; r; r = r->next)
		if (at < r->at + r->bytes && r->at < at + bytes)
			return true;
	return false;
}

static CUresult add(enum kind kind, void *host, uint64_t bytes, bool read_only, CUdeviceptr *ret_at)
{
	struct region *region = calloc(1, sizeof(*region));
	if (!region)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*region = (struct region){NULL, kind, host, bytes, 0, read_only};
	region->at = (CUdeviceptr)(uintptr_t)host + DEVICE_SHIFT;
	pthread_rwlock_wrlock(&regions_lock);
	do {
		if (kind != MEMORY)
			region->at = (CUdeviceptr)(uintptr_t)host + PINNED_SHIFT +
				     steps++ % PINNED_STEPS * PINNED_STEP;
	} while (kind != MEMORY && is_taken(region->at, bytes));
	region->next = regions;
	regions = region;
	pthread_rwlock_unlock(&regions_lock);
	standin_count(count_of(kind), 1);
	if (ret_at)
		*ret_at = region->at;
	return CUDA_SUCCESS;
}

static bool starts(const struct region *r, enum kind kind, uint64_t address)
{
	return r->kind == kind &&
	       (kind == MEMORY ? r->at == address : (uintptr_t)r->host == address);
}

/* Returns where the CPU has it, or NULL: there is none. */
static uint8_t *take(enum kind kind, uint64_t address)
{
	pthread_rwlock_wrlock(&regions_lock);
	struct region **at = &regions;
	while (*at && !starts(*at, kind, address))
		at = &(*at)->next;
	struct region *region = *at;
	if (region)
		*at = region->next;
	pthread_rwlock_unlock(&regions_lock);
	if (!region)
		return NULL;
	uint8_t *host = region->host;
	free(region);
	standin_count(count_of(kind), -1);
	return host;
}

/* The region whose GPU addresses, or whose CPU addresses, hold this one. */
static bool find(uint64_t address, bool by_cpu, struct region *ret_region)
{
	bool found = false;
	pthread_rwlock_rdlock(&regions_lock);
	for (const struct region *r = regions; r && !found; r = r->next) {
		if (by_cpu && r->kind == MEMORY)
			continue;
		found = holds(by_cpu ? (uintptr_t)r->host : r->at, r->bytes, address);
		if (found)
			*ret_region = *r;
	}
	pthread_rwlock_unlock(&regions_lock);
	return found;
}

static uint8_t *reach(uint64_t address, uint64_t bytes, bool by_cpu, bool memory,
		      enum standin_use use)
{
	struct region r;
	if (!find(address, by_cpu, &r))
		standin_stop("%#llx is %s", (unsigned long long)address,
			     by_cpu ? "not pinned" : "no address of the GPU's");
	uint64_t offset = address - (by_cpu ? (uintptr_t)r.host : r.at);
	if ((r.kind == MEMORY) != memory)
		standin_stop("%#llx is %s memory", (unsigned long long)address,
			     memory ? "no GPU" : "GPU");
	if (bytes > r.bytes - offset)
		standin_stop("%llu bytes at %#llx leave their %llu by %llu",
			     (unsigned long long)bytes, (unsigned long long)address,
			     (unsigned long long)r.bytes,
			     (unsigned long long)(bytes - (r.bytes - offset)));
	if (use == STANDIN_WRITE && r.read_only)
		standin_stop("%#llx is registered read-only", (unsigned long long)address);
	return r.host + offset;
}

uint8_t *standin_device(CUdeviceptr at, uint64_t bytes)
{
	return reach(at, bytes, false, true, STANDIN_READ);
}

uint8_t *standin_mapped(CUdeviceptr at, uint64_t bytes, enum standin_use use)
{
	return reach(at, bytes, false, false, use);
}

uint8_t *standin_pinned(const void *host, uint64_t bytes, enum standin_use use)
{
	return reach((uintptr_t)host, bytes, true, false, use);
}

bool standin_is_pinned(const void *host)
{
	struct region r;
	return find((uintptr_t)host, true, &r);
}

bool standin_is_registered(const void *host)
{
	struct region r;
	return find((uintptr_t)host, true, &r) && r.kind == REGISTERED;
}

void *standin_see(CUdeviceptr at, uint64_t bytes)
{
	return standin_device(at, bytes);
}

/* ---- the GPU's memory ---- */

CUresult cuMemAlloc(CUdeviceptr *ret_at, size_t bytes)
{
	ENTER(STANDIN_IN_CONTEXT);
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	void *host = aligned_alloc(512, (bytes + 511) / 512 * 512);
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(host, FRESH, bytes);
	CUresult result = add(MEMORY, host, bytes, false, ret_at);
	if (result != CUDA_SUCCESS)
		free(host);
	return result;
}

CUresult cuMemFree(CUdeviceptr at)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	standin_wait_for_all();
	uint8_t *host = take(MEMORY, at);
	if (!host)
		standin_stop("%#llx is freed, but was not allocated", (unsigned long long)at);
	free(host);
	return result;
}

CUresult cuPointerGetAttribute(void *ret_value, CUpointer_attribute attribute, CUdeviceptr at)
{
	struct region r;
	ENTER(STANDIN_ANY);
	if (!find(at, false, &r))
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(CUmemorytype *)ret_value =
			r.kind == MEMORY ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)ret_value = 0; return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)ret_value = r.at; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)ret_value = r.bytes; break;
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)ret_value = standin_context(); break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* ---- the host's ---- */

static bool overlaps(const void *host, uint64_t bytes)
{
	bool found = false;
	uintptr_t from = (uintptr_t)host;
	pthread_rwlock_rdlock(&regions_lock);
	for (const struct region *r = regions; r && !found; r = r->next)
		found = r->kind != MEMORY && from < (uintptr_t)r->host + r->bytes &&
			(uintptr_t)r->host < from + bytes;
	pthread_rwlock_unlock(&regions_lock);
	return found;
}

CUresult cuMemHostRegister(void *host, size_t bytes, unsigned int flags)
{
	const unsigned needed = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	ENTER(STANDIN_IN_CONTEXT);
	if (bytes == 0 || bytes >= REGISTER_LIMIT || (flags & needed) != needed)
		return CUDA_ERROR_INVALID_VALUE;
	if (overlaps(host, bytes))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return add(REGISTERED, host, bytes, flags & CU_MEMHOSTREGISTER_READ_ONLY, NULL);
}

CUresult cuMemHostUnregister(void *host)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	if (!take(REGISTERED, (uintptr_t)host))
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	return result;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *ret_at, void *host, unsigned int flags)
{
	struct region r;
	ENTER(STANDIN_IN_CONTEXT);
	if (flags || !find((uintptr_t)host, true, &r))
		return CUDA_ERROR_INVALID_VALUE;
	*ret_at = r.at + (CUdeviceptr)((uint8_t *)host - r.host);
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **ret_host, size_t bytes, unsigned int flags)
{
	(void)flags;
	ENTER(STANDIN_IN_CONTEXT);
	pthread_rwlock_rdlock(&regions_lock);
	bool fits = bytes && (standin_is_exempt() || bytes <= pinned_limit);
	pthread_rwlock_unlock(&regions_lock);
	void *host = fits ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memset(host, FRESH, bytes);
	CUresult result = add(ALLOCATED, host, bytes, false, NULL);
	if (result == CUDA_SUCCESS)
		*ret_host = host;
	else
		free(host);
	return result;
}

CUresult cuMemFreeHost(void *host)
{
	CUresult result = standin_enter(__func__, STANDIN_IN_CONTEXT);
	standin_wait_for_all();
	if (!take(ALLOCATED, (uintptr_t)host))
		standin_stop("%p is freed, but was not allocated", host);
	free(host);
	return result;
}
