/* SPDX-License-Identifier: Apache-2.0 */
/* [B] A build without nvcc has no copy kernel: copy engines do everything. */
#include "device/cuda/cuda_image.h"

const uint64_t oki_cuda_image[] = {0};
const size_t oki_cuda_image_bytes = 0;
