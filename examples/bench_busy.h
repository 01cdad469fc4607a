/* [E] The model that may run beside a measurement, and what it keeps of its speed. */
#ifndef ORBITKV_EXAMPLES_BENCH_BUSY_H
#define ORBITKV_EXAMPLES_BENCH_BUSY_H

#include "bench.h"
#include "bench_cuda.h"

struct bench_busy {
	struct bench_product *product; /* NULL: an idle GPU, or none */
	double before;		       /* TFLOP/s alone, just before and just after */
	double after;
	struct bench_product_mark from;
	struct bench_product_mark to;
};

/* Start the model, when busy, and time it alone. */
void bench_busy_begin(const struct bench_config *config, bool busy, struct bench_busy *ret_busy);
/* The measurement that counts begins, after its preparations, and has ended. */
void bench_busy_again(struct bench_busy *busy);
void bench_busy_mark(struct bench_busy *busy);
void bench_busy_end(struct bench_busy *busy);
/* Figures of the model, when the measurement saw enough products. */
void bench_busy_report(const struct bench_busy *busy, struct bench_result *result);

#endif
