/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CUDA device share: a GPU or a reason to skip, the driver's own calls,
 * memory, and each copy path in turn. */
#ifndef TEST_DEVICE_CUDA_FIXTURE_H
#define TEST_DEVICE_CUDA_FIXTURE_H

#include <check.h>

#include "device/device.h"
#include "test/device/driver_calls.h"

static const struct oki_device_ops *const ops = &oki_device_cuda;
extern struct okv_error problem;

#define MUST(call) ck_assert_int_eq((call), CUDA_SUCCESS)
#define OKAY(call)                                                          \
	do {                                                                \
		int okay_rc = (call);                                       \
		ck_assert_msg(okay_rc == 0, "%s: %s", #call, problem.text); \
	} while (0)

/* 0 when GPU 0 can be opened with this path; else what main() returns, with the reason printed. */
int find_gpu(uint32_t with_path);

/* Within run_each_path(): the path of this run, and the test's device. The primary context is
 * current in the test's thread. */
extern uint32_t copy_path; /* enum okv_copy_path */
extern struct oki_device *device;

/* Run the tests that `add` adds once by each path: what main() returns. */
int run_each_path(const char *suite_name, void (*add)(TCase *tc));

void *host_memory(size_t bytes);
uint8_t *device_memory(size_t bytes);
void device_free(void *p);
struct oki_stream *open_stream(void);

#define PAGE (64u << 10)
#define PAGES 16u

/* Pinned blocks of one page each, and pages; adjacent both ways unless scattered. */
struct pool {
	uint8_t *host, *pages;
	struct oki_layer_map map;
	const struct oki_layer_map *maps[1];
	struct oki_run run;
};

void pool_init(struct pool *p);
void pool_fini(struct pool *p);

#endif
