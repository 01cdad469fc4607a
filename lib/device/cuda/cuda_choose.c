/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] Which way a copy goes. Rules on sizes, not prices: what each way takes was measured over
 * geometries, sizes and layouts, idle and beside a model (doc/log), and these keep within
 * 5 % of the better one without knowing the machine.
 */
#include "device/cuda/cuda_device.h"

/* Operations that start in less time than a kernel and its first bytes take. */
#define FEW_OPERATIONS 4u
/* An operation of a copy engine takes 3 us beside its bytes: of so many that is as little as SMs
 * lose. */
#define LONG_OPERATION (9u << 17)
/* Rows of a batched call, whose entries cost less than an operation of their own. */
#define LONG_ROW (128u << 10)
/* Rows of 32 KiB copy engines move as fast as a kernel does beside a model, and where they are free
 * those of a short copy, whose first layer they have sooner; rows of 16 KiB they do not. Between
 * the two, as rows are counted by some of the runs. */
#define FAIR_ROW (24u << 10)
/* Without batched calls each row is an operation. */
#define UNBATCHED 8u
#define SHORT_BYTES (4u << 20)
/* What short rows take copy engines longer than a kernel: for each operation, and in all as long as
 * the kernel takes at so many bytes per ns. */
#define OPERATION_NS 2000.0
#define KERNEL_RATE 50.0

/* Would copy engines be through before a kernel has waited for its SMs and copied? */
static bool kernel_comes_late(const struct oki_cuda_work *work, double wait_ns)
{
	return (double)work->operations * OPERATION_NS + (double)work->bytes / KERNEL_RATE <=
	       wait_ns;
}

bool oki_cuda_suits_engines(const struct oki_cuda_work *work, const struct oki_cuda_beside *beside)
{
	uint64_t row = work->rows ? work->bytes / work->rows : 0;
	uint64_t operation = work->operations ? work->bytes / work->operations : 0;
	bool brief = work->bytes <= SHORT_BYTES;
	if (!beside->batch)
		row /= UNBATCHED;
	if (beside->wait_ns > 0)
		return row >= FAIR_ROW || kernel_comes_late(work, beside->wait_ns);
	if (beside->engines_busy && brief)
		return false;
	return work->operations <= FEW_OPERATIONS || row >= LONG_ROW ||
	       (row >= FAIR_ROW && (operation >= LONG_OPERATION || brief));
}
