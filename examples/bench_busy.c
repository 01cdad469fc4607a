/* [E] The model beside a measurement. */
#include "bench_busy.h"

#include <string.h>

#define SETTLE_NS 250000000u /* until the clocks have found what the power allows */
#define ALONE_PRODUCTS 48u
#define ENOUGH_PRODUCTS 8u /* fewer say nothing */

static double time_alone(struct bench_product *product)
{
	struct bench_product_mark from = bench_product_mark(product);
	struct bench_product_mark to = from;

	while (to.products < from.products + ALONE_PRODUCTS && bench_product_running(product))
		to = bench_product_mark(product);
	return bench_product_tflops(&from, &to);
}

void bench_busy_begin(const struct bench_config *config, bool busy, struct bench_busy *ret_busy)
{
	uint64_t start = bench_now_ns();

	memset(ret_busy, 0, sizeof(*ret_busy));
	if (!busy || config->product == NULL)
		return;
	ret_busy->product = config->product;
	bench_product_start(config->product);
	while (bench_now_ns() - start < SETTLE_NS && bench_product_running(config->product))
		bench_product_mark(config->product);
	ret_busy->before = time_alone(config->product);
}

void bench_busy_again(struct bench_busy *busy)
{
	if (busy->product != NULL)
		busy->from = bench_product_mark(busy->product);
}

void bench_busy_mark(struct bench_busy *busy)
{
	if (busy->product == NULL)
		return;
	busy->to = bench_product_mark(busy->product);
	busy->after = time_alone(busy->product);
}

void bench_busy_end(struct bench_busy *busy)
{
	if (busy->product != NULL)
		bench_product_stop(busy->product);
}

void bench_busy_report(const struct bench_busy *busy, struct bench_result *result)
{
	double alone = (busy->before + busy->after) / 2;
	double beside;

	if (busy->product == NULL)
		return;
	beside = bench_product_tflops(&busy->from, &busy->to);
	bench_figure(result, BENCH_DETAIL, "model_alone_tflops", alone);
	bench_figure(result, BENCH_HIDDEN, "model_alone_before_tflops", busy->before);
	bench_figure(result, BENCH_HIDDEN, "model_alone_after_tflops", busy->after);
	if (busy->to.products - busy->from.products < ENOUGH_PRODUCTS || alone <= 0)
		return;
	bench_figure(result, BENCH_DETAIL, "model_beside_tflops", beside);
	bench_figure(result, BENCH_COLUMN, "model keeps", beside / alone);
}
