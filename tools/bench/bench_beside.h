/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Work on the GPU that may run beside a measurement, one kind at a time. */
#ifndef ORBITKV_TOOLS_BENCH_BESIDE_H
#define ORBITKV_TOOLS_BENCH_BESIDE_H

#include "bench.h"
#include "bench_cuda.h"

/* ---- what each kind is; its calls come from one thread at a time, in the context ---- */

struct bench_work_calls {
	/* One more unit of the work, until the end of one is seen. 0, or the error: a CUresult, or
	 * what the library that computes says. */
	int (*turn)(void *self);
	/* Until nothing of it is left on the GPU, also after a turn that failed. A CUresult. */
	int (*drain)(void *self);
	/* Of what was drained. */
	void (*close)(void *self);
	/* A unit's time in the terms of this work. */
	double (*figure)(const void *self, double unit_ns);
	/* Figures are called NAME_alone_TERMS and NAME_beside_TERMS. */
	const char *name;
	const char *terms;
	/* True: units overlap, and count by their mean. False: turns are units, and their median
	 * counts. */
	bool overlap;
};

struct bench_work {
	const struct bench_work_calls *calls;
	void *self; /* owned */
};

/* TOOL_SKIPPED with the reason where the GPU, its driver or a library has no such work. */

/* bench_product.c: bf16 products of matrices of so many rows and columns, by cuBLAS. */
int bench_product_open(struct bench_cuda *cuda, unsigned side, struct bench_work *ret_work,
		       char *text);
/* bench_chain.c: so many kernels that do nothing, one after the other. */
int bench_chain_open(struct bench_cuda *cuda, unsigned kernels, struct bench_work *ret_work,
		     char *text);

/* ---- bench_beside.c: a thread that does it again and again ---- */

#define BENCH_NOTHING "nothing" /* name of what runs beside a measurement on an idle GPU */

struct bench_beside;

/* The end of a unit. */
struct bench_beside_mark {
	uint64_t units;
	uint64_t ns;
};

/* All kinds into config->beside, or the reasons why not. They stand still until started. Fails
 * without memory only. */
int bench_beside_open(struct bench_config *config, char *text);
void bench_beside_close(struct bench_config *config);
/* A row of the suite for each reason why some kinds are not there. */
void bench_beside_report_missing(const struct bench_config *config, const char *suite);
/* What a geometry is measured beside after this one, which is NULL at first; NULL: nothing more.
 * With --quick all kinds for the usual geometry, the first for the others. */
struct bench_beside *bench_beside_next(const struct bench_config *config, const char *geometry,
				       const struct bench_beside *last);
/* BENCH_NOTHING for NULL. */
const char *bench_beside_name(const struct bench_beside *beside);
const struct bench_work *bench_beside_work(const struct bench_beside *beside);

/* Once it failed it does not start again. */
void bench_beside_start(struct bench_beside *beside);
/* Returns when the GPU has none of it any more. */
void bench_beside_stop(struct bench_beside *beside);
/* 0, or why it stopped by itself: then no mark moves any more. */
int bench_beside_failure(struct bench_beside *beside);
/* The end of the next unit. */
struct bench_beside_mark bench_beside_mark(struct bench_beside *beside);
/* What a unit took between two marks, the later of which has just passed; 0 when there was none. */
double bench_beside_unit_ns(struct bench_beside *beside, const struct bench_beside_mark *from,
			    const struct bench_beside_mark *to);

#endif
