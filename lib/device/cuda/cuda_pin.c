/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Host memory registered with CUDA, once per process. */
#include "device/cuda/cuda_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A pinned arena. Retains the context that registered it, as a registration ends with its context.
 */
struct pin {
	struct pin *next;
	uint8_t *base;
	uint64_t bytes;
	uint64_t each; /* bytes of each registration, the last one excepted */
	bool read_only;
	uint32_t count;
	const struct oki_cuda_api *api;
	CUdevice device;
	CUcontext context;
};

/* lock is held while the driver registers, which takes seconds. Copies take only list_lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t list_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct pin *pins; /* changed with both locks held */
static _Atomic uint32_t split_pins;

static struct pin **find(const void *base)
{
	struct pin **at = &pins;
	while (*at && (*at)->base != base)
		at = &(*at)->next;
	return at;
}

static int pin_again(struct pin *pin, uint64_t bytes, bool read_only, struct okv_error *err)
{
	if (pin->bytes != bytes)
		return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_IMPORT,
				"%p is pinned with %llu bytes, not %llu", (void *)pin->base,
				(unsigned long long)pin->bytes, (unsigned long long)bytes);
	if (pin->read_only && !read_only)
		return oki_fail(err, OKV_E_EXISTS, OKV_STAGE_IMPORT, "%p is pinned read-only",
				(void *)pin->base);
	pin->count++;
	return 0;
}

static unsigned register_flags(const struct oki_device *device, bool read_only)
{
	int supported = 0;
	unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	if (read_only)
		device->api->device_attribute(&supported,
					      CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
					      device->device);
	return supported ? flags | CU_MEMHOSTREGISTER_READ_ONLY : flags;
}

static uint64_t registration_bytes(const struct pin *pin, uint64_t at)
{
	uint64_t left = pin->bytes - at;
	return left < pin->each ? left : pin->each;
}

/* Undo the registrations before `end`. Inside a scope. */
static void unregister_before(const struct pin *pin, uint64_t end)
{
	for (uint64_t at = 0; at < end; at += pin->each)
		pin->api->host_unregister(pin->base + at);
}

/* Register all or nothing. On failure *ret_at is the offset of the registration that failed, or
 * unchanged if none was tried. */
static CUresult register_all(const struct pin *pin, unsigned flags, uint64_t *ret_at)
{
	struct oki_cuda_scope scope;
	uint64_t at = 0;
	CUresult result = oki_cuda_enter(pin->api, pin->context, &scope);
	if (result != CUDA_SUCCESS)
		return result;
	while (at < pin->bytes) {
		result =
			pin->api->host_register(pin->base + at, registration_bytes(pin, at), flags);
		if (result != CUDA_SUCCESS)
			break;
		at += pin->each;
	}
	if (result != CUDA_SUCCESS) {
		unregister_before(pin, at);
		*ret_at = at;
	}
	oki_cuda_leave(&scope);
	return result;
}

static int register_memory(struct oki_device *device, struct pin *pin, struct okv_error *err)
{
	uint64_t at = 0;
	CUresult result = register_all(pin, register_flags(device, pin->read_only), &at);
	if (result == CUDA_SUCCESS)
		return 0;
	int status = OKV_E_UNSUPPORTED;
	if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		status = OKV_E_EXISTS;
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		status = OKV_E_NOMEM;
	return oki_cuda_fail(err, status, OKV_STAGE_IMPORT, pin->api, result,
			     "GPU %d cannot pin %llu bytes at %p", device->index,
			     (unsigned long long)registration_bytes(pin, at),
			     (void *)(pin->base + at));
}

/* With lock held. */
static void put_into_list(struct pin **at, struct pin *pin)
{
	pthread_rwlock_wrlock(&list_lock);
	*at = pin;
	if (pin->each < pin->bytes)
		atomic_fetch_add(&split_pins, 1);
	pthread_rwlock_unlock(&list_lock);
}

static void take_from_list(struct pin **at)
{
	struct pin *pin = *at;
	pthread_rwlock_wrlock(&list_lock);
	*at = pin->next;
	if (pin->each < pin->bytes)
		atomic_fetch_sub(&split_pins, 1);
	pthread_rwlock_unlock(&list_lock);
}

static int pin_first(struct oki_device *device, struct pin **at, void *base, uint64_t bytes,
		     bool read_only, struct okv_error *err)
{
	const struct oki_cuda_api *api = device->api;
	struct pin *pin = malloc(sizeof(*pin));
	if (!pin)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_IMPORT, "no memory to pin an arena");
	*pin = (struct pin){
		.base = base,
		.bytes = bytes,
		.each = device->pin_limit,
		.read_only = read_only,
		.count = 1,
		.api = api,
		.device = device->device,
	};
	int rc;
	CUresult result = api->primary_retain(&pin->context, pin->device);
	if (result != CUDA_SUCCESS) {
		rc = oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_IMPORT, api, result,
				   "GPU %d has no context", device->index);
		goto undo_alloc;
	}
	rc = register_memory(device, pin, err);
	if (rc < 0)
		goto undo_retain;
	put_into_list(at, pin);
	return 0;

undo_retain:
	api->primary_release(pin->device);
undo_alloc:
	free(pin);
	return rc;
}

int oki_cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		 struct okv_error *err)
{
	pthread_mutex_lock(&lock);
	struct pin **at = find(base);
	int rc = *at ? pin_again(*at, bytes, read_only, err)
		     : pin_first(device, at, base, bytes, read_only, err);
	pthread_mutex_unlock(&lock);
	return rc;
}

void oki_cuda_unpin(void *base)
{
	pthread_mutex_lock(&lock);
	struct pin **at = find(base);
	struct pin *pin = *at;
	if (pin && --pin->count == 0) {
		struct oki_cuda_scope scope;
		take_from_list(at);
		if (oki_cuda_enter(pin->api, pin->context, &scope) == CUDA_SUCCESS) {
			unregister_before(pin, pin->bytes);
			oki_cuda_leave(&scope);
		}
		pin->api->primary_release(pin->device);
		free(pin);
	}
	pthread_mutex_unlock(&lock);
}

bool oki_cuda_pin_limit(const char *text, uint64_t *ret_bytes)
{
	static const char suffixes[] = "KMGT";
	char *end;
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno)
		return false;
	if (*end) {
		const char *suffix = strchr(suffixes, *end);
		unsigned shift = suffix ? 10u * (unsigned)(suffix - suffixes + 1) : 64;
		if (!suffix || end[1] || value > UINT64_MAX >> shift)
			return false;
		value <<= shift;
	}
	if (value == 0 || value % OKI_CUDA_PIN_UNIT != 0)
		return false;
	*ret_bytes = value;
	return true;
}

/* Shrink the span around `at` so that no end of one of this arena's registrations is inside. */
static void shrink_span(const struct pin *pin, uintptr_t at, struct oki_cuda_span *span)
{
	uintptr_t base = (uintptr_t)pin->base;
	if (at < base) {
		span->to = base < span->to ? base : span->to;
	} else if (at - base >= pin->bytes) {
		uintptr_t end = base + pin->bytes;
		span->from = end > span->from ? end : span->from;
	} else {
		uint64_t start = (at - base) / pin->each * pin->each;
		span->from = base + start;
		span->to = span->from + registration_bytes(pin, start);
	}
}

void oki_cuda_span(const void *host, struct oki_cuda_span *ret_span)
{
	struct oki_cuda_span span = {0, UINTPTR_MAX};
	/* Arenas that others pin or unpin meanwhile do not matter: the caller's own stays pinned
	 * during the call. */
	if (atomic_load(&split_pins) > 0) {
		pthread_rwlock_rdlock(&list_lock);
		for (const struct pin *pin = pins; pin; pin = pin->next)
			if (pin->each < pin->bytes)
				shrink_span(pin, (uintptr_t)host, &span);
		pthread_rwlock_unlock(&list_lock);
	}
	*ret_span = span;
}

/* ---- the mappings of one device ---- */

/* The distance from a CPU address to the GPU's; 0 on most systems. */
static CUresult find_device_offset(struct oki_device *device, void *base, uint64_t *ret_offset)
{
	struct oki_cuda_scope scope;
	CUdeviceptr at = 0;
	CUresult result = oki_cuda_enter(device->api, device->context, &scope);
	if (result != CUDA_SUCCESS)
		return result;
	result = device->api->host_device_pointer(&at, base, 0);
	oki_cuda_leave(&scope);
	*ret_offset = at - (uint64_t)(uintptr_t)base;
	return result;
}

/* The length of the registration at `at`. It may differ from this device's limit: another device
 * may have pinned the arena first. */
static uint64_t known_registration_bytes(const uint8_t *at, uint64_t bytes)
{
	struct oki_cuda_span span;
	oki_cuda_span(at, &span);
	uint64_t whole = span.to - (uintptr_t)at;
	return whole < bytes ? whole : bytes;
}

static uint32_t count_registrations(const uint8_t *base, uint64_t bytes)
{
	uint32_t count = 0;
	for (uint64_t at = 0; at < bytes; at += known_registration_bytes(base + at, bytes - at))
		count++;
	return count;
}

static void update_arena_split(struct oki_device *device)
{
	device->arena_split = false;
	for (uint32_t i = 0; i < device->mapping_count; i++)
		device->arena_split |= device->mappings[i].registrations > 1;
}

int oki_cuda_mapping_add(struct oki_device *device, uint8_t *base, uint64_t bytes,
			 struct okv_error *err)
{
	uint32_t count = count_registrations(base, bytes);
	struct oki_cuda_mapping *mappings =
		realloc(device->mappings, (device->mapping_count + count) * sizeof(*mappings));
	if (!mappings)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_IMPORT, "no memory to pin an arena");
	device->mappings = mappings;
	mappings += device->mapping_count;
	uint64_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		mappings[i] = (struct oki_cuda_mapping){
			.base = base + at,
			.bytes = known_registration_bytes(base + at, bytes - at),
			.registrations = i == 0 ? count : 0,
		};
		CUresult result = find_device_offset(device, base + at, &mappings[i].device_offset);
		if (result != CUDA_SUCCESS)
			return oki_cuda_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_IMPORT, device->api,
					     result, "GPU %d does not see memory pinned at %p",
					     device->index, (void *)(base + at));
		at += mappings[i].bytes;
	}
	device->mapping_count += count;
	update_arena_split(device);
	return 0;
}

void oki_cuda_mapping_remove(struct oki_device *device, const void *base)
{
	struct oki_cuda_mapping *mappings = device->mappings;
	uint32_t i = 0;
	while (i < device->mapping_count &&
	       !(mappings[i].base == base && mappings[i].registrations))
		i++;
	if (i == device->mapping_count)
		return;
	uint32_t count = mappings[i].registrations;
	device->mapping_count -= count;
	memmove(&mappings[i], &mappings[i + count],
		(device->mapping_count - i) * sizeof(*mappings));
	update_arena_split(device);
}

bool oki_cuda_crosses_registration(const struct oki_device *device, const uint8_t *host,
				   uint64_t bytes)
{
	struct oki_cuda_span span;
	if (!device->arena_split)
		return false;
	oki_cuda_span(host, &span);
	return bytes > span.to - (uintptr_t)host;
}
