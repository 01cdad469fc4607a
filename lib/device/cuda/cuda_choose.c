/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The choice of a copy path, by rules on sizes and not by a cost model. Both copy paths were
 * measured over geometries, sizes and layouts, idle and beside a model (doc/log). The rules stay
 * within 5 % of the faster one without knowing the machine.
 */
#include "device/cuda/cuda_device.h"

/* So many operations start sooner than a kernel copies its first bytes. */
#define FEW_OPERATIONS 4u
/* An operation of a copy engine takes 3 us besides its bytes. With so many bytes that costs no more
 * than what SMs lose against the link. */
#define LONG_OPERATION (9u << 17)
/* From this row size on copy engines win with batched calls, whose entries cost less than single
 * operations. */
#define LONG_ROW (128u << 10)
/* Beside a model copy engines move rows of 32 KiB as fast as a kernel does. While SMs are free they
 * do so in a short copy, whose first layer they finish sooner. With rows of 16 KiB they are slower.
 * The limit is between the two, since row sizes are estimated from some of the runs. */
#define FAIR_ROW (24u << 10)
/* Divides the row size when each row needs an operation of its own, without batched calls. */
#define UNBATCHED 8u
#define SHORT_BYTES (4u << 20)
/* How much longer copy engines take for short rows than a kernel: OPERATION_NS for each operation,
 * and the time of all bytes at KERNEL_RATE, the kernel's rate in bytes per ns. */
#define OPERATION_NS 2000.0
#define KERNEL_RATE 50.0

/* Would copy engines end before a kernel that first waits for its SMs? */
static bool engines_end_first(const struct oki_cuda_work *work, double wait_ns)
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
		return row >= FAIR_ROW || engines_end_first(work, beside->wait_ns);
	if (beside->engines_busy && brief)
		return false;
	return work->operations <= FEW_OPERATIONS || row >= LONG_ROW ||
	       (row >= FAIR_ROW && (operation >= LONG_OPERATION || brief));
}
