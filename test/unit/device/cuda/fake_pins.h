/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's calls replaced by ones that keep the registrations, and that copy at once and look
 * where: no copy leaves its registration. For one test program each: driver is its own.
 */
#ifndef TEST_UNIT_FAKE_PINS_H
#define TEST_UNIT_FAKE_PINS_H

#include <check.h>
#include <string.h>

#include "device/cuda/cuda_device.h"

#define PIECES_MAX 4096

static struct {
	struct {
		uint8_t *at;
		size_t bytes;
	} pieces[PIECES_MAX];
	uint32_t count;	 /* registered now */
	uint32_t calls;	 /* of host_register */
	uint32_t refuse; /* this call, counted from 1; 0: none */
	CUresult why;
	void *unseen;
	int contexts; /* retained and pushed */
	int copies;   /* entries of batches among them */
	int two;
	bool to_pages; /* of batches, which do not say */
} driver;

static CUresult fake_register(void *at, size_t bytes, unsigned flags)
{
	(void)flags;
	if (++driver.calls == driver.refuse)
		return driver.why;
	ck_assert_int_gt(driver.contexts, 1);
	ck_assert_uint_lt(driver.count, PIECES_MAX);
	driver.pieces[driver.count].at = at;
	driver.pieces[driver.count++].bytes = bytes;
	return CUDA_SUCCESS;
}

static CUresult fake_unregister(void *at)
{
	uint32_t i = 0;
	while (i < driver.count && driver.pieces[i].at != at)
		i++;
	ck_assert_uint_lt(i, driver.count);
	driver.pieces[i] = driver.pieces[--driver.count];
	return CUDA_SUCCESS;
}

static CUresult fake_retain(CUcontext *ret_context, CUdevice device)
{
	(void)device;
	driver.contexts++;
	*ret_context = (CUcontext)(uintptr_t)64;
	return CUDA_SUCCESS;
}

static CUresult fake_release(CUdevice device)
{
	(void)device;
	driver.contexts--;
	return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
	(void)context;
	driver.contexts++;
	return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *ret_context)
{
	*ret_context = (CUcontext)(uintptr_t)64;
	driver.contexts--;
	return CUDA_SUCCESS;
}

static CUresult fake_mode(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

/* The GPU sees every piece somewhere else; the one at driver.unseen not at all. */
static CUresult fake_device_pointer(CUdeviceptr *ret_at, void *host, unsigned flags)
{
	(void)flags;
	uint32_t i = 0;
	while (i < driver.count && driver.pieces[i].at != host)
		i++;
	if (i == driver.count || host == driver.unseen)
		return CUDA_ERROR_INVALID_VALUE;
	*ret_at = (CUdeviceptr)(uintptr_t)host + 4096 * (i + 1);
	return CUDA_SUCCESS;
}

static CUresult fake_text(CUresult result, const char **ret_text)
{
	(void)result;
	*ret_text = "FAKE";
	return CUDA_SUCCESS;
}

static void in_one_piece(const void *host, uint64_t bytes)
{
	const uint8_t *at = host;
	uint32_t i = 0;
	while (i < driver.count &&
	       !(at >= driver.pieces[i].at && at < driver.pieces[i].at + driver.pieces[i].bytes))
		i++;
	ck_assert_msg(i < driver.count, "a copy outside all pieces");
	ck_assert_msg(bytes <= (uint64_t)(driver.pieces[i].at + driver.pieces[i].bytes - at),
		      "a copy spans two pieces");
}

static CUresult fake_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)stream;
	in_one_piece(from, bytes);
	driver.copies++;
	memcpy((void *)(uintptr_t)to, from, bytes);
	return CUDA_SUCCESS;
}

static CUresult fake_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)stream;
	in_one_piece(to, bytes);
	driver.copies++;
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return CUDA_SUCCESS;
}

static CUresult fake_2d(const CUDA_MEMCPY2D *c, CUstream stream)
{
	(void)stream;
	bool to_host = c->dstMemoryType == CU_MEMORYTYPE_HOST;
	const uint8_t *from = to_host ? (const void *)(uintptr_t)c->srcDevice : c->srcHost;
	uint8_t *to = to_host ? c->dstHost : (void *)(uintptr_t)c->dstDevice;
	ck_assert_uint_gt(c->Height, 0);
	in_one_piece(to_host ? to : from,
		     (c->Height - 1) * (to_host ? c->dstPitch : c->srcPitch) + c->WidthInBytes);
	driver.two++;
	for (size_t y = 0; y < c->Height; y++)
		memcpy(to + y * c->dstPitch, from + y * c->srcPitch, c->WidthInBytes);
	return CUDA_SUCCESS;
}

#if OKI_CUDA_HAS_BATCH
static CUresult fake_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
			   CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
			   CUstream stream)
{
	(void)attributes, (void)first, (void)attribute_count;
	for (size_t i = 0; i < count; i++) {
		if (driver.to_pages)
			fake_to_device(to[i], (const void *)(uintptr_t)from[i], bytes[i], stream);
		else
			fake_to_host((void *)(uintptr_t)to[i], from[i], bytes[i], stream);
	}
	return CUDA_SUCCESS;
}
#endif

/* Nothing is registered, no call was made. */
static struct oki_cuda_api fake(void)
{
	memset(&driver, 0, sizeof(driver));
	return (struct oki_cuda_api){
		.host_register = fake_register,
		.host_unregister = fake_unregister,
		.host_device_pointer = fake_device_pointer,
		.primary_retain = fake_retain,
		.primary_release = fake_release,
		.context_push = fake_push,
		.context_pop = fake_pop,
		.capture_mode_exchange = fake_mode,
		.copy_to_device = fake_to_device,
		.copy_to_host = fake_to_host,
		.copy_2d = fake_2d,
		.error_name = fake_text,
		.error_string = fake_text,
	};
}

#endif
