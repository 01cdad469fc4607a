/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The devices of this build. */
#include "device/device.h"

#include "okv_config.h"

#include <stddef.h>

const struct oki_device_ops *oki_device_find(uint32_t kind)
{
	switch (kind) {
	case OKV_DEVICE_HOST: return &oki_device_host;
	case OKV_DEVICE_CUDA: return &oki_device_cuda;
	default: return NULL;
	}
}

const char *okv_devices(void)
{
	if (OKV_HAVE_COPY_KERNEL)
		return "host, cuda (dma, kernel)";
	return OKV_HAVE_CUDA ? "host, cuda (dma)" : "host";
}
