/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What the work beside a measurement keeps of its speed. */
#ifndef ORBITKV_TOOLS_BENCH_BUSY_H
#define ORBITKV_TOOLS_BENCH_BUSY_H

#include "bench_beside.h"

struct bench_busy {
	struct bench_beside *beside; /* NULL: an idle GPU, or none */
	struct bench_beside_mark from;
	double before_ns; /* of a unit alone, just before and just after */
	double after_ns;
	double beside_ns; /* and during what is measured */
	uint64_t units;	  /* then */
};

/* Start the work, unless it is NULL, and time it alone. */
void bench_busy_begin(struct bench_beside *beside, struct bench_busy *ret_busy);
/* The measurement that counts begins, after its preparations, and has ended. */
void bench_busy_again(struct bench_busy *busy);
void bench_busy_mark(struct bench_busy *busy);
/* Stop it. rc, or TOOL_FAILED when that was good and the work was not. */
int bench_busy_end(struct bench_busy *busy, int rc, char *text);
/* Figures of the work; what it kept, when the measurement saw enough of it. */
void bench_busy_report(const struct bench_busy *busy, struct bench_result *result);

#endif
