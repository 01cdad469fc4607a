/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Loading libcuda. */
#include "device/cuda/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/exit.h"
#include "base/fork.h"

#define LIBRARY "libcuda.so.1"
#define NAME(symbol) NAME_EXPANDED(symbol)
#define NAME_EXPANDED(symbol) #symbol

struct entry {
	const char *name;
	size_t offset;
	bool optional;
};

#define REQUIRED(field, symbol) {NAME(symbol), offsetof(struct oki_cuda_api, field), false},
#define OPTIONAL(field, symbol) {NAME(symbol), offsetof(struct oki_cuda_api, field), true},

static const struct entry entries[] = {
	OKI_CUDA_CALLS(REQUIRED) OKI_CUDA_OPTIONAL_CALLS(OPTIONAL) OKI_CUDA_TIME_CALLS(OPTIONAL)
#if OKI_CUDA_HAS_BATCH
		{OKI_CUDA_BATCH_NAME, offsetof(struct oki_cuda_api, copy_batch), true},
	{OKI_CUDA_BATCH_12_NAME, offsetof(struct oki_cuda_api, copy_batch_12), true},
#endif
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct oki_cuda_api loaded;
static struct okv_error failure;   /* status 0 once loaded */
static _Atomic uint64_t loaded_in; /* the generation that began to load; 0: nobody did */
static _Atomic bool failed;	   /* to load, in that generation */

/* The library is never closed: the driver has threads and exit handlers of its own. */
static void try_to_load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		oki_fail(&failure, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
			 "no CUDA driver on this machine: %s", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		void *address = dlsym(library, entries[i].name);
		if (!address && !entries[i].optional) {
			oki_fail(&failure, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
				 "the CUDA driver is too old: " LIBRARY " has no %s",
				 entries[i].name);
			return;
		}
		/* ISO C has no conversion from an object pointer to a function pointer. */
		memcpy((char *)&loaded + entries[i].offset, &address, sizeof(address));
	}
	CUresult result = loaded.init(0);
	/* Handlers run last to first, so this one comes before those that the driver has by now.
	 * Should there be no memory for it, what the driver answers when it is shut down says the
	 * same. */
	(void)atexit(oki_exit_begins);
	if (result != CUDA_SUCCESS)
		oki_cuda_fail(&failure, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER, &loaded, result,
			      "the CUDA driver does not start");
}

static void load(void)
{
	try_to_load();
	atomic_store(&failed, failure.status != 0);
}

int oki_cuda_api_get(const struct oki_cuda_api **ret_api, struct okv_error *err)
{
	/*
	 * The driver does not work in a child of the process that started it. A child of a process
	 * that was starting it would besides wait for ever for locks of the dynamic linker and of
	 * the driver.
	 */
	uint64_t here = oki_fork_generation(), nobody = 0;
	bool ours = atomic_compare_exchange_strong(&loaded_in, &nobody, here) || nobody == here;
	if (!ours && !atomic_load(&failed))
		return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
				"the CUDA driver was loaded before a fork; it works only in the "
				"process that loaded it: start this one by spawn or exec");
	if (ours)
		pthread_once(&once, load);
	if (failure.status != 0) {
		if (err)
			*err = failure;
		return failure.status;
	}
	*ret_api = &loaded;
	return 0;
}

int oki_cuda_fail(struct okv_error *err, int status, int stage, const struct oki_cuda_api *api,
		  CUresult result, const char *fmt, ...)
{
	if (!err)
		return status;
	const char *name = NULL, *text = NULL;
	char what[sizeof(err->text)];
	va_list args;
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	if (api->error_name(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown CUDA error";
	if (api->error_string(result, &text) != CUDA_SUCCESS || !text)
		text = "no text";
	oki_fail(err, status, stage, "%s: %s (%s)", what, name, text);
	err->device_error = (int32_t)result;
	return status;
}
