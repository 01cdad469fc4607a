/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The CUDA device of a build without CUDA headers. open() always fails, so no other function of
 * it is ever called. */
#include "device/device.h"

#include "base/error.h"

static int none_open(const struct oki_device_config *config, struct oki_device **ret_device,
		     struct okv_error *err)
{
	(void)config, (void)ret_device;
	return oki_fail(err, OKV_E_UNSUPPORTED, OKV_STAGE_REGISTER,
			"this library was built without CUDA");
}

const struct oki_device_ops oki_device_cuda = {
	.name = "cuda",
	.kind = OKV_DEVICE_CUDA,
	.has_gpu_streams = true,
	.open = none_open,
};
