/* SPDX-License-Identifier: Apache-2.0 */
/* Version of the library this header belongs to. The build reads the numbers from here. */
#ifndef ORBITKV_VERSION_H
#define ORBITKV_VERSION_H

#define OKV_VERSION_MAJOR 0
#define OKV_VERSION_MINOR 2
#define OKV_VERSION_PATCH 0

/* Marks what libkv.so exports. test/lint/exports.sh compares the marks with the symbol map. Define
 * it before, as nothing, where these headers are parsed and not compiled. */
#ifndef OKV_EXPORT
#if defined(__GNUC__)
#define OKV_EXPORT __attribute__((visibility("default")))
#else
#define OKV_EXPORT
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Version of the loaded library as MAJOR << 16 | MINOR << 8 | PATCH.
 * Blocks never.   Threads any.
 */
OKV_EXPORT unsigned okv_version(void);
/**
 * The devices that are built into the loaded library, and how they copy: "host, cuda (dma,
 * kernel)"; "host, cuda (dma)" of a build without nvcc; "host" of one without CUDA. Not what this
 * host has.
 * Blocks never.   Threads any.
 */
OKV_EXPORT const char *okv_devices(void);

#ifdef __cplusplus
}
#endif
#endif
