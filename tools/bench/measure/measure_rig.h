/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of measure_copy: a model in an arena and on the GPU, one operation, medians. */
#ifndef TEST_DEVICE_MEASURE_RIG_H
#define TEST_DEVICE_MEASURE_RIG_H

#include <stdatomic.h>

#include "base/clock.h"
#include "device/cuda/cuda_device.h"
#include "exec/worker.h"

#define ARENA (5ull << 30)
#define SHADOW (5ull << 30)
#define GPU_BYTES (7ull << 30)
#define MOST_SIDE 8192		/* of a product */
#define PRODUCT_AT (6ull << 30) /* of the GPU's memory */
#define WORKERS 9
#define FEW 5 /* the first ones, where the others say little */

struct way {
	const char *name;
	uint32_t path, sms;
	bool one; /* the device knows that all layers lie in one allocation, which they do */
};

/* A schema, a geometry, blocks and pages. */
struct model {
	uint32_t layers, segments, pages;
	uint64_t bytes; /* of a segment of a page */
	struct oki_schema schema;
	struct oki_geometry geometry;
	uint32_t pool;		/* pages of a tensor, and blocks of the arena, of which these are */
	uint32_t *page;		/* of block i */
	uint32_t *slot;		/* in the arena, of block i */
	struct oki_pair *pairs; /* a part of all blocks, as a source leaves it checked */
};

/* One operation. */
struct job {
	struct oki_transfer t;
	struct oki_worker *worker;
	const struct model *m;
	uint32_t first, count; /* of the model's blocks */
	bool offered;
	uint64_t started, enqueued;
	_Atomic bool first_enqueued;
	_Atomic uint64_t ended;
};

extern const struct way ways[WORKERS];
extern const struct oki_cuda_api *api;
extern uint8_t *arena, *shadow;
extern CUdeviceptr gpu;
extern CUstream plain;
extern CUevent plain_event;
extern const char *const names[2]; /* of directions */

void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void must(CUresult result);
void okay(int rc, const struct okv_error *err);

/* Segments split, as K and V are; tensors one after the other. */
void model_init(struct model *m, uint32_t layers, uint32_t segments, uint64_t bytes, uint32_t pages,
		bool shuffled);
/* The same, its pages and blocks anywhere among so many. */
void model_init_in(struct model *m, uint32_t layers, uint32_t segments, uint64_t bytes,
		   uint32_t pages, uint32_t pool, bool shuffled);
void model_fini(struct model *m);
uint64_t model_bytes(const struct model *m);

/* Blocks from `first` on. */
void job_start(struct job *j, struct oki_worker *w, const struct model *m,
	       enum oki_direction direction, uint32_t first, uint32_t count,
	       struct CUevent_st **events);
/* Returns ns from start to ended. */
double job_wait(struct job *j, struct oki_worker *w);

/* A worker borrows its schema and geometry: one for each case. */
struct oki_worker *worker_for(const struct way *way, const struct model *m);
void worker_end(struct oki_worker *w);

/* A kernel that does nothing, as small as a model's smallest. */
void tiny_init(void);
void tiny_launch(CUstream stream);
void tiny_fini(void);

double median(double *values, int n);
/* One contiguous copy, record, poll. */
double plain_copy(enum oki_direction direction, uint64_t bytes);
double plain_median(enum oki_direction direction, uint64_t bytes, int n);

void noise(uint8_t *at, uint64_t bytes);
/* Copy once over poison and compare every byte. */
void verify(struct oki_worker *w, const struct model *m, enum oki_direction direction);

/* ---- measure_busy.c: a matrix product beside the copies ---- */

struct product {
	void *blas;
	CUstream stream;
	int side, times;
};

/* What runs beside the products: one operation after the other, or one contiguous copy after the
 * other of as many bytes where worker is NULL. */
struct beside {
	struct oki_worker *worker;
	const struct model *m;
	enum oki_direction direction;
	CUstream stream;
	CUevent event;
	struct job job;
	uint64_t begun, started; /* the first operation, the present one */
	double copied;		 /* bytes of those that ended */
};

/* False: no cuBLAS, which it says. */
bool product_init(struct product *p);
void product_fini(struct product *p);
/* One operation after the other from here on; NULL: none. */
void beside_begin(struct beside *b);
/* As soon as one ends the next one starts: to be called again and again. */
void beside_go_on(struct beside *b);
/* What they copied a ns so far; then wait for the last one. */
void beside_end(struct beside *b, double *ret_rate);
/* ns of all products; beside NULL: alone. */
double products(const struct product *p, struct beside *beside, double *ret_rate);
void busy(void);

/* measure_ways.c: each way beside the chosen one, idle and busy */
void ways_compared(void);
/* measure_both.c: a restore and a publish at once */
void both(void);
/* measure_launch.c: small kernels beside the copies */
void launches(void);
/* measure_kernel.c: the copy kernel and its plan alone */
void kernel_alone(void);

#endif
