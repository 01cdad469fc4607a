/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The copy kernel as an image for the driver, with code for the architectures that nvcc knows.
 */
#ifndef OKI_DEVICE_CUDA_IMAGE_H
#define OKI_DEVICE_CUDA_IMAGE_H

#include <stddef.h>
#include <stdint.h>

extern const uint64_t oki_cuda_image[];
extern const size_t oki_cuda_image_bytes; /* 0: built without nvcc, there is no kernel */

#endif
