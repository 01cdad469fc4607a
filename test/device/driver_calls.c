/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own calls by name. */
#include "device/driver_calls.h"

#include <dlfcn.h>

struct driver_calls cu;

#define NAME(symbol) NAME_EXPANDED(symbol)
#define NAME_EXPANDED(symbol) #symbol

const char *driver_calls_load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		return dlerror();
#define LOAD(symbol)                                                     \
	cu.symbol = (__typeof__(cu.symbol))dlsym(library, NAME(symbol)); \
	if (!cu.symbol)                                                  \
		return "the driver has no " NAME(symbol);
	DRIVER_CALLS(LOAD)
	return NULL;
}
